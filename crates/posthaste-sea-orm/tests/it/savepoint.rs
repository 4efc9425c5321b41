//! Savepoints that the outbox knows.

use std::slice::from_ref;

use posthaste_conformance::PgFixture;
use posthaste_conformance::testing::{event, event_with_id, told};
use posthaste_core::listener::Path;
use posthaste_sea_orm::OutboxExt;
use sea_orm::ConnectionTrait;

use crate::order::{place, placed};
use crate::support::{Sea, Shop};

crate::tests! { every: undone, dropped, kept, inside_of_another, refused_insert }

/// What was undone is gone, is never delivered, and the hook hears of it; the rest goes on.
async fn undone<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let (before, inside, after) = (event("Before"), event("Inside"), event("After"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    place(&*tx, 1).await;
    tx.write(&before).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    place(&*savepoint, 2).await;
    savepoint.write(&inside).await.unwrap();
    savepoint.rollback().await.unwrap();
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&inside))]);
    place(&*tx, 3).await;
    tx.write(&after).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.witness.told(), [told("commit", &[before.clone(), after.clone()])]);
    assert_eq!(placed(&shop.db).await, [1, 3]);
    for event in [&before, &after] {
        let delivery = shop.inbox.next().await;
        assert_eq!((delivery.id(), delivery.path()), (event.id(), Path::Hot));
    }
    assert_eq!(shop.rows().await, 2);
    shop.close().await;
}

/// Dropped, it is undone before the next statement.
async fn dropped<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let (inside, after) = (event("Inside"), event("After"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    place(&savepoint, 2).await;
    savepoint.write(&inside).await.unwrap();
    drop(savepoint);
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&inside))]);
    place(&tx, 3).await;
    tx.write(&after).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(placed(&shop.db).await, [3]);
    assert_eq!(shop.inbox.next().await.id(), after.id());
    assert_eq!(shop.rows().await, 1);
    shop.close().await;
}

/// What was kept is delivered with the rest, by the hot path, and not before.
async fn kept<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let (before, inside, after) = (event("Before"), event("Inside"), event("After"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&before).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    place(&*savepoint, 2).await;
    savepoint.write(&inside).await.unwrap();
    savepoint.commit().await.unwrap();
    assert_eq!(shop.witness.told(), []);
    tx.write(&after).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.witness.told(), [told("commit", &[before.clone(), inside.clone(), after.clone()])]);
    for event in [&before, &inside, &after] {
        let delivery = shop.inbox.next().await;
        assert_eq!((delivery.id(), delivery.path()), (event.id(), Path::Hot));
    }
    assert_eq!(placed(&shop.db).await, [2]);
    shop.close().await;
}

/// What an outer one undoes is undone, although an inner one kept it.
async fn inside_of_another<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let events = [event("Inner"), event("Outer"), event("Whole")];
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    let mut outer = tx.savepoint().await.unwrap();
    let mut inner = outer.savepoint().await.unwrap();
    place(&**inner, 1).await;
    inner.write(&events[0]).await.unwrap();
    inner.commit().await.unwrap();
    outer.write(&events[1]).await.unwrap();
    let mut inner = outer.savepoint().await.unwrap();
    inner.write(event("Undone")).await.unwrap();
    inner.rollback().await.unwrap();
    shop.witness.told();
    outer.rollback().await.unwrap();
    assert_eq!(shop.witness.told(), [told("rollback", &[events[0].clone(), events[1].clone()])]);
    tx.write(&events[2]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.inbox.next().await.id(), events[2].id());
    assert_eq!((shop.rows().await, placed(&shop.db).await), (1, vec![]));
    shop.close().await;
}

/// A refused insert in a savepoint leaves the transaction as it was, on every database.
async fn refused_insert<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let before = event_with_id("taken");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&before).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event_with_id("taken")).await.unwrap_err();
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.witness.told(), [told("commit", from_ref(&before))]);
    assert_eq!(shop.inbox.next().await.id(), before.id());
    shop.close().await;
}

/// What PostgreSQL cannot keep, because a statement had failed, is undone, and the transaction goes on.
#[tokio::test]
async fn kept_after_an_error() {
    let mut shop = Shop::<PgFixture>::open().await;
    let (inside, after) = (event("Inside"), event("After"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(&inside).await.unwrap();
    savepoint.execute_unprepared("INSERT INTO nowhere VALUES (1)").await.unwrap_err();
    savepoint.commit().await.unwrap_err();
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&inside))]);
    tx.write(&after).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.inbox.next().await.id(), after.id());
    assert_eq!(shop.rows().await, 1);
    shop.close().await;
}

/// A savepoint in a transaction that has failed is refused, and so is all that follows.
#[tokio::test]
async fn refused() {
    let shop = Shop::<PgFixture>::open().await;
    let undone = event("Undone");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&undone).await.unwrap();
    tx.execute_unprepared("INSERT INTO nowhere VALUES (1)").await.unwrap_err();
    drop(tx.savepoint().await.unwrap_err());
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    tx.write(event("Late")).await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}
