//! The task that deletes old rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::store::{
    AdminStore, BoxFuture, Claim, Claimed, CommitError, Counts, Error, Filter, Lease, Maintained, NewRow, Page, Purge,
    Record, Redrive, RelayStore, Settled, Settlement, WriteStore,
};
use posthaste_core::{Delivery, Event, EventId, MemoryStore, Metrics, Options, Outbox};
use tokio::sync::watch;

use crate::until;

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Default)]
struct Deleted(Arc<AtomicU64>);

impl Metrics for Deleted {
    fn purged(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// Writes that many events in one transaction.
async fn write_many<S: WriteStore>(outbox: &Outbox<S>, count: usize) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((0..count).map(|_| Event::of_json("Any", "{}"))).await.unwrap();
    tx.commit().await.unwrap();
}

fn keeping_done(kept: Duration) -> Options {
    Options { retention_done: Some(kept), hot_queue: 10_000, ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn rows_are_kept_for_as_long_as_was_said_and_then_go_in_chunks() {
    let (store, deleted) = (MemoryStore::new(), Deleted::default());
    let outbox = Outbox::builder(store.clone())
        .options(keeping_done(HOUR))
        .metrics(deleted.clone())
        .listen_all(|_: Delivery| async {})
        .start()
        .await
        .unwrap();
    write_many(&outbox, 2500).await;
    until(&store, "all are done", |counts| counts.done == 2500).await;
    tokio::time::sleep(HOUR - Duration::from_secs(60)).await;
    assert_eq!(store.counts().await.unwrap().done, 2500, "an hour is not over");
    // The interval is spread by half of itself at most.
    tokio::time::sleep(Duration::from_secs(60 + 91)).await;
    assert_eq!(store.counts().await.unwrap().total(), 0);
    assert_eq!(deleted.0.load(Ordering::Relaxed), 2500);
    outbox.shutdown().await;
}

/// An outbox on a store with one row that is DONE.
async fn one_done(options: Options) -> (Outbox<MemoryStore>, MemoryStore) {
    let store = MemoryStore::new();
    let builder = Outbox::builder(store.clone()).options(options).listen_all(|_: Delivery| async {});
    let outbox = builder.start().await.unwrap();
    write_many(&outbox, 1).await;
    until(&store, "it is done", |counts| counts.done == 1).await;
    (outbox, store)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_unasked_nor_after_the_end() {
    let (_unasked, first) = one_done(Options::default()).await;
    let (ended, second) = one_done(keeping_done(HOUR)).await;
    ended.shutdown().await;
    let (dropped, third) = one_done(keeping_done(HOUR)).await;
    drop(dropped);
    tokio::time::sleep(HOUR * 3).await;
    for store in [first, second, third] {
        assert_eq!(store.counts().await.unwrap().done, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_purge_that_fails_or_panics_is_tried_in_the_next_round() {
    let memory = MemoryStore::new();
    let store = Shaky::new(memory.clone(), false);
    let mut calls = store.calls.subscribe();
    let options = keeping_done(Duration::ZERO);
    let outbox = Outbox::builder(store).options(options).listen_all(|_: Delivery| async {}).start().await.unwrap();
    write_many(&outbox, 1).await;
    calls.wait_for(|calls| *calls >= 3).await.unwrap();
    until(&memory, "it is deleted", |counts| counts.total() == 0).await;
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn parts_are_looked_after_in_every_round_even_if_all_is_kept_and_whatever_fails() {
    let listener = |_: Delivery| async {};
    for options in [Options::default(), keeping_done(HOUR)] {
        let store = Shaky::new(MemoryStore::new(), true);
        let mut maintained = store.maintained.subscribe();
        let started_at = tokio::time::Instant::now();
        let kept = options.retention_done;
        let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
        maintained.wait_for(|rounds| rounds.len() == 1).await.unwrap();
        assert_eq!(started_at.elapsed(), Duration::ZERO, "at the start");
        maintained.wait_for(|rounds| rounds.len() == 4).await.unwrap();
        assert!(started_at.elapsed() > Duration::from_secs(60), "then in each round");
        outbox.shutdown().await;
        assert!(maintained.borrow().iter().all(|purge| purge.done_after == kept));
    }
    let store = Shaky::new(MemoryStore::new(), false);
    let outbox = Outbox::builder(store.clone()).listen_all(listener).start().await.unwrap();
    tokio::time::sleep(HOUR).await;
    outbox.shutdown().await;
    assert_eq!(store.maintained.borrow().len(), 0, "there are no parts, and nothing is deleted");
}

/// A store whose first purge fails and whose second panics, and whose parts, if it has any, do the same.
#[derive(Clone)]
struct Shaky {
    memory: MemoryStore,
    calls: watch::Sender<u32>,
    parts: bool,
    maintained: watch::Sender<Vec<Purge>>,
}

impl Shaky {
    fn new(memory: MemoryStore, parts: bool) -> Self {
        Self { memory, calls: watch::Sender::new(0), parts, maintained: watch::Sender::new(Vec::new()) }
    }
}

impl WriteStore for Shaky {
    type Connection = <MemoryStore as WriteStore>::Connection;
    type Tx<'c> = <MemoryStore as WriteStore>::Tx<'c>;
    type OwnTx = <MemoryStore as WriteStore>::OwnTx;

    async fn begin(&self) -> Result<Self::OwnTx, Error> {
        self.memory.begin().await
    }

    async fn insert(&self, connection: &mut Self::Connection, rows: &[NewRow]) -> Result<(), Error> {
        self.memory.insert(connection, rows).await
    }

    async fn commit(&self, tx: Self::OwnTx) -> Result<(), CommitError> {
        self.memory.commit(tx).await
    }

    async fn rollback(&self, tx: Self::OwnTx) -> Result<(), Error> {
        self.memory.rollback(tx).await
    }
}

impl RelayStore for Shaky {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        self.memory.claim(claim)
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        self.memory.settle(settlements)
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        self.memory.renew(leases)
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.memory.release_all()
    }
}

impl AdminStore for Shaky {
    fn counts(&self) -> BoxFuture<'_, Result<Counts, Error>> {
        self.memory.counts()
    }

    fn find<'a>(&'a self, id: &'a EventId) -> BoxFuture<'a, Result<Option<Record>, Error>> {
        self.memory.find(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter, page: &'a Page) -> BoxFuture<'a, Result<Vec<Record>, Error>> {
        self.memory.list(filter, page)
    }

    fn redrive<'a>(&'a self, redrive: &'a Redrive) -> BoxFuture<'a, Result<u64, Error>> {
        self.memory.redrive(redrive)
    }

    fn purge<'a>(&'a self, purge: &'a Purge) -> BoxFuture<'a, Result<u64, Error>> {
        self.calls.send_modify(|calls| *calls += 1);
        match *self.calls.borrow() {
            1 => Box::pin(async { Err(Error::Refused("no".into())) }),
            2 => panic!("the store is broken"),
            _ => self.memory.purge(purge),
        }
    }

    fn has_parts(&self) -> bool {
        self.parts
    }

    fn maintain<'a>(&'a self, kept: &'a Purge) -> BoxFuture<'a, Result<Maintained, Error>> {
        self.maintained.send_modify(|maintained| maintained.push(kept.clone()));
        match self.maintained.borrow().len() {
            1 => Box::pin(async { Err(Error::Refused("no".into())) }),
            2 => panic!("the store is broken"),
            _ => Box::pin(async { Ok(Maintained { made: 1, ..Maintained::default() }) }),
        }
    }
}
