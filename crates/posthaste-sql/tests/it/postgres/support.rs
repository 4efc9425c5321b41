//! A database of its own for each test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::Event;
use posthaste_core::store::{Claimed, Lease, RelayStore, WriteStore};
use posthaste_sql::PgStore;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::support::{claim_of, unleased};

/// Where the server is.
const URL: &str = "POSTHASTE_TEST_POSTGRES_URL";

/// How long a test waits for something before it has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database that is dropped at the end.
pub(crate) struct Database {
    server: PgConnectOptions,
    name: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let url = std::env::var(URL).unwrap_or_else(|_| {
            panic!("{URL} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first, for a server")
        });
        let server: PgConnectOptions = url.parse().unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("posthaste_sql_test_{}_{number}", std::process::id());
        // A process of the same id may have ended before its time.
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        execute(&server, drop).await;
        execute(&server, format!("CREATE DATABASE {name}")).await;
        Self { server, name }
    }

    pub(crate) fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }

    /// Where the server is.
    #[cfg(feature = "tls")]
    pub(crate) fn address(&self) -> (String, u16) {
        (self.server.get_host().to_owned(), self.server.get_port())
    }

    /// The URL of this database, with these parameters instead of those of the server.
    pub(crate) fn url(&self, parameters: &str) -> String {
        let mut url = self.options().to_url_lossy();
        url.set_query(Some(parameters));
        url.into()
    }

    /// The same, by another address.
    #[cfg(feature = "tls")]
    pub(crate) fn url_at(&self, (host, port): (&str, u16), parameters: &str) -> String {
        let mut url = self.options().host(host).port(port).to_url_lossy();
        url.set_query(Some(parameters));
        url.into()
    }

    /// A store without a table.
    pub(crate) async fn empty(&self) -> PgStore {
        self.store_with(PgPoolOptions::new().max_connections(8)).await
    }

    /// A migrated store.
    pub(crate) async fn store(&self) -> PgStore {
        let store = self.empty().await;
        store.migrate().await.unwrap();
        store
    }

    /// A migrated store on a pool of one connection.
    pub(crate) async fn store_of_one(&self) -> PgStore {
        let store = self.store_with(PgPoolOptions::new().max_connections(1)).await;
        store.migrate().await.unwrap();
        store
    }

    pub(crate) async fn store_with(&self, pool: PgPoolOptions) -> PgStore {
        PgStore::new(pool.connect_with(self.options()).await.unwrap())
    }

    /// A connection as another program has one.
    pub(crate) async fn connection(&self) -> PgConnection {
        PgConnection::connect_with(&self.options()).await.unwrap()
    }

    /// How many connections of this database fit the condition.
    pub(crate) async fn backends(&self, condition: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND {condition}", self.name);
        let mut connection = PgConnection::connect_with(&self.server).await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap()
    }

    /// Changes a setting of this database, for connections that are made from now on.
    pub(crate) async fn alter(&self, change: &str) {
        execute(&self.server, format!("ALTER DATABASE {} {change}", self.name)).await;
    }

    /// Ends the connections of this database that fit the condition, from the side of the server.
    pub(crate) async fn terminate(&self, condition: &str) {
        let sql = format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{}' AND {condition}",
            self.name
        );
        execute(&self.server, sql).await;
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), std::mem::take(&mut self.name));
        // A destructor cannot wait in the runtime of its test.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(execute(&server, format!("DROP DATABASE {name} WITH (FORCE)")));
        });
        let dropped = dropping.join();
        assert!(dropped.is_ok() || std::thread::panicking(), "the database could not be dropped");
    }
}

async fn execute(options: &PgConnectOptions, sql: String) {
    let mut connection = PgConnection::connect_with(options).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// Carries out SQL through the pool of a store.
pub(crate) async fn sql(store: &PgStore, sql: impl Into<String>) -> u64 {
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(store.pool()).await.unwrap().rows_affected()
}

/// Writes events in a transaction of the store.
pub(crate) async fn write(store: &PgStore, events: impl IntoIterator<Item = Event>) {
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased(events)).await.unwrap();
    store.commit(tx).await.unwrap();
}

/// Claims up to that many rows and says under which lease.
pub(crate) async fn claim(store: &PgStore, limit: usize) -> (Lease, Claimed) {
    let claim = claim_of(limit);
    let claimed = store.claim(&claim).await.unwrap();
    (claim.lease, claimed)
}

/// The output of a future that should end soon.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// Asks again and again until the answer is yes, where nothing gives a signal.
pub(crate) async fn eventually(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
