//! Listeners that take only so many events: at once, or in some time.
//!
//! Whoever has to wait for his turn waits with a worker, and a worker that waits is not there for other listeners. So the wait
//! is short, [`PATIENCE`]; what would take longer is given back with [`Outcome::RetryAfter`], which is no failure and counts
//! as no attempt, and comes again through the table. The price is a settlement and a claim, so not every wait is turned into
//! that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Delivery, Failure, Listener, Outcome, Verdict};
use crate::retry::RetryPolicy;

/// How long an event waits for its turn, with a worker. A second: with w workers, not more than w events in a second are
/// given back then, and others behind them wait for seconds instead of for as long as a listener takes.
const PATIENCE: Duration = Duration::from_secs(1);

/// After how long an event comes again that found no turn, where nobody knows how long it will take.
const COMES_AGAIN: Duration = Duration::from_secs(1);

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
    /// Goes back when the event has ended.
    type Turn: Send;

    /// A turn, within [`PATIENCE`], or after how long to come again.
    fn turn(&self) -> impl Future<Output = Result<Self::Turn, Duration>> + Send;
}

async fn run<L: Listener>(listener: &L, turns: &impl Turns, event: &Delivery) -> Verdict {
    let _turn = match turns.turn().await {
        Ok(turn) => turn,
        Err(delay) => return Ok(Outcome::RetryAfter(delay)),
    };
    // The time limit begins with the turn.
    let Some(limit) = listener.time_limit() else { return listener.on_event(event).await };
    timeout(limit, listener.on_event(event)).await.unwrap_or_else(|_| {
        let reason =
            format!("the listener took longer than its time limit of {limit:?}; give it more with with_time_limit");
        Err(Failure::retryable(reason))
    })
}

macro_rules! limited {
    ($($turns:ty),*) => {$(
        impl<L: Listener> Listener for Limited<L, $turns> {
            async fn on_event(&self, event: &Delivery) -> Verdict {
                run(&self.inner, &self.limit, event).await
            }

            /// That of the listener, and the wait for its turn.
            fn time_limit(&self) -> Option<Duration> {
                self.inner.time_limit().map(|limit| limit.saturating_add(2 * PATIENCE))
            }

            fn retry_policy(&self) -> Option<&RetryPolicy> {
                self.inner.retry_policy()
            }
        }
    )*};
}

limited!(AtOnce, Rate);

/// So many events at once.
#[derive(Clone, Debug)]
pub struct AtOnce {
    places: Arc<Semaphore>,
}

impl AtOnce {
    pub(super) fn limit<L>(inner: L, events: usize) -> Limited<L, Self> {
        let places = events.clamp(1, Semaphore::MAX_PERMITS);
        Limited { inner, limit: Self { places: Arc::new(Semaphore::new(places)) } }
    }
}

impl Turns for AtOnce {
    type Turn = tokio::sync::OwnedSemaphorePermit;

    async fn turn(&self) -> Result<Self::Turn, Duration> {
        match timeout(PATIENCE, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            // Nobody closes it, so it is the time that is over.
            Ok(Err(_)) | Err(_) => Err(COMES_AGAIN),
        }
    }
}

/// So many events in some time.
#[derive(Clone, Debug)]
pub struct Rate {
    events: usize,
    period: Duration,
    times: Arc<Mutex<Times>>,
}

#[derive(Debug, Default)]
struct Times {
    /// When the last events began, or will, as many as may begin in one period.
    begun: VecDeque<Instant>,
    /// When the next event that is given back is to come again.
    again: Option<Instant>,
}

impl Rate {
    pub(super) fn limit<L>(inner: L, events: u32, period: Duration) -> Limited<L, Self> {
        let events = usize::try_from(events.max(1)).unwrap_or(usize::MAX);
        Limited { inner, limit: Self { events, period: period.min(LONGEST_PERIOD), times: Arc::default() } }
    }

    /// When an event that asks now may begin, or after how long it is to come again.
    fn next(&self, now: Instant) -> Result<Instant, Duration> {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = match times.begun.front() {
            Some(first) if times.begun.len() >= self.events => now.max(*first + self.period),
            _ => now,
        };
        if earliest - now <= PATIENCE {
            if times.begun.len() >= self.events {
                times.begun.pop_front();
            }
            times.begun.push_back(earliest);
            return Ok(earliest);
        }
        // One after the other, as fast as they may begin: if they came back together, most would be given back again.
        let again = times.again.map_or(earliest, |again| again.max(earliest));
        times.again = Some(again + self.period / u32::try_from(self.events).unwrap_or(u32::MAX));
        Err(again - now)
    }
}

impl Turns for Rate {
    type Turn = ();

    async fn turn(&self) -> Result<(), Duration> {
        let begins_at = self.next(Instant::now())?;
        sleep_until(begins_at).await;
        Ok(())
    }
}
