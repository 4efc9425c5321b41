//! The commit of a transaction that its user had in hand since an event was written in it.

use posthaste_core::EventId;
use posthaste_core::store::CommitError;
use sqlx::error::DatabaseError;
use sqlx::postgres::Postgres;
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::sql::COMMIT_WITHOUT_LOOKING;
use super::{PgStore, PgTx, fault};
use crate::look::{Looked, literals};

/// How many statements of a commit that looks come before the look.
const BEFORE_THE_LOOK: usize = 2;

/// What a user is told who may not read the table.
const DENIED: &str = "42501";

impl PgStore {
    /// Commits, and gives those of the events that are not in the transaction any more. Whoever may not look knows of none of them.
    pub(super) async fn commit_looking(&self, mut tx: PgTx, firsts: Vec<EventId>) -> Result<Vec<EventId>, CommitError> {
        let looked = Looked::after::<Postgres>(sqlx::raw_sql(self.looking_for(&firsts)).fetch_many(&mut *tx)).await;
        let Err(error) = looked.ended else { return Ok(looked.missing(firsts)) };
        if looked.statements != BEFORE_THE_LOOK || error.as_database_error().is_none() {
            return Err(fault::classify_commit(error, self.table()));
        }
        // Whatever keeps it from looking does not keep it from committing.
        tracing::debug!(table = %self.table(), %error, "could not look for events in the transaction that wrote them");
        if error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| code == DENIED) {
            self.looks.refused();
        }
        let committed = sqlx::raw_sql(COMMIT_WITHOUT_LOOKING).execute(&mut *tx).await;
        committed.map(|_| firsts).map_err(|error| fault::classify_commit(error, self.table()))
    }

    fn looking_for(&self, firsts: &[EventId]) -> SqlStr {
        let ids = literals(firsts, "convert_from(decode('", "', 'hex'), 'UTF8')");
        let since = self.partitioned.as_ref().and_then(|partitioned| partitioned.since.settled());
        // A number that the planner knows keeps it from planning for older partitions.
        let since =
            since.map(|since| format!(" AND created_at >= to_timestamp({})", since.as_micros().div_euclid(1_000_000)));
        let sql = self.sql.commit_looking.replace("{ids}", &ids).replace("{since}", &since.unwrap_or_default());
        // Made of a statement of ours, and of digits.
        AssertSqlSafe(sql).into_sql_str()
    }
}
