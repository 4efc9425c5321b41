//! Futures that are dropped half-way, on a pool of one connection.

use posthaste_core::store::{Action, AdminStore, Filter, Page, Purge, Redrive, RelayStore, WriteStore};
use posthaste_core::{Event, Outbox};
use posthaste_sql::{Partitions, PgStore};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::support::{Database, claim, within, write};
use crate::support::{claim_of, cut_short, event, settle_all, unleased};

/// The one connection of the pool is outside of any transaction, to sqlx and to PostgreSQL.
async fn assert_no_transaction_is_open(store: &PgStore) {
    let mut connection = within("the connection comes back", store.pool().acquire()).await.unwrap();
    assert!(!connection.is_in_transaction());
    // Whoever is inside a transaction began it in an earlier message than this one.
    let outside = "SELECT statement_timestamp() = transaction_timestamp(), pg_current_xact_id_if_assigned() IS NULL";
    let row = sqlx::raw_sql(outside).fetch_one(&mut *connection).await.unwrap();
    assert!(row.get::<bool, _>(0) && row.get::<bool, _>(1), "the connection came back inside a transaction");
}

/// Drops a call after one poll, after two, and so on until it comes to its end.
async fn cut_everywhere<T>(store: &PgStore, call: impl AsyncFn() -> T) {
    cut_everywhere_after(store, async |_| {}, async |()| call().await).await;
}

/// The same for a call that needs something to work on, made anew each time.
async fn cut_everywhere_after<P, T>(
    store: &PgStore,
    mut prepare: impl AsyncFnMut(usize) -> P,
    call: impl AsyncFn(P) -> T,
) {
    let (mut cut, mut calls) = (0, 0);
    // A server that is quick may have answered before the first poll is over: then once more.
    for _ in 0..50 {
        for polls in 1.. {
            calls += 1;
            let finished = cut_short(polls, call(prepare(calls).await)).await.is_some();
            assert_no_transaction_is_open(store).await;
            if finished {
                break;
            }
            cut += 1;
        }
        if cut > 0 {
            return;
        }
    }
    panic!("it was never cut");
}

#[tokio::test]
async fn begin_write_and_commit_leave_no_open_transaction_and_no_half_one() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let outbox = Outbox::writer_only(store.clone().without_wake_ups()).start().await.unwrap();
    let events = async |polls| (0..100).map(|n| event(&format!("{polls}-{n}"))).collect::<Vec<Event>>();
    cut_everywhere_after(&store, events, async |events| {
        let mut tx = outbox.begin().await.unwrap();
        tx.write_all(events).await.unwrap();
        tx.commit().await.unwrap();
    })
    .await;
    let rows = store.counts().await.unwrap().total();
    assert!(rows >= 100 && rows % 100 == 0, "{rows}");
}

#[tokio::test]
async fn begin_alone_leaves_no_open_transaction() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let outbox = Outbox::writer_only(store.clone().without_wake_ups()).start().await.unwrap();
    cut_everywhere(&store, async || drop(outbox.begin().await.unwrap())).await;
    // What is written next is not lost in a transaction that nobody knows of.
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("kept")).await.unwrap();
    tx.commit().await.unwrap();
    store.pool().close().await;
    assert_eq!(database.store().await.counts().await.unwrap().new, 1);
}

/// The outbox runs a BEGIN to its end. Who uses the store by himself may drop it.
#[tokio::test]
async fn a_begin_of_the_store_that_was_dropped_leaves_no_open_transaction() {
    let database = Database::new().await;
    for store in [database.store_of_one().await, database.store_of_one().await.reusing_connections()] {
        cut_everywhere(&store, async || drop(store.begin().await.unwrap())).await;
        // On one that comes from the transaction before, too.
        let committed = async |polls: usize| {
            let mut tx = store.begin().await.unwrap();
            store.insert(&mut tx, &unleased([event(&polls.to_string())])).await.unwrap();
            store.commit_inserted(tx).await.unwrap();
        };
        cut_everywhere_after(&store, committed, async |()| drop(store.begin().await.unwrap())).await;
        sqlx::raw_sql("DELETE FROM outbox_event").execute(store.pool()).await.unwrap();
    }
}

#[tokio::test]
async fn a_relays_calls_leave_no_open_transaction() {
    let database = Database::new().await;
    let store = &database.store_of_one().await;
    write(store, (0..1000).map(|n| event(&n.to_string()))).await;
    cut_everywhere(store, async || store.claim(&claim_of(100)).await.unwrap()).await;
    for action in [Action::Done, Action::Dead { error: "no".to_owned(), counts: true }] {
        let claimed = async |_| {
            store.release_all().await.unwrap();
            let (lease, claimed) = claim(store, 10).await;
            settle_all(&lease, &claimed, &action)
        };
        let settle = async |settlements: Vec<_>| store.settle(&settlements).await.unwrap();
        cut_everywhere_after(store, claimed, settle).await;
    }
    let (lease, claimed) = claim(store, 10).await;
    let leases: Vec<_> = claimed.rows.iter().map(|row| (row.event.id().clone(), lease.clone())).collect();
    cut_everywhere(store, async || store.renew(&leases).await.unwrap()).await;
    cut_everywhere(store, async || store.release_all().await.unwrap()).await;
}

#[tokio::test]
async fn an_operators_calls_leave_no_open_transaction() {
    let database = Database::new().await;
    let store = &database.store_of_one().await;
    write(store, (0..100).map(|n| event(&n.to_string()))).await;
    let purge = Purge { any_after: Some(std::time::Duration::from_secs(60)), ..Purge::default() };
    let redrive = Redrive::matching(Filter::default());
    cut_everywhere(store, async || store.counts().await.unwrap()).await;
    cut_everywhere(store, async || store.list(&Filter::default(), &Page::default()).await.unwrap()).await;
    cut_everywhere(store, async || store.redrive(&redrive).await.unwrap()).await;
    cut_everywhere(store, async || store.purge(&purge).await.unwrap()).await;
    let other = async |polls| store.clone().with_table(&format!("t{polls}")).unwrap();
    cut_everywhere_after(store, other, async |other| other.migrate().await.unwrap()).await;
}

#[tokio::test]
async fn maintenance_leaves_no_open_transaction_and_no_half_partition() {
    let database = Database::new().await;
    let store = database.store_of_one().await.with_table("parts").unwrap().partitioned(Partitions::daily());
    store.migrate().await.unwrap();
    let count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'parts'::regclass";
    let forget = "SELECT format('DROP TABLE %s', inhrelid::regclass) FROM pg_inherits \
                  WHERE inhparent = 'parts'::regclass ORDER BY inhrelid::regclass::text DESC LIMIT 1";
    let forget = async |_| {
        // One that was cut may have come to its end on the server, or may still be about to.
        while store.maintain(&Purge::default()).await.is_err() {}
        let forget: String = sqlx::query_scalar(forget).fetch_one(store.pool()).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(forget)).execute(store.pool()).await.unwrap();
    };
    cut_everywhere_after(&store, forget, async |()| store.maintain(&Purge::default()).await).await;
    let parts: i64 = sqlx::query_scalar(count).fetch_one(store.pool()).await.unwrap();
    assert_eq!(parts, 5);
}
