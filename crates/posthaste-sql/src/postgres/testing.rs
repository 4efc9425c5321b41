//! Time that passes when a test says so.

use std::time::Duration;

use posthaste_core::store::{BoxFuture, Error};
use posthaste_core::testing::PassTime;
use sqlx::AssertSqlSafe;
use sqlx::postgres::types::PgInterval;

use super::PgStore;
use super::sql::{DIALECT, lanes as sql};

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
            if let Err(error) = self.age_lanes(length).await {
                panic!("no time could pass for lanes: {error:?}");
            }
            // Rows are now where none were.
            self.low_water.forget();
        })
    }
}

impl PgStore {
    /// Leases of lanes run out sooner, if there are any.
    async fn age_lanes(&self, length: PgInterval) -> Result<(), Error> {
        if !self.has_keys().await? {
            return Ok(());
        }
        for template in sql::AGE {
            let query = sqlx::query(DIALECT.statement(template, self.table())).bind(length);
            query.execute(self.pool()).await.map_err(|error| self.fault(error))?;
        }
        Ok(())
    }
}
