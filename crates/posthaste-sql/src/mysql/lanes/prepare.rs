//! What a table needs to have lanes.

use posthaste_core::store::Error;
use sqlx::mysql::MySqlConnection;

use super::super::MySqlStore;
use super::super::sql::lanes as sql;
use super::super::sql::{DIALECT, UNLOCK_MIGRATION};
use crate::finish::finish;
use crate::lanes::{expect_count, not_prepared};

impl MySqlStore {
    /// Prepares the table for lanes, by which an outbox delivers in order: three small tables beside it, and a virtual column and
    /// an index on it. Does nothing when it is prepared. Several processes may do this at once.
    ///
    /// The column is there in a moment, and the index is built while others write. What was interrupted half-way is completed by
    /// the next call.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::MySqlStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MySqlStore::connect("mysql://shop@localhost/shop").await?;
    /// store.migrate().await?;
    /// store.prepare_lanes().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table is missing; [`Error::Busy`] when another process has been changing it for more than a
    /// minute.
    pub async fn prepare_lanes(&self) -> Result<(), Error> {
        let store = self.clone();
        finish(&self.tasks, async move { store.prepare_lanes_to_the_end().await }).await
    }

    /// The SQL of what is left of [`prepare_lanes`](Self::prepare_lanes), for whoever may do it; empty when the table is prepared.
    ///
    /// # Errors
    /// [`Error::Schema`] when there is another number of lanes than this release knows.
    pub async fn pending_lanes_sql(&self) -> Result<String, Error> {
        let mut parts = Vec::new();
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        for (has, add) in [(sql::HAS_COLUMN, sql::ADD_COLUMN), (sql::HAS_INDEX, sql::ADD_INDEX)] {
            if !self.has(&mut connection, has).await? {
                parts.push(add);
            }
        }
        match self.lanes_there(&mut connection).await {
            Ok(0) | Err(Error::Schema { .. }) => parts.extend([sql::CREATE_TABLES, sql::FILL_LANES]),
            Ok(count) => drop(expect_count(self.table(), count, sql::LANES)?),
            Err(error) => return Err(error),
        }
        let statements = parts.iter().map(|part| DIALECT.fill(part, self.table()));
        Ok(statements.map(|statement| format!("{};\n", statement.trim_end().trim_end_matches(';'))).collect())
    }

    async fn prepare_lanes_to_the_end(&self) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        self.lock(&mut connection).await?;
        let prepared = self.prepare_lanes_in(&mut connection).await;
        let unlock = sqlx::query(UNLOCK_MIGRATION).bind(self.table().schema()).bind(self.table().name());
        if unlock.execute(&mut *connection).await.is_err() {
            // The lock ends with the connection.
            connection.close_on_drop();
        }
        prepared
    }

    async fn prepare_lanes_in(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        // First what is refused where there is no table.
        for (has, add) in [(sql::HAS_COLUMN, sql::ADD_COLUMN), (sql::HAS_INDEX, sql::ADD_INDEX)] {
            if !self.has(connection, has).await? {
                self.say(connection, add).await?;
            }
        }
        self.say(connection, sql::CREATE_TABLES).await?;
        if self.lanes_there(connection).await? == 0 {
            self.say(connection, sql::FILL_LANES).await?;
        }
        Ok(())
    }

    /// How many lanes there are, if everything is there that belongs to them.
    pub(super) async fn expect_lanes(&self) -> Result<u16, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        if !self.has(&mut connection, sql::HAS_INDEX).await? {
            return Err(not_prepared(self.table(), "an index is missing"));
        }
        match self.lanes_there(&mut connection).await {
            Ok(count) => expect_count(self.table(), count, sql::LANES),
            Err(Error::Schema { reason, .. }) => Err(not_prepared(self.table(), &reason)),
            Err(error) => Err(error),
        }
    }

    async fn lanes_there(&self, connection: &mut MySqlConnection) -> Result<i64, Error> {
        let query = sqlx::query_scalar(DIALECT.statement(sql::COUNT, self.table()));
        query.fetch_one(connection).await.map_err(|error| self.fault(error))
    }

    /// Whether something is there, of which a query counts.
    pub(super) async fn has(&self, connection: &mut MySqlConnection, what: &'static str) -> Result<bool, Error> {
        let (schema, name) = (self.table().schema(), self.table().name());
        let query = sqlx::query_scalar::<_, i64>(what).bind(schema).bind(name);
        let query = if what.matches('?').count() > 2 { query.bind(name) } else { query };
        Ok(query.fetch_one(connection).await.map_err(|error| self.fault(error))? > 0)
    }

    /// Carries out statements about the schema.
    async fn say(&self, connection: &mut MySqlConnection, template: &str) -> Result<(), Error> {
        let said = sqlx::raw_sql(DIALECT.statement(template, self.table())).execute(connection).await;
        said.map(drop).map_err(|error| self.fault(error))
    }
}
