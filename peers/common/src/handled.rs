//! Which events the handler has seen, and how long after their commit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::sync::Notify;

/// How long the handler may see nothing new before the run is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// A moment that has not come yet.
const NEVER: u64 = u64::MAX;

/// The events that are expected, by their index.
#[derive(Debug)]
pub struct Handled {
    since: Instant,
    events: Vec<Moments>,
    count: AtomicUsize,
    repeats: AtomicUsize,
    progress: Notify,
}

#[derive(Debug)]
struct Moments {
    committed_at: AtomicU64,
    started_at: AtomicU64,
}

impl Handled {
    pub(crate) fn expect(events: usize) -> Self {
        let moments = || Moments { committed_at: AtomicU64::new(NEVER), started_at: AtomicU64::new(NEVER) };
        Self {
            since: Instant::now(),
            events: std::iter::repeat_with(moments).take(events).collect(),
            count: AtomicUsize::new(0),
            repeats: AtomicUsize::new(0),
            progress: Notify::new(),
        }
    }

    /// The transaction of this event has been committed.
    pub(crate) fn committed(&self, index: usize) {
        self.events[index].committed_at.store(self.now(), Ordering::Release);
    }

    /// The whole work of the handler.
    pub fn event(&self, index: usize) {
        if self.events[index].started_at.swap(self.now(), Ordering::AcqRel) != NEVER {
            self.repeats.fetch_add(1, Ordering::Relaxed);
        } else if self.count.fetch_add(1, Ordering::AcqRel) + 1 == self.events.len() {
            self.progress.notify_one();
        }
    }

    /// Waits until every event has been seen.
    pub(crate) async fn all(&self) -> anyhow::Result<()> {
        let mut seen = 0;
        while tokio::time::timeout(PATIENCE, self.progress.notified()).await.is_err() {
            let now = self.count.load(Ordering::Acquire);
            ensure!(now > seen, "stuck after {now} of {} events", self.events.len());
            seen = now;
        }
        Ok(())
    }

    /// Fails unless every event was seen just once.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let (seen, repeats) = (self.count.load(Ordering::Acquire), self.repeats.load(Ordering::Relaxed));
        ensure!(seen == self.events.len(), "the handler saw {seen} of {} events", self.events.len());
        ensure!(repeats == 0, "the handler saw {repeats} events again");
        Ok(())
    }

    /// Microseconds from commit to handler, in order, without the first so many events.
    pub(crate) fn latencies(&self, skip: usize) -> Vec<f64> {
        let latency = |moments: &Moments| {
            let (committed_at, started_at) =
                (moments.committed_at.load(Ordering::Acquire), moments.started_at.load(Ordering::Acquire));
            // The handler may begin before the writer hears of its commit.
            started_at.saturating_sub(committed_at) as f64 / 1000.0
        };
        let mut latencies: Vec<f64> = self.events.iter().skip(skip).map(latency).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(NEVER)
    }
}
