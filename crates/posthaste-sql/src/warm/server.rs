//! Connections of a server, which may allow fewer of them than a pool.

use std::pin::pin;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::{KEPT, Warm, WarmConnection};
use crate::failover::Writable;

/// How long the pool is waited for, again and again, before it is seen whether one has come back.
const LOOK: Duration = Duration::from_millis(10);

/// How long until a server that takes no more connections is asked for one again.
const ASKED_AGAIN: Duration = Duration::from_millis(250);

/// A connection of the pool.
///
/// A pool of sqlx that has none to give makes another, up to its own limit. Where the server allows fewer it says that it cannot, or
/// tries until its time is up, and meanwhile does not see those that come back. Those that are kept here it never sees. So whoever
/// waits takes one of those as well.
pub(crate) async fn acquire<DB: Writable>(
    pool: &Pool<DB>,
    warm: Option<&Warm<DB>>,
) -> Result<WarmConnection<DB>, sqlx::Error> {
    // Without it the hooks of the pool may have to see each connection that it gives.
    let Some(warm) = warm else { return pool.acquire().await.map(WarmConnection::new) };
    if pool.num_idle() == 0
        && let Some(spare) = warm.spare()
    {
        return Ok(spare);
    }
    let deadline = Instant::now() + pool.options().get_acquire_timeout();
    let mut asking = pin!(pool.acquire());
    // Most often there is one.
    let mut full = match timeout(LOOK, &mut asking).await {
        Ok(Err(error)) if DB::is_full(&error) => Some((error, Instant::now())),
        Ok(acquired) => return acquired.map(WarmConnection::new),
        Err(_) => None,
    };
    let mut returned = warm.wait();
    loop {
        tokio::select! {
            biased;
            Ok(returned) = &mut returned => return Ok(returned),
            acquired = &mut asking, if full.is_none() => match acquired {
                Err(error) if DB::is_full(&error) => full = Some((error, Instant::now())),
                acquired => return acquired.map(WarmConnection::new),
            },
            () = sleep(LOOK) => {}
        }
        if let Some(connection) = pool.try_acquire().map(WarmConnection::new).or_else(|| warm.spare()) {
            return Ok(connection);
        }
        // Without any of its own the pool has none that could come back.
        if let Some((error, _)) = full.take_if(|_| pool.size() == 0 || Instant::now() >= deadline) {
            return Err(error);
        }
        if full.take_if(|(_, at)| at.elapsed() >= ASKED_AGAIN).is_some() {
            asking.set(pool.acquire());
        }
    }
}

impl<DB: Database> Warm<DB> {
    /// Any that is kept, for who would have the pool make another.
    fn spare(&self) -> Option<WarmConnection<DB>> {
        let last = self.0.shelf().kept.pop()?;
        if self.0.pool.is_closed() || last.since.elapsed() >= KEPT * 2 {
            last.give_back();
            return None;
        }
        Some(last.connection)
    }

    /// To be given the next one that comes back.
    fn wait(&self) -> oneshot::Receiver<WarmConnection<DB>> {
        let (sender, receiver) = oneshot::channel();
        let mut shelf = self.0.shelf();
        shelf.waiting.retain(|waiting| !waiting.is_closed());
        shelf.waiting.push_back(sender);
        receiver
    }
}

impl<DB: Database> WarmConnection<DB> {
    /// The connection for what knows those of the pool only.
    pub(crate) fn into_pooled(self) -> PoolConnection<DB> {
        self.connection
    }

    /// Closes the connection instead of giving it back.
    pub(crate) fn close_on_drop(&mut self) {
        self.connection.close_on_drop();
    }
}
