//! Statements about many rows.

use std::sync::OnceLock;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::sql::DIALECT;
use crate::table::TableName;

/// The most rows of one statement. With the 15 values of an insert it is far below the 65,535 that the protocol allows.
pub(super) const MOST: usize = 512;

/// One for each power of two up to [`MOST`].
const SIZES: usize = MOST.trailing_zeros() as usize + 1;

/// A statement that names its rows one by one. It is made for powers of two only, so that each stays prepared.
pub(super) struct Many {
    before: String,
    row: &'static str,
    between: &'static str,
    after: String,
    made: [OnceLock<SqlStr>; SIZES],
}

impl Many {
    /// The statement with `{rows}` in its template replaced by rows.
    pub(super) fn new(template: &str, row: &'static str, between: &'static str, table: &TableName) -> Self {
        let filled = DIALECT.fill(template, table);
        let (before, after) = filled.split_once("{rows}").expect("the template says where its rows are");
        let (before, after) = (before.to_owned(), after.to_owned());
        Self { before, row, between, after, made: [const { OnceLock::new() }; SIZES] }
    }

    /// The largest statement for no more than that many rows, and its number of rows.
    pub(super) fn at_most(&self, rows: usize) -> (SqlStr, usize) {
        self.made(rows.clamp(1, MOST).ilog2() as usize)
    }

    /// The smallest statement for at least that many rows, and its number of rows. The rest is to be filled up.
    pub(super) fn at_least(&self, rows: usize) -> (SqlStr, usize) {
        self.made(rows.clamp(1, MOST).next_power_of_two().ilog2() as usize)
    }

    fn made(&self, size: usize) -> (SqlStr, usize) {
        let rows = 1 << size;
        let sql = self.made[size].get_or_init(|| {
            let rows = vec![self.row; rows].join(self.between);
            // Made of constants and of the name of the table, which was checked.
            let sql: std::sync::Arc<str> = format!("{}{rows}{}", self.before, self.after).into();
            AssertSqlSafe(sql).into_sql_str()
        });
        (sql.clone(), rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_powers_of_two() {
        let many = Many::new("DELETE FROM {table} WHERE seq IN ({rows})", "?", ", ", &TableName::default());
        let (sql, rows) = many.at_least(3);
        assert_eq!((sql.as_str(), rows), ("DELETE FROM `outbox_event` WHERE seq IN (?, ?, ?, ?)", 4));
        let sizes = [1, 2, 3, 511, 512, 9999];
        assert_eq!(sizes.map(|rows| many.at_most(rows).1), [1, 2, 2, 256, 512, 512]);
        assert_eq!(sizes.map(|rows| many.at_least(rows).1), [1, 2, 4, 512, 512, 512]);
    }
}
