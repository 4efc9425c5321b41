//! What an error of SQLite or of sqlx means to the outbox.

use posthaste_core::store::{CommitError, Error};
use sqlx::error::DatabaseError;

use crate::table::TableName;

// Primary result codes, https://www.sqlite.org/rescode.html
const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const IOERR: i32 = 10;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;

/// The kind of an error.
pub(super) fn classify(error: sqlx::Error, table: &TableName) -> Error {
    match &error {
        sqlx::Error::Database(database) => match primary_code(&**database) {
            Some(BUSY | LOCKED | PROTOCOL) => Error::Busy(Box::new(error)),
            Some(IOERR | FULL | CANTOPEN) => Error::Unavailable(Box::new(error)),
            Some(ERROR) if is_about_the_schema(database.message()) => {
                Error::Schema { table: table.to_string(), reason: database.message().to_owned() }
            }
            _ => Error::Refused(Box::new(error)),
        },
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => {
            Error::Unavailable(Box::new(error))
        }
        _ => Error::Refused(Box::new(error)),
    }
}

/// Whether a commit that failed certainly did not happen.
pub(super) fn classify_commit(error: sqlx::Error, table: &TableName) -> CommitError {
    let unknown = match &error {
        sqlx::Error::Database(database) => primary_code(&**database) == Some(IOERR),
        sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => true,
        _ => false,
    };
    let error = classify(error, table);
    if unknown { CommitError::Unknown(error) } else { CommitError::NotCommitted(error) }
}

/// Whether an id was taken. Nothing else in the table is unique.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_unique_violation)
}

fn primary_code(error: &dyn DatabaseError) -> Option<i32> {
    // sqlx gives the extended code, whose lowest byte is the primary one.
    error.code()?.parse::<i32>().ok().map(|code| code & 0xff)
}

/// SQLite has one code for every statement that it cannot prepare, and says in words alone what is missing.
fn is_about_the_schema(message: &str) -> bool {
    ["no such table", "no such column", "no such index", "has no column named", "unknown database", "already exists"]
        .iter()
        .any(|words| message.contains(words))
}
