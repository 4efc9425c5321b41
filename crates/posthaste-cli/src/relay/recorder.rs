//! The metrics of a relay: what the `metrics` facade is told, kept in memory, and printed for Prometheus.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use metrics::{Counter, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};

/// What is under its bound is counted there; the last bound is followed by infinity.
const TIMES: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];
const SIZES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0];

/// What is said of each metric. `docs/metrics.md` has the same names, which a test sees to.
const HELP: &[(&str, &str)] = &[
    ("posthaste_breaker_opened_total", "How often a destination went away."),
    ("posthaste_breaker_state", "0 closed, 1 trying whether the destination is back, 2 open."),
    ("posthaste_build_info", "Always 1; the version is a label."),
    ("posthaste_claim_batch_size", "Rows that one claim gave."),
    ("posthaste_cold_enqueued_total", "Events that were claimed."),
    ("posthaste_database_up", "1 if the database answered last time."),
    ("posthaste_dead_total", "Events that became DEAD."),
    ("posthaste_deferred_total", "Deliveries that were put off without using an attempt."),
    ("posthaste_delivered_total", "Events that are DONE."),
    ("posthaste_destination_duration_seconds", "Sending one message or a batch to a destination."),
    ("posthaste_destination_events_total", "What destinations said of messages."),
    ("posthaste_draining", "1 from the signal to the end."),
    ("posthaste_failed_total", "Deliveries that failed and will be tried again."),
    ("posthaste_hot_dropped_total", "Events that found the hot queue full."),
    ("posthaste_hot_enqueued_total", "Events that came straight from a commit."),
    ("posthaste_in_flight", "Events in hand."),
    ("posthaste_latency_seconds", "From being due to the start of the delivery."),
    ("posthaste_lease_lost_total", "Outcomes that were refused because the lease was gone."),
    ("posthaste_listener_duration_seconds", "One call of a route."),
    ("posthaste_oldest_lag_seconds", "How long the oldest event that was due had waited at the last poll."),
    ("posthaste_oldest_pending_seconds", "How long ago the oldest event was inserted that is not delivered yet."),
    ("posthaste_paused", "1 if the route or destination is paused."),
    ("posthaste_poll_failed_total", "Polls that failed."),
    ("posthaste_purged_total", "Rows that retention deleted."),
    ("posthaste_queue_depth", "Events that wait in the queues."),
    ("posthaste_ready", "1 if it delivers and is not ending."),
    ("posthaste_released_total", "Events that were given back untried."),
    ("posthaste_route_duration_seconds", "One delivery to all destinations of a route."),
    ("posthaste_route_events_total", "What became of events, by route."),
    ("posthaste_rows", "Rows of the table."),
    ("posthaste_sampled_timestamp_seconds", "When what is of the table was last read."),
    ("posthaste_settle_batch_size", "Outcomes written by one statement."),
    ("posthaste_settle_failed_total", "Statements with outcomes that failed."),
    ("process_resident_memory_bytes", "Resident memory."),
    ("process_start_time_seconds", "When the relay was started."),
];

/// Keeps what the facade is told. Its size is bounded by how many names and labels there are, not by how much is told.
#[derive(Default)]
pub(crate) struct Recorder {
    kept: RwLock<Kept>,
}

#[derive(Default)]
struct Kept {
    counters: HashMap<Key, Arc<AtomicU64>>,
    gauges: HashMap<Key, Arc<AtomicU64>>,
    histograms: HashMap<Key, Arc<Buckets>>,
}

/// What a metric is at now.
#[cfg(feature = "otlp")]
pub(crate) enum Sample {
    Counter(u64),
    Gauge(f64),
    /// How many values there are between each bound and the one before, and behind the last.
    Histogram {
        bounds: &'static [f64],
        counts: Vec<u64>,
        sum: f64,
    },
}

/// A histogram: how many values there are up to each bound, and their sum.
struct Buckets {
    bounds: &'static [f64],
    /// One more than there are bounds.
    counts: Vec<AtomicU64>,
    /// The bits of a float.
    sum: AtomicU64,
}

impl Buckets {
    fn of(name: &str) -> Self {
        let bounds = if name.ends_with("_size") { SIZES } else { TIMES };
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0.0_f64.to_bits()) }
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        GaugeFn::increment(&self.sum, value);
    }
}

impl Recorder {
    /// One that everything in this process reports to from now on, and that has every counter at zero: what was never counted
    /// could not be told from what is not counted.
    pub(crate) fn install() -> Arc<Self> {
        let recorder = Arc::new(Self::default());
        // A second one would be a mistake of ours, and no reason not to deliver.
        let _ = metrics::set_global_recorder(Arc::clone(&recorder));
        for (name, _) in HELP {
            let labelled = ["breaker", "destination", "route"].iter().any(|with| name.contains(with));
            if name.ends_with("_total") && !labelled {
                recorder.counter(&Key::from_static_name(name));
            }
        }
        recorder
    }

    fn counter(&self, key: &Key) -> Arc<AtomicU64> {
        self.of(key, |kept| &kept.counters, |kept| &mut kept.counters, || AtomicU64::new(0))
    }

    fn gauge(&self, key: &Key) -> Arc<AtomicU64> {
        self.of(key, |kept| &kept.gauges, |kept| &mut kept.gauges, || AtomicU64::new(0.0_f64.to_bits()))
    }

    fn histogram(&self, key: &Key) -> Arc<Buckets> {
        self.of(key, |kept| &kept.histograms, |kept| &mut kept.histograms, || Buckets::of(key.name()))
    }

    /// What is kept under a key; made if it is not there.
    fn of<T>(
        &self,
        key: &Key,
        map: fn(&Kept) -> &HashMap<Key, Arc<T>>,
        map_mut: fn(&mut Kept) -> &mut HashMap<Key, Arc<T>>,
        new: impl FnOnce() -> T,
    ) -> Arc<T> {
        let found = map(&self.kept.read().unwrap_or_else(PoisonError::into_inner)).get(key).cloned();
        found.unwrap_or_else(|| {
            let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(map_mut(&mut kept).entry(key.clone()).or_insert_with(|| Arc::new(new())))
        })
    }

    /// Shows everything.
    #[cfg(feature = "otlp")]
    pub(crate) fn each(&self, mut show: impl FnMut(&Key, Sample)) {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        for (key, count) in by_labels(&kept.counters) {
            show(key, Sample::Counter(count.load(Ordering::Relaxed)));
        }
        for (key, value) in by_labels(&kept.gauges) {
            show(key, Sample::Gauge(f64::from_bits(value.load(Ordering::Relaxed))));
        }
        for (key, buckets) in by_labels(&kept.histograms) {
            let counts = buckets.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            let sum = f64::from_bits(buckets.sum.load(Ordering::Relaxed));
            show(key, Sample::Histogram { bounds: buckets.bounds, counts, sum });
        }
    }

    /// Everything, in the text format of Prometheus, by name.
    pub(crate) fn render(&self) -> String {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let mut families: BTreeMap<&str, (&str, Vec<String>)> = BTreeMap::new();
        let mut family = |name, kind, lines: Vec<String>| {
            families.entry(name).or_insert_with(|| (kind, Vec::new())).1.extend(lines);
        };
        for (key, count) in by_labels(&kept.counters) {
            let line = format!("{}{} {}", key.name(), labels(key, None), count.load(Ordering::Relaxed));
            family(key.name(), "counter", vec![line]);
        }
        for (key, value) in by_labels(&kept.gauges) {
            let value = f64::from_bits(value.load(Ordering::Relaxed));
            family(key.name(), "gauge", vec![format!("{}{} {value}", key.name(), labels(key, None))]);
        }
        for (key, buckets) in by_labels(&kept.histograms) {
            family(key.name(), "histogram", histogram(key, buckets));
        }
        let mut text = String::new();
        for (name, (kind, lines)) in families {
            if let Some((_, help)) = HELP.iter().find(|(of, _)| *of == name) {
                let _ = writeln!(text, "# HELP {name} {help}");
            }
            let _ = writeln!(text, "# TYPE {name} {kind}\n{}", lines.join("\n"));
        }
        text
    }
}

fn by_labels<T>(map: &HashMap<Key, Arc<T>>) -> impl Iterator<Item = (&Key, &Arc<T>)> {
    let sorted: BTreeMap<&Key, &Arc<T>> = map.iter().collect();
    sorted.into_iter()
}

fn histogram(key: &Key, buckets: &Buckets) -> Vec<String> {
    let (name, mut below, mut lines) = (key.name(), 0, Vec::with_capacity(buckets.counts.len() + 2));
    let bounds = buckets.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (bound, count) in bounds.zip(&buckets.counts) {
        below += count.load(Ordering::Relaxed);
        lines.push(format!("{name}_bucket{} {below}", labels(key, Some(&bound))));
    }
    let sum = f64::from_bits(buckets.sum.load(Ordering::Relaxed));
    lines.push(format!("{name}_sum{} {sum}", labels(key, None)));
    lines.push(format!("{name}_count{} {below}", labels(key, None)));
    lines
}

/// `{route="orders",le="0.5"}`, or nothing.
fn labels(key: &Key, bound: Option<&str>) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = key.labels().map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value())));
    let all: Vec<String> = labels.chain(bound.map(|bound| format!("le=\"{bound}\""))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

impl metrics::Recorder for Recorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.counter(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.gauge(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.histogram(key))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use metrics::{counter, gauge, histogram, with_local_recorder};

    use super::*;

    #[test]
    fn what_is_told_is_printed() {
        let recorder = Recorder::default();
        with_local_recorder(&recorder, || {
            counter!("posthaste_dead_total").increment(2);
            counter!("posthaste_dead_total").increment(1);
            gauge!("posthaste_paused", "kind" => "route", "name" => "a \"b\"\\\n").set(1.0);
            for size in [1.0, 2.0, 3.0, 9999.0] {
                histogram!("posthaste_claim_batch_size").record(size);
            }
        });
        let text = recorder.render();
        for line in [
            "# TYPE posthaste_dead_total counter\nposthaste_dead_total 3\n",
            "posthaste_paused{kind=\"route\",name=\"a \\\"b\\\"\\\\\\n\"} 1\n",
            "posthaste_claim_batch_size_bucket{le=\"1\"} 1\nposthaste_claim_batch_size_bucket{le=\"2\"} 2\n\
             posthaste_claim_batch_size_bucket{le=\"5\"} 3\n",
            "posthaste_claim_batch_size_bucket{le=\"5000\"} 3\nposthaste_claim_batch_size_bucket{le=\"+Inf\"} 4\n\
             posthaste_claim_batch_size_sum 10005\nposthaste_claim_batch_size_count 4\n",
        ] {
            assert!(text.contains(line), "{line}\n\n{text}");
        }
    }

    #[test]
    fn every_metric_is_documented() {
        let documented = include_str!("../../../../docs/metrics.md").lines().filter_map(|line| {
            let name = line.strip_prefix("| `")?.split('`').next()?;
            Some(name.to_owned())
        });
        let helped = HELP.iter().map(|(name, _)| (*name).to_owned());
        assert_eq!(helped.collect::<BTreeSet<_>>(), documented.collect::<BTreeSet<_>>());
    }
}
