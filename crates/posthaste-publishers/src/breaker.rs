//! Keeps events from a destination that is away.

mod turns;

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

/// How many events a destination is tried with that was away.
const PROBE: usize = 10;

/// How long, at most, whoever would claim for a destination waits before it looks again how the probe went.
const LOOK: Duration = Duration::from_millis(50);

/// Keeps events from a destination that is away, and tries now and then whether it is back.
///
/// One per connection, shared by all that is sent over it. An outage opens it; while it is open nothing is sent, and where every
/// listener of an outbox is behind such a breaker, nothing is claimed either. After a pause a few events are tried. If one of
/// them arrives it is closed again; otherwise the next pause is twice as long. No attempt of an event is used up by that.
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
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Circuit {
    Closed,
    Open {
        until: Instant,
        pause: Duration,
    },
    /// A probe is under way.
    HalfOpen {
        since: Instant,
        pause: Duration,
    },
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
        let (first_pause, longest_pause) = (first.max(Duration::from_millis(1)), longest.max(first));
        let breaker = Self(Arc::new(Inner {
            name: name.into(),
            first_pause,
            longest_pause,
            circuit: Mutex::new(Circuit::Closed),
            turns: Mutex::default(),
        }));
        breaker.report(BreakerState::Closed);
        breaker
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it does now.
    pub fn state(&self) -> BreakerState {
        match *self.circuit() {
            Circuit::Closed => BreakerState::Closed,
            Circuit::Open { .. } => BreakerState::Open,
            Circuit::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.0.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much may be sent now. Who sends after a pause is the probe, with a few: the others wait.
    pub(crate) fn enter(&self) -> Room {
        let now = Instant::now();
        let mut circuit = self.circuit();
        let room = circuit.room(now);
        if let (Room::Few(_), Circuit::Open { pause, .. } | Circuit::HalfOpen { pause, .. }) = (room, *circuit) {
            *circuit = Circuit::HalfOpen { since: now, pause };
            drop(circuit);
            self.report(BreakerState::HalfOpen);
        }
        room
    }

    /// After how long each of so many events comes again that may not be sent now.
    pub(crate) fn put_off(&self, events: usize) -> Vec<Duration> {
        let now = Instant::now();
        let (earliest, first) = match *self.circuit() {
            Circuit::Closed => return vec![Duration::ZERO; events],
            Circuit::Open { until, .. } => (until, until),
            // How the probe went will be known soon.
            Circuit::HalfOpen { .. } => (now, now + turns::STEP),
        };
        let mut turns = self.turns();
        (0..events).map(|_| turns.next(earliest, first).saturating_duration_since(now)).collect()
    }

    /// Something arrived.
    pub(crate) fn succeeded(&self) {
        if std::mem::replace(&mut *self.circuit(), Circuit::Closed) != Circuit::Closed {
            self.turns().forget();
            info!(destination = self.name(), "destination is back");
            self.report(BreakerState::Closed);
        }
    }

    /// The destination is away.
    pub(crate) fn failed(&self, asked_for: Option<Duration>, reason: &dyn fmt::Display) {
        let mut circuit = self.circuit();
        let pause = match *circuit {
            Circuit::Closed => self.0.first_pause,
            // Of several batches under way when it went, the first has opened it.
            Circuit::Open { .. } => return,
            Circuit::HalfOpen { pause, .. } => (pause * 2).min(self.0.longest_pause),
        };
        // What several processes do at the same moment is spread.
        let spread = pause.mul_f64(0.8 + 0.4 * fastrand::f64()).max(asked_for.unwrap_or_default());
        *circuit = Circuit::Open { until: Instant::now() + spread, pause };
        drop(circuit);
        warn!(destination = self.name(), %reason, pause = ?spread, "destination is away; it is tried again after a pause");
        self.report(BreakerState::Open);
        self.report_opened();
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
        metrics::gauge!("posthaste_breaker_state", "destination" => self.0.name.clone()).set(value);
    }

    #[cfg(feature = "metrics")]
    fn report_opened(&self) {
        metrics::counter!("posthaste_breaker_opened_total", "destination" => self.0.name.clone()).increment(1);
    }

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "without metrics there is nobody to tell")]
    fn report(&self, _: BreakerState) {}

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "without metrics there is nobody to tell")]
    fn report_opened(&self) {}
}

impl Circuit {
    fn room(self, now: Instant) -> Room {
        match self {
            Self::Closed => Room::Open,
            Self::Open { until, .. } if now < until => Room::ShutFor(until - now),
            // A probe that never said how it went is over after a while.
            Self::HalfOpen { since, pause } if now < since + pause => Room::ShutFor(LOOK.min(since + pause - now)),
            Self::Open { .. } | Self::HalfOpen { .. } => Room::Few(PROBE),
        }
    }
}

impl Gate for Breaker {
    fn room(&self) -> Room {
        self.circuit().room(Instant::now())
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

    /// Fails a probe, and says whether the pause after it is about that long.
    async fn pauses_for_about(breaker: &Breaker, pause: u64) {
        breaker.failed(None, &"gone");
        let (asked, pause) = (breaker.put_off(1)[0], Duration::from_secs(pause));
        assert!(asked >= pause.mul_f64(0.79) && asked <= pause.mul_f64(1.21), "{asked:?} instead of about {pause:?}");
        assert_eq!(breaker.state(), BreakerState::Open);
        assert_eq!((breaker.enter(), breaker.room()), (Room::ShutFor(asked), Room::ShutFor(asked)));
        tokio::time::sleep(asked).await;
        assert_eq!(breaker.room(), Room::Few(PROBE));
        assert_eq!(breaker.enter(), Room::Few(PROBE));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_something_arrives() {
        let breaker = breaker();
        assert_eq!((breaker.enter(), breaker.room()), (Room::Open, Room::Open));
        for pause in [1, 2, 3, 3] {
            pauses_for_about(&breaker, pause).await;
        }
        breaker.succeeded();
        assert_eq!((breaker.state(), breaker.room()), (BreakerState::Closed, Room::Open));
        pauses_for_about(&breaker, 1).await;
        assert_eq!(breaker.state().to_string(), "half-open");
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_at_a_time_and_one_that_is_lost_is_followed_by_another() {
        let breaker = breaker();
        breaker.failed(None, &"gone");
        tokio::time::sleep(breaker.put_off(1)[0]).await;
        assert_eq!(breaker.enter(), Room::Few(PROBE));
        assert!(matches!(breaker.enter(), Room::ShutFor(_)));
        // Who finds a probe under way comes again soon, and not after as long a pause again.
        assert_eq!(breaker.put_off(2), [turns::STEP; 2]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(breaker.enter(), Room::Few(PROBE));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_outage_count_once_and_a_longer_pause_is_granted() {
        let breaker = breaker();
        breaker.failed(None, &"gone");
        breaker.failed(None, &"gone");
        assert!(breaker.put_off(1)[0] < Duration::from_secs(2));
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.succeeded();
        breaker.failed(Some(Duration::from_secs(60)), &"later");
        assert_eq!(breaker.put_off(1), [Duration::from_secs(60)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_put_off_comes_in_groups_from_the_end_of_the_pause_on() {
        let breaker = breaker();
        breaker.failed(Some(Duration::from_secs(60)), &"gone");
        let pauses = breaker.put_off(2500);
        let after = |groups: u32| Duration::from_secs(60) + groups * turns::STEP;
        assert_eq!([pauses[0], pauses[999], pauses[1000], pauses[2499]], [after(0), after(0), after(1), after(2)]);
        assert!(pauses.is_sorted(), "what was put off together stays in its order");
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
            metrics::with_local_recorder(&told, || breaker.failed(None, &"gone"));
            assert_eq!((told.state(), told.of("posthaste_breaker_opened_total")), (Some(2.0), Some(1)));
            metrics::with_local_recorder(&told, || breaker.tell());
            assert_eq!(told.of("posthaste_breaker_opened_total"), Some(1), "to say it again is not to open again");
            tokio::time::sleep(breaker.put_off(1)[0]).await;
            metrics::with_local_recorder(&told, || breaker.enter());
            assert_eq!(told.state(), Some(1.0));
            metrics::with_local_recorder(&told, || breaker.succeeded());
            assert_eq!(told.state(), Some(0.0));
        }
    }
}
