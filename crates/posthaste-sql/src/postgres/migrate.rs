//! Creating and upgrading the table.

use posthaste_core::store::Error;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::PgStore;
use super::fault::MIGRATE;
use super::sql::{BEGIN, DIALECT, IS_PARTITIONED, LOCK_MIGRATION, MIGRATIONS, PARTITIONED_MIGRATIONS, WAKE_TRIGGER};
use crate::migrate::{Migration, pending, script};

impl PgStore {
    /// Creates the table, or upgrades it, in one transaction. Does nothing when it is up to date, for which it is enough to be
    /// allowed to read `posthaste_migration`. Several processes may do this at once. Makes the partitions that are missing, if the store is [`partitioned`](Self::partitioned).
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::PgStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PgStore::connect("postgres://shop@localhost/shop").await?;
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table was made by a newer release, or by somebody else, or when its schema is missing; or
    /// when it is a plain table and the store is `partitioned`. A store that is not works with a table in partitions, too.
    ///
    /// # Cancellation
    /// Safe: nothing has happened, or all of it.
    pub async fn migrate(&self) -> Result<(), Error> {
        if !self.is_up_to_date().await? {
            self.alone(async |connection| self.migrate_in(connection).await).await?;
        }
        let Some(partitioned) = &self.partitioned else { return Ok(()) };
        match self.make_partitions(partitioned).await {
            Err(Error::Busy(error)) => {
                // Everything works without them, and the outbox tries again.
                tracing::warn!(table = %self.table(), %error, "partitions not made ahead");
                Ok(())
            }
            made => made.map(drop),
        }
    }

    /// Whether nothing is left to do but for partitions. Most common, and often all that this user is allowed to see.
    async fn is_up_to_date(&self) -> Result<bool, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        let (migrations, applied) = self.known(&mut connection).await?;
        Ok(pending(migrations, applied, self.table())?.next().is_none())
    }

    /// The migrations of the table, and how many of them it has.
    async fn known(&self, connection: &mut PgConnection) -> Result<(&'static [Migration], i64), Error> {
        let applied = match self.applied(connection).await {
            // Nothing was ever migrated here.
            Err(Error::Schema { .. }) => 0,
            applied => applied?,
        };
        Ok((self.migrations(connection).await?, applied))
    }

    async fn migrate_in(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let (table, slots) = (self.table(), &self.sql.slots);
        let create_history = sqlx::raw_sql(slots.create_history.clone()).execute(&mut *connection);
        create_history.await.map_err(|error| self.fault(error))?;
        let migrations = self.migrations(connection).await?;
        let applied = self.applied(connection).await?;
        for (version, migration) in pending(migrations, applied, table)? {
            kill_point!("migrate.before");
            let sql = DIALECT.statement(migration.sql, table);
            sqlx::raw_sql(sql).execute(&mut *connection).await.map_err(|error| self.fault(error))?;
            kill_point!("migrate.after");
            let record =
                sqlx::query(slots.record_applied.clone()).bind(table.name()).bind(version).bind(migration.name);
            record.execute(&mut *connection).await.map_err(|error| self.fault(error))?;
            tracing::info!(%table, version, name = migration.name, "applied a migration");
        }
        match &self.partitioned {
            // Nobody can see the table yet, so no lock is waited for.
            Some(partitioned) if applied == 0 => self.make_first_partitions(connection, partitioned).await,
            _ => Ok(()),
        }
    }

    /// The migrations of the table that is there, or of the one that is to be.
    async fn migrations(&self, connection: &mut PgConnection) -> Result<&'static [Migration], Error> {
        match (self.is_partitioned(connection).await?, self.partitioned.is_some()) {
            (Some(false), true) => Err(self.not_partitioned()),
            (Some(true), _) | (None, true) => Ok(PARTITIONED_MIGRATIONS),
            (Some(false) | None, false) => Ok(MIGRATIONS),
        }
    }

    pub(super) async fn is_partitioned(&self, connection: &mut PgConnection) -> Result<Option<bool>, Error> {
        let query = sqlx::query_scalar(DIALECT.statement(IS_PARTITIONED, self.table()));
        query.fetch_one(connection).await.map_err(|error| self.fault(error))
    }

    /// Fails unless the table is in partitions.
    pub(super) async fn expect_partitions(&self) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        match self.is_partitioned(&mut connection).await? {
            Some(true) => Ok(()),
            Some(false) => Err(self.not_partitioned()),
            None => {
                Err(Error::Schema { table: self.table().to_string(), reason: format!("it does not exist; {MIGRATE}") })
            }
        }
    }

    fn not_partitioned(&self) -> Error {
        let reason =
            "it is a plain table, and this store was told that it has partitions; leave `partitioned` out, or \
                      rename the table, migrate, and copy its rows"
                .to_owned();
        Error::Schema { table: self.table().to_string(), reason }
    }

    /// The SQL of every migration, from an empty database on, without touching the database.
    pub fn migration_sql(&self) -> String {
        let migrations = if self.partitioned.is_some() { PARTITIONED_MIGRATIONS } else { MIGRATIONS };
        script(&DIALECT, self.table(), (1..).zip(migrations))
    }

    /// The SQL that [`migrate`](Self::migrate) would carry out now; empty when the table is up to date.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate) would.
    pub async fn pending_migration_sql(&self) -> Result<String, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        let (migrations, applied) = self.known(&mut connection).await?;
        Ok(script(&DIALECT, self.table(), pending(migrations, applied, self.table())?))
    }

    async fn applied(&self, connection: &mut PgConnection) -> Result<i64, Error> {
        let applied = sqlx::query_scalar(self.sql.slots.applied.clone()).bind(self.table().name());
        applied.fetch_one(connection).await.map_err(|error| self.fault(error))
    }

    /// The SQL of a trigger that wakes relays when programs in other languages insert rows. Not part of the migrations:
    /// its notice is sent inside of the writer's transaction, and many writers at once get slower by it. Without it
    /// their rows are found by polling.
    pub fn wake_trigger_sql(&self) -> String {
        DIALECT.fill(WAKE_TRIGGER, self.table())
    }

    /// Creates the trigger of [`wake_trigger_sql`](Self::wake_trigger_sql), or replaces it.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::PgStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PgStore::connect("postgres://shop@localhost/shop").await?;
    /// store.migrate().await?;
    /// store.create_wake_trigger().await?; // for writers in other languages
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table is missing.
    pub async fn create_wake_trigger(&self) -> Result<(), Error> {
        self.alone(async |connection| {
            let sql = DIALECT.statement(WAKE_TRIGGER, self.table());
            sqlx::raw_sql(sql).execute(connection).await.map(drop).map_err(|error| self.fault(error))
        })
        .await
    }

    /// Changes the schema in a transaction that no other of these runs beside.
    ///
    /// On a connection that does not go back to the pool: dropped half-way, it ends with its transaction.
    pub(super) async fn alone(
        &self,
        change: impl AsyncFnOnce(&mut PgConnection) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?.detach();
        let mut tx = connection.begin_with(BEGIN).await.map_err(|error| self.fault(error))?;
        sqlx::raw_sql(LOCK_MIGRATION).execute(&mut *tx).await.map_err(|error| self.fault(error))?;
        change(&mut tx).await?;
        tx.commit().await.map_err(|error| self.fault(error))?;
        connection.close().await.map_err(|error| self.fault(error))
    }
}
