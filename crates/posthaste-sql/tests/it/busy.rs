//! Other transactions in the way.

use std::pin::pin;
use std::time::Duration;

use posthaste_core::Event;
use posthaste_core::store::{Error, RelayStore, WriteStore};
use posthaste_sql::SqliteStore;

use crate::support::{Database, chain, claim, claim_of, event, ids, unleased, write};

/// A transaction of somebody else that writes, and that many statements in it, while the future must not finish.
async fn hold_up(pool: &sqlx::SqlitePool, mut held_up: std::pin::Pin<&mut impl Future>) {
    let mut foreign = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let statements = async {
        for _ in 0..200 {
            sqlx::query("UPDATE outbox_event SET topic = 'x'").execute(&mut *foreign).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = held_up.as_mut() => panic!("it wrote beside another transaction"),
        () = statements => {}
    }
    foreign.commit().await.unwrap();
}

#[tokio::test]
async fn claims_and_settlements_wait_for_a_foreign_transaction() {
    let database = Database::new();
    let store = database.impatient_store().await;
    let foreign = database.pool(1, Duration::ZERO).await;
    write(&store, [event("1")]).await;

    let claim = claim_of(10);
    let mut claiming = pin!(store.claim(&claim));
    hold_up(&foreign, claiming.as_mut()).await;
    let claimed = claiming.await.unwrap();
    assert_eq!(ids(&claimed), ["1"]);

    let settlements = crate::support::settle_all(&claim.lease, &claimed, &posthaste_core::store::Action::Release);
    let mut settling = pin!(store.settle(&settlements));
    hold_up(&foreign, settling.as_mut()).await;
    assert_eq!(settling.await.unwrap(), [posthaste_core::store::Settled::Applied]);
}

#[tokio::test]
async fn begin_says_that_another_process_writes() {
    let database = Database::new();
    let store = database.impatient_store().await;
    let foreign = database.pool(1, Duration::ZERO).await.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = store.begin().await.unwrap_err();
    assert!(matches!(error, Error::Busy(_)) && error.is_transient(), "{error:?}");
    foreign.rollback().await.unwrap();
    store.begin().await.unwrap();
}

#[tokio::test]
async fn begin_says_that_this_process_writes() {
    let database = Database::new();
    let store = database.store().await;
    let open = store.begin().await.unwrap();
    // From here on nobody waits for anything but the gate.
    tokio::time::pause();
    let error = store.begin().await.unwrap_err();
    assert!(matches!(error, Error::Busy(_)), "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("another transaction of this process"), "{source}");
    tokio::time::resume();
    drop(open);
    store.begin().await.unwrap();
}

#[tokio::test]
async fn errors_have_kinds() {
    let database = Database::new();
    let store = SqliteStore::open(database.path()).await.unwrap();
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Schema { table, .. } if table == "outbox_event"), "{error:?}");
    assert!(error.to_string().contains("call migrate() first"), "{error}");

    store.pool().close().await;
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");

    let error = SqliteStore::open("/nowhere/at/all.db").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(chain(&error).contains("see that its directory exists"), "{}", chain(&error));
}

#[tokio::test]
async fn what_somebody_can_mend_says_how() {
    let database = Database::new();
    let store = database.store_of_one().await;
    let refused = async |store: &SqliteStore| {
        let mut tx = store.begin().await?;
        let large = Event::builder("Happened").bytes(vec![0; 1 << 20]).build().unwrap();
        store.insert(&mut tx, &unleased([large])).await
    };
    sqlx::query("PRAGMA max_page_count = 50").execute(store.pool()).await.unwrap();
    let error = refused(&store).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)) && chain(&error).contains("make room"), "{}", chain(&error));

    let readable = SqliteStore::connect(&format!("sqlite:{}?mode=ro", database.path().display())).await.unwrap();
    let error = refused(&readable).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(chain(&error).contains("let this process write to it"), "{}", chain(&error));

    let other = Database::new();
    std::fs::write(other.path(), "something else that is long enough to be looked at, ".repeat(20)).unwrap();
    let error = SqliteStore::open(other.path()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)) && chain(&error).contains("choose another"), "{}", chain(&error));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_and_claimers_all_get_their_turn() {
    let database = Database::new();
    let store = database.store().await;
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..10 {
                    write(&store, [event(&format!("{task}-{n}"))]).await;
                    claim(&store, 1).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
