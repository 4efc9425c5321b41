//! What the outbox needs of a database: to write, to relay, and to look after the table.

mod admin;
mod contained;
mod error;
mod lane;
mod pause;
mod row;

use std::fmt;
use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::{Event, EventId};
use crate::signal::Signal;
use crate::time::Timestamp;

pub(crate) use contained::{Contained, ContainedLanes, contained};

pub use admin::{AdminStore, Counts, Cursor, Filter, Maintained, Order, Page, Purge, Record, Redrive};
pub use error::{CommitError, Error};
pub use lane::{
    ClosedKey, Key, Lane, LaneHolders, LaneLease, LaneRow, LaneRows, LaneSettlement, LaneStore, MalformedInLane,
    ReadLane, ReadLanes, RelayHere, RelayOfLanes, Renewed, Stall, StalledKey, Writer,
};
pub use pause::{Pause, Paused};
pub use row::{RawRow, cut_error};

/// A boxed future, as the object-safe store traits return them.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a row stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Written, not yet tried with an outcome.
    New = 0,
    /// Delivered. Final.
    Done = 1,
    /// Failed, to be tried again.
    Retry = 2,
    /// Given up. Final, until an operator redrives it.
    Dead = 3,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::New, Self::Done, Self::Retry, Self::Dead];

    /// The number that stands for it in the table.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The status for a number of the table.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|status| i64::from(status.code()) == code)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Done => "DONE",
            Self::Retry => "RETRY",
            Self::Dead => "DEAD",
        }
    }

    /// Whether no settlement changes it any more.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Dead)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The right to deliver a row, and the fence around its settlement: a text that no other lease of that row ever has.
///
/// It stands in the row while the lease is held. A settlement changes the row only while it still stands there.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lease(Arc<str>);

impl Lease {
    /// The lease with that number of that owner. An owner uses each number once.
    pub fn new(owner: &str, number: u64) -> Self {
        Self(Arc::from(format!("{owner}/{number}")))
    }

    /// What stands in the row.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Who holds a lease, given what stands in the row.
    pub fn owner_of(text: &str) -> &str {
        text.rsplit_once('/').map_or(text, |(owner, _)| owner)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The leases of one owner, each with a number of its own.
#[derive(Debug)]
pub(crate) struct Leases {
    owner: String,
    next: AtomicU64,
}

impl Leases {
    pub(crate) fn new(owner: String) -> Self {
        Self { owner, next: AtomicU64::new(1) }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    pub(crate) fn next(&self) -> Lease {
        Lease::new(&self.owner, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// An event about to be inserted.
#[derive(Clone, Debug)]
pub struct NewRow {
    /// The event.
    pub event: Event,
    /// The lease it is born with, when this process will try it hot.
    pub lease: Option<Lease>,
    prepared_at: Instant,
}

impl NewRow {
    /// A row for an event, without a lease.
    pub fn new(event: Event) -> Self {
        Self { event, lease: None, prepared_at: Instant::now() }
    }

    /// A row for an event that is born with a lease.
    pub fn leased(event: Event, lease: Lease) -> Self {
        Self { lease: Some(lease), ..Self::new(event) }
    }

    /// A moment before the insert, and so before the lease began.
    pub(crate) fn prepared_at(&self) -> Instant {
        self.prepared_at
    }
}

/// What a writer needs: transactions, and inserts inside them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "not a store",
    note = "if it is a pool, make a store of it: `PgStore::new(pool)`, `MySqlStore::new(pool)` or `SqliteStore::new(pool)`"
)]
pub trait WriteStore: Send + Sync + 'static {
    /// A connection, on which the user's own statements run.
    type Connection: Send;

    /// A transaction that somebody else began, as `Outbox::write` takes it. A pool or a bare connection is not one.
    type Tx<'c>: DerefMut<Target = Self::Connection> + Send;

    /// A transaction begun by [`begin`](Self::begin).
    type OwnTx: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Begins a transaction that can write.
    ///
    /// # Cancellation
    /// The caller runs this future to its end even if its own caller loses interest.
    fn begin(&self) -> impl Future<Output = Result<Self::OwnTx, Error>> + Send;

    /// Inserts the rows, as NEW, in as few statements as the database allows. All or none of them within the
    /// transaction; an empty slice does nothing.
    ///
    /// # Errors
    /// [`Error::DuplicateId`] when an id is taken; whether the transaction can go on after it depends on the database.
    fn insert(
        &self,
        connection: &mut Self::Connection,
        rows: &[NewRow],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// The same in a transaction that somebody else began, and of which nothing is known. Default: [`insert`](Self::insert).
    ///
    /// # Errors
    /// As those of [`insert`](Self::insert).
    fn insert_into(
        &self,
        connection: &mut Self::Connection,
        rows: &[NewRow],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.insert(connection, rows)
    }

    /// Commits.
    ///
    /// # Errors
    /// Says whether it is certain that nothing was committed.
    ///
    /// # Cancellation
    /// The caller runs this future to its end even if its own caller loses interest.
    fn commit(&self, tx: Self::OwnTx) -> impl Future<Output = Result<(), CommitError>> + Send;

    /// Commits a transaction that somebody else had in hand after these events were inserted, the first of each
    /// [`insert`](Self::insert). Gives those that are not in it any more, or of which that is not known: he may have undone them
    /// by a statement of his own. What was inserted with them is delivered if it is in the table, and only from there.
    /// Default: [`commit`](Self::commit), and none.
    ///
    /// # Errors
    /// As those of [`commit`](Self::commit).
    ///
    /// # Cancellation
    /// The caller runs this future to its end even if its own caller loses interest.
    fn commit_lent(
        &self,
        tx: Self::OwnTx,
        firsts: Vec<EventId>,
    ) -> impl Future<Output = Result<Vec<EventId>, CommitError>> + Send {
        let _ = firsts;
        let commit = self.commit(tx);
        async move { commit.await.map(|()| Vec::new()) }
    }

    /// Commits a transaction in which there was one [`insert`](Self::insert), which went well and after which nothing has
    /// happened. So no statement has failed in it, which some databases say of a transaction only when asked. Default:
    /// [`commit`](Self::commit).
    ///
    /// # Errors
    /// As those of [`commit`](Self::commit).
    ///
    /// # Cancellation
    /// The caller runs this future to its end even if its own caller loses interest.
    fn commit_inserted(&self, tx: Self::OwnTx) -> impl Future<Output = Result<(), CommitError>> + Send {
        self.commit(tx)
    }

    /// Rolls back.
    ///
    /// # Errors
    /// When the database did not say that it has; nothing is committed in any case.
    fn rollback(&self, tx: Self::OwnTx) -> impl Future<Output = Result<(), Error>> + Send;

    /// How deep in transactions a connection is: 0 outside of one, 1 in one, more in its savepoints. What is written in a
    /// savepoint may be rolled back while the transaction commits. It may be told too high for a moment after
    /// [`abandon_savepoint`](Self::abandon_savepoint), and never too low. Default: 1.
    fn depth(&self, connection: &Self::Connection) -> usize {
        let _ = connection;
        1
    }

    /// Sets a savepoint inside those that there are. Default: refused.
    ///
    /// # Errors
    /// When the database refuses it. Says whether it is certain that nothing of the transaction is committed, for it is dropped
    /// then. It is not when the database knows of no transaction: somebody has ended it by a statement of his own.
    ///
    /// # Cancellation
    /// Whether it was set is then open; the transaction can only be rolled back.
    fn savepoint(&self, connection: &mut Self::Connection) -> impl Future<Output = Result<(), CommitError>> + Send {
        let _ = connection;
        std::future::ready(Err(CommitError::NotCommitted(no_savepoints())))
    }

    /// Ends the innermost savepoint, and keeps what was done in it. Default: refused.
    ///
    /// # Errors
    /// When the database refuses it, and when the innermost one is not at that depth; what that makes of the transaction depends
    /// on the database.
    fn release_savepoint(
        &self,
        connection: &mut Self::Connection,
        depth: usize,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (connection, depth);
        std::future::ready(Err(no_savepoints()))
    }

    /// Ends the innermost savepoint, and undoes what was done in it. Default: refused.
    ///
    /// # Errors
    /// As those of [`savepoint`](Self::savepoint), and when the innermost one is not at that depth.
    fn undo_savepoint(
        &self,
        connection: &mut Self::Connection,
        depth: usize,
    ) -> impl Future<Output = Result<(), CommitError>> + Send {
        let _ = (connection, depth);
        std::future::ready(Err(CommitError::NotCommitted(no_savepoints())))
    }

    /// Has the innermost savepoint undone before the next statement: its owner is gone and cannot wait. Default: nothing.
    fn abandon_savepoint(&self, connection: &mut Self::Connection) {
        let _ = connection;
    }

    /// Ends a savepoint that was abandoned at that depth. Databases keep one that was rolled back to, and would nest the next one
    /// in it. Default: nothing.
    ///
    /// # Errors
    /// Says whether it is certain that nothing of the transaction is committed, for it is dropped then. It is when one is open at
    /// that depth or deeper: somebody has set it inside of the abandoned one and forgotten it, and it was undone instead. It is
    /// not when the database knows of no such savepoint: somebody has ended the transaction by a statement of his own.
    fn end_abandoned(
        &self,
        connection: &mut Self::Connection,
        depth: usize,
    ) -> impl Future<Output = Result<(), CommitError>> + Send {
        let _ = (connection, depth);
        std::future::ready(Ok(()))
    }

    /// Has every savepoint undone that may be open: the transaction is dropped next, which ends it, but may not end those in it.
    /// Default: nothing.
    fn abandon_all(&self, connection: &mut Self::Connection) {
        let _ = connection;
    }
}

fn no_savepoints() -> Error {
    Error::Refused("this store has no savepoints".into())
}

/// What a relay needs: to lease rows, to settle them, to keep and give back leases. Object-safe.
///
/// Each method is one statement or one transaction. When its future is dropped the statement may or may not have been
/// carried out; leases then run out, so nothing is lost. Every decision about time is the database's.
pub trait RelayStore: Send + Sync + 'static {
    /// Leases rows that are pending, available, not leased (or whose lease has run out), and older than `skip_recent`:
    /// first those available longest, in a stable order. Rows of two claims never overlap.
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>>;

    /// Writes outcomes back, each only where its lease still stands in the row and the row is not final. Gives one
    /// answer for each, in their order.
    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>>;

    /// Extends leases that are still held, from now on. Says for each whether it is.
    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>>;

    /// Takes every lease off every pending row, whoever holds it, and says how many.
    ///
    /// Only for the start of a process that is the only one: what is leased then was left by its predecessor.
    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>>;

    /// How processes on this table tell each other of new rows, if they can. Default: they cannot, and poll.
    fn signal(&self) -> Option<Arc<dyn Signal>> {
        None
    }

    /// How relays own rows of this table by lanes of keys, if they can. Default: they cannot.
    fn lanes(&self) -> Option<Arc<dyn LaneStore>> {
        None
    }
}

/// Everything that an [`Outbox`](crate::Outbox) needs of a store. Implemented by whatever implements the parts.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "not a store",
    note = "if it is a pool, make a store of it: `PgStore::new(pool)`, `MySqlStore::new(pool)` or `SqliteStore::new(pool)`"
)]
pub trait Store: WriteStore + RelayStore + AdminStore + Clone {}

#[diagnostic::do_not_recommend]
impl<S: WriteStore + RelayStore + AdminStore + Clone> Store for S {}

/// What to claim.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The lease that the rows get.
    pub lease: Lease,
    /// How long after it was taken or renewed a lease of anybody has run out.
    pub lease_duration: Duration,
    /// The most rows to claim.
    pub limit: usize,
    /// How old a row must be.
    pub skip_recent: Duration,
}

/// What a claim gave.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The rows, in the order in which they became available.
    pub rows: Vec<ClaimedRow>,
    /// Rows that were leased as well but are no events.
    pub malformed: Vec<Malformed>,
    /// In how long the next row that waits for its moment becomes available, as far as is known. Only told by a claim
    /// that found fewer rows than its limit.
    pub next_in: Option<Duration>,
}

/// A row that was claimed.
#[derive(Clone, Debug)]
pub struct ClaimedRow {
    /// The number that the database gave it.
    pub seq: i64,
    /// The event.
    pub event: Event,
    /// How often it has failed.
    pub attempts: u32,
    /// For how long it has been available, by the database's clock.
    pub lag: Duration,
}

/// A row that was claimed but is no event: somebody else's hand wrote it, or damaged it.
#[derive(Clone, Debug)]
pub struct Malformed {
    /// The id of the row.
    pub id: EventId,
    /// What is wrong with it.
    pub reason: String,
}

/// An outcome to be written back, with the lease under which it was reached.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// Which row.
    pub id: EventId,
    /// Its number, where it is known, which a database may find faster than the id.
    pub seq: Option<i64>,
    /// The lease that must still stand in it.
    pub lease: Lease,
    /// What to make of it.
    pub action: Action,
}

impl Settlement {
    /// An outcome for the row with that id.
    pub fn new(id: EventId, lease: Lease, action: Action) -> Self {
        Self { id, seq: None, lease, action }
    }
}

/// What to make of a row. Each of them ends the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// DONE, or deleted by a store that was told not to keep what is done.
    Done,
    /// RETRY, one attempt more, available after the delay.
    Retry {
        /// How long from now, by the database's clock.
        delay: Duration,
        /// Why it failed.
        error: String,
    },
    /// As it was, attempts and all, available after the delay.
    Defer {
        /// How long from now, by the database's clock.
        delay: Duration,
    },
    /// DEAD.
    Dead {
        /// Why.
        error: String,
        /// Whether this was an attempt of its own, to be counted.
        counts: bool,
    },
    /// As it was, available to anybody at once.
    Release,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// It was written.
    Applied,
    /// The lease no longer stands in the row: another owner has it, or it is final, or it is gone. Nothing was changed.
    Lost,
}

/// Everything about a stored row that is not the event itself. Part of a [`Record`].
#[derive(Clone, Debug, PartialEq)]
pub struct RowState {
    /// The number that the database gave it.
    pub seq: i64,
    /// What it stands at.
    pub status: Status,
    /// How often it has failed.
    pub attempts: u32,
    /// From when on it may be delivered.
    pub available_at: Timestamp,
    /// When it was inserted.
    pub created_at: Timestamp,
    /// When it became DONE or DEAD.
    pub done_at: Option<Timestamp>,
    /// Why it failed last.
    pub last_error: Option<String>,
    /// The lease, with the moment at which it was taken or renewed.
    pub lease: Option<(String, Timestamp)>,
}
