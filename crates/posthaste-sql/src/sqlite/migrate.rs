//! Creating and upgrading the table.

use posthaste_core::store::Error;
use sqlx::sqlite::SqliteConnection;

use super::SqliteStore;
use super::gate::Patience;
use super::sql::{DIALECT, MIGRATIONS};
use super::tx::begin_immediate;
use crate::migrate::{pending, script};

impl SqliteStore {
    /// Creates the table, or upgrades it, in one transaction. Only reads when it is up to date. Several processes may
    /// do this at once.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::SqliteStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::connect("sqlite::memory:").await?;
    /// store.migrate().await?;
    /// store.migrate().await?; // nothing is left to do
    /// assert!(store.pending_migration_sql().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table was made by a newer release, or by somebody else.
    pub async fn migrate(&self) -> Result<(), Error> {
        // Up to date is most common, and then nobody has to wait, nor be allowed to write.
        match self.known().await {
            Ok(applied) if pending(MIGRATIONS, applied, self.table())?.next().is_none() => return Ok(()),
            // Somebody may be migrating just now, who is waited for below.
            Ok(_) | Err(Error::Busy(_)) => {}
            Err(error) => return Err(error),
        }
        let _turn = self.gate.enter().await?;
        let mut patience = Patience::new();
        let mut tx = loop {
            match begin_immediate(&self.pool).await {
                Ok(tx) => break tx,
                Err(error) => patience.after(error, self.table()).await?,
            }
        };
        self.migrate_in(&mut tx).await?;
        tx.commit().await.map_err(|error| self.fault(error))
    }

    async fn migrate_in(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        let (table, slots) = (self.table(), &self.sql.slots);
        let create_history = sqlx::query(slots.create_history.clone()).execute(&mut *connection);
        create_history.await.map_err(|error| self.fault(error))?;
        let applied = self.applied(connection).await?;
        for (version, migration) in pending(MIGRATIONS, applied, table)? {
            kill_point!("migrate.before");
            let sql = DIALECT.statement(migration.sql, table);
            sqlx::raw_sql(sql).execute(&mut *connection).await.map_err(|error| self.fault(error))?;
            kill_point!("migrate.after");
            let record = sqlx::query(slots.record_applied.clone())
                .bind(table.name())
                .bind(version)
                .bind(migration.name)
                .bind(self.now().as_micros());
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
        Ok(script(&DIALECT, self.table(), pending(MIGRATIONS, self.known().await?, self.table())?))
    }

    /// The version of the table: none if nothing was ever migrated here.
    async fn known(&self) -> Result<i64, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        match self.applied(&mut connection).await {
            Err(Error::Schema { .. }) => Ok(0),
            applied => applied,
        }
    }

    async fn applied(&self, connection: &mut SqliteConnection) -> Result<i64, Error> {
        let applied = sqlx::query_scalar(self.sql.slots.applied.clone()).bind(self.table().name());
        applied.fetch_one(connection).await.map_err(|error| self.fault(error))
    }
}
