//! Inserting rows through SeaORM.

use std::borrow::Cow;

use posthaste_core::EventId;
use posthaste_core::store::{Error, NewRow};
use posthaste_sql::driver::{Insert, Parameter};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Statement, Value};

use crate::count::Mark;
use crate::database::{NotOpen, SeaOrmStore, expect, expect_open, has_ended, quoted};
use crate::fault;

/// The most ids of a question: a statement of any database has room for them.
const MOST_IDS: usize = 500;

/// Whether rows that were inserted will be in the table when the transaction has been committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Surely,
    /// Unless there is a savepoint around them that is undone.
    Perhaps,
}

/// What the database says of rows that were inserted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inserted {
    pub(crate) kept: Kept,
    /// The number of the transaction, on PostgreSQL.
    pub(crate) txid: Option<i64>,
}

/// Why rows could not be inserted.
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// Whether some of them may be in the transaction.
    pub(crate) partly: bool,
    /// Whether there is no transaction any more.
    pub(crate) ended: bool,
}

impl From<NotOpen> for Refused {
    fn from(NotOpen { error, ended }: NotOpen) -> Self {
        Self { error, partly: false, ended }
    }
}

impl Refused {
    fn unless_undone(error: Error, undone: bool) -> Self {
        Self { error, partly: !undone, ended: false }
    }

    /// The same, unless the insert has ended the transaction: then nothing is in it. PostgreSQL never does that.
    async fn unless_ended<S: SeaOrmStore>(self, store: &S, tx: &DatabaseTransaction, mark: Option<Mark>) -> Self {
        if S::BACKEND != DbBackend::Postgres && has_ended(store, tx, mark).await {
            return Self { partly: false, ended: true, ..self };
        }
        self
    }
}

/// Inserts rows: all of them, or none.
pub(crate) async fn insert<S: SeaOrmStore>(
    store: &S,
    tx: &DatabaseTransaction,
    mark: Option<Mark>,
    rows: &[NewRow],
) -> Result<Inserted, Refused> {
    let untouched = |error| Refused::unless_undone(error, true);
    expect::<S>(tx.get_database_backend()).map_err(untouched)?;
    if !rows.is_empty() {
        expect_open(store, tx, mark).await?;
    }
    let inserts = store.inserts(rows);
    // Set by hand: one of SeaORM's takes the transaction along when it is cut off. PostgreSQL undoes all that came before.
    let savepoint = inserts.len() > 1 && S::BACKEND != DbBackend::Postgres;
    if savepoint {
        let set = tx.execute_unprepared("SAVEPOINT posthaste_insert").await;
        set.map_err(|error| untouched(fault::classify(store, &[], error)))?;
    }
    // Where nobody says, it is to be looked at.
    let kept = if S::BACKEND == DbBackend::Postgres { Kept::Surely } else { Kept::Perhaps };
    let mut inserted = Inserted { kept, txid: None };
    for insert in inserts {
        match insert_once::<S>(tx, insert).await {
            Ok(Inserted { kept: Kept::Surely, txid }) => inserted.txid = txid,
            Ok(perhaps) => inserted = perhaps,
            Err(error) => {
                let undone = !savepoint || undo(tx).await;
                let mut error = fault::classify(store, rows, error);
                if S::BACKEND == DbBackend::Sqlite && undone {
                    error = named(store, tx, rows, error).await;
                }
                return Err(Refused::unless_undone(error, undone).unless_ended(store, tx, mark).await);
            }
        }
    }
    if savepoint && let Err(error) = tx.execute_unprepared("RELEASE SAVEPOINT posthaste_insert").await {
        let undone = undo(tx).await;
        let refused = Refused::unless_undone(fault::classify(store, &[], error), undone);
        return Err(refused.unless_ended(store, tx, mark).await);
    }
    Ok(inserted)
}

/// Undoes what was inserted before an error, and says whether that is certain.
async fn undo(tx: &DatabaseTransaction) -> bool {
    let undo = "ROLLBACK TO SAVEPOINT posthaste_insert; RELEASE SAVEPOINT posthaste_insert";
    tx.execute_unprepared(undo).await.is_ok()
}

async fn insert_once<S: SeaOrmStore>(tx: &DatabaseTransaction, insert: Insert<'_>) -> Result<Inserted, sea_orm::DbErr> {
    let values = insert.parameters.into_iter().map(value).collect::<Result<Vec<_>, _>>()?;
    let statement = Statement::from_sql_and_values(S::BACKEND, insert.sql, values);
    if S::BACKEND != DbBackend::Postgres {
        tx.execute_raw(statement).await?;
        return Ok(Inserted { kept: Kept::Perhaps, txid: None });
    }
    let Some(row) = tx.query_one_raw(statement).await? else {
        return Ok(Inserted { kept: Kept::Perhaps, txid: None });
    };
    let nested: bool = row.try_get("", "nested")?;
    let kept = if nested { Kept::Perhaps } else { Kept::Surely };
    Ok(Inserted { kept, txid: Some(row.try_get("", "txid")?) })
}

/// SQLite says that an id is taken, but not which. As long as none of these rows is in the table, it can be asked.
async fn named<S: SeaOrmStore>(store: &S, tx: &DatabaseTransaction, rows: &[NewRow], error: Error) -> Error {
    let Error::DuplicateId { id } = error else { return error };
    let ids: Vec<_> = rows.iter().map(|row| row.event.id()).collect();
    for some in ids.chunks(MOST_IDS) {
        let found = tx.query_one_raw(look::<S>(&format!("SELECT event_id AS id FROM {}", quoted(store)), some)).await;
        let found: Option<String> = found.ok().flatten().and_then(|row| row.try_get("", "id").ok());
        if let Some(taken) = found.and_then(|found| some.iter().find(|id| id.as_str() == found)) {
            return Error::DuplicateId { id: (*taken).clone() };
        }
    }
    Error::DuplicateId { id }
}

/// A question about the rows of these ids.
fn look<S: SeaOrmStore>(select: &str, ids: &[&EventId]) -> Statement {
    let place = |number: usize| match S::BACKEND {
        DbBackend::Postgres => format!("${number}"),
        _ => "?".to_owned(),
    };
    let places = (1..=ids.len()).map(place).collect::<Vec<_>>().join(", ");
    let values = ids.iter().map(|id| Value::from(id.as_str()));
    Statement::from_sql_and_values(S::BACKEND, format!("{select} WHERE event_id IN ({places})"), values)
}

const OTHER_VERSION: &str =
    "posthaste-sql binds a kind of value that this posthaste-sea-orm does not know: use versions that belong together";

fn value(parameter: Parameter<'_>) -> Result<Value, sea_orm::DbErr> {
    Ok(match parameter {
        Parameter::Text(text) => text.map(Cow::into_owned).into(),
        Parameter::Bytes(bytes) => bytes.map(<[u8]>::to_vec).into(),
        Parameter::Number(number) => number.into(),
        _ => return Err(sea_orm::DbErr::Custom(OTHER_VERSION.to_owned())),
    })
}

/// Whether all these events are in the table, as the transaction sees it.
pub(crate) async fn are_there<S: SeaOrmStore>(
    store: &S,
    tx: &DatabaseTransaction,
    ids: &[&EventId],
) -> Result<bool, Error> {
    Ok(how_many_are_there(store, tx, ids).await? == ids.len())
}

/// How many of these events are in the table, as the transaction sees it.
pub(crate) async fn how_many_are_there<S: SeaOrmStore>(
    store: &S,
    tx: &DatabaseTransaction,
    ids: &[&EventId],
) -> Result<usize, Error> {
    let mut there = 0;
    for some in ids.chunks(MOST_IDS) {
        let count = look::<S>(&format!("SELECT COUNT(*) AS found FROM {}", quoted(store)), some);
        let counted = tx.query_one_raw(count).await;
        let found: i64 = match counted.and_then(|row| row.map_or(Ok(0), |row| row.try_get("", "found"))) {
            Ok(found) => found,
            Err(error) => return Err(fault::classify(store, &[], error)),
        };
        there += usize::try_from(found).unwrap_or_default();
    }
    Ok(there)
}
