//! The store on PostgreSQL.

mod admin;
mod claim;
mod fault;
mod insert;
mod kept_plan;
mod lanes;
mod look;
mod low_water;
mod migrate;
mod moment;
mod one_table;
mod partition;
mod row;
mod settle;
mod signal;
mod sql;
#[cfg(feature = "testing")]
mod testing;
mod tx;
mod write_function;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::signal::Signal;
use posthaste_core::store::{BoxFuture, Claim, Claimed, Error, LaneStore, Lease, RelayStore, Settled, Settlement};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgSslMode, Postgres};
use sqlx::{ConnectOptions, Connection, SqlStr};

use crate::advice::{located, place};
use crate::ahead::Ahead;
use crate::dialect::Slots;
use crate::failover::{Failover, Writable};
use crate::lanes::Prepared;
use crate::look::Looks;
use crate::pool;
use crate::table::TableName;
use crate::tls;
use crate::url::{Scheme, expect};
use crate::warm::{Warm, WarmConnection};
use kept_plan::KeptPlan;
use low_water::LowWater;
use one_table::OneTable;
use partition::Partitioned;
use sql::{
    CHANNEL, CLAIM_FEW_FROM_ONE_TABLE, CLAIM_FROM_ONE_TABLE, CLAIM_FROM_PARTITIONS, COMMIT_LOOKING, DIALECT,
    INSERT_ALIKE, INSERT_ONE, INSERT_ONE_LEASED, INSERT_ONE_PLAIN, INSERT_PLAIN, INSERT_VALUES, NOTIFY,
    NOTIFY_EVERYWHERE, SETTLE_AND_DELETE_DONE,
};

pub use partition::Partitions;
pub use tx::PgTx;

/// Connections of a pool of ours: a relay needs two or three, the rest is for transactions.
const CONNECTIONS: u32 = 10;

/// How long a pool of ours waits for a connection, be it that all are in use or that the server does not answer. The 30 s of
/// sqlx are longer than most requests live.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that was used within this time is taken for alive; another one is asked first.
const FRESH: Duration = Duration::from_secs(1);

/// How often a statement of ours that lost a conflict is tried in all, and the pauses in between, which double.
const TRIES: u32 = 6;
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// An outbox in a PostgreSQL database. Cheap to clone; clones share the pool. Comes with the feature `postgres`.
///
/// What is available, leased or expired is decided by the clock of the server. A pooler in front of it has to keep a connection for its
/// client (session mode): statements are prepared. One that gives it to a transaction at a time has to pass on prepared statements, and
/// wake-ups have to be off ([`without_wake_ups`](Self::without_wake_ups)).
///
/// The table has an index for what the outbox itself needs. To search a large one by aggregate often, add one:
/// `CREATE INDEX CONCURRENTLY ON outbox_event (aggregate_id)`. It costs every write, so it is not there by itself. A table in
/// partitions is refused that: create it `ON ONLY` the table, then concurrently on each partition, and attach those.
///
/// ```no_run
/// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
/// use posthaste::{Delivery, Event, Outbox, PgStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PgStore::connect("postgres://shop@localhost/shop").await?;
/// store.migrate().await?;
/// let outbox = Outbox::builder(store).listen_all(|_: Delivery| async {}).start().await?;
///
/// let mut tx = outbox.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES ($1)").bind(42).execute(&mut *tx).await?;
/// tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PgStore {
    pool: PgPool,
    failover: Failover,
    /// Unless the pool may have to see its connections between two transactions.
    warm: Option<Warm<Postgres>>,
    sql: Arc<Statements>,
    wake_ups: bool,
    deletes_done: bool,
    partitioned: Option<Arc<Partitioned>>,
    one_table: Arc<OneTable>,
    low_water: Arc<LowWater>,
    kept_plan: Arc<KeptPlan>,
    prepared: Arc<Prepared>,
    looks: Looks,
}

/// Everything made from the name of the table.
struct Statements {
    table: TableName,
    slots: Slots<SqlStr>,
    insert_one: SqlStr,
    insert_one_plain: SqlStr,
    insert_one_leased: SqlStr,
    insert_plain: SqlStr,
    insert_alike: SqlStr,
    insert_values: String,
    claim_from_one_table: SqlStr,
    claim_few_from_one_table: SqlStr,
    claim_from_partitions: SqlStr,
    settle_and_delete_done: SqlStr,
    commit_looking: String,
    notify: SqlStr,
    notify_everywhere: SqlStr,
    channel: String,
    lanes: lanes::Statements,
    ahead: Ahead,
}

impl Statements {
    fn new(table: TableName) -> Self {
        Self {
            slots: DIALECT.statements(&table),
            insert_one: DIALECT.statement(INSERT_ONE, &table),
            insert_one_plain: DIALECT.statement(INSERT_ONE_PLAIN, &table),
            insert_one_leased: DIALECT.statement(INSERT_ONE_LEASED, &table),
            insert_plain: DIALECT.statement(INSERT_PLAIN, &table),
            insert_alike: DIALECT.statement(INSERT_ALIKE, &table),
            insert_values: DIALECT.fill(INSERT_VALUES, &table),
            claim_from_one_table: DIALECT.statement(CLAIM_FROM_ONE_TABLE, &table),
            claim_few_from_one_table: DIALECT.statement(CLAIM_FEW_FROM_ONE_TABLE, &table),
            claim_from_partitions: DIALECT.statement(CLAIM_FROM_PARTITIONS, &table),
            settle_and_delete_done: DIALECT.statement(SETTLE_AND_DELETE_DONE, &table),
            commit_looking: DIALECT.fill(COMMIT_LOOKING, &table),
            notify: DIALECT.statement(NOTIFY, &table),
            notify_everywhere: DIALECT.statement(NOTIFY_EVERYWHERE, &table),
            channel: DIALECT.fill(CHANNEL, &table),
            lanes: lanes::Statements::new(&table),
            ahead: Ahead::default(),
            table,
        }
    }
}

/// How to connect, as a URL has it.
///
/// # Errors
/// [`Error::Config`] for whatever can be told to be wrong without asking a server.
pub(crate) fn options(url: &str) -> Result<PgConnectOptions, Error> {
    expect(url, Scheme::Postgres)?;
    let options = PgConnectOptions::from_str(url).map_err(|error| Error::Config {
        field: "url",
        // It may hold a password.
        value: "postgres:…".to_owned(),
        reason: format!("{error}; a URL looks like postgres://user:password@host:5432/database"),
    })?;
    let verifies = matches!(options.get_ssl_mode(), PgSslMode::VerifyCa | PgSslMode::VerifyFull);
    tls::check(url, Scheme::Postgres, verifies)?;
    Ok(options)
}

impl PgStore {
    /// A store in the table `outbox_event`, on a pool of yours. A pool of one connection will do.
    ///
    /// A relay that is woken by other processes keeps one more connection, with the options of the pool.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::PgStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = sqlx::PgPool::connect("postgres://shop@localhost/shop").await?;
    /// let store = PgStore::new(pool.clone());
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(pool: PgPool) -> Self {
        let sql = Arc::new(Statements::new(TableName::default()));
        let (failover, warm, partitioned) = (Failover::default(), None, None);
        let (one_table, low_water, kept_plan) = (Arc::default(), Arc::default(), Arc::default());
        Self {
            pool,
            failover,
            warm,
            sql,
            wake_ups: true,
            deletes_done: false,
            partitioned,
            one_table,
            low_water,
            kept_plan,
            prepared: Arc::default(),
            looks: Looks::default(),
        }
    }

    /// A store at a `postgres:` URL, with a pool of up to 10 connections.
    ///
    /// For TLS, build with the feature `tls`, and say `?sslmode=verify-full` in the URL. By default it is taken if it is
    /// offered, and nothing is checked.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::PgStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PgStore::connect("postgres://shop:secret@db.example.com/shop?sslmode=verify-full").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the URL is not one of PostgreSQL, says something of TLS that would be ignored, or demands it from a build that
    /// has none; when the server cannot be reached, or is not the one that its certificate has to be of.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let mut options = options(url)?;
        if options.get_application_name().is_none() {
            options = options.application_name("posthaste");
        }
        // To ask a connection whether it is alive costs a round trip each time, so only those are asked that had time to
        // die.
        let pool = pool::to_server(FRESH).max_connections(CONNECTIONS).acquire_timeout(ACQUIRE_TIMEOUT);
        // A pool goes on knocking at a closed door for as long as it waits; the first connection says at once.
        let first = async { options.connect().await?.close().await };
        match first.await {
            Ok(()) => Ok(Self::new(pool.connect_lazy_with(options)).reusing_connections()),
            Err(error) => {
                let here = place(options.get_socket(), options.get_host(), options.get_port());
                Err(tls::refused(&error, Scheme::Postgres)
                    .unwrap_or_else(|| located(fault::classify(error, &TableName::default()), here)))
            }
        }
    }

    /// The same store with another table, `table` or `schema.table`.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::PgStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PgStore::connect("postgres://shop@localhost/shop").await?.with_table("outbox.order_events")?;
    /// store.migrate().await?; // the schema has to be there
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`], saying what is allowed, for names that are not plain identifiers.
    pub fn with_table(mut self, table: &str) -> Result<Self, Error> {
        self.sql = Arc::new(Statements::new(TableName::parse(table)?));
        // What is known of one table says nothing of another.
        self.one_table = Arc::default();
        self.partitioned = self.partitioned.map(|partitioned| Arc::new(partitioned.anew()));
        self.low_water = Arc::default();
        self.kept_plan = Arc::default();
        self.prepared = Arc::default();
        self.looks = Looks::default();
        Ok(self)
    }

    /// The same store, but a connection goes from one transaction that was begun by the outbox straight to the next, if it
    /// comes within milliseconds. Its pool would ask it first whether it is alive, which costs a round trip each time.
    ///
    /// A store that was made by [`connect`](Self::connect) does it by itself. For a pool of yours, say so if its hooks
    /// (`before_acquire`, `after_release`) need not see a connection between two transactions. The pool sees it at least once
    /// a second, and has it back at once while it has no other to give.
    pub fn reusing_connections(mut self) -> Self {
        self.warm = Some(Warm::new(self.pool.clone()));
        self
    }

    /// The same store without LISTEN and NOTIFY: processes find each other's rows by polling alone.
    pub fn without_wake_ups(mut self) -> Self {
        self.wake_ups = false;
        self
    }

    /// The same store, but what is DONE is deleted instead of kept, by whoever settles through this store or a clone of it.
    ///
    /// The table then holds only what is pending or DEAD, and nothing has to be purged. The price is that nothing tells of
    /// what was delivered, and that the id of a delivered event is free again: an insert of the same id is not refused.
    /// Default: rows are kept, and [`Options::retention_done`](posthaste_core::Options::retention_done) says for how long.
    pub fn deleting_done(mut self) -> Self {
        self.deletes_done = true;
        self
    }

    /// Whether it is [`deleting_done`](Self::deleting_done).
    pub fn is_deleting_done(&self) -> bool {
        self.deletes_done
    }

    /// The same store with a table in partitions by the moment of insert, see [`Partitions`]. [`migrate`](Self::migrate)
    /// creates it; a plain table does not become one.
    ///
    /// An outbox then makes partitions ahead of time, and its retention drops a partition when all of it is old, instead of
    /// deleting row by row. For that it has to connect as the owner of the table, or as a member of that role.
    ///
    /// The price is that an id is unique within a partition only: an event that is written again with the same id, while
    /// another partition is current, is not refused but delivered again. Two that one claim takes share a lease, and so an
    /// outcome. Default: one plain table.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::{Partitions, PgStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PgStore::connect("postgres://shop@localhost/shop").await?.partitioned(Partitions::daily().ahead(7));
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn partitioned(mut self, partitions: Partitions) -> Self {
        self.partitioned = Some(Arc::new(Partitioned::new(partitions)));
        self
    }

    /// Closes all connections.
    pub async fn close(&self) {
        // Nothing is kept from here on.
        let closing = self.pool.close();
        self.warm.iter().for_each(Warm::clear);
        closing.await;
    }

    /// The pool.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The table.
    pub fn table(&self) -> &TableName {
        &self.sql.table
    }

    /// A connection for what writes.
    async fn acquire(&self) -> Result<WarmConnection<Postgres>, sqlx::Error> {
        self.failover.acquire(&self.pool, self.warm.as_ref()).await
    }

    fn fault(&self, error: sqlx::Error) -> Error {
        if fault::is_read_only(&error) {
            self.failover.suspect(self.pool.size());
        }
        let fault = fault::classify(error, &self.sql.table);
        if matches!(fault, Error::Unavailable(_)) {
            self.sql.lanes.server_was_away();
        }
        fault
    }

    /// Tries a statement again that lost a conflict with another transaction, and was rolled back for it.
    async fn retrying<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let mut pause = SHORTEST_PAUSE;
        for _ in 1..TRIES {
            match attempt().await.map_err(|error| self.fault(error)) {
                Err(Error::Busy(error)) => {
                    tracing::debug!(table = %self.table(), %error, ?pause, "trying again after a conflict");
                    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                    pause *= 2;
                }
                done => return done,
            }
        }
        attempt().await.map_err(|error| self.fault(error))
    }
}

impl Writable for Postgres {
    async fn is_writable(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let read_only: String = sqlx::query_scalar("SHOW transaction_read_only").fetch_one(connection).await?;
        Ok(read_only == "off")
    }

    /// The pool goes on trying until its time is up.
    fn is_full(_: &sqlx::Error) -> bool {
        false
    }
}

impl fmt::Debug for PgStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStore").field("table", &self.sql.table).finish_non_exhaustive()
    }
}

/// Each of these tries up to six times before it answers [`Error::Busy`].
impl RelayStore for PgStore {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(self.retrying(|| self.try_claim(claim)))
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(self.settle_all(settlements))
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        Box::pin(self.retrying(|| self.try_renew(leases)))
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.retrying(|| self.try_release_all()))
    }

    fn signal(&self) -> Option<Arc<dyn Signal>> {
        self.wake_ups.then(|| Arc::new(self.clone()) as Arc<_>)
    }

    /// It says by itself, when it is asked for their number, if the table has none yet.
    fn lanes(&self) -> Option<Arc<dyn LaneStore>> {
        Some(Arc::new(self.clone()))
    }
}
