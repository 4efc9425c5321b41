//! Statements that were prepared when the table was empty, once it is not.

use std::time::Duration;

use posthaste_core::store::{Action, AdminStore, Filter, Purge, Redrive, RelayStore, Settlement};
use posthaste_sql::PgStore;

use super::support::{Database, claim, sql, write};
use crate::support::{event, settle_all};

/// So many that a claim of them is planned anew.
const MANY: usize = 300;

#[tokio::test]
async fn a_kept_plan_that_has_become_bad_is_left() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    // Nobody tells the server that the table has grown.
    sql(&store, "ALTER TABLE outbox_event SET (autovacuum_enabled = false)").await;
    for _ in 0..10 {
        sql(&store, "TRUNCATE outbox_event").await;
        let walks = walks_of_a_bad_plan(&store).await;
        // A server that has much else to do may forget its plans at any time, and makes a good one then.
        if walks[0] >= 100_000 {
            // One that is slow by far is enough, otherwise two are: then claims are planned anew for a moment, and walk over
            // nothing. The same once more, and another plan is made.
            assert!(walks.iter().filter(|walk| **walk >= 1000).count() <= 4, "{walks:?} rows walked");
            assert!(walks[CLAIMS / 2..].iter().all(|walk| *walk < 1000), "{walks:?} rows walked");
            return;
        }
    }
    panic!("there was no bad plan");
}

/// How many claims there are, and what is between two of them.
const CLAIMS: usize = 40;
const BETWEEN: Duration = Duration::from_millis(30);

/// How many rows claims walk over with a plan that was made for an empty table.
async fn walks_of_a_bad_plan(store: &PgStore) -> Vec<i64> {
    for _ in 0..10 {
        write(store, [event("x")]).await;
        // A store that knows of no claim before it, since one that was slow, for whatever reason, would leave the plan by now.
        claim(&anew(store), 100).await;
        sql(store, "DELETE FROM outbox_event").await;
    }
    let fill = "INSERT INTO outbox_event (event_id, event_type, payload, status) \
                SELECT 'done ' || n, 'X', '{}', 1 FROM generate_series(1, 100000) AS n";
    sql(store, fill).await;
    let store = anew(store);
    let mut walks = Vec::new();
    for _ in 0..CLAIMS {
        let before = walked(&store).await;
        claim(&store, 100).await;
        walks.push(walked(&store).await - before);
        tokio::time::sleep(BETWEEN).await;
    }
    walks
}

/// A store on the same connection, and so with the same plans, that knows nothing of how long they took.
fn anew(store: &PgStore) -> PgStore {
    PgStore::new(store.pool().clone())
}

#[tokio::test]
async fn a_backlog_is_not_walked_as_a_whole_by_plans_of_an_empty_table() {
    for (analyzed, deleting) in [(false, false), (true, false), (false, true), (true, true)] {
        let database = Database::new().await;
        // One connection, so that the plans are kept on it.
        let mut store = database.store_of_one().await;
        if deleting {
            store = store.deleting_done();
        }
        if analyzed {
            sql(&store, "VACUUM ANALYZE outbox_event").await;
        }
        for _ in 0..10 {
            write(&store, [event("x")]).await;
            let (lease, claimed) = claim(&store, MANY).await;
            store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
            store.settle(&[Settlement::new(claimed.rows[0].event.id().clone(), lease, Action::Done)]).await.unwrap();
            settle_mixed(&store).await;
            sql(&store, "DELETE FROM outbox_event").await;
        }
        write(&store, (0..20_000).map(|n| event(&n.to_string()))).await;

        let before = walked(&store).await;
        for by_seq in [true, false] {
            let (lease, claimed) = claim(&store, MANY).await;
            let mut settlements = settle_all(&lease, &claimed, &Action::Done);
            if !by_seq {
                settlements.iter_mut().for_each(|settlement| settlement.seq = None);
            }
            settle(&store, &settlements).await;
        }
        settle_mixed(&store).await;
        let walked = walked(&store).await - before;
        // Each row is touched by the search, the claim and the settlement.
        assert!(walked < 9_000, "{walked} rows walked for 900, analyzed: {analyzed}, deleting: {deleting}");
        let counts = store.counts().await.unwrap();
        assert_eq!((counts.new, counts.retry), (19_101, 1));
        assert_eq!(counts.done, if deleting { 0 } else { 899 });
    }
}

#[tokio::test]
async fn a_purge_that_finds_nothing_does_not_walk_the_table() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let day = Some(Duration::from_secs(86_400));
    let purge = Purge { done_after: day, dead_after: day, any_after: day, ..Purge::default() };
    // Often enough for a plan to be kept, if one were.
    for _ in 0..10 {
        assert_eq!(store.purge(&purge).await.unwrap(), 0);
    }
    sql(
        &store,
        "INSERT INTO outbox_event (event_id, event_type, payload, status, done_at) \
         SELECT n, 'x', '{}', 1 + n % 2 * 2, clock_timestamp() FROM generate_series(1, 20000) AS n",
    )
    .await;
    for analyzed in [false, true] {
        if analyzed {
            sql(&store, "VACUUM ANALYZE outbox_event").await;
        }
        let before = walked(&store).await;
        assert_eq!(store.purge(&purge).await.unwrap(), 0);
        let walked = walked(&store).await - before;
        // The oldest thousand are looked at.
        assert!(walked <= 1_100, "{walked} rows walked for nothing, analyzed: {analyzed}");
    }
}

#[tokio::test]
async fn a_chunk_of_what_is_dead_does_not_walk_over_the_rest() {
    for analyzed in [false, true] {
        let database = Database::new().await;
        let store = database.store_of_one().await;
        // What is done comes before all that is dead, or between.
        sql(
            &store,
            "INSERT INTO outbox_event (event_id, event_type, payload, status, done_at) \
             SELECT n, 'x', '{}', CASE WHEN n > 20000 AND n % 2 = 0 THEN 3 ELSE 1 END, clock_timestamp() \
             FROM generate_series(1, 30000) AS n",
        )
        .await;
        if analyzed {
            sql(&store, "VACUUM ANALYZE outbox_event").await;
        }
        let filter = Filter { ended_before: Some(store.clock().await.unwrap()), ..Filter::default() };
        let chunk = Redrive { chunk: 100, ..Redrive::matching(filter) };
        assert_eq!(store.redrive(&chunk).await.unwrap(), 100);
        for change in ["redrive", "discard"] {
            let before = walked(&store).await;
            let changed = if change == "redrive" { store.redrive(&chunk).await } else { store.discard(&chunk).await };
            assert_eq!(changed.unwrap(), 100);
            let walked = walked(&store).await - before;
            // Each row is touched by the search and by the change.
            assert!(walked < 1_000, "{walked} rows walked for a {change} of 100, analyzed: {analyzed}");
        }
    }
}

/// How many rows the server has looked at so far.
async fn walked(store: &PgStore) -> i64 {
    sql(store, "SELECT pg_stat_force_next_flush()").await;
    sqlx::query_scalar(
        "SELECT (seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables WHERE relname = 'outbox_event'",
    )
    .fetch_one(store.pool())
    .await
    .unwrap()
}

/// Claims rows, of which the first fails and the others are done.
async fn settle_mixed(store: &PgStore) {
    write(store, [event("y")]).await;
    let (lease, claimed) = claim(store, MANY).await;
    let mut settlements = settle_all(&lease, &claimed, &Action::Done);
    settlements[0].action = Action::Retry { delay: Duration::from_secs(3600), error: "no".into() };
    settle(store, &settlements).await;
}

/// Settles so few at once that they are not worth a walk over the whole table.
async fn settle(store: &PgStore, settlements: &[Settlement]) {
    for few in settlements.chunks(100) {
        store.settle(few).await.unwrap();
    }
}
