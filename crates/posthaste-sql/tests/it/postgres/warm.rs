//! Connections that go from one transaction to the next.

use std::future::Future;
use std::time::Duration;

use posthaste_core::store::{AdminStore, NewRow, RelayStore, WriteStore};
use posthaste_sql::PgStore;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::support::{Database, eventually, sql, within};
use crate::support::{claim_of, event};

/// Longer than a connection waits for the next transaction.
const LATER: Duration = Duration::from_millis(500);

/// Writes an event in a transaction of its own, and tells which backend did it.
async fn write_one(store: &PgStore, id: &str) -> i32 {
    let mut tx = store.begin().await.unwrap();
    let backend = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
    store.insert(&mut tx, &[NewRow::new(event(id))]).await.unwrap();
    store.commit_inserted(tx).await.unwrap();
    backend
}

async fn reusing(database: &Database, connections: u32) -> PgStore {
    let store = database.store_with(PgPoolOptions::new().max_connections(connections)).await.reusing_connections();
    store.migrate().await.unwrap();
    store
}

#[tokio::test]
async fn a_connection_goes_to_the_next_transaction_without_its_pool() {
    let database = Database::new().await;
    let store = reusing(&database, 8).await;
    write_one(&store, "0").await;
    eventually("all are back", async || store.pool().num_idle() == store.pool().size() as usize).await;
    let (size, idle) = (store.pool().size(), store.pool().num_idle());
    let first = write_one(&store, "a").await;
    assert_eq!((store.pool().size(), store.pool().num_idle() + 1), (size, idle), "it did not wait for the next one");
    assert_eq!(write_one(&store, "b").await, first);
    eventually("it is given back", async || (store.pool().size(), store.pool().num_idle()) == (size, idle)).await;
    store.close().await;
}

#[tokio::test]
async fn a_pool_that_has_no_other_gets_it_back_at_once() {
    let database = Database::new().await;
    let store = reusing(&database, 1).await;
    for id in ["a", "b", "c"] {
        write_one(&store, id).await;
        let asked = within("the pool has it", store.pool().acquire()).await;
        drop(asked.unwrap());
    }
    store.close().await;
}

#[tokio::test]
async fn the_pool_sees_each_connection_now_and_then() {
    let database = Database::new().await;
    let lifetime = Duration::from_millis(200);
    let pool = PgPoolOptions::new().max_connections(8).max_lifetime(lifetime).test_before_acquire(false);
    let store = database.store_with(pool).await.reusing_connections();
    store.migrate().await.unwrap();
    let first = write_one(&store, "first").await;
    let others = async {
        for number in 0.. {
            if write_one(&store, &number.to_string()).await != first {
                break;
            }
        }
    };
    within("it is too old", others).await;
    store.close().await;
}

#[tokio::test]
async fn one_that_the_server_has_ended_meanwhile_is_passed_by() {
    let database = Database::new().await;
    let store = reusing(&database, 8).await;
    let first = write_one(&store, "a").await;
    database.terminate("pid <> pg_backend_pid()").await;
    assert_ne!(write_one(&store, "b").await, first);
    store.close().await;
}

#[tokio::test]
async fn closing_does_not_wait_for_it_and_leaves_nothing() {
    let database = Database::new().await;
    let store = reusing(&database, 8).await;
    write_one(&store, "a").await;
    within("it is closed", store.close()).await;
    assert!(store.begin().await.is_err());
    eventually("nothing is left", async || database.backends("pid <> pg_backend_pid()").await == 0).await;
}

#[test]
fn a_commit_on_a_runtime_that_has_ended_does_not_hang() {
    let (runtime, other) = (tokio::runtime::Runtime::new().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let (_database, store, tx) = runtime.block_on(async {
        let database = Database::new().await;
        let store = reusing(&database, 8).await;
        write_one(&store, "a").await;
        sleep(LATER).await;
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut tx, &[NewRow::new(event("b"))]).await.unwrap();
        (database, store, tx)
    });
    let ended = other.handle().clone();
    drop(other);
    let committed = runtime.block_on(async {
        let committing = store.commit_inserted(tx);
        tokio::pin!(committing);
        // As a worker of a runtime that ends meanwhile would.
        std::future::poll_fn(|context| {
            let _inside = ended.enter();
            committing.as_mut().poll(context)
        })
        .await
    });
    committed.unwrap();
    runtime.block_on(write_one(&store, "c"));
}

#[test]
fn a_store_may_be_dropped_outside_of_its_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(async {
        let database = Database::new().await;
        let pool = PgPoolOptions::new().max_connections(8).min_connections(2);
        let store = database.store_with(pool).await.reusing_connections();
        store.migrate().await.unwrap();
        write_one(&store, "a").await;
        store
    });
    drop(store);
    drop(runtime);
}

#[test]
fn a_store_may_outlive_its_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = runtime.block_on(async {
        let database = Database::new().await;
        let store = reusing(&database, 8).await;
        write_one(&store, "a").await;
        store
    });
    drop(runtime);
    drop(store);
}

#[tokio::test]
async fn a_transaction_that_was_rolled_back_or_dropped_leaves_nothing_open() {
    let database = Database::new().await;
    let store = reusing(&database, 1).await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &[NewRow::new(event("a"))]).await.unwrap();
    store.rollback(tx).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &[NewRow::new(event("a"))]).await.unwrap();
    store.savepoint(&mut tx).await.unwrap();
    drop(tx);
    write_one(&store, "a").await;
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_event").fetch_one(store.pool()).await.unwrap();
    assert_eq!(rows, 1);
    store.close().await;
}

/// A pool of sqlx asks such a server for another connection until its time is up, and sees nothing of those that come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_starves_where_the_server_allows_fewer_connections_than_the_pool() {
    let database = Database::new().await;
    let superuser = database.store().await;
    let role = format!("posthaste_{}_limited", std::process::id());
    let create = format!(
        "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN CONNECTION LIMIT 2 IN ROLE pg_read_all_data, pg_write_all_data"
    );
    sql(&superuser, create).await;
    let pool = PgPoolOptions::new().max_connections(8).acquire_timeout(Duration::from_secs(10));
    let pool = pool.connect_with(database.options().username(&role)).await.unwrap();
    let store = PgStore::new(pool).reusing_connections();

    let mut tasks = JoinSet::new();
    for writer in 0..6 {
        let store = store.clone();
        tasks.spawn(async move {
            for number in 0..50 {
                write_one(&store, &format!("{writer}-{number}")).await;
            }
        });
    }
    let relay = store.clone();
    tasks.spawn(async move {
        for _ in 0..20 {
            relay.claim(&claim_of(10)).await.unwrap();
        }
    });
    timeout(Duration::from_secs(60), tasks.join_all()).await.expect("somebody starves");
    assert_eq!(superuser.counts().await.unwrap().total(), 300);
    store.close().await;
    sql(&superuser, format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
