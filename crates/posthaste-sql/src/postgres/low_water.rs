//! Before which moment nothing waits, so that claims need not walk over what is done.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::Timestamp;
use tokio::time::Instant;

/// How far the mark stays behind the last row that was claimed. Rows whose transactions took no longer than that are found
/// although they were committed after later ones.
const SLACK: Duration = Duration::from_secs(1);

/// How much longer than the quickest of all a claim from the first row on takes that walks over next to nothing: to begin with,
/// and for each row that it takes. The quickest tells how far away the server is.
const QUICK: Duration = Duration::from_millis(1);
const QUICK_ROW: Duration = Duration::from_micros(30);

/// After how many claims from the mark on the quickest is that of the last ones: it may have been quick by chance, or the server
/// has become slower. Those from the first row on do not count, or what slows them down would in the end pass for the way.
const LAST_ONES: u32 = 100;

/// How many such claims in a row have to be slow. One may have waited for something else.
const SLOW_IN_A_ROW: u32 = 2;

/// For how many times as long as a slow claim took the next ones begin at the mark, at least and at most that long: so it is
/// a small share of the time, and what is before the mark waits no longer than for a poll.
const TIMES: u32 = 20;
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);

/// A moment before which nothing was available at the last look.
///
/// While some long transaction keeps the server from forgetting old versions of rows, the index of what is pending still leads
/// to all that was settled meanwhile, and every claim would walk over it. A claim that begins at the mark does not. What is
/// before the mark all the same, because it was committed late, or given back, is found by the claims in between that begin
/// at the first row. Where those are quick, all are such.
#[derive(Default)]
pub(super) struct LowWater(Mutex<State>);

#[derive(Default)]
struct State {
    mark: Option<Timestamp>,
    /// Until when claims may begin at the mark.
    until: Option<Instant>,
    quickest: Option<Duration>,
    /// The quickest of those that will be the last ones, and how many of them began at the mark.
    next_quickest: Option<Duration>,
    from_the_mark: u32,
    slow_in_a_row: u32,
}

impl State {
    /// How quick a claim can be, now that one took that long.
    fn quickest_with(&mut self, took: Duration, from_the_mark: bool) -> Duration {
        let least = |least: Option<Duration>| least.map_or(took, |least| least.min(took));
        let (mut quickest, next) = (least(self.quickest), least(self.next_quickest));
        self.next_quickest = Some(next);
        self.from_the_mark += u32::from(from_the_mark);
        if self.from_the_mark >= LAST_ONES {
            quickest = next;
            (self.next_quickest, self.from_the_mark) = (None, 0);
        }
        self.quickest = Some(quickest);
        quickest
    }
}

impl LowWater {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the next claim may begin; at the first row, if nothing is given.
    pub(super) fn mark(&self) -> Option<Timestamp> {
        let state = self.state();
        state.mark.filter(|_| state.until.is_some_and(|until| Instant::now() < until))
    }

    /// A claim that began at a mark, or at the first row, took that long and that many rows, of which the last was available
    /// from then on.
    pub(super) fn claimed(&self, from: Option<Timestamp>, took: Duration, rows: usize, last: Option<Timestamp>) {
        let mut state = self.state();
        let quickest = state.quickest_with(took, from.is_some());
        if from.is_none() {
            let quick = quickest + QUICK + QUICK_ROW * u32::try_from(rows).unwrap_or(u32::MAX);
            let rest = (took * TIMES).clamp(SHORTEST, LONGEST);
            state.slow_in_a_row = if took > quick { state.slow_in_a_row.saturating_add(1) } else { 0 };
            state.until = (state.slow_in_a_row >= SLOW_IN_A_ROW).then(|| Instant::now() + rest);
        }
        if let Some(last) = last {
            state.mark = Some(last - SLACK);
        }
    }

    /// Has the next claim begin at the first row.
    #[cfg(feature = "testing")]
    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }

    /// In how long a claim has to begin at the first row, after one that began at a mark.
    pub(super) fn whole_in(&self) -> Duration {
        self.state().until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(50);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[tokio::test(start_paused = true)]
    async fn claims_begin_at_the_mark_for_a_while_after_a_slow_one() {
        let low_water = near();
        low_water.claimed(None, SLOW, 1, Some(at(100)));
        assert_eq!(low_water.mark(), None, "one may have waited for something else");
        low_water.claimed(None, SLOW, 1, Some(at(100)));
        assert_eq!((low_water.mark(), low_water.whole_in()), (Some(at(99)), SLOW * TIMES));
        tokio::time::advance(SLOW * TIMES / 2).await;
        low_water.claimed(Some(at(99)), QUICK / 2, 1, Some(at(105)));
        assert_eq!((low_water.mark(), low_water.whole_in()), (Some(at(104)), SLOW * TIMES / 2));
        // One that takes nothing tells nothing.
        low_water.claimed(Some(at(104)), QUICK / 2, 0, None);
        assert_eq!(low_water.mark(), Some(at(104)));
        tokio::time::advance(SLOW * TIMES / 2).await;
        assert_eq!((low_water.mark(), low_water.whole_in()), (None, Duration::ZERO));
    }

    /// One whose server is near, as the first claim has shown.
    fn near() -> LowWater {
        let low_water = LowWater::default();
        low_water.claimed(None, QUICK / 2, 0, None);
        low_water
    }

    #[tokio::test(start_paused = true)]
    async fn how_far_away_the_server_is_does_not_count() {
        let low_water = LowWater::default();
        for _ in 0..3 {
            low_water.claimed(None, SLOW, 1, Some(at(100)));
            assert_eq!(low_water.mark(), None);
        }
        for _ in 0..SLOW_IN_A_ROW {
            low_water.claimed(None, SLOW * 2, 1, Some(at(100)));
        }
        assert_eq!(low_water.mark(), Some(at(99)));
    }

    /// Claims one after the other, of which those from the first row on take that long, and those from the mark on that long.
    /// Gives how many of the last hundred began at the mark.
    async fn go_on(low_water: &LowWater, whole: Duration, from_the_mark: Duration) -> usize {
        let mut marked = Vec::new();
        for _ in 0..1000 {
            let from = low_water.mark();
            let took = if from.is_some() { from_the_mark } else { whole };
            tokio::time::advance(took).await;
            low_water.claimed(from, took, 1, Some(at(100)));
            marked.push(from.is_some());
        }
        marked[900..].iter().filter(|marked| **marked).count()
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_quick_by_chance_is_forgotten() {
        let low_water = near();
        assert_eq!(go_on(&low_water, SLOW, SLOW).await, 0, "it is the way that is long");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_claims_stay_slow_for_as_long_as_they_are() {
        let low_water = near();
        assert!(go_on(&low_water, SLOW, QUICK / 2).await > 90);
    }

    #[tokio::test(start_paused = true)]
    async fn where_claims_are_quick_all_begin_at_the_first_row() {
        let low_water = near();
        low_water.claimed(None, SLOW, 1, Some(at(100)));
        low_water.claimed(None, SLOW, 1, Some(at(100)));
        low_water.claimed(None, QUICK, 1, Some(at(101)));
        assert_eq!(low_water.mark(), None);
        low_water.claimed(None, QUICK_ROW * 2000, 2000, Some(at(102)));
        assert_eq!(low_water.mark(), None, "it had much to take");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_before_the_mark_waits_for_a_poll_at_most() {
        let low_water = near();
        low_water.claimed(None, Duration::from_secs(60), 1, Some(at(100)));
        low_water.claimed(None, Duration::from_secs(60), 1, Some(at(100)));
        assert_eq!(low_water.whole_in(), LONGEST);
        low_water.claimed(None, QUICK * 2, 0, None);
        assert_eq!((low_water.mark(), low_water.whole_in()), (Some(at(99)), SHORTEST));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_takes_the_mark_back() {
        let low_water = near();
        low_water.claimed(None, SLOW, 1, Some(at(100)));
        low_water.claimed(None, SLOW, 1, Some(at(100)));
        low_water.claimed(None, SLOW, 1, Some(at(50)));
        assert_eq!(low_water.mark(), Some(at(49)));
    }
}
