//! What goes wrong between an outbox and its database, as far as it needs no server.

use std::sync::Arc;
use std::time::Duration;

use posthaste::store::{BoxFuture, Claim, Claimed, CommitError, Error, Lease, RelayStore, Settled, Settlement};
use posthaste::{
    Delivery, Dispatcher, Event, EventId, MemoryStore, MySqlStore, Options, Outbox, Partitions, PgStore, Poller,
    Registry, SqliteStore, TableName, detect,
};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use super::Book;

pub(super) async fn write(book: &mut Book) {
    urls(book).await;
    names(book).await;
    servers(book).await;
    files(book).await;
    schemas(book).await;
    writes(book).await;
    commits(book).await;
    polls(book).await;
}

async fn urls(book: &mut Book) {
    let mut add = |call: &str, error: Error| book.add("store", call, &error);
    for url in ["orders.db", "oracle://scott:tiger@host/shop", "s3cr3t-and-long-enough:x"] {
        add(&format!("detect({url:?})"), detect(url).unwrap_err());
    }
    add("SqliteStore::connect, a URL of MySQL", SqliteStore::connect("mysql://host/shop").await.unwrap_err());
    add("SqliteStore::connect, an unknown mode", SqliteStore::connect("sqlite:x.db?mode=rx").await.unwrap_err());
    add("PgStore::connect, a URL of SQLite", PgStore::connect("sqlite:orders.db").await.unwrap_err());
    add("PgStore::connect, a port that is none", PgStore::connect("postgres://host:many/shop").await.unwrap_err());
    add("MySqlStore::connect, a URL of PostgreSQL", MySqlStore::connect("postgres://host/shop").await.unwrap_err());
    add("MySqlStore::connect, a port that is none", MySqlStore::connect("mysql://host:many/shop").await.unwrap_err());
    for url in [
        "postgres://user:secret@host/shop?apikey=5",
        "postgres://user:secret@host/shop?sslMode=require",
        "postgres://host/shop?sslmode=require&sslrootcert=ca.pem",
        "postgres://host/shop?sslmode=verify-full&sslrootcert=nowhere%2Fca.pem",
    ] {
        add(&format!("PgStore::connect({url:?})"), PgStore::connect(url).await.unwrap_err());
    }
    let url = "mysql://user:secret@host/shop?requireSSL=true";
    add(&format!("MySqlStore::connect({url:?})"), MySqlStore::connect(url).await.unwrap_err());
}

async fn names(book: &mut Book) {
    let memory = SqliteStore::connect("sqlite::memory:").await.unwrap();
    let mut add = |call: &str, error: Error| book.add("store", call, &error);
    add(r#"TableName::parse("orders; DROP TABLE x")"#, TableName::parse("orders; DROP TABLE x").unwrap_err());
    add(r#"SqliteStore::with_table("sqlite_orders")"#, memory.with_table("sqlite_orders").err().unwrap());
}

/// A port at which nobody listens: it was free a moment ago.
async fn closed_port() -> u16 {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

async fn servers(book: &mut Book) {
    let port = closed_port().await;
    book.varying.push((format!("127.0.0.1:{port}"), "127.0.0.1:PORT"));
    let postgres = PgStore::connect(&format!("postgres://user:secret@127.0.0.1:{port}/shop")).await;
    book.add("store", "PgStore::connect, nobody there", &postgres.unwrap_err());
    let mysql = MySqlStore::connect(&format!("mysql://user:secret@127.0.0.1:{port}/shop")).await;
    book.add("store", "MySqlStore::connect, nobody there", &mysql.unwrap_err());

    let pool = sqlx::postgres::PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(50))
        .connect_lazy(&format!("postgres://127.0.0.1:{port}/shop"))
        .unwrap();
    let store = PgStore::new(pool.clone());
    book.add("store", "PgStore::maintain_partitions, not partitioned", &store.maintain_partitions().await.unwrap_err());
    let partitioned = store.partitioned(Partitions::daily());
    book.add("store", "PgStore::migrate, no connection in time", &partitioned.migrate().await.unwrap_err());
    pool.close().await;
    book.add("store", "PgStore::migrate, a pool that was closed", &partitioned.migrate().await.unwrap_err());
}

async fn files(book: &mut Book) {
    let directory = tempfile::tempdir().unwrap();
    book.varying.push((directory.path().display().to_string(), "DIRECTORY"));
    let missing = SqliteStore::open(directory.path().join("missing/orders.db")).await;
    book.add("store", "SqliteStore::open, in a directory that is missing", &missing.unwrap_err());
    let text = directory.path().join("text.db");
    std::fs::write(&text, "this is a text, and long enough to be looked at; ".repeat(100)).unwrap();
    book.add("store", "SqliteStore::open, a file that is no database", &SqliteStore::open(&text).await.unwrap_err());

    let file = directory.path().join("orders.db");
    let store = SqliteStore::open(&file).await.unwrap();
    store.migrate().await.unwrap();
    let read_only = SqliteStore::connect(&format!("sqlite:{}?mode=ro", file.display())).await.unwrap();
    let reader = Outbox::writer_only(read_only).start().await.unwrap();
    let event = Event::builder("OrderPlaced").id("order-42").json_text("{}");
    let error = reader.begin().await.unwrap().write(event).await.unwrap_err();
    book.add("write", "Transaction::write, a file that is only read", &error);

    // A pool of the user's that does not wait, so that neither does this test.
    let options = SqliteConnectOptions::new().filename(&file).busy_timeout(Duration::from_millis(1));
    let impatient = SqliteStore::new(sqlx::SqlitePool::connect_lazy_with(options));
    let outbox = Outbox::writer_only(impatient).start().await.unwrap();
    let mut other = SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    book.add("store", "Outbox::begin, while another process writes", &outbox.begin().await.unwrap_err());
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    store.close().await;
    let closed = Outbox::writer_only(store).start().await.unwrap();
    book.add("store", "Outbox::begin, after SqliteStore::close", &closed.begin().await.unwrap_err());
}

async fn schemas(book: &mut Book) {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    let execute = async |sql: &str| sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(store.pool()).await.unwrap();
    execute("CREATE TABLE outbox_event (id INTEGER)").await;
    book.add("store", "SqliteStore::migrate, another table has the name", &store.migrate().await.unwrap_err());
    execute("DROP TABLE outbox_event").await;
    store.migrate().await.unwrap();
    execute("UPDATE posthaste_migration SET version = 99 WHERE version = 1").await;
    book.add("store", "SqliteStore::migrate, a table of a newer release", &store.migrate().await.unwrap_err());
    let elsewhere = store.with_table("billing.outbox_event").unwrap();
    book.add("store", "SqliteStore::migrate, a schema that is not attached", &elsewhere.migrate().await.unwrap_err());
}

async fn writes(book: &mut Book) {
    let event = || Event::builder("OrderPlaced").json_text("{}");
    let outbox = Outbox::writer_only(MemoryStore::new()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let unfinished = || Event::builder("OrderPlaced");
    book.add("write", "Transaction::write, an event that cannot be built", &tx.write(unfinished()).await.unwrap_err());
    let error = tx.write_all([event(), event(), unfinished(), event()]).await.unwrap_err();
    book.add("write", "Transaction::write_all, one of four cannot be built", &error);
    tx.write(event().id("order-42")).await.unwrap();
    let error = tx.write(event().id("order-42")).await.unwrap_err();
    book.add("write", "Transaction::write, an id that is taken", &error);
    if let posthaste::WriteError::Store { error, .. } = &error {
        book.see("store", &format!("{error:?}"));
    }
    let error = tx.write_all([event().id("order-43"), event().id("order-42")]).await.unwrap_err();
    book.add("write", "Transaction::write_all, the id of the second is taken", &error);
    let never_migrated = SqliteStore::connect("sqlite::memory:").await.unwrap();
    let outbox = Outbox::builder(never_migrated).listen_all(|_: Delivery| async {}).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let error = tx.write(event().id("order-42")).await.unwrap_err();
    book.add("write", "Transaction::write, a table that was never migrated", &error);
    let error = tx.write_all([event().id("order-42"), event().id("order-43")]).await.unwrap_err();
    book.add("write", "Transaction::write_all, a table that was never migrated", &error);
    drop(tx);
    outbox.shutdown_now().await;
}

async fn commits(book: &mut Book) {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql(
        "PRAGMA foreign_keys = ON; CREATE TABLE orders (id INTEGER PRIMARY KEY); \
         CREATE TABLE lines (of INTEGER REFERENCES orders DEFERRABLE INITIALLY DEFERRED)",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let outbox = Outbox::writer_only(store).start().await.unwrap();

    let mut tx = outbox.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO lines VALUES (7)").execute(&mut *tx).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)));
    book.add("commit", "Transaction::commit, a deferred constraint is broken", &error);
    if let CommitError::NotCommitted(error) = &error {
        book.see("store", &format!("{error:?}"));
    }

    let mut tx = outbox.begin().await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut *tx).await.unwrap();
    book.add("commit", "Transaction::commit, after a COMMIT by hand", &tx.commit().await.unwrap_err());
}

/// A store that does not answer to a claim, or panics instead.
struct Broken {
    panics: bool,
}

impl RelayStore for Broken {
    fn claim<'a>(&'a self, _: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        assert!(!self.panics, "index out of bounds");
        Box::pin(std::future::pending())
    }

    fn settle<'a>(&'a self, _: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(std::future::pending())
    }

    fn renew<'a>(&'a self, _: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        Box::pin(std::future::pending())
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(std::future::pending())
    }
}

async fn polls(book: &mut Book) {
    for (call, panics) in [("Poller::poll, no answer", false), ("Poller::poll, a store that panics", true)] {
        let store: Arc<dyn RelayStore> = Arc::new(Broken { panics });
        let options = Options { lease: Duration::from_millis(20), ..Options::default() };
        let dispatcher =
            Dispatcher::builder(Arc::clone(&store), Registry::new()).options(options.clone()).start().unwrap();
        let poller = Poller::builder(store, Arc::clone(&dispatcher) as Arc<_>).options(options).build().unwrap();
        book.add("store", call, &poller.poll(1).await.unwrap_err());
        dispatcher.close_now().await;
    }
}
