//! Operators' queries.

use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, Cursor, Filter, Order, Page, Purge, Record, Redrive, RelayStore, Status, WriteStore,
};
use posthaste_core::{Event, EventId};
use posthaste_sql::SqliteStore;

use crate::support::{Database, claim, event, ids, settle_all, write};

async fn with_dead(store: &SqliteStore, events: Vec<Event>, error: &str) {
    write(store, events).await;
    let (lease, claimed) = claim(store, 100).await;
    let dead = Action::Dead { error: error.to_owned(), counts: true };
    store.settle(&settle_all(&lease, &claimed, &dead)).await.unwrap();
}

fn listed(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.id.as_str()).collect()
}

#[tokio::test]
async fn lists_are_filtered_and_paged_both_ways() {
    let database = Database::new();
    let store = database.store().await;
    with_dead(&store, vec![event("dead")], "100% of A_b's fault\u{e9}").await;
    let order = Event::builder("Placed").id("order").aggregate("Order", 7).tenant_id("t").json_text("{}");
    write(&store, [order.build().unwrap(), event("x"), event("y")]).await;

    let list = async |filter: Filter| store.list(&filter, &Page::default()).await.unwrap();
    assert_eq!(listed(&list(Filter::default()).await), ["dead", "order", "x", "y"]);
    let fits = [
        Filter { statuses: vec![Status::Dead, Status::Retry], ..Filter::default() },
        Filter { error_contains: Some("% of A_b's".to_owned()), ..Filter::default() },
        Filter { event_type: Some("Happened".to_owned()), statuses: vec![Status::Dead], ..Filter::default() },
    ];
    for filter in fits {
        assert_eq!(listed(&list(filter).await), ["dead"]);
    }
    for text in ["a_b", "A%b", "fault.", "OF"] {
        assert!(list(Filter { error_contains: Some(text.to_owned()), ..Filter::default() }).await.is_empty(), "{text}");
    }
    let by_aggregate = Filter {
        aggregate_type: Some("Order".to_owned()),
        aggregate_id: Some("7".to_owned()),
        tenant_id: Some("t".to_owned()),
        ..Filter::default()
    };
    let records = list(by_aggregate).await;
    assert_eq!(listed(&records), ["order"]);
    let created_at = records[0].state.created_at;
    let from = Filter { created_from: Some(created_at), ..Filter::default() };
    assert_eq!(listed(&list(from).await), ["order", "x", "y"]);
    let before = Filter { created_before: Some(created_at), ..Filter::default() };
    assert_eq!(listed(&list(before).await), ["dead"]);

    for (order, expected) in
        [(Order::OldestFirst, ["dead", "order", "x", "y"]), (Order::NewestFirst, ["y", "x", "order", "dead"])]
    {
        let mut seen = Vec::new();
        let mut page = Page { limit: 3, after: None, order };
        loop {
            let records = store.list(&Filter::default(), &page).await.unwrap();
            let Some(last) = records.last() else { break };
            page.after = Some(Cursor::from(last));
            seen.extend(records.into_iter().map(|record| record.id.to_string()));
        }
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn redrive_takes_dead_rows_by_id_and_filter_a_chunk_at_a_time() {
    let database = Database::new();
    let store = database.store().await;
    with_dead(&store, (0..5).map(|n| event(&n.to_string())).collect(), "down").await;
    with_dead(&store, vec![event("other")], "poison").await;
    write(&store, [event("new")]).await;

    let one = Redrive::ids(["0", "new", "gone"].map(EventId::from_row));
    assert_eq!(store.redrive(&one).await.unwrap(), 1);
    assert_eq!(store.redrive(&one).await.unwrap(), 0);
    assert_eq!(store.redrive(&Redrive::ids([])).await.unwrap(), 0);
    let filter = Filter { error_contains: Some("down".to_owned()), ..Filter::default() };
    let down = Redrive { chunk: 3, ..Redrive::matching(filter) };
    assert_eq!(store.redrive(&down).await.unwrap(), 3);
    assert_eq!(store.redrive(&down).await.unwrap(), 1);
    assert_eq!(store.redrive(&down).await.unwrap(), 0);

    let state = store.find(&EventId::from_row("4")).await.unwrap().unwrap().state;
    assert_eq!((state.status, state.attempts, state.done_at, state.last_error), (Status::New, 0, None, None));
    assert_eq!(ids(&claim(&store, 10).await.1).len(), 6);
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.new, counts.dead), (6, 1));
}

#[tokio::test]
async fn chunks_go_by_number_whatever_happens_in_between() {
    let database = Database::new();
    chunks_of_a_redrive_go_by_number(&database.store().await).await;
}

#[tokio::test]
async fn two_who_redrive_at_once_leave_nothing() {
    let database = Database::new();
    let store = database.store().await;
    redrive_at_once(&store, &store.clone()).await;
}

/// A redrive in chunks takes the lowest numbers first, in whichever order the rows have died, and leaves alone what others have taken.
pub(crate) async fn chunks_of_a_redrive_go_by_number<S: WriteStore + RelayStore + AdminStore>(store: &S) {
    let died = || Action::Dead { error: "down".to_owned(), counts: true };
    let done = async || {
        let (lease, claimed) = claim(store, 10).await;
        store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
        claimed.rows.iter().map(|row| row.event.id().to_string()).collect::<Vec<_>>()
    };
    write(store, (0..6).map(|n| event(&n.to_string()))).await;
    let (lease, claimed) = claim(store, 10).await;
    for settlement in settle_all(&lease, &claimed, &died()).into_iter().rev() {
        store.settle(&[settlement]).await.unwrap();
    }
    let redrive = Redrive { chunk: 2, ..Redrive::matching(Filter::default()) };
    assert_eq!(store.redrive(&redrive).await.unwrap(), 2);
    assert_eq!(done().await, ["0", "1"]);
    // Somebody else redrives one of the next chunk, and another row dies.
    assert_eq!(store.redrive(&Redrive::ids(["2"].map(EventId::from_row))).await.unwrap(), 1);
    assert_eq!(done().await, ["2"]);
    write(store, [event("6")]).await;
    let (lease, claimed) = claim(store, 10).await;
    store.settle(&settle_all(&lease, &claimed, &died())).await.unwrap();
    for expected in [&["3"][..], &["4", "5"], &["6"]] {
        assert_eq!(store.redrive(&redrive).await.unwrap(), expected.len() as u64);
        assert_eq!(done().await, expected);
    }
    assert_eq!(store.redrive(&redrive).await.unwrap(), 0);
}

/// Each row is redriven by one of them.
pub(crate) async fn redrive_at_once<S: WriteStore + RelayStore + AdminStore>(one: &S, other: &S) {
    const ROWS: usize = 2000;
    write(one, (0..ROWS).map(|n| event(&n.to_string()))).await;
    let (lease, claimed) = claim(one, ROWS).await;
    let died = Action::Dead { error: "down".to_owned(), counts: true };
    one.settle(&settle_all(&lease, &claimed, &died)).await.unwrap();
    let redrive = Redrive { chunk: 50, ..Redrive::matching(Filter::default()) };
    let all = async |store: &S| {
        let mut changed = 0;
        loop {
            match store.redrive(&redrive).await.unwrap() {
                0 => return changed,
                more => changed += more,
            }
        }
    };
    let (changed, by_other) = tokio::join!(all(one), all(other));
    assert_eq!(changed + by_other, ROWS as u64, "{changed} and {by_other}");
    let counts = one.counts().await.unwrap();
    assert_eq!((counts.new, counts.dead), (ROWS as u64, 0));
}

#[tokio::test]
async fn purge_keeps_each_kind_for_its_time() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, (0..5).map(|n| event(&n.to_string()))).await;
    let (lease, claimed) = claim(&store, 100).await;
    store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
    with_dead(&store, vec![event("dead"), event("undated")], "x").await;
    write(&store, [event("new")]).await;
    let hour = Duration::from_secs(3600);
    let purge = async |purge: Purge| store.purge(&purge).await.unwrap();
    let done = |after| Purge { done_after: Some(after), chunk: 3, ..Purge::default() };
    assert_eq!(purge(Purge::default()).await, 0);
    assert_eq!(purge(done(hour)).await, 0);
    let back = "UPDATE outbox_event SET done_at = done_at - 3600000000, created_at = created_at - 3600000000";
    sqlx::query(back).execute(store.pool()).await.unwrap();
    sqlx::query("UPDATE outbox_event SET done_at = NULL WHERE event_id = 'undated'")
        .execute(store.pool())
        .await
        .unwrap();
    assert_eq!([purge(done(hour)).await, purge(done(hour)).await, purge(done(hour)).await], [3, 2, 0]);
    assert_eq!(purge(Purge { dead_after: Some(hour * 2), ..Purge::default() }).await, 0);
    assert_eq!(purge(Purge { dead_after: Some(hour), ..Purge::default() }).await, 2);
    assert_eq!(store.counts().await.unwrap().total(), 1);
    assert_eq!(purge(Purge { any_after: Some(hour * 2), ..Purge::default() }).await, 0);
    assert_eq!(purge(Purge { any_after: Some(hour), ..Purge::default() }).await, 1);
}
