//! The procedure by which programs in other languages, and triggers, write events.

use posthaste_core::store::Error;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};

use super::MySqlStore;
use super::sql::{DIALECT, UNLOCK_MIGRATION, WRITE_PROCEDURE, WRITE_PROCEDURE_COMMENT};
use crate::finish::finish;

impl MySqlStore {
    /// The SQL of a procedure that writes an event: `posthaste_write(event_type, aggregate_type, aggregate_id, payload, options, id)`,
    /// or `NAME_write` if the table is called NAME instead of `outbox_event`, in the database of the table. It checks what the
    /// library checks, and sets `id`. For the command line client, which needs to be told where the procedure ends.
    ///
    /// Not part of the migrations: whoever writes by the library needs none, and not everybody may create procedures.
    pub fn write_procedure_sql(&self) -> String {
        format!("DELIMITER //\n{} //\n{} //\nDELIMITER ;\n", self.drop_sql(), self.create_sql().trim_end())
    }

    /// Creates the procedure of [`write_procedure_sql`](Self::write_procedure_sql), or replaces it if it is another. Calls that come
    /// while it is replaced are refused, for moments.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::MySqlStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MySqlStore::connect("mysql://shop@localhost/shop").await?;
    /// store.migrate().await?;
    /// store.create_write_procedure().await?;
    /// // In any language: CALL posthaste_write('OrderPlaced', 'Order', '42', '{"total": 1990}', NULL, @id)
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Schema`] when the table is missing; [`Error::Refused`] when this user may not create procedures in its database.
    pub async fn create_write_procedure(&self) -> Result<(), Error> {
        let store = self.clone();
        finish(&self.tasks, async move { store.create_write_procedure_to_the_end().await }).await
    }

    async fn create_write_procedure_to_the_end(&self) -> Result<(), Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        // A procedure may be created for a table that is not there, and would fail later.
        connection.execute(self.sql.probe.clone()).await.map_err(|error| self.fault(error))?;
        self.lock(&mut connection).await?;
        let created = self.create_write_procedure_in(&mut connection).await;
        let unlock = sqlx::query(UNLOCK_MIGRATION).bind(self.table().schema()).bind(self.table().name());
        if unlock.execute(&mut *connection).await.is_err() {
            // The lock ends with the connection.
            connection.close_on_drop();
        }
        created.map_err(|error| self.fault(error))
    }

    async fn create_write_procedure_in(&self, connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
        let there: Option<String> = sqlx::query_scalar(WRITE_PROCEDURE_COMMENT)
            .bind(self.table().schema())
            .bind(self.table().write_routine())
            .fetch_optional(&mut *connection)
            .await?;
        let drop = match there {
            Some(there) if there == comment() => return Ok(()),
            // To drop what is not there might need a right that this user does not need otherwise.
            None => None,
            Some(_) => Some(self.drop_sql()),
        };
        // Constants, and names of letters, digits and underscores. Neither can be prepared.
        for sql in drop.into_iter().chain([self.create_sql()]) {
            sqlx::raw_sql(AssertSqlSafe(sql).into_sql_str()).execute(&mut *connection).await?;
        }
        Ok(())
    }

    fn drop_sql(&self) -> String {
        DIALECT.fill(&format!("DROP PROCEDURE IF EXISTS {{schema}}`{}`", self.table().write_routine()), self.table())
    }

    fn create_sql(&self) -> String {
        let template = WRITE_PROCEDURE.replace("{procedure}", &self.table().write_routine());
        DIALECT.fill(&template.replace("{comment}", &comment()), self.table())
    }
}

/// By which a procedure is known that need not be replaced.
fn comment() -> String {
    // FNV-1a: the same on every machine and in every release.
    let hash = WRITE_PROCEDURE
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("posthaste {hash:016x}")
}
