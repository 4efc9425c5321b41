//! A store that writes down what it claimed, and how its settlements went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::signal::Signal;
use posthaste_core::store::{
    Action, AdminStore, BoxFuture, Claim, Claimed, ClosedKey, CommitError, Counts, Error, Filter, Key, Lane, LaneLease,
    LaneRows, LaneSettlement, LaneStore, Lease, NewRow, Page, Purge, ReadLane, ReadLanes, Record, Redrive,
    RelayOfLanes, RelayStore, Renewed, Settled, Settlement, WriteStore,
};
use posthaste_core::{Event, EventId};

use crate::config::Sabotage;
use crate::database::Database;
use crate::history::{Recorder, What};

/// A store that writes down what it claimed and how its settlements went, and makes mistakes if it is told to.
#[derive(Clone)]
pub(crate) struct Watched<D> {
    inner: D,
    recorder: Arc<Recorder>,
    sabotage: Option<Sabotage>,
}

impl<D: Database> Watched<D> {
    pub(crate) fn new(inner: D, recorder: Arc<Recorder>, sabotage: Option<Sabotage>) -> Self {
        Self { inner, recorder, sabotage }
    }
}

impl<D: Database> RelayStore for Watched<D> {
    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(async move {
            let settled = if self.sabotage == Some(Sabotage::SettleWithoutFence) {
                self.inner.settle_unfenced(settlements).await?;
                vec![Settled::Applied; settlements.len()]
            } else {
                self.inner.settle(settlements).await?
            };
            self.recorder.record_all(settlements.iter().zip(&settled).map(note));
            Ok(settled)
        })
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        let mut claim = claim.clone();
        if self.sabotage == Some(Sabotage::ClaimDespiteLeases) {
            claim.lease_duration = Duration::ZERO;
        }
        Box::pin(async move {
            let asked_at = Instant::now();
            let claimed = self.inner.claim(&claim).await?;
            if !claimed.rows.is_empty() {
                let ids = claimed.rows.iter().map(|row| row.event.id().to_string()).collect();
                let lease = claim.lease.as_str().to_owned();
                let note = || What::Claimed { lease, ids, took_ms: millis_since(asked_at) };
                self.recorder.record_all(std::iter::once_with(note));
            }
            Ok(claimed)
        })
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        self.inner.renew(leases)
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.inner.release_all()
    }

    fn signal(&self) -> Option<Arc<dyn Signal>> {
        self.inner.signal()
    }

    fn lanes(&self) -> Option<Arc<dyn LaneStore>> {
        let (recorder, sabotage) = (Arc::clone(&self.recorder), self.sabotage);
        self.inner.lanes().map(|inner| Arc::new(WatchedLanes { inner, recorder, sabotage }) as Arc<_>)
    }
}

/// The same for rows that are owned by lanes: a read is a claim of what it brings.
struct WatchedLanes {
    inner: Arc<dyn LaneStore>,
    recorder: Arc<Recorder>,
    sabotage: Option<Sabotage>,
}

impl LaneStore for WatchedLanes {
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>> {
        self.inner.count_lanes()
    }

    fn lane_of(&self, event: &Event) -> Option<Lane> {
        self.inner.lane_of(event)
    }

    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>> {
        self.inner.lease_lanes(owner, wanted, length)
    }

    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>> {
        self.inner.renew_lanes(owner, leases, length)
    }

    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        self.inner.agree(owner, settings, length)
    }

    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        self.inner.relays()
    }

    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>> {
        self.inner.give_back_lanes(owner, leases)
    }

    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>> {
        Box::pin(async move {
            let asked_at = Instant::now();
            let mut found = self.inner.read_lanes(read).await?;
            let note = |part: &ReadLane| {
                let of_part = found.rows.iter().filter(|row| row.lane == part.lease.lane);
                let ids: Vec<_> =
                    of_part.filter_map(|row| Some(row.row.as_ref().ok()?.event.id().to_string())).collect();
                let is_any = !ids.is_empty();
                is_any.then(|| What::Claimed { lease: name(part.lease), ids, took_ms: millis_since(asked_at) })
            };
            self.recorder.record_all(read.parts.iter().filter_map(note));
            if self.sabotage == Some(Sabotage::ReadBackwards) {
                read_backwards(&mut found);
            }
            Ok(found)
        })
    }

    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(async move {
            let settled = self.inner.settle_in_lanes(owner, settlements).await?;
            self.recorder.record_all(settlements.iter().zip(&settled).map(|(settlement, settled)| What::Settled {
                id: settlement.id.to_string(),
                lease: name(settlement.lease),
                action: verb(&settlement.action).to_owned(),
                applied: *settled == Settled::Applied,
            }));
            Ok(settled)
        })
    }

    fn settles_at_once(&self) -> usize {
        self.inner.settles_at_once()
    }

    fn closes_keys(&self) -> bool {
        self.inner.closes_keys()
    }

    fn reopened_keys<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ClosedKey>, Error>> {
        self.inner.reopened_keys(owner, leases, limit)
    }

    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        self.inner.forget_keys(owner, keys)
    }
}

/// A lease of a lane, as a history has it.
fn name(lease: LaneLease) -> String {
    format!("lane {}/{}", lease.lane.0, lease.epoch)
}

/// The sabotaged read: of each lane the rows change places, the first with the last, and so on, and say nothing of it.
fn read_backwards(found: &mut LaneRows) {
    for rows in found.rows.chunk_by_mut(|one, other| one.lane == other.lane) {
        let numbers: Vec<_> = rows.iter().map(|row| row.seq).collect();
        rows.reverse();
        for (row, number) in rows.iter_mut().zip(numbers) {
            row.seq = number;
        }
    }
}

fn verb(action: &Action) -> &'static str {
    match action {
        Action::Done => "done",
        Action::Retry { .. } => "retry",
        Action::Defer { .. } => "defer",
        Action::Dead { .. } => "dead",
        Action::Release => "release",
    }
}

fn note((settlement, settled): (&Settlement, &Settled)) -> What {
    What::Settled {
        id: settlement.id.to_string(),
        lease: settlement.lease.as_str().to_owned(),
        action: verb(&settlement.action).to_owned(),
        applied: *settled == Settled::Applied,
    }
}

impl<D: Database> WriteStore for Watched<D> {
    type Connection = D::Connection;
    type Tx<'c> = D::Tx<'c>;
    type OwnTx = D::OwnTx;

    fn begin(&self) -> impl Future<Output = Result<Self::OwnTx, Error>> + Send {
        self.inner.begin()
    }

    fn insert(
        &self,
        connection: &mut Self::Connection,
        rows: &[NewRow],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.inner.insert(connection, rows)
    }

    fn insert_into(
        &self,
        connection: &mut Self::Connection,
        rows: &[NewRow],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        self.inner.insert_into(connection, rows)
    }

    fn commit(&self, tx: Self::OwnTx) -> impl Future<Output = Result<(), CommitError>> + Send {
        self.inner.commit(tx)
    }

    fn commit_lent(
        &self,
        tx: Self::OwnTx,
        firsts: Vec<EventId>,
    ) -> impl Future<Output = Result<Vec<EventId>, CommitError>> + Send {
        self.inner.commit_lent(tx, firsts)
    }

    fn commit_inserted(&self, tx: Self::OwnTx) -> impl Future<Output = Result<(), CommitError>> + Send {
        self.inner.commit_inserted(tx)
    }

    fn rollback(&self, tx: Self::OwnTx) -> impl Future<Output = Result<(), Error>> + Send {
        self.inner.rollback(tx)
    }

    fn depth(&self, connection: &Self::Connection) -> usize {
        self.inner.depth(connection)
    }

    async fn savepoint(&self, connection: &mut Self::Connection) -> Result<(), CommitError> {
        self.inner.savepoint(connection).await
    }

    async fn release_savepoint(&self, connection: &mut Self::Connection, depth: usize) -> Result<(), Error> {
        self.inner.release_savepoint(connection, depth).await
    }

    async fn undo_savepoint(&self, connection: &mut Self::Connection, depth: usize) -> Result<(), CommitError> {
        self.inner.undo_savepoint(connection, depth).await
    }

    fn abandon_savepoint(&self, connection: &mut Self::Connection) {
        self.inner.abandon_savepoint(connection);
    }

    async fn end_abandoned(&self, connection: &mut Self::Connection, depth: usize) -> Result<(), CommitError> {
        self.inner.end_abandoned(connection, depth).await
    }

    fn abandon_all(&self, connection: &mut Self::Connection) {
        self.inner.abandon_all(connection);
    }
}

impl<D: Database> AdminStore for Watched<D> {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        self.inner.counts()
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        self.inner.find(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        self.inner.list(filter, page)
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        self.inner.redrive(redrive)
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        self.inner.purge(purge)
    }
}

/// How long ago that was. To be asked behind the moment that is noted with it, as by a note that is made when it is written: a process that
/// is stopped in between has not asked any later for that.
fn millis_since(moment: Instant) -> i64 {
    i64::try_from(moment.elapsed().as_millis()).unwrap_or(i64::MAX)
}
