//! Connections that go from one transaction to the next.

use std::time::Duration;

use posthaste_core::store::{AdminStore, NewRow, RelayStore, WriteStore};
use posthaste_sql::MySqlStore;
use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlPoolOptions;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Database;
use crate::support::{claim_of, event};

/// Much longer than a connection waits for the next transaction.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

/// Writes an event in a transaction of its own, and tells which connection did it.
async fn write_one(store: &MySqlStore, id: &str) -> u64 {
    let mut tx = store.begin().await.unwrap();
    let connection = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut *tx).await.unwrap();
    store.insert(&mut tx, &[NewRow::new(event(id))]).await.unwrap();
    store.commit_inserted(tx).await.unwrap();
    connection
}

async fn reusing(database: &Database, connections: u32) -> MySqlStore {
    let pool = MySqlPoolOptions::new().max_connections(connections).connect_with(database.options()).await.unwrap();
    let store = MySqlStore::new(pool).reusing_connections();
    store.migrate().await.unwrap();
    store
}

#[tokio::test]
async fn a_connection_goes_to_the_next_transaction_without_its_pool() {
    let database = Database::new().await;
    let store = reusing(&database, 8).await;
    write_one(&store, "a").await;
    until("all are back", || store.pool().num_idle() == store.pool().size() as usize).await;
    let (size, idle) = (store.pool().size(), store.pool().num_idle());
    let last = write_one(&store, "b").await;
    // A server that cannot say in the insert itself whether a transaction is open has the commit ask; sqlx then has to end
    // what it counts as open, and the pool sees to that.
    let kept = store.pool().num_idle() + 1 == idle;
    assert!(kept || !is_mariadb(&store).await, "it did not wait for the next one");
    assert_eq!(write_one(&store, "c").await, last);
    until("it is given back", || (store.pool().size(), store.pool().num_idle()) == (size, idle)).await;
    store.close().await;
}

async fn is_mariadb(store: &MySqlStore) -> bool {
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(store.pool()).await.unwrap();
    version.contains("MariaDB")
}

#[tokio::test]
async fn a_pool_that_has_no_other_gets_it_back_at_once() {
    let database = Database::new().await;
    let store = reusing(&database, 1).await;
    for id in ["a", "b", "c"] {
        write_one(&store, id).await;
        let asked = timeout(PATIENCE, store.pool().acquire()).await.expect("the pool has nothing");
        drop(asked.unwrap());
    }
    store.close().await;
}

#[tokio::test]
async fn one_that_the_server_has_ended_meanwhile_is_passed_by() {
    let database = Database::new().await;
    let store = reusing(&database, 8).await;
    let first = write_one(&store, "a").await;
    let mut other = database.connection().await;
    sqlx::raw_sql(AssertSqlSafe(format!("KILL {first}"))).execute(&mut other).await.unwrap();
    assert_ne!(write_one(&store, "b").await, first);
    store.close().await;
}

/// A pool of sqlx says at once that such a server has no room, and sees nothing of those that come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_starves_where_the_server_allows_fewer_connections_than_the_pool() {
    let database = Database::new().await;
    let unlimited = database.store().await;
    let limited = database.user("WITH MAX_USER_CONNECTIONS 2").await;
    let pool = MySqlPoolOptions::new().max_connections(8).acquire_timeout(Duration::from_secs(10));
    let store = MySqlStore::new(pool.connect_with(limited).await.unwrap()).reusing_connections();

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
    assert_eq!(unlimited.counts().await.unwrap().total(), 300);
    store.close().await;
}
