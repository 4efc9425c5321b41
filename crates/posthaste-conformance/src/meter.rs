//! What the outbox reports, as something to wait for.

use std::time::Duration;

use posthaste_core::Metrics;
use posthaste_core::listener::Path;
use tokio::sync::watch;

use crate::wait::within;

/// Counts what is reported. Clones share their counts.
#[derive(Clone, Debug)]
pub struct Meter(watch::Sender<Tally>);

/// What was reported so far. The fields are named after the methods of [`Metrics`].
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "documented by the trait")]
pub struct Tally {
    pub hot_enqueued: u64,
    pub hot_dropped: u64,
    pub cold_enqueued: u64,
    pub delivered: u64,
    pub failed: u64,
    pub deferred: u64,
    pub dead: u64,
    pub released: u64,
    pub lease_lost: u64,
    pub poll_failed: u64,
    pub settle_failed: u64,
    pub purged: u64,
    pub in_flight: Vec<usize>,
    pub queue_depths: Vec<(usize, usize)>,
    pub oldest_lag: Vec<Duration>,
    pub listener_duration: u64,
    pub settle_batch: Vec<usize>,
    pub claim_batch: Vec<usize>,
}

impl Meter {
    /// A meter that nothing was reported to.
    pub fn new() -> Self {
        Self(watch::Sender::new(Tally::default()))
    }

    /// What was reported so far.
    pub fn tally(&self) -> Tally {
        self.0.borrow().clone()
    }

    /// Waits until what was reported is as it should be.
    pub async fn until(&self, what: &str, reached: impl FnMut(&Tally) -> bool) {
        let mut receiver = self.0.subscribe();
        within(what, receiver.wait_for(reached)).await.unwrap();
    }

    fn add(&self, change: impl FnOnce(&mut Tally)) {
        self.0.send_modify(change);
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics for Meter {
    fn hot_enqueued(&self, count: u64) {
        self.add(|tally| tally.hot_enqueued += count);
    }

    fn hot_dropped(&self, count: u64) {
        self.add(|tally| tally.hot_dropped += count);
    }

    fn cold_enqueued(&self, count: u64) {
        self.add(|tally| tally.cold_enqueued += count);
    }

    fn delivered(&self, count: u64) {
        self.add(|tally| tally.delivered += count);
    }

    fn failed(&self, count: u64) {
        self.add(|tally| tally.failed += count);
    }

    fn deferred(&self, count: u64) {
        self.add(|tally| tally.deferred += count);
    }

    fn dead(&self, count: u64) {
        self.add(|tally| tally.dead += count);
    }

    fn released(&self, count: u64) {
        self.add(|tally| tally.released += count);
    }

    fn lease_lost(&self, count: u64) {
        self.add(|tally| tally.lease_lost += count);
    }

    fn poll_failed(&self) {
        self.add(|tally| tally.poll_failed += 1);
    }

    fn settle_failed(&self) {
        self.add(|tally| tally.settle_failed += 1);
    }

    fn purged(&self, count: u64) {
        self.add(|tally| tally.purged += count);
    }

    fn queue_depths(&self, hot: usize, cold: usize) {
        self.add(|tally| tally.queue_depths.push((hot, cold)));
    }

    fn in_flight(&self, count: usize) {
        self.add(|tally| tally.in_flight.push(count));
    }

    fn oldest_lag(&self, lag: Duration) {
        self.add(|tally| tally.oldest_lag.push(lag));
    }

    fn latency(&self, _path: Path, _latency: Duration) {}

    fn listener_duration(&self, _duration: Duration) {
        self.add(|tally| tally.listener_duration += 1);
    }

    fn settle_batch(&self, size: usize) {
        self.add(|tally| tally.settle_batch.push(size));
    }

    fn claim_batch(&self, size: usize) {
        self.add(|tally| tally.claim_batch.push(size));
    }
}
