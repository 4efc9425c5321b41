//! Rows without an outbox: written, leased and looked at through the store alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, Claim, ClaimedRow, Counts, Lease, NewRow, Record, RelayStore, RowState, Settled, Settlement,
    Status, WriteStore,
};
use posthaste_core::{Event, EventId};

/// How long the leases of the claims below last.
pub(crate) const LEASE: Duration = Duration::from_secs(300);

/// An event of no interest.
pub fn event(event_type: &str) -> Event {
    Event::builder(event_type).json_text("{}").build().unwrap()
}

/// Several of them.
pub fn events(count: usize) -> Vec<Event> {
    (0..count).map(|_| event("Happened")).collect()
}

/// An event with that id.
pub fn event_with_id(id: &str) -> Event {
    Event::builder("Happened").id(id).json_text("{}").build().unwrap()
}

/// An event that waits.
pub(crate) fn delayed(delay: Duration) -> Event {
    Event::builder("Happened").deliver_after(delay).json_text("{}").build().unwrap()
}

/// The ids of events, as text.
pub fn ids_of(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| event.id().to_string()).collect()
}

/// A row that is born with a lease.
pub(crate) fn leased(event: &Event, lease: &Lease) -> NewRow {
    NewRow::leased(event.clone(), lease.clone())
}

/// A lease that no other is like.
pub(crate) fn lease() -> Lease {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    Lease::new("test", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Inserts rows in a transaction of their own.
pub(crate) async fn insert_rows<S: WriteStore>(store: &S, rows: &[NewRow]) {
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut *tx, rows).await.unwrap();
    store.commit(tx).await.unwrap();
}

/// Inserts events that nobody has leased.
pub(crate) async fn insert<S: WriteStore>(store: &S, events: &[Event]) {
    let rows: Vec<_> = events.iter().cloned().map(NewRow::new).collect();
    insert_rows(store, &rows).await;
}

/// A claim under a lease of its own.
pub(crate) fn claim_of(limit: usize) -> Claim {
    Claim { lease: lease(), lease_duration: LEASE, limit, skip_recent: Duration::ZERO }
}

/// Claims up to that many rows, none of which is malformed.
pub(crate) async fn claim<S: RelayStore>(store: &S, limit: usize) -> (Lease, Vec<ClaimedRow>) {
    let claim = claim_of(limit);
    let claimed = store.claim(&claim).await.unwrap();
    assert!(claimed.malformed.is_empty(), "malformed: {:?}", claimed.malformed);
    (claim.lease, claimed.rows)
}

/// Claims up to that many rows and says which.
pub(crate) async fn claim_ids<S: RelayStore>(store: &S, limit: usize) -> Vec<String> {
    claim(store, limit).await.1.iter().map(|row| row.event.id().to_string()).collect()
}

/// Writes one event and leases it.
pub(crate) async fn one_leased<S: WriteStore + RelayStore>(store: &S) -> (EventId, Lease) {
    let event = event("Happened");
    insert(store, std::slice::from_ref(&event)).await;
    let (lease, rows) = claim(store, 1).await;
    assert_eq!(rows.len(), 1);
    (event.id().clone(), lease)
}

/// Settles one row.
pub(crate) async fn settle<S: RelayStore>(store: &S, id: &EventId, lease: &Lease, action: Action) -> Settled {
    let settled = store.settle(&[Settlement::new(id.clone(), lease.clone(), action)]).await.unwrap();
    assert_eq!(settled.len(), 1);
    settled[0]
}

/// A row as it stands.
pub(crate) async fn record<S: AdminStore>(store: &S, id: &EventId) -> Record {
    store.find(id).await.unwrap().unwrap_or_else(|| panic!("there is no row {id}"))
}

/// Where a row stands.
pub(crate) async fn state<S: AdminStore>(store: &S, id: &EventId) -> RowState {
    record(store, id).await.state
}

/// Fails unless the row has that status and so many failed attempts, and nobody leases it.
pub(crate) async fn assert_at<S: AdminStore>(store: &S, id: &EventId, status: Status, attempts: u32) -> RowState {
    let state = state(store, id).await;
    assert_eq!((state.status, state.attempts, &state.lease), (status, attempts, &None), "row {id}");
    state
}

/// How many rows there are of each status.
pub(crate) async fn counts<S: AdminStore>(store: &S) -> Counts {
    store.counts().await.unwrap()
}

/// A failure, to be tried again after the delay.
pub(crate) fn retry(delay: Duration) -> Action {
    Action::Retry { delay, error: "it failed".into() }
}

/// The end.
pub(crate) fn dead() -> Action {
    Action::Dead { error: "it is dead".into(), counts: true }
}
