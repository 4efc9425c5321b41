//! Before which moment nothing waits, so that claims need not walk over what is done.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::Timestamp;
use tokio::time::Instant;

/// How long claims may begin at the mark before one begins at the first row again.
const LONGEST: Duration = Duration::from_millis(250);

/// How far the mark stays behind the first row that was claimed. Rows whose transactions took no longer than that are found
/// although they were committed after later ones.
const SLACK: Duration = Duration::from_secs(1);

/// How many claims in a row have to take something before the next may begin at the mark. Where there is little to do, there
/// is little to walk over.
const BUSY: u32 = 8;

/// A moment before which nothing was available at the last look.
///
/// While some long transaction keeps the server from forgetting old versions of rows, the index of what is pending still leads
/// to all that was settled meanwhile, and every claim would walk over it. A claim that begins at the mark does not. What is
/// before the mark all the same, because it was committed late, or given back, is found by the claims in between that begin
/// at the first row.
#[derive(Default)]
pub(super) struct LowWater(Mutex<State>);

#[derive(Default)]
struct State {
    mark: Option<Timestamp>,
    /// When a claim last began at the first row.
    whole_at: Option<Instant>,
    /// How many claims in a row took something.
    in_a_row: u32,
}

impl LowWater {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the next claim may begin; at the first row, if nothing is given.
    pub(super) fn mark(&self) -> Option<Timestamp> {
        let state = self.state();
        let fresh = state.whole_at.is_some_and(|at| at.elapsed() < LONGEST);
        state.mark.filter(|_| fresh && state.in_a_row >= BUSY)
    }

    /// A claim that began at a mark, or at the first row, took rows of which the first was available from then on.
    pub(super) fn claimed(&self, from: Option<Timestamp>, first: Option<Timestamp>) {
        let mut state = self.state();
        if from.is_none() {
            state.whole_at = Some(Instant::now());
            state.mark = None;
        }
        match first {
            Some(first) => {
                state.mark = Some(first - SLACK);
                state.in_a_row = state.in_a_row.saturating_add(1);
            }
            None => state.in_a_row = 0,
        }
    }

    /// In how long a claim has to begin at the first row, after one that began at a mark.
    pub(super) fn whole_in(&self) -> Duration {
        self.state().whole_at.map_or(Duration::ZERO, |at| LONGEST.saturating_sub(at.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    /// One that was busy before.
    fn busy(first: i64) -> LowWater {
        let low_water = LowWater::default();
        for _ in 0..BUSY {
            assert_eq!(low_water.mark(), None);
            low_water.claimed(None, Some(at(first)));
        }
        low_water
    }

    #[tokio::test(start_paused = true)]
    async fn claims_begin_at_the_mark_for_a_while() {
        let low_water = busy(100);
        assert_eq!(low_water.mark(), Some(at(99)));
        tokio::time::advance(LONGEST / 2).await;
        low_water.claimed(Some(at(99)), Some(at(105)));
        assert_eq!((low_water.mark(), low_water.whole_in()), (Some(at(104)), LONGEST / 2));
        tokio::time::advance(LONGEST / 2).await;
        assert_eq!((low_water.mark(), low_water.whole_in()), (None, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_took_nothing_ends_it() {
        let low_water = busy(100);
        low_water.claimed(Some(at(99)), None);
        assert_eq!(low_water.mark(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_back_takes_the_mark_back() {
        let low_water = busy(100);
        low_water.claimed(None, Some(at(50)));
        assert_eq!(low_water.mark(), Some(at(49)));
    }
}
