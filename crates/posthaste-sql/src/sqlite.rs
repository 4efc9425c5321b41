//! The store on SQLite.

mod admin;
mod claim;
mod fault;
mod gate;
mod insert;
mod lanes;
mod migrate;
mod packed;
mod row;
mod settle;
mod sql;
#[cfg(feature = "testing")]
pub(crate) mod testing;
mod tx;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::Timestamp;
use posthaste_core::store::{BoxFuture, Claim, Claimed, Error, LaneStore, Lease, RelayStore, Settled, Settlement};
use sqlx::SqlStr;
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

use crate::advice::located;
use crate::ahead::Ahead;
use crate::dialect::Slots;
use crate::lanes::Prepared;
use crate::many::Many;
use crate::pool;
use crate::table::TableName;
use crate::url::{Scheme, expect};
use crate::warm::Warm;
use gate::{Gate, Patience};

pub use tx::SqliteTx;

/// How long SQLite waits for a transaction of another connection, and we for another one of this process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections of a pool of ours. One writes at a time; the others read, and hold the user's own transactions.
const CONNECTIONS: u32 = 8;

/// Rows that SQLite's thread may be ahead of us. With the 50 of sqlx it waits for us many times in one claim.
const ROW_BUFFER: usize = 1024;

/// Pages in the write-ahead log before they go to the database. A row is written three times in its short life, and what
/// stays in the log until then goes to the database once. 16 MB, four times SQLite's own default.
const CHECKPOINT_PAGES: &str = "4000";

/// What a URL may say behind its question mark.
const PARAMETERS: [&str; 4] = ["cache", "immutable", "mode", "vfs"];

/// An outbox in a SQLite database. Cheap to clone; clones share the pool. Comes with the feature `sqlite`.
///
/// SQLite lets one transaction write at a time. Writers of one process queue up here, in order, instead of polling the
/// file's lock, so make all of them through clones of one store. Transactions of other processes are waited for.
///
/// SQLite has no clock of its own: what is available, leased or expired is decided by the clock of the machine, which
/// all processes that share a file share as well.
///
/// ```
/// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
/// use posthaste::{Delivery, Event, Outbox, SqliteStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = SqliteStore::connect("sqlite::memory:").await?;
/// store.migrate().await?;
/// sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(store.pool()).await?;
/// let outbox = Outbox::builder(store).listen_all(|_: Delivery| async {}).start().await?;
///
/// let mut tx = outbox.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (?)").bind(42).execute(&mut *tx).await?;
/// tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")).await?;
/// tx.commit().await?;
/// # outbox.shutdown().await;
/// # assert_eq!(outbox.admin().counts().await?.done, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    pool: SqlitePool,
    /// One connection that claims and settles, and does not wait for the disk. See [`relay_pool`].
    relay: SqlitePool,
    /// Another one, that reads lanes meanwhile.
    reader: SqlitePool,
    /// Connections between two transactions.
    warm: Option<Warm<Sqlite>>,
    gate: Gate,
    sql: Arc<Statements>,
    deletes_done: bool,
}

/// Everything made from the name of the table.
struct Statements {
    table: TableName,
    slots: Slots<SqlStr>,
    claim_wide: SqlStr,
    leased_wide: SqlStr,
    insert: Many,
    insert_plain: Many,
    /// The same, followed by the question whether a transaction is open.
    insert_asking: Many,
    insert_plain_asking: Many,
    take_back: SqlStr,
    lanes: lanes::Statements,
    prepared: Prepared,
    missing: SqlStr,
    ahead: Ahead,
}

impl Statements {
    fn new(table: TableName) -> Self {
        let many = |template: &str, row| Many::new(&sql::DIALECT.fill(template, &table), row, ", ");
        let asking = |template: &str, row| many(&format!("{template}; {}", sql::ASK), row);
        Self {
            insert_asking: asking(sql::DIALECT.slots.insert, sql::INSERT_ROW),
            insert_plain_asking: asking(sql::INSERT_PLAIN, sql::INSERT_PLAIN_ROW),
            claim_wide: sql::DIALECT.statement(sql::CLAIM_WIDE, &table),
            leased_wide: sql::DIALECT.statement(sql::LEASED_WIDE, &table),
            take_back: sql::DIALECT.statement(sql::TAKE_BACK, &table),
            missing: sql::DIALECT.statement(sql::MISSING, &table),
            insert: many(sql::DIALECT.slots.insert, sql::INSERT_ROW),
            insert_plain: many(sql::INSERT_PLAIN, sql::INSERT_PLAIN_ROW),
            slots: sql::DIALECT.statements(&table),
            lanes: lanes::Statements::new(&table),
            prepared: Prepared::default(),
            ahead: Ahead::default(),
            table,
        }
    }
}

/// How to open the file, as a URL has it.
///
/// # Errors
/// [`Error::Config`] for what the driver does not understand.
pub(crate) fn options(url: &str) -> Result<SqliteConnectOptions, Error> {
    expect(url, Scheme::Sqlite)?;
    let rest = url.split_once(':').map_or("", |(_, rest)| rest);
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let names = query.split('&').filter(|part| !part.is_empty()).map(|part| part.split('=').next().unwrap_or_default());
    // The driver would say what it is called, which may be a part of the key of an encrypted file.
    if let Some((place, _)) = (1..).zip(names).find(|(_, name)| !PARAMETERS.contains(name)) {
        let known = PARAMETERS.join(", ");
        let reason = format!("its parameter in place {place} is not known; leave it out, or say one of {known}");
        return Err(Error::Config { field: "url", value: "sqlite:…".to_owned(), reason });
    }
    let options = SqliteConnectOptions::from_str(&format!("sqlite:{rest}")).map_err(|error| Error::Config {
        field: "url",
        // Others have keys of encrypted files in it.
        value: "sqlite:…".to_owned(),
        reason: format!("{error}; a URL looks like sqlite:orders.db?mode=rwc"),
    })?;
    // A URL that says how to open the file means it.
    Ok(if query.contains("mode=") { options } else { options.create_if_missing(true) })
}

impl SqliteStore {
    /// A store in the table `outbox_event`, on a pool of yours.
    ///
    /// The pool should wait for locks ([`busy_timeout`](SqliteConnectOptions::busy_timeout), by default 5 s), use the
    /// write-ahead log, and sync fully: see [`open`](Self::open) for why. A pool of one connection will do.
    ///
    /// Claims and settlements go through one more connection of the same options and hooks, and with order reads go through
    /// another, with `synchronous = NORMAL`: a power cut that undoes a settlement only has its event delivered again, so nobody has to
    /// wait for the disk there.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::SqliteStore;
    /// use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("shop.db");
    /// let options = SqliteConnectOptions::new()
    ///     .filename(path)
    ///     .create_if_missing(true)
    ///     .journal_mode(SqliteJournalMode::Wal)
    ///     .synchronous(SqliteSynchronous::Full);
    /// let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options).await?;
    /// let store = SqliteStore::new(pool.clone());
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(pool: SqlitePool) -> Self {
        Self {
            relay: relay_pool(&pool),
            reader: relay_pool(&pool),
            warm: None,
            pool,
            gate: Gate::new(BUSY_TIMEOUT),
            sql: Arc::new(Statements::new(TableName::default())),
            deletes_done: false,
        }
    }

    /// A store in the file at that path, which is created if it is missing.
    ///
    /// Its pool is set up as an outbox needs it: a write-ahead log, so that readers and the writer do not wait for each
    /// other; 5 s of patience with transactions of other processes; and `synchronous = FULL`, because with `NORMAL` a
    /// power cut may undo a commit whose event was already delivered.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::SqliteStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("shop.db");
    /// let store = SqliteStore::open(path).await?;
    /// store.migrate().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_with(SqliteConnectOptions::new().filename(path).create_if_missing(true)).await
    }

    /// A store at a `sqlite:` URL, set up as by [`open`](Self::open). `sqlite::memory:` is one for tests, which ends
    /// with the store.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::SqliteStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::connect("sqlite::memory:").await?;
    /// store.migrate().await?;
    /// assert!(SqliteStore::connect("postgres://localhost/shop").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the URL is not one of SQLite, or the file cannot be opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let options = options(url)?;
        let rest = url.split_once(':').map_or("", |(_, rest)| rest);
        if rest.contains(":memory:") || rest.contains("mode=memory") {
            // Every connection beyond the first would contend for the table locks of a shared cache, and the database
            // is gone when the last one closes.
            return Self::build(pool::unswept().max_connections(1), options).await;
        }
        Self::connect_with(options).await
    }

    async fn connect_with(options: SqliteConnectOptions) -> Result<Self, Error> {
        Self::build(pool::unswept().max_connections(CONNECTIONS), options).await
    }

    async fn build(pool: SqlitePoolOptions, options: SqliteConnectOptions) -> Result<Self, Error> {
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            .row_buffer_size(ROW_BUFFER);
        // A connection is a thread of this process: there is no network that could have cut it.
        let pool = pool.test_before_acquire(false);
        let table = TableName::default();
        // SQLite does not wait when two connections turn a new file to write-ahead logging at once.
        let mut patience = Patience::new();
        loop {
            match pool.clone().connect_with(options.clone()).await {
                Ok(pool) => return Ok(Self::new(pool).reusing_connections()),
                Err(error) => {
                    let here = || options.get_filename().display();
                    patience.after(error, &table).await.map_err(|error| located(error, here()))?;
                }
            }
        }
    }

    /// The same store with another table, `table` or `schema.table` where the schema is that of an attached database.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::SqliteStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::connect("sqlite::memory:").await?.with_table("order_events")?;
    /// store.migrate().await?;
    /// assert_eq!(store.table().to_string(), "order_events");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`], saying what is allowed, for names that are not plain identifiers.
    pub fn with_table(mut self, table: &str) -> Result<Self, Error> {
        self.sql = Arc::new(Statements::new(TableName::parse(table)?));
        Ok(self)
    }

    /// The same store, but a connection goes from one transaction that was begun by the outbox straight to the next, if it comes
    /// within milliseconds. Its pool would ask it first whether it is alive, and give another, which has to read anew what the one
    /// before has changed.
    ///
    /// A store that was made by [`connect`](Self::connect) or [`open`](Self::open) does it by itself. For a pool of yours, say so if
    /// its hooks (`before_acquire`, `after_release`) need not see a connection between two transactions. The pool sees it at least
    /// once a second, and has it back at once while it has no other to give.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::SqliteStore;
    /// use sqlx::SqlitePool;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = SqlitePool::connect("sqlite::memory:").await?;
    /// let store = SqliteStore::new(pool).reusing_connections();
    /// # Ok(())
    /// # }
    /// ```
    pub fn reusing_connections(mut self) -> Self {
        self.warm = Some(Warm::new(self.pool.clone()));
        self
    }

    /// The same store, but what is DONE is deleted instead of kept, by whoever settles through this store or a clone of it.
    ///
    /// The table then holds only what is pending or DEAD, and nothing has to be purged. The price is that nothing tells of
    /// what was delivered, and that the id of a delivered event is free again: an insert of the same id is not refused.
    /// Default: rows are kept, and [`Options::retention_done`](posthaste_core::Options::retention_done) says for how long.
    ///
    /// ```
    /// # mod posthaste { pub use posthaste_core::*; pub use posthaste_sql::*; }
    /// use posthaste::{Delivery, Event, Outbox, SqliteStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::connect("sqlite::memory:").await?.deleting_done();
    /// store.migrate().await?;
    /// let outbox = Outbox::builder(store).listen_all(|_: Delivery| async {}).start().await?;
    /// let mut tx = outbox.begin().await?;
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.commit().await?;
    /// outbox.shutdown().await;
    /// assert_eq!(outbox.admin().counts().await?.total(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn deleting_done(mut self) -> Self {
        self.deletes_done = true;
        self
    }

    /// Whether it is [`deleting_done`](Self::deleting_done).
    pub fn is_deleting_done(&self) -> bool {
        self.deletes_done
    }

    /// Closes all connections.
    pub async fn close(&self) {
        // Nothing is kept from here on.
        let closing = self.pool.close();
        self.warm.iter().for_each(Warm::clear);
        self.reader.close().await;
        self.relay.close().await;
        closing.await;
    }

    /// The pool.
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// The table.
    pub fn table(&self) -> &TableName {
        &self.sql.table
    }

    /// The connection that claims and settles. It ends with the pool.
    async fn relay(&self) -> Result<&SqlitePool, sqlx::Error> {
        self.beside(&self.relay).await
    }

    /// The connection that reads lanes. It ends with the pool.
    async fn reader(&self) -> Result<&SqlitePool, sqlx::Error> {
        self.beside(&self.reader).await
    }

    async fn beside<'a>(&self, connection: &'a SqlitePool) -> Result<&'a SqlitePool, sqlx::Error> {
        if self.pool.is_closed() {
            self.relay.close().await;
            self.reader.close().await;
            return Err(sqlx::Error::PoolClosed);
        }
        Ok(connection)
    }

    /// The clock that decides what is available, leased or expired, in microseconds.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn fault(&self, error: sqlx::Error) -> Error {
        fault::classify(error, &self.sql.table)
    }
}

/// One connection beside the pool's, on which a commit is not waited for until it is on the disk.
///
/// What is committed there is durable with the next commit of a transaction that does wait, and at the latest with the
/// next checkpoint. Losing it to a power cut loses a lease or a settlement, never an event.
fn relay_pool(pool: &SqlitePool) -> SqlitePool {
    let options = SqliteConnectOptions::clone(&pool.connect_options());
    // A database in memory has no disk to wait for, and another connection would not even find it.
    if !options.get_filename().is_file() {
        return pool.clone();
    }
    // Keeps the hooks of the pool: they may attach the database that the table is in.
    let pool = pool.options().clone().min_connections(0).max_connections(1).test_before_acquire(false);
    pool.connect_lazy_with(options.synchronous(SqliteSynchronous::Normal))
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("table", &self.sql.table).finish_non_exhaustive()
    }
}

/// Takes turns at a statement until no other process is in its way, giving the turn up between two tries.
macro_rules! patiently {
    ($store:ident, $attempt:expr) => {
        async move {
            let mut patience = Patience::new();
            loop {
                let turn = $store.gate.enter().await?;
                let outcome = $attempt.await;
                drop(turn);
                $crate::sqlite::gate::let_others_go_on().await;
                match outcome {
                    Ok(answer) => return Ok(answer),
                    Err(error) => patience.after(error, $store.table()).await?,
                }
            }
        }
    };
}
use patiently;

/// Each of these waits up to 30 s for transactions of other processes before it answers [`Error::Busy`].
impl RelayStore for SqliteStore {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move {
            let leased = patiently!(self, self.try_claim(claim)).await?;
            self.decode(claim, leased).await
        })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(patiently!(self, self.try_settle(settlements)))
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        Box::pin(patiently!(self, self.try_renew(leases)))
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(patiently!(self, self.try_release_all()))
    }

    /// It says by itself, when it is asked for their number, if the table has none yet.
    fn lanes(&self) -> Option<Arc<dyn LaneStore>> {
        Some(Arc::new(self.clone()))
    }
}
