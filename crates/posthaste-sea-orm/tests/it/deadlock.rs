//! Transactions that MariaDB has rolled back by itself.

use std::slice::from_ref;

use posthaste_conformance::testing::{event, told};
use posthaste_conformance::{Fixture, MariaDbFixture};
use posthaste_core::CommitError;
use posthaste_sea_orm::OutboxExt;
use sea_orm::sqlx::Executor;
use sea_orm::sqlx::mysql::MySqlPoolOptions;
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbErr, TransactionTrait};
use tokio::task::JoinHandle;

use crate::order::{place, placed};
use crate::support::Shop;

/// What loses a deadlock, once somebody else is [`ahead`].
const LOSES: &str = "UPDATE orders SET total = total + 1 WHERE id = 2";

/// A shop with orders to fight for.
async fn contended() -> Shop<MariaDbFixture> {
    let shop = Shop::<MariaDbFixture>::open().await;
    for id in 1..=9 {
        place(&shop.db, id).await;
    }
    shop
}

/// Somebody who is to win a deadlock with the transaction. Whoever waits first, the one that has changed more rows is spared.
async fn ahead(shop: &Shop<MariaDbFixture>, tx: &DatabaseTransaction) -> JoinHandle<()> {
    tx.execute_unprepared("UPDATE orders SET total = total + 1 WHERE id = 1").await.unwrap();
    let other = shop.db.begin().await.unwrap();
    other.execute_unprepared("UPDATE orders SET total = total + 1 WHERE id > 1").await.unwrap();
    tokio::spawn(async move {
        other.execute_unprepared("UPDATE orders SET total = total + 1 WHERE id = 1").await.unwrap();
        other.commit().await.unwrap();
    })
}

fn assert_lost<T>(answer: Result<T, DbErr>) {
    let error = answer.err().unwrap().to_string();
    assert!(error.contains("1213"), "{error}");
}

fn assert_refused<T>(answer: Result<T, DbErr>) {
    let error = answer.err().unwrap().to_string();
    assert!(error.contains("the transaction has ended"), "{error}");
}

/// What comes after a deadlock would be stored on its own. It is refused on `&tx`, and so is the commit.
#[tokio::test]
async fn statements_right_after() {
    let shop = contended().await;
    let undone = event("Undone");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&undone).await.unwrap();
    let spared = ahead(&shop, &tx).await;
    assert_lost(tx.execute_unprepared(LOSES).await);
    assert_refused(tx.execute_unprepared("INSERT INTO orders VALUES (10, 0)").await);
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
    spared.await.unwrap();
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, (1..=9).collect()));
    shop.close().await;
}

/// Also a statement that was there before, and waited for the one that has lost.
#[tokio::test]
async fn statements_at_the_same_time() {
    let shop = contended().await;
    let tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    let spared = ahead(&shop, &tx).await;
    let [one, other] = ["INSERT INTO orders VALUES (10, 0)", "INSERT INTO orders VALUES (11, 0)"];
    let (lost, one, other) =
        tokio::join!(tx.execute_unprepared(LOSES), tx.execute_unprepared(one), tx.execute_unprepared(other));
    assert_lost(lost);
    assert_refused(one);
    assert_refused(other);
    tx.commit().await.unwrap_err();
    spared.await.unwrap();
    assert_eq!(placed(&shop.db).await, (1..=9).collect::<Vec<_>>());
    shop.close().await;
}

/// Without `autocommit` the next statement is in a transaction again, but not in the same.
#[tokio::test]
async fn without_autocommit() {
    let shop = contended().await;
    let options = shop.fixture.store().pool().connect_options().as_ref().clone();
    let without = MySqlPoolOptions::new().max_connections(1).after_connect(|connection, _| {
        Box::pin(async move { connection.execute("SET autocommit = 0").await.map(drop) })
    });
    let without: DatabaseConnection = without.connect_with(options).await.unwrap().into();
    for (before, after) in [(true, false), (false, true), (true, true)] {
        let [undone, late] = ["Undone", "Late"].map(event);
        let mut tx = shop.outbox.begin_on(&without).await.unwrap();
        if before {
            tx.write(&undone).await.unwrap();
        }
        let spared = ahead(&shop, &tx).await;
        // As SeaORM's, which does not ask.
        assert_lost((*tx).execute_unprepared(LOSES).await);
        spared.await.unwrap();
        (*tx).execute_unprepared("INSERT INTO orders VALUES (10, 0)").await.unwrap();
        if after {
            tx.write(&late).await.unwrap();
        }
        let error = tx.commit().await.unwrap_err();
        // What was written in the other one does not tell how the first has ended.
        assert_eq!(matches!(error, CommitError::NotCommitted(_)), before, "{before}, {after}: {error:?}");
        let step = if before { "rollback" } else { "unknown" };
        let written: Vec<_> =
            [(before, undone), (after, late)].into_iter().filter(|(it, _)| *it).map(|(_, it)| it).collect();
        assert_eq!(shop.witness.told(), [told(step, &written)], "{before}, {after}");
        assert_eq!((shop.rows().await, placed(&shop.db).await), (0, (1..=9).collect()), "{before}, {after}");
    }
    // One that goes well.
    let mut tx = shop.outbox.begin_on(&without).await.unwrap();
    tx.write(event("Kept")).await.unwrap();
    place(&tx, 10).await;
    tx.commit().await.unwrap();
    assert_eq!((shop.rows().await, placed(&shop.db).await), (1, (1..=10).collect()));
    without.close().await.unwrap();
    let mut shop = shop;
    assert_eq!(shop.inbox.next().await.event_type(), "Kept");
    shop.close().await;
}
