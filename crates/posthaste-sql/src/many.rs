//! Statements about many rows, in databases that are told each of them.

use std::borrow::Cow;
use std::sync::{Mutex, OnceLock, PoisonError};

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// The most rows of one statement. With the 15 values of an insert it is far below the 65,535 that the protocol of MySQL
/// allows, and the 32,766 of SQLite.
pub(crate) const MOST: usize = 512;

/// The most rows of a statement that is no power of two. Each size that came twice stays prepared, beside statements of others.
const MOST_EXACTLY: usize = 128;

/// One for each power of two up to [`MOST`].
const SIZES: usize = MOST.trailing_zeros() as usize + 1;

/// A statement that names its rows one by one. It is made for powers of two, so that each stays prepared, and for one other
/// number of rows, which came twice in a row.
pub(crate) struct Many {
    before: String,
    /// What stands in place of the first row, if it is another.
    first: Option<String>,
    row: Cow<'static, str>,
    between: &'static str,
    after: String,
    made: [OnceLock<SqlStr>; SIZES],
    last: Mutex<(usize, Option<SqlStr>)>,
}

impl Many {
    /// The statement with `{rows}` in it replaced by rows.
    pub(crate) fn new(statement: &str, row: impl Into<Cow<'static, str>>, between: &'static str) -> Self {
        let (before, after) = statement.split_once("{rows}").expect("the statement says where its rows are");
        let (before, after) = (before.to_owned(), after.to_owned());
        let made = [const { OnceLock::new() }; SIZES];
        Self { before, first: None, row: row.into(), between, after, made, last: Mutex::default() }
    }

    /// The same statement with another first row.
    #[cfg(feature = "mysql")]
    pub(crate) fn beginning_with(mut self, first: String) -> Self {
        self.first = Some(first);
        self
    }

    /// The largest statement for no more than that many rows, and its number of rows.
    pub(crate) fn at_most(&self, rows: usize) -> (SqlStr, usize) {
        self.power_of_two(rows.clamp(1, MOST).ilog2() as usize)
    }

    /// The smallest statement for at least that many rows, and its number of rows. The rest is to be filled up.
    #[cfg(feature = "mysql")]
    pub(crate) fn at_least(&self, rows: usize) -> (SqlStr, usize) {
        self.power_of_two(rows.clamp(1, MOST).next_power_of_two().ilog2() as usize)
    }

    /// The statement for just that many rows, if there is one: of a power of two, or of as many as the last time that this
    /// was asked. Whoever writes in batches of one size has it prepared after the second; who never writes as many again
    /// would have it prepared for nothing.
    pub(crate) fn exactly(&self, rows: usize) -> Option<SqlStr> {
        if rows == 0 || rows > MOST {
            return None;
        }
        if rows.is_power_of_two() {
            return Some(self.at_most(rows).0);
        }
        if rows > MOST_EXACTLY {
            return None;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != rows {
            *last = (rows, None);
            return None;
        }
        Some(last.1.get_or_insert_with(|| self.make(rows)).clone())
    }

    fn power_of_two(&self, size: usize) -> (SqlStr, usize) {
        let rows = 1 << size;
        (self.made[size].get_or_init(|| self.make(rows)).clone(), rows)
    }

    fn make(&self, rows: usize) -> SqlStr {
        let mut rows = vec![&*self.row; rows];
        if let Some(first) = &self.first {
            rows[0] = first;
        }
        let rows = rows.join(self.between);
        // Made of statements that are safe already, and of constants.
        let sql: std::sync::Arc<str> = format!("{}{rows}{}", self.before, self.after).into();
        AssertSqlSafe(sql).into_sql_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many() -> Many {
        Many::new("DELETE FROM t WHERE seq IN ({rows})", "?", ", ")
    }

    #[test]
    fn statements_are_powers_of_two() {
        let (sql, rows) = many().at_most(3);
        assert_eq!((sql.as_str(), rows), ("DELETE FROM t WHERE seq IN (?, ?)", 2));
        let sizes = [1, 2, 3, 511, 512, 9999];
        assert_eq!(sizes.map(|rows| many().at_most(rows).1), [1, 2, 2, 256, 512, 512]);
        #[cfg(feature = "mysql")]
        assert_eq!(sizes.map(|rows| many().at_least(rows).1), [1, 2, 4, 512, 512, 512]);
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn the_first_row_can_be_another() {
        let many = many().beginning_with("1 + ?".to_owned());
        let sql = |rows| many.at_most(rows).0.as_str().to_owned();
        assert_eq!(sql(1), "DELETE FROM t WHERE seq IN (1 + ?)");
        assert_eq!(sql(2), "DELETE FROM t WHERE seq IN (1 + ?, ?)");
    }

    #[test]
    fn a_size_that_comes_again_has_a_statement_of_its_own() {
        let many = many();
        let exactly = |rows| many.exactly(rows).map(|sql| sql.as_str().matches('?').count());
        assert_eq!([3, 3, 3].map(exactly), [None, Some(3), Some(3)]);
        assert_eq!([100, 3, 100, 100].map(exactly), [None, None, None, Some(100)]);
        // Those that are there in any case do not come between, and none is too large.
        assert_eq!([64, 100, 512, 100].map(exactly), [Some(64), Some(100), Some(512), Some(100)]);
        assert_eq!([0, 513, 513, 129, 129].map(exactly), [None; 5]);
    }
}
