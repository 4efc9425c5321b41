//! A fresh database of either kind, and connections of diesel-async to it.

use diesel::sqlite::SqliteConnection;
use diesel_async::sync_connection_wrapper::SyncConnectionWrapper;
use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use posthaste_conformance::{Fixture, PgFixture, SqliteFixture, Tables};
use posthaste_diesel::DieselStore;

/// A database on which diesel-async has connections.
pub(crate) trait Database: Tables<Store: DieselStore> {
    type Conn: AsyncConnection<Backend = <Self::Store as DieselStore>::Backend> + 'static;

    /// Another connection.
    async fn connect(&self) -> Self::Conn;

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

impl Database for PgFixture {
    type Conn = AsyncPgConnection;

    async fn connect(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.plain_url()).await.unwrap()
    }
}

impl Database for SqliteFixture {
    type Conn = SyncConnectionWrapper<SqliteConnection>;

    async fn connect(&self) -> Self::Conn {
        let file = self.store().pool().connect_options().get_filename().to_str().unwrap().to_owned();
        let mut conn = Self::Conn::establish(&file).await.unwrap();
        conn.batch_execute("PRAGMA busy_timeout = 5000; PRAGMA foreign_keys = ON").await.unwrap();
        conn
    }
}
