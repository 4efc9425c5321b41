//! Part B: futures that are dropped half-way.

use std::collections::HashMap;

use posthaste_conformance::testing::{cut_short, event_with_id as event, eventually, within};
use posthaste_core::listener::Path;
use posthaste_core::store::{AdminStore, Filter, Page};
use posthaste_core::{Event, Outbox};
use posthaste_sql::PgStore;
use posthaste_tokio_postgres::OutboxExt;

use crate::support::{Database, assert_outside, told};

/// More than any of these futures is polled.
const MANY: usize = 10_000;

/// Dropped at any await between begin and commit, a transaction is not left open, and its events are all there or none.
#[tokio::test]
async fn case_19_cut_anywhere() {
    let database = Database::new().await;
    let (outbox, _, _inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut cuts = 0;
    for polls in 1..MANY {
        let three = [event_of(polls), event_of(polls), event_of(polls)];
        let whole = async {
            let mut tx = outbox.begin_on(&mut client).await.unwrap();
            tx.write_all(&three).await.unwrap();
            let savepoint = tx.savepoint().await.unwrap();
            savepoint.execute("SELECT 1", &[]).await.unwrap();
            savepoint.commit().await.unwrap();
            tx.commit().await.unwrap();
        };
        let finished = cut_short(polls, whole).await.is_some();
        within("the next statement gets through", assert_outside(&client)).await;
        if finished {
            break;
        }
        cuts = polls;
    }
    assert!(cuts > 4 && cuts + 1 < MANY, "{cuts}");
    delivered_whole(&outbox, cuts + 1).await;
}

/// The same in a transaction that is somebody's own.
#[tokio::test]
async fn case_19_cut_receipts() {
    let database = Database::new().await;
    let (outbox, _, _inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut cuts = 0;
    for polls in 1..MANY {
        let three = [event_of(polls), event_of(polls), event_of(polls)];
        let whole = async {
            let tx = client.transaction().await.unwrap();
            let receipt = outbox.write_all_in(&tx, &three).await.unwrap();
            tx.commit().await.unwrap();
            receipt.dispatch();
        };
        let finished = cut_short(polls, whole).await.is_some();
        within("the next statement gets through", assert_outside(&client)).await;
        if finished {
            break;
        }
        cuts = polls;
    }
    delivered_whole(&outbox, cuts + 1).await;
}

/// An event of the transaction that was cut after so many polls.
fn event_of(polls: usize) -> Event {
    Event::builder(format!("cut after {polls}")).json_text("{}").build().unwrap()
}

/// Everything that was committed was committed as a whole, and is delivered.
async fn delivered_whole(outbox: &Outbox<PgStore>, last: usize) {
    let settled = async || outbox.admin().counts().await.unwrap().pending() == 0 && outbox.in_flight() == 0;
    eventually("everything committed is delivered", settled).await;
    let page = Page { limit: MANY, ..Page::default() };
    let mut rows: HashMap<String, usize> = HashMap::new();
    for record in outbox.store().list(&Filter::default(), &page).await.unwrap() {
        *rows.entry(record.event.unwrap().event_type().to_owned()).or_default() += 1;
    }
    assert_eq!(rows.get(&format!("cut after {last}")), Some(&3), "the last was not cut");
    assert!(rows.values().all(|count| *count == 3), "half a transaction: {rows:?}");
    outbox.shutdown().await;
}

/// Dropped in the middle of the commit, the commit goes on; nobody hears of it, so the poller delivers.
#[tokio::test]
async fn case_19_cut_commit() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("cut")).await.unwrap();
    assert!(cut_short(1, tx.commit()).await.is_none());
    assert_eq!(witness.told(), [told("unknown", &["cut"])]);
    assert_outside(&client).await;
    assert_eq!(inbox.arrival().await, ("cut".to_owned(), Path::Cold));

    // Also when the client is dropped with it: its connection first sends what it was given.
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("last")).await.unwrap();
    assert!(cut_short(1, tx.commit()).await.is_none());
    drop(client);
    assert_eq!(witness.told(), [told("unknown", &["last"])]);
    assert_eq!(inbox.arrival().await, ("last".to_owned(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Dropped in the middle of a begin, which is then undone.
#[tokio::test]
async fn case_19_cut_begin() {
    let database = Database::new().await;
    let (outbox, _, _inbox) = database.outbox().await;
    let mut client = database.client().await;
    drop(outbox.begin_on(&mut client));
    assert!(cut_short(1, outbox.begin_on(&mut client)).await.is_none());
    assert_outside(&client).await;
    assert!(cut_short(1, outbox.begin_on(client.build_transaction().deferrable(true))).await.is_none());
    assert_outside(&client).await;
    outbox.shutdown().await;
}

/// Dropped in the middle of a write, the transaction can still end; what was committed is delivered, by the poller.
#[tokio::test]
async fn case_19_cut_write() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("whole")).await.unwrap();
    assert!(cut_short(1, tx.write(event("cut"))).await.is_none());
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &["whole"]), told("unknown", &["cut"])]);
    assert_eq!(inbox.arrival().await, ("whole".to_owned(), Path::Hot));
    assert_eq!(inbox.arrival().await, ("cut".to_owned(), Path::Cold));

    // If it is rolled back instead, that is known of all of it.
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("undone")).await.unwrap();
    assert!(cut_short(1, tx.write(event("cut and undone"))).await.is_none());
    tx.rollback().await.unwrap();
    assert_eq!(witness.told(), [told("rollback", &["undone"]), told("rollback", &["cut and undone"])]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 2);
}

/// Dropped while a savepoint is set or ends, the transaction is as it was, or can only be rolled back.
#[tokio::test]
async fn case_19_cut_savepoint() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    assert!(cut_short(1, tx.savepoint()).await.is_none());
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("undone")).await.unwrap();
    assert!(cut_short(1, savepoint.rollback()).await.is_none());
    assert_eq!(witness.told(), [told("rollback", &["undone"])]);
    tx.write(event("kept")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &["kept"])]);
    assert_eq!(inbox.arrival().await, ("kept".to_owned(), Path::Hot));

    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("before")).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("inside")).await.unwrap();
    assert!(cut_short(1, savepoint.commit()).await.is_none());
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, posthaste_core::CommitError::NotCommitted(_)), "{error:?}");
    assert_eq!(witness.told(), [told("rollback", &["inside"]), told("rollback", &["before"])]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 1);
}
