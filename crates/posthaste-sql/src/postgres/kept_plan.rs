//! Whether a statement may keep its plan, instead of being planned anew.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The most rows of a claim for which planning is a large share of its time.
const FEW: usize = 256;

/// How long a claim with a good plan takes at most: to begin with, and for each row that it takes.
const QUICK: Duration = Duration::from_millis(2);
const QUICK_ROW: Duration = Duration::from_micros(50);

/// How many in a row have to be slower, unless one is by far. One may have waited for something else.
const SLOW_IN_A_ROW: u32 = 2;
const BY_FAR: u32 = 10;

/// For how long claims are planned anew then. Meanwhile the server analyses the table, and forgets the plan that it kept. Where
/// it does not, this is twice as long each time, up to the longest.
const REST: Duration = Duration::from_secs(10);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Whether the plan that the server keeps for claims of few rows, or for reads of lanes, is a good one, as far as can be told from
/// how long they take.
///
/// Planning takes longer than the rest of such a claim, and a good part of such a read, so a kept plan is worth something. One that was made while the table was
/// small walks the whole of it once it is large, until somebody analyses the table. Then claims are slow, and those that follow
/// are planned anew. Far from the server all of them are slow, and planning is a small share of that.
#[derive(Default)]
pub(super) struct KeptPlan(Mutex<State>);

#[derive(Default)]
struct State {
    slow_in_a_row: u32,
    anew_until: Option<Instant>,
    /// How long the last rest was, if no claim was quick since.
    last_rest: Option<Duration>,
}

impl KeptPlan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a claim of that many rows should use it.
    pub(super) fn serves(&self, limit: usize) -> bool {
        limit <= FEW && self.is_good()
    }

    /// Whether it has not been slow of late.
    pub(super) fn is_good(&self) -> bool {
        self.state().anew_until.is_none_or(|until| Instant::now() >= until)
    }

    /// A claim uses it from now on. One that fails, or is given up, counts as one that took no rows.
    pub(super) fn begin(&self) -> Serving<'_> {
        Serving { plan: self, since: Instant::now(), rows: 0 }
    }

    /// A claim that used it took that long and that many rows.
    fn served(&self, took: Duration, rows: usize) {
        let mut state = self.state();
        let quick = QUICK + QUICK_ROW * u32::try_from(rows).unwrap_or(u32::MAX);
        if took <= quick {
            // One that began before a rest says nothing of why it was begun.
            if state.anew_until.is_none_or(|until| Instant::now() >= until) {
                *state = State::default();
            }
            return;
        }
        state.slow_in_a_row += 1;
        if state.slow_in_a_row >= SLOW_IN_A_ROW || took > quick * BY_FAR {
            let rest = state.last_rest.map_or(REST, |last| (last * 2).min(LONGEST_REST));
            *state = State { slow_in_a_row: 0, anew_until: Some(Instant::now() + rest), last_rest: Some(rest) };
        }
    }
}

/// A claim that uses a kept plan.
pub(super) struct Serving<'a> {
    plan: &'a KeptPlan,
    since: Instant,
    pub(super) rows: usize,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.plan.served(self.since.elapsed(), self.rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_given_up_counts_as_slow() {
        let plan = KeptPlan::default();
        let serving = plan.begin();
        tokio::time::sleep(SLOW * BY_FAR).await;
        drop(serving);
        assert!(!plan.serves(1));
        // Another one, which was quick, had begun before.
        plan.served(QUICK, 0);
        assert!(!plan.serves(1));
    }

    const SLOW: Duration = Duration::from_millis(3);

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_is_slow_twice_is_left_alone_for_a_while() {
        let plan = KeptPlan::default();
        assert!(plan.serves(FEW) && !plan.serves(FEW + 1));
        plan.served(SLOW, 0);
        plan.served(QUICK, 0);
        plan.served(SLOW, 0);
        assert!(plan.serves(1), "slow twice, but not in a row");
        plan.served(SLOW, 0);
        assert!(!plan.serves(1));
        tokio::time::sleep(REST).await;
        assert!(plan.serves(1));
        plan.served(SLOW, 0);
        assert!(plan.serves(1), "it gets two chances again");
        plan.served(SLOW, 0);
        tokio::time::sleep(REST).await;
        assert!(!plan.serves(1), "the second rest is longer");
        tokio::time::sleep(REST).await;
        assert!(plan.serves(1));
        plan.served(QUICK, 0);
        plan.served(SLOW * BY_FAR, 0);
        assert!(!plan.serves(1), "once is enough if it is slow by far");
        tokio::time::sleep(REST).await;
        assert!(plan.serves(1), "and the rest is the first one, since it was quick before");
    }

    #[tokio::test(start_paused = true)]
    async fn many_rows_may_take_longer() {
        let plan = KeptPlan::default();
        for _ in 0..SLOW_IN_A_ROW {
            plan.served(SLOW, 100);
        }
        assert!(plan.serves(1));
    }
}
