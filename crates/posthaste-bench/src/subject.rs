//! A database under test, and what the same work takes when it is written by hand for it.

mod guard;
pub(crate) mod mariadb;
mod pgbench;
pub(crate) mod postgres;
pub(crate) mod sqlite;

use std::time::Duration;

use anyhow::ensure;
use posthaste_core::Event;
use posthaste_core::store::{NewRow, Store, WriteStore};

/// Rows that a hand-written loop claims and completes at a time.
pub(crate) const BATCH: usize = 500;

/// The most connections that writers have.
pub(crate) const CONNECTIONS: u32 = 10;

/// A business row, which every database takes in these words but for the sign of its parameter.
macro_rules! order {
    ($parameter:literal) => {
        concat!("INSERT INTO orders (customer, total) VALUES (", $parameter, ", 19.90)")
    };
}
use order;

/// The type of aggregates that stand still beside what is measured.
pub(crate) const STUCK: &str = "Stuck";

/// The connection of a subject's store.
pub(crate) type Connection<S> = <<S as Subject>::Store as WriteStore>::Connection;

/// A database under test. What is done by hand is done through the same driver, as well as it can be.
pub(crate) trait Subject: 'static {
    type Store: Store;

    /// A connection for work by hand, which is opened once and kept: nothing asks in between whether it is alive.
    type Hand: Send + 'static;

    /// What is faster by hand than one careful loop.
    const FASTER: Faster;

    /// Its name, and the version of the server.
    fn name(&self) -> &'static str;
    async fn version(&self) -> anyhow::Result<String>;

    /// An empty outbox, and an empty table of orders.
    async fn fresh(&self) -> anyhow::Result<Self::Store>;

    /// Another store on the same tables, which shares no connection with the first.
    async fn another(&self, store: &Self::Store) -> anyhow::Result<Self::Store>;

    /// Makes the table fit for order.
    async fn prepare_lanes(store: &Self::Store) -> anyhow::Result<()>;

    /// The same store, deleting what is done.
    fn deleting(store: Self::Store) -> Self::Store;

    /// Inserts rows that are DONE.
    async fn fill_done(store: &Self::Store, rows: usize) -> anyhow::Result<()>;

    /// Does what the server would do a little later by itself, in the middle of a measurement or not.
    async fn settle_down(store: &Self::Store) -> anyhow::Result<()>;

    /// Inserts a business row.
    fn order(connection: &mut Connection<Self>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// So many connections for writers, set as those of the outbox are.
    async fn writers(store: &Self::Store, count: usize) -> anyhow::Result<Vec<Self::Hand>>;

    /// A connection that claims and completes, in the isolation that claims of the outbox have.
    async fn drainer(store: &Self::Store) -> anyhow::Result<Self::Hand>;

    /// Has a connection reckon with a table that grows while it is used.
    async fn expect_growth(_: &mut Self::Hand) -> anyhow::Result<()> {
        Ok(())
    }

    /// A transaction with a business row alone.
    fn write_bare(hand: &mut Self::Hand) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// A transaction with a business row and events, whose rows have what those of the outbox have.
    fn write_by_hand(hand: &mut Self::Hand, events: &[Event]) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Claims and completes up to [`BATCH`] rows, which are heard of in between.
    fn pass_by_hand(
        hand: &mut Self::Hand,
        pass: Pass,
        hear: &Hear,
    ) -> impl Future<Output = anyhow::Result<Passed>> + Send;

    /// A program that comes with the database and can write the transactions of W, if it is installed.
    fn own_program(&self) -> Option<&'static str> {
        None
    }

    /// Transactions per second of that program.
    async fn write_by_own_program(&self, _writers: usize, _writing: Duration) -> anyhow::Result<f64> {
        anyhow::bail!("{} has no such program", self.name())
    }

    /// Holds a transaction open that keeps the server from forgetting old versions of rows, until the guard is dropped.
    async fn pin(store: &Self::Store) -> anyhow::Result<Box<dyn Send>>;

    /// Closes the connections of a store, and leaves its tables to others.
    async fn leave(store: Self::Store);

    /// Closes the connections of a store whose tables nobody needs any more.
    async fn close(store: Self::Store) {
        Self::leave(store).await;
    }

    /// What the server has done for everybody since its start, where it says so.
    async fn usage(&self) -> anyhow::Result<Usage> {
        Ok(Usage::default())
    }
}

/// A way to drain by hand that is faster than a loop which claims, has its claim committed, and completes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faster {
    pub(crate) name: &'static str,
    pub(crate) words: &'static str,
    /// How many loops there are at once.
    pub(crate) loops: usize,
}

/// How a loop by hand claims and completes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// Whether it deletes what is done.
    pub(crate) deleting: bool,
    /// Whether it does so in the way that is [`Faster`].
    pub(crate) faster: bool,
    /// The number below which nothing is left to be claimed, if it keeps one. Only one writer may be there then.
    pub(crate) mark: Option<i64>,
}

/// What a batch had.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) seqs: Vec<i64>,
    /// The ids of the aggregates.
    pub(crate) keys: Vec<Option<String>>,
}

impl Passed {
    fn with_capacity(rows: usize) -> Self {
        Self { seqs: Vec::with_capacity(rows), keys: Vec::with_capacity(rows) }
    }

    /// Takes a row with what a listener would want to have of it.
    fn push(&mut self, row: ReadRow) {
        self.seqs.push(row.0);
        self.keys.push(row.4);
    }
}

/// Is told what a loop by hand has claimed.
pub(crate) type Hear = dyn Fn(&Passed) + Send + Sync;

/// Number, id, type, type and id of the aggregate, and payload.
type ReadRow = (i64, String, String, Option<String>, Option<String>, Option<String>);

/// What a server has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) commits: Option<u64>,
    pub(crate) wal_bytes: Option<u64>,
    /// Versions of rows that were left behind.
    pub(crate) dead_rows: Option<u64>,
    pub(crate) cpu_seconds: Option<f64>,
}

/// What is in a table before it is drained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filling {
    /// How many events wait.
    pub(crate) events: usize,
    /// How many before them are DONE.
    pub(crate) done: usize,
    /// About how many bytes each of the events has.
    pub(crate) payload: usize,
    /// To how many aggregates the events belong, in turn. To one each, if nothing is said.
    pub(crate) keys: usize,
    /// How many aggregates stand still before that, each with a DEAD event and one behind it.
    pub(crate) parked: usize,
    /// How many, each with an event that has failed and is tried again much later, and one behind it.
    pub(crate) blocked: usize,
    /// The number of the first of those that stand still. Those of the events begin at 0.
    pub(crate) stuck_from: usize,
}

impl Default for Filling {
    fn default() -> Self {
        Self { events: 0, done: 0, payload: 200, keys: usize::MAX, parked: 0, blocked: 0, stuck_from: 0 }
    }
}

/// Inserts events that wait, behind others that are DONE.
pub(crate) async fn fill<S: Subject>(store: &S::Store, filling: Filling) -> anyhow::Result<()> {
    S::fill_done(store, filling.done).await?;
    let payload = payload(filling.payload);
    let at_a_time = (16_000_000 / payload.len()).clamp(1, 10_000);
    let numbers: Vec<usize> = (0..filling.events).collect();
    for chunk in numbers.chunks(at_a_time) {
        let mut tx = store.begin().await?;
        let rows: Vec<_> = chunk.iter().map(|number| NewRow::new(event(*number % filling.keys, &payload))).collect();
        store.insert(&mut tx, &rows).await?;
        store.commit(tx).await?;
    }
    S::settle_down(store).await
}

/// Fails unless all rows are DONE, and that many.
pub(crate) async fn check_done<S: Store>(store: &S, events: usize) -> anyhow::Result<()> {
    check_drained(store, Filling { events, ..Filling::default() }).await
}

/// Fails unless all rows are DONE of what was in a table, but for those of aggregates that stand still.
pub(crate) async fn check_drained<S: Store>(store: &S, filling: Filling) -> anyhow::Result<()> {
    let Filling { events, done, parked, blocked, .. } = filling;
    let counts = store.counts().await?;
    let expected = [events + done, parked, parked + blocked, blocked].map(|rows| rows as u64);
    ensure!([counts.done, counts.dead, counts.new, counts.retry] == expected, "not every row is DONE: {counts:?}");
    Ok(())
}

/// An event like every other.
pub(crate) fn event(number: usize, payload: &str) -> Event {
    Event::builder("Tick").aggregate("Clock", number).json_text(payload).build().expect("a valid event")
}

/// About that many bytes of JSON.
pub(crate) fn payload(bytes: usize) -> String {
    let half = bytes.saturating_sub(43) / 2;
    format!(r#"{{"order":"{}","customer":"{}","total":"19.90"}}"#, "o".repeat(half), "c".repeat(half))
}
