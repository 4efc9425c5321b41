//! What an error of SQLite or of sqlx means to the outbox.

use std::error::Error as StdError;

use posthaste_core::store::{CommitError, Error};
use sqlx::error::DatabaseError;

use crate::advice::advised;
use crate::table::TableName;

// Primary result codes, https://www.sqlite.org/rescode.html
const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const NOMEM: i32 = 7;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const PROTOCOL: i32 = 15;
const TOOBIG: i32 = 18;
const NOTADB: i32 = 26;

/// The kind of an error.
pub(super) fn classify(error: sqlx::Error, table: &TableName) -> Error {
    match &error {
        sqlx::Error::Database(database) => match primary_code(&**database) {
            Some(BUSY | LOCKED | PROTOCOL) => Error::Busy(with_advice(error)),
            Some(READONLY | IOERR | FULL | CANTOPEN) => Error::Unavailable(with_advice(error)),
            Some(ERROR) => match advice_on_schema(database.message()) {
                Some(advice) => {
                    Error::Schema { table: table.to_string(), reason: format!("{}; {advice}", database.message()) }
                }
                None => Error::Refused(Box::new(error)),
            },
            _ => Error::Refused(with_advice(error)),
        },
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => {
            Error::Unavailable(with_advice(error))
        }
        _ => Error::Refused(Box::new(error)),
    }
}

/// Whether a function may have refused a value: that has no code of its own, unless what it makes is too large.
pub(super) fn may_be_of_a_value(error: &dyn DatabaseError) -> bool {
    matches!(primary_code(error), Some(ERROR | NOMEM | TOOBIG))
}

/// Whether a commit that failed certainly did not happen.
pub(super) fn classify_commit(error: sqlx::Error, table: &TableName) -> CommitError {
    let unknown = match &error {
        // ERROR says that there was no transaction any more: SQLite ended it after some earlier error, and what was
        // written since then was committed by itself.
        sqlx::Error::Database(database) => matches!(primary_code(&**database), Some(IOERR | ERROR)),
        sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => true,
        _ => false,
    };
    let error = classify(error, table);
    if unknown { CommitError::Unknown(error) } else { CommitError::NotCommitted(error) }
}

/// Whether a savepoint is gone, and so the transaction that it was set in.
pub(super) fn is_no_savepoint(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().starts_with("no such savepoint"))
}

/// Whether a transaction was to be begun where one is open.
pub(super) fn is_within_a_transaction(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().starts_with("cannot start a transaction within"))
}

/// Whether an id was taken. Nothing else in the table is unique.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_unique_violation)
}

fn primary_code(error: &dyn DatabaseError) -> Option<i32> {
    // sqlx gives the extended code, whose lowest byte is the primary one.
    error.code()?.parse::<i32>().ok().map(|code| code & 0xff)
}

/// What to do about an error of the schema. SQLite has one code for every statement that it cannot prepare, and says in
/// words alone what is missing.
fn advice_on_schema(message: &str) -> Option<&'static str> {
    const MIGRATE: &str = "call migrate() first";
    const ADVICE: [(&str, &str); 6] = [
        ("no such table", MIGRATE),
        ("no such column", MIGRATE),
        ("no such index", MIGRATE),
        ("has no column named", MIGRATE),
        ("unknown database", "attach it on every connection of the pool"),
        ("already exists", "these migrations did not make it, so rename it or choose another name for the table"),
    ];
    ADVICE.into_iter().find(|(words, _)| message.contains(words)).map(|(_, advice)| advice)
}

fn with_advice(error: sqlx::Error) -> Box<dyn StdError + Send + Sync> {
    advised(error, |database| match primary_code(database)? {
        BUSY => Some("another process writes to the file, and for too long; keep its transactions short"),
        READONLY => Some("the file can only be read; let this process write to it, and to its directory"),
        CORRUPT => Some("the file is damaged; restore it from a backup"),
        FULL => Some("the disk is full, or the file as large as it may be; make room"),
        CANTOPEN => {
            Some("the file cannot be opened; see that its directory exists, and that this process may write there")
        }
        NOTADB => Some("the file is no SQLite database, or an encrypted one; choose another"),
        _ => None,
    })
}

/// An error of SQLite, made up.
#[cfg(test)]
pub(super) fn made_up(code: i32, message: &'static str) -> sqlx::Error {
    use std::borrow::Cow;
    use std::error::Error as StdError;

    #[derive(Debug)]
    struct MadeUp(i32, &'static str);

    impl std::fmt::Display for MadeUp {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.1)
        }
    }

    impl StdError for MadeUp {}

    impl DatabaseError for MadeUp {
        fn message(&self) -> &str {
            self.1
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.to_string().into())
        }

        fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    sqlx::Error::Database(Box::new(MadeUp(code, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: i32) -> sqlx::Error {
        made_up(code, "it says so")
    }

    #[test]
    fn every_code_has_its_kind() {
        let table = TableName::default();
        let busy_snapshot = BUSY | (2 << 8);
        for code in [BUSY, LOCKED, busy_snapshot] {
            assert!(matches!(classify(of(code), &table), Error::Busy(_)), "{code}");
        }
        for code in [READONLY, IOERR, FULL, CANTOPEN] {
            assert!(matches!(classify(of(code), &table), Error::Unavailable(_)), "{code}");
        }
        assert!(matches!(classify(of(ERROR), &table), Error::Refused(_)));
        assert!(matches!(classify(sqlx::Error::WorkerCrashed, &table), Error::Unavailable(_)));
        let missing = classify(made_up(ERROR, "no such table: outbox_event"), &table);
        let words = "table outbox_event is not ready: no such table: outbox_event; call migrate() first";
        assert_eq!(missing.to_string(), words);
    }

    #[test]
    fn a_commit_is_unknown_only_when_it_may_have_happened() {
        let table = TableName::default();
        let unknown = |error| matches!(classify_commit(error, &table), CommitError::Unknown(_));
        assert!(unknown(sqlx::Error::WorkerCrashed));
        assert!(unknown(of(IOERR | (4 << 8))));
        assert!(!unknown(of(BUSY)) && !unknown(of(FULL)) && !unknown(sqlx::Error::PoolClosed));
    }
}
