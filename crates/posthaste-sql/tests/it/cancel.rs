//! Futures that are dropped half-way.

use posthaste_core::Event;
use posthaste_core::store::{Action, RelayStore, WriteStore};
use posthaste_sql::SqliteStore;
use sqlx::Connection;

use crate::support::{Database, claim, claim_of, cut_short, event, settle_all, unleased, write};

/// The one connection of the pool is outside of any transaction, to sqlx and to SQLite.
async fn assert_no_transaction_is_open(store: &SqliteStore) {
    let mut connection = store.pool().acquire().await.unwrap();
    assert!(!connection.is_in_transaction());
    sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(&mut *connection).await.unwrap();
}

#[tokio::test]
async fn begin_insert_and_commit_leave_no_open_transaction() {
    let database = Database::new();
    let store = database.store_of_one().await;
    let mut cut = 0;
    for polls in 1.. {
        // Never as many as the last time: that would be one statement.
        let events: Vec<Event> = (0..1000 + polls % 2).map(|n| event(&format!("{polls}-{n}"))).collect();
        let whole = async {
            let mut tx = store.begin().await.unwrap();
            store.insert(&mut tx, &unleased(events)).await.unwrap();
            store.commit(tx).await.unwrap();
        };
        let finished = cut_short(polls, whole).await.is_some();
        assert_no_transaction_is_open(&store).await;
        if finished {
            break;
        }
        cut += 1;
    }
    assert!(cut > 3, "it was cut {cut} times only");
}

#[tokio::test]
async fn claim_settle_and_migrate_leave_no_open_transaction() {
    let database = Database::new();
    let store = database.store_of_one().await;
    write(&store, (0..1000).map(|n| event(&n.to_string()))).await;
    for polls in 1.. {
        let finished = cut_short(polls, store.claim(&claim_of(100))).await.is_some();
        assert_no_transaction_is_open(&store).await;
        if finished {
            break;
        }
    }
    for polls in 1.. {
        store.release_all().await.unwrap();
        let (lease, claimed) = claim(&store, 100).await;
        let settlements = settle_all(&lease, &claimed, &Action::Done);
        let finished = cut_short(polls, store.settle(&settlements)).await.is_some();
        assert_no_transaction_is_open(&store).await;
        if finished {
            break;
        }
    }
    for polls in 1.. {
        let other = store.clone().with_table(&format!("t{polls}")).unwrap();
        let finished = cut_short(polls, other.migrate()).await.is_some();
        assert_no_transaction_is_open(&store).await;
        if finished {
            break;
        }
    }
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back_before_the_next_begins() {
    let database = Database::new();
    let store = database.store_of_one().await;
    for n in 0..20 {
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut tx, &unleased([event(&n.to_string())])).await.unwrap();
        drop(tx);
    }
    assert!(claim(&store, 10).await.1.rows.is_empty());
}
