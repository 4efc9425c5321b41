//! Keeps events from a destination that is away.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::listener::{Gate, Room};
use tokio::time::Instant;
use tracing::{info, warn};

/// How long a destination is left alone after its first outage, unless it is set.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// How long it is left alone at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How many events a destination is tried with that was away.
const PROBE: usize = 10;

/// How long events wait that come while it is tried.
const WHILE_PROBING: Duration = Duration::from_secs(1);

/// How often it is looked, before anything is claimed, how the probe went.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Keeps events from a destination that is away, and tries now and then whether it is back.
///
/// One per connection, shared by all that is sent over it. An outage opens it; while it is open nothing is sent, and where every
/// listener of an outbox is behind such a breaker, nothing is claimed either. After a pause a few events are tried, and the others
/// wait until it is known how that went. If somebody answers, and none of them meets an outage, it is closed again; if one does, the
/// next pause is twice as long. No attempt of an event is used up by that.
#[derive(Clone)]
pub struct Breaker(Arc<Inner>);

struct Inner {
    name: String,
    first_pause: Duration,
    longest_pause: Duration,
    circuit: Mutex<Circuit>,
    /// What it is called in metrics, if not by its name.
    shared_label: Mutex<Option<String>>,
}

#[derive(Clone, Copy, Debug)]
struct Circuit {
    state: State,
    /// How many there were. What was begun before the last of them says nothing of what is now.
    outages: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed,
    Open {
        until: Instant,
        pause: Duration,
    },
    /// A probe is under way.
    HalfOpen {
        pause: Duration,
    },
}

/// The right to send something once. Whoever has it says how it went; if not, nobody was asked, and another may try.
#[must_use]
pub(crate) struct Pass {
    breaker: Breaker,
    outages: u64,
    probe: bool,
}

impl Pass {
    /// Whether it is to show that the destination is back.
    pub(crate) fn is_probe(&self) -> bool {
        self.probe
    }

    /// The destination is there.
    pub(crate) fn succeeded(mut self) {
        if std::mem::take(&mut self.probe) {
            self.breaker.circuit().state = State::Closed;
            info!(destination = self.breaker.name(), "destination is back");
            self.breaker.report(BreakerState::Closed);
        }
    }

    /// The destination is away. Says when to ask again.
    pub(crate) fn failed(mut self, asked_for: Option<Duration>, reason: &dyn fmt::Display) -> Duration {
        let probe = std::mem::take(&mut self.probe);
        let Inner { first_pause, longest_pause, .. } = *self.breaker.0;
        let mut circuit = self.breaker.circuit();
        let pause = match circuit.state {
            State::Closed if self.outages == circuit.outages => first_pause,
            State::HalfOpen { pause } if probe => (pause * 2).min(longest_pause),
            // Of several batches under way when it went, the first has opened it.
            State::Open { until, .. } => return until.saturating_duration_since(Instant::now()).max(first_pause),
            // It was back meanwhile, or is just being tried.
            State::Closed | State::HalfOpen { .. } => return first_pause,
        };
        // What several processes do at the same moment is spread.
        let spread = pause.mul_f64(0.8 + 0.4 * fastrand::f64()).max(asked_for.unwrap_or_default());
        *circuit =
            Circuit { state: State::Open { until: Instant::now() + spread, pause }, outages: circuit.outages + 1 };
        drop(circuit);
        warn!(destination = self.breaker.name(), %reason, pause = ?spread, "destination is away; it is tried again after a pause");
        self.breaker.report(BreakerState::Open);
        spread
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.probe {
            return;
        }
        let mut circuit = self.breaker.circuit();
        if let State::HalfOpen { pause } = circuit.state {
            circuit.state = State::Open { until: Instant::now(), pause };
            drop(circuit);
            self.breaker.report(BreakerState::Open);
        }
    }
}

/// What a breaker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Lets everything through.
    Closed,
    /// Lets nothing through.
    Open,
    /// Tries whether the destination is back.
    HalfOpen,
}

impl Breaker {
    /// A closed breaker for a destination of that name, which appears in logs and metrics.
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_pauses(name, FIRST_PAUSE, LONGEST_PAUSE)
    }

    /// The same with its own pauses. The longest is at least the first.
    pub fn with_pauses(name: impl Into<String>, first: Duration, longest: Duration) -> Self {
        let breaker = Self::silent(name.into(), first, longest, None);
        breaker.report(BreakerState::Closed);
        breaker
    }

    fn silent(name: String, first: Duration, longest: Duration, shared_label: Option<String>) -> Self {
        let (first_pause, longest_pause) = (first.max(Duration::from_millis(1)), longest.max(first));
        let circuit = Mutex::new(Circuit { state: State::Closed, outages: 0 });
        Self(Arc::new(Inner { name, first_pause, longest_pause, circuit, shared_label: Mutex::new(shared_label) }))
    }

    /// One of a number that nobody knows: in metrics they have a label together, and no state each.
    #[cfg(feature = "webhook")]
    pub(crate) fn one_of_many(name: String, label: &str) -> Self {
        Self::silent(name, FIRST_PAUSE, LONGEST_PAUSE, Some(label.to_owned()))
    }

    /// Gives one of many a label and a state of its own.
    #[cfg(feature = "webhook")]
    pub(crate) fn stand_alone(&self) {
        *self.shared_label() = None;
        self.report(self.state());
    }

    fn shared_label(&self) -> MutexGuard<'_, Option<String>> {
        self.0.shared_label.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it does now.
    pub fn state(&self) -> BreakerState {
        match self.circuit().state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.0.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something may be sent now; if not, when to ask again. Who sends after a pause is the probe: the others wait.
    pub(crate) fn enter(&self) -> Result<Pass, Duration> {
        let now = Instant::now();
        let mut circuit = self.circuit();
        let probe = match circuit.state {
            State::Closed => false,
            State::Open { until, .. } if now < until => return Err(until - now),
            State::Open { pause, .. } => {
                circuit.state = State::HalfOpen { pause };
                true
            }
            State::HalfOpen { .. } => return Err(WHILE_PROBING),
        };
        let pass = Pass { breaker: self.clone(), outages: circuit.outages, probe };
        drop(circuit);
        if probe {
            self.report(BreakerState::HalfOpen);
        }
        Ok(pass)
    }

    #[cfg(feature = "metrics")]
    fn report(&self, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0.0,
            BreakerState::HalfOpen => 1.0,
            BreakerState::Open => 2.0,
        };
        let shared = self.shared_label().clone();
        if shared.is_none() {
            metrics::gauge!("posthaste_breaker_state", "destination" => self.0.name.clone()).set(value);
        }
        if state == BreakerState::Open {
            let label = shared.unwrap_or_else(|| self.0.name.clone());
            metrics::counter!("posthaste_breaker_opened_total", "destination" => label).increment(1);
        }
    }

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "without metrics there is nobody to tell")]
    fn report(&self, _: BreakerState) {}
}

impl Gate for Breaker {
    fn room(&self) -> Room {
        let now = Instant::now();
        match self.circuit().state {
            State::Closed => Room::Open,
            State::Open { until, .. } if now < until => Room::ShutFor(until - now),
            State::Open { .. } => Room::Few(PROBE),
            State::HalfOpen { .. } => Room::ShutFor(LOOK_AGAIN),
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("name", &self.0.name).field("state", &self.state()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> Breaker {
        Breaker::with_pauses("test", Duration::from_secs(1), Duration::from_secs(3))
    }

    /// Fails, and says whether the pause after it is about that long. Gives the probe after it.
    async fn pauses_for_about(breaker: &Breaker, pass: Pass, pause: u64) -> Pass {
        let asked = pass.failed(None, &"gone");
        let pause = Duration::from_secs(pause);
        assert!(asked >= pause.mul_f64(0.79) && asked <= pause.mul_f64(1.21), "{asked:?} instead of about {pause:?}");
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(breaker.enter().is_err());
        assert!(matches!(breaker.room(), Room::ShutFor(_)));
        tokio::time::sleep(asked).await;
        assert_eq!(breaker.room(), Room::Few(PROBE));
        let probe = breaker.enter().ok().unwrap();
        assert!(probe.is_probe());
        assert_eq!((breaker.state(), breaker.room()), (BreakerState::HalfOpen, Room::ShutFor(LOOK_AGAIN)));
        probe
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_something_arrives() {
        let breaker = breaker();
        let mut pass = breaker.enter().ok().unwrap();
        assert!(!pass.is_probe());
        for pause in [1, 2, 3, 3] {
            pass = pauses_for_about(&breaker, pass, pause).await;
        }
        pass.succeeded();
        assert_eq!((breaker.state(), breaker.room()), (BreakerState::Closed, Room::Open));
        let pass = breaker.enter().ok().unwrap();
        pauses_for_about(&breaker, pass, 1).await.succeeded();
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_at_a_time_however_long_it_takes() {
        let breaker = breaker();
        let pass = breaker.enter().ok().unwrap();
        let probe = pauses_for_about(&breaker, pass, 1).await;
        for _ in 0..60 {
            assert_eq!(breaker.enter().err(), Some(WHILE_PROBING));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        // Its future was dropped, or nobody was asked.
        drop(probe);
        assert_eq!((breaker.state(), breaker.room()), (BreakerState::Open, Room::Few(PROBE)));
        let probe = breaker.enter().ok().unwrap();
        assert!(probe.is_probe());
        pauses_for_about(&breaker, probe, 2).await.succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_outage_count_once_and_a_longer_pause_is_granted() {
        let breaker = breaker();
        let passes: Vec<_> = (0..3).map(|_| breaker.enter().ok().unwrap()).collect();
        for pass in passes {
            assert!(pass.failed(None, &"gone") < Duration::from_secs(2));
        }
        assert_eq!(breaker.state(), BreakerState::Open);
        tokio::time::sleep(Duration::from_secs(2)).await;
        breaker.enter().ok().unwrap().succeeded();
        let pass = breaker.enter().ok().unwrap();
        assert_eq!(pass.failed(Some(Duration::from_secs(60)), &"later"), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_before_an_outage_neither_ends_it_nor_begins_another() {
        let breaker = breaker();
        let [late, later, last] = [0; 3].map(|_| breaker.enter().ok().unwrap());
        let pass = breaker.enter().ok().unwrap();
        let pause = pass.failed(None, &"gone");
        late.succeeded();
        assert_eq!(breaker.state(), BreakerState::Open, "closed without a probe");
        tokio::time::sleep(pause).await;
        let probe = breaker.enter().ok().unwrap();
        later.failed(None, &"gone");
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "the probe says how it goes");
        probe.succeeded();
        last.failed(None, &"gone");
        assert_eq!(breaker.state(), BreakerState::Closed, "old news");
    }

    /// What was registered, with its label.
    #[cfg(all(feature = "metrics", feature = "webhook"))]
    #[derive(Default)]
    struct Registered(Mutex<Vec<String>>);

    #[cfg(all(feature = "metrics", feature = "webhook"))]
    impl Registered {
        fn note(&self, key: &metrics::Key) {
            let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
            self.0.lock().unwrap().push(format!("{} {}", key.name(), labels.join(" ")));
        }
    }

    #[cfg(all(feature = "metrics", feature = "webhook"))]
    impl metrics::Recorder for Registered {
        fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

        fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
            self.note(key);
            metrics::Counter::noop()
        }

        fn register_gauge(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
            self.note(key);
            metrics::Gauge::noop()
        }

        fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
            metrics::Histogram::noop()
        }
    }

    #[test]
    #[cfg(all(feature = "metrics", feature = "webhook"))]
    fn many_have_one_label_in_metrics() {
        let registered = Registered::default();
        metrics::with_local_recorder(&registered, || {
            for host in 0..3 {
                let breaker = Breaker::one_of_many(format!("webhook https://host-{host}"), "webhook");
                breaker.enter().ok().unwrap().failed(None, &"gone");
            }
        });
        assert_eq!(*registered.0.lock().unwrap(), ["posthaste_breaker_opened_total webhook"; 3]);
        let registered = Registered::default();
        metrics::with_local_recorder(&registered, || {
            Breaker::one_of_many("webhook https://host".to_owned(), "webhook").stand_alone();
        });
        assert_eq!(*registered.0.lock().unwrap(), ["posthaste_breaker_state webhook https://host"]);
    }
}
