//! Trying again after a lost conflict.

use std::time::Duration;

use posthaste_core::store::Error;
use tokio::time::{Instant, sleep};

use crate::table::TableName;

/// How often we try again. A deadlock is over the moment that one side gave way, so a few tries are plenty.
const TRIES: u32 = 10;
/// How long we go on trying; one wait for a lock takes up to 50 s by the server's default.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Bounded patience with transactions of others.
pub(super) struct Patience {
    until: Instant,
    left: u32,
    pause: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() + LONGEST_WAIT, left: TRIES, pause: SHORTEST_PAUSE }
    }

    /// Pauses after an error that is worth another try.
    ///
    /// # Errors
    /// The error itself, if it is not, or when patience has run out.
    pub(super) async fn after(&mut self, error: Error, table: &TableName) -> Result<(), Error> {
        if !matches!(error, Error::Busy(_)) || self.left == 0 || Instant::now() >= self.until {
            return Err(error);
        }
        tracing::debug!(%table, pause = ?self.pause, "trying again after a lost conflict");
        sleep(self.pause.mul_f64(0.5 + fastrand::f64())).await;
        self.left -= 1;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
