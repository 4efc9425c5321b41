//! Inserts for transactions of other drivers than sqlx.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use posthaste_core::store::{Error, NewRow, Store};
use posthaste_core::{Event, EventId};
use sqlx::error::{DatabaseError, ErrorKind};

/// A store into whose table any driver can insert, in a transaction of its own.
///
/// Everything that an adapter needs, together with [`Outbox::prepare`](posthaste_core::Outbox::prepare), which gives the
/// rows, and the [`Receipt`](posthaste_core::Receipt) that comes with them:
///
/// ```
/// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
/// use posthaste::driver::{DriverStore, Parameter};
/// use posthaste::store::Store;
/// use posthaste::{IntoEvent, Outbox, Receipt, WriteError};
///
/// /// Writes an event by means of a driver that takes any statement.
/// fn write<S: Store + DriverStore>(
///     outbox: &Outbox<S>,
///     event: impl IntoEvent,
///     execute: impl Fn(&str, &[Parameter<'_>]),
/// ) -> Result<Receipt, WriteError> {
///     let receipt = outbox.prepare([event])?;
///     for insert in outbox.store().inserts(receipt.rows_to_insert()) {
///         execute(&insert.sql, &insert.parameters);
///     }
///     Ok(receipt) // to be dispatched after the commit
/// }
/// ```
pub trait DriverStore: Store {
    /// The statements that insert these rows, in the order in which they are to be carried out. On MySQL and SQLite a transaction
    /// goes on after one that was refused, with the rows of those before it: set a savepoint around several, or drop the receipt
    /// ([`never_written`](posthaste_core::Receipt::never_written) is only for what is not there at all).
    fn inserts<'r>(&self, rows: &'r [NewRow]) -> Vec<Insert<'r>>;

    /// What the database meant when it refused one of them.
    fn refused(&self, rows: &[NewRow], refusal: Refusal) -> Error;
}

/// A statement that inserts rows.
///
/// On PostgreSQL it returns one row with the columns `nested`, true if the transaction has a savepoint in which this happened,
/// so that the [`Receipt`](posthaste_core::Receipt) has to be told ([`nested`](posthaste_core::Receipt::nested)), and `known`,
/// false if that could not be seen, as in a table in partitions; `nested` is then true. The column `txid` has the number of the
/// transaction: if `txid_current_if_assigned()` is another one when you commit, a statement of somebody's own has ended this one, and
/// the receipt has to be told as well. On the other databases it returns nothing.
#[derive(Clone, Debug)]
pub struct Insert<'r> {
    /// The statement. Its parameters are `$1`, `$2` and so on for PostgreSQL, and `?` for the others.
    pub sql: String,
    /// What to bind, in their order.
    pub parameters: Vec<Parameter<'r>>,
}

/// A value to bind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parameter<'r> {
    /// Text.
    Text(Option<Cow<'r, str>>),
    /// Bytes.
    Bytes(Option<&'r [u8]>),
    /// A number of 64 bits.
    Number(Option<i64>),
}

/// What a database said when it refused a statement of another driver.
#[derive(Debug)]
pub struct Refusal {
    /// The SQLSTATE of PostgreSQL, the number of MySQL, the extended code of SQLite. Empty if it is not known.
    pub code: String,
    /// What it said.
    pub message: String,
    /// More of it, if there is more.
    pub detail: Option<String>,
    /// The table that it is about.
    pub table: Option<String>,
    /// The constraint that was violated.
    pub constraint: Option<String>,
}

impl Refusal {
    /// One of which nothing but the code and the message is known.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), detail: None, table: None, constraint: None }
    }

    /// The same as an error of sqlx, so that both have one meaning.
    pub(crate) fn into_sqlx(self) -> sqlx::Error {
        sqlx::Error::Database(Box::new(self))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Refusal {}

impl DatabaseError for Refusal {
    fn message(&self) -> &str {
        &self.message
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        (!self.code.is_empty()).then_some(Cow::Borrowed(&*self.code))
    }

    fn constraint(&self) -> Option<&str> {
        self.constraint.as_deref()
    }

    fn table(&self) -> Option<&str> {
        self.table.as_deref()
    }

    fn kind(&self) -> ErrorKind {
        match &*self.code {
            // PostgreSQL; MySQL; SQLite, of a primary key and of another index.
            "23505" | "1062" | "1555" | "2067" => ErrorKind::UniqueViolation,
            _ => ErrorKind::Other,
        }
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
}

/// The headers of an event as they are stored.
pub(crate) fn headers(event: &Event) -> Option<String> {
    (!event.headers().is_empty()).then(|| serde_json::to_string(event.headers()).expect("a map of strings is JSON"))
}

/// Which of these ids was taken, by what the database says of it, as far as it does.
pub(crate) fn taken_id(rows: &[NewRow], said: impl Fn(&EventId) -> bool) -> EventId {
    let ids = || rows.iter().map(|row| row.event.id());
    let mut seen = std::collections::HashSet::new();
    let named = ids().find(|id| said(id));
    let twice = || ids().find(|id| !seen.insert(*id));
    // A server may be told to keep details to itself; then one of them is to blame.
    named.or_else(twice).or_else(|| ids().next()).cloned().expect("nothing is refused without rows")
}
