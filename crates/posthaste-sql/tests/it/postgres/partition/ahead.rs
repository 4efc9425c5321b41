//! Partitions that are made in time, and rows that came before them.

use posthaste_core::Event;
use posthaste_core::store::{Action, AdminStore, Error, Maintained, Purge, RelayStore, Settled, WriteStore};
use posthaste_sql::{Partitions, PgStore};
use tokio::task::JoinSet;

use super::super::support::{Database, claim, sql, within, write};
use super::{daily, fallen, forget, insert, make, name_of, names, partitions, place};
use crate::support::{event, ids, settle_all, unleased};

/// No time between two of them.
async fn assert_contiguous(store: &PgStore) {
    let all = partitions(store).await;
    for pair in all.windows(2) {
        assert_eq!(pair[0].2, pair[1].1, "{all:?}");
    }
}

#[tokio::test]
async fn the_current_one_and_some_ahead_are_there_from_the_start() {
    let database = Database::new().await;
    let store = daily(&database).await;
    let mut expected = Vec::new();
    for days_ago in [0, -1, -2, -3] {
        expected.push(name_of(&store, days_ago).await);
    }
    assert_eq!(names(&store).await, expected);
    assert_contiguous(&store).await;
    write(&store, [event("now")]).await;
    assert_eq!(place(&store, "now").await, expected[0]);

    store.migrate().await.unwrap();
    store.maintain_partitions().await.unwrap();
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");
    assert_eq!(store.maintain(&Purge::default()).await.unwrap(), Maintained::default());
    assert_eq!(names(&store).await, expected, "nothing was missing");

    sql(&store, format!("DROP TABLE {}", expected[3])).await;
    let maintained = store.maintain(&Purge::default()).await.unwrap();
    assert_eq!(maintained, Maintained { made: 1, ..Maintained::default() });
    assert_eq!(names(&store).await, expected);
    let more = store.clone().partitioned(Partitions::daily().ahead(40));
    more.maintain_partitions().await.unwrap();
    assert_eq!(names(&store).await.len(), 41);
    assert_contiguous(&store).await;
}

#[tokio::test]
async fn every_length_has_its_partitions_and_may_be_changed_without_a_gap() {
    let database = Database::new().await;
    let store = database.empty().await;
    let lengths = [Partitions::hourly(), Partitions::daily(), Partitions::weekly(), Partitions::monthly()];
    for (number, partitions) in lengths.into_iter().enumerate() {
        let store = store.clone().with_table(&format!("length_{number}")).unwrap().partitioned(partitions);
        store.migrate().await.unwrap();
        assert_eq!(names(&store).await.len(), 4, "{partitions:?}");
        assert_contiguous(&store).await;
        write(&store, [event("x")]).await;
        let count = format!("SELECT count(*) FROM length_{number}_default");
        let fallen: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(store.pool()).await.unwrap();
        assert_eq!(fallen, 0, "{partitions:?}");
    }
    // Longer and longer, and back again.
    for partitions in [0, 1, 2, 3, 2, 1, 0].map(|length| lengths[length]) {
        let store = store.clone().partitioned(partitions);
        store.migrate().await.unwrap();
        store.maintain_partitions().await.unwrap();
        assert_contiguous(&store).await;
    }
}

#[tokio::test]
async fn rows_without_a_partition_are_delivered_and_moved_with_their_leases() {
    let database = Database::new().await;
    let store = daily(&database).await;
    forget(&store).await;
    write(&store, ["a", "b"].map(event)).await;
    assert_eq!((place(&store, "a").await, fallen(&store).await), ("outbox_event_default".into(), 2));
    let (lease, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["a", "b"]);
    store.settle(&settle_all(&lease, &claimed, &Action::Done)[..1]).await.unwrap();

    let maintained = store.maintain(&Purge::default()).await.unwrap();
    assert_eq!(maintained, Maintained { made: 4, moved: 2, dropped: 0 });
    assert_eq!(fallen(&store).await, 0);
    let pages: i64 =
        sqlx::query_scalar("SELECT pg_relation_size('outbox_event_default')").fetch_one(store.pool()).await.unwrap();
    assert_eq!(pages, 0, "it is not looked for rows there any more");
    assert_eq!(place(&store, "b").await, name_of(&store, 0).await);
    let settled = store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
    assert_eq!(settled, [Settled::Lost, Settled::Applied], "the lease has moved with the row");
    write(&store, [event("c")]).await;
    let seqs: Vec<i64> =
        sqlx::query_scalar("SELECT seq FROM outbox_event ORDER BY event_id").fetch_all(store.pool()).await.unwrap();
    assert_eq!(seqs, [1, 2, 3]);
}

#[tokio::test]
async fn gaps_are_mended_but_not_for_rows_of_long_ago() {
    let database = Database::new().await;
    let store = daily(&database).await;
    make(&store, 5).await;
    for (id, days_ago) in [("long ago", 7), ("in its place", 5), ("in a gap", 3), ("in another", 1), ("to come", -9)] {
        insert(&store, id, 0, days_ago, None).await;
    }
    assert_eq!(fallen(&store).await, 4);
    let maintained = store.maintain(&Purge::default()).await.unwrap();
    assert_eq!(maintained, Maintained { made: 2, moved: 2, dropped: 0 });
    assert_eq!(place(&store, "in a gap").await, name_of(&store, 3).await);
    assert_eq!(place(&store, "in another").await, name_of(&store, 1).await);
    assert_eq!(fallen(&store).await, 2);
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["long ago", "in its place", "in a gap", "in another"]);
}

#[tokio::test]
async fn too_many_rows_stay_where_they_are_and_keep_nothing_else_from_being_made() {
    let database = Database::new().await;
    let store = daily(&database).await;
    forget(&store).await;
    write(&store, (0..10_001).map(|n| event(&n.to_string()))).await;
    let maintained = store.maintain(&Purge::default()).await.unwrap();
    assert_eq!(maintained, Maintained { made: 3, ..Maintained::default() });
    assert_eq!(names(&store).await[0], name_of(&store, -1).await);
    assert_eq!(claim(&store, 20_000).await.1.rows.len(), 10_001);
    write(&store, [event("more")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_maintain_at_once() {
    let database = Database::new().await;
    let store = daily(&database).await;
    forget(&store).await;
    write(&store, (0..100).map(|n| event(&n.to_string()))).await;
    make(&store, 9).await;
    insert(&store, "old", 1, 9, Some(9)).await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = database.empty().await.partitioned(Partitions::daily());
        tasks.spawn(async move {
            let purge = Purge { done_after: Some(super::DAY), ..Purge::default() };
            within("it is maintained", store.maintain(&purge)).await.unwrap()
        });
    }
    let all = tasks.join_all().await;
    let sum = |count: fn(&Maintained) -> u64| all.iter().map(count).sum::<u64>();
    assert_eq!((sum(|m| m.made), sum(|m| m.moved), sum(|m| m.dropped)), (4, 100, 1));
    assert_eq!((names(&store).await.len(), fallen(&store).await), (4, 0));
    assert_eq!(claim(&store, 200).await.1.rows.len(), 100);
}

#[tokio::test]
async fn an_id_is_unique_within_a_partition() {
    let database = Database::new().await;
    let store = daily(&database).await;
    make(&store, 1).await;
    insert(&store, "yesterday", 1, 1, Some(1)).await;
    write(&store, [event("today")]).await;
    let mut tx = store.begin().await.unwrap();
    let taken = store.insert(&mut tx, &unleased(["new", "today"].map(event))).await;
    assert!(matches!(&taken, Err(Error::DuplicateId { id }) if *id == "today"), "{taken:?}");
    store.rollback(tx).await.unwrap();
    write(&store, [event("yesterday")]).await;
    assert_eq!(ids(&claim(&store, 10).await.1), ["today", "yesterday"]);
}

#[tokio::test]
async fn the_longest_names_have_room_for_their_partitions() {
    let database = Database::new().await;
    let (schema, table) = ("s".repeat(48), "T".repeat(48));
    let store = database.empty().await.partitioned(Partitions::hourly());
    sql(&store, format!("CREATE SCHEMA {schema}")).await;
    let store = store.with_table(&format!("{schema}.{table}")).unwrap();
    store.migrate().await.unwrap();
    store.create_wake_trigger().await.unwrap();
    let all = names(&store).await;
    assert_eq!(all.len(), 4);
    assert!(all.iter().all(|name| name.len() == 60 && name.starts_with(&format!("{table}_p20"))), "{all:?}");
    sql(&store, format!("DROP TABLE {schema}.\"{}\"", all[3])).await;
    store.maintain_partitions().await.unwrap();
    assert_eq!(names(&store).await, all);

    let rows: [Event; 2] = ["a", "b"].map(event);
    write(&store, rows.clone()).await;
    let mut tx = store.begin().await.unwrap();
    let taken = store.insert(&mut tx, &unleased(rows)).await;
    assert!(matches!(&taken, Err(Error::DuplicateId { id }) if *id == "a"), "{taken:?}");
    store.rollback(tx).await.unwrap();
    let (lease, claimed) = claim(&store, 10).await;
    let settled = store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
    assert_eq!(settled, [Settled::Applied; 2]);
}
