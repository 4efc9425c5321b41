//! Listeners that take only so many events: at once, or in some time.
//!
//! Whoever waits for a turn waits with a worker, and a worker that waits is not there for other listeners. So of the events that
//! find no turn only one waits, and not for long. The others are given back with [`Outcome::RetryAfter`], which is no failure
//! and counts as no attempt, and come again through the table: one after the other, about as fast as they may begin. The price
//! is a settlement and a claim for each of them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Delivery, Gate, Listener, Outcome, Verdict, call};
use crate::order::OnDead;
use crate::retry::RetryPolicy;

/// How long one event waits for its turn, with a worker. If turns come less often, there is somebody who waits for most of the
/// time, and little is lost between two of them.
const PATIENCE: Duration = Duration::from_secs(1);

/// After a wait there is none for as long as it took, and at most this. Otherwise the only worker there is, or the only one that
/// is not with the listener, would go from one wait to the next and never see the events behind. Enough to give back what is
/// queued, little beside [`PATIENCE`].
const REST: Duration = Duration::from_millis(100);

/// Between two events that come again, where nobody knows yet how long the listener takes.
const SHORTEST_GAP: Duration = Duration::from_millis(1);

/// Between two events that come again for a place. Less than [`PATIENCE`], so that the next one is there before the wait ends.
const LONGEST_GAP: Duration = Duration::from_millis(750);

/// Longer than any period that is meant, and short enough for moments in the future to be expressed.
const LONGEST_PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// A listener with a limit. Made by [`Listener::with_concurrency`] and [`Listener::with_rate`].
#[derive(Debug)]
pub struct Limited<L, B> {
    inner: L,
    limit: B,
}

/// What a limited listener waits for.
trait Turns: Send + Sync + 'static {
    type Turn: Send;

    /// A turn, or after how long to come again.
    fn turn(&self) -> impl Future<Output = Result<Self::Turn, Duration>> + Send;

    /// The event has ended, or another limit inside has given it back and the turn was not used.
    fn end(&self, turn: Self::Turn, used: bool);
}

/// A turn, until the event ends or its future is dropped.
struct Held<'a, T: Turns> {
    turns: &'a T,
    turn: Option<T::Turn>,
    given_back: u64,
}

impl<T: Turns> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.turns.end(turn, self.given_back == call::given_back());
        }
    }
}

async fn run<L: Listener, T: Turns>(listener: &L, turns: &T, event: &Delivery) -> Verdict {
    let turn = match turns.turn().await {
        Ok(turn) => turn,
        Err(delay) => {
            call::give_back();
            return Ok(Outcome::RetryAfter(delay));
        }
    };
    let held = Held { turns, turn: Some(turn), given_back: call::given_back() };
    let verdict = listener.on_event(event).await;
    if !matches!(verdict, Ok(Outcome::RetryAfter(_))) {
        call::reached(held.given_back);
    }
    verdict
}

macro_rules! limited {
    ($($turns:ty),*) => {$(
        impl<L: Listener> Listener for Limited<L, $turns> {
            async fn on_event(&self, event: &Delivery) -> Verdict {
                call::known(run(&self.inner, &self.limit, event)).await
            }

            fn time_limit(&self) -> Option<Duration> {
                self.inner.time_limit()
            }

            fn retry_policy(&self) -> Option<&RetryPolicy> {
                self.inner.retry_policy()
            }

            fn time_limit_or(&self, otherwise: Duration) -> Duration {
                self.inner.time_limit_or(otherwise)
            }

            fn gate(&self) -> Option<Arc<dyn Gate>> {
                self.inner.gate()
            }

            fn mistake(&self) -> Option<&str> {
                self.inner.mistake()
            }

            fn dead_policy(&self) -> Option<OnDead> {
                self.inner.dead_policy()
            }
        }
    )*};
}

limited!(AtOnce, Rate);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those who find no turn: one waits, the others have a time at which they come again.
#[derive(Debug, Default)]
struct Line {
    state: Mutex<InLine>,
}

#[derive(Debug, Default)]
struct InLine {
    waits: bool,
    rests_until: Option<Instant>,
    /// When the next event that is given back is to come again.
    again: Option<Instant>,
}

/// The one who waits.
struct First<'a> {
    line: &'a Line,
    since: Instant,
}

impl Line {
    /// A place at the head of the line, unless somebody has it or has had it just now.
    fn first(&self, now: Instant) -> Option<First<'_>> {
        let mut state = lock(&self.state);
        if state.waits || state.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        state.waits = true;
        Some(First { line: self, since: now })
    }

    fn is_waiting(&self) -> bool {
        lock(&self.state).waits
    }

    /// After how long the next event is to come again: one after the other, not before this moment and with this between
    /// them. If they came back together, most would be given back again.
    fn again(&self, now: Instant, not_before: Instant, gap: Duration) -> Duration {
        let mut state = lock(&self.state);
        let again = state.again.map_or(not_before, |again| again.max(not_before));
        state.again = Some(again + gap);
        again - now
    }
}

impl Drop for First<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = lock(&self.line.state);
        state.waits = false;
        state.rests_until = Some(now + (now - self.since).min(REST));
    }
}

/// So many events at once.
#[derive(Clone, Debug)]
pub struct AtOnce {
    places: Arc<Semaphore>,
    events: u32,
    pace: Arc<Mutex<Pace>>,
    line: Arc<Line>,
}

/// How fast places become free.
#[derive(Debug, Default)]
struct Pace {
    /// How long an event takes, of late.
    takes: Duration,
    /// When a place was last taken or left.
    changed_at: Option<Instant>,
}

impl AtOnce {
    pub(super) fn limit<L>(inner: L, events: usize) -> Limited<L, Self> {
        let places = events.clamp(1, Semaphore::MAX_PERMITS);
        let limit = Self {
            places: Arc::new(Semaphore::new(places)),
            events: u32::try_from(places).unwrap_or(u32::MAX),
            pace: Arc::default(),
            line: Arc::default(),
        };
        Limited { inner, limit }
    }

    /// A little less than what probably lies between two places that become free: if an event comes too early there is one
    /// more to give back, if it comes too late a place is empty. While none becomes free, it takes at least that long.
    fn gap(&self, now: Instant) -> Duration {
        let pace = lock(&self.pace);
        let unchanged = pace.changed_at.map_or(Duration::ZERO, |at| now - at);
        ((pace.takes / self.events).max(unchanged) * 3 / 4).clamp(SHORTEST_GAP, LONGEST_GAP)
    }

    fn again(&self) -> Duration {
        let now = Instant::now();
        let gap = self.gap(now);
        self.line.again(now, now + gap, gap)
    }
}

impl Turns for AtOnce {
    type Turn = (call::Place, Instant);

    async fn turn(&self) -> Result<Self::Turn, Duration> {
        let places = Arc::clone(&self.places);
        let place = match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let first = self.line.first(Instant::now());
                let Some(_first) = first else { return Err(self.again()) };
                // Nobody closes it, so if there is no place it is the time that is over.
                let place = call::wait(timeout(PATIENCE, places.acquire_owned())).await;
                let Ok(Ok(place)) = place else { return Err(self.again()) };
                place
            }
        };
        let now = Instant::now();
        lock(&self.pace).changed_at = Some(now);
        Ok((call::hold(place), now))
    }

    fn end(&self, (_place, begun_at): Self::Turn, used: bool) {
        if used {
            let now = Instant::now();
            let mut pace = lock(&self.pace);
            let took = now - begun_at;
            pace.takes = if pace.takes.is_zero() { took } else { (pace.takes * 3 + took) / 4 };
            pace.changed_at = Some(now);
        }
    }
}

/// So many events in some time.
#[derive(Clone, Debug)]
pub struct Rate {
    events: usize,
    period: Duration,
    /// When the last events began, as many as may begin in one period.
    begun: Arc<Mutex<VecDeque<Instant>>>,
    line: Arc<Line>,
}

impl Rate {
    pub(super) fn limit<L>(inner: L, events: u32, period: Duration) -> Limited<L, Self> {
        let events = usize::try_from(events.max(1)).unwrap_or(usize::MAX);
        let period = period.min(LONGEST_PERIOD);
        Limited { inner, limit: Self { events, period, begun: Arc::default(), line: Arc::default() } }
    }

    /// Begins now, if one may besides those who are before it, or says when the first of them may.
    fn begin(&self, before_it: usize) -> Result<Instant, Instant> {
        let mut begun = lock(&self.begun);
        let now = Instant::now();
        let free_at = |place: usize| match (begun.len() + place).checked_sub(self.events) {
            None => Some(now),
            Some(index) => begun.get(index).map(|begun_at| *begun_at + self.period),
        };
        if free_at(before_it).is_none_or(|at| at > now) {
            return Err(free_at(0).unwrap_or(now));
        }
        if begun.len() >= self.events {
            begun.pop_front();
        }
        begun.push_back(now);
        Ok(now)
    }

    fn again(&self, free_at: Instant) -> Duration {
        let now = Instant::now();
        let gap = self.period / u32::try_from(self.events).unwrap_or(u32::MAX);
        let not_before = if self.line.is_waiting() { free_at + gap } else { free_at };
        self.line.again(now, not_before.max(now), gap)
    }
}

impl Turns for Rate {
    type Turn = Instant;

    async fn turn(&self) -> Result<Instant, Duration> {
        let mut free_at = match self.begin(usize::from(self.line.is_waiting())) {
            Ok(begun_at) => return Ok(begun_at),
            Err(free_at) => free_at,
        };
        let now = Instant::now();
        let until = now + PATIENCE;
        if free_at > until {
            return Err(self.again(free_at));
        }
        let first = self.line.first(now);
        let Some(_first) = first else { return Err(self.again(free_at)) };
        loop {
            call::wait(sleep_until(free_at)).await;
            free_at = match self.begin(0) {
                Ok(begun_at) => return Ok(begun_at),
                Err(free_at) if free_at > until => return Err(self.again(free_at)),
                Err(free_at) => free_at,
            };
        }
    }

    fn end(&self, begun_at: Instant, used: bool) {
        if used {
            return;
        }
        let mut begun = lock(&self.begun);
        if let Some(index) = begun.iter().rposition(|at| *at == begun_at) {
            begun.remove(index);
        }
    }
}
