//! What differs from one database to the next.

use posthaste_core::store::{CommitError, Error};
use posthaste_sql::TableName;
use posthaste_sql::driver::DriverStore;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, Statement};

use crate::count::{self, Mark};
use crate::fault;

/// A store whose table SeaORM's transactions can write to: `PgStore`, `MySqlStore` and `SqliteStore`, each with its feature.
pub trait SeaOrmStore: DriverStore + sealed::Known {}

pub(crate) mod sealed {
    use super::{DbBackend, TableName};

    /// What a store is asked for besides.
    pub trait Known {
        const BACKEND: DbBackend;

        fn table_name(&self) -> &TableName;

        /// Whether what is delivered is deleted.
        fn deletes_done(&self) -> bool;
    }
}

#[cfg(feature = "postgres")]
impl sealed::Known for posthaste_sql::PgStore {
    const BACKEND: DbBackend = DbBackend::Postgres;

    fn table_name(&self) -> &TableName {
        self.table()
    }

    fn deletes_done(&self) -> bool {
        self.is_deleting_done()
    }
}

#[cfg(feature = "postgres")]
impl SeaOrmStore for posthaste_sql::PgStore {}

#[cfg(feature = "mysql")]
impl sealed::Known for posthaste_sql::MySqlStore {
    const BACKEND: DbBackend = DbBackend::MySql;

    fn table_name(&self) -> &TableName {
        self.table()
    }

    fn deletes_done(&self) -> bool {
        self.is_deleting_done()
    }
}

#[cfg(feature = "mysql")]
impl SeaOrmStore for posthaste_sql::MySqlStore {}

#[cfg(feature = "sqlite")]
impl sealed::Known for posthaste_sql::SqliteStore {
    const BACKEND: DbBackend = DbBackend::Sqlite;

    fn table_name(&self) -> &TableName {
        self.table()
    }

    fn deletes_done(&self) -> bool {
        self.is_deleting_done()
    }
}

#[cfg(feature = "sqlite")]
impl SeaOrmStore for posthaste_sql::SqliteStore {}

/// Refuses another database than the one in which the table is.
pub(crate) fn expect<S: SeaOrmStore>(found: DbBackend) -> Result<(), Error> {
    if found == S::BACKEND {
        return Ok(());
    }
    let reason = format!("the table of this outbox is in {}; use a connection to that database", name(S::BACKEND));
    Err(Error::Config { field: "database of the transaction", value: name(found).to_owned(), reason })
}

fn name(backend: DbBackend) -> &'static str {
    match backend {
        DbBackend::Postgres => "PostgreSQL",
        DbBackend::MySql => "MySQL",
        DbBackend::Sqlite => "SQLite",
        other => other.as_str(),
    }
}

/// The table as it stands in a statement.
pub(crate) fn quoted<S: SeaOrmStore>(store: &S) -> String {
    let quote = if S::BACKEND == DbBackend::MySql { '`' } else { '"' };
    let table = store.table_name();
    let schema = table.schema().map_or_else(String::new, |schema| format!("{quote}{schema}{quote}."));
    format!("{schema}{quote}{}{quote}", table.name())
}

/// PostgreSQL answers the COMMIT of a transaction in which a statement had failed with success, and rolls back. The first
/// of these statements is refused there; otherwise it checks what the commit would check.
const COMMIT_POSTGRES: &str = "SET CONSTRAINTS ALL IMMEDIATE; COMMIT AND CHAIN";
const COMMIT_MYSQL: &str = "COMMIT AND CHAIN";

/// A savepoint that ends with the transaction, whoever ends it. MySQL and MariaDB roll back after a deadlock, and without
/// `autocommit` the next statement is in a transaction again; so it is when somebody begins another one by a statement.
const BEGUN_MYSQL: &str = "SAVEPOINT posthaste_begin";

/// Refused unless it is the very transaction that was begun.
const SAME_MYSQL: &str = "RELEASE SAVEPOINT posthaste_begin";

/// What is said to who goes on in a transaction that is none any more.
const ENDED: &str = "the database has rolled the transaction back, because an inner one was refused or cut off, or a statement \
                     lost a conflict or had it rolled back; or else a statement of yours has committed it; begin another";

/// Why a transaction is not open, or cannot be asked.
pub(crate) struct NotOpen {
    pub(crate) error: Error,
    /// Whether it is certain that there is no transaction any more.
    pub(crate) ended: bool,
}

/// Fails unless the transaction is open. SeaORM rolls back all of it when an inner one cannot be begun, or when that is cut off,
/// and some databases do so by themselves; what follows would be stored on its own. One of the outbox on SQLite has a mark.
pub(crate) async fn expect_open<S: SeaOrmStore>(
    store: &S,
    tx: &DatabaseTransaction,
    mark: Option<Mark>,
) -> Result<(), NotOpen> {
    let ended = || Err(NotOpen { error: Error::Refused(ENDED.into()), ended: true });
    let unknown = |error| NotOpen { error: fault::classify(store, &[], error), ended: false };
    match (S::BACKEND, mark) {
        // Refused outside of one, and in one that has failed.
        (DbBackend::Postgres, _) => {
            let asked = tx.execute_unprepared("SAVEPOINT posthaste_open; RELEASE SAVEPOINT posthaste_open").await;
            asked.map(drop).map_err(unknown)
        }
        // Refused in one, and changes nothing outside.
        (DbBackend::MySql, _) => match tx.execute_unprepared("SET TRANSACTION READ WRITE").await {
            Ok(_) => ended(),
            Err(error) if fault::code_of(&error).as_deref() == Some(IN_PROGRESS) => Ok(()),
            Err(error) => Err(unknown(error)),
        },
        (_, Some(mark)) if !mark.is_there(tx).await.map_err(unknown)? => ended(),
        (_, None) if count::stands_in(tx).await.map_err(unknown)? => ended(),
        // A statement that commits takes no mark away.
        _ => match tx.execute_unprepared("BEGIN").await {
            Ok(_) => {
                tx.execute_unprepared("ROLLBACK").await.map_err(unknown)?;
                ended()
            }
            Err(error) if error.to_string().contains("within a transaction") => Ok(()),
            Err(error) => Err(unknown(error)),
        },
    }
}

/// Has a transaction that was just begun known again, where SQLite has its mark.
pub(crate) async fn begun<S: SeaOrmStore>(tx: &DatabaseTransaction) -> Result<(), DbErr> {
    if S::BACKEND == DbBackend::MySql {
        tx.execute_unprepared(BEGUN_MYSQL).await?;
    }
    Ok(())
}

/// Fails unless the transaction is open, and the one that was begun. It is to be committed then: it cannot be asked again. PostgreSQL
/// says so itself when it is asked to commit.
pub(crate) async fn expect_same<S: SeaOrmStore>(
    store: &S,
    tx: &DatabaseTransaction,
    mark: Option<Mark>,
) -> Result<(), NotOpen> {
    match S::BACKEND {
        DbBackend::Postgres => Ok(()),
        DbBackend::MySql => match tx.execute_unprepared(SAME_MYSQL).await {
            Ok(_) => Ok(()),
            Err(error) if fault::code_of(&error).as_deref() == Some(DOES_NOT_EXIST) => {
                Err(NotOpen { error: Error::Refused(ENDED.into()), ended: true })
            }
            Err(error) => Err(NotOpen { error: fault::classify(store, &[], error), ended: false }),
        },
        _ => expect_open(store, tx, mark).await,
    }
}

/// The number of the transaction that is open, on PostgreSQL. Nothing if it has none, or cannot say it any more.
pub(crate) async fn number_of_open(tx: &DatabaseTransaction) -> Option<i64> {
    let question = "SELECT txid_current_if_assigned() AS txid";
    let row = tx.query_one_raw(Statement::from_string(DbBackend::Postgres, question)).await;
    row.ok().flatten().and_then(|row| row.try_get("", "txid").ok())
}

/// Whether it is certain that there is no transaction any more.
pub(crate) async fn has_ended<S: SeaOrmStore>(store: &S, tx: &DatabaseTransaction, mark: Option<Mark>) -> bool {
    matches!(expect_open(store, tx, mark).await, Err(NotOpen { ended: true, .. }))
}

/// The number for a transaction that is in progress.
const IN_PROGRESS: &str = "1568";

/// The number for a savepoint that is gone.
const DOES_NOT_EXIST: &str = "1305";

/// Rolls back whatever is open, so that what is stored can be looked for. The transaction is to be rolled back for good then.
pub(crate) async fn undo<S: SeaOrmStore>(tx: &DatabaseTransaction) -> Result<(), DbErr> {
    match S::BACKEND {
        DbBackend::Postgres => tx.execute_unprepared("ROLLBACK AND CHAIN").await.map(drop),
        DbBackend::MySql => tx.execute_unprepared("ROLLBACK").await.map(drop),
        _ => count::clear(tx).await,
    }
}

/// Rolls back all of a transaction, also what somebody began inside of it and still has.
pub(crate) async fn roll_back<S: SeaOrmStore>(
    store: &S,
    tx: DatabaseTransaction,
    mark: Option<Mark>,
) -> Result<(), Error> {
    let classify = |error| fault::classify(store, &[], error);
    if S::BACKEND == DbBackend::Sqlite {
        let open = expect_open(store, &tx, mark).await.is_ok();
        let rolled_back =
            if open && count::is_alone(&tx).await { tx.rollback().await } else { count::clear(&tx).await };
        return rolled_back.map_err(classify);
    }
    let sql = if S::BACKEND == DbBackend::Postgres { "ROLLBACK AND CHAIN" } else { "ROLLBACK" };
    match tx.execute_unprepared(sql).await {
        // It says yes outside of a transaction, too, where a chain would begin one of which SeaORM knows nothing.
        Ok(_) if S::BACKEND == DbBackend::MySql => {
            if let Err(error) = tx.rollback().await {
                tracing::debug!(%error, "there was nothing left to roll back");
            }
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(_) => tx.rollback().await.map_err(classify),
    }
}

/// Commits all of a transaction, also a part of it that somebody began inside and has not ended: SeaORM's own commit would end
/// that part, and nothing else. SeaORM goes on counting all of it as open, so it is given another one to roll back.
pub(crate) async fn commit<S: SeaOrmStore>(store: &S, tx: &DatabaseTransaction) -> Result<(), CommitError> {
    let sql = match S::BACKEND {
        DbBackend::Postgres => COMMIT_POSTGRES,
        DbBackend::MySql => COMMIT_MYSQL,
        _ => "COMMIT",
    };
    // Asked before, as nobody can say it afterwards.
    let alone = S::BACKEND != DbBackend::Sqlite || count::is_alone(tx).await;
    let committed: Result<_, DbErr> = tx.execute_unprepared(sql).await;
    if S::BACKEND == DbBackend::Sqlite {
        // SQLite has no chains, and its driver would not get over a rollback that is refused. Some errors of a commit leave the
        // transaction open, others do not.
        let left = if committed.is_ok() { count::follow(tx, alone).await } else { count::clear(tx).await };
        if let Err(error) = left {
            tracing::warn!(%error, "a connection was left in an unknown state after its commit");
        }
    }
    committed.map(drop).map_err(|error| fault::classify_commit(store, error))
}
