//! Whether a statement may keep its plan, instead of being planned anew.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};
use tokio::time::Instant;

/// The most rows of a claim for which planning is a large share of its time.
const FEW: usize = 256;

/// How long a claim with a good plan takes at most: to begin with, and for each row that it takes.
const QUICK: Duration = Duration::from_millis(2);
const QUICK_ROW: Duration = Duration::from_micros(50);

/// How many in a row have to be slower, unless one is by far. One may have waited for something else.
const SLOW_IN_A_ROW: u32 = 2;
const BY_FAR: u32 = 10;

/// For how long claims are planned anew then. The first rest is short, since on a busy machine claims are slow by chance now and then.
/// If they are slow after it, too, the next is that many times as long, up to the longest, until that many in a row were quick.
const REST: Duration = Duration::from_millis(100);
const TIMES: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(3600);
const QUICK_IN_A_ROW: u32 = 10;

/// After how many claims another plan is made, and then each time that there were twice as many: a table grows with what is claimed
/// from it.
const FIRST_CLAIMS: u64 = 64;

/// How many claims by another plan say nothing unless they are slow by far: each connection has to prepare its statement first.
const UNPREPARED: u32 = 16;

/// Whether the plan that the server keeps for claims of few rows, or for reads of lanes, is a good one, as far as can be told from
/// how long they take.
///
/// Planning takes longer than the rest of such a claim, and a good part of such a read, so a kept plan is worth something. One that was
/// made while the table was small walks the whole of it once it is large, until somebody analyses the table. So there is another
/// statement as the table grows, with a number in a comment at its end, for which the server makes a plan of its own. If claims are slow
/// all the same, those that follow are planned anew, and if they are slow after that, too, there is another statement. Far from the
/// server all of them are slow, and planning is a small share of that.
#[derive(Default)]
pub(super) struct KeptPlan(Mutex<State>);

struct State {
    /// Which plan it is, and its statement if that has a number.
    number: u32,
    statement: Option<SqlStr>,
    claims: u64,
    /// How many claims there are before the next plan.
    next_after: u64,
    /// How many claims of this plan are still to come that say little.
    unprepared: u32,
    /// Whether it was made because the last one was slow, and was never quick.
    in_doubt: bool,
    slow_in_a_row: u32,
    quick_in_a_row: u32,
    /// When the last rest began, and until when claims are planned anew.
    rests: Option<(Instant, Instant)>,
    /// How long the last rest was, unless enough claims were quick since.
    last_rest: Option<Duration>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            number: 0,
            statement: None,
            claims: 0,
            next_after: FIRST_CLAIMS,
            unprepared: 0,
            in_doubt: false,
            slow_in_a_row: 0,
            quick_in_a_row: 0,
            rests: None,
            last_rest: None,
        }
    }
}

impl State {
    fn next_plan(&mut self) {
        self.number += 1;
        (self.statement, self.unprepared, self.slow_in_a_row) = (None, UNPREPARED, 0);
    }

    /// The statement of the plan to use now.
    fn statement(&mut self, sql: &SqlStr) -> SqlStr {
        if self.claims == self.next_after {
            self.next_after *= 2;
            self.next_plan();
        }
        self.claims += 1;
        if self.number == 0 {
            return sql.clone();
        }
        let number = self.number;
        let numbered = || {
            let numbered: Arc<str> = format!("{} /* plan {number} */", sql.as_str()).into();
            // It was safe without the number.
            AssertSqlSafe(numbered).into_sql_str()
        };
        self.statement.get_or_insert_with(numbered).clone()
    }

    fn rest(&mut self) {
        let rest = self.last_rest.map_or(REST, |last| (last * TIMES).min(LONGEST_REST));
        // A plan that was slow from its beginning is not bad because the table has grown.
        if self.last_rest.is_some() && !self.in_doubt {
            self.next_plan();
            self.in_doubt = true;
        }
        let now = Instant::now();
        (self.rests, self.last_rest, self.slow_in_a_row) = (Some((now, now + rest)), Some(rest), 0);
    }
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
        self.state().rests.is_none_or(|(_, until)| Instant::now() >= until)
    }

    /// A claim by that statement uses it from now on. One that fails, or is given up, counts as one that took no rows.
    pub(super) fn begin(&self, sql: &SqlStr) -> Serving<'_> {
        let mut state = self.state();
        let statement = state.statement(sql);
        let (number, unprepared) = (state.number, state.unprepared > 0);
        state.unprepared = state.unprepared.saturating_sub(1);
        Serving { plan: self, statement, number, unprepared, since: Instant::now(), rows: 0 }
    }
}

/// A claim that uses a kept plan.
pub(super) struct Serving<'a> {
    plan: &'a KeptPlan,
    /// What to say to the server.
    pub(super) statement: SqlStr,
    number: u32,
    unprepared: bool,
    since: Instant,
    pub(super) rows: usize,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut state = self.plan.state();
        // One that began before a rest says nothing of what was done about it.
        if self.number != state.number || state.rests.is_some_and(|(began, _)| self.since < began) {
            return;
        }
        let (took, quick) = (self.since.elapsed(), QUICK + QUICK_ROW * u32::try_from(self.rows).unwrap_or(u32::MAX));
        if took <= quick {
            (state.in_doubt, state.slow_in_a_row) = (false, 0);
            state.quick_in_a_row += 1;
            if state.quick_in_a_row >= QUICK_IN_A_ROW {
                (state.quick_in_a_row, state.last_rest) = (0, None);
            }
            return;
        }
        let by_far = took > quick * BY_FAR;
        if self.unprepared && !by_far {
            return;
        }
        state.quick_in_a_row = 0;
        state.slow_in_a_row += 1;
        if by_far || state.slow_in_a_row >= SLOW_IN_A_ROW {
            state.rest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(3);
    const SLOW_BY_FAR: Duration = Duration::from_millis(30);

    /// A claim that takes that long, and by which statement it is.
    async fn claim(plan: &KeptPlan, took: Duration, rows: usize) -> String {
        let mut serving = plan.begin(&"SELECT 1".into_sql_str());
        serving.rows = rows;
        tokio::time::sleep(took).await;
        serving.statement.as_str().to_owned()
    }

    async fn quick(plan: &KeptPlan) -> String {
        claim(plan, Duration::ZERO, 0).await
    }

    async fn slow(plan: &KeptPlan) -> String {
        claim(plan, SLOW, 0).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_is_given_up_counts_as_slow() {
        let plan = KeptPlan::default();
        let (serving, other) = (plan.begin(&"SELECT 1".into_sql_str()), plan.begin(&"SELECT 1".into_sql_str()));
        tokio::time::sleep(SLOW_BY_FAR).await;
        drop(serving);
        assert!(!plan.serves(1));
        tokio::time::sleep(REST).await;
        // One that began before the rest, and is over after it.
        drop(other);
        assert!(plan.serves(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_is_slow_twice_is_left_alone_for_a_while() {
        let plan = KeptPlan::default();
        assert!(plan.serves(FEW) && !plan.serves(FEW + 1));
        slow(&plan).await;
        quick(&plan).await;
        slow(&plan).await;
        assert!(plan.serves(1), "slow twice, but not in a row");
        slow(&plan).await;
        assert!(!plan.serves(1));
        tokio::time::sleep(REST).await;
        assert!(plan.serves(1));
        claim(&plan, SLOW_BY_FAR, 0).await;
        tokio::time::sleep(REST * (TIMES - 1)).await;
        assert!(!plan.serves(1), "once is enough if it is slow by far, and the second rest is longer");
        tokio::time::sleep(REST).await;
        assert!(plan.serves(1));
        for _ in 0..QUICK_IN_A_ROW {
            quick(&plan).await;
        }
        claim(&plan, SLOW_BY_FAR, 0).await;
        assert!(!plan.serves(1));
        tokio::time::sleep(REST).await;
        assert!(plan.serves(1), "the rest is the first one, since it was quick before");
    }

    #[tokio::test(start_paused = true)]
    async fn many_rows_may_take_longer() {
        let plan = KeptPlan::default();
        for _ in 0..SLOW_IN_A_ROW {
            claim(&plan, SLOW, 100).await;
        }
        assert!(plan.serves(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_is_made_again_as_the_table_grows() {
        let plan = KeptPlan::default();
        let mut statements = Vec::new();
        for _ in 0..8 * FIRST_CLAIMS {
            let statement = quick(&plan).await;
            if statements.last() != Some(&statement) {
                statements.push(statement);
            }
        }
        assert_eq!(statements[..2], ["SELECT 1", "SELECT 1 /* plan 1 */"]);
        assert_eq!(statements.len(), 4, "after 64, 128 and 256: {statements:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_is_slow_after_a_rest_is_left_behind() {
        let plan = KeptPlan::default();
        claim(&plan, SLOW_BY_FAR, 0).await;
        tokio::time::sleep(REST).await;
        assert_eq!(claim(&plan, SLOW_BY_FAR, 0).await, "SELECT 1", "it may have been chance");
        tokio::time::sleep(REST * TIMES).await;
        // Where it was another reason, another plan would not help either.
        assert_eq!(claim(&plan, SLOW_BY_FAR, 0).await, "SELECT 1 /* plan 1 */");
        tokio::time::sleep(REST * TIMES * TIMES).await;
        assert_eq!(claim(&plan, SLOW_BY_FAR, 0).await, "SELECT 1 /* plan 1 */");
    }

    /// Ten connections in turn, each of which has to prepare each statement.
    #[tokio::test(start_paused = true)]
    async fn to_prepare_a_statement_is_no_reason_for_another() {
        let plan = KeptPlan::default();
        let (mut last, mut uses, mut kept) = (String::new(), 0, 0);
        for _ in 0..10_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if !plan.serves(1) {
                continue;
            }
            kept += 1;
            let took = if uses < 10 { SLOW } else { Duration::ZERO };
            let statement = claim(&plan, took, 0).await;
            uses = if statement == last { uses + 1 } else { 1 };
            last = statement;
        }
        assert!(kept > 9_000, "{kept}");
    }
}
