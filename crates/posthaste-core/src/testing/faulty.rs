//! A store that fails, waits and counts on demand.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Gate, within};
use crate::event::EventId;
use crate::store::{
    AdminStore, BoxFuture, Claim, Claimed, ClosedKey, CommitError, Counts, Error, Filter, Key, LaneHolders, Lease,
    Maintained, NewRow, Page, Pause, Paused, Purge, Record, Redrive, RelayStore, Settled, Settlement, StalledKey,
    WriteStore,
};
use crate::time::Timestamp;

/// A store around another, whose calls fail or wait when [`Faults`] says so.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::testing::{self, Call, Fault, Faulty, Recorder, Wanted};
/// use posthaste::{CommitError, Event, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, faults) = Faulty::new(MemoryStore::new());
/// let outbox = testing::outbox_on(store).listen_all(Recorder::new()).start_test().await;
///
/// // The commit happens, but the connection breaks before its answer: the caller must not take it for a rollback.
/// faults.times(1, Call::Commit, Fault::AnswerLost);
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// assert!(matches!(tx.commit().await, Err(CommitError::Unknown(_))));
///
/// outbox.wait_delivered(Wanted::event("OrderPlaced")).await;
/// # Ok(())
/// # }
/// ```
///
/// Its type is not that of the store inside, so the code under test is generic over the store, or names it in one place:
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// # use posthaste::{MemoryStore as PgStore, Outbox, testing};
/// #[cfg(not(test))]
/// type Store = PgStore;
/// #[cfg(test)]
/// type Store = testing::Faulty<PgStore>;
///
/// struct Shop {
///     outbox: Outbox<Store>,
/// }
/// ```
///
/// Transactions and connections are those of the store inside. Signals between processes are not passed on: what others
/// write is found by polling.
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Faults,
}

/// What goes wrong, and what was called. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    calls: watch::Sender<HashMap<Call, Vec<Instant>>>,
    limits: Mutex<Vec<usize>>,
    rules: Mutex<Vec<Rule>>,
}

/// A call of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named after the methods")]
#[non_exhaustive]
pub enum Call {
    Begin,
    Insert,
    Commit,
    Claim,
    Settle,
    Renew,
}

/// What goes wrong with a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It fails, and may succeed later. A commit then certainly did not happen.
    Unavailable,
    /// It fails, and will fail again.
    Refused,
    /// It happens, but its answer is lost: it fails, and whoever called cannot know.
    AnswerLost,
    /// It does not happen, and its answer is lost. To whoever called it looks like [`AnswerLost`](Self::AnswerLost).
    ConnectionLost,
    /// It waits at a gate, and then succeeds.
    Wait(Gate),
    /// It succeeds, but its answer waits at a gate.
    AnswerWaits(Gate),
}

#[derive(Debug)]
struct Rule {
    call: Call,
    fault: Fault,
    left: u64,
    /// Only settlements of this event.
    of: Option<EventId>,
}

impl<S> Faulty<S> {
    /// A store that works as the one inside does, until told otherwise.
    pub fn new(inner: S) -> (Self, Faults) {
        let faults = Faults::default();
        (Self { inner, faults: faults.clone() }, faults)
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl Faults {
    /// The next so many calls go wrong.
    pub fn times(&self, times: u64, call: Call, fault: Fault) {
        self.rules().push(Rule { call, fault, left: times, of: None });
    }

    /// All calls go wrong from now on.
    pub fn always(&self, call: Call, fault: Fault) {
        self.times(u64::MAX, call, fault);
    }

    /// Every settlement that includes this event is refused.
    pub fn poison(&self, id: &EventId) {
        let rule = Rule { call: Call::Settle, fault: Fault::Refused, left: u64::MAX, of: Some(id.clone()) };
        self.rules().push(rule);
    }

    /// Nothing goes wrong any more.
    pub fn clear(&self) {
        self.rules().clear();
    }

    /// How often it was called.
    pub fn count(&self, call: Call) -> usize {
        self.at(call).len()
    }

    /// When it was called.
    pub fn at(&self, call: Call) -> Vec<Instant> {
        self.0.calls.borrow().get(&call).cloned().unwrap_or_default()
    }

    /// The limits of the claims.
    pub fn limits(&self) -> Vec<usize> {
        self.limits_of_claims().clone()
    }

    /// Waits until it was called so often.
    pub async fn until(&self, call: Call, count: usize) {
        let mut calls = self.0.calls.subscribe();
        let reached = calls.wait_for(|calls| calls.get(&call).map_or(0, Vec::len) >= count);
        within(&format!("{call:?} is called {count} times"), reached).await.expect("the sender is in this very value");
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limits_of_claims(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call and says what goes wrong with it.
    fn noted(&self, call: Call, settlements: &[Settlement]) -> Option<Fault> {
        self.0.calls.send_modify(|calls| calls.entry(call).or_default().push(Instant::now()));
        let mut rules = self.rules();
        let concerns = |of: &Option<EventId>| of.as_ref().is_none_or(|id| settlements.iter().any(|s| s.id == *id));
        let rule = rules.iter_mut().find(|rule| rule.call == call && rule.left > 0 && concerns(&rule.of))?;
        rule.left -= 1;
        Some(rule.fault.clone())
    }

    /// A call with whatever goes wrong with it.
    async fn meddle<T>(
        &self,
        call: Call,
        settlements: &[Settlement],
        inner: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.noted(call, settlements) {
            None => inner.await,
            Some(Fault::Wait(gate)) => {
                gate.pass().await;
                inner.await
            }
            Some(Fault::AnswerWaits(gate)) => {
                let answer = inner.await;
                gate.pass().await;
                answer
            }
            Some(fault @ Fault::AnswerLost) => {
                inner.await?;
                Err(fault.error())
            }
            Some(fault @ (Fault::Unavailable | Fault::Refused | Fault::ConnectionLost)) => Err(fault.error()),
        }
    }
}

impl Fault {
    fn error(&self) -> Error {
        match self {
            Self::Refused => Error::Refused("refused on demand".into()),
            _ => Error::Unavailable("away on demand".into()),
        }
    }
}

impl<S: WriteStore> Faulty<S> {
    async fn meddle_with_commit<F, T: Send>(
        &self,
        tx: S::OwnTx,
        commit: impl FnOnce(S::OwnTx) -> F + Send,
    ) -> Result<T, CommitError>
    where
        F: Future<Output = Result<T, CommitError>> + Send,
    {
        match self.faults.noted(Call::Commit, &[]) {
            None => commit(tx).await,
            Some(Fault::Wait(gate)) => {
                gate.pass().await;
                commit(tx).await
            }
            Some(Fault::AnswerWaits(gate)) => {
                let answer = commit(tx).await;
                gate.pass().await;
                answer
            }
            Some(fault @ Fault::AnswerLost) => {
                commit(tx).await?;
                Err(CommitError::Unknown(fault.error()))
            }
            Some(fault @ Fault::ConnectionLost) => {
                drop(tx);
                Err(CommitError::Unknown(fault.error()))
            }
            Some(fault) => {
                drop(tx);
                Err(CommitError::NotCommitted(fault.error()))
            }
        }
    }
}

impl<S: WriteStore> WriteStore for Faulty<S> {
    type Connection = S::Connection;
    type Tx<'c> = S::Tx<'c>;
    type OwnTx = S::OwnTx;

    async fn begin(&self) -> Result<S::OwnTx, Error> {
        self.faults.meddle(Call::Begin, &[], self.inner.begin()).await
    }

    async fn insert(&self, connection: &mut S::Connection, rows: &[NewRow]) -> Result<(), Error> {
        self.faults.meddle(Call::Insert, &[], self.inner.insert(connection, rows)).await
    }

    async fn insert_into(&self, connection: &mut S::Connection, rows: &[NewRow]) -> Result<(), Error> {
        self.faults.meddle(Call::Insert, &[], self.inner.insert_into(connection, rows)).await
    }

    async fn commit(&self, tx: S::OwnTx) -> Result<(), CommitError> {
        self.meddle_with_commit(tx, |tx| self.inner.commit(tx)).await
    }

    async fn commit_lent(&self, tx: S::OwnTx, firsts: Vec<EventId>) -> Result<Vec<EventId>, CommitError> {
        self.meddle_with_commit(tx, |tx| self.inner.commit_lent(tx, firsts)).await
    }

    async fn commit_inserted(&self, tx: S::OwnTx) -> Result<(), CommitError> {
        self.meddle_with_commit(tx, |tx| self.inner.commit_inserted(tx)).await
    }

    async fn rollback(&self, tx: S::OwnTx) -> Result<(), Error> {
        self.inner.rollback(tx).await
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

impl<S: RelayStore> RelayStore for Faulty<S> {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        self.faults.limits_of_claims().push(claim.limit);
        Box::pin(self.faults.meddle(Call::Claim, &[], self.inner.claim(claim)))
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        Box::pin(self.faults.meddle(Call::Settle, settlements, self.inner.settle(settlements)))
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        Box::pin(self.faults.meddle(Call::Renew, &[], self.inner.renew(leases)))
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.inner.release_all()
    }
}

impl<S: AdminStore> AdminStore for Faulty<S> {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        self.inner.counts()
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        self.inner.find(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        self.inner.list(filter, page)
    }

    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        self.inner.clock()
    }

    fn discard<'a>(&'a self, dead: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        self.inner.discard(dead)
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        self.inner.redrive(redrive)
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        self.inner.purge(purge)
    }

    fn has_parts(&self) -> bool {
        self.inner.has_parts()
    }

    fn maintain<'a>(&'a self, kept: &'a Purge) -> BoxFuture<'a, Result<Maintained, Error>> {
        self.inner.maintain(kept)
    }

    fn closed_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<ClosedKey>, Error>> {
        self.inner.closed_keys(limit)
    }

    fn stalled_keys(&self, limit: usize) -> BoxFuture<'_, Result<Vec<StalledKey>, Error>> {
        self.inner.stalled_keys(limit)
    }

    fn lane_holders(&self) -> BoxFuture<'_, Result<Option<LaneHolders>, Error>> {
        self.inner.lane_holders()
    }

    fn release_key<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        self.inner.release_key(key, head)
    }

    fn skip_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        self.inner.skip_head(key, head)
    }

    fn give_up_head<'a>(&'a self, key: &'a Key, head: &'a EventId) -> BoxFuture<'a, Result<bool, Error>> {
        self.inner.give_up_head(key, head)
    }

    fn pauses(&self) -> BoxFuture<'_, Result<Vec<Pause>, Error>> {
        self.inner.pauses()
    }

    fn pause<'a>(&'a self, what: &'a Paused, reason: Option<&'a str>) -> BoxFuture<'a, Result<bool, Error>> {
        self.inner.pause(what, reason)
    }

    fn resume<'a>(&'a self, what: &'a Paused) -> BoxFuture<'a, Result<bool, Error>> {
        self.inner.resume(what)
    }
}
