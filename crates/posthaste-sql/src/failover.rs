//! Parting with connections that lead to a server which takes no writes any more.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::{Database, Pool};
use tokio::time::Instant;

use crate::warm::{self, Warm, WarmConnection};

/// The most connections that are asked after one of them was refused a write.
const MOST: u32 = 10;

/// How long until others are asked again. While no server takes writes, this keeps everybody from reconnecting all the time.
const PAUSE: Duration = Duration::from_secs(1);

/// A database whose connections can be asked whether they lead to a server that takes writes.
pub(crate) trait Writable: Database {
    fn is_writable(connection: &mut Self::Connection) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Whether the server has no room for another connection, and the pool says so.
    fn is_full(error: &sqlx::Error) -> bool;
}

/// Knows when a server has refused a write because it only reads. After a failover a new connection may lead to the primary;
/// one that was made before never will, and would go round in its pool for half an hour.
///
/// The connection that was refused is often a user's, in the middle of a transaction, so it cannot be closed on the spot.
/// Instead, those that come out of the pool next are asked.
#[derive(Clone, Default)]
pub(crate) struct Failover(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// How many connections are still to be asked.
    left: u32,
    /// When the last ones were.
    since: Option<Instant>,
}

impl Failover {
    /// A write was refused, and this is how many connections there are.
    pub(crate) fn suspect(&self, connections: u32) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.left == 0 && state.since.is_none_or(|since| since.elapsed() >= PAUSE) {
            *state = State { left: connections.clamp(1, MOST), since: Some(Instant::now()) };
        }
    }

    /// Whether connections are to be asked.
    pub(crate) fn is_suspected(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).left > 0
    }

    /// Whether the next connection is to be asked.
    fn asks(&self) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asks = state.left > 0;
        state.left = state.left.saturating_sub(1);
        asks
    }

    /// A connection of the pool, which leads to a server that takes writes if there is any doubt and any such server.
    pub(crate) async fn acquire<DB: Writable>(
        &self,
        pool: &Pool<DB>,
        warm: Option<&Warm<DB>>,
    ) -> Result<WarmConnection<DB>, sqlx::Error> {
        loop {
            let mut connection = warm::acquire(pool, warm).await?;
            if !self.asks() {
                return Ok(connection);
            }
            match DB::is_writable(&mut connection).await {
                Ok(true) => return Ok(connection),
                Ok(false) => tracing::debug!("closing a connection to a server that takes no writes"),
                Err(error) => tracing::debug!(%error, "closing a connection that did not say whether it can write"),
            }
            // Waited for, so that the pool of one has room for the next.
            let _ = connection.into_pooled().close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn as_many_are_asked_as_there_are_and_not_all_the_time() {
        let failover = Failover::default();
        let asked = || std::iter::from_fn(|| failover.asks().then_some(())).count();
        assert_eq!(asked(), 0);
        failover.suspect(3);
        assert_eq!(asked(), 3);
        failover.suspect(3);
        assert_eq!(asked(), 0, "they were just asked");
        tokio::time::advance(PAUSE).await;
        failover.suspect(0);
        assert_eq!(asked(), 1);
        tokio::time::advance(PAUSE).await;
        failover.suspect(500);
        failover.suspect(500);
        assert_eq!(asked(), MOST as usize);
    }
}
