//! The outbox as most programs use it: one object that writes, delivers and shuts down.

mod after;
mod ambient;
mod builder;
mod receipt;
mod savepoint;
mod transaction;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;

use crate::dispatcher::{Closed, Dispatcher};
use crate::event::{self, EventId, IntoEvent};
use crate::finish::finish;
use crate::lanes::LaneRelay;
use crate::poller::Source;
use crate::retention::Retention;
use crate::signal::Signals;
use crate::store::{self, AdminStore, NewRow, Store, WriteStore};
use crate::wake::Wake;

use after::AfterWrite;
pub use ambient::{Current, NoTransaction, TransactionError};
pub use builder::{OutboxBuilder, Scenario, StartError};
pub use receipt::Receipt;
pub use savepoint::Savepoint;
pub use transaction::Transaction;

/// A transactional outbox: events written with your business change, delivered at least once after its commit.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Delivery, Event, MemoryStore, Outbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::builder(MemoryStore::new())
///     .listen("Order", "OrderPlaced", |event: Delivery| async move { println!("delivering {}", event.id()) })
///     .start()
///     .await?;
///
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text(r#"{"total":"19.90"}"#)).await?;
/// tx.commit().await?; // delivered from here on
///
/// outbox.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// Cheap to clone; clones share everything. When the last one is dropped without [`shutdown`](Self::shutdown) the
/// deliveries end where they are: nothing is lost, but what was in hand waits until its leases run out.
pub struct Outbox<S: WriteStore>(Arc<Inner<S>>);

struct Inner<S: WriteStore> {
    store: S,
    after: Arc<AfterWrite>,
    relay: Option<Relay>,
    signals: Option<Arc<Signals>>,
    /// Deletes old rows, if asked to. Ends with the outbox.
    retention: Option<Retention>,
    tasks: TaskTracker,
}

/// The half of an outbox that delivers. A writer-only outbox has none.
struct Relay {
    engine: Engine,
    /// Counts rows now and then, if asked to. Ends with the outbox.
    _counting: JoinSet<()>,
}

/// How it owns what it delivers.
enum Engine {
    /// Row by row.
    Rows {
        dispatcher: Arc<Dispatcher>,
        source: Box<dyn Source>,
        /// How long a shutdown may take.
        deadline: Duration,
    },
    /// By lanes of keys.
    Lanes(Arc<LaneRelay>),
}

impl Engine {
    fn in_flight(&self) -> usize {
        match self {
            Self::Rows { dispatcher, .. } => dispatcher.in_flight(),
            Self::Lanes(lanes) => lanes.in_flight(),
        }
    }

    /// The handle that has it look at the table.
    fn wake(&self) -> Wake {
        match self {
            Self::Rows { dispatcher, .. } => dispatcher.poller_wake(),
            Self::Lanes(lanes) => lanes.wake(),
        }
    }

    /// How long a shutdown may take.
    fn deadline(&self) -> Duration {
        match self {
            Self::Rows { deadline, .. } => *deadline,
            Self::Lanes(lanes) => lanes.deadline(),
        }
    }

    /// Ends by then. A claim under way is let finish, but not at the cost of everything after it.
    async fn close_by(&self, deadline: Instant) -> Closed {
        match self {
            Self::Rows { dispatcher, source, deadline: length } => {
                let _ = timeout_at(Instant::now() + *length / 5, source.close()).await;
                dispatcher.close_by(deadline).await
            }
            Self::Lanes(lanes) => lanes.close_by(deadline).await,
        }
    }

    async fn close_now(&self) -> Closed {
        match self {
            Self::Rows { dispatcher, source, .. } => {
                source.stop();
                dispatcher.close_now().await
            }
            Self::Lanes(lanes) => lanes.close_now().await,
        }
    }

    /// Waits for a claim that was under way at the close.
    async fn close_source(&self, by: Instant) {
        if let Self::Rows { source, .. } = self {
            let _ = timeout_at(by, source.close()).await;
        }
    }

    /// Asks it to stop, without waiting.
    fn stop(&self) {
        match self {
            Self::Rows { source, .. } => source.stop(),
            Self::Lanes(lanes) => lanes.stop(),
        }
    }
}

/// Why events could not be written. The transaction is yours to roll back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// An event could not be built, and nothing was written.
    #[error(transparent)]
    Event(#[from] event::Error),
    /// There is no transaction to write them in.
    #[error(transparent)]
    NoTransaction(#[from] NoTransaction),
    /// The database did not take them.
    #[error("{events} could not be stored")]
    Store {
        /// Which events, by type and id: the one that is to blame, as far as it is known, or the first and their number.
        events: String,
        /// What the database says.
        #[source]
        error: store::Error,
    },
}

impl WriteError {
    /// What a store said to these rows. For adapters, which insert by their own means.
    pub fn of_store(rows: &[NewRow], error: store::Error) -> Self {
        let named = |row: &NewRow| format!("{} (id {})", row.event.event_type(), row.event.id());
        let blamed = match &error {
            store::Error::DuplicateId { id } => rows.iter().find(|row| row.event.id() == id),
            _ => None,
        };
        let events = match (blamed, rows) {
            (Some(row), _) | (None, [row]) => format!("event {}", named(row)),
            (None, [first, ..]) => format!("{} events, the first {},", rows.len(), named(first)),
            (None, []) => "no event".to_owned(),
        };
        Self::Store { events, error }
    }
}

impl<S: WriteStore> fmt::Debug for Outbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl<S: WriteStore> Clone for Outbox<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> Outbox<S> {
    /// Starts to build an outbox for a table that any number of processes may share. The same as
    /// [`many_nodes`](Self::many_nodes).
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = Outbox::builder(MemoryStore::new())
    ///     .listen("Order", "OrderPlaced", |event: Delivery| async move { println!("{}", event.id()) })
    ///     .start()
    ///     .await?;
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(store: S) -> OutboxBuilder<S> {
        Self::many_nodes(store)
    }

    /// For any number of processes on one table. The events of a process that dies are delivered by the others once its
    /// leases have run out.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Two processes on one table, each with a name for whoever looks at their leases.
    /// let table = MemoryStore::new();
    /// let node = async |name: &str| {
    ///     let options = posthaste::Options { owner: Some(name.into()), ..Default::default() };
    ///     Outbox::many_nodes(table.clone()).options(options).listen_all(|_: Delivery| async {}).start().await
    /// };
    /// let (first, second) = (node("eu-1").await?, node("eu-2").await?);
    ///
    /// let mut tx = first.begin().await?;
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.commit().await?;
    /// first.shutdown().await;
    /// assert_eq!(second.admin().counts().await?.done, 1);
    /// # second.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn many_nodes(store: S) -> OutboxBuilder<S> {
        OutboxBuilder::new(store, Scenario::ManyNodes)
    }

    /// For a process that is alone on its table. When it starts it takes over at once what its predecessor left behind,
    /// instead of waiting for leases to run out. Two of them by mistake deliver twice, but lose nothing.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let table = MemoryStore::new();
    /// # let hangs = |_: Delivery| std::future::pending::<()>();
    /// # let dies = Outbox::builder(table.clone()).listen_all(hangs).start().await?;
    /// # let mut tx = dies.begin().await?;
    /// # tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// # tx.commit().await?;
    /// # drop(dies);
    /// // Its predecessor was killed with an event in hand. It is delivered now, not when that lease has run out.
    /// let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    /// let outbox = Outbox::single_node(table)
    ///     .listen_all(move |event: Delivery| {
    ///         let _ = tell.send(event.id().clone());
    ///         async {}
    ///     })
    ///     .start()
    ///     .await?;
    /// assert!(told.recv().await.is_some());
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn single_node(store: S) -> OutboxBuilder<S> {
        OutboxBuilder::new(store, Scenario::SingleNode)
    }

    /// For a process that only writes, while another one, or the database's log, delivers.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let outbox = Outbox::writer_only(MemoryStore::new()).start().await?; // no listener is asked for
    ///
    /// let mut tx = outbox.begin().await?;
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.commit().await?;
    /// assert_eq!(outbox.admin().counts().await?.new, 1); // somebody else's to deliver
    /// # Ok(())
    /// # }
    /// ```
    pub fn writer_only(store: S) -> OutboxBuilder<S> {
        OutboxBuilder::new(store, Scenario::WriterOnly)
    }

    /// What an operator needs: to count, find, list, redrive and purge.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::store::{Filter, Page};
    /// use posthaste::{Delivery, MemoryStore, Outbox, Status};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    /// for row in outbox.admin().list(&dead, &Page::default()).await? {
    ///     println!("{}: {:?}", row.id, row.state.last_error);
    /// }
    /// assert_eq!(outbox.admin().counts().await?.pending(), 0);
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn admin(&self) -> &dyn AdminStore {
        &self.0.store
    }
}

impl<S: WriteStore> Outbox<S> {
    /// The store below.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Begins a transaction in which your own statements and events go together. Use it as your connection.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let mut tx = outbox.begin().await?;
    /// // Your own statements go here, on `&mut *tx`.
    /// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    /// tx.commit().await?;
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the database cannot be reached or is busy for too long.
    ///
    /// # Cancellation
    /// Safe: a transaction that was begun and that nobody waits for any more is rolled back.
    pub async fn begin(&self) -> Result<Transaction<S>, store::Error> {
        let inner = Arc::clone(&self.0);
        let own = finish(&self.0.tasks, async move { inner.store.begin().await }).await?;
        kill_point!("begin.after");
        Ok(Transaction::new(self.clone(), own))
    }

    /// Writes an event in a transaction that is yours. Call [`Receipt::dispatch`] after its commit; without it the
    /// poller delivers the event, a little later.
    ///
    /// Inside a savepoint of sqlx the event is left to the poller, which finds it if the savepoint was kept. A savepoint that was
    /// set by a statement of your own (`SAVEPOINT a`) cannot be seen: if you roll back to it, do not dispatch.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::memory::MemoryTx;
    /// use posthaste::store::WriteStore;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// // With sqlx it is `pool.begin().await?`.
    /// let mut tx = MemoryTx::new();
    /// let receipt = outbox.write(&mut tx, Event::of_json("OrderPlaced", "{}")).await?;
    /// outbox.store().commit(tx).await?;
    /// receipt.dispatch();
    /// # outbox.shutdown().await;
    /// # assert_eq!(outbox.admin().counts().await?.done, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the event is not acceptable or the database does not take it.
    ///
    /// # Cancellation
    /// Whether the event was inserted is then open; roll the transaction back.
    pub async fn write(&self, tx: &mut S::Tx<'_>, event: impl IntoEvent + Send) -> Result<Receipt, WriteError> {
        self.write_all(tx, [event]).await
    }

    /// Writes several events in a transaction that is yours, in few statements. Otherwise like [`write`](Self::write).
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::memory::MemoryTx;
    /// use posthaste::store::WriteStore;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let mut tx = MemoryTx::new();
    /// let placed = |id| Event::builder("OrderPlaced").aggregate("Order", id).json(&id);
    /// let receipt = outbox.write_all(&mut tx, (1..=3).map(placed)).await?;
    /// outbox.store().commit(tx).await?;
    /// assert_eq!(receipt.ids().len(), 3);
    /// receipt.dispatch();
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When an event is not acceptable or the database does not take them.
    pub async fn write_all<E: IntoEvent>(
        &self,
        tx: &mut S::Tx<'_>,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Receipt, WriteError> {
        let receipt = match self.0.store.depth(tx) {
            0 | 1 => self.prepare(events)?,
            _ => self.prepare_nested(events)?,
        };
        kill_point!("insert.before");
        match self.0.store.insert_into(tx, receipt.rows_to_insert()).await {
            Ok(()) => {
                kill_point!("insert.after");
                Ok(receipt)
            }
            Err(error) => {
                let error = WriteError::of_store(receipt.rows_to_insert(), error);
                receipt.never_written();
                Err(error)
            }
        }
    }

    /// Prepares events for an insert by other means than this outbox's store: hooks have had their say, and places on the
    /// hot path are reserved. Insert [`Receipt::rows_to_insert`] in your transaction, then use the receipt as usual.
    ///
    /// # Errors
    /// When an event is not acceptable.
    pub fn prepare<E: IntoEvent>(&self, events: impl IntoIterator<Item = E>) -> Result<Receipt, event::Error> {
        Ok(Receipt::new(Arc::clone(&self.0.after), self.0.after.prepare(collect(events)?)))
    }

    /// The same for an insert inside a savepoint, or where nobody can say that it is not inside of one: see
    /// [`Receipt::nested`]. Such events never take the hot path, so no place is reserved for them, and their rows are born
    /// free for every poller.
    ///
    /// # Errors
    /// When an event is not acceptable.
    pub fn prepare_nested<E: IntoEvent>(&self, events: impl IntoIterator<Item = E>) -> Result<Receipt, event::Error> {
        Ok(Receipt::new(Arc::clone(&self.0.after), self.0.after.prepare_nested(collect(events)?)).nested())
    }

    /// Runs a future to its end: in place, or as a task if its caller is gone, for which [`shutdown`](Self::shutdown) waits.
    ///
    /// For adapters: a `BEGIN` or `COMMIT` that was sent cannot be taken back, and its connection must not return to a pool
    /// before the answer is known.
    pub fn finish<F>(&self, future: F) -> impl Future<Output = F::Output> + Send + use<F, S>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        finish(&self.0.tasks, future)
    }

    /// Asks the poller to look at the table now. For events that somebody else inserted.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// // A program in another language has just inserted a row, or an operator has let an aggregate go on.
    /// outbox.wake();
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn wake(&self) {
        if let Some(relay) = &self.0.relay {
            relay.engine.wake().everywhere();
        }
    }

    /// How many events are queued, with a listener, or waiting for their settlement.
    pub fn in_flight(&self) -> usize {
        self.0.relay.as_ref().map_or(0, |relay| relay.engine.in_flight())
    }

    /// What delivers row by row, unless this outbox only writes, or has lanes.
    #[cfg(feature = "testing")]
    pub(crate) fn dispatcher(&self) -> Option<&Arc<Dispatcher>> {
        match &self.0.relay.as_ref()?.engine {
            Engine::Rows { dispatcher, .. } => Some(dispatcher),
            Engine::Lanes(_) => None,
        }
    }

    /// Ends the deliveries in order: stops claiming, drains what is in memory, settles, and releases what the deadline
    /// cut off. Writing still works afterwards; its events are left to others. Calling it again waits for the one end.
    ///
    /// With [order](OutboxBuilder::ordered), what was not begun is left to others as well, and lanes are given back as soon as
    /// what is with listeners has ended.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let closed = outbox.shutdown().await;
    /// if !closed.is_clean() {
    ///     println!("{} given back, {} left to their leases", closed.released, closed.abandoned);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(&self) -> Closed {
        kill_point!("shutdown.before");
        self.0.stop_aside();
        let Some(relay) = &self.0.relay else {
            self.end_aside(Instant::now() + LAST).await;
            return Closed::default();
        };
        let started_at = Instant::now();
        let deadline = started_at + relay.engine.deadline();
        let closed = relay.engine.close_by(deadline).await;
        let last = deadline.max(Instant::now() + LAST);
        relay.engine.close_source(last).await;
        self.end_aside(last).await;
        // Commits whose callers went away run on as tasks; they are short, and let finish.
        self.0.tasks.close();
        if timeout_at(last, self.0.tasks.wait()).await.is_err() {
            tracing::warn!(tasks = self.0.tasks.len(), "transactions still open at the end of the shutdown");
        }
        kill_point!("shutdown.after");
        closed
    }

    /// Like [`shutdown`](Self::shutdown), but gives back at once what has not ended by itself.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// // The first signal ends it in order, the second one at once.
    /// # let second_signal = std::future::pending::<()>;
    /// tokio::select! {
    ///     closed = outbox.shutdown() => assert!(closed.is_clean()),
    ///     () = second_signal() => { outbox.shutdown_now().await; }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown_now(&self) -> Closed {
        kill_point!("shutdown.before");
        self.0.stop_aside();
        let Some(relay) = &self.0.relay else { return Closed::default() };
        let closed = relay.engine.close_now().await;
        relay.engine.close_source(Instant::now() + LAST).await;
        kill_point!("shutdown.after");
        closed
    }

    /// Lets the last signal go out and the last chunk of old rows be deleted, if they do so soon. What is lost costs others
    /// nothing but time.
    async fn end_aside(&self, by: Instant) {
        if let Some(signals) = &self.0.signals {
            let _ = timeout_at(by, signals.close()).await;
        }
        if let Some(retention) = &self.0.retention {
            let _ = timeout_at(by, retention.close()).await;
        }
    }
}

/// How long a shutdown waits, even when its deadline is over, for a claim or commit under way.
const LAST: Duration = Duration::from_millis(200);

impl<S: WriteStore> Inner<S> {
    /// Stops what goes on beside the deliveries.
    fn stop_aside(&self) {
        if let Some(signals) = &self.signals {
            signals.stop();
        }
        if let Some(retention) = &self.retention {
            retention.stop();
        }
    }
}

impl<S: WriteStore> Drop for Inner<S> {
    fn drop(&mut self) {
        self.stop_aside();
        if let Some(relay) = &self.relay {
            relay.engine.stop();
        }
    }
}

/// The rows of all events, or what is wrong with the first that is none, and which one that is.
fn collect<E: IntoEvent>(events: impl IntoIterator<Item = E>) -> Result<Vec<NewRow>, event::Error> {
    let mut events = events.into_iter();
    let mut rows = Vec::new();
    while let Some(event) = events.next() {
        match event.into_event() {
            Ok(event) => rows.push(NewRow::new(event)),
            Err(error) if rows.is_empty() && events.next().is_none() => return Err(error),
            Err(error) => return Err(event::Error { place: Some(rows.len() + 1), ..error }),
        }
    }
    Ok(rows)
}

fn ids(rows: &[NewRow]) -> Vec<EventId> {
    rows.iter().map(|row| row.event.id().clone()).collect()
}
