//! Savepoints: of the outbox, of the library, and by statements of somebody's own.

use posthaste_conformance::testing::event_with_id as event;
use posthaste_core::WriteError;
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_tokio_postgres::OutboxExt;

use crate::support::{Database, told};

#[tokio::test]
async fn what_a_savepoint_undoes_is_never_delivered() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("before")).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("undone")).await.unwrap();
    let mut inner = savepoint.savepoint().await.unwrap();
    inner.write(event("undone with it")).await.unwrap();
    inner.commit().await.unwrap();
    savepoint.rollback().await.unwrap();
    assert_eq!(witness.told(), [told("rollback", &["undone", "undone with it"])]);
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("dropped")).await.unwrap();
    drop(savepoint);
    assert_eq!(witness.told(), [told("rollback", &["dropped"])]);
    tx.write(event("after")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &["before", "after"])]);
    let mut arrived = [inbox.arrival().await, inbox.arrival().await];
    arrived.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    assert_eq!(arrived, [("after".to_owned(), Path::Hot), ("before".to_owned(), Path::Hot)]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 2);
}

#[tokio::test]
async fn what_a_savepoint_keeps_is_delivered_with_the_rest() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("kept")).await.unwrap();
    let mut inner = savepoint.savepoint().await.unwrap();
    inner.write(event("undone")).await.unwrap();
    inner.rollback().await.unwrap();
    savepoint.commit().await.unwrap();
    assert_eq!(witness.told(), [told("rollback", &["undone"])], "nothing is known of the rest");
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &["kept"])]);
    assert_eq!(inbox.arrival().await, ("kept".to_owned(), Path::Hot));

    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("undone after all")).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(witness.told(), [told("rollback", &["undone after all"])]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 1);
}

/// One by a statement of somebody's own, around a savepoint of ours or in it, may undo what ours keeps.
#[tokio::test]
async fn what_somebody_undoes_around_a_savepoint_or_in_it_is_never_delivered() {
    let database = Database::new().await;
    let (outbox, _, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.batch_execute("SAVEPOINT around").await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("undone around")).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.batch_execute("ROLLBACK TO around; RELEASE around").await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.batch_execute("SAVEPOINT inside").await.unwrap();
    savepoint.write(event("undone inside")).await.unwrap();
    savepoint.batch_execute("ROLLBACK TO inside").await.unwrap();
    // The write after it does not make that forgotten.
    savepoint.write(event("kept")).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("kept".to_owned(), Path::Hot));

    // What was not undone comes all the same.
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("not undone")).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.batch_execute("SELECT 1").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("not undone".to_owned(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 2);
}

#[tokio::test]
async fn a_savepoint_saves_a_transaction_from_a_refused_write() {
    let database = Database::new().await;
    let (outbox, _, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("taken")).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    let error = savepoint.write(event("taken")).await.unwrap_err();
    assert!(matches!(error, WriteError::Store { error: Error::DuplicateId { .. }, .. }), "{error:?}");
    // It can not be kept any more, and is undone instead.
    savepoint.commit().await.unwrap_err();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("taken")).await.unwrap_err();
    savepoint.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("taken".to_owned(), Path::Hot));
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A savepoint of the library: nobody says how it ends, so the poller looks.
#[tokio::test]
async fn savepoints_of_the_library_are_left_to_the_poller() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = client.transaction().await.unwrap();
    let outer = outbox.write_in(&tx, event("outer")).await.unwrap();
    let savepoint = tx.transaction().await.unwrap();
    let undone = outbox.write_in(&savepoint, event("undone")).await.unwrap();
    savepoint.rollback().await.unwrap();
    let savepoint = tx.savepoint("named").await.unwrap();
    let kept = outbox.write_all_in(&savepoint, [event("kept"), event("kept as well")]).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    outer.and(undone).and(kept).dispatch();
    assert_eq!(witness.told(), [told("commit", &["outer"]), told("unknown", &["undone", "kept", "kept as well"])]);
    let mut arrived = [inbox.arrival().await, inbox.arrival().await, inbox.arrival().await];
    arrived.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let expected = [("kept", Path::Cold), ("kept as well", Path::Cold), ("outer", Path::Hot)];
    assert_eq!(arrived, expected.map(|(id, path)| (id.to_owned(), path)));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 3);
}

/// So is one that somebody sets in a transaction of the outbox by a statement of his own.
#[tokio::test]
async fn savepoints_by_hand_are_left_to_the_poller() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.batch_execute("SAVEPOINT mine").await.unwrap();
    tx.write(event("undone")).await.unwrap();
    tx.batch_execute("ROLLBACK TO mine; RELEASE mine").await.unwrap();
    tx.write(event("plain")).await.unwrap();
    let inner = tx.transaction().await.unwrap();
    let receipt = outbox.write_in(&inner, event("inner")).await.unwrap();
    inner.commit().await.unwrap();
    tx.commit().await.unwrap();
    receipt.dispatch();
    let expected = [told("unknown", &["undone"]), told("commit", &["plain"]), told("unknown", &["inner"])];
    assert_eq!(witness.told(), expected);
    let mut arrived = [inbox.arrival().await, inbox.arrival().await];
    arrived.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    assert_eq!(arrived, [("inner".to_owned(), Path::Cold), ("plain".to_owned(), Path::Hot)]);
    outbox.shutdown().await;
    inbox.assert_empty();
}
