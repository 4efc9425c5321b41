//! Databases, outboxes on them, and who watches them.

use posthaste_conformance::testing::{Witness, event};
use posthaste_conformance::{
    Fixture, Inbox, MariaDbFixture, Meter, PgFixture, Served, SqliteFixture, Tables, Tap, no_interval,
};
use posthaste_core::store::{AdminStore, RowState};
use posthaste_core::{EventId, Options, Outbox};
use posthaste_sea_orm::{OutboxExt, SeaOrmStore};
use sea_orm::sqlx::sqlite::SqlitePoolOptions;
use sea_orm::sqlx::{self, Row};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, IsolationLevel, SqliteTransactionMode, Statement,
    TransactionOptions,
};
use tokio::task::JoinSet;

use crate::between::{Cut, through};

/// A database of its own, and SeaORM on the pool of its store.
pub(crate) trait Sea: Tables<Store: SeaOrmStore> {
    /// Whether a row says that it was written outside of any savepoint.
    const TELLS: bool = false;

    /// Whether a statement of SeaORM's can be dropped in the middle. On MySQL and MariaDB sqlx then waits for answers that have
    /// come already, and SeaORM has no way to close such a connection.
    const STATEMENTS_CAN_BE_CUT: bool = true;

    /// At how many places a transaction with a few statements can be cut at least: at each, where every answer is waited for.
    const PLACES: usize = 6;

    /// Options that a transaction does not have by itself.
    fn options() -> TransactionOptions {
        TransactionOptions { isolation_level: Some(IsolationLevel::Serializable), ..TransactionOptions::default() }
    }

    /// The transaction has these options, as the database says. Nothing was done in it.
    async fn assert_options(&self, tx: &DatabaseTransaction);

    fn db(&self) -> DatabaseConnection;

    /// SeaORM on one connection, and what that needs to live.
    async fn cuttable(&self) -> (DatabaseConnection, JoinSet<()>);

    /// The one connection is back in the pool, outside of any transaction.
    async fn assert_outside(db: &DatabaseConnection);
}

impl Sea for PgFixture {
    const TELLS: bool = true;

    async fn assert_options(&self, tx: &DatabaseTransaction) {
        assert_eq!(ask(tx, "SHOW transaction_isolation").await, "serializable");
    }

    fn db(&self) -> DatabaseConnection {
        self.store().pool().clone().into()
    }

    async fn cuttable(&self) -> (DatabaseConnection, JoinSet<()>) {
        through(&self.url(), Cut::Never).await
    }

    async fn assert_outside(db: &DatabaseConnection) {
        // Whoever is inside a transaction began it in an earlier message than this one.
        let outside = "SELECT statement_timestamp() = transaction_timestamp()";
        let row = sqlx::raw_sql(outside).fetch_one(db.get_postgres_connection_pool()).await.unwrap();
        assert!(row.get::<bool, _>(0), "the connection came back inside a transaction");
    }
}

impl Sea for SqliteFixture {
    /// Its answers come from another thread, sometimes at once.
    const PLACES: usize = 1;

    /// It has one isolation level, and several ways to begin.
    fn options() -> TransactionOptions {
        let mode = Some(SqliteTransactionMode::Deferred);
        TransactionOptions { sqlite_transaction_mode: mode, ..TransactionOptions::default() }
    }

    async fn assert_options(&self, tx: &DatabaseTransaction) {
        // One that writes from the start would keep this one waiting.
        Self::assert_outside(&self.db()).await;
        tx.execute_unprepared("INSERT INTO orders VALUES (7, 0)").await.unwrap();
    }

    fn db(&self) -> DatabaseConnection {
        self.store().pool().clone().into()
    }

    async fn cuttable(&self) -> (DatabaseConnection, JoinSet<()>) {
        let pool = SqlitePoolOptions::new().max_connections(1);
        let options = self.store().pool().connect_options().as_ref().clone();
        (pool.connect_with(options).await.unwrap().into(), JoinSet::new())
    }

    async fn assert_outside(db: &DatabaseConnection) {
        // SQLite refuses to begin a transaction inside another.
        sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(db.get_sqlite_connection_pool()).await.unwrap();
    }
}

impl Sea for MariaDbFixture {
    const STATEMENTS_CAN_BE_CUT: bool = false;

    async fn assert_options(&self, tx: &DatabaseTransaction) {
        // Its variables tell of the session, and its list of transactions has those that have written.
        tx.execute_unprepared("INSERT INTO orders VALUES (7, 0)").await.unwrap();
        let level =
            "SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = CONNECTION_ID()";
        assert_eq!(ask(tx, level).await, "SERIALIZABLE");
    }

    fn db(&self) -> DatabaseConnection {
        self.store().pool().clone().into()
    }

    async fn cuttable(&self) -> (DatabaseConnection, JoinSet<()>) {
        through(&self.url(), Cut::Never).await
    }

    async fn assert_outside(db: &DatabaseConnection) {
        // The servers refuse this inside of a transaction.
        let outside = sqlx::raw_sql("SET TRANSACTION READ WRITE").execute(db.get_mysql_connection_pool()).await;
        outside.expect("the connection came back inside a transaction");
    }
}

/// The text that a question is answered with.
pub(crate) async fn ask(tx: &DatabaseTransaction, question: &str) -> String {
    let statement = Statement::from_string(tx.get_database_backend(), question);
    tx.query_one_raw(statement).await.unwrap().unwrap().try_get_by_index(0).unwrap()
}

/// Everything that a case works with.
pub(crate) struct Shop<F: Sea> {
    pub(crate) fixture: F,
    pub(crate) db: DatabaseConnection,
    pub(crate) outbox: Outbox<F::Store>,
    pub(crate) inbox: Inbox,
    pub(crate) witness: Witness,
    pub(crate) meter: Meter,
}

impl<F: Sea> Shop<F> {
    /// A shop whose poller looks only when it is told to.
    pub(crate) async fn open() -> Self {
        Self::open_on(F::create().await, no_interval()).await
    }

    pub(crate) async fn open_on(fixture: F, options: Options) -> Self {
        let (tap, inbox) = Tap::new();
        Self::open_with(fixture, options, tap, inbox).await
    }

    pub(crate) async fn open_with(fixture: F, options: Options, tap: Tap, inbox: Inbox) -> Self {
        let (db, witness, meter) = (with_orders(&fixture).await, Witness::default(), Meter::new());
        let builder = Outbox::builder(fixture.store()).options(options).hook(witness.clone()).metrics(meter.clone());
        let outbox = builder.listen_all(tap).start().await.unwrap();
        Self { fixture, db, outbox, inbox, witness, meter }
    }

    /// How many rows there are.
    pub(crate) async fn rows(&self) -> u64 {
        rows(&self.outbox).await
    }

    /// Delivers one more event, and fails if anything else was delivered that was not looked at.
    pub(crate) async fn close(mut self) {
        let last = event("Last");
        let mut tx = self.outbox.begin_on(&self.db).await.unwrap();
        tx.write(&last).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(self.inbox.next().await.id(), last.id());
        assert!(self.outbox.shutdown().await.is_clean());
        self.inbox.assert_empty();
        self.fixture.assert_no_open_transaction().await;
    }
}

/// SeaORM on a database with a table for orders.
pub(crate) async fn with_orders<F: Sea>(fixture: &F) -> DatabaseConnection {
    let db = fixture.db();
    db.execute_unprepared("CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, total BIGINT NOT NULL)").await.unwrap();
    db
}

pub(crate) async fn rows<S: SeaOrmStore>(outbox: &Outbox<S>) -> u64 {
    outbox.admin().counts().await.unwrap().total()
}

/// What the row of an event says of it.
pub(crate) async fn state(store: &impl AdminStore, id: &EventId) -> RowState {
    store.find(id).await.unwrap().expect("it was written").state
}
