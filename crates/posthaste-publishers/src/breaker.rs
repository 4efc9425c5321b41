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

/// Keeps events from a destination that is away, and tries now and then whether it is back.
///
/// One per connection, shared by all that is sent over it. An outage opens it; while it is open nothing is sent, and where every
/// listener of an outbox is behind such a breaker, nothing is claimed either. After a pause a few events are tried. If one of
/// them arrives it is closed again; otherwise the next pause is twice as long. No attempt of an event is used up by that.
#[derive(Clone)]
pub struct Breaker(Arc<Inner>);

struct Inner {
    name: String,
    first_pause: Duration,
    longest_pause: Duration,
    circuit: Mutex<Circuit>,
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

    /// Whether something may be sent now; if not, when to ask again. Who sends after a pause is the probe: the others wait.
    pub(crate) fn enter(&self) -> Result<(), Duration> {
        let now = Instant::now();
        let mut circuit = self.circuit();
        match *circuit {
            Circuit::Closed => return Ok(()),
            Circuit::Open { until, .. } if now < until => return Err(until - now),
            // A probe that never said how it went is over after a while.
            Circuit::HalfOpen { since, pause } if now < since + pause => return Err(since + pause - now),
            Circuit::Open { pause, .. } | Circuit::HalfOpen { pause, .. } => {
                *circuit = Circuit::HalfOpen { since: now, pause };
            }
        }
        drop(circuit);
        self.report(BreakerState::HalfOpen);
        Ok(())
    }

    /// Something arrived.
    pub(crate) fn succeeded(&self) {
        if std::mem::replace(&mut *self.circuit(), Circuit::Closed) != Circuit::Closed {
            info!(destination = self.name(), "destination is back");
            self.report(BreakerState::Closed);
        }
    }

    /// The destination is away. Says when to ask again.
    pub(crate) fn failed(&self, asked_for: Option<Duration>, reason: &dyn fmt::Display) -> Duration {
        let mut circuit = self.circuit();
        let pause = match *circuit {
            Circuit::Closed => self.0.first_pause,
            // Of several batches under way when it went, the first has opened it.
            Circuit::Open { until, .. } => {
                return until.saturating_duration_since(Instant::now()).max(self.0.first_pause);
            }
            Circuit::HalfOpen { pause, .. } => (pause * 2).min(self.0.longest_pause),
        };
        // What several processes do at the same moment is spread.
        let spread = pause.mul_f64(0.8 + 0.4 * fastrand::f64()).max(asked_for.unwrap_or_default());
        *circuit = Circuit::Open { until: Instant::now() + spread, pause };
        drop(circuit);
        warn!(destination = self.name(), %reason, pause = ?spread, "destination is away; it is tried again after a pause");
        self.report(BreakerState::Open);
        spread
    }

    #[cfg(feature = "metrics")]
    fn report(&self, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0.0,
            BreakerState::HalfOpen => 1.0,
            BreakerState::Open => 2.0,
        };
        metrics::gauge!("posthaste_breaker_state", "destination" => self.0.name.clone()).set(value);
        if state == BreakerState::Open {
            metrics::counter!("posthaste_breaker_opened_total", "destination" => self.0.name.clone()).increment(1);
        }
    }

    #[cfg(not(feature = "metrics"))]
    #[expect(clippy::unused_self, reason = "without metrics there is nobody to tell")]
    fn report(&self, _: BreakerState) {}
}

impl Gate for Breaker {
    fn room(&self) -> Room {
        let now = Instant::now();
        match *self.circuit() {
            Circuit::Closed => Room::Open,
            Circuit::Open { until, .. } if now < until => Room::ShutFor(until - now),
            Circuit::HalfOpen { since, pause } if now < since + pause => Room::ShutFor(since + pause - now),
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => Room::Few(PROBE),
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

    /// Fails a probe, and says whether the pause after it is about that long.
    async fn pauses_for_about(breaker: &Breaker, pause: u64) {
        let asked = breaker.failed(None, &"gone");
        let pause = Duration::from_secs(pause);
        assert!(asked >= pause.mul_f64(0.79) && asked <= pause.mul_f64(1.21), "{asked:?} instead of about {pause:?}");
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(breaker.enter().is_err());
        assert!(matches!(breaker.room(), Room::ShutFor(_)));
        tokio::time::sleep(asked).await;
        assert_eq!(breaker.room(), Room::Few(PROBE));
        assert_eq!(breaker.enter(), Ok(()));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_something_arrives() {
        let breaker = breaker();
        assert_eq!((breaker.enter(), breaker.room()), (Ok(()), Room::Open));
        for pause in [1, 2, 3, 3] {
            pauses_for_about(&breaker, pause).await;
        }
        breaker.succeeded();
        assert_eq!((breaker.state(), breaker.room()), (BreakerState::Closed, Room::Open));
        pauses_for_about(&breaker, 1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_at_a_time_and_one_that_is_lost_is_followed_by_another() {
        let breaker = breaker();
        let pause = breaker.failed(None, &"gone");
        tokio::time::sleep(pause).await;
        assert_eq!(breaker.enter(), Ok(()));
        assert!(breaker.enter().is_err());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(breaker.enter(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_one_outage_count_once_and_a_longer_pause_is_granted() {
        let breaker = breaker();
        breaker.failed(None, &"gone");
        assert!(breaker.failed(None, &"gone") < Duration::from_secs(2));
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.succeeded();
        assert_eq!(breaker.failed(Some(Duration::from_secs(60)), &"later"), Duration::from_secs(60));
    }
}
