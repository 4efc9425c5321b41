//! A fresh database of either kind, and connections of diesel-async to it.

use diesel::dsl::sql;
use diesel::sql_types::BigInt;
use diesel::sqlite::SqliteConnection;
use diesel::{ConnectionError, ConnectionResult};
use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use posthaste_conformance::{Fixture, PgFixture, SqliteFixture, Tables};
use posthaste_diesel::DieselStore;

/// A database on which diesel-async has connections.
pub(crate) trait Database: Tables<Store: DieselStore> {
    type Conn: AsyncConnection<Backend = <Self::Store as DieselStore>::Backend> + 'static;

    /// Where it is.
    fn address(&self) -> String;

    /// A connection to that address.
    async fn open(address: &str) -> ConnectionResult<Self::Conn>;

    /// Another connection.
    async fn connect(&self) -> Self::Conn {
        Self::open(&self.address()).await.unwrap()
    }

    /// How many events are leased to nobody, as a connection sees it.
    fn unleased(conn: &mut Self::Conn) -> impl Future<Output = i64> + Send;

    /// A table with a reference that is checked at the commit.
    const ORDERS: &str = "CREATE TABLE customers (id INTEGER PRIMARY KEY); \
        CREATE TABLE orders (total INTEGER NOT NULL, customer INTEGER REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED)";
}

/// A database with a table of orders, too.
pub(crate) async fn create<D: Database>() -> D {
    let database = D::create().await;
    database.connect().await.batch_execute(D::ORDERS).await.unwrap();
    database
}

const UNLEASED: &str = "(SELECT COUNT(*) FROM outbox_event WHERE locked_by IS NULL)";

impl Database for PgFixture {
    type Conn = AsyncPgConnection;

    fn address(&self) -> String {
        self.plain_url()
    }

    async fn open(address: &str) -> ConnectionResult<Self::Conn> {
        AsyncPgConnection::establish(address).await
    }

    async fn unleased(conn: &mut Self::Conn) -> i64 {
        diesel::select(sql::<BigInt>(UNLEASED)).get_result(conn).await.unwrap()
    }
}

impl Database for SqliteFixture {
    type Conn = SyncConnectionWrapper<SqliteConnection>;

    fn address(&self) -> String {
        self.store().pool().connect_options().get_filename().to_str().unwrap().to_owned()
    }

    async fn open(address: &str) -> ConnectionResult<Self::Conn> {
        let mut conn = Self::Conn::establish(address).await?;
        let set_up = conn.batch_execute("PRAGMA busy_timeout = 5000; PRAGMA foreign_keys = ON").await;
        set_up.map_err(ConnectionError::CouldntSetupConfiguration)?;
        Ok(conn)
    }

    async fn unleased(conn: &mut Self::Conn) -> i64 {
        diesel::select(sql::<BigInt>(UNLEASED)).get_result(conn).await.unwrap()
    }
}
