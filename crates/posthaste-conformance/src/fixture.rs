//! What a case needs of a store besides its traits.

mod mariadb;
mod memory;
mod postgres;
mod sqlite;

use std::future::Future;
use std::time::Duration;

use posthaste_core::store::{Error, Store, WriteStore};
use posthaste_core::{EventId, Timestamp};
use posthaste_sql::Scheme;
use sqlx::{ColumnIndex, Decode, Row, Type};

pub use mariadb::MariaDbFixture;
pub use memory::MemoryFixture;
pub use postgres::{PartitionedFixture, PgFixture};
pub use sqlite::SqliteFixture;

/// A transaction that somebody else began.
pub type ForeignTx<F> = <<F as Fixture>::Store as WriteStore>::Tx<'static>;

/// A fresh, empty store of some kind, and what only its kind can do. A new database costs one implementation.
pub trait Fixture: Sized + Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// Whether a transaction can go on after a statement of it was refused.
    const GOES_ON_AFTER_ERROR: bool;

    /// How many rows the backlog of case 58 has: as many as this store drains in a few seconds of a debug build.
    const BACKLOG: usize;

    /// How much longer than it was told the scheduled retention may keep rows: until they can be dropped together.
    const KEPT_LONGER: Duration = Duration::ZERO;

    /// A fresh, empty store.
    fn create() -> impl Future<Output = Self> + Send;

    /// A fresh, empty store with one connection, where it has connections.
    fn narrow() -> impl Future<Output = Self> + Send;

    /// The store. Clones share everything.
    fn store(&self) -> Self::Store;

    /// The store, told to delete what is DONE.
    fn deleting_done(&self) -> Self::Store;

    /// The same database as another process would open it, sharing nothing with [`store`](Self::store) that need not be.
    fn node(&self) -> impl Future<Output = Self::Store> + Send;

    /// Begins a transaction of which the store knows nothing.
    fn begin_foreign(&self) -> impl Future<Output = ForeignTx<Self>> + Send;

    /// Commits it.
    fn commit_foreign(&self, tx: ForeignTx<Self>) -> impl Future<Output = ()> + Send;

    /// Prepares the store for lanes.
    fn prepare_lanes(&self) -> impl Future<Output = ()> + Send;

    /// Makes time pass for all rows.
    fn advance(&self, length: Duration) -> impl Future<Output = ()> + Send;

    /// Damages a row so that it is no event any more.
    fn damage(&self, id: &EventId) -> impl Future<Output = ()> + Send;

    /// Waits until every connection is back in the pool, and fails if one has a transaction open.
    fn assert_no_open_transaction(&self) -> impl Future<Output = ()> + Send;
}

/// A store whose relays can own rows by lanes.
pub trait Lanes: Fixture {
    /// How many lanes it has.
    const LANES: u16;

    /// How many events the hot order of case 86 has: as many as this store delivers one by one in a few seconds of a debug build.
    const HOT: usize;

    /// Whether others can write while a transaction that has written is open.
    const WRITES_BESIDE: bool;

    /// A fresh, empty store that is prepared for lanes.
    fn with_lanes() -> impl Future<Output = Self> + Send {
        async {
            let fixture = Self::create().await;
            fixture.prepare_lanes().await;
            fixture
        }
    }
}

/// A store whose rows are in a table of a database.
pub trait Tables: Fixture {
    /// A schema that exists in every database.
    const SCHEMA: &'static str;

    /// A schema that exists in the database of this fixture.
    fn schema(&self) -> String {
        Self::SCHEMA.to_owned()
    }

    /// URLs of this kind of database, in all spellings, and what they are recognised as.
    const URLS: (&'static [&'static str], Scheme);

    /// A database without a table.
    fn empty() -> impl Future<Output = Self> + Send;

    /// The store with another table, which is not created.
    ///
    /// # Errors
    /// When the name is refused.
    fn with_table(store: Self::Store, name: &str) -> Result<Self::Store, Error>;

    /// Creates or upgrades the table.
    ///
    /// # Errors
    /// What the store says.
    fn migrate(store: &Self::Store) -> impl Future<Output = Result<(), Error>> + Send;

    /// The SQL of all migrations.
    fn migration_sql(store: &Self::Store) -> String;

    /// The SQL of the migrations that are still to be carried out.
    fn pending_migration_sql(store: &Self::Store) -> impl Future<Output = String> + Send;

    /// Carries out SQL as it is.
    fn execute(&self, sql: &str) -> impl Future<Output = ()> + Send;

    /// Carries out a statement of the user's on a connection.
    ///
    /// # Errors
    /// What the database says.
    fn say(
        connection: &mut <Self::Store as WriteStore>::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Prepares a statement of another program, with `?` for each value, and carries it out. How many rows it changed.
    fn change(&self, sql: &str, values: &[Value]) -> impl Future<Output = u64> + Send;

    /// Prepares a query of another program for pending rows, with `?` for each value, and carries it out.
    fn poll(&self, sql: &str, values: &[Value]) -> impl Future<Output = Vec<Polled>> + Send;
}

/// A store on a server, which has a clock of its own.
pub trait Served: Tables {
    /// Has a transaction that has changed more rows than another one win a deadlock with it.
    const WIN: &'static str;

    /// Where the database of this fixture is.
    fn url(&self) -> String;
}

/// What another program binds to a statement.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A text, or NULL.
    Text(Option<&'static str>),
    /// A number.
    Number(i64),
    /// A moment, as the columns of times have it.
    Moment(Timestamp),
}

/// What another program reads of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the columns")]
pub struct Polled {
    pub event_id: String,
    pub payload: Option<String>,
    pub headers: Option<String>,
    pub attempts: i32,
}

/// Reads what a query for pending rows has found, in any database.
fn polled<R: Row>(row: &R) -> Polled
where
    for<'a> &'a str: ColumnIndex<R>,
    for<'a> String: Decode<'a, R::Database> + Type<R::Database>,
    for<'a> Option<String>: Decode<'a, R::Database> + Type<R::Database>,
    for<'a> i32: Decode<'a, R::Database> + Type<R::Database>,
{
    Polled {
        event_id: row.get("event_id"),
        payload: row.get("payload"),
        headers: row.get("headers"),
        attempts: row.get("attempts"),
    }
}
