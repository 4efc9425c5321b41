//! A store of its own for each test.

use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use posthaste_core::Event;
use posthaste_core::store::{
    Action, AdminStore, Claim, Claimed, Error, Filter, Lease, NewRow, Page, Paused, RelayStore, Settlement, WriteStore,
};
use posthaste_sql::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use tempfile::TempDir;

/// The certificate of an authority that has signed nothing.
#[cfg(all(feature = "tls", any(feature = "mysql", feature = "postgres")))]
pub(crate) const ANOTHER_AUTHORITY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tls/another_authority.pem");

/// A database in a directory that goes with it.
pub(crate) struct Database {
    directory: TempDir,
}

impl Database {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("outbox.db")
    }

    /// A migrated store as users open it.
    pub(crate) async fn store(&self) -> SqliteStore {
        let store = SqliteStore::open(self.path()).await.unwrap();
        store.migrate().await.unwrap();
        store
    }

    /// A migrated store on a pool of one connection.
    pub(crate) async fn store_of_one(&self) -> SqliteStore {
        self.store().await.pool().close().await;
        SqliteStore::new(self.pool(1, Duration::from_secs(5)).await)
    }

    /// A migrated store whose connections do not wait for locks.
    pub(crate) async fn impatient_store(&self) -> SqliteStore {
        self.store().await.pool().close().await;
        SqliteStore::new(self.pool(4, Duration::ZERO).await)
    }

    /// A pool as another process might have one.
    pub(crate) async fn pool(&self, connections: u32, busy_timeout: Duration) -> SqlitePool {
        let options = SqliteConnectOptions::new().filename(self.path()).busy_timeout(busy_timeout);
        SqlitePoolOptions::new().max_connections(connections).connect_with(options).await.unwrap()
    }
}

/// The SQL in one section of the guide on other languages, block by block.
pub(crate) fn sql_of_other_languages(section: &str) -> Vec<&'static str> {
    const PAGE: &str = include_str!("../../../../docs/guide/other-languages.md");
    let section = PAGE.split("\n## ").find(|text| text.starts_with(section)).unwrap();
    section.split("```sql\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// An event of no interest.
pub(crate) fn event(id: &str) -> Event {
    Event::builder("Happened").id(id).json_text("{}").build().unwrap()
}

pub(crate) fn unleased(events: impl IntoIterator<Item = Event>) -> Vec<NewRow> {
    events.into_iter().map(NewRow::new).collect()
}

/// Writes events in a transaction of the store.
pub(crate) async fn write<S: WriteStore>(store: &S, events: impl IntoIterator<Item = Event>) {
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased(events)).await.unwrap();
    store.commit(tx).await.unwrap();
}

/// A claim under a lease that no other has.
pub(crate) fn claim_of(limit: usize) -> Claim {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    Claim {
        lease: Lease::new("test", NUMBER.fetch_add(1, Ordering::Relaxed)),
        lease_duration: Duration::from_secs(300),
        limit,
        skip_recent: Duration::ZERO,
    }
}

/// Claims up to that many rows and says under which lease.
pub(crate) async fn claim(store: &impl RelayStore, limit: usize) -> (Lease, Claimed) {
    let claim = claim_of(limit);
    let claimed = store.claim(&claim).await.unwrap();
    (claim.lease, claimed)
}

pub(crate) fn ids(claimed: &Claimed) -> Vec<&str> {
    claimed.rows.iter().map(|row| row.event.id().as_str()).collect()
}

/// One settlement for all rows of a claim.
pub(crate) fn settle_all(lease: &Lease, claimed: &Claimed, action: &Action) -> Vec<Settlement> {
    let settle = |row: &posthaste_core::store::ClaimedRow| Settlement {
        seq: Some(row.seq),
        ..Settlement::new(row.event.id().clone(), lease.clone(), action.clone())
    };
    claimed.rows.iter().map(settle).collect()
}

/// What the first migration does, and what those after it do.
pub(crate) fn first_and_later(script: &str) -> (&str, &str) {
    let later = script.find("version 2:").and_then(|at| script[..at].rfind("-- ")).expect("there is a second version");
    script.split_at(later)
}

/// Writes rows that stand as rows of a running outbox do, and shows them all.
pub(crate) async fn rows_of_every_state<S: WriteStore + RelayStore + AdminStore>(store: &S) -> String {
    let dead = Action::Dead { error: "no".to_owned(), counts: true };
    let retry = Action::Retry { delay: Duration::from_secs(3600), error: "later".to_owned() };
    for (id, action) in [("done", Some(Action::Done)), ("dead", Some(dead)), ("retry", Some(retry)), ("leased", None)] {
        write(store, [event(id)]).await;
        let (lease, claimed) = claim(store, 1).await;
        assert_eq!(ids(&claimed), [id]);
        if let Some(action) = action {
            store.settle(&settle_all(&lease, &claimed, &action)).await.unwrap();
        }
    }
    write(store, [event("new")]).await;
    shown(store).await
}

/// Every row, with everything that is in it.
async fn shown<S: AdminStore>(store: &S) -> String {
    format!("{:#?}", store.list(&Filter::default(), &Page { limit: 1000, ..Page::default() }).await.unwrap())
}

/// Fails unless what was there before an upgrade is there as it was, and what the upgrade is for works.
pub(crate) async fn assert_upgraded<S: RelayStore + AdminStore>(store: &S, before: &str) {
    assert_eq!(shown(store).await, before);
    let orders = Paused::Route("orders".to_owned());
    assert_eq!(store.pauses().await.unwrap(), []);
    assert!(store.pause(&orders, Some("upgraded")).await.unwrap());
    assert_eq!(store.pauses().await.unwrap()[0].what, orders);
    assert_eq!(ids(&claim(store, 10).await.1), ["new"]);
}

/// An error and what is behind it.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Runs a future until it was polled that many times, then drops it. Says whether it came to its end.
pub(crate) async fn cut_short<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        if polled.is_pending() && left == 0 {
            context.waker().wake_by_ref();
        }
        polled
    })
    .await
}
