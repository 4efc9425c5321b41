//! Transactions that MariaDB has rolled back by itself.

use std::slice::from_ref;

use posthaste_conformance::MariaDbFixture;
use posthaste_conformance::testing::{event, told};
use posthaste_core::CommitError;
use posthaste_sea_orm::OutboxExt;
use sea_orm::{ConnectionTrait, TransactionTrait};

use crate::order::{place, placed};
use crate::support::Shop;

/// What comes after a deadlock would be stored on its own. It is refused on `&tx`, and so is the commit.
#[tokio::test]
async fn statements_right_after() {
    let shop = Shop::<MariaDbFixture>::open().await;
    for id in 1..=9 {
        place(&shop.db, id).await;
    }
    let undone = event("Undone");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.execute_unprepared("UPDATE orders SET total = 1 WHERE id = 1").await.unwrap();
    tx.write(&undone).await.unwrap();

    // Whoever waits first, the one that has changed more rows is spared.
    let other = shop.db.begin().await.unwrap();
    other.execute_unprepared("UPDATE orders SET total = 2 WHERE id > 1").await.unwrap();
    let spared = tokio::spawn(async move {
        other.execute_unprepared("UPDATE orders SET total = 2 WHERE id = 1").await.unwrap();
        other.commit().await.unwrap();
    });
    let error = tx.execute_unprepared("UPDATE orders SET total = 1 WHERE id = 2").await.unwrap_err();
    assert!(error.to_string().contains("1213"), "{error}");
    let error = tx.execute_unprepared("INSERT INTO orders VALUES (10, 0)").await.unwrap_err();
    assert!(error.to_string().contains("the transaction has ended"), "{error}");
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
    spared.await.unwrap();
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, (1..=9).collect()));
    shop.close().await;
}
