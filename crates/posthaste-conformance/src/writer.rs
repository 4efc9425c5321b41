//! Part B: writing inside a transaction.

use std::time::Duration;

use posthaste_core::listener::Path;
use posthaste_core::store::{Error, Filter, Page};
use posthaste_core::{CommitError, Options, Outbox, Status, WriteError};
use tracing::Level;

use crate::faulty::{Call, Fault, Faulty};
use crate::fixture::Fixture;
use crate::journal::Journal;
use crate::outboxes::{no_interval, start, watched, write, write_all};
use crate::rows::{LEASE, assert_at, counts, delayed, event, event_with_id, events, ids_of, insert, state};
use crate::tap::Tap;
use crate::wait::{Gate, counting_polls};
use crate::witness::Witness;

/// Nothing is written outside of a transaction: what is not one is refused by its type.
///
/// A transaction is accepted:
/// ```
/// # use posthaste_core::{Event, MemoryStore, Outbox, memory::{MemoryConnection, MemoryTx}};
/// # async fn write(outbox: Outbox<MemoryStore>, event: Event) {
/// let mut tx = MemoryTx::new();
/// let _ = outbox.write(&mut tx, event).await;
/// # }
/// ```
/// A bare connection is not:
/// ```compile_fail,E0308
/// # use posthaste_core::{Event, MemoryStore, Outbox, memory::{MemoryConnection, MemoryTx}};
/// # async fn write(outbox: Outbox<MemoryStore>, event: Event) {
/// let mut connection = MemoryConnection::default();
/// let _ = outbox.write(&mut connection, event).await;
/// # }
/// ```
/// Nor is a connection of a database, where a transaction is accepted:
/// ```
/// # use posthaste_core::{Event, Outbox};
/// # use posthaste_sql::SqliteStore;
/// # use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};
/// # async fn write(outbox: Outbox<SqliteStore>, event: Event, mut tx: sqlx::Transaction<'_, Sqlite>) {
/// let _ = outbox.write(&mut tx, event).await;
/// # }
/// ```
/// ```compile_fail,E0308
/// # use posthaste_core::{Event, Outbox};
/// # use posthaste_sql::SqliteStore;
/// # use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};
/// # async fn write(outbox: Outbox<SqliteStore>, event: Event, mut connection: SqliteConnection) {
/// let _ = outbox.write(&mut connection, event).await;
/// # }
/// ```
/// Nor is a pool:
/// ```compile_fail,E0308
/// # use posthaste_core::{Event, Outbox};
/// # use posthaste_sql::SqliteStore;
/// # use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool};
/// # async fn write(outbox: Outbox<SqliteStore>, event: Event, mut pool: SqlitePool) {
/// let _ = outbox.write(&mut pool, event).await;
/// # }
/// ```
///
/// What is left to see at run time is that a write belongs to the transaction it was given, and to no other.
pub async fn case_09_only_inside_a_transaction<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut tx = fixture.begin_foreign().await;
    let receipt = outbox.write(&mut tx, event("Foreign")).await.unwrap();
    assert_eq!(counts(outbox.store()).await.total(), 0, "it was written outside of the transaction");
    drop(tx);
    receipt.rolled_back();
    assert_eq!(counts(outbox.store()).await.total(), 0, "it outlived the transaction");

    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("Own")).await.unwrap();
    assert_eq!(counts(outbox.store()).await.total(), 0, "it was written outside of the transaction");
    tx.commit().await.unwrap();
    assert_eq!(counts(outbox.store()).await.total(), 1);
    assert_eq!(inbox.next().await.event_type(), "Own");
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// 10,000 events in one call, in their order, with few round trips.
pub async fn case_14_large_batch<F: Fixture>(fixture: F) {
    const EVENTS: usize = 10_000;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let many = events(EVENTS);
    let mut tx = outbox.begin().await.unwrap();
    let (written, polls) = counting_polls(tx.write_all(&many)).await;
    assert_eq!(written.unwrap().len(), EVENTS);
    // At least one poll for each round trip, a few for some.
    assert!(polls <= EVENTS / 20, "{polls} polls are too many for few statements");
    tx.commit().await.unwrap();
    let page = Page { limit: EVENTS + 1, ..Page::default() };
    let stored = outbox.admin().list(&Filter::default(), &page).await.unwrap();
    let stored: Vec<String> = stored.iter().map(|record| record.id.to_string()).collect();
    assert_eq!(stored, ids_of(&many));
}

/// No event is no write, and no hook hears of it.
pub async fn case_14_empty_batch<F: Fixture>(fixture: F) {
    let witness = Witness::default();
    let outbox = Outbox::writer_only(fixture.store()).hook(witness.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    assert!(tx.write_all(events(0)).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    let mut tx = fixture.begin_foreign().await;
    let receipt = outbox.write_all(&mut tx, events(0)).await.unwrap();
    assert!(receipt.ids().is_empty());
    receipt.dispatch();
    fixture.commit_foreign(tx).await;
    assert_eq!(counts(outbox.store()).await.total(), 0);
    assert_eq!(witness.told(), []);
}

/// One bad event in a batch: none of them is written, and the transaction goes on as its owner likes.
pub async fn case_14_all_or_none<F: Fixture>(fixture: F) {
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let good = || posthaste_core::Event::builder("Good").json_text("{}");
    let error = tx.write_all([good(), posthaste_core::Event::builder("").json_text("{}"), good()]).await.unwrap_err();
    assert!(matches!(error, WriteError::Event(_)), "{error:?}");
    tx.write(good()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(counts(outbox.store()).await.total(), 1);
}

/// What the hot queue has no room for is written all the same, free for any poller, counted and warned of.
pub async fn case_15_full_hot_queue<F: Fixture>(fixture: F) {
    let journal = Journal::keep();
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let options = Options { hot_queue: 2, workers: 1, ..no_interval() };
    // The poller is kept from the table until the rows have been looked at.
    let (store, faults) = Faulty::new(fixture.store());
    let claims = Gate::new();
    faults.always(Call::Claim, Fault::Wait(claims.clone()));
    let (outbox, meter) = start(store, options, tap.behind(&gate)).await;
    let many = events(5);
    write_all(&outbox, &many).await;
    assert_eq!(meter.tally().hot_dropped, 3);
    assert!(journal.has(Level::WARN, "hot queue is full"));
    for event in &many[..2] {
        assert!(state(outbox.store(), event.id()).await.lease.is_some(), "promised a place, so leased");
    }
    for event in &many[2..] {
        assert_at(outbox.store(), event.id(), Status::New, 0).await;
    }
    claims.open();
    gate.open();
    let mut paths = Vec::new();
    for _ in 0..5 {
        paths.push(inbox.next().await.path());
    }
    assert_eq!(paths.iter().filter(|path| **path == Path::Hot).count(), 2);
    meter.until("all are delivered", |tally| tally.delivered == 5).await;
    assert_eq!(meter.tally().hot_dropped, 3);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// An event that waits never enters the hot queue, and is not leased; the poller has it when it is due.
pub async fn case_16_delayed_events<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = start(fixture.store(), no_interval(), tap).await;
    let at = posthaste_core::Event::builder("At")
        .available_at(posthaste_core::Timestamp::now() + LEASE)
        .json_text("{}")
        .build()
        .unwrap();
    let late = [delayed(LEASE), at];
    write_all(&outbox, &late).await;
    for event in &late {
        let waits = assert_at(outbox.store(), event.id(), Status::New, 0).await;
        assert!(waits.available_at.since(waits.created_at) > LEASE / 2);
    }
    // The next one overtakes them.
    let next = write(&outbox, event("Next")).await;
    assert_eq!(inbox.next().await.id(), &next);
    assert_eq!(meter.tally().hot_enqueued, 1);
    assert_eq!(meter.tally().hot_dropped, 0, "they were not turned away, they did not come");
    // Its lease must not run out before it is settled.
    meter.until("it is settled", |tally| tally.delivered == 1).await;
    fixture.advance(LEASE).await;
    outbox.wake();
    for _ in &late {
        assert_eq!(inbox.next().await.path(), Path::Cold);
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A delayed event wakes the poller when it is due, however long its interval.
pub async fn case_16_delay_ends_by_itself<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let id = write(&outbox, delayed(Duration::from_millis(30))).await;
    assert_eq!(inbox.next().await.id(), &id);
    let row = state(outbox.store(), &id).await;
    assert!(row.available_at.since(row.created_at) >= Duration::from_millis(30));
    outbox.shutdown().await;
}

/// The answer to the commit was lost: a typed error and no hot dispatch; it was committed, so the poller delivers, soon.
pub async fn case_18_lost_answer_of_a_commit<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (outbox, witness, mut inbox) = watched(store).await;
    faults.times(1, Call::Commit, Fault::AnswerLost);
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.write(event("Lost")).await.unwrap().unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert!(error.to_string().contains("may or may not"), "{error}");
    assert_eq!(witness.told(), [("unknown", vec![id.to_string()])]);
    let delivered = inbox.next().await;
    assert_eq!((delivered.id(), delivered.path(), delivered.attempt()), (&id, Path::Cold, 1));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_at(outbox.store(), &id, Status::Done, 0).await;
}

/// The connection was lost before the commit: the same error, and nothing is ever delivered.
pub async fn case_18_lost_commit<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(store, no_interval(), tap).await;
    faults.times(1, Call::Commit, Fault::ConnectionLost);
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("Lost")).await.unwrap();
    assert!(matches!(tx.commit().await.unwrap_err(), CommitError::Unknown(_)));
    let next = write(&outbox, event("Next")).await;
    assert_eq!(inbox.next().await.id(), &next);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.total(), 1);
}

/// A taken id reaches the writer as the store's typed error, and its place in the hot queue is free again.
pub async fn case_21_duplicate_reaches_the_writer<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    insert(outbox.store(), &[event_with_id("taken")]).await;
    let mut tx = outbox.begin().await.unwrap();
    let error = tx.write(event_with_id("taken")).await.unwrap_err();
    assert!(
        matches!(&error, WriteError::Store { error: Error::DuplicateId { id }, .. } if *id == "taken"),
        "{error:?}"
    );
    tx.rollback().await.unwrap();
    outbox.wake();
    assert_eq!(inbox.next().await.id(), &"taken");
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A receipt that is dropped after the commit is handed back, so that the poller delivers at once and not after the
/// lease; so is one dropped before the commit.
pub async fn case_65_dropped_receipt<F: Fixture>(fixture: F) {
    for dropped_before in [false, true] {
        let (tap, mut inbox) = Tap::new();
        let (outbox, meter) = start(fixture.store(), no_interval(), tap).await;
        let mut tx = fixture.begin_foreign().await;
        let receipt = outbox.write(&mut tx, event("Forgotten")).await.unwrap();
        let id = receipt.ids().remove(0);
        if dropped_before {
            drop(receipt);
            fixture.commit_foreign(tx).await;
        } else {
            fixture.commit_foreign(tx).await;
            drop(receipt);
        }
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (&id, Path::Cold));
        meter.until("it is delivered", |tally| tally.delivered == 1).await;
        assert_eq!(meter.tally().hot_enqueued, 0);
        outbox.shutdown().await;
        inbox.assert_empty();
    }
}

/// A commit after the shutdown leaves its rows to others at once, whether it was begun before or after.
pub async fn case_66_commit_after_shutdown<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    // SQLite lets one transaction write at a time, so the settlements of a shutdown would wait for an open one of ours.
    let mut tx = fixture.begin_foreign().await;
    let early = event("Begun before");
    let receipt = outbox.write(&mut tx, &early).await.unwrap();
    fixture.commit_foreign(tx).await;
    assert!(state(outbox.store(), early.id()).await.lease.is_some());
    assert!(outbox.shutdown().await.is_clean());
    receipt.dispatch();
    let free = || async { state(outbox.store(), early.id()).await.lease.is_none() };
    crate::wait::eventually("the lease is given back", free).await;
    let late = write(&outbox, event("Begun after")).await;
    assert_at(outbox.store(), &late, Status::New, 0).await;
    assert_eq!(crate::rows::claim_ids(&fixture.store(), 10).await, [early.id().to_string(), late.to_string()]);
    inbox.assert_empty();
}

/// A transaction that stayed open for most of its lease is not delivered hot, for another process may have its rows.
pub async fn case_67_long_transaction<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    // The database has as long for the settlement, also while the machine is busy.
    let options = Options { lease: Duration::from_secs(1), ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, tap).await;
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.write(event("Slow")).await.unwrap().unwrap();
    // Time has to pass; nothing is waited for.
    tokio::time::sleep(Duration::from_millis(600)).await;
    tx.commit().await.unwrap();
    let delivered = inbox.next().await;
    assert_eq!((delivered.id(), delivered.path()), (&id, Path::Cold));
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    assert_eq!(meter.tally().hot_enqueued, 0);
    outbox.shutdown().await;
    inbox.assert_empty();
}
