//! What is particular to MySQL and MariaDB.

mod admin;
mod cancel;
mod ended;
mod fault;
mod lanes;
mod migration;
mod procedure;
mod relay;
#[cfg(feature = "tls")]
mod tls;
mod undone;
mod warm;
#[cfg(not(feature = "tls"))]
mod without_tls;
mod write;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_sql::MySqlStore;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tokio::sync::OnceCell;

use crate::between::Between;

/// A database that goes with the test.
struct Database {
    name: String,
    /// Keeps others waiting who have users of their own.
    alone: OnceCell<MySqlConnection>,
}

fn server() -> MySqlConnectOptions {
    let url = std::env::var("POSTHASTE_TEST_MYSQL_URL").expect(
        "POSTHASTE_TEST_MYSQL_URL names no server to test with, as in mysql://root@127.0.0.1:3306; \
         scripts/test starts one and sets it",
    );
    url.parse::<MySqlConnectOptions>().unwrap().disable_statement_logging()
}

impl Database {
    async fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("posthaste_{}_{number}", std::process::id());
        let mut connection = server().connect().await.unwrap();
        let create = format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name} CHARACTER SET latin1");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        Self { name, alone: OnceCell::new() }
    }

    fn options(&self) -> MySqlConnectOptions {
        server().database(&self.name)
    }

    /// Where the server is.
    fn address(&self) -> (String, u16) {
        (server().get_host().to_owned(), server().get_port())
    }

    /// Options of a user who may do everything in this database and nothing elsewhere, and goes with it. The password is `x`.
    ///
    /// There is one such user at a time: a test among those that have one sets the server to read only, which holds for
    /// nobody else.
    async fn user(&self, with: &str) -> MySqlConnectOptions {
        self.alone
            .get_or_init(async || {
                let mut connection = self.connection().await;
                let locked: Option<i64> = sqlx::query_scalar("SELECT GET_LOCK('posthaste tests with users', 60)")
                    .fetch_one(&mut connection)
                    .await
                    .unwrap();
                assert_eq!(locked, Some(1), "other tests with users take too long");
                connection
            })
            .await;
        let user = self.user_name();
        let create = format!(
            "DROP USER IF EXISTS {user}; CREATE USER {user} IDENTIFIED BY 'x' {with}; GRANT ALL ON {}.* TO {user}",
            self.name
        );
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut self.connection().await).await.unwrap();
        self.options().username(&user).password("x")
    }

    fn user_name(&self) -> String {
        format!("{}_u", self.name)
    }

    /// A pool as another process might have one.
    async fn pool(&self, connections: u32) -> MySqlPool {
        pool(connections).connect_with(self.options()).await.unwrap()
    }

    /// A store without a table.
    async fn empty(&self) -> MySqlStore {
        MySqlStore::new(self.pool(8).await)
    }

    /// A migrated store.
    async fn store(&self) -> MySqlStore {
        let store = self.empty().await;
        store.migrate().await.unwrap();
        store
    }

    /// A migrated store on a pool of one connection.
    async fn store_of_one(&self) -> MySqlStore {
        let store = MySqlStore::new(self.pool(1).await);
        store.migrate().await.unwrap();
        store
    }

    /// A migrated store on a pool of one connection, which never finds an answer without having waited for it: the
    /// answer comes through a task that has its turn only then.
    async fn waiting_store_of_one(&self) -> MySqlStore {
        let port = Between::Honest.start(self.address()).await;
        let options = self.options().host("127.0.0.1").port(port);
        let store = MySqlStore::new(pool(1).connect_with(options).await.unwrap());
        store.migrate().await.unwrap();
        store
    }

    /// A connection of its own.
    async fn connection(&self) -> MySqlConnection {
        self.options().connect().await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let user = self.user_name();
        // A test that failed may have left a transaction open, and the database with it.
        execute_in_a_destructor(format!(
            "SET lock_wait_timeout = 5; DROP USER IF EXISTS {user}; DROP DATABASE {}",
            self.name
        ));
    }
}

/// Carries out statements as far as it goes, where nobody can wait in the runtime of the test.
fn execute_in_a_destructor(sql: String) {
    let execute = async move {
        let mut connection = server().connect().await.unwrap();
        let _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::spawn(move || runtime.block_on(execute)).join().unwrap();
}

fn pool(connections: u32) -> MySqlPoolOptions {
    MySqlPoolOptions::new().max_connections(connections).acquire_timeout(Duration::from_secs(20))
}

/// Carries out a statement of somebody else.
async fn execute(store: &MySqlStore, sql: &str) {
    store.pool().execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
}

/// Waits until that many transactions of a database wait for locks.
async fn until_waiting(database: &Database, transactions: i64) {
    let mut connection = database.connection().await;
    let waiting = "SELECT COUNT(*) FROM information_schema.innodb_trx AS t \
                   JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id \
                   WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()";
    let looked = async {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut connection).await.unwrap() < transactions {
            // The server refreshes this view only for those who have not looked for a tenth of a second.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looked).await.unwrap();
}
