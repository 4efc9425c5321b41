//! Time that passes when a test says so.

use std::time::Duration;

use posthaste_core::store::BoxFuture;
use posthaste_core::testing::PassTime;
use sqlx::AssertSqlSafe;
use sqlx::postgres::types::PgInterval;

use super::PgStore;

/// Every row grows older; the clock of the server stays as it is.
impl PassTime for PgStore {
    fn pass_time(&self, length: Duration) -> BoxFuture<'_, ()> {
        let sql = format!(
            "UPDATE {} SET available_at = available_at - $1, created_at = created_at - $1, locked_at = locked_at - $1, \
             done_at = done_at - $1",
            self.table()
        );
        let microseconds = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        let length = PgInterval { microseconds, ..PgInterval::default() };
        Box::pin(async move {
            if let Err(error) = sqlx::query(AssertSqlSafe(sql)).bind(length).execute(self.pool()).await {
                panic!("no time could pass: {:?}", self.fault(error));
            }
            // Rows are now where none were.
            self.low_water.forget();
        })
    }
}
