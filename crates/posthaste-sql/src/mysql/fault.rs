//! What an error of the server or of sqlx means to the outbox.

use std::error::Error as StdError;

use posthaste_core::store::{CommitError, Error};
use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

use crate::advice::{advised, server};
use crate::table::TableName;

/// What an error of the server is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Busy,
    Unavailable,
    /// With what to do about it.
    Schema(&'static str),
    Refused,
}

const MIGRATE: &str = "call migrate() first";

/// The kind of an error by its number, https://mariadb.com/kb/en/mariadb-error-code-reference/
fn kind_of(number: u16) -> Kind {
    match number {
        // Deadlock, waited too long for a lock, changed since it was read, the table was altered meanwhile, would have
        // to wait for a lock, cut off by a time limit or by KILL QUERY.
        1213 | 1205 | 1020 | 1412 | 3572 | 1317 | 1969 | 3024 => Kind::Busy,
        // Too many connections, of all or of this user.
        1040 | 1203 | 1226 => Kind::Unavailable,
        // Shutting down, connection killed, network errors, a node that is not part of its cluster.
        1053 | 1077..=1080 | 1152 | 1158..=1161 | 1184 | 1927 | 1047 => Kind::Unavailable,
        // Read-only: this is not, or no longer, the server to write to.
        number if refuses_writes(number) => Kind::Unavailable,
        // No space left, or the storage engine failed.
        1021 | 1114 | 1030 => Kind::Unavailable,
        // No such table, column or index.
        1146 | 1054 | 1176 => Kind::Schema(MIGRATE),
        1046 => Kind::Schema("name the database in the URL, or in the name of the table"),
        1049 => Kind::Schema("create the database first"),
        _ => Kind::Refused,
    }
}

/// The kind of an error.
pub(super) fn classify(error: sqlx::Error, table: &TableName) -> Error {
    match &error {
        sqlx::Error::Database(database) => match kind_of(number(&**database)) {
            Kind::Busy => Error::Busy(Box::new(error)),
            Kind::Unavailable => Error::Unavailable(with_advice(error)),
            Kind::Schema(advice) => {
                Error::Schema { table: table.to_string(), reason: format!("{}; {advice}", database.message()) }
            }
            Kind::Refused => Error::Refused(with_advice(error)),
        },
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Error::Unavailable(with_advice(error)),
        _ => Error::Refused(Box::new(error)),
    }
}

/// Whether a commit that failed certainly did not happen.
pub(super) fn classify_commit(error: sqlx::Error, table: &TableName) -> CommitError {
    let undone = error.as_database_error().is_some_and(|database| undone(number(database)));
    let error = classify(error, table);
    if undone { CommitError::NotCommitted(error) } else { CommitError::Unknown(error) }
}

/// Whether the server rolled back, or refused to begin with: lost a conflict (as a cluster decides in the commit), or is
/// read-only. Whatever else it says may have come after the commit had reached the log.
fn undone(number: u16) -> bool {
    matches!(number, 1213 | 1205) || refuses_writes(number)
}

/// Whether a server takes no writes: it runs with `--read-only`, the transaction may only read, the storage engine may.
fn refuses_writes(number: u16) -> bool {
    matches!(number, 1290 | 1792 | 1836)
}

/// Whether the server, or the session, takes no writes.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|database| refuses_writes(number(database)))
}

fn with_advice(error: sqlx::Error) -> Box<dyn StdError + Send + Sync> {
    advised(error, |database| match number(database) {
        number if refuses_writes(number) => Some(server::READ_ONLY),
        // Unknown, locked, with a wrong password, from a host that is not let in, without TLS where it is demanded.
        1045 | 1130 | 1698 | 3118 | 3159 | 4151 => Some(server::NOT_LET_IN),
        // To the database, the table, the column, the operation.
        1044 | 1142 | 1143 | 1227 | 1370 => Some(server::GRANT),
        1040 | 1203 | 1226 => Some(server::NO_CONNECTION_LEFT),
        1021 | 1114 => Some(server::DISK_FULL),
        1034 | 1712 => Some("the server finds an index damaged; ALTER TABLE with FORCE makes it anew from the rows"),
        1129 => Some("the server blocks this host after too many errors; find their cause, then FLUSH HOSTS"),
        1153 => Some("make the event smaller, or the server's max_allowed_packet larger"),
        1665 => Some("set the server's binlog_format to ROW or MIXED"),
        _ => None,
    })
}

/// Whether the server has no room for another connection, of anybody or of this user.
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|database| matches!(number(database), 1040 | 1203 | 1226))
}

/// Whether this user may not read the table.
pub(super) fn is_denied(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|database| matches!(number(database), 1142 | 1143))
}

/// Whether an id was taken. Nothing else in the table is unique.
pub(super) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_unique_violation)
}

/// Whether an insert that asks was refused because no transaction is open, or else because of a trigger.
pub(super) fn is_out_of_range(error: &sqlx::Error) -> bool {
    is_number(error, OUT_OF_RANGE)
}

/// Whether a transaction is open where there must be none.
pub(super) fn is_in_progress(error: &sqlx::Error) -> bool {
    is_number(error, IN_PROGRESS)
}

/// Whether a savepoint is gone, and so the transaction that it was set in; or else what a trigger wants to call.
pub(super) fn is_no_savepoint(error: &sqlx::Error) -> bool {
    is_number(error, DOES_NOT_EXIST)
}

const OUT_OF_RANGE: u16 = 1690;
const IN_PROGRESS: u16 = 1568;
const DOES_NOT_EXIST: u16 = 1305;

fn is_number(error: &sqlx::Error, expected: u16) -> bool {
    error.as_database_error().is_some_and(|database| number(database) == expected)
}

/// Whether a table, a column or an index is missing.
pub(super) fn is_missing(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|database| kind_of(number(database)) == Kind::Schema(MIGRATE))
}

fn number(error: &dyn DatabaseError) -> u16 {
    match error.try_downcast_ref::<MySqlDatabaseError>() {
        Some(error) => error.number(),
        None => error.code().and_then(|code| code.parse().ok()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_kind() {
        for number in [1213, 1205, 1317] {
            assert_eq!(kind_of(number), Kind::Busy, "{number}");
        }
        for number in [1040, 1053, 1290, 1836, 1114] {
            assert_eq!(kind_of(number), Kind::Unavailable, "{number}");
        }
        for number in [1146, 1054, 1176, 1046, 1049] {
            assert!(matches!(kind_of(number), Kind::Schema(_)), "{number}");
        }
        for number in [0, 1062, 1064, 1142, 1665] {
            assert_eq!(kind_of(number), Kind::Refused, "{number}");
        }
    }

    #[test]
    fn a_lost_connection_is_worth_another_try_and_leaves_a_commit_open() {
        let table = TableName::default();
        let lost = || sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into());
        assert!(matches!(classify(lost(), &table), Error::Unavailable(_)));
        assert!(matches!(classify_commit(lost(), &table), CommitError::Unknown(Error::Unavailable(_))));
        assert!(undone(1213) && !undone(1053) && !undone(1180));
    }
}
