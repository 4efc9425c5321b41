//! How much is walked with many partitions, and that nothing is overlooked in those that are left out.

use posthaste_core::store::{Action, RelayStore, Settled};
use posthaste_sql::PgStore;

use super::super::support::{Database, claim, sql, write};
use super::{daily, insert, make};
use crate::support::{event, ids, settle_all};

/// How many rows the server has looked at so far.
async fn walked(store: &PgStore) -> i64 {
    sql(store, "SELECT pg_stat_force_next_flush()").await;
    let query = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables \
                 WHERE relname LIKE 'outbox_event%'";
    sqlx::query_scalar(query).fetch_one(store.pool()).await.unwrap()
}

#[tokio::test]
async fn claims_and_settlements_walk_what_they_take_in_thirty_partitions() {
    for analyzed in [false, true] {
        let database = Database::new().await;
        // One connection, whose figures are then complete.
        let store = database.store_with(sqlx::postgres::PgPoolOptions::new().max_connections(1)).await;
        let store = store.partitioned(posthaste_sql::Partitions::daily());
        daily(&database).await.close().await;
        for days_ago in 1..=30 {
            make(&store, days_ago).await;
            insert(&store, &format!("done {days_ago}"), 1, days_ago, Some(days_ago)).await;
        }
        sql(
            &store,
            "INSERT INTO outbox_event (event_id, event_type, payload, status, created_at, done_at) \
             SELECT n, 'x', '{}', 1, now() - INTERVAL '15 days', now() FROM generate_series(1, 20000) AS n",
        )
        .await;
        write(&store, (0..20_000).map(|n| event(&format!("{n}")))).await;
        if analyzed {
            sql(&store, "VACUUM ANALYZE outbox_event").await;
        }
        let before = walked(&store).await;
        for by_seq in [true, false] {
            let (lease, claimed) = claim(&store, 100).await;
            let mut settlements = settle_all(&lease, &claimed, &Action::Done);
            if !by_seq {
                settlements.iter_mut().for_each(|settlement| settlement.seq = None);
            }
            assert_eq!(store.settle(&settlements).await.unwrap(), [Settled::Applied; 100]);
        }
        let walked = walked(&store).await - before;
        assert!(walked < 3_000, "{walked} rows walked for 200, analyzed: {analyzed}");
    }
}

#[tokio::test]
async fn what_is_older_than_expected_is_claimed_and_settled_all_the_same() {
    let database = Database::new().await;
    let store = daily(&database).await;
    for days_ago in 1..=9 {
        make(&store, days_ago).await;
    }
    write(&store, (0..250).map(|n| event(&format!("{n:03}")))).await;
    let (first, full) = claim(&store, 100).await;
    assert_eq!(full.rows.len(), 100);
    // In a drain, what is this old is not expected.
    insert(&store, "old", 0, 9, None).await;
    assert_eq!(claim(&store, 100).await.1.rows.len(), 100);
    let (second, rest) = claim(&store, 100).await;
    assert_eq!((rest.rows.len(), ids(&rest)[0]), (51, "old"));

    sql(&store, "UPDATE outbox_event SET created_at = created_at - INTERVAL '8 days' WHERE event_id = '007'").await;
    for (lease, claimed) in [(first, full), (second, rest)] {
        let mut settlements = settle_all(&lease, &claimed, &Action::Done);
        settlements[1].action = Action::Dead { error: "no use".into(), counts: true };
        let settled = store.settle(&settlements).await.unwrap();
        assert!(settled.iter().all(|settled| *settled == Settled::Applied), "{settled:?}");
        let settled = store.settle(&settlements).await.unwrap();
        assert!(settled.iter().all(|settled| *settled == Settled::Lost), "once only: {settled:?}");
    }
}
