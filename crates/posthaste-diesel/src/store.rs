//! What differs from database to database.

use std::future::Future;

use diesel::QueryResult;
use diesel::backend::Backend;
use diesel::result::DatabaseErrorKind;
use diesel_async::AsyncConnection;
use posthaste_core::EventId;
use posthaste_sql::driver::DriverStore;

use crate::statement::Statement;

/// A store into whose table diesel can write: `PgStore` and `SqliteStore`, with their features.
///
/// It is not meant to be implemented elsewhere.
pub trait DieselStore: DriverStore + sealed::Dialect {
    /// What diesel calls this database.
    type Backend: Backend;

    /// Carries out an insert, and says what the database knows of where that happened.
    #[doc(hidden)]
    fn carry_out<C>(conn: &mut C, statement: Statement<'_>) -> impl Future<Output = QueryResult<Inserted>> + Send
    where
        C: AsyncConnection<Backend = Self::Backend>;

    /// Whether all these events are in the table, as the transaction sees it, where no insert says whether it was in a savepoint.
    #[doc(hidden)]
    fn are_there<C>(&self, conn: &mut C, ids: &[EventId]) -> impl Future<Output = QueryResult<bool>> + Send
    where
        C: AsyncConnection<Backend = Self::Backend>;
}

/// What the database knows of where an insert happened.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Inserted {
    /// Whether that was in a savepoint.
    pub nested: bool,
    /// The number of the transaction, where it tells.
    pub txid: Option<i64>,
}

pub(crate) mod sealed {
    use super::DatabaseErrorKind;

    /// What tells whether a transaction is open.
    pub struct Probe {
        /// Changes nothing outside of a transaction.
        pub sql: &'static str,
        /// How the refusal begins inside of one.
        pub refused_inside: &'static str,
    }

    /// The savepoint before the question whether a transaction is still the same.
    pub(crate) const SAME: &str = "posthaste_same";

    pub trait Dialect {
        /// Where the database ends transactions by itself.
        const PROBE: Option<Probe>;

        /// How a transaction begins that is going to write, where that makes a difference.
        const BEGIN: Option<&'static str>;

        /// Refused where a COMMIT would be answered with success although it commits nothing.
        const BEFORE_COMMIT: Option<&'static str>;

        /// Whether several inserts need a savepoint to be all or none. Elsewhere the first that fails ends the transaction.
        const GOES_ON_AFTER_ERROR: bool;

        /// What is refused, after a savepoint [`SAME`], in a transaction that has not that number.
        fn expect_same(txid: i64) -> Option<String> {
            let _ = txid;
            None
        }

        /// The code of an error, as far as it can be told. Empty if it cannot.
        fn code(kind: &DatabaseErrorKind, message: &str) -> &'static str;

        /// Whether a database that refuses a commit with this has certainly not committed. Nothing if that shows in whether
        /// it goes on talking.
        fn refuses_commit(kind: &DatabaseErrorKind, message: &str) -> Option<bool>;
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use diesel::QueryResult;
    use diesel::pg::Pg;
    use diesel::result::DatabaseErrorKind;
    use diesel::sql_types::{BigInt, Bool};
    use diesel_async::{AsyncConnection, RunQueryDsl};
    use posthaste_core::EventId;
    use posthaste_sql::PgStore;

    use super::{DieselStore, Inserted, sealed};
    use crate::statement::Statement;

    /// How CockroachDB says that it does not know itself, while it goes on talking.
    const AMBIGUOUS: &str = "result is ambiguous";

    impl DieselStore for PgStore {
        type Backend = Pg;

        async fn carry_out<C>(conn: &mut C, statement: Statement<'_>) -> QueryResult<Inserted>
        where
            C: AsyncConnection<Backend = Pg>,
        {
            let statement = statement.returning::<(Bool, Bool, BigInt)>();
            let (nested, _, txid): (bool, bool, i64) = statement.get_result(conn).await?;
            Ok(Inserted { nested, txid: Some(txid) })
        }

        async fn are_there<C>(&self, _conn: &mut C, _ids: &[EventId]) -> QueryResult<bool>
        where
            C: AsyncConnection<Backend = Pg>,
        {
            Ok(true)
        }
    }

    impl sealed::Dialect for PgStore {
        const PROBE: Option<sealed::Probe> = None;

        const BEGIN: Option<&'static str> = None;

        /// Refused in a transaction that has failed, and where there is none. The savepoint ends with the commit, and the rest
        /// checks nothing that the commit would not check.
        const BEFORE_COMMIT: Option<&'static str> = Some("SAVEPOINT posthaste_commit; SET CONSTRAINTS ALL IMMEDIATE");

        const GOES_ON_AFTER_ERROR: bool = false;

        /// diesel tells nothing of what a message of several statements returns, so the last of them fails instead.
        fn expect_same(txid: i64) -> Option<String> {
            let same = sealed::SAME;
            Some(format!(
                "; SAVEPOINT {same}; SELECT 1 / (txid_current_if_assigned() IS NOT DISTINCT FROM {txid})::int"
            ))
        }

        fn code(kind: &DatabaseErrorKind, message: &str) -> &'static str {
            // diesel keeps the code to itself. The words are those of a server that speaks English.
            const SAID: [(&str, &str); 7] = [
                (AMBIGUOUS, "40003"),
                ("deadlock detected", "40P01"),
                ("current transaction is aborted", "25P02"),
                ("canceling statement due to lock timeout", "55P03"),
                ("canceling statement due to", "57014"),
                ("terminating connection", "57P01"),
                ("permission denied", "42501"),
            ];
            match kind {
                DatabaseErrorKind::UniqueViolation => "23505",
                DatabaseErrorKind::ForeignKeyViolation => "23503",
                DatabaseErrorKind::NotNullViolation => "23502",
                DatabaseErrorKind::CheckViolation => "23514",
                DatabaseErrorKind::RestrictViolation => "23001",
                DatabaseErrorKind::ExclusionViolation => "23P01",
                DatabaseErrorKind::SerializationFailure => "40001",
                DatabaseErrorKind::ReadOnlyTransaction => "25006",
                _ if message.starts_with("relation ") && message.ends_with(" does not exist") => "42P01",
                _ if message.starts_with("column ") && message.ends_with(" does not exist") => "42703",
                _ => SAID.into_iter().find(|(words, _)| message.starts_with(words)).map_or("", |(_, code)| code),
            }
        }

        fn refuses_commit(kind: &DatabaseErrorKind, message: &str) -> Option<bool> {
            match kind {
                DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => Some(false),
                DatabaseErrorKind::Unknown if message.starts_with(AMBIGUOUS) => Some(false),
                // What ends the connection may come after the commit, while it waits for a replica.
                DatabaseErrorKind::Unknown => None,
                _ => Some(true),
            }
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use diesel::QueryResult;
    use diesel::result::DatabaseErrorKind;
    use diesel::sql_types::Bool;
    use diesel::sqlite::Sqlite;
    use diesel_async::{AsyncConnection, RunQueryDsl};
    use posthaste_core::EventId;
    use posthaste_sql::SqliteStore;
    use posthaste_sql::driver::{Insert, Parameter};

    use super::{DieselStore, Inserted, sealed};
    use crate::statement::Statement;

    /// The most ids of a question: any SQLite has room for as many values.
    const MOST_IDS: usize = 512;

    impl DieselStore for SqliteStore {
        type Backend = Sqlite;

        async fn carry_out<C>(conn: &mut C, statement: Statement<'_>) -> QueryResult<Inserted>
        where
            C: AsyncConnection<Backend = Sqlite>,
        {
            statement.execute(conn).await?;
            Ok(Inserted::default())
        }

        async fn are_there<C>(&self, conn: &mut C, ids: &[EventId]) -> QueryResult<bool>
        where
            C: AsyncConnection<Backend = Sqlite>,
        {
            for some in ids.chunks(MOST_IDS) {
                let all: bool = Statement::new(count(self, some)).returning::<Bool>().get_result(conn).await?;
                if !all {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }

    /// Whether as many rows are there as there are ids.
    fn count<'i>(store: &SqliteStore, ids: &'i [EventId]) -> Insert<'i> {
        let table = store.table();
        let schema = table.schema().map_or_else(String::new, |schema| format!("\"{schema}\"."));
        // Filled up to a power of two, so that there are few statements to prepare.
        let places = ids.len().next_power_of_two();
        let sql = format!(
            "SELECT COUNT(*) = ? FROM {schema}\"{}\" WHERE event_id IN ({})",
            table.name(),
            vec!["?"; places].join(", "),
        );
        let number = i64::try_from(ids.len()).expect("there are no more than fit into a question");
        let last = ids.iter().rev().take(1).cycle();
        let ids = ids.iter().chain(last).take(places).map(|id| Parameter::Text(Some(id.as_str().into())));
        Insert { sql, parameters: std::iter::once(Parameter::Number(Some(number))).chain(ids).collect() }
    }

    impl sealed::Dialect for SqliteStore {
        /// In a transaction the first of them is refused, and the second not carried out.
        const PROBE: Option<sealed::Probe> = Some(sealed::Probe {
            sql: "BEGIN; ROLLBACK",
            refused_inside: "cannot start a transaction within a transaction",
        });

        /// One that first reads and then writes would be refused, without any waiting, if another wrote in between.
        const BEGIN: Option<&'static str> = Some("BEGIN IMMEDIATE");

        const BEFORE_COMMIT: Option<&'static str> = None;

        const GOES_ON_AFTER_ERROR: bool = true;

        fn code(kind: &DatabaseErrorKind, message: &str) -> &'static str {
            // https://www.sqlite.org/rescode.html; diesel keeps the code to itself, and the words do not change.
            const SAID: [(&str, &str); 10] = [
                ("database is locked", "5"),
                ("database table is locked", "6"),
                ("database schema is locked", "6"),
                ("attempt to write a readonly database", "8"),
                ("disk I/O error", "10"),
                ("database disk image is malformed", "11"),
                ("database or disk is full", "13"),
                ("unable to open database file", "14"),
                ("locking protocol", "15"),
                ("file is not a database", "26"),
            ];
            match kind {
                DatabaseErrorKind::UniqueViolation => "2067",
                DatabaseErrorKind::ForeignKeyViolation => "787",
                DatabaseErrorKind::NotNullViolation => "1299",
                DatabaseErrorKind::CheckViolation => "275",
                // Every statement that cannot be prepared has code 1.
                _ => SAID.into_iter().find(|(words, _)| message.starts_with(words)).map_or("1", |(_, code)| code),
            }
        }

        fn refuses_commit(kind: &DatabaseErrorKind, message: &str) -> Option<bool> {
            match kind {
                DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => Some(false),
                // Code 1 says that there was no transaction any more: SQLite ended it after some earlier error, and what was
                // written since then was committed by itself.
                DatabaseErrorKind::Unknown => Some(!matches!(Self::code(kind, message), "1" | "10")),
                _ => Some(true),
            }
        }
    }
}
