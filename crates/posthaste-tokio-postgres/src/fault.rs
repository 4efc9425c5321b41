//! What an error of tokio-postgres means to the outbox.

use posthaste_core::store::{self, CommitError, NewRow};
use posthaste_sql::PgStore;
use posthaste_sql::driver::{DriverStore, Refusal};
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// What was said to the insert of these rows.
pub(crate) fn of_insert(store: &PgStore, rows: &[NewRow], error: Error) -> store::Error {
    match error.as_db_error() {
        Some(said) => {
            let (table, constraint) = (said.table().map(str::to_owned), said.constraint().map(str::to_owned));
            store.refused(rows, Refusal { table, constraint, ..refusal(said) })
        }
        None => store::Error::Unavailable(Box::new(error)),
    }
}

/// What was said to another statement, which is about no row.
pub(crate) fn of_statement(store: &PgStore, error: Error) -> store::Error {
    match error.as_db_error() {
        Some(said) => store.refused(&[], refusal(said)),
        None => store::Error::Unavailable(Box::new(error)),
    }
}

/// Whether a commit that failed certainly did not happen.
pub(crate) fn of_commit(store: &PgStore, error: Error) -> CommitError {
    // What ends the connection may come after the commit, while it waits for a replica. Without a transaction there is
    // nothing to commit: it was ended by a statement of somebody's own, which may have been a commit.
    let open = [&SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN, &SqlState::NO_ACTIVE_SQL_TRANSACTION];
    let certain = error
        .as_db_error()
        .is_some_and(|said| said.parsed_severity() == Some(Severity::Error) && !open.contains(&said.code()));
    let error = of_statement(store, error);
    if certain { CommitError::NotCommitted(error) } else { CommitError::Unknown(error) }
}

/// Without a table, so that it is not taken for an insert that was refused.
fn refusal(said: &DbError) -> Refusal {
    let detail = said.detail().map(str::to_owned);
    Refusal { detail, ..Refusal::new(said.code().code(), said.message()) }
}
