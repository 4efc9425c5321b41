//! What others do while partitions are made and dropped.

use posthaste_core::store::{AdminStore, Error, Maintained, Purge};
use posthaste_sql::{Partitions, PgStore};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use tokio::task::JoinSet;

use super::super::support::{Database, eventually, sql, within, write};
use super::{DAY, daily, fallen, forget, insert, make, name_of, names, place};
use crate::support::event;

const DONE: i16 = 1;

/// Everything that is done is kept for a day.
fn a_day() -> Purge {
    Purge { done_after: Some(DAY), ..Purge::default() }
}

/// Maintains the table while another transaction has done something, which commits as soon as it is waited for.
async fn maintain_beside(database: &Database, store: &PgStore, other: &str) -> Result<Maintained, Error> {
    maintain_between(database, store, other, "").await
}

/// The same, but it does one thing more before it commits.
async fn maintain_between(database: &Database, store: &PgStore, other: &str, more: &str) -> Result<Maintained, Error> {
    let mut connection = database.connection().await;
    // What it has to know of the table it knows from the first time, and locks no more than it has to.
    let mut tx = connection.begin().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(other)).execute(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(other)).execute(&mut *tx).await.unwrap();
    let maintaining = tokio::spawn({
        let store = store.clone();
        async move { store.maintain(&a_day()).await }
    });
    eventually("it waits", async || maintaining.is_finished() || waiting(store).await > 0).await;
    sqlx::raw_sql(AssertSqlSafe(more)).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    within("it is maintained", maintaining).await.unwrap()
}

/// How many wait for a lock.
async fn waiting(store: &PgStore) -> i64 {
    let query = "SELECT count(*) FROM pg_locks WHERE NOT granted \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    sqlx::query_scalar(query).fetch_one(store.pool()).await.unwrap()
}

async fn is_there(store: &PgStore, id: &str) -> bool {
    let query = "SELECT EXISTS (SELECT FROM outbox_event WHERE event_id = $1)";
    sqlx::query_scalar(query).bind(id).fetch_one(store.pool()).await.unwrap()
}

/// A database in which transactions see nothing that was committed since they began, unless they say otherwise.
async fn strict() -> Database {
    let database = Database::new().await;
    database.alter("SET default_transaction_isolation TO 'repeatable read'").await;
    database
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_redriven_just_now_is_not_dropped() {
    let database = strict().await;
    let store = daily(&database).await;
    make(&store, 9).await;
    insert(&store, "redriven", DONE, 9, Some(9)).await;
    let redrive = "UPDATE outbox_event SET status = 0, done_at = NULL";
    let maintained = maintain_beside(&database, &store, redrive).await;
    assert!(is_there(&store, "redriven").await, "{maintained:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_written_just_now_is_not_lost_while_others_move() {
    let database = strict().await;
    let store = daily(&database).await;
    forget(&store).await;
    write(&store, [event("fallen")]).await;
    let insert = "INSERT INTO outbox_event (event_id, event_type, payload, created_at) \
                  VALUES ('far', 'x', '{}', now() + INTERVAL '99 days')";
    let maintained = maintain_beside(&database, &store, insert).await;
    assert!(is_there(&store, "fallen").await && is_there(&store, "far").await, "{maintained:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_was_written_past_the_table_is_not_lost_while_others_move() {
    let database = Database::new().await;
    let store = daily(&database).await;
    forget(&store).await;
    write(&store, [event("fallen")]).await;
    let insert = "INSERT INTO outbox_event_default (seq, event_id, event_type, payload, created_at) \
                  VALUES (99, 'far', 'x', '{}', now() + INTERVAL '99 days'), (100, 'near', 'x', '{}', now())";
    let maintained = maintain_beside(&database, &store, insert).await;
    for id in ["fallen", "far", "near"] {
        assert!(is_there(&store, id).await, "{id}: {maintained:?}");
    }
    store.maintain_partitions().await.unwrap();
    assert_eq!(place(&store, "near").await, name_of(&store, 0).await);
    assert_eq!(fallen(&store).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_migrate_at_once_whatever_isolation_is_the_default() {
    let database = strict().await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = database.empty().await.partitioned(Partitions::daily());
        tasks.spawn(async move { within("it is migrated", store.migrate()).await.unwrap() });
    }
    tasks.join_all().await;
    assert_eq!(names(&database.empty().await).await.len(), 4);
}

/// Inserts a row of now as any program does.
async fn insert_one(connection: &mut PgConnection, id: &str) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO outbox_event (event_id, event_type, payload) VALUES ($1, 'x', '{}')";
    sqlx::query(insert).bind(id).execute(connection).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_is_not_refused_while_the_partition_of_its_row_is_made() {
    let database = Database::new().await;
    let store = daily(&database).await;
    let mut writer = database.connection().await;
    let mut reader = database.connection().await;
    // Somebody has to wait in time, which is not given.
    for attempt in 0..5 {
        forget(&store).await;
        // It knows the partitions now.
        insert_one(&mut writer, &format!("before {attempt}")).await.unwrap();
        sql(&store, "DELETE FROM outbox_event").await;

        let mut reading = reader.begin().await.unwrap();
        sqlx::raw_sql("SELECT FROM outbox_event_default").execute(&mut *reading).await.unwrap();
        let maintaining = tokio::spawn({
            let store = store.clone();
            async move { store.maintain_partitions().await }
        });
        eventually("it waits", async || maintaining.is_finished() || waiting(&store).await > 0).await;
        let writing = tokio::spawn(async move {
            let written = insert_one(&mut writer, "written").await;
            (writer, written)
        });
        eventually("both wait", async || {
            maintaining.is_finished() || writing.is_finished() || waiting(&store).await > 1
        })
        .await;
        reading.commit().await.unwrap();
        let maintained = within("it is maintained", maintaining).await.unwrap();
        let (back, written) = within("it is written", writing).await.unwrap();
        writer = back;
        written.unwrap();
        if maintained.is_ok() {
            assert_eq!(place(&store, "written").await, name_of(&store, 0).await);
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_tomorrow_puts_the_partition_of_tomorrow_off() {
    let database = Database::new().await;
    let store = daily(&database).await;
    sql(&store, format!("DROP TABLE {}", name_of(&store, -1).await)).await;
    let insert = "INSERT INTO outbox_event (event_id, event_type, payload, created_at) \
                  VALUES ('early', 'x', '{}', now() + INTERVAL '1 day')";
    let maintained = maintain_beside(&database, &store, insert).await;
    assert!(matches!(maintained, Err(Error::Busy(_))), "{maintained:?}");
    store.maintain_partitions().await.unwrap();
    assert_eq!(place(&store, "early").await, name_of(&store, -1).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_was_detached_just_now_is_not_dropped() {
    let database = Database::new().await;
    let store = daily(&database).await;
    make(&store, 9).await;
    insert(&store, "kept", DONE, 9, Some(9)).await;
    let old = name_of(&store, 9).await;
    let detach = format!("ALTER TABLE outbox_event DETACH PARTITION {old}");
    // It knows by then what is old, and waits for its turn.
    let lock = "SELECT pg_advisory_xact_lock(8101821198467429236)";
    let maintained = maintain_between(&database, &store, lock, &detach).await;
    let kept: i64 =
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {old}"))).fetch_one(store.pool()).await.unwrap();
    assert_eq!(kept, 1, "{maintained:?}");
    assert_eq!(store.maintain(&a_day()).await.unwrap(), Maintained::default());
}
