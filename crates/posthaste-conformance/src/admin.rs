//! Part C: what an operator asks and does.

use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, Counts, Cursor, Filter, Order, Page, Purge, Record, Redrive, RelayStore, Settlement, Status,
};
use posthaste_core::{Delivery, Event, EventId, Options, Outbox};

use crate::fixture::Fixture;
use crate::meter::Meter;
use crate::outboxes::{no_interval, start};
use crate::rows::{
    assert_at, claim, claim_ids, counts, dead, event, events, ids_of, insert, one_leased, retry, settle, state,
};

const HOUR: Duration = Duration::from_secs(3600);

async fn listed<S: AdminStore>(store: &S, filter: Filter) -> Vec<String> {
    let page = Page { limit: 1000, ..Page::default() };
    store.list(&filter, &page).await.unwrap().iter().map(|record| record.id.to_string()).collect()
}

/// Writes an event with that id that ends as said.
async fn ended<S: AdminStore + RelayStore + posthaste_core::store::WriteStore>(store: &S, id: &str, action: Action) {
    insert(store, &[crate::rows::event_with_id(id)]).await;
    let (lease, rows) = claim(store, 1).await;
    assert_eq!(*rows[0].event.id(), id);
    settle(store, rows[0].event.id(), &lease, action).await;
}

fn died(error: &str) -> Action {
    Action::Dead { error: error.into(), counts: true }
}

/// Rows are counted by status.
pub async fn case_34_counts<F: Fixture>(fixture: F) {
    let store = fixture.store();
    assert_eq!(counts(&store).await, Counts::default());
    for _ in 0..3 {
        ended(&store, event("x").id().as_str(), Action::Done).await;
    }
    for _ in 0..2 {
        ended(&store, event("x").id().as_str(), dead()).await;
    }
    ended(&store, "failed", retry(HOUR)).await;
    insert(&store, &events(4)).await;
    let counted = counts(&store).await;
    assert_eq!(counted, Counts { new: 4, retry: 1, done: 3, dead: 2 });
    assert_eq!((counted.pending(), counted.total()), (5, 10));
}

/// A row is found by its id, damaged or not, and only if it is there.
pub async fn case_34_find<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (good, bad) = (event("Good"), event("Bad"));
    insert(&store, &[good.clone(), bad.clone()]).await;
    assert!(store.find(&EventId::new("nobody").unwrap()).await.unwrap().is_none());
    let found = store.find(good.id()).await.unwrap().unwrap();
    assert_eq!(found.event.unwrap().event_type(), "Good");
    fixture.damage(bad.id()).await;
    let found = store.find(bad.id()).await.unwrap().unwrap();
    assert_eq!(found.id, *bad.id());
    assert!(found.event.unwrap_err().contains("headers"));
    assert_eq!(listed(&store, Filter::default()).await.len(), 2);
}

/// Each condition of a filter holds on its own, and all of them together.
pub async fn case_34_filters<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let make = |id: &str, event_type: &str| Event::builder(event_type).id(id).json_text("{}");
    let rows = [
        make("old", "Placed").aggregate("Order", "1").tenant_id("a").build().unwrap(),
        make("b", "Placed").aggregate("Order", "2").tenant_id("b").build().unwrap(),
        make("c", "Paid").aggregate("Bill", "2").build().unwrap(),
        make("d", "paid").aggregate("bill", "2'; --").tenant_id("A").build().unwrap(),
    ];
    insert(&store, &rows[..1]).await;
    fixture.advance(HOUR).await;
    insert(&store, &rows[1..]).await;
    let some = |text: &str| Some(text.to_owned());
    let any = Filter::default;
    assert_eq!(listed(&store, any()).await, ["old", "b", "c", "d"]);
    assert_eq!(listed(&store, Filter { event_type: some("Placed"), ..any() }).await, ["old", "b"]);
    assert_eq!(listed(&store, Filter { event_type: some("Paid"), ..any() }).await, ["c"]);
    assert_eq!(listed(&store, Filter { aggregate_type: some("Bill"), ..any() }).await, ["c"]);
    assert_eq!(listed(&store, Filter { aggregate_id: some("2"), ..any() }).await, ["b", "c"]);
    assert_eq!(listed(&store, Filter { aggregate_id: some("2'; --"), ..any() }).await, ["d"]);
    assert_eq!(listed(&store, Filter { tenant_id: some("a"), ..any() }).await, ["old"]);
    let both = Filter { aggregate_id: some("2"), event_type: some("Placed"), ..any() };
    assert_eq!(listed(&store, both).await, ["b"]);
    let border = state(&store, rows[1].id()).await.created_at;
    assert_eq!(listed(&store, Filter { created_from: Some(border), ..any() }).await, ["b", "c", "d"]);
    assert_eq!(listed(&store, Filter { created_before: Some(border), ..any() }).await, ["old"]);

    let (lease, _) = claim(&store, 10).await;
    settle(&store, rows[0].id(), &lease, Action::Done).await;
    settle(&store, rows[1].id(), &lease, died("100% of Retries_used")).await;
    settle(&store, rows[2].id(), &lease, Action::Retry { delay: HOUR, error: "1000 retries".into() }).await;
    let status = |statuses: &[Status]| Filter { statuses: statuses.into(), ..any() };
    assert_eq!(listed(&store, status(&[Status::Dead])).await, ["b"]);
    assert_eq!(listed(&store, status(&[Status::Done, Status::New])).await, ["old", "d"]);
    assert_eq!(listed(&store, status(&Status::ALL)).await.len(), 4);
    for (text, expected) in [("etries", vec!["b", "c"]), ("Retries", vec!["b"]), ("0%", vec!["b"]), ("s_u", vec!["b"])]
    {
        assert_eq!(listed(&store, Filter { error_contains: some(text), ..any() }).await, expected, "{text}");
    }
    assert_eq!(listed(&store, Filter { error_contains: some("_"), ..any() }).await, ["b"]);
}

/// Pages follow each other without a gap or a repeat, in both directions, also while rows are added.
pub async fn case_34_paging<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let rows = events(25);
    insert(&store, &rows).await;
    for order in [Order::OldestFirst, Order::NewestFirst] {
        let mut page = Page { limit: 10, after: None, order };
        let mut seen = Vec::new();
        let mut sizes = Vec::new();
        loop {
            let records: Vec<Record> = store.list(&Filter::default(), &page).await.unwrap();
            sizes.push(records.len());
            let Some(last) = records.last() else { break };
            page.after = Some(Cursor::from(last));
            seen.extend(records.iter().map(|record| record.id.to_string()));
            if order == Order::NewestFirst {
                insert(&store, &events(1)).await;
            }
        }
        let mut expected = ids_of(&rows);
        if order == Order::NewestFirst {
            expected.reverse();
        }
        assert_eq!(seen, expected, "{order:?}");
        assert_eq!(sizes, [10, 10, 5, 0]);
    }
}

/// A redrive makes a DEAD row as new, and touches no other.
pub async fn case_35_redrive_by_id<F: Fixture>(fixture: F) {
    let store = fixture.store();
    ended(&store, "done", Action::Done).await;
    ended(&store, "failed", retry(HOUR)).await;
    ended(&store, "dead", dead()).await;
    ended(&store, "dead too", dead()).await;
    insert(&store, &[crate::rows::event_with_id("new")]).await;
    fixture.advance(HOUR / 2).await;
    let id = |text: &str| EventId::new(text).unwrap();
    let redrive = Redrive::ids(["done", "failed", "dead", "new", "nobody"].map(id));
    assert_eq!(store.redrive(&redrive).await.unwrap(), 1);
    let row = assert_at(&store, &id("dead"), Status::New, 0).await;
    assert_eq!((row.done_at, row.last_error), (None, None));
    let waited = row.available_at.since(row.created_at);
    assert!(waited >= HOUR / 2 && waited < HOUR, "available from the redrive on, not {waited:?} after the insert");
    assert_at(&store, &id("done"), Status::Done, 0).await;
    assert_at(&store, &id("failed"), Status::Retry, 1).await;
    assert_at(&store, &id("dead too"), Status::Dead, 1).await;
    assert_eq!(claim_ids(&store, 10).await, ["new", "dead"]);
    assert_eq!(store.redrive(&redrive).await.unwrap(), 0);
    assert_eq!(store.redrive(&Redrive::ids([])).await.unwrap(), 0, "no ids are not all ids");
    assert_at(&store, &id("dead too"), Status::Dead, 1).await;
}

/// A redrive by filter goes on in chunks and ends when nothing is left.
pub async fn case_35_redrive_by_filter<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let rows = events(25);
    insert(&store, &rows).await;
    let (lease, _) = claim(&store, 100).await;
    let deaths: Vec<Settlement> = rows
        .iter()
        .enumerate()
        .map(|(n, event)| {
            let action = died(if n % 5 == 0 { "other" } else { "timeout" });
            Settlement::new(event.id().clone(), lease.clone(), action)
        })
        .collect();
    store.settle(&deaths).await.unwrap();
    let filter = Filter {
        error_contains: Some("time".into()),
        // A filter for another status does not make other rows eligible, nor DEAD ones ineligible.
        statuses: vec![Status::Done],
        ..Filter::default()
    };
    let redrive = Redrive { chunk: 8, ..Redrive::matching(filter) };
    let mut chunks = Vec::new();
    loop {
        let changed = store.redrive(&redrive).await.unwrap();
        chunks.push(changed);
        assert!(chunks.len() < 10, "it does not end: {chunks:?}");
        if changed == 0 {
            break;
        }
    }
    assert_eq!(chunks, [8, 8, 4, 0]);
    assert_eq!(counts(&store).await, Counts { new: 20, dead: 5, ..Counts::default() });
}

/// Rows that die again between the chunks of a redrive are left alone if it is about those that had died by its beginning: it ends,
/// and has redriven each of them once.
pub async fn case_35_redrive_what_dies_again<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let rows = events(5);
    insert(&store, &rows).await;
    die(&store, 5).await;
    fixture.advance(HOUR).await;
    let filter = Filter { ended_before: Some(store.clock().await.unwrap()), ..Filter::default() };
    let redrive = Redrive { chunk: 2, ..Redrive::matching(filter) };
    for (chunk, ids) in [&rows[..2], &rows[2..4], &rows[4..]].into_iter().enumerate() {
        assert_eq!(store.redrive(&redrive).await.unwrap(), ids.len() as u64, "chunk {chunk}");
        assert_eq!(die(&store, 5).await, ids_of(ids), "chunk {chunk}");
    }
    assert_eq!(store.redrive(&redrive).await.unwrap(), 0);
    assert_eq!(counts(&store).await, Counts { dead: 5, ..Counts::default() });
}

/// Lets everything die that is due, and says what that was, in its order.
async fn die<S: RelayStore>(store: &S, limit: usize) -> Vec<String> {
    let (lease, rows) = claim(store, limit).await;
    let mut numbered = Vec::new();
    for row in &rows {
        settle(store, row.event.id(), &lease, dead()).await;
        numbered.push((row.seq, row.event.id().to_string()));
    }
    numbered.sort();
    numbered.into_iter().map(|(_, id)| id).collect()
}

/// A row that dies after somebody has looked is not discarded with those that he saw, whatever its number; nor one that is pending.
pub async fn case_35_discard_what_was_seen<F: Fixture>(fixture: F) {
    let store = fixture.store();
    insert(&store, &[crate::rows::event_with_id("dies late"), crate::rows::event_with_id("pending")]).await;
    let (lease, _) = claim(&store, 2).await;
    ended(&store, "done", Action::Done).await;
    for name in ["a", "b"] {
        ended(&store, name, dead()).await;
    }
    fixture.advance(HOUR).await;
    let filter = Filter { ended_before: Some(store.clock().await.unwrap()), ..Filter::default() };
    assert_eq!(listed(&store, filter.clone()).await, ["done", "a", "b"], "what is pending has not ended");
    settle(&store, &EventId::new("dies late").unwrap(), &lease, dead()).await;
    assert_eq!(listed(&store, filter.clone()).await, ["done", "a", "b"]);
    let discard = Redrive { chunk: 2, ..Redrive::matching(filter.clone()) };
    assert_eq!(store.discard(&discard).await.unwrap(), 2);
    assert_eq!(store.discard(&discard).await.unwrap(), 0);
    let named = ["dies late", "pending"].map(|id| EventId::new(id).unwrap());
    assert_eq!(store.discard(&Redrive { ids: Some(named.into()), ..discard }).await.unwrap(), 0, "by id as well");
    assert_eq!(listed(&store, Filter::default()).await, ["dies late", "pending", "done"]);
}

/// What is discarded is gone: DEAD rows by id or by filter, in chunks, and no others.
pub async fn case_35_discard<F: Fixture>(fixture: F) {
    let store = fixture.store();
    ended(&store, "done", Action::Done).await;
    ended(&store, "failed", retry(HOUR)).await;
    ended(&store, "dead", dead()).await;
    for name in ["a", "b", "c"] {
        ended(&store, name, died("timeout")).await;
    }
    insert(&store, &[crate::rows::event_with_id("new")]).await;
    let id = |text: &str| EventId::new(text).unwrap();
    let by_id = Redrive::ids(["done", "failed", "dead", "new", "nobody"].map(id));
    assert_eq!(store.discard(&by_id).await.unwrap(), 1);
    assert_eq!(store.discard(&by_id).await.unwrap(), 0);
    assert_eq!(store.discard(&Redrive::ids([])).await.unwrap(), 0, "no ids are not all ids");
    assert!(store.find(&id("dead")).await.unwrap().is_none());
    assert_eq!(counts(&store).await, Counts { new: 1, retry: 1, done: 1, dead: 3 });
    let filter = Filter { error_contains: Some("time".into()), statuses: vec![Status::Done], ..Filter::default() };
    let by_filter = Redrive { chunk: 2, ..Redrive::matching(filter) };
    let mut chunks = Vec::new();
    while chunks.last() != Some(&0) {
        chunks.push(store.discard(&by_filter).await.unwrap());
    }
    assert_eq!(chunks, [2, 1, 0]);
    assert_eq!(counts(&store).await, Counts { new: 1, retry: 1, done: 1, dead: 0 });
}

/// A purge deletes DONE and DEAD rows by when they ended, each after its own time, and nothing that is pending.
pub async fn case_36_retention_per_status<F: Fixture>(fixture: F) {
    let store = fixture.store();
    ended(&store, "done long ago", Action::Done).await;
    ended(&store, "dead long ago", dead()).await;
    insert(&store, &[crate::rows::event_with_id("ends late")]).await;
    fixture.advance(HOUR).await;
    let (lease, _) = claim(&store, 1).await;
    settle(&store, &EventId::new("ends late").unwrap(), &lease, Action::Done).await;
    insert(&store, &[crate::rows::event_with_id("new")]).await;
    ended_rows_plus_retry(&store).await;
    fixture.advance(HOUR).await;

    assert_eq!(store.purge(&Purge::default()).await.unwrap(), 0, "nothing was said of how long rows are kept");
    let old = Purge { done_after: Some(HOUR * 3 / 2), ..Purge::default() };
    assert_eq!(store.purge(&old).await.unwrap(), 1);
    assert_eq!(listed(&store, Filter::default()).await, ["dead long ago", "ends late", "new", "failed"]);
    let old = Purge { dead_after: Some(HOUR * 3 / 2), ..Purge::default() };
    assert_eq!(store.purge(&old).await.unwrap(), 1);
    let all = Purge { done_after: Some(Duration::ZERO), dead_after: Some(Duration::ZERO), ..Purge::default() };
    assert_eq!(store.purge(&all).await.unwrap(), 1);
    assert_eq!(store.purge(&all).await.unwrap(), 0);
    assert_eq!(listed(&store, Filter::default()).await, ["new", "failed"]);
}

async fn ended_rows_plus_retry<S: AdminStore + RelayStore + posthaste_core::store::WriteStore>(store: &S) {
    let (lease, rows) = claim(store, 1).await;
    insert(store, &[crate::rows::event_with_id("failed")]).await;
    let (other, failed) = claim(store, 1).await;
    settle(store, failed[0].event.id(), &other, retry(HOUR * 100)).await;
    settle(store, rows[0].event.id(), &lease, Action::Release).await;
}

/// A purge goes on in chunks and ends.
pub async fn case_36_chunks<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let rows = events(25);
    insert(&store, &rows).await;
    let (lease, _) = claim(&store, 100).await;
    let done: Vec<Settlement> =
        rows.iter().map(|event| Settlement::new(event.id().clone(), lease.clone(), Action::Done)).collect();
    store.settle(&done).await.unwrap();
    let purge = Purge { done_after: Some(Duration::ZERO), chunk: 10, ..Purge::default() };
    for expected in [10, 10, 5, 0] {
        assert_eq!(store.purge(&purge).await.unwrap(), expected);
    }
    assert_eq!(counts(&store).await.total(), 0);
    // The ids of purged rows are free again.
    insert(&store, &rows[..1]).await;
}

/// A table that is only appended to is purged by the age of its rows, whatever their status.
pub async fn case_36_append_only<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (held, _) = one_leased(&store).await;
    ended(&store, "done", Action::Done).await;
    insert(&store, &[crate::rows::event_with_id("old")]).await;
    fixture.advance(HOUR).await;
    insert(&store, &[crate::rows::event_with_id("young")]).await;
    let purge = Purge { any_after: Some(HOUR), ..Purge::default() };
    assert_eq!(store.purge(&purge).await.unwrap(), 3);
    assert_eq!(listed(&store, Filter::default()).await, ["young"]);
    assert!(store.find(&held).await.unwrap().is_none());
    // Nothing of the rows that went is claimed any more.
    fixture.advance(HOUR).await;
    assert_eq!(claim_ids(&store, 10).await, ["young"]);
}

/// An outbox that is told how long rows are kept deletes the older ones by itself, whether it delivers or only writes.
pub async fn case_36_scheduled<F: Fixture>(fixture: F) {
    let store = fixture.store();
    ended(&store, "done", Action::Done).await;
    ended(&store, "dead", dead()).await;
    fixture.advance(HOUR + F::KEPT_LONGER).await;
    ended(&store, "young", Action::Done).await;
    let options = Options { retention_done: Some(HOUR), ..no_interval() };
    let (outbox, meter) = start(store.clone(), options, |_: Delivery| async {}).await;
    meter.until("the old row is deleted", |tally| tally.purged > 0).await;
    outbox.shutdown().await;
    assert_eq!(meter.tally().purged, 1);
    assert_eq!(listed(&store, Filter::default()).await, ["dead", "young"]);

    insert(&store, &[crate::rows::event_with_id("new")]).await;
    fixture.advance(HOUR + F::KEPT_LONGER).await;
    insert(&store, &[crate::rows::event_with_id("newer")]).await;
    let options = Options { retention_any: Some(HOUR), ..no_interval() };
    let meter = Meter::new();
    let writer = Outbox::writer_only(store.clone()).options(options).metrics(meter.clone()).start().await.unwrap();
    meter.until("what was inserted an hour ago is deleted", |tally| tally.purged == 3).await;
    writer.shutdown().await;
    assert_eq!(listed(&store, Filter::default()).await, ["newer"]);
}
