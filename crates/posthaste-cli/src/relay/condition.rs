//! How a relay is: whether it delivers, and whether its database is as it should be.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::gauge;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use crate::database::Database;

/// How long the database may take to answer before it counts as away.
const PATIENCE: Duration = Duration::from_secs(2);

/// For how long an answer of the database counts: whoever asks often gives it no more work.
const FRESH: Duration = Duration::from_secs(1);

/// How long whoever asks for metrics waits for the table to be read, where that is due. To count a large one takes longer.
const MOMENT: Duration = Duration::from_secs(1);

/// How a relay is. Shared by the relay, which changes it, and by whoever asks.
#[derive(Default)]
pub(super) struct Condition {
    step: AtomicU8,
    database: OnceLock<Database>,
    /// What the database said last, and when.
    answered: Mutex<Option<(Instant, Result<(), String>)>>,
    /// Told whenever somebody asks for metrics.
    asked: Notify,
    /// Whether the table is to be read for whoever asks for metrics, because what is known of it is old.
    is_due: AtomicBool,
    /// Told whenever the table was read for metrics.
    sampled: Notify,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Step {
    Starting = 0,
    Delivering = 1,
    Draining = 2,
}

impl Condition {
    pub(super) fn new() -> Arc<Self> {
        let condition = Arc::new(Self::default());
        condition.is(Step::Starting);
        condition
    }

    /// From now on.
    pub(super) fn is(&self, step: Step) {
        self.step.store(step as u8, Ordering::Release);
        gauge!("posthaste_draining").set(if step == Step::Draining { 1.0 } else { 0.0 });
        gauge!("posthaste_ready").set(if step == Step::Delivering { 1.0 } else { 0.0 });
    }

    /// The database that it takes events from.
    pub(super) fn has(&self, database: &Database) {
        // There is one at most.
        let _ = self.database.set(database.clone());
    }

    /// Somebody asks for metrics. He waits a moment for the table to be read, if that is due: what he is told is to be as fresh as if it
    /// were read all the time.
    pub(super) async fn asked_for_metrics(&self) {
        // From now on it hears of a reading, also of one that ends before it is waited for.
        let sampled = self.sampled.notified();
        let is_due = self.is_due.load(Ordering::Acquire);
        self.asked.notify_one();
        if is_due {
            // What was known before is told where it takes longer.
            let _ = timeout(MOMENT, sampled).await;
        }
    }

    /// Waits until somebody asks for metrics, unless somebody has since the last time.
    pub(super) async fn until_asked(&self) {
        self.is_due.store(true, Ordering::Release);
        self.asked.notified().await;
    }

    /// The table was read for metrics, or could not be.
    pub(super) fn has_sampled(&self) {
        self.is_due.store(false, Ordering::Release);
        self.sampled.notify_waiters();
    }

    /// Whether it delivers; if not, why.
    pub(super) async fn ready(&self) -> Result<(), String> {
        match self.step.load(Ordering::Acquire) {
            step if step == Step::Starting as u8 => {
                return Err("starting: waiting for the database or for destinations".to_owned());
            }
            step if step == Step::Draining as u8 => return Err("draining: it was asked to end".to_owned()),
            _ => {}
        }
        let answer = self.database().await;
        // One that ended meanwhile must not be told to be ready again.
        if self.step.load(Ordering::Acquire) == Step::Delivering as u8 {
            gauge!("posthaste_ready").set(if answer.is_ok() { 1.0 } else { 0.0 });
        }
        answer
    }

    /// Whether the database answers, and its table is of our version; if not, why.
    async fn database(&self) -> Result<(), String> {
        let Some(database) = self.database.get() else { return Err("starting: there is no database yet".to_owned()) };
        let mut answered = self.answered.lock().await;
        if let Some((at, answer)) = &*answered
            && at.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = ask(database).await;
        gauge!("posthaste_database_up").set(if answer.is_ok() { 1.0 } else { 0.0 });
        *answered = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// Whether the database answers, and its table is of our version.
async fn ask(database: &Database) -> Result<(), String> {
    match timeout(PATIENCE, database.pending_migration_sql()).await {
        Err(_) => Err(format!("the database does not answer within {PATIENCE:?}")),
        Ok(Err(error)) => Err(format!("the database cannot be used: {}", crate::text_of(&error))),
        Ok(Ok(pending)) if !pending.is_empty() => {
            Err("the table is missing, or of an older version; posthaste migrate up brings it up to date".to_owned())
        }
        Ok(Ok(_)) => Ok(()),
    }
}
