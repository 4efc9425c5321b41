//! A store in memory: for tests, for trying things out, and as the plainest statement of what a store does.

mod lanes;
mod table;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::{HashSet, HashSetExt};
use tokio::time::Instant;

use crate::event::{Event, EventId};
use crate::store::{
    AdminStore, BoxFuture, Claim, Claimed, ClosedKey, CommitError, Counts, Error, Filter, Key, Lane, LaneHolders,
    LaneLease, LaneRows, LaneSettlement, LaneStore, Lease, NewRow, Page, Pause, Paused, Purge, ReadLanes, Record,
    Redrive, RelayOfLanes, RelayStore, Renewed, Settled, Settlement, StalledKey, WriteStore,
};
use crate::time::Timestamp;

use table::Table;

/// A store in memory. It forgets everything with the process, and is otherwise like any other store.
///
/// Its clock follows tokio's, so a test that pauses time also pauses leases and retries. Cheap to clone; clones share
/// the table.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Event, MemoryStore, Outbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let outbox = Outbox::writer_only(store.clone()).start().await?;
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// drop(tx);
/// assert_eq!(outbox.admin().counts().await?.total(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    deletes_done: bool,
}

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    clock: Mutex<Clock>,
    /// In the order in which they were said.
    pauses: Mutex<Vec<Pause>>,
}

#[derive(Debug)]
struct Clock {
    started_at: Timestamp,
    started: Instant,
    ahead: Duration,
}

impl Default for MemoryStore {
    fn default() -> Self {
        let clock = Clock { started_at: Timestamp::now(), started: Instant::now(), ahead: Duration::ZERO };
        let shared = Shared { table: Mutex::default(), clock: Mutex::new(clock), pauses: Mutex::default() };
        Self { shared: Arc::new(shared), deletes_done: false }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same store, but what is DONE is deleted instead of kept, by whoever settles through this store or a clone of it.
    ///
    /// The table then holds only what is pending or DEAD, and nothing has to be purged. The price is that nothing tells of
    /// what was delivered, and that the id of a delivered event is free again: an insert of the same id is not refused.
    /// Default: rows are kept, and [`Options::retention_done`](crate::Options::retention_done) says for how long.
    pub fn deleting_done(mut self) -> Self {
        self.deletes_done = true;
        self
    }

    /// Moves the store's clock ahead.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::time::Duration;
    ///
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    /// let outbox = Outbox::builder(store.clone())
    ///     .listen_all(move |event: Delivery| {
    ///         let _ = tell.send(event.path());
    ///         async {}
    ///     })
    ///     .start()
    ///     .await?;
    /// let mut tx = outbox.begin().await?;
    /// tx.write(Event::builder("CartAbandoned").json_text("{}").deliver_after(Duration::from_secs(3600))).await?;
    /// tx.commit().await?;
    ///
    /// store.advance(Duration::from_secs(3600));
    /// outbox.wake();
    /// assert!(told.recv().await.is_some()); // an hour later
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn advance(&self, length: Duration) {
        self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner).ahead += length;
    }

    /// Overwrites the headers of a row with text that need not be JSON, as a careless hand would.
    pub fn damage_headers(&self, id: &EventId, headers: &str) {
        self.table().damage_headers(id, headers);
    }

    fn now(&self) -> Timestamp {
        let clock = self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.started_at + clock.started.elapsed() + clock.ahead
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept_pauses(&self) -> MutexGuard<'_, Vec<Pause>> {
        self.shared.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction of a [`MemoryStore`]: what it inserts is there after the commit, all of it or nothing.
#[derive(Debug, Default)]
pub struct MemoryTx(MemoryConnection);

/// What a [`MemoryTx`] writes on.
#[derive(Debug, Default)]
pub struct MemoryConnection {
    staged: Vec<(NewRow, Timestamp)>,
    ids: HashSet<EventId>,
    /// For each savepoint how many rows were staged before it.
    savepoints: Vec<usize>,
}

impl MemoryConnection {
    fn undo_savepoint(&mut self) {
        let before = self.savepoints.pop().unwrap_or_default();
        for (row, _) in self.staged.drain(before..) {
            self.ids.remove(row.event.id());
        }
    }
}

impl MemoryTx {
    /// A transaction on nothing yet; hand it to `commit` of the store it belongs to.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Deref for MemoryTx {
    type Target = MemoryConnection;

    fn deref(&self) -> &MemoryConnection {
        &self.0
    }
}

impl DerefMut for MemoryTx {
    fn deref_mut(&mut self) -> &mut MemoryConnection {
        &mut self.0
    }
}

impl WriteStore for MemoryStore {
    type Connection = MemoryConnection;
    type Tx<'c> = MemoryTx;
    type OwnTx = MemoryTx;

    async fn begin(&self) -> Result<MemoryTx, Error> {
        Ok(MemoryTx::new())
    }

    async fn insert(&self, connection: &mut MemoryConnection, rows: &[NewRow]) -> Result<(), Error> {
        let now = self.now();
        // A statement is all or nothing: look first, stage then.
        let mut ids = HashSet::new();
        for row in rows {
            let id = row.event.id();
            if connection.ids.contains(id) || self.table().contains(id) || !ids.insert(id.clone()) {
                return Err(Error::DuplicateId { id: id.clone() });
            }
        }
        connection.ids.extend(ids);
        connection.staged.extend(rows.iter().map(|row| (row.clone(), now)));
        Ok(())
    }

    async fn commit(&self, tx: MemoryTx) -> Result<(), CommitError> {
        self.table().commit(tx.0.staged).map_err(CommitError::NotCommitted)
    }

    async fn rollback(&self, tx: MemoryTx) -> Result<(), Error> {
        drop(tx);
        Ok(())
    }

    fn depth(&self, connection: &MemoryConnection) -> usize {
        1 + connection.savepoints.len()
    }

    async fn savepoint(&self, connection: &mut MemoryConnection) -> Result<(), CommitError> {
        connection.savepoints.push(connection.staged.len());
        Ok(())
    }

    async fn release_savepoint(&self, connection: &mut MemoryConnection, _: usize) -> Result<(), Error> {
        connection.savepoints.pop();
        Ok(())
    }

    async fn undo_savepoint(&self, connection: &mut MemoryConnection, _: usize) -> Result<(), CommitError> {
        connection.undo_savepoint();
        Ok(())
    }

    fn abandon_savepoint(&self, connection: &mut MemoryConnection) {
        connection.undo_savepoint();
    }

    async fn end_abandoned(&self, connection: &mut MemoryConnection, depth: usize) -> Result<(), CommitError> {
        if self.depth(connection) < depth {
            return Ok(());
        }
        let reason = "a savepoint inside of one that was dropped was forgotten; begin another transaction";
        Err(CommitError::NotCommitted(Error::Refused(reason.into())))
    }
}

impl RelayStore for MemoryStore {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move { Ok(self.table().claim(claim, self.now())) })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(async move {
            let now = self.now();
            let mut table = self.table();
            Ok(settlements.iter().map(|settlement| table.settle(settlement, now, self.deletes_done)).collect())
        })
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        Box::pin(async move {
            let now = self.now();
            let mut table = self.table();
            Ok(leases.iter().map(|(id, lease)| table.renew(id, lease, now)).collect())
        })
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move { Ok(self.table().release_all()) })
    }

    fn lanes(&self) -> Option<Arc<dyn LaneStore>> {
        Some(Arc::new(self.clone()))
    }
}

impl LaneStore for MemoryStore {
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>> {
        Box::pin(async move { Ok(lanes::COUNT) })
    }

    fn lane_of(&self, event: &Event) -> Option<Lane> {
        Some(lanes::lane_of(event))
    }

    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>> {
        Box::pin(async move {
            let now = self.now();
            Ok(self.table().lanes.lease(owner, wanted, now, now + length))
        })
    }

    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>> {
        Box::pin(async move {
            let now = self.now();
            Ok(self.table().lanes.renew(owner, leases, now, now + length))
        })
    }

    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        Box::pin(async move {
            let now = self.now();
            Ok(self.table().lanes.agree(owner, settings, now, now + length))
        })
    }

    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        Box::pin(async move { Ok(self.table().lanes.relays(self.now())) })
    }

    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.table().lanes.give_back(owner, leases);
            Ok(())
        })
    }

    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>> {
        Box::pin(async move { Ok(self.table().read_lanes(read, self.now())) })
    }

    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(async move {
            let now = self.now();
            let mut table = self.table();
            let settle = |settlement| table.settle_in_lane(owner, settlement, now, self.deletes_done);
            Ok(settlements.iter().map(settle).collect())
        })
    }

    fn closes_keys(&self) -> bool {
        true
    }

    fn reopened_keys<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ClosedKey>, Error>> {
        Box::pin(async move { Ok(self.table().reopened_keys(owner, leases, limit)) })
    }

    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.table().forget_keys(owner, keys);
            Ok(())
        })
    }
}

impl AdminStore for MemoryStore {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        Box::pin(async move { Ok(self.table().counts()) })
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        Box::pin(async move { Ok(self.table().find(id)) })
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        Box::pin(async move { Ok(self.table().list(filter, page)) })
    }

    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move { Ok(self.now()) })
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move { Ok(self.table().redrive(redrive, self.now())) })
    }

    fn discard<'a>(&'a self, dead: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move { Ok(self.table().discard(dead)) })
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move { Ok(self.table().purge(purge, self.now())) })
    }

    fn closed_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<ClosedKey>, Error>> {
        Box::pin(async move { Ok(self.table().closed_keys(limit)) })
    }

    fn stalled_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<StalledKey>, Error>> {
        Box::pin(async move { Ok(self.table().stalled_keys(limit)) })
    }

    fn lane_holders(&self) -> BoxFuture<'_, Result<Option<LaneHolders>, Error>> {
        Box::pin(async move { Ok(Some(self.table().lanes.holders(self.now()))) })
    }

    fn release_key<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move { Ok(self.table().reopen(key, head, true, self.now())) })
    }

    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, Error>> {
        Box::pin(async move { Ok(self.kept_pauses().clone()) })
    }

    fn pause<'a>(&'a self, what: &'a Paused, reason: Option<&'a str>) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let since = self.now();
            let mut pauses = self.kept_pauses();
            let is_new = pauses.iter().all(|pause| pause.what != *what);
            if is_new {
                pauses.push(Pause { what: what.clone(), reason: reason.map(str::to_owned), since });
            }
            Ok(is_new)
        })
    }

    fn resume<'a>(&'a self, what: &'a Paused) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut pauses = self.kept_pauses();
            let before = pauses.len();
            pauses.retain(|pause| pause.what != *what);
            Ok(pauses.len() < before)
        })
    }

    fn skip_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move { Ok(self.table().reopen(key, head, false, self.now())) })
    }

    fn give_up_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move { Ok(self.table().give_up_head(key, head, self.now())) })
    }
}
