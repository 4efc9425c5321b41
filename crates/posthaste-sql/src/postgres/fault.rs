//! What an error of PostgreSQL or of sqlx means to the outbox.

use std::error::Error as StdError;

use posthaste_core::store::{CommitError, Error};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::advice::{advised, server};
use crate::driver::Refusal;
use crate::table::TableName;

/// The kind of an error.
pub(super) fn classify(error: sqlx::Error, table: &TableName) -> Error {
    match &error {
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            match kind(&code) {
                Kind::Unavailable => Error::Unavailable(with_advice(error)),
                Kind::Busy => Error::Busy(Box::new(error)),
                Kind::Schema(advice) => {
                    Error::Schema { table: table.to_string(), reason: format!("{}; {advice}", database.message()) }
                }
                Kind::Refused => Error::Refused(with_advice(error)),
            }
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnIndexOutOfBounds { .. } => {
            Error::Schema { table: table.to_string(), reason: format!("{error}; {NOT_OURS}") }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Error::Unavailable(with_advice(error)),
        _ => Error::Refused(Box::new(error)),
    }
}

/// Whether a commit that failed certainly did not happen.
pub(super) fn classify_commit(error: sqlx::Error, table: &TableName) -> CommitError {
    let certain = match &error {
        // What ends the connection may come after the commit, while it waits for a replica.
        sqlx::Error::Database(database) => database
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|error| error.severity() == PgSeverity::Error && !UNCERTAIN.contains(&error.code())),
        _ => false,
    };
    let error = classify(error, table);
    if certain { CommitError::NotCommitted(error) } else { CommitError::Unknown(error) }
}

/// Whether the connection was dead before anything was asked of it.
pub(super) fn is_stale(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(database) => database.code().is_some_and(|code| code.starts_with("57P")),
        _ => false,
    }
}

/// Whether the server does not know what every PostgreSQL knows: it is a relative, and has columns of its own.
pub(super) fn is_foreign(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| [UNDEFINED_COLUMN, FEATURE_NOT_SUPPORTED].contains(&&*code))
}

/// Whether the server takes no writes.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| code == READ_ONLY)
}

/// What a refused insert says of it if it was refused because an id is taken, in the table or in a partition of it.
pub(super) fn duplicate<'e>(error: &'e sqlx::Error, table: &TableName) -> Option<&'e str> {
    let error = error.as_database_error()?;
    let taken = error.code()? == UNIQUE_VIOLATION && error.constraint()?.ends_with("_pkey");
    let part = error.table()?.strip_prefix(table.name())?;
    let is_part = |start: &str| !start.is_empty() && start.bytes().all(|digit| digit.is_ascii_digit());
    let ours = part.is_empty() || part == "_default" || part.strip_prefix("_p").is_some_and(is_part);
    (taken && ours).then(|| detail(error).unwrap_or_default())
}

fn detail(error: &dyn DatabaseError) -> Option<&str> {
    match error.try_downcast_ref::<PgDatabaseError>() {
        Some(error) => error.detail(),
        None => error.try_downcast_ref::<Refusal>()?.detail.as_deref(),
    }
}

pub(super) const MIGRATE: &str = "call migrate() first";
const NOT_OURS: &str = "these migrations did not make it, so rename it or choose another name for the table";

// https://www.postgresql.org/docs/current/errcodes-appendix.html
const UNIQUE_VIOLATION: &str = "23505";
/// Statement completion unknown; no active transaction, because somebody has ended it by a statement of his own, either way.
const UNCERTAIN: [&str; 2] = ["40003", "25P01"];
const READ_ONLY: &str = "25006";
const UNDEFINED_COLUMN: &str = "42703";
const FEATURE_NOT_SUPPORTED: &str = "0A000";

enum Kind {
    Unavailable,
    Busy,
    Schema(&'static str),
    Refused,
}

fn kind(code: &str) -> Kind {
    match code {
        // Undefined table, column or schema.
        "42P01" | "42703" | "3F000" => Kind::Schema(MIGRATE),
        // Duplicate table or object, wrong type, missing function or operator for it.
        "42P07" | "42710" | "42804" | "42883" => Kind::Schema(NOT_OURS),
        // Lock not available, cancelled by a time limit.
        "55P03" | "57014" => Kind::Busy,
        // A server that takes no writes: a standby, or a primary that was demoted.
        READ_ONLY => Kind::Unavailable,
        // Idle for too long in a transaction, a transaction for too long.
        "25P03" | "25P04" => Kind::Unavailable,
        _ => match code.get(..2) {
            // Serialization failure, deadlock.
            Some("40") => Kind::Busy,
            // Connections, resources such as connections or disk, the operator's doing, the system.
            Some("08" | "53" | "57" | "58") => Kind::Unavailable,
            _ => Kind::Refused,
        },
    }
}

fn with_advice(error: sqlx::Error) -> Box<dyn StdError + Send + Sync> {
    advised(error, |database| match &*database.code().unwrap_or_default() {
        READ_ONLY => Some(server::READ_ONLY),
        // A prepared statement is missing, or there is another one of its name.
        "26000" | "42P05" => Some(
            "a pooler gave this connection to somebody else between two statements; connect to it in session mode, or past it",
        ),
        "25P02" => Some("a statement failed in this transaction before; roll it back, and do it again without that"),
        "28000" | "28P01" => Some(server::NOT_LET_IN),
        "3D000" => Some("create the database first"),
        "42501" => Some(server::GRANT),
        "53100" => Some(server::DISK_FULL),
        "53300" => Some(server::NO_CONNECTION_LEFT),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_kind() {
        for code in ["08006", "08P01", "53300", "53100", "57P01", "57P02", "57P03", "58030", "25006", "25P03"] {
            assert!(matches!(kind(code), Kind::Unavailable), "{code}");
        }
        for code in ["40001", "40P01", "55P03", "57014"] {
            assert!(matches!(kind(code), Kind::Busy), "{code}");
        }
        for code in ["42P01", "42703", "3F000", "42P07", "42804"] {
            assert!(matches!(kind(code), Kind::Schema(_)), "{code}");
        }
        for code in ["23505", "42601", "42501", "22001", "25P02", "28P01", ""] {
            assert!(matches!(kind(code), Kind::Refused), "{code}");
        }
    }

    #[test]
    fn without_an_answer_nothing_is_certain_about_a_commit() {
        let lost = sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into());
        let error = classify_commit(lost, &TableName::default());
        assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    }
}
