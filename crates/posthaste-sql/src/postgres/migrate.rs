//! Creating and upgrading the table.

use posthaste_core::store::Error;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::PgStore;
use super::sql::{DIALECT, LOCK_MIGRATION, MIGRATIONS, WAKE_TRIGGER};
use crate::migrate::{pending, script};

impl PgStore {
    /// Creates the table, or upgrades it, in one transaction. Does nothing when it is up to date. Several processes may
    /// do this at once.
    ///
    /// # Errors
    /// [`Error::Schema`] when the table was made by a newer release, or by somebody else, or when its schema is missing.
    ///
    /// # Cancellation
    /// Safe: nothing has happened, or all of it.
    pub async fn migrate(&self) -> Result<(), Error> {
        self.alone(async |connection| self.migrate_in(connection).await).await
    }

    async fn migrate_in(&self, connection: &mut PgConnection) -> Result<(), Error> {
        let (table, slots) = (self.table(), &self.sql.slots);
        let create_history = sqlx::raw_sql(slots.create_history.clone()).execute(&mut *connection);
        create_history.await.map_err(|error| self.fault(error))?;
        let applied = self.applied(connection).await?;
        for (version, migration) in pending(MIGRATIONS, applied, table)? {
            kill_point!("migrate.before");
            let sql = DIALECT.statement(migration.sql, table);
            sqlx::raw_sql(sql).execute(&mut *connection).await.map_err(|error| self.fault(error))?;
            kill_point!("migrate.after");
            let record =
                sqlx::query(slots.record_applied.clone()).bind(table.name()).bind(version).bind(migration.name);
            record.execute(&mut *connection).await.map_err(|error| self.fault(error))?;
            tracing::info!(%table, version, name = migration.name, "applied a migration");
        }
        Ok(())
    }

    /// The SQL of every migration, from an empty database on, without touching the database.
    pub fn migration_sql(&self) -> String {
        script(&DIALECT, self.table(), (1..).zip(MIGRATIONS))
    }

    /// The SQL that [`migrate`](Self::migrate) would carry out now; empty when the table is up to date.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate) would.
    pub async fn pending_migration_sql(&self) -> Result<String, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        let applied = match self.applied(&mut connection).await {
            // Nothing was ever migrated here.
            Err(Error::Schema { .. }) => 0,
            applied => applied?,
        };
        Ok(script(&DIALECT, self.table(), pending(MIGRATIONS, applied, self.table())?))
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
    async fn alone(&self, change: impl AsyncFnOnce(&mut PgConnection) -> Result<(), Error>) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?.detach();
        let mut tx = connection.begin().await.map_err(|error| self.fault(error))?;
        sqlx::raw_sql(LOCK_MIGRATION).execute(&mut *tx).await.map_err(|error| self.fault(error))?;
        change(&mut tx).await?;
        tx.commit().await.map_err(|error| self.fault(error))?;
        connection.close().await.map_err(|error| self.fault(error))
    }
}
