//! What the outbox tells about itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::hook::panic_text;
use crate::listener::Path;
use crate::store::Counts;

/// Where the outbox reports what it does. Every method has an empty body, so implement what you need.
///
/// Called from the hot path: be quick, and do not block.
///
/// | method | kind | name on the `metrics` facade |
/// |---|---|---|
/// | [`hot_enqueued`](Metrics::hot_enqueued) | counter | `posthaste_hot_enqueued_total` |
/// | [`hot_dropped`](Metrics::hot_dropped) | counter | `posthaste_hot_dropped_total` |
/// | [`cold_enqueued`](Metrics::cold_enqueued) | counter | `posthaste_cold_enqueued_total` |
/// | [`delivered`](Metrics::delivered) | counter | `posthaste_delivered_total` |
/// | [`failed`](Metrics::failed) | counter | `posthaste_failed_total` |
/// | [`deferred`](Metrics::deferred) | counter | `posthaste_deferred_total` |
/// | [`dead`](Metrics::dead) | counter | `posthaste_dead_total` |
/// | [`released`](Metrics::released) | counter | `posthaste_released_total` |
/// | [`lease_lost`](Metrics::lease_lost) | counter | `posthaste_lease_lost_total` |
/// | [`poll_failed`](Metrics::poll_failed) | counter | `posthaste_poll_failed_total` |
/// | [`settle_failed`](Metrics::settle_failed) | counter | `posthaste_settle_failed_total` |
/// | [`purged`](Metrics::purged) | counter | `posthaste_purged_total` |
/// | [`queue_depths`](Metrics::queue_depths) | gauges | `posthaste_queue_depth{path}` |
/// | [`in_flight`](Metrics::in_flight) | gauge | `posthaste_in_flight` |
/// | [`oldest_lag`](Metrics::oldest_lag) | gauge | `posthaste_oldest_lag_seconds` |
/// | [`latency`](Metrics::latency) | histogram | `posthaste_latency_seconds{path}` |
/// | [`listener_duration`](Metrics::listener_duration) | histogram | `posthaste_listener_duration_seconds` |
/// | [`settle_batch`](Metrics::settle_batch) | histogram | `posthaste_settle_batch_size` |
/// | [`claim_batch`](Metrics::claim_batch) | histogram | `posthaste_claim_batch_size` |
/// | [`rows`](Metrics::rows) | gauges | `posthaste_rows{status}` |
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use posthaste::{Delivery, Event, MemoryStore, Metrics, Outbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// #[derive(Default)]
/// struct Count(AtomicU64);
///
/// impl Metrics for Count {
///     fn delivered(&self, count: u64) {
///         self.0.fetch_add(count, Ordering::Relaxed);
///     }
/// }
///
/// let count = Arc::new(Count::default());
/// let outbox =
///     Outbox::builder(MemoryStore::new()).metrics(count.clone()).listen_all(|_: Delivery| async {}).start().await?;
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// tx.commit().await?;
/// outbox.shutdown().await;
/// assert_eq!(count.0.load(Ordering::Relaxed), 1);
/// # Ok(())
/// # }
/// ```
#[expect(unused_variables, reason = "the empty bodies use nothing, and the names document the arguments")]
pub trait Metrics: Send + Sync + 'static {
    /// Events entered the hot queue.
    fn hot_enqueued(&self, count: u64) {}
    /// Events found the hot queue full and were left to the poller.
    fn hot_dropped(&self, count: u64) {}
    /// Events entered the cold queue.
    fn cold_enqueued(&self, count: u64) {}
    /// Events were delivered and are DONE.
    fn delivered(&self, count: u64) {}
    /// Deliveries failed and will be tried again.
    fn failed(&self, count: u64) {}
    /// Deliveries were put off by their listener, or by a limit around it.
    fn deferred(&self, count: u64) {}
    /// Events became DEAD.
    fn dead(&self, count: u64) {}
    /// Events were given back untried.
    fn released(&self, count: u64) {}
    /// Leases were lost: an outcome was refused, or an event was not started any more.
    fn lease_lost(&self, count: u64) {}
    /// A poll failed.
    fn poll_failed(&self) {}
    /// A settlement statement failed; it is tried again.
    fn settle_failed(&self) {}
    /// Rows were deleted because they were old. Only told with an option such as `retention_done`.
    fn purged(&self, count: u64) {}
    /// How many events wait in the two queues.
    fn queue_depths(&self, hot: usize, cold: usize) {}
    /// How many events are queued, with a listener, or waiting for their settlement.
    fn in_flight(&self, count: usize) {}
    /// For how long the oldest available event has waited; zero when none does. Not told when a poll failed.
    fn oldest_lag(&self, lag: Duration) {}
    /// From the commit (hot) or from becoming available (cold) to the start of the listener.
    fn latency(&self, path: Path, latency: Duration) {}
    /// The same of several events that go to their listener together. Default: each by itself.
    fn latencies(&self, path: Path, latencies: &[Duration]) {
        latencies.iter().for_each(|latency| self.latency(path, *latency));
    }
    /// How long a listener took for one call, without the wait for its turn if it has a limit. Not told when it had no turn.
    fn listener_duration(&self, duration: Duration) {}
    /// How many outcomes one settlement wrote.
    fn settle_batch(&self, size: usize) {}
    /// How many rows one claim gave.
    fn claim_batch(&self, size: usize) {}
    /// How many rows of each status are in the table. Only told with the option `count_interval`.
    fn rows(&self, counts: Counts) {}
}

/// Passes every report on: `forward!(type, |receiver, report| …)` says how.
macro_rules! forward {
    ($type:ty, $through:expr) => {
        forward! { $type, $through,
            hot_enqueued(count: u64),
            hot_dropped(count: u64),
            cold_enqueued(count: u64),
            delivered(count: u64),
            failed(count: u64),
            deferred(count: u64),
            dead(count: u64),
            released(count: u64),
            lease_lost(count: u64),
            poll_failed(),
            settle_failed(),
            purged(count: u64),
            queue_depths(hot: usize, cold: usize),
            in_flight(count: usize),
            oldest_lag(lag: Duration),
            latency(path: Path, latency: Duration),
            latencies(path: Path, latencies: &[Duration]),
            listener_duration(duration: Duration),
            settle_batch(size: usize),
            claim_batch(size: usize),
            rows(counts: Counts)
        }
    };
    ($type:ty, $through:expr, $($name:ident($($argument:ident: $kind:ty),*)),*) => {
        $(fn $name(&self, $($argument: $kind),*) {
            let through: fn(&$type, &dyn Fn(&dyn Metrics)) = $through;
            through(self, &|metrics| metrics.$name($($argument),*));
        })*
    };
}

impl<M: Metrics> Metrics for Arc<M> {
    forward!(Self, |this, report| report(&**this));
}

/// Reports to somebody whose panics must not end a task of ours.
pub(crate) struct Contained(pub(crate) Arc<dyn Metrics>);

impl Metrics for Contained {
    forward!(Self, |this, report| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| report(&*this.0))) {
            tracing::error!(panic = panic_text(&*panic), "metrics panicked");
        }
    });
}

/// Reports to nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMetrics;

impl Metrics for NoMetrics {}

#[cfg(feature = "metrics")]
pub use facade::FacadeMetrics;

#[cfg(feature = "metrics")]
mod facade {
    use std::time::Duration;

    use metrics::{counter, gauge, histogram};

    use super::Metrics;
    use crate::listener::Path;
    use crate::store::{Counts, Status};

    /// Reports to whatever recorder is installed for the `metrics` facade. Comes with the feature `metrics`.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::metrics::FacadeMetrics;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// let builder = Outbox::builder(MemoryStore::new()).metrics(FacadeMetrics).listen_all(|_: Delivery| async {});
    /// ```
    #[derive(Clone, Copy, Debug, Default)]
    pub struct FacadeMetrics;

    fn path_label(path: Path) -> &'static str {
        match path {
            Path::Hot => "hot",
            Path::Cold => "cold",
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges and histograms take floats")]
    impl Metrics for FacadeMetrics {
        fn hot_enqueued(&self, count: u64) {
            counter!("posthaste_hot_enqueued_total").increment(count);
        }

        fn hot_dropped(&self, count: u64) {
            counter!("posthaste_hot_dropped_total").increment(count);
        }

        fn cold_enqueued(&self, count: u64) {
            counter!("posthaste_cold_enqueued_total").increment(count);
        }

        fn delivered(&self, count: u64) {
            counter!("posthaste_delivered_total").increment(count);
        }

        fn failed(&self, count: u64) {
            counter!("posthaste_failed_total").increment(count);
        }

        fn deferred(&self, count: u64) {
            counter!("posthaste_deferred_total").increment(count);
        }

        fn dead(&self, count: u64) {
            counter!("posthaste_dead_total").increment(count);
        }

        fn released(&self, count: u64) {
            counter!("posthaste_released_total").increment(count);
        }

        fn lease_lost(&self, count: u64) {
            counter!("posthaste_lease_lost_total").increment(count);
        }

        fn poll_failed(&self) {
            counter!("posthaste_poll_failed_total").increment(1);
        }

        fn settle_failed(&self) {
            counter!("posthaste_settle_failed_total").increment(1);
        }

        fn purged(&self, count: u64) {
            counter!("posthaste_purged_total").increment(count);
        }

        fn queue_depths(&self, hot: usize, cold: usize) {
            gauge!("posthaste_queue_depth", "path" => "hot").set(hot as f64);
            gauge!("posthaste_queue_depth", "path" => "cold").set(cold as f64);
        }

        fn in_flight(&self, count: usize) {
            gauge!("posthaste_in_flight").set(count as f64);
        }

        fn oldest_lag(&self, lag: Duration) {
            gauge!("posthaste_oldest_lag_seconds").set(lag.as_secs_f64());
        }

        fn latency(&self, path: Path, latency: Duration) {
            histogram!("posthaste_latency_seconds", "path" => path_label(path)).record(latency.as_secs_f64());
        }

        /// Asks the recorder once: on the way of every event to its listener that would be seen.
        fn latencies(&self, path: Path, latencies: &[Duration]) {
            let histogram = histogram!("posthaste_latency_seconds", "path" => path_label(path));
            latencies.iter().for_each(|latency| histogram.record(latency.as_secs_f64()));
        }

        fn listener_duration(&self, duration: Duration) {
            histogram!("posthaste_listener_duration_seconds").record(duration.as_secs_f64());
        }

        fn settle_batch(&self, size: usize) {
            histogram!("posthaste_settle_batch_size").record(size as f64);
        }

        fn claim_batch(&self, size: usize) {
            histogram!("posthaste_claim_batch_size").record(size as f64);
        }

        fn rows(&self, counts: Counts) {
            for status in Status::ALL {
                gauge!("posthaste_rows", "status" => status.name()).set(counts.of(status) as f64);
            }
        }
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::*;

    /// Notes every name that is reported.
    #[derive(Default)]
    struct Names(Mutex<BTreeSet<String>>);

    impl Names {
        fn note(&self, key: &Key) {
            self.0.lock().expect("nothing panics while it is held").insert(key.name().to_owned());
        }
    }

    impl Recorder for Names {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            self.note(key);
            Counter::noop()
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            self.note(key);
            Gauge::noop()
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            self.note(key);
            Histogram::noop()
        }
    }

    #[test]
    fn the_facade_reports_under_the_names_of_the_table() {
        let names = Names::default();
        metrics::with_local_recorder(&names, || {
            // Through both forwarders, so that neither leaves a report out.
            let metrics = Contained(Arc::new(Arc::new(FacadeMetrics)));
            for report in [
                Metrics::hot_enqueued,
                Metrics::hot_dropped,
                Metrics::cold_enqueued,
                Metrics::delivered,
                Metrics::failed,
                Metrics::deferred,
                Metrics::dead,
                Metrics::released,
                Metrics::lease_lost,
                Metrics::purged,
            ] as [fn(&Contained, u64); 10]
            {
                report(&metrics, 1);
            }
            metrics.poll_failed();
            metrics.settle_failed();
            metrics.queue_depths(1, 2);
            metrics.in_flight(3);
            metrics.oldest_lag(Duration::from_secs(1));
            metrics.latency(Path::Hot, Duration::from_micros(7));
            metrics.latencies(Path::Cold, &[Duration::from_micros(7)]);
            metrics.listener_duration(Duration::from_micros(7));
            metrics.settle_batch(4);
            metrics.claim_batch(5);
            metrics.rows(Counts::default());
        });
        let reported = names.0.into_inner().unwrap();
        // The table in the documentation is the contract.
        let table = include_str!("metrics.rs").lines().filter(|line| line.starts_with("/// | ["));
        let promised: BTreeSet<String> =
            table.map(|line| line.rsplit('`').nth(1).unwrap().split('{').next().unwrap().to_owned()).collect();
        assert_eq!(reported, promised);
    }
}
