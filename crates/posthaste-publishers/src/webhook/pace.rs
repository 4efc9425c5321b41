//! How much an endpoint takes: when it asked to be left alone, and whether it is slow.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::turns::Turns;

/// How long an endpoint is left alone at least that says it got too many requests, and how long at first if it does not say for
/// how long.
const SHORTEST: Duration = Duration::from_secs(1);

/// How long it is left alone at most if it does not say for how long.
const LONGEST: Duration = Duration::from_secs(30);

/// How long it is left alone at most because it asked for it, as by the breaker.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// How long what found no time waits.
const BUSY: Duration = Duration::from_secs(1);

/// How long an answer takes at least that is slow.
const SLOW: Duration = Duration::from_secs(1);

/// How many quick answers in a row it takes behind a slow one until an endpoint is not slow any more.
const QUICK: u32 = 10;

/// Moments are counted in milliseconds since it was made, so that nobody has to wait for somebody else to read them.
pub(super) struct Pace {
    made_at: Instant,
    /// Until when it asked to be left alone.
    rests_until: AtomicU64,
    /// Since when it was asked or has answered, the last of both.
    heard_at: AtomicU64,
    under_way: AtomicUsize,
    /// How many quick answers are missing until it is not slow any more.
    slow: AtomicU32,
    waiting: Mutex<Waiting>,
}

/// Those that come again later.
#[derive(Default)]
struct Waiting {
    turns: Turns,
    /// How long it was left alone last without having said for how long.
    pause: Duration,
}

/// A request under way.
pub(super) struct UnderWay<'a> {
    pace: &'a Pace,
    begun_at: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        let (rests_until, heard_at, under_way, slow, waiting) = <_>::default();
        Self { made_at: Instant::now(), rests_until, heard_at, under_way, slow, waiting }
    }
}

impl Pace {
    /// It has got too many requests, and wants no more for a while.
    pub(super) fn too_many(&self, asked_for: Option<Duration>) {
        let mut waiting = self.waiting();
        let pause = asked_for.unwrap_or_else(|| {
            // Of several answers to requests that were under way together the first has said it.
            if !self.is_resting() {
                waiting.pause = (waiting.pause * 2).clamp(SHORTEST, LONGEST);
            }
            waiting.pause
        });
        drop(waiting);
        self.rest(pause.max(SHORTEST));
    }

    /// It wants nothing for that long.
    pub(super) fn rest(&self, pause: Duration) {
        let until = self.since_made() + millis(pause.min(LONGEST_ASKED));
        self.rests_until.fetch_max(until, Ordering::Relaxed);
    }

    /// It has taken something.
    pub(super) fn took(&self) {
        // Few have ever rested.
        if self.rests_until.load(Ordering::Relaxed) > 0 && !self.is_resting() {
            self.waiting().pause = Duration::ZERO;
        }
    }

    /// Whether it asked to be left alone.
    pub(super) fn is_resting(&self) -> bool {
        match self.rests_until.load(Ordering::Relaxed) {
            0 => false,
            until => self.since_made() < until,
        }
    }

    /// After how long a request comes again that is not sent now. Many come in groups.
    pub(super) fn put_off(&self) -> Duration {
        let now = Instant::now();
        let rested = self.made_at + Duration::from_millis(self.rests_until.load(Ordering::Relaxed));
        let (earliest, first) = (rested.max(now), rested.max(now + BUSY));
        self.waiting().turns.next(earliest, first).saturating_duration_since(now)
    }

    /// Says that a request is under way, until that is dropped.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        let begun_at = Instant::now();
        if self.under_way.load(Ordering::Acquire) == 0 {
            // First, so that nobody takes how long it was idle for how long it takes.
            self.heard_at.store(millis(begun_at - self.made_at), Ordering::Release);
        }
        self.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay { pace: self, begun_at }
    }

    /// Whether its last answers took long, or one that is awaited does.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
            || (self.under_way.load(Ordering::Relaxed) > 0
                && self.since_made().saturating_sub(self.heard_at.load(Ordering::Relaxed)) >= millis(SLOW))
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since_made(&self) -> u64 {
        millis(self.made_at.elapsed())
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let (pace, now) = (self.pace, Instant::now());
        pace.under_way.fetch_sub(1, Ordering::Relaxed);
        pace.heard_at.store(millis(now - pace.made_at), Ordering::Relaxed);
        if now - self.begun_at >= SLOW {
            pace.slow.store(QUICK, Ordering::Relaxed);
        } else if pace.slow.load(Ordering::Relaxed) > 0 {
            // That one is lost when two are as quick does not matter.
            let _ = pace.slow.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |missing| missing.checked_sub(1));
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_does_not_say_for_how_long_is_left_alone_for_longer_each_time() {
        let pace = Pace::default();
        assert!(!pace.is_resting());
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            pace.too_many(None);
            pace.too_many(None);
            assert_eq!(pace.put_off(), Duration::from_secs(seconds));
            assert!(pace.is_resting());
            sleep(Duration::from_secs(seconds)).await;
            assert!(!pace.is_resting());
        }
        pace.took();
        pace.too_many(None);
        assert_eq!(pace.put_off(), SHORTEST);
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_for_how_long_is_left_alone_for_that_long_within_bounds() {
        for (asked, granted) in [(0, 1), (1, 1), (70, 70), (86_400, 300)] {
            let pace = Pace::default();
            pace.too_many(Some(Duration::from_secs(asked)));
            assert_eq!(pace.put_off(), Duration::from_secs(granted));
            pace.rest(Duration::from_millis(1));
            assert_eq!(pace.put_off(), Duration::from_secs(granted), "it is not made shorter");
        }
        let pace = Pace::default();
        pace.rest(Duration::ZERO);
        assert!(!pace.is_resting());
    }

    #[tokio::test(start_paused = true)]
    async fn many_come_again_in_groups() {
        let pace = Pace::default();
        let waits: Vec<_> = (0..2500).map(|_| pace.put_off()).collect();
        assert_eq!([waits[0], waits[999]], [BUSY; 2]);
        assert!(waits[1000] > BUSY && waits[2499] > waits[1000]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_slow_from_the_first_that_takes_long_until_several_did_not() {
        let pace = Pace::default();
        let first = pace.begin();
        assert!(!pace.is_slow());
        sleep(SLOW).await;
        assert!(pace.is_slow(), "before it has answered");
        drop(first);
        for _ in 0..QUICK {
            assert!(pace.is_slow());
            drop(pace.begin());
        }
        assert!(!pace.is_slow());
        sleep(SLOW).await;
        assert!(!pace.is_slow(), "nobody was asked");
    }
}
