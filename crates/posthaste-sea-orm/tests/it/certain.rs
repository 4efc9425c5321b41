//! What is certain of a transaction that was not committed by the outbox: that nothing of it is stored, or nothing.

use std::slice::from_ref;

use posthaste_conformance::testing::{Wire, event, told, watched};
use posthaste_conformance::{Fixture, MariaDbFixture, PgFixture, Served};
use posthaste_core::{CommitError, Event, Outbox};
use posthaste_sea_orm::{OutboxExt, Transaction};
use posthaste_sql::{MySqlStore, PgStore};
use sea_orm::{ConnectionTrait, Database, TransactionTrait};

use crate::order::{place, placed};
use crate::support::{Shop, rows, with_orders};

/// What MariaDB commits by itself.
const COMMITS: &str = "ALTER TABLE orders ADD COLUMN note TEXT";

fn assert_unknown(committed: &Result<(), CommitError>, case: impl std::fmt::Debug) {
    assert!(matches!(committed, Err(CommitError::Unknown(_))), "{case:?}: {committed:?}");
}

fn assert_not_committed(committed: &Result<(), CommitError>, case: impl std::fmt::Debug) {
    assert!(matches!(committed, Err(CommitError::NotCommitted(_))), "{case:?}: {committed:?}");
}

/// Its row is gone, but with an inner transaction alone. The order is stored.
#[tokio::test]
async fn an_event_that_was_undone_alone() {
    let shop = Shop::<MariaDbFixture>::open().await;
    let undone = event("Undone");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    place(&tx, 1).await;
    let inner = tx.begin().await.unwrap();
    tx.write(&undone).await.unwrap();
    inner.rollback().await.unwrap();
    tx.execute_unprepared(COMMITS).await.unwrap();
    assert_unknown(&tx.commit().await, "inner");
    assert_eq!(shop.witness.told(), [told("unknown", from_ref(&undone))]);
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![1]));
    shop.close().await;
}

/// Its row is gone, because it was delivered. One that is there would have said the same.
#[tokio::test]
async fn an_event_that_was_deleted_when_it_was_done() {
    let fixture = MariaDbFixture::create().await;
    let db = with_orders(&fixture).await;
    let store = fixture.store().deleting_done();
    // It has no place for what is hot, so that nothing is leased to it.
    let writer: Outbox<MySqlStore> = Outbox::writer_only(store.clone()).start().await.unwrap();
    let (relay, _, mut inbox) = watched(store).await;
    let done = event("Done");
    let mut tx = writer.begin_on(&db).await.unwrap();
    tx.write(&done).await.unwrap();
    place(&tx, 1).await;
    tx.execute_unprepared(COMMITS).await.unwrap();
    relay.wake();
    assert_eq!(inbox.next().await.id(), done.id());
    assert!(relay.shutdown().await.is_clean());
    assert_eq!(rows(&writer).await, 0, "it was deleted");
    assert_unknown(&tx.commit().await, "deleted");
    assert_eq!(placed(&db).await, [1]);
    writer.shutdown().await;
    fixture.assert_no_open_transaction().await;
}

/// What a COMMIT in a savepoint has stored is there after the savepoint was undone, which PostgreSQL refuses.
#[tokio::test]
async fn a_commit_in_a_savepoint() {
    let mut shop = Shop::<PgFixture>::open().await;
    let stored = event("Stored");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    place(&tx, 1).await;
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(&stored).await.unwrap();
    savepoint.execute_unprepared("COMMIT").await.unwrap();
    savepoint.rollback().await.unwrap_err();
    assert_unknown(&tx.commit().await, "savepoint");
    assert_eq!((shop.rows().await, placed(&shop.db).await), (1, vec![1]));
    assert_eq!(shop.witness.told(), [told("unknown", from_ref(&stored))]);
    assert_eq!(shop.inbox.next().await.id(), stored.id());
    shop.close().await;
}

/// Whoever has an inner one can end all of it, also after a write.
#[tokio::test]
async fn an_inner_one_that_outlives_a_write() {
    let mut shop = Shop::<PgFixture>::open().await;
    let [gone, inside, after] = ["Gone", "Inside", "After"].map(event);
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&gone).await.unwrap();
    let inner = tx.begin().await.unwrap();
    tx.write(&inside).await.unwrap();
    inner.execute_unprepared("ROLLBACK; BEGIN; SAVEPOINT _sqlx_savepoint_1").await.unwrap();
    inner.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.rows().await, 0);
    // Neither of the two that were rolled back is delivered before it.
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&after).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.inbox.next().await.id(), after.id());
    shop.close().await;
}

/// How a case on PostgreSQL goes on before a statement fails in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Nothing but entities.
    Plain,
    /// An event, and then a COMMIT.
    EventAndCommit,
    /// A COMMIT, and then an event.
    CommitAndEvent,
    /// An event, and then something of which nobody knows what it was.
    EventOutOfSight,
    /// Something of which nobody knows what it was, and then an event.
    OutOfSight,
}

/// A failed statement takes back what is open. What was committed before, by a statement of somebody's own, stays.
#[tokio::test]
async fn a_failed_statement() {
    let mut shop = Shop::<PgFixture>::open().await;
    for (before, certain) in [
        (Before::Plain, true),
        (Before::EventAndCommit, false),
        (Before::CommitAndEvent, false),
        (Before::EventOutOfSight, true),
        (Before::OutOfSight, false),
    ] {
        let written = event("Written");
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        prepare(&mut tx, before, &written).await;
        tx.execute_unprepared("INSERT INTO nowhere VALUES (1)").await.unwrap_err();
        let committed = tx.commit().await;
        let step = if certain { "rollback" } else { "unknown" };
        assert_eq!(shop.witness.told(), [told(step, from_ref(&written))], "{before:?}");
        match certain {
            true => assert_not_committed(&committed, before),
            false => assert_unknown(&committed, before),
        }
        let commits = matches!(before, Before::EventAndCommit | Before::CommitAndEvent);
        assert_eq!(placed(&shop.db).await.len(), usize::from(commits), "{before:?}");
        if before == Before::EventAndCommit {
            assert_eq!(shop.inbox.next().await.id(), written.id());
        }
        shop.db.execute_unprepared("DELETE FROM orders").await.unwrap();
        shop.fixture.assert_no_open_transaction().await;
    }
    shop.close().await;
}

async fn prepare(tx: &mut Transaction<PgStore>, before: Before, written: &Event) {
    match before {
        Before::Plain => {
            place(tx, 1).await;
            tx.write(written).await.unwrap();
        }
        Before::EventAndCommit => {
            tx.write(written).await.unwrap();
            place(tx, 1).await;
            tx.execute_unprepared("COMMIT; BEGIN").await.unwrap();
        }
        Before::CommitAndEvent => {
            place(tx, 1).await;
            tx.execute_unprepared("COMMIT; BEGIN").await.unwrap();
            tx.write(written).await.unwrap();
        }
        Before::EventOutOfSight => {
            tx.write(written).await.unwrap();
            place(&**tx, 1).await;
        }
        Before::OutOfSight => {
            place(&**tx, 1).await;
            tx.write(written).await.unwrap();
        }
    }
}

/// The connection is lost when it is asked, right before the commit, whether the transaction is still the same.
#[tokio::test]
async fn a_connection_that_is_lost_before_the_commit() {
    let shop = Shop::<MariaDbFixture>::open().await;
    for (statement, certain) in [("UPDATE orders SET total = 0", true), ("COMMIT AND CHAIN", false)] {
        let wire = Wire::cut_before(&shop.fixture.url(), "RELEASE SAVEPOINT posthaste_begin").await;
        let db = Database::connect(wire.url()).await.unwrap();
        let mut tx = shop.outbox.begin_on(&db).await.unwrap();
        place(&tx, 1).await;
        tx.execute_unprepared(statement).await.unwrap();
        tx.write(event("Lost")).await.unwrap();
        match certain {
            true => assert_not_committed(&tx.commit().await, statement),
            false => assert_unknown(&tx.commit().await, statement),
        }
        assert_eq!(placed(&shop.db).await.len(), usize::from(!certain), "{statement}");
    }
    shop.witness.told();
    shop.close().await;
}
