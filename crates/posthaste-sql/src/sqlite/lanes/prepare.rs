//! What a table needs to have lanes.

use posthaste_core::store::Error;

use super::super::SqliteStore;
use super::super::gate::Patience;
use super::super::sql::DIALECT;
use super::super::sql::lanes as sql;
use super::super::tx::begin_immediate;
use crate::lanes::{expect_count, is_not_prepared, not_prepared};

impl SqliteStore {
    /// Prepares the table for lanes, by which an outbox delivers in order: three small tables beside it, and one more index on
    /// what is pending, in one transaction. Does nothing when it is prepared. Several processes may do this at once.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::SqliteStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::connect("sqlite::memory:").await?;
    /// store.migrate().await?;
    /// store.prepare_lanes().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table is missing.
    pub async fn prepare_lanes(&self) -> Result<(), Error> {
        let _turn = self.gate.enter().await?;
        let mut patience = Patience::new();
        let mut tx = loop {
            match begin_immediate(&self.pool).await {
                Ok(tx) => break tx,
                Err(error) => patience.after(error, self.table()).await?,
            }
        };
        let prepare = sqlx::raw_sql(DIALECT.statement(sql::PREPARE, self.table())).execute(&mut *tx);
        prepare.await.map_err(|error| self.fault(error))?;
        tx.commit().await.map_err(|error| self.fault(error))
    }

    /// The SQL of what is left of [`prepare_lanes`](Self::prepare_lanes); empty when the table is prepared.
    ///
    /// # Errors
    /// [`Error::Schema`] when there is another number of lanes than this release knows.
    pub async fn pending_lanes_sql(&self) -> Result<String, Error> {
        match self.expect_lanes().await {
            Ok(_) => Ok(String::new()),
            Err(Error::Schema { reason, .. }) if is_not_prepared(&reason) => {
                Ok(DIALECT.fill(sql::PREPARE, self.table()))
            }
            Err(error) => Err(error),
        }
    }

    /// How many lanes there are, if everything is there that belongs to them.
    pub(super) async fn expect_lanes(&self) -> Result<u16, Error> {
        let statement = |template| DIALECT.statement(template, self.table());
        let index: i64 =
            sqlx::query_scalar(statement(sql::INDEX)).fetch_one(&self.pool).await.map_err(|error| self.fault(error))?;
        if index == 0 {
            return Err(not_prepared(self.table(), "an index is missing"));
        }
        match sqlx::query_scalar(statement(sql::COUNT)).fetch_one(&self.pool).await.map_err(|error| self.fault(error)) {
            Ok(count) => expect_count(self.table(), count, sql::LANES),
            Err(Error::Schema { reason, .. }) => Err(not_prepared(self.table(), &reason)),
            Err(error) => Err(error),
        }
    }
}
