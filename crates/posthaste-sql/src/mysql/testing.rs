//! Time that passes when a test says so.

use std::time::Duration;

use posthaste_core::store::BoxFuture;
use posthaste_core::testing::PassTime;
use sqlx::AssertSqlSafe;

use super::MySqlStore;
use super::sql::DIALECT;
use super::sql::lanes::AGE;

/// The columns that hold moments of the server's clock.
const MOMENTS: [&str; 4] = ["available_at", "created_at", "locked_at", "done_at"];

/// Every row grows older; the clock of the server stays as it is.
impl PassTime for MySqlStore {
    fn pass_time(&self, length: Duration) -> BoxFuture<'_, ()> {
        let earlier = MOMENTS.map(|column| format!("{column} = TIMESTAMPADD(MICROSECOND, -?, {column})")).join(", ");
        let sql = format!("UPDATE {} SET {earlier}", self.table());
        let micros = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        Box::pin(async move {
            let query = MOMENTS.iter().fold(sqlx::query(AssertSqlSafe(sql)), |query, _| query.bind(micros));
            if let Err(error) = query.execute(self.pool()).await {
                panic!("no time could pass: {:?}", self.fault(error));
            }
            if let Err(error) = self.age_lanes(micros).await {
                panic!("no time could pass for lanes: {:?}", self.fault(error));
            }
        })
    }
}

impl MySqlStore {
    /// Leases of lanes run out sooner, if there are any.
    async fn age_lanes(&self, micros: i64) -> Result<(), sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        if self.has_keys(&mut connection).await? {
            for template in AGE {
                let query = sqlx::query(DIALECT.statement(template, self.table())).bind(micros);
                query.execute(&mut *connection).await?;
            }
        }
        Ok(())
    }
}
