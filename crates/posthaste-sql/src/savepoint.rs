//! Savepoints, as sqlx sets them.

use posthaste_core::store::{CommitError, Error};
use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// What is said to who goes on in a transaction that sqlx has rolled back: it does so with the whole of it when a savepoint is
/// refused or cut off, and what follows would be stored without it.
pub(crate) fn ended() -> Error {
    Error::Refused("the transaction has ended, because a savepoint in it was refused or cut off; begin another".into())
}

/// Fails unless the innermost savepoint is at that depth.
pub(crate) fn expect(depth: usize, expected: usize) -> Result<(), Error> {
    if depth == expected && depth > 1 { Ok(()) } else { Err(ended()) }
}

/// Fails if a savepoint is open at that depth, at which one was abandoned: it was set inside of that one, and undone instead.
pub(crate) fn expect_abandoned(depth: usize, abandoned: usize) -> Result<(), Error> {
    if depth > 0 && depth < abandoned { Ok(()) } else { Err(ended()) }
}

/// What it means for a transaction that a savepoint in it could not be set or ended. If it is gone, somebody has ended it by a
/// statement of his own, either way.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn lost(gone: bool, error: Error) -> CommitError {
    if gone { CommitError::Unknown(error) } else { CommitError::NotCommitted(error) }
}

/// Ends a savepoint that was at that depth, and was rolled back to: sqlx leaves it there, one inside of the other.
pub(crate) fn release(depth: usize) -> SqlStr {
    AssertSqlSafe(format!("RELEASE SAVEPOINT _sqlx_savepoint_{}", depth - 1)).into_sql_str()
}
