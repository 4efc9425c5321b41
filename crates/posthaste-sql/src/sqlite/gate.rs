//! Waiting for one's turn to write.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::store::Error;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep, timeout};

use super::fault;
use crate::table::TableName;

/// Lets one writer of this process through at a time, in the order in which they came.
#[derive(Clone)]
pub(super) struct Gate {
    writer: Arc<Mutex<()>>,
    timeout: Duration,
}

/// The turn of a writer; the next one comes when it is dropped.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Gate {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { writer: Arc::default(), timeout }
    }

    /// Waits for the turn.
    ///
    /// # Errors
    /// [`Error::Busy`] when another transaction of this process stays open for too long.
    pub(super) async fn enter(&self) -> Result<Turn, Error> {
        timeout(self.timeout, Arc::clone(&self.writer).lock_owned()).await.map_err(|_| {
            Error::Busy(
                format!(
                    "another transaction of this process is open, or waits for another process, since more than {:?}; \
                     SQLite lets one write at a time, so commit it, roll it back or drop it sooner",
                    self.timeout
                )
                .into(),
            )
        })
    }
}

/// How many events are made of rows before others are let go on.
pub(super) const AT_ONCE: usize = 64;

/// Lets others go on, who may have the turn to write by now, or the connection.
///
/// What was given up has woken them on the thread that gave it up, where no other takes them over, and what SQLite's thread answers to
/// them waits until one of ours is free. To make events of a thousand rows takes milliseconds, in which nothing would be written.
pub(super) async fn let_others_go_on() {
    tokio::task::yield_now().await;
}

/// How long we try again in all, on top of SQLite's own waiting.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Bounded patience with transactions of other processes.
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() + LONGEST_WAIT, pause: SHORTEST_PAUSE }
    }

    /// Pauses after an error that is worth another try.
    ///
    /// # Errors
    /// The error itself, if it is not, or when patience has run out.
    pub(super) async fn after(&mut self, error: sqlx::Error, table: &TableName) -> Result<(), Error> {
        let error = fault::classify(error, table);
        if !matches!(error, Error::Busy(_)) || Instant::now() >= self.until {
            return Err(error);
        }
        tracing::debug!(%table, pause = ?self.pause, "waiting for another transaction");
        sleep(self.pause.mul_f64(0.5 + fastrand::f64())).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_with_other_processes_ends() {
        let begun = Instant::now();
        let mut patience = Patience::new();
        let mut tries = 0;
        let error = loop {
            match patience.after(fault::made_up(5, "database is locked"), &TableName::default()).await {
                Ok(()) => tries += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Busy(_)));
        assert!((30..1000).contains(&tries), "{tries}");
        assert!(begun.elapsed() >= LONGEST_WAIT && begun.elapsed() < LONGEST_WAIT + 2 * LONGEST_PAUSE);
    }

    #[tokio::test]
    async fn there_is_none_with_other_errors() {
        let error = fault::made_up(1, "near \"x\": syntax error");
        assert!(matches!(Patience::new().after(error, &TableName::default()).await, Err(Error::Refused(_))));
    }

    #[tokio::test]
    async fn turns_come_in_order() {
        let gate = Gate::new(Duration::from_secs(5));
        let first = gate.enter().await.unwrap();
        let (sender, mut turns) = tokio::sync::mpsc::unbounded_channel();
        for n in 0..10 {
            let (gate, sender) = (gate.clone(), sender.clone());
            tokio::spawn(async move {
                let _turn = gate.enter().await.unwrap();
                sender.send(n).unwrap();
            });
            // Lets it queue up before the next.
            tokio::task::yield_now().await;
        }
        drop(first);
        for n in 0..10 {
            assert_eq!(turns.recv().await, Some(n));
        }
    }
}
