//! What a table needs to have lanes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_core::store::Error;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use tokio::time::{Instant, sleep};

use super::super::PgStore;
use super::super::fault::MIGRATE;
use super::super::sql::DIALECT;
use super::super::sql::lanes as sql;
use super::hash::{PROBE, hashtextextended};
use crate::lanes::{expect_count, is_not_prepared, not_prepared};

/// How long to wait before asking again whether another process has built the index.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a moment without writers is looked for, in a table with partitions.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl PgStore {
    /// Prepares the table for lanes, by which an outbox delivers in order: three small tables beside it, and one more index on
    /// it. Does nothing when it is prepared. Several processes may do this at once; one builds, the others wait for it.
    ///
    /// The index has pending rows only. It is built while others write, and waits for transactions that are older than itself.
    /// In a table with partitions it is built for one after the other, and partitions to come have it from the beginning. What
    /// was interrupted half-way is completed by the next call, and an index that was left invalid is built again.
    ///
    /// It has to be the owner of the table who calls this. Whoever relays then needs SELECT, INSERT, UPDATE and DELETE on
    /// `outbox_event_lane`, `outbox_event_relay` and `outbox_event_key`.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::PgStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PgStore::connect("postgres://shop@localhost/shop").await?;
    /// store.migrate().await?;
    /// store.prepare_lanes().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table is missing; [`Error::Refused`] when this role does not own it; [`Error::Busy`] when a
    /// table with partitions is never without a writer for a moment.
    ///
    /// # Cancellation
    /// Safe: the next call goes on.
    pub async fn prepare_lanes(&self) -> Result<(), Error> {
        self.alone(async |connection| {
            self.is_partitioned(connection).await?.ok_or_else(|| self.no_table())?;
            let create = sqlx::raw_sql(DIALECT.statement(sql::CREATE_TABLES, self.table())).execute(connection);
            create.await.map(drop).map_err(|error| self.fault(error))
        })
        .await?;
        // Locks and settings end with it.
        let mut connection = self.own_connection().await?;
        self.say(&mut connection, sql::NO_TIMEOUTS.to_owned()).await?;
        while !self.lock_index(&mut connection).await? {
            sleep(PAUSE).await;
        }
        match self.is_partitioned(&mut connection).await? {
            Some(true) => self.build_in_partitions(&mut connection).await?,
            Some(false) => self.build(&mut connection).await?,
            None => return Err(self.no_table()),
        }
        connection.close().await.map_err(|error| self.fault(error))
    }

    /// The SQL of what is left of [`prepare_lanes`](Self::prepare_lanes), for whoever may do it; empty when the table is prepared.
    ///
    /// The index of a plain table is built while others write, so outside of transactions. That of a table with partitions keeps
    /// writers waiting until it is there for all of them.
    ///
    /// # Errors
    /// [`Error::Schema`] when there is another number of lanes than this release knows.
    pub async fn pending_lanes_sql(&self) -> Result<String, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        let (create, drop) = match self.is_partitioned(&mut connection).await? {
            Some(true) => (sql::CREATE_INDEX_OF_ALL_PARTITIONS, "DROP INDEX"),
            // Also of a table that is still to be made.
            Some(false) | None => (sql::CREATE_INDEX, "DROP INDEX CONCURRENTLY"),
        };
        let index = self.index(&mut connection).await?;
        std::mem::drop(connection);
        match self.expect_lanes().await {
            Ok(_) => return Ok(String::new()),
            Err(Error::Schema { reason, .. }) if is_not_prepared(&reason) => {}
            Err(error) => return Err(error),
        }
        let index = match index {
            Some((_, true)) => String::new(),
            Some((name, false)) => format!("{drop} {name};\n{create};\n"),
            None => format!("{create};\n"),
        };
        let template = format!("{}{};\n{}{index}", sql::ABOUT, sql::NO_TIMEOUTS, sql::CREATE_TABLES);
        Ok(DIALECT.fill(&template, self.table()))
    }

    /// How many lanes there are, if everything is there that belongs to them.
    pub(super) async fn expect_lanes(&self) -> Result<u16, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        match self.index(&mut connection).await? {
            None => return Err(not_prepared(self.table(), "an index is missing")),
            Some((_, false)) => return Err(not_prepared(self.table(), "an index is not complete")),
            Some((_, true)) => {}
        }
        let query = sqlx::query_as::<_, (i64, i64, bool)>(self.sql.lanes.count.clone()).bind(PROBE);
        match query.fetch_one(&mut *connection).await.map_err(|error| self.fault(error)) {
            Ok((count, hash, unicode)) => {
                let alike = unicode && hash == hashtextextended(PROBE);
                self.sql.lanes.hashes_alike.store(alike, Ordering::Relaxed);
                expect_count(self.table(), count, sql::LANES)
            }
            Err(Error::Schema { reason, .. }) => Err(not_prepared(self.table(), &reason)),
            Err(error) => Err(error),
        }
    }

    /// Builds the index of a plain table, if it is not there or not complete.
    async fn build(&self, connection: &mut PgConnection) -> Result<(), Error> {
        match self.index(connection).await? {
            Some((_, true)) => return Ok(()),
            Some((index, false)) => self.drop_index(connection, &index).await?,
            None => {}
        }
        self.say(connection, DIALECT.fill(sql::CREATE_INDEX, self.table())).await?;
        tracing::info!(table = %self.table(), "built the index of lanes");
        Ok(())
    }

    /// Builds it for each partition that has none, and makes it a part of the whole.
    async fn build_in_partitions(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let until = Instant::now() + LONGEST_WAIT;
        while self.index(connection).await?.is_none() {
            match self.say(connection, DIALECT.fill(sql::CREATE_INDEX_OF_PARTITIONS, self.table())).await {
                Err(Error::Busy(_)) if Instant::now() < until => sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await,
                created => created?,
            }
        }
        let query = DIALECT.statement(sql::PARTITION_WITHOUT, self.table());
        type Without = (String, Option<String>, Option<bool>);
        loop {
            let without = sqlx::query_as::<_, Without>(query.clone()).fetch_optional(&mut *connection).await;
            match without.map_err(|error| self.fault(error))? {
                None => return Ok(()),
                Some((_, Some(index), Some(true))) => {
                    let whole = self.index(connection).await?.ok_or_else(|| self.no_table())?.0;
                    self.say(connection, format!("ALTER INDEX {whole} ATTACH PARTITION {index}")).await?;
                }
                Some((_, Some(index), _)) => self.drop_index(connection, &index).await?,
                Some((partition, ..)) => {
                    self.say(connection, sql::CREATE_INDEX_OF_ONE.replace("{partition}", &partition)).await?;
                    tracing::info!(table = %self.table(), partition, "built the index of lanes");
                }
            }
        }
    }

    async fn drop_index(&self, connection: &mut PgConnection, index: &str) -> Result<(), Error> {
        tracing::warn!(table = %self.table(), index, "an index was not complete, and is built again");
        self.say(connection, format!("DROP INDEX CONCURRENTLY {index}")).await
    }

    /// The name of the index, and whether it is complete.
    async fn index(&self, connection: &mut PgConnection) -> Result<Option<(String, bool)>, Error> {
        let query = sqlx::query_as(DIALECT.statement(sql::INDEX, self.table()));
        query.fetch_optional(connection).await.map_err(|error| self.fault(error))
    }

    async fn lock_index(&self, connection: &mut PgConnection) -> Result<bool, Error> {
        sqlx::query_scalar(sql::TRY_LOCK).fetch_one(connection).await.map_err(|error| self.fault(error))
    }

    /// Carries out a statement about the schema, whose names the server has quoted.
    async fn say(&self, connection: &mut PgConnection, sql: String) -> Result<(), Error> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await;
        done.map(drop).map_err(|error| self.fault(error))
    }

    fn no_table(&self) -> Error {
        Error::Schema { table: self.table().to_string(), reason: format!("it does not exist; {MIGRATE}") }
    }
}
