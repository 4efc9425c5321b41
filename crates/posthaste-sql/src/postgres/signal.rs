//! LISTEN and NOTIFY.

use std::time::Duration;

use posthaste_core::signal::Signal;
use posthaste_core::store::{BoxFuture, Error};
use posthaste_core::wake::Wake;
use sqlx::postgres::PgListener;
use tokio::time::timeout;

use super::PgStore;
use super::sql::EVERYWHERE;
use crate::pool;

/// For a signal on a connection that may have died.
const AT_ONCE: Duration = Duration::from_millis(250);

/// After how long without a notice the connection is tried: something in between may have cut it without a word.
const QUIET: Duration = Duration::from_secs(30);

impl Signal for PgStore {
    fn send(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let notify = || sqlx::query(self.sql.notify.clone());
            // Whatever is idle will do, and is not asked first whether it is alive, which would cost a round trip. One that
            // does not answer is not given back: the pool would wait for it, without an end.
            if let Some(mut connection) = self.pool.try_acquire() {
                match timeout(AT_ONCE, notify().execute(&mut *connection)).await {
                    Ok(Ok(_)) => return Ok(()),
                    _ => drop(connection.detach()),
                }
            }
            let mut connection = self.acquire().await.map_err(|error| self.fault(error))?;
            notify().execute(&mut *connection).await.map(drop).map_err(|error| self.fault(error))
        })
    }

    /// On a connection of its own, because it keeps it.
    fn listen<'a>(&'a self, wake: &'a Wake) -> BoxFuture<'a, Error> {
        Box::pin(async move {
            let error = tokio::select! {
                error = self.listen_until_error(wake) => error,
                () = self.pool.close_event() => sqlx::Error::PoolClosed,
            };
            self.fault(error)
        })
    }
}

impl PgStore {
    /// Tells relays that rows have become due that were there before, where they listen. What is not told they find by themselves,
    /// some seconds later.
    pub(super) async fn tell_of_old_rows(&self) {
        if !self.wake_ups {
            return;
        }
        let notify = sqlx::query(self.sql.notify_everywhere.clone()).bind(EVERYWHERE);
        if let Err(error) = notify.execute(&self.pool).await {
            tracing::debug!(%error, "relays were not told");
        }
    }

    async fn listen_until_error(&self, wake: &Wake) -> sqlx::Error {
        match self.try_listen(wake).await {
            Ok(()) => std::io::Error::from(std::io::ErrorKind::ConnectionReset).into(),
            Err(error) => error,
        }
    }

    /// Listens until the connection is lost.
    async fn try_listen(&self, wake: &Wake) -> Result<(), sqlx::Error> {
        let pool = pool::unswept().max_connections(1);
        let pool = pool.connect_with((*self.pool.connect_options()).clone()).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(&self.sql.channel).await?;
        wake.everywhere();
        loop {
            match timeout(QUIET, listener.try_recv()).await {
                Ok(received) => {
                    let Some(first) = received? else { return Ok(()) };
                    let mut everywhere = first.payload() == EVERYWHERE;
                    while let Some(next) = listener.next_buffered() {
                        everywhere |= next.payload() == EVERYWHERE;
                    }
                    if everywhere { wake.everywhere() } else { wake.now() }
                }
                Err(_) => {
                    let answer = timeout(QUIET, sqlx::raw_sql("SELECT").execute(&mut listener)).await;
                    answer.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
                }
            }
        }
    }
}
