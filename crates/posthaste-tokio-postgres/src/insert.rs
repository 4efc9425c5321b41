//! Inserting rows by means of tokio-postgres.

use posthaste_core::store::{self, NewRow};
use posthaste_sql::PgStore;
use posthaste_sql::driver::{DriverStore, Parameter};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Transaction};

use crate::fault;

/// Where rows were inserted, by what the database says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Transaction,
    /// In a table in partitions it cannot be seen.
    NotSeen,
    Savepoint,
}

/// What the database says of rows that were inserted.
pub(crate) struct Inserted {
    pub(crate) place: Place,
    /// The number of the transaction.
    pub(crate) txid: Option<i64>,
}

/// Why rows were not inserted.
pub(crate) enum Failure {
    /// The database refused them: nothing of them is in the transaction.
    Refused(store::Error),
    /// There was no answer that says so.
    Open(store::Error),
}

/// What is said of a parameter that is new.
const OTHER_VERSION: &str = "posthaste-sql binds a kind of value that this posthaste-tokio-postgres does not know: use versions that \
                             belong together";

/// Each statement goes to the server and back once, without being prepared, so that it works behind any pooler. The
/// first that is refused ends the transaction, or the savepoint, with all of them.
pub(crate) async fn insert(store: &PgStore, tx: &Transaction<'_>, rows: &[NewRow]) -> Result<Inserted, Failure> {
    let inserts = store.inserts(rows);
    // All of them before the first is sent.
    let typed = inserts.iter().map(|insert| insert.parameters.iter().map(typed).collect::<Option<Vec<_>>>());
    let Some(typed) = typed.collect::<Option<Vec<_>>>() else {
        return Err(Failure::Refused(store::Error::Refused(OTHER_VERSION.into())));
    };
    let mut inserted = Inserted { place: Place::Transaction, txid: None };
    for (insert, parameters) in inserts.iter().zip(&typed) {
        match tx.query_typed(&insert.sql, parameters).await {
            Ok(answer) => {
                let txid = answer.first().and_then(|row| row.try_get("txid").ok());
                inserted = Inserted { place: inserted.place.max(place_of(&answer)), txid };
            }
            Err(error) => {
                let refused = error.as_db_error().is_some();
                let error = fault::of_insert(store, rows, error);
                return Err(if refused { Failure::Refused(error) } else { Failure::Open(error) });
            }
        }
    }
    Ok(inserted)
}

/// Nothing for a kind that is new.
fn typed<'p>(parameter: &'p Parameter<'_>) -> Option<(&'p (dyn ToSql + Sync), Type)> {
    Some(match parameter {
        Parameter::Text(text) => (text, Type::TEXT),
        Parameter::Bytes(bytes) => (bytes, Type::BYTEA),
        Parameter::Number(number) => (number, Type::INT8),
        _ => return None,
    })
}

fn place_of(answer: &[Row]) -> Place {
    let says = |column| answer.first().and_then(|row| row.try_get::<_, bool>(column).ok());
    match (says("known"), says("nested")) {
        (Some(true), Some(false)) => Place::Transaction,
        (Some(false), _) => Place::NotSeen,
        _ => Place::Savepoint,
    }
}
