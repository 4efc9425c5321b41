//! Whether a statement may keep its plan, instead of being planned anew.

use std::sync::{Mutex, MutexGuard, PoisonError};
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
/// If they are slow after it, too, the next is that many times as long, up to the longest; meanwhile the server analyses the table,
/// and forgets the plan that it kept.
const REST: Duration = Duration::from_millis(100);
const TIMES: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// After how many claims the first plan is made again, and then each time that there were twice as many: a table grows with what is
/// claimed from it.
const FIRST_CLAIMS: u64 = 64;

/// Whether the plan that the server keeps for claims of few rows, or for reads of lanes, is a good one, as far as can be told from
/// how long they take.
///
/// Planning takes longer than the rest of such a claim, and a good part of such a read, so a kept plan is worth something. One that was
/// made while the table was small walks the whole of it once it is large, until somebody analyses the table. So the statement is
/// given another name as the table grows, by a comment at its end, for which the server makes a plan of its own. If claims are slow
/// all the same, those that follow are planned anew, and if they are slow after that, too, the statement gets another name again. Far
/// from the server all of them are slow, and planning is a small share of that.
#[derive(Default)]
pub(super) struct KeptPlan(Mutex<State>);

#[derive(Default)]
struct State {
    pace: Pace,
    claims: u64,
    /// How many plans were left behind because they were slow after a rest, too.
    left: u32,
    /// The statement of the plan of that number.
    named: Option<(u32, SqlStr)>,
}

impl State {
    /// The statement of the plan to use now. The plans of the first have no number, those of others one of their own.
    fn statement(&mut self, sql: &SqlStr) -> SqlStr {
        self.claims += 1;
        let number = self.left + (self.claims / FIRST_CLAIMS).checked_ilog2().map_or(0, |doubled| doubled + 1);
        match &self.named {
            _ if number == 0 => sql.clone(),
            Some((named, statement)) if *named == number => statement.clone(),
            _ => {
                // A number is added to a statement that is safe.
                let statement: std::sync::Arc<str> = format!("{} /* plan {number} */", sql.as_str()).into();
                let statement = AssertSqlSafe(statement).into_sql_str();
                self.named = Some((number, statement.clone()));
                statement
            }
        }
    }
}

/// How the last claims were.
#[derive(Default)]
struct Pace {
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
        self.state().pace.anew_until.is_none_or(|until| Instant::now() >= until)
    }

    /// A claim by that statement uses it from now on. One that fails, or is given up, counts as one that took no rows.
    pub(super) fn begin(&self, sql: &SqlStr) -> Serving<'_> {
        let statement = self.state().statement(sql);
        Serving { plan: self, statement, since: Instant::now(), rows: 0 }
    }

    /// A claim that used it took that long and that many rows.
    fn served(&self, took: Duration, rows: usize) {
        let mut state = self.state();
        let pace = &mut state.pace;
        let quick = QUICK + QUICK_ROW * u32::try_from(rows).unwrap_or(u32::MAX);
        if took <= quick {
            // One that began before a rest says nothing of why it was begun.
            if pace.anew_until.is_none_or(|until| Instant::now() >= until) {
                *pace = Pace::default();
            }
            return;
        }
        pace.slow_in_a_row += 1;
        if pace.slow_in_a_row >= SLOW_IN_A_ROW || took > quick * BY_FAR {
            let rest = pace.last_rest.map_or(REST, |last| (last * TIMES).min(LONGEST_REST));
            let again = pace.last_rest.is_some();
            *pace = Pace { slow_in_a_row: 0, anew_until: Some(Instant::now() + rest), last_rest: Some(rest) };
            state.left += u32::from(again);
        }
    }
}

/// A claim that uses a kept plan.
pub(super) struct Serving<'a> {
    plan: &'a KeptPlan,
    /// What to say to the server.
    pub(super) statement: SqlStr,
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
        let serving = plan.begin(&sql());
        tokio::time::sleep(SLOW * BY_FAR).await;
        drop(serving);
        assert!(!plan.serves(1));
        // Another one, which was quick, had begun before.
        plan.served(QUICK, 0);
        assert!(!plan.serves(1));
    }

    const SLOW: Duration = Duration::from_millis(3);

    fn sql() -> SqlStr {
        "SELECT 1".into_sql_str()
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_is_made_again_as_the_table_grows() {
        let plan = KeptPlan::default();
        let mut named = Vec::new();
        for _ in 0..8 * FIRST_CLAIMS {
            let statement = plan.begin(&sql()).statement.as_str().to_owned();
            if named.last() != Some(&statement) {
                named.push(statement);
            }
        }
        assert_eq!(named[..2], ["SELECT 1", "SELECT 1 /* plan 1 */"]);
        assert_eq!(named.len(), 5, "after 64, 128, 256, and 512: {named:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_plan_that_is_slow_after_a_rest_is_left_behind() {
        let plan = KeptPlan::default();
        let statement = || plan.begin(&sql()).statement.as_str().to_owned();
        plan.served(SLOW * BY_FAR, 0);
        assert_eq!(statement(), "SELECT 1", "it may have been chance");
        tokio::time::sleep(REST).await;
        plan.served(SLOW * BY_FAR, 0);
        assert_eq!(statement(), "SELECT 1 /* plan 1 */");
    }

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
        tokio::time::sleep(REST * (TIMES - 1)).await;
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
