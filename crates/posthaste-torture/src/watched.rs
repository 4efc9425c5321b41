//! A store that writes down what it claimed, and how its settlements went.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::EventId;
use posthaste_core::signal::Signal;
use posthaste_core::store::{
    Action, AdminStore, BoxFuture, Claim, Claimed, CommitError, Counts, Error, Filter, Lease, NewRow, Page, Purge,
    Record, Redrive, RelayStore, Settled, Settlement, WriteStore,
};

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
                let took_ms = i64::try_from(asked_at.elapsed().as_millis()).unwrap_or(i64::MAX);
                self.recorder.record(What::Claimed { lease: claim.lease.as_str().to_owned(), ids, took_ms });
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
}

fn note((settlement, settled): (&Settlement, &Settled)) -> What {
    let action = match &settlement.action {
        Action::Done => "done",
        Action::Retry { .. } => "retry",
        Action::Defer { .. } => "defer",
        Action::Dead { .. } => "dead",
        Action::Release => "release",
    };
    What::Settled {
        id: settlement.id.to_string(),
        lease: settlement.lease.as_str().to_owned(),
        action: action.to_owned(),
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
