//! Keeps events from a destination that is away.

pub(crate) mod turns;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::listener::{Gate, Room};
use tokio::time::Instant;
use tracing::{info, warn};

use turns::Turns;

/// How long a destination is left alone after its first outage, unless it is set.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// How long it is left alone at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long it is left alone at most because it asked for it: a day would outlast any reason for it.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// How many events a destination is tried with that was away.
const PROBE: usize = 10;

/// How long, at most, whoever would claim for a destination waits before it looks again how the probe went.
const LOOK: Duration = Duration::from_millis(50);

/// Keeps events from a destination that is away, and tries now and then whether it is back.
///
/// One per connection, shared by all that is sent over it. An outage opens it; while it is open nothing is sent, and where every
/// listener of an outbox is behind such a breaker, nothing is claimed either. After a pause a few events are tried, and the others
/// wait until it is known how that went. If somebody answers, and none of them meets an outage, it is closed again; if one does, the
/// next pause is twice as long. No attempt of an event is used up by that.
///
/// What was claimed all the same, because others can be reached, is put off until after the pause, and then comes again in
/// groups: 2000 events in a second at most, so that the backlog of one destination takes neither the database nor the workers
/// from the others. With more than 240,000 events the groups come faster, so that all were there within two minutes.
#[derive(Clone)]
pub struct Breaker(Arc<Inner>);

struct Inner {
    name: String,
    first_pause: Duration,
    longest_pause: Duration,
    circuit: Mutex<Circuit>,
    turns: Mutex<Turns>,
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
    /// How many messages may be sent: a few if they are to show that the destination is back.
    pub(crate) fn most(&self) -> usize {
        if self.probe { PROBE } else { usize::MAX }
    }

    /// The destination is there.
    pub(crate) fn succeeded(mut self) {
        if std::mem::take(&mut self.probe) {
            self.breaker.circuit().state = State::Closed;
            self.breaker.turns().forget();
            info!(destination = self.breaker.name(), "destination is back");
            self.breaker.report(BreakerState::Closed);
        }
    }

    /// The destination is away.
    pub(crate) fn failed(mut self, asked_for: Option<Duration>, reason: &dyn fmt::Display) {
        let probe = std::mem::take(&mut self.probe);
        let Inner { first_pause, longest_pause, .. } = *self.breaker.0;
        let mut circuit = self.breaker.circuit();
        let pause = match circuit.state {
            State::Closed if self.outages == circuit.outages => first_pause,
            State::HalfOpen { pause } if probe => (pause * 2).min(longest_pause),
            // Of several batches under way when it went the first has opened it; or it was back meanwhile, or is being tried.
            State::Open { .. } | State::Closed | State::HalfOpen { .. } => return,
        };
        // What several processes do at the same moment is spread.
        let asked_for = asked_for.unwrap_or_default().min(LONGEST_ASKED);
        let spread = pause.mul_f64(0.8 + 0.4 * fastrand::f64()).max(asked_for);
        *circuit =
            Circuit { state: State::Open { until: Instant::now() + spread, pause }, outages: circuit.outages + 1 };
        drop(circuit);
        warn!(destination = self.breaker.name(), %reason, pause = ?spread, "destination is away; it is tried again after a pause");
        self.breaker.report(BreakerState::Open);
        self.breaker.report_opened();
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if !self.probe {
            return;
        }
        let mut circuit = self.breaker.circuit();
        if let State::HalfOpen { pause } = circuit.state {
            // A little later: whoever comes at once would learn no more.
            circuit.state = State::Open { until: Instant::now() + self.breaker.0.first_pause, pause };
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

impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        })
    }
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
        let (turns, shared_label) = (Mutex::default(), Mutex::new(shared_label));
        Self(Arc::new(Inner { name, first_pause, longest_pause, circuit, turns, shared_label }))
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
        self.tell();
    }

    #[cfg_attr(
        not(any(feature = "metrics", feature = "webhook")),
        expect(dead_code, reason = "only webhooks share a label, and only metrics have one")
    )]
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

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something may be sent now. Who sends after a pause is the probe: the others are [put off](Self::put_off).
    pub(crate) fn enter(&self) -> Option<Pass> {
        let mut circuit = self.circuit();
        let probe = match circuit.state {
            State::Closed => false,
            State::Open { until, pause } if until <= Instant::now() => {
                circuit.state = State::HalfOpen { pause };
                true
            }
            State::Open { .. } | State::HalfOpen { .. } => return None,
        };
        let pass = Pass { breaker: self.clone(), outages: circuit.outages, probe };
        drop(circuit);
        if probe {
            self.report(BreakerState::HalfOpen);
        }
        Some(pass)
    }

    /// After how long each of so many events comes again that may not be sent now.
    pub(crate) fn put_off(&self, events: usize) -> Vec<Duration> {
        let now = Instant::now();
        let (earliest, first) = match self.circuit().state {
            State::Closed => return vec![Duration::ZERO; events],
            State::Open { until, .. } => (until, until),
            // How the probe went will be known soon.
            State::HalfOpen { .. } => (now, now + turns::STEP),
        };
        let mut turns = self.turns();
        (0..events).map(|_| turns.next(earliest, first).saturating_duration_since(now)).collect()
    }

    /// Tells of its state once more, to whoever began to listen after it was made.
    pub(crate) fn tell(&self) {
        self.report(self.state());
    }

    #[cfg(feature = "metrics")]
    fn report(&self, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0.0,
            BreakerState::HalfOpen => 1.0,
            BreakerState::Open => 2.0,
        };
        if self.shared_label().is_none() {
            metrics::gauge!("posthaste_breaker_state", "destination" => self.0.name.clone()).set(value);
        }
    }

    #[cfg(feature = "metrics")]
    fn report_opened(&self) {
        let label = self.shared_label().clone().unwrap_or_else(|| self.0.name.clone());
        metrics::counter!("posthaste_breaker_opened_total", "destination" => label).increment(1);
    }

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "without metrics there is nobody to tell")]
    fn report(&self, _: BreakerState) {}

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "without metrics there is nobody to tell")]
    fn report_opened(&self) {}
}

impl Gate for Breaker {
    fn room(&self) -> Room {
        let now = Instant::now();
        match self.circuit().state {
            State::Closed => Room::Open,
            State::Open { until, .. } if now < until => Room::ShutFor(until - now),
            State::Open { .. } => Room::Few(PROBE),
            State::HalfOpen { .. } => Room::ShutFor(LOOK),
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
        pass.failed(None, &"gone");
        let (asked, pause) = (breaker.put_off(1)[0], Duration::from_secs(pause));
        assert!(asked >= pause.mul_f64(0.79) && asked <= pause.mul_f64(1.21), "{asked:?} instead of about {pause:?}");
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(breaker.enter().is_none());
        assert_eq!(breaker.room(), Room::ShutFor(asked));
        tokio::time::sleep(asked).await;
        assert_eq!(breaker.room(), Room::Few(PROBE));
        let probe = breaker.enter().unwrap();
        assert_eq!(probe.most(), PROBE);
        assert_eq!((breaker.state(), breaker.room()), (BreakerState::HalfOpen, Room::ShutFor(LOOK)));
        probe
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_something_arrives() {
        let breaker = breaker();
        let mut pass = breaker.enter().unwrap();
        assert_eq!((pass.most(), breaker.room()), (usize::MAX, Room::Open));
        for pause in [1, 2, 3, 3] {
            pass = pauses_for_about(&breaker, pass, pause).await;
        }
        pass.succeeded();
        assert_eq!((breaker.state(), breaker.room()), (BreakerState::Closed, Room::Open));
        let pass = breaker.enter().unwrap();
        let pass = pauses_for_about(&breaker, pass, 1).await;
        assert_eq!(breaker.state().to_string(), "half-open");
        pass.succeeded();
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_at_a_time_however_long_it_takes() {
        let breaker = breaker();
        let pass = breaker.enter().unwrap();
        let probe = pauses_for_about(&breaker, pass, 1).await;
        // Who finds a probe under way comes again soon, and not after as long a pause again.
        assert_eq!(breaker.put_off(2), [turns::STEP; 2]);
        for _ in 0..60 {
            assert!(breaker.enter().is_none());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        // Its future was dropped, or nobody was asked.
        drop(probe);
        assert_eq!((breaker.state(), breaker.enter().is_some()), (BreakerState::Open, false));
        assert_eq!(breaker.put_off(1), [Duration::from_secs(1)], "whoever comes at once would learn no more");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(breaker.room(), Room::Few(PROBE));
        let probe = breaker.enter().unwrap();
        assert_eq!(probe.most(), PROBE);
        pauses_for_about(&breaker, probe, 2).await.succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_outage_count_once_and_a_longer_pause_is_granted() {
        let breaker = breaker();
        let passes: Vec<_> = (0..3).map(|_| breaker.enter().unwrap()).collect();
        for pass in passes {
            pass.failed(None, &"gone");
            assert!(breaker.put_off(1)[0] < Duration::from_secs(2));
        }
        assert_eq!(breaker.state(), BreakerState::Open);
        tokio::time::sleep(Duration::from_secs(2)).await;
        breaker.enter().unwrap().succeeded();
        breaker.enter().unwrap().failed(Some(Duration::from_secs(60)), &"later");
        assert_eq!(breaker.put_off(1), [Duration::from_secs(60)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_put_off_comes_in_groups_from_the_end_of_the_pause_on() {
        let breaker = breaker();
        breaker.enter().unwrap().failed(Some(Duration::from_secs(60)), &"gone");
        let pauses = breaker.put_off(2500);
        let after = |groups: u32| Duration::from_secs(60) + groups * turns::STEP;
        assert_eq!([pauses[0], pauses[999], pauses[1000], pauses[2499]], [after(0), after(0), after(1), after(2)]);
        assert!(pauses.is_sorted(), "what was put off together stays in its order");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_begun_before_an_outage_neither_ends_it_nor_begins_another() {
        let breaker = breaker();
        let [late, later, last, pass] = [0; 4].map(|_| breaker.enter().unwrap());
        pass.failed(None, &"gone");
        late.succeeded();
        assert_eq!(breaker.state(), BreakerState::Open, "closed without a probe");
        tokio::time::sleep(breaker.put_off(1)[0]).await;
        let probe = breaker.enter().unwrap();
        later.failed(None, &"gone");
        assert_eq!(breaker.state(), BreakerState::HalfOpen, "the probe says how it goes");
        probe.succeeded();
        last.failed(None, &"gone");
        assert_eq!(breaker.state(), BreakerState::Closed, "old news");
    }

    #[cfg(feature = "metrics")]
    mod told {
        use std::collections::HashMap;
        use std::sync::atomic::{AtomicU64, Ordering};

        use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

        use super::*;

        /// Keeps what was told, by name and destination.
        #[derive(Default)]
        struct Told(Mutex<HashMap<String, Arc<AtomicU64>>>);

        impl Told {
            fn entry(&self, key: &Key) -> Arc<AtomicU64> {
                let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
                let name = format!("{}{{{}}}", key.name(), labels.join(","));
                Arc::clone(self.0.lock().unwrap().entry(name).or_default())
            }

            fn of(&self, name: &str) -> Option<u64> {
                Some(self.0.lock().unwrap().get(&format!("{name}{{destination=test}}"))?.load(Ordering::Relaxed))
            }

            fn state(&self) -> Option<f64> {
                self.of("posthaste_breaker_state").map(f64::from_bits)
            }
        }

        impl Recorder for Told {
            fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

            fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
                Counter::from_arc(self.entry(key))
            }

            fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
                Gauge::from_arc(self.entry(key))
            }

            fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
                Histogram::noop()
            }
        }

        #[tokio::test(start_paused = true)]
        async fn every_state_is_told_also_to_who_listens_later() {
            let (told, breaker) = (Told::default(), breaker());
            metrics::with_local_recorder(&told, || breaker.tell());
            assert_eq!((told.state(), told.of("posthaste_breaker_opened_total")), (Some(0.0), None));
            metrics::with_local_recorder(&told, || breaker.enter().unwrap().failed(None, &"gone"));
            assert_eq!((told.state(), told.of("posthaste_breaker_opened_total")), (Some(2.0), Some(1)));
            metrics::with_local_recorder(&told, || breaker.tell());
            assert_eq!(told.of("posthaste_breaker_opened_total"), Some(1), "to say it again is not to open again");
            tokio::time::sleep(breaker.put_off(1)[0]).await;
            let probe = metrics::with_local_recorder(&told, || breaker.enter().unwrap());
            assert_eq!(told.state(), Some(1.0));
            metrics::with_local_recorder(&told, || probe.succeeded());
            assert_eq!(told.state(), Some(0.0));
        }

        #[test]
        #[cfg(feature = "webhook")]
        fn many_have_one_label_and_no_state() {
            let told = Told::default();
            metrics::with_local_recorder(&told, || {
                for host in 0..3 {
                    let breaker = Breaker::one_of_many(format!("test https://host-{host}"), "test");
                    breaker.enter().unwrap().failed(None, &"gone");
                }
            });
            assert_eq!((told.state(), told.of("posthaste_breaker_opened_total")), (None, Some(3)));
            assert_eq!(told.0.lock().unwrap().len(), 1, "one label for all");
            let told = Told::default();
            metrics::with_local_recorder(&told, || Breaker::one_of_many("test".to_owned(), "all").stand_alone());
            assert_eq!(told.state(), Some(0.0));
        }
    }
}
