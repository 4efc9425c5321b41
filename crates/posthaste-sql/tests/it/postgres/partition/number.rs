//! Rows that have the same number in several partitions, as after a copy from another table.

use std::time::Duration;

use posthaste_core::store::{Action, AdminStore, Filter, Purge, Redrive, RelayStore, Settled};
use posthaste_core::{EventId, Status};
use posthaste_sql::PgStore;

use super::super::support::{Database, claim, sql};
use super::{DAY, daily, insert, make};
use crate::support::{ids, settle_all};

const NEW: i16 = 0;
const DONE: i16 = 1;
const RETRY: i16 = 2;
const DEAD: i16 = 3;

/// A store with partitions of the last days, of which each gets one of these rows, all with the same number.
async fn same_number(database: &Database, rows: &[(&str, i16)]) -> PgStore {
    let store = daily(database).await;
    for (days_ago, (id, status)) in (1..).zip(rows) {
        make(&store, days_ago).await;
        insert(&store, id, *status, days_ago, (*status % 2 == 1).then_some(days_ago)).await;
    }
    sql(&store, "UPDATE outbox_event SET seq = 1").await;
    store
}

async fn statuses<const N: usize>(store: &PgStore, ids: [&str; N]) -> [Option<Status>; N] {
    let mut statuses = [None; N];
    for (status, id) in statuses.iter_mut().zip(ids) {
        let record = store.find(&EventId::from_row(id)).await.unwrap();
        *status = record.map(|record| record.state.status);
    }
    statuses
}

#[tokio::test]
async fn a_purge_deletes_what_is_old_and_done() {
    let rows = [("done", DONE), ("pending", NEW), ("dead", DEAD), ("another", RETRY)];
    let all = ["done", "pending", "dead", "another"];
    let (new, retry, dead) = (Some(Status::New), Some(Status::Retry), Some(Status::Dead));
    for ended in [true, false] {
        for by_parts in [true, false] {
            let database = Database::new().await;
            let store = same_number(&database, &rows).await;
            sql(&store, "UPDATE outbox_event SET created_at = created_at - INTERVAL '9 days' WHERE status = 1").await;
            if !ended {
                sql(&store, "UPDATE outbox_event SET done_at = NULL").await;
            }
            let purge = Purge { done_after: Some(Duration::from_secs(60)), by_parts, ..Purge::default() };
            assert_eq!(store.purge(&purge).await.unwrap(), 1);
            assert_eq!(statuses(&store, all).await, [None, new, dead, retry]);
            assert_eq!(store.purge(&purge).await.unwrap(), 0);
        }
    }
    let database = Database::new().await;
    let store = same_number(&database, &rows).await;
    // What is of three days ago may be a moment too young.
    let purge = Purge { any_after: Some(DAY * 5 / 2), ..Purge::default() };
    assert!((1..=2).contains(&store.purge(&purge).await.unwrap()));
    assert_eq!(statuses(&store, ["done", "pending", "another"]).await, [Some(Status::Done), new, None]);
}

#[tokio::test]
async fn a_settlement_settles_one_row() {
    for deleting in [false, true] {
        let database = Database::new().await;
        let mut store = same_number(&database, &[("a", NEW), ("b", RETRY)]).await;
        if deleting {
            store = store.deleting_done();
        }
        let (lease, claimed) = claim(&store, 10).await;
        assert_eq!(ids(&claimed), ["b", "a"]);
        let settlements = settle_all(&lease, &claimed, &Action::Done);
        assert!(settlements.iter().all(|settlement| settlement.seq == Some(1)), "{settlements:?}");
        assert_eq!(store.settle(&settlements[..1]).await.unwrap(), [Settled::Applied]);
        let done = if deleting { None } else { Some(Status::Done) };
        assert_eq!(statuses(&store, ["a", "b"]).await, [Some(Status::New), done]);
        assert_eq!(store.settle(&settlements).await.unwrap(), [Settled::Lost, Settled::Applied]);
        assert_eq!(statuses(&store, ["a", "b"]).await, [done, done]);
    }
}

#[tokio::test]
async fn a_redrive_takes_what_is_dead_and_wanted() {
    let rows = [("done", DONE), ("dead", DEAD), ("leased", NEW), ("dead as well", DEAD)];
    let wanted = Filter { tenant_id: Some("wanted".to_owned()), ..Filter::default() };
    for redrive in [Redrive::ids([EventId::from_row("dead")]), Redrive::matching(wanted)] {
        let database = Database::new().await;
        let store = same_number(&database, &rows).await;
        sql(&store, "UPDATE outbox_event SET tenant_id = 'wanted' WHERE event_id = 'dead'").await;
        sql(&store, "UPDATE outbox_event SET locked_by = 'a/1', locked_at = now() WHERE event_id = 'leased'").await;
        assert_eq!(store.redrive(&redrive).await.unwrap(), 1);
        let expected = [Status::Done, Status::New, Status::New, Status::Dead].map(Some);
        assert_eq!(statuses(&store, rows.map(|(id, _)| id)).await, expected);
        let leased: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_event WHERE locked_by = 'a/1'")
            .fetch_one(store.pool())
            .await
            .unwrap();
        assert_eq!(leased, 1);
    }
}

#[tokio::test]
async fn a_claim_takes_what_is_available() {
    let rows = [("available", NEW), ("done", DONE), ("leased", NEW), ("waiting", RETRY), ("as well", RETRY)];
    for partitioned in [true, false] {
        let database = Database::new().await;
        let mut store = same_number(&database, &rows).await;
        sql(&store, "UPDATE outbox_event SET locked_by = 'a/1', locked_at = now() WHERE event_id = 'leased'").await;
        sql(&store, "UPDATE outbox_event SET available_at = 'infinity' WHERE event_id = 'waiting'").await;
        if !partitioned {
            store = database.empty().await;
        }
        let (_, claimed) = claim(&store, 1).await;
        assert!((1..=2).contains(&claimed.rows.len()), "{claimed:?}");
        let (_, rest) = claim(&store, 10).await;
        let mut taken = [ids(&claimed), ids(&rest)].concat();
        taken.sort_unstable();
        assert_eq!(taken, ["as well", "available"], "partitioned: {partitioned}");
    }
}

#[tokio::test]
async fn a_row_of_the_beginning_of_time_is_delivered() {
    let database = Database::new().await;
    let store = daily(&database).await;
    insert(&store, "a", NEW, 0, None).await;
    sql(&store, "UPDATE outbox_event SET created_at = '-infinity', available_at = '-infinity'").await;
    let (lease, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["a"]);
    assert_eq!(store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap(), [Settled::Applied]);
}
