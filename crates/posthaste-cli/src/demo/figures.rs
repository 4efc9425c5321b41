//! What is counted while the demo runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use posthaste::Metrics;
use posthaste::listener::Path;

/// What is counted while the demo runs, by the writers and by the outbox.
pub(super) struct Figures {
    started_at: Instant,
    pub(super) written: Counter,
    pub(super) rolled_back: Counter,
    pub(super) delivered: Counter,
    pub(super) retried: Counter,
    pub(super) dead: Counter,
    /// From commit to listener, hot path only, in nanoseconds.
    hot: Mutex<Histogram<u64>>,
}

/// A number that only grows.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

/// Reports what an outbox does to the figures.
pub(super) struct Reporter(pub(super) Arc<Figures>);

/// Hot latencies are told apart from 1 ns to a minute, to three digits.
const LONGEST_LATENCY: Duration = Duration::from_secs(60);

impl Figures {
    pub(super) fn new() -> Self {
        let longest = u64::try_from(LONGEST_LATENCY.as_nanos()).expect("a minute fits");
        Self {
            started_at: Instant::now(),
            written: Counter::default(),
            rolled_back: Counter::default(),
            delivered: Counter::default(),
            retried: Counter::default(),
            dead: Counter::default(),
            hot: Mutex::new(Histogram::new_with_bounds(1, longest, 3).expect("the bounds are in order")),
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Orders that were written or rolled back.
    pub(super) fn placed(&self) -> u64 {
        self.written.get() + self.rolled_back.get()
    }

    /// The latency that this share of the hot deliveries did not exceed; nothing before the first.
    pub(super) fn hot_latency(&self, share: f64) -> Option<Duration> {
        let hot = self.hot.lock().unwrap_or_else(PoisonError::into_inner);
        (!hot.is_empty()).then(|| Duration::from_nanos(hot.value_at_quantile(share)))
    }
}

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metrics for Reporter {
    fn delivered(&self, count: u64) {
        self.0.delivered.add(count);
    }

    fn failed(&self, count: u64) {
        self.0.retried.add(count);
    }

    fn dead(&self, count: u64) {
        self.0.dead.add(count);
    }

    fn latency(&self, path: Path, latency: Duration) {
        if path == Path::Hot {
            let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            self.0.hot.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos);
        }
    }
}
