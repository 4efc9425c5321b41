//! Writing and its end.

use std::slice::from_ref;
use std::time::Duration;

use posthaste_conformance::testing::{event, event_with_id, told};
use posthaste_conformance::{Fixture, Gate, PgFixture, SqliteFixture, Tap, no_interval};
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_core::{Event, Options, Outbox, Status, WriteError};
use posthaste_sea_orm::OutboxExt;
use sea_orm::TransactionTrait;

use crate::order::{place, placed};
use crate::support::{Sea, Shop, ask, rows, state, with_orders};

crate::tests! { every:
    case_10_nothing_survives,
    case_10_places_are_given_back,
    case_11_one_call_per_commit,
    case_11_receipts,
    case_14_ten_thousand,
    case_14_nothing,
    case_15_full_hot_queue,
    case_16_delayed_events,
    case_17_writer_only,
    options_of_the_transaction_are_kept,
    receipts_that_never_go_hot,
}

/// A pool and a connection are refused by type; what is left is a transaction of another database.
#[tokio::test]
async fn case_09_another_database() {
    let (ours, theirs) = (Shop::<PgFixture>::open().await, SqliteFixture::create().await);
    let db = with_orders(&theirs).await;
    let error = ours.outbox.begin_on(&db).await.unwrap_err();
    let words = "database of the transaction \"SQLite\" is not accepted: the table of this outbox is in PostgreSQL; use a \
                 connection to that database";
    assert_eq!(error.to_string(), words);

    let txn = db.begin().await.unwrap();
    place(&txn, 1).await;
    let error = ours.outbox.write_in(&txn, event("OrderPlaced")).await.unwrap_err();
    assert!(matches!(&error, WriteError::Store { error: Error::Config { .. }, .. }), "{error:?}");
    assert!(error.to_string().starts_with("event OrderPlaced (id "), "{error}");
    // The transaction is as good as before.
    place(&txn, 2).await;
    txn.commit().await.unwrap();
    assert_eq!(placed(&db).await, [1, 2]);
    assert_eq!(ours.witness.told(), []);
    ours.close().await;
}

/// A rollback, a dropped transaction: no row, no order, no delivery, and the hook hears of it once.
async fn case_10_nothing_survives<F: Sea>() {
    let shop = Shop::<F>::open().await;
    for ending in ["rollback", "drop"] {
        let (first, second) = (event(ending), event(ending));
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        place(&*tx, 1).await;
        tx.write(&first).await.unwrap();
        tx.write(&second).await.unwrap();
        assert_eq!(placed(&tx).await, [1]);
        assert_eq!(shop.witness.told(), [], "{ending}: too early");
        match ending {
            "rollback" => tx.rollback().await.unwrap(),
            _ => drop(tx),
        }
        assert_eq!(shop.witness.told(), [told("rollback", &[first.clone(), second.clone()])], "{ending}");
        assert_eq!(shop.rows().await, 0, "{ending}");
        assert_eq!(placed(&shop.db).await, [0; 0], "{ending}");
    }
    let txn = shop.db.begin().await.unwrap();
    let undone = event("Undone");
    let receipt = shop.outbox.write_in(&txn, &undone).await.unwrap();
    txn.rollback().await.unwrap();
    receipt.rolled_back();
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}

/// Places that were reserved in the hot queue are given back, however the transaction ended.
async fn case_10_places_are_given_back<F: Sea>() {
    let options = Options { hot_queue: 1, ..no_interval() };
    let mut shop = Shop::<F>::open_on(F::create().await, options).await;
    for ending in ["rollback", "drop", "refused", "receipt", "another"] {
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        match ending {
            "rollback" => {
                tx.write(event(ending)).await.unwrap();
                tx.rollback().await.unwrap();
            }
            "drop" => {
                tx.write(event(ending)).await.unwrap();
                drop(tx);
            }
            "refused" => {
                tx.write_all([event_with_id("twice"), event_with_id("twice")]).await.unwrap_err();
                drop(tx);
            }
            "receipt" => {
                drop(tx);
                let txn = shop.db.begin().await.unwrap();
                let receipt = shop.outbox.write_in(&txn, event(ending)).await.unwrap();
                txn.rollback().await.unwrap();
                receipt.rolled_back();
            }
            _ => drop(tx),
        }
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        tx.write(event("Next")).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(shop.inbox.next().await.path(), Path::Hot, "after {ending}");
    }
    assert_eq!(shop.meter.tally().hot_dropped, u64::from(true), "the second of the two that were refused");
    shop.close().await;
}

/// One call after the commit, with all events in the order of their writes; all of them take the hot path.
async fn case_11_one_call_per_commit<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let events = [event("A"), event("B"), event("C"), event("D")];
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    let id = tx.write(&events[0]).await.unwrap();
    assert_eq!(id.as_ref(), Some(events[0].id()));
    place(&*tx, 1).await;
    let ids = tx.write_all(&events[1..3]).await.unwrap();
    assert_eq!(ids, [events[1].id().clone(), events[2].id().clone()]);
    tx.write(&events[3]).await.unwrap();
    assert_eq!(shop.witness.told(), []);
    tx.commit().await.unwrap();
    assert_eq!(shop.witness.told(), [told("commit", &events)]);
    assert_eq!(placed(&shop.db).await, [1]);
    for event in &events {
        let delivery = shop.inbox.next().await;
        assert_eq!((delivery.id(), delivery.path()), (event.id(), Path::Hot));
    }
    shop.close().await;
}

/// Receipts of one transaction are one call, too. Where nobody says that there is no savepoint, the poller delivers.
async fn case_11_receipts<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let (first, second) = (event("First"), event("Second"));
    let txn = shop.db.begin().await.unwrap();
    let receipt = shop.outbox.write_in(&txn, &first).await.unwrap();
    place(&txn, 1).await;
    let receipt = receipt.and(shop.outbox.write_all_in(&txn, [&second]).await.unwrap());
    txn.commit().await.unwrap();
    assert_eq!(shop.witness.told(), []);
    receipt.dispatch();
    let (step, path) = if F::TELLS { ("commit", Path::Hot) } else { ("unknown", Path::Cold) };
    assert_eq!(shop.witness.told(), [told(step, &[first.clone(), second.clone()])]);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let delivery = shop.inbox.next().await;
        assert_eq!(delivery.path(), path);
        ids.push(delivery.id().clone());
    }
    assert_eq!(ids, [first.id().clone(), second.id().clone()]);
    shop.close().await;
}

/// More events than a statement has parameters.
async fn case_14_ten_thousand<F: Sea>() {
    let fixture = F::create().await;
    let db = with_orders(&fixture).await;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let event = |number| Event::builder("Many").aggregate("Order", number).json_text("{}");
    let mut tx = outbox.begin_on(&db).await.unwrap();
    let ids = tx.write_all((0..10_000).map(event)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ids.len(), 10_000);
    assert_eq!(rows(&outbox).await, 10_000);
    for number in [0, 511, 512, 9_999] {
        let record = outbox.admin().find(&ids[number]).await.unwrap().unwrap();
        assert_eq!(record.event.unwrap().aggregate_id(), Some(&*number.to_string()));
    }
    fixture.assert_no_open_transaction().await;
}

async fn case_14_nothing<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    assert!(tx.write_all([] as [Event; 0]).await.unwrap().is_empty());
    let error = tx.write(Event::builder("").json_text("{}")).await.unwrap_err();
    assert!(matches!(error, WriteError::Event(_)), "{error:?}");
    tx.commit().await.unwrap();
    let txn = shop.db.begin().await.unwrap();
    let receipt = shop.outbox.write_all_in(&txn, [] as [Event; 0]).await.unwrap();
    txn.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!(shop.witness.told(), []);
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}

/// What the hot queue has no room for is written all the same, free for any poller.
async fn case_15_full_hot_queue<F: Sea>() {
    let (tap, inbox) = Tap::new();
    let gate = Gate::new();
    let options = Options { hot_queue: 2, workers: 1, ..no_interval() };
    let mut shop = Shop::<F>::open_with(F::create().await, options, tap.behind(&gate), inbox).await;
    let events: Vec<_> = (0..5).map(|_| event("Many")).collect();
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write_all(&events).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.meter.tally().hot_dropped, 3);
    gate.open();
    let mut hot = 0;
    for _ in 0..5 {
        hot += usize::from(shop.inbox.next().await.path() == Path::Hot);
    }
    assert_eq!(hot, 2);
    shop.close().await;
}

/// An event that waits never enters the hot queue, and is not leased.
async fn case_16_delayed_events<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let hour = Duration::from_secs(3600);
    let late = Event::builder("Late").deliver_after(hour).json_text("{}").build().unwrap();
    let at = posthaste_core::Timestamp::now() + hour;
    let at = Event::builder("At").available_at(at).json_text("{}").build().unwrap();
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write_all([&late, &at]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.meter.tally().hot_enqueued, 0);
    for event in [&late, &at] {
        let row = state(shop.outbox.store(), event.id()).await;
        assert_eq!((row.status, row.lease), (Status::New, None));
        assert!(row.available_at.since(row.created_at) > hour / 2);
    }
    shop.close().await;
}

/// Without a relay nothing happens after the commit.
async fn case_17_writer_only<F: Sea>() {
    let fixture = F::create().await;
    let db = with_orders(&fixture).await;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let alone = event("Alone");
    let mut tx = outbox.begin_on(&db).await.unwrap();
    tx.write(&alone).await.unwrap();
    tx.commit().await.unwrap();
    let row = state(outbox.store(), alone.id()).await;
    assert_eq!((row.status, row.lease), (Status::New, None));
    fixture.assert_no_open_transaction().await;
}

async fn options_of_the_transaction_are_kept<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let mut tx = shop.outbox.begin_on_with(&shop.db, F::options()).await.unwrap();
    shop.fixture.assert_options(&tx).await;
    place(&*tx, 1).await;
    tx.write(event("Strict")).await.unwrap();
    tx.rollback().await.unwrap();
    shop.close().await;
}

/// What the poller delivers in any case is leased to nobody, so that any poller may have it at once.
async fn receipts_that_never_go_hot<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let left = event("Left");
    let txn = shop.db.begin().await.unwrap();
    let receipt = shop.outbox.write_in(&txn, &left).await.unwrap();
    // No poller sees the row yet.
    let leased = ask(&txn, "SELECT COALESCE(locked_by, '') FROM outbox_event").await;
    assert_eq!(!leased.is_empty(), F::TELLS);
    txn.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!(shop.inbox.next().await.id(), left.id());
    shop.close().await;
}
