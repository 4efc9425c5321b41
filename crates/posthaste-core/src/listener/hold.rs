//! What keeps events from listeners until somebody says otherwise.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Gate, Outcome, Room, Verdict};

/// How long an event is put off at least, and, before those are spread of which there are many, at most.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(300);

/// What is put off comes again at that pace, so that it takes neither the database nor the workers from others, and over that
/// long at most.
const STEP: Duration = Duration::from_micros(500);
const SPREAD: Duration = Duration::from_secs(120);

/// How long, at most, whoever would claim for what is held waits before it looks again.
const LOOK: Duration = Duration::from_millis(250);

/// Keeps events from listeners while it is held: for a destination under maintenance, or a consumer that cannot keep up. Cheap
/// to clone; clones are one and the same. Put it in front with [`AnyListener::held_by`](super::AnyListener::held_by).
///
/// What is held stays in the table, and uses up no attempt. Where every listener of an outbox is held, nothing is claimed.
/// Otherwise events are claimed with those of others and put off: by two seconds at first, then by a quarter of the time since it
/// is held, up to five minutes, and those of which there are many at 2000 in a second. So after a release they are there again
/// within a quarter of the time that they were held for, but two seconds at least and five minutes at most, and two minutes more if
/// there are very many.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::{AnyListener, Hold};
/// use posthaste::{Delivery, MemoryStore, Outbox};
///
/// let hold = Hold::new();
/// let listener = AnyListener::from(|_: Delivery| async {}).held_by([hold.clone()]);
/// let builder = Outbox::builder(MemoryStore::new()).listen_all(listener);
///
/// hold.hold(); // from now on nothing is delivered
/// assert!(hold.is_held());
/// hold.release();
/// ```
#[derive(Clone, Default)]
pub struct Hold(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Since when it is held.
    since: Option<Instant>,
    /// When the last one comes again that was put off.
    last: Option<Instant>,
}

impl Hold {
    /// One that is not held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Holds. Says whether it was not held before.
    pub fn hold(&self) -> bool {
        let mut state = self.state();
        let is_new = state.since.is_none();
        if is_new {
            *state = State { since: Some(Instant::now()), last: None };
        }
        is_new
    }

    /// Releases. Says whether it was held.
    pub fn release(&self) -> bool {
        self.state().since.take().is_some()
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.state().since.is_some()
    }

    /// If it is held, what becomes of so many events.
    pub(super) fn put_off(&self, events: usize) -> Option<Vec<Verdict>> {
        let mut state = self.state();
        let (since, now) = (state.since?, Instant::now());
        let pause = (now.saturating_duration_since(since) / 4).clamp(SHORTEST, LONGEST);
        let mut verdicts = Vec::with_capacity(events);
        for _ in 0..events {
            let next = state.last.map_or(now + pause, |last| (last + STEP).max(now + pause));
            let after = next.saturating_duration_since(now);
            verdicts.push(Ok(Outcome::RetryAfter(if after <= pause + SPREAD {
                state.last = Some(next);
                after
            } else {
                pause + SPREAD.mul_f64(fastrand::f64())
            })));
        }
        Some(verdicts)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for Hold {
    fn room(&self) -> Room {
        if self.is_held() { Room::ShutFor(LOOK) } else { Room::Open }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("is_held", &self.is_held()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(hold: &Hold, events: usize) -> Vec<Duration> {
        let verdicts = hold.put_off(events).expect("it is held");
        let pause = |verdict| match verdict {
            Ok(Outcome::RetryAfter(pause)) => pause,
            other => panic!("{other:?}"),
        };
        verdicts.into_iter().map(pause).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_with_the_time_and_with_the_number() {
        let hold = Hold::new();
        assert!(hold.put_off(1).is_none() && hold.room() == Room::Open && !hold.release());
        assert!(hold.hold() && !hold.hold() && hold.is_held());
        assert_eq!(hold.room(), Room::ShutFor(LOOK));
        assert_eq!(pauses(&hold, 3), [SHORTEST, SHORTEST + STEP, SHORTEST + 2 * STEP]);
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(pauses(&hold, 1), [Duration::from_secs(10)]);
        tokio::time::advance(Duration::from_secs(86_400)).await;
        assert_eq!(pauses(&hold, 1), [LONGEST]);
        let many = pauses(&hold, 500_000);
        assert!(many.iter().all(|pause| (LONGEST..=LONGEST + SPREAD).contains(pause)));
        let in_a_second = many.iter().take(200_000).filter(|pause| **pause < LONGEST + Duration::from_secs(1)).count();
        assert!((1990..=2010).contains(&in_a_second), "{in_a_second}");
        assert!(hold.release() && hold.put_off(1).is_none());
        assert!(hold.hold());
        assert_eq!(pauses(&hold, 1), [SHORTEST]);
    }
}
