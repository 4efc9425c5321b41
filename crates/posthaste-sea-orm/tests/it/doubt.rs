//! Savepoints that SeaORM sets, of which the outbox is not told.

use posthaste_conformance::testing::{event, told};
use posthaste_core::listener::Path;
use posthaste_sea_orm::OutboxExt;
use sea_orm::TransactionTrait;

use crate::order::{place, placed};
use crate::support::{Sea, Shop};

crate::tests! { every:
    receipt_in_one_that_is_undone,
    receipt_in_one_that_is_kept,
    transaction_around_one_that_is_undone,
    transaction_around_one_that_is_kept,
    known_one_around_one_that_is_undone,
    transaction_around_a_forgotten_one,
}

/// Its row is gone, so it is never delivered, although its receipt was told that the transaction was committed.
async fn receipt_in_one_that_is_undone<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let txn = shop.db.begin().await.unwrap();
    place(&txn, 1).await;
    let nested = txn.begin().await.unwrap();
    place(&nested, 2).await;
    let receipt = shop.outbox.write_in(&nested, event("Undone")).await.unwrap();
    nested.rollback().await.unwrap();
    txn.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![1]));
    shop.close().await;
}

async fn receipt_in_one_that_is_kept<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let kept = event("Kept");
    let txn = shop.db.begin().await.unwrap();
    let nested = txn.begin().await.unwrap();
    let receipt = shop.outbox.write_in(&nested, &kept).await.unwrap();
    nested.commit().await.unwrap();
    txn.commit().await.unwrap();
    receipt.dispatch();
    let delivery = shop.inbox.next().await;
    assert_eq!((delivery.id(), delivery.path()), (kept.id(), Path::Cold));
    shop.close().await;
}

/// Written by the transaction while SeaORM had one open in it: the row is gone, and nothing is delivered for it.
async fn transaction_around_one_that_is_undone<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let (before, undone) = (event("Before"), event("Undone"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&before).await.unwrap();
    let nested = tx.begin().await.unwrap();
    tx.write(&undone).await.unwrap();
    nested.rollback().await.unwrap();
    tx.commit().await.unwrap();
    let delivery = shop.inbox.next().await;
    let path = if F::TELLS { Path::Hot } else { Path::Cold };
    assert_eq!((delivery.id(), delivery.path()), (before.id(), path));
    assert_eq!(shop.rows().await, 1);
    shop.close().await;
}

async fn transaction_around_one_that_is_kept<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let (before, inside) = (event("Before"), event("Inside"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&before).await.unwrap();
    let nested = tx.begin().await.unwrap();
    place(&nested, 1).await;
    tx.write(&inside).await.unwrap();
    nested.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.witness.told(), [told("commit", &[before.clone(), inside.clone()])]);
    for event in [&before, &inside] {
        let delivery = shop.inbox.next().await;
        assert_eq!((delivery.id(), delivery.path()), (event.id(), Path::Hot));
    }
    shop.close().await;
}

/// The same in a savepoint of the outbox, where PostgreSQL says nothing new.
async fn known_one_around_one_that_is_undone<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    let nested = savepoint.begin().await.unwrap();
    savepoint.write(event("Undone")).await.unwrap();
    nested.rollback().await.unwrap();
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}

/// One that nobody has ended when the transaction is committed: all of it is committed, before anything is delivered.
async fn transaction_around_a_forgotten_one<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let (before, inside) = (event("Before"), event("Inside"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&before).await.unwrap();
    let forgotten = tx.begin().await.unwrap();
    let another = forgotten.begin().await.unwrap();
    place(&another, 1).await;
    tx.write(&inside).await.unwrap();
    tx.commit().await.unwrap();
    for event in [&before, &inside] {
        assert_eq!(shop.inbox.next().await.id(), event.id());
    }
    drop(another);
    drop(forgotten);
    shop.fixture.assert_no_open_transaction().await;
    assert_eq!((shop.rows().await, placed(&shop.db).await), (2, vec![1]));
    shop.close().await;
}
