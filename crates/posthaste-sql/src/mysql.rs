//! The store on MySQL and MariaDB.

mod admin;
mod claim;
mod fault;
mod insert;
mod lanes;
mod mark;
mod migrate;
mod patience;
mod row;
mod server;
mod settle;
mod sql;
#[cfg(feature = "testing")]
mod testing;
mod tx;
mod write_procedure;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{
    BoxFuture, Claim, Claimed, CommitError, Error, LaneStore, Lease, RelayStore, Settled, Settlement,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlSslMode};
use sqlx::{ConnectOptions, Connection, MySql, SqlSafeStr, SqlStr, Transaction};
use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use crate::advice::{located, place};
use crate::ahead::Ahead;
use crate::dialect::Slots;
use crate::failover::{Failover, Writable};
use crate::finish::finish;
use crate::look::Looks;
use crate::many::Many;
use crate::pool;
use crate::table::TableName;
use crate::tls;
use crate::url::{Scheme, expect};
use crate::warm::{Warm, WarmConnection};
use mark::Mark;
use patience::Patience;
use server::Server;
use tx::Inserts;

pub use tx::MySqlTx;

/// An outbox in a MySQL (8.0.17 or later) or MariaDB (10.3 or later) database. Cheap to clone; clones share the pool.
/// Comes with the feature `mysql`.
///
/// What is available, leased or expired is decided by the server's clock, in UTC, whatever the time zone of the session.
///
/// Claims and settlements run in transactions of their own, READ COMMITTED: under REPEATABLE READ, the servers' default,
/// a claim would lock the gaps between rows, and hold up everybody who inserts. A server that writes its log by
/// statement (`binlog_format = STATEMENT`) refuses that; the defaults, ROW and MIXED, are fine.
///
/// ```no_run
/// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
/// use posthaste::{Delivery, Event, MySqlStore, Outbox};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MySqlStore::connect("mysql://shop@localhost/shop").await?;
/// store.migrate().await?;
/// let outbox = Outbox::builder(store).listen_all(|_: Delivery| async {}).start().await?;
///
/// let mut tx = outbox.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (?)").bind(42).execute(&mut *tx).await?;
/// tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
/// Whatever the store sends it also waits for: what a dropped future had begun is ended by a task, so that no connection
/// returns to the pool in the middle of a transaction or of a conversation. The insert is the exception, because its
/// connection is yours: drop or roll back the transaction in which it was cut off.
#[derive(Clone)]
pub struct MySqlStore {
    pool: MySqlPool,
    failover: Failover,
    /// Unless the pool may have to see its connections between two transactions.
    warm: Option<Warm<MySql>>,
    /// What there is to know of the server, once it was asked.
    server: Arc<OnceCell<Server>>,
    skip_locked: Option<bool>,
    /// What goes on although nobody waits for it any more.
    tasks: TaskTracker,
    inserts: Inserts,
    looks: Looks,
    sql: Arc<Statements>,
    deletes_done: bool,
}

/// Everything that belongs to one table.
struct Statements {
    slots: Slots<SqlStr>,
    insert: Many,
    insert_plain: Many,
    insert_leased: Many,
    insert_asking: Many,
    insert_plain_asking: Many,
    insert_leased_asking: Many,
    taken: Many,
    claim_skipping: SqlStr,
    lease_claimed: Many,
    settle_done_by_seq: Many,
    settle_done: Many,
    delete_done_by_seq: Many,
    delete_done: Many,
    settle_other: Many,
    held: Many,
    renew: Many,
    commit_looking: String,
    probe: SqlStr,
    table: TableName,
    mark: Mark,
    dead_named: SqlStr,
    ahead: Ahead,
    lanes: lanes::Statements,
}

impl Statements {
    fn new(table: TableName) -> Self {
        let slots = &sql::DIALECT.slots;
        let many = |template, row| Many::new(&sql::DIALECT.fill(template, &table), row, ", ");
        let asking = |template, row| many(template, row).beginning_with(sql::asking(row));
        let settle_other = sql::DIALECT.fill(slots.settle_other, &table);
        Self {
            insert: many(slots.insert, sql::INSERT_ROW),
            insert_plain: many(sql::INSERT_PLAIN, sql::INSERT_PLAIN_ROW),
            insert_leased: many(sql::INSERT_LEASED, sql::INSERT_LEASED_ROW),
            insert_asking: asking(slots.insert, sql::INSERT_ROW),
            insert_plain_asking: asking(sql::INSERT_PLAIN, sql::INSERT_PLAIN_ROW),
            insert_leased_asking: asking(sql::INSERT_LEASED, sql::INSERT_LEASED_ROW),
            taken: many(slots.taken, sql::VALUE),
            claim_skipping: sql::DIALECT.statement(&(slots.claim.to_owned() + sql::SKIP_LOCKED), &table),
            lease_claimed: many(sql::LEASE_CLAIMED, sql::VALUE),
            settle_done_by_seq: many(slots.settle_done_by_seq, sql::VALUE),
            settle_done: many(slots.settle_done, sql::LEASE),
            delete_done_by_seq: many(slots.delete_done_by_seq, sql::VALUE),
            delete_done: many(slots.delete_done, sql::LEASE),
            settle_other: Many::new(&settle_other, sql::CHANGE, " UNION ALL "),
            held: many(slots.held, sql::LEASE),
            renew: many(slots.renew, sql::LEASE),
            commit_looking: sql::DIALECT.fill(sql::COMMIT_LOOKING, &table),
            probe: sql::DIALECT.statement(sql::PROBE, &table),
            slots: sql::DIALECT.statements(&table),
            dead_named: sql::DIALECT.statement(sql::DEAD_NAMED, &table),
            lanes: lanes::Statements::new(&table),
            table,
            mark: Mark::default(),
            ahead: Ahead::default(),
        }
    }
}

/// How to connect, as a URL has it.
///
/// # Errors
/// [`Error::Config`] for whatever can be told to be wrong without asking a server.
pub(crate) fn options(url: &str) -> Result<MySqlConnectOptions, Error> {
    expect(url, Scheme::MySql)?;
    let rest = url.split_once(':').map_or("", |(_, rest)| rest);
    // The URL may hold a password, so it is not shown.
    let options = MySqlConnectOptions::from_str(&format!("mysql:{rest}")).map_err(|error| Error::Config {
        field: "url",
        value: "mysql:…".to_owned(),
        reason: format!("{error}; a URL looks like mysql://user:password@host:3306/database"),
    })?;
    let verifies = matches!(options.get_ssl_mode(), MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity);
    tls::check(url, Scheme::MySql, verifies)?;
    Ok(options)
}

impl MySqlStore {
    /// A store in the table `outbox_event` of the database that the connections of this pool of yours are in.
    ///
    /// Keep sqlx's defaults for the character set (`utf8mb4`). A pool of one connection will do.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::MySqlStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = sqlx::MySqlPool::connect("mysql://shop@localhost/shop").await?;
    /// let store = MySqlStore::new(pool.clone());
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(pool: MySqlPool) -> Self {
        Self {
            pool,
            failover: Failover::default(),
            warm: None,
            server: Arc::default(),
            skip_locked: None,
            tasks: TaskTracker::new(),
            inserts: Inserts::default(),
            looks: Looks::default(),
            sql: Arc::new(Statements::new(TableName::default())),
            deletes_done: false,
        }
    }

    /// A store at a `mysql:` or `mariadb:` URL, with a pool of sqlx's defaults: ten connections.
    ///
    /// For TLS, build with the feature `tls`, and say `?ssl-mode=VERIFY_IDENTITY` in the URL. By default it is taken if it
    /// is offered, and nothing is checked. MySQL itself takes passwords over TLS only, unless they are empty.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::MySqlStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MySqlStore::connect("mysql://shop:secret@db.example.com/shop?ssl-mode=VERIFY_IDENTITY").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the URL is not one of MySQL, says something of TLS that would be ignored, or demands it from a build that has
    /// none; when the server cannot be reached, does not let us in, or is not the one that its certificate has to be of.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let options = options(url)?;
        // A pool goes on knocking at a closed door for half a minute; the first connection is to say at once.
        let first = async { options.connect().await?.close().await };
        match first.await {
            Ok(()) => Ok(Self::new(pool::to_server(Duration::ZERO).connect_lazy_with(options)).reusing_connections()),
            Err(error) => {
                let here = place(options.get_socket(), options.get_host(), options.get_port());
                Err(tls::refused(&error, Scheme::MySql)
                    .unwrap_or_else(|| located(fault::classify(error, &TableName::default()), here)))
            }
        }
    }

    /// The same store with another table, `table` or `database.table`.
    ///
    /// ```no_run
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::MySqlStore;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MySqlStore::connect("mysql://shop@localhost/shop").await?.with_table("order_events")?;
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`], saying what is allowed, for names that are not plain identifiers.
    pub fn with_table(mut self, table: &str) -> Result<Self, Error> {
        self.sql = Arc::new(Statements::new(TableName::parse(table)?));
        self.looks = Looks::default();
        Ok(self)
    }

    /// The same store, told whether the server can skip rows that are locked (`SKIP LOCKED`).
    ///
    /// By default it is taken from the version: MariaDB can from 10.6 on, MySQL from 8.0 on. Say no for a relative that
    /// gives itself such a version and cannot. Claims then wait for each other, which is slower and as correct.
    pub fn with_skip_locked(mut self, skip_locked: bool) -> Self {
        self.skip_locked = Some(skip_locked);
        self
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

    /// Closes all connections, after what is under way.
    pub async fn close(&self) {
        // Nothing is kept from here on.
        let closing = self.pool.close();
        self.warm.iter().for_each(Warm::clear);
        closing.await;
    }

    /// The pool.
    pub fn pool(&self) -> &MySqlPool {
        &self.pool
    }

    /// The table.
    pub fn table(&self) -> &TableName {
        &self.sql.table
    }

    /// Begins a transaction that locks rows only, and no gaps between them.
    async fn begin_relay(&self) -> Result<Transaction<'static, MySql>, sqlx::Error> {
        Transaction::begin(self.acquire().await?.into_pooled(), Some(sql::BEGIN_RELAY.into_sql_str())).await
    }

    /// A connection for what writes.
    async fn acquire(&self) -> Result<WarmConnection<MySql>, sqlx::Error> {
        self.failover.acquire(&self.pool, self.warm.as_ref()).await
    }

    fn fault(&self, error: sqlx::Error) -> Error {
        self.suspect(&error);
        fault::classify(error, &self.sql.table)
    }

    fn commit_fault(&self, error: sqlx::Error) -> CommitError {
        self.suspect(&error);
        fault::classify_commit(error, &self.sql.table)
    }

    fn suspect(&self, error: &sqlx::Error) {
        if fault::is_read_only(error) {
            self.failover.suspect(self.pool.size());
        }
    }
}

impl Writable for MySql {
    async fn is_writable(connection: &mut MySqlConnection) -> Result<bool, sqlx::Error> {
        Ok(sqlx::raw_sql(sql::READ_ONLY).fetch_optional(connection).await?.is_none())
    }

    fn is_full(error: &sqlx::Error) -> bool {
        fault::is_full(error)
    }
}

impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlStore").field("table", &self.sql.table).finish_non_exhaustive()
    }
}

/// Tries until no other transaction is in the way, and to the end even if nobody waits for it any more. `$store` is an
/// owned clone in `$attempt`, and so must be everything else that it uses.
macro_rules! patiently {
    ($self:ident, |$store:ident| $attempt:expr) => {{
        let $store = $self.clone();
        let attempts = async move {
            let mut patience = Patience::new();
            loop {
                match $attempt.await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => patience.after($store.fault(error), $store.table()).await?,
                }
            }
        };
        Box::pin(finish(&$self.tasks, attempts))
    }};
}
use patiently;

/// Each of these is tried again a bounded number of times when it loses a deadlock or waits for a lock too long, before
/// it answers [`Error::Busy`].
impl RelayStore for MySqlStore {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        let claim = claim.clone();
        // Dropped together with what the caller has, so that rows are not leased to nobody.
        let caller = Arc::new(());
        let waiting = Arc::downgrade(&caller);
        let claiming = patiently!(self, |store| store.try_claim(&claim, &waiting));
        Box::pin(async move {
            let _caller = caller;
            claiming.await
        })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        let settlements = settlements.to_vec();
        patiently!(self, |store| store.try_settle(&settlements))
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        let leases = leases.to_vec();
        patiently!(self, |store| store.try_renew(&leases))
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        patiently!(self, |store| store.try_release_all())
    }

    /// It says by itself, when it is asked for their number, if the table has none yet.
    fn lanes(&self) -> Option<Arc<dyn LaneStore>> {
        Some(Arc::new(self.clone()))
    }
}
