//! The helpers for tests, on SQLite and with derived events.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use posthaste::testing::{self, Call, Fault, Faulty, Recorder, TestOutbox, Wanted};
use posthaste::{CommitError, Event, Options, SqliteStore};

use crate::OrderPlaced;

async fn place(outbox: &posthaste::Outbox<SqliteStore>, id: u64) {
    let mut tx = outbox.begin().await.unwrap();
    sqlx::query("INSERT INTO orders (id) VALUES (?)").bind(i64::try_from(id).unwrap()).execute(&mut *tx).await.unwrap();
    tx.write(OrderPlaced { id }).await.unwrap();
    tx.commit().await.unwrap();
}

async fn orders() -> SqliteStore {
    let store = testing::sqlite().await;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(store.pool()).await.unwrap();
    store
}

fn file(store: &SqliteStore) -> PathBuf {
    store.pool().connect_options().get_filename().to_owned()
}

#[tokio::test]
async fn a_database_of_its_own_goes_with_the_test() {
    let (first, second) = (orders().await, orders().await);
    let (file, other) = (file(&first), file(&second));
    assert_ne!(file, other);
    let mailer = Recorder::new();
    let outbox = testing::outbox_on(first).listen_for::<OrderPlaced>(mailer.clone()).start_test().await;
    place(&outbox, 42).await;
    assert_eq!(outbox.drain_now().await.done, 1);
    assert_eq!(mailer.received::<OrderPlaced>()[0].id, 42);
    outbox.assert_written::<OrderPlaced>(|order| order.id == 42).await;
    TestOutbox::over(second).await.assert_nothing_written().await;

    assert!(file.exists());
    outbox.shutdown().await;
    drop(outbox);
    testing::within("the directory is gone", async {
        while file.parent().unwrap().exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn rows_of_sqlite_grow_older() {
    let mailer = Recorder::new();
    let outbox = testing::outbox_on(orders().await).listen_all(mailer.clone()).start_test().await;
    let started_at = Instant::now();
    let hour = Duration::from_secs(3600);
    mailer.fail_next(1);
    place(&outbox, 1).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(Event::builder("Reminder").json_text("{}").deliver_after(hour)).await.unwrap();
    tx.commit().await.unwrap();
    let counts = outbox.drain_now().await;
    assert_eq!((counts.new, counts.retry), (1, 1));
    outbox.advance(hour / 2).await;
    let counts = outbox.drain_now().await;
    assert_eq!((counts.new, counts.done), (1, 1));
    outbox.advance(hour / 2).await;
    assert_eq!(outbox.drain_now().await.done, 2);
    assert!(started_at.elapsed() < hour / 60);
}

#[tokio::test]
async fn leases_of_the_dead_run_out_on_sqlite() {
    let store = orders().await;
    let stuck = Recorder::new();
    let _gate = stuck.block();
    let dead = testing::outbox_on(store.clone()).listen_all(stuck.clone()).start_test().await;
    place(&dead, 1).await;
    stuck.wait_for(1).await;
    drop(dead);
    let outbox = testing::outbox_on(store).listen_all(Recorder::new()).start_test().await;
    assert_eq!(outbox.drain_now().await.new, 1);
    outbox.advance(Options::default().lease).await;
    assert_eq!(outbox.drain_now().await.done, 1);
}

#[tokio::test]
async fn faults_of_sqlite() {
    let (store, faults) = Faulty::new(orders().await);
    let outbox = testing::outbox_on(store).listen_all(Recorder::new()).start_test().await;
    for (fault, written) in [(Fault::ConnectionLost, 0), (Fault::AnswerLost, 1)] {
        faults.times(1, Call::Commit, fault);
        let mut tx = outbox.begin().await.unwrap();
        sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&mut *tx).await.unwrap();
        tx.write(OrderPlaced { id: 1 }).await.unwrap();
        assert!(matches!(tx.commit().await, Err(CommitError::Unknown(_))));
        assert_eq!(outbox.drain_now().await.done, written);
        let orders: i64 =
            sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(outbox.store().inner().pool()).await.unwrap();
        assert_eq!(orders, i64::try_from(written).unwrap());
    }
    // Time passes for the store inside.
    outbox.advance(Duration::from_secs(3600)).await;
    outbox.assert_written::<OrderPlaced>(|_| true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drain_waits_for_every_thread() {
    fn may_move<F: Future + Send>(future: F) -> F {
        future
    }
    let mailer = Recorder::new();
    let outbox = testing::outbox_on(orders().await).listen_all(mailer.clone()).start_test().await;
    for round in 1..=5 {
        let first = round * 100;
        for id in first..first + 20 {
            place(&outbox, id).await;
        }
        assert_eq!(may_move(outbox.drain_now()).await.done, round * 20);
        assert_eq!((mailer.count() as u64, outbox.in_flight()), (round * 20, 0));
        may_move(outbox.wait_delivered(Wanted::typed::<OrderPlaced>(|order| order.id == first))).await;
    }
    may_move(outbox.assert_written::<OrderPlaced>(|order| order.id == 519)).await;
}
