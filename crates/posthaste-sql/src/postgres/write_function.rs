//! The function by which programs in other languages, and triggers, write events.

use posthaste_core::store::Error;
use sqlx::{AssertSqlSafe, SqlSafeStr};

use super::PgStore;
use super::fault::MIGRATE;
use super::sql::{DIALECT, WRITE_FUNCTION};

impl PgStore {
    /// The SQL of a function that writes an event: `posthaste_write(event_type, payload, …)`, or `NAME_write` if the table is called
    /// NAME instead of `outbox_event`, in the schema of the table. It checks what the library checks, and returns the id.
    ///
    /// Not part of the migrations: whoever writes by the library needs none, and not everybody may create functions.
    pub fn write_function_sql(&self) -> String {
        DIALECT.fill(&WRITE_FUNCTION.replace("{function}", &self.table().write_routine()), self.table())
    }

    /// Creates the function of [`write_function_sql`](Self::write_function_sql), or replaces it.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::PgStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PgStore::connect("postgres://shop@localhost/shop").await?;
    /// store.migrate().await?;
    /// store.create_write_function().await?;
    /// // In any language: SELECT posthaste_write('OrderPlaced', '{"total": 1990}', aggregate_id => '42')
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table is missing; [`Error::Refused`] when this user may not create functions in its schema.
    pub async fn create_write_function(&self) -> Result<(), Error> {
        self.alone(async |connection| {
            // A function may be created for a table that is not there, and would fail later.
            if self.is_partitioned(connection).await?.is_none() {
                let reason = format!("it does not exist; {MIGRATE}");
                return Err(Error::Schema { table: self.table().to_string(), reason });
            }
            // A constant, and a name of letters, digits and underscores.
            let sql = AssertSqlSafe(self.write_function_sql()).into_sql_str();
            sqlx::raw_sql(sql).execute(connection).await.map(drop).map_err(|error| self.fault(error))
        })
        .await
    }
}
