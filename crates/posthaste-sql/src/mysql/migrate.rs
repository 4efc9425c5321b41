//! Creating and upgrading the table.

use posthaste_core::store::Error;
use sqlx::mysql::MySqlConnection;

use super::sql::{DIALECT, LOCK_MIGRATION, MIGRATIONS, UNLOCK_MIGRATION};
use super::{MySqlStore, fault};
use crate::finish::finish;
use crate::migrate::{pending, script};

/// Seconds to wait for another process that migrates.
const LOCK_TIMEOUT: i64 = 60;

impl MySqlStore {
    /// Creates the table, or upgrades it. Does nothing when it is up to date. Several processes may do this at once.
    ///
    /// The servers cannot undo a change of a table. What was interrupted half-way is completed by the next call.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::MySqlStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MySqlStore::connect("mysql://shop@localhost/shop").await?;
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table was made by a newer release, or by somebody else; [`Error::Busy`] when another
    /// process has been migrating it for more than a minute.
    pub async fn migrate(&self) -> Result<(), Error> {
        let store = self.clone();
        finish(&self.tasks, async move { store.migrate_to_the_end().await }).await
    }

    async fn migrate_to_the_end(&self) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        // Up to date is most common, and may be all that this user is allowed to see.
        let applied = self.applied(&mut connection).await?;
        if pending(MIGRATIONS, applied, self.table())?.next().is_none() {
            return Ok(());
        }
        self.lock(&mut connection).await?;
        let migrated = self.migrate_in(&mut connection).await;
        let unlock = sqlx::query(UNLOCK_MIGRATION).bind(self.table().schema()).bind(self.table().name());
        if unlock.execute(&mut *connection).await.is_err() {
            // The lock ends with the connection.
            connection.close_on_drop();
        }
        migrated
    }

    pub(super) async fn lock(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        let lock = sqlx::query_scalar::<_, Option<i64>>(LOCK_MIGRATION)
            .bind(self.table().schema())
            .bind(self.table().name())
            .bind(LOCK_TIMEOUT);
        match lock.fetch_one(connection).await {
            Ok(Some(1)) => Ok(()),
            Ok(_) => Err(Error::Busy(format!("another process is still migrating {}", self.table()).into())),
            Err(error) => Err(self.fault(error)),
        }
    }

    async fn migrate_in(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        let (table, slots) = (self.table(), &self.sql.slots);
        let create_history = sqlx::raw_sql(slots.create_history.clone()).execute(&mut *connection);
        create_history.await.map_err(|error| self.fault(error))?;
        let applied = self.applied(connection).await?;
        for (version, migration) in pending(MIGRATIONS, applied, table)? {
            kill_point!("migrate.before");
            let sql = DIALECT.statement(migration.sql, table);
            sqlx::raw_sql(sql).execute(&mut *connection).await.map_err(|error| self.fault(error))?;
            kill_point!("migrate.after");
            self.probe(connection).await?;
            let record =
                sqlx::query(slots.record_applied.clone()).bind(table.name()).bind(version).bind(migration.name);
            record.execute(&mut *connection).await.map_err(|error| self.fault(error))?;
            tracing::info!(%table, version, name = migration.name, "applied a migration");
        }
        Ok(())
    }

    /// Fails unless the table is ours. A migration leaves alone what is there already, so that it can be repeated; what
    /// it finds may be somebody else's.
    async fn probe(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        match sqlx::raw_sql(self.sql.probe.clone()).execute(connection).await {
            Ok(_) => Ok(()),
            Err(error) if fault::is_missing(&error) => Err(Error::Schema {
                table: self.table().to_string(),
                reason: format!(
                    "it already exists, and these migrations did not make it ({}), so rename it or choose another \
                     name for the table",
                    error.as_database_error().map_or("", |error| error.message())
                ),
            }),
            Err(error) => Err(self.fault(error)),
        }
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
        let store = self.clone();
        let applied = finish(&self.tasks, async move {
            let mut connection = store.pool.acquire().await.map_err(|error| store.fault(error))?;
            store.applied(&mut connection).await
        });
        Ok(script(&DIALECT, self.table(), pending(MIGRATIONS, applied.await?, self.table())?))
    }

    /// The version of the table: none if nothing was ever migrated here.
    async fn applied(&self, connection: &mut MySqlConnection) -> Result<i64, Error> {
        let applied = sqlx::query_scalar(self.sql.slots.applied.clone()).bind(self.table().name());
        match applied.fetch_one(connection).await {
            Err(error) if fault::is_missing(&error) => Ok(0),
            applied => applied.map_err(|error| self.fault(error)),
        }
    }
}
