//! What an error of SeaORM means to the outbox.

use posthaste_core::store::{CommitError, Error, NewRow};
use posthaste_sql::driver::Refusal;
use sea_orm::sqlx::error::DatabaseError;
use sea_orm::{DbBackend, DbErr, RuntimeErr, sqlx};

use crate::database::SeaOrmStore;

/// The kind of an error.
pub(crate) fn classify<S: SeaOrmStore>(store: &S, rows: &[NewRow], error: DbErr) -> Error {
    let Some(cause) = cause(&error) else {
        return match error {
            DbErr::ConnectionAcquire(_) | DbErr::Conn(_) => Error::Unavailable(Box::new(error)),
            _ => Error::Refused(Box::new(error)),
        };
    };
    match cause {
        sqlx::Error::Database(database) => store.refused(rows, refusal(&**database)),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Error::Unavailable(Box::new(error)),
        _ => Error::Refused(Box::new(error)),
    }
}

/// Whether a commit that failed certainly did not happen.
pub(crate) fn classify_commit<S: SeaOrmStore>(store: &S, error: DbErr) -> CommitError {
    let certain = cause(&error).and_then(sqlx::Error::as_database_error).is_some_and(|database| match S::BACKEND {
        DbBackend::Postgres => is_certain_on_postgres(database),
        DbBackend::MySql => is_certain_on_mysql(database),
        _ => is_certain_on_sqlite(database),
    });
    // Only an insert is refused because of an id.
    let error = match cause(&error).and_then(sqlx::Error::as_database_error) {
        Some(database) if database.is_unique_violation() => Error::Refused(Box::new(error)),
        _ => classify(store, &[], error),
    };
    if certain { CommitError::NotCommitted(error) } else { CommitError::Unknown(error) }
}

/// The code of what the database said, if it did.
pub(crate) fn code_of(error: &DbErr) -> Option<String> {
    cause(error).and_then(sqlx::Error::as_database_error).map(code)
}

/// What sqlx said, if it was sqlx.
fn cause(error: &DbErr) -> Option<&sqlx::Error> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => Some(error),
        _ => None,
    }
}

/// All that the database said, in the words that a store understands.
fn refusal(error: &dyn DatabaseError) -> Refusal {
    Refusal {
        code: code(error),
        message: error.message().to_owned(),
        detail: detail(error),
        table: error.table().map(str::to_owned),
        constraint: error.constraint().map(str::to_owned),
    }
}

fn code(error: &dyn DatabaseError) -> String {
    // To sqlx the code of an error of MySQL is its class.
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return error.number().to_string();
    }
    error.code().unwrap_or_default().into_owned()
}

#[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "the others say all of it in the message"))]
fn detail(error: &dyn DatabaseError) -> Option<String> {
    #[cfg(feature = "postgres")]
    if let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return error.detail().map(str::to_owned);
    }
    None
}

/// Statement completion unknown; no active transaction, because somebody has ended it by a statement of his own, either way.
#[cfg(feature = "postgres")]
const UNCERTAIN: [&str; 2] = ["40003", "25P01"];

/// What ends the connection may come after the commit, while it waits for a replica; and so may what says of itself that it
/// does not know.
#[cfg_attr(not(feature = "postgres"), expect(unused_variables, reason = "there is no such server"))]
fn is_certain_on_postgres(error: &dyn DatabaseError) -> bool {
    #[cfg(feature = "postgres")]
    if let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return matches!(error.severity(), sqlx::postgres::PgSeverity::Error) && !UNCERTAIN.contains(&error.code());
    }
    false
}

/// Lost a conflict, waited too long for a lock, or takes no writes. Anything else may have come after the commit.
fn is_certain_on_mysql(error: &dyn DatabaseError) -> bool {
    matches!(&*code(error), "1213" | "1205" | "1290" | "1792" | "1836")
}

/// But for errors of the disk, and one that says that there was no transaction any more: SQLite ended it after some earlier
/// error, and what was written since then was committed by itself.
fn is_certain_on_sqlite(error: &dyn DatabaseError) -> bool {
    const ERROR: i32 = 1;
    const IOERR: i32 = 10;
    code(error).parse::<i32>().is_ok_and(|code| ![ERROR, IOERR].contains(&(code & 0xff)))
}
