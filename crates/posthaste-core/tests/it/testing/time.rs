//! Time that passes when the test says so.

use std::time::Duration;

use posthaste_core::testing::{self, Recorder};
use posthaste_core::{MemoryStore, Options};

use super::{event, write};

const MILLISECOND: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn in_paused_time_a_retry_comes_when_it_is_due_and_not_before() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    mailer.fail_next(2);
    write(&outbox, [event("e1", "Any")]).await;
    let failed = mailer.wait_for(1).await;
    assert_eq!(failed[0].attempt(), 1);
    let settled_by = Duration::from_millis(20);
    outbox.advance(settled_by).await;
    // 200 ms after it was settled, which was a little after it failed.
    outbox.advance(Duration::from_millis(200) - settled_by - MILLISECOND).await;
    assert_eq!((mailer.count(), outbox.admin().counts().await.unwrap().retry), (1, 1));
    outbox.advance(settled_by).await;
    assert_eq!(mailer.count(), 2);
    // The second delay is twice the first.
    outbox.advance(Duration::from_millis(360)).await;
    assert_eq!(mailer.count(), 2);
    outbox.advance(Duration::from_millis(80)).await;
    assert_eq!((mailer.count(), outbox.drain_now().await.done), (3, 1));
}

#[tokio::test]
async fn with_a_clock_that_goes_the_rows_grow_older() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    mailer.fail_next(1);
    let hour = Duration::from_secs(3600);
    let started_at = std::time::Instant::now();
    write(&outbox, [event("e1", "Any"), event("e2", "Any").deliver_after(hour)]).await;
    let counts = outbox.drain_now().await;
    assert_eq!((counts.new, counts.retry), (1, 1));
    outbox.advance(hour / 2).await;
    assert_eq!((outbox.drain_now().await.new, mailer.count()), (1, 2));
    outbox.advance(hour / 2).await;
    assert_eq!((outbox.drain_now().await.done, mailer.count()), (2, 3));
    assert!(started_at.elapsed() < hour / 60);
}

#[tokio::test(start_paused = true)]
async fn leases_of_the_dead_run_out() {
    let store = MemoryStore::new();
    let stuck = Recorder::new();
    let _gate = stuck.block();
    let dead = testing::outbox_on(store.clone()).listen_all(stuck.clone()).start_test().await;
    write(&dead, [event("e1", "Any")]).await;
    stuck.wait_for(1).await;
    drop(dead);

    let mailer = Recorder::new();
    let outbox = testing::outbox_on(store).listen_all(mailer.clone()).start_test().await;
    let lease = Options::default().lease;
    outbox.advance(lease / 2).await;
    assert_eq!((outbox.drain_now().await.new, mailer.count()), (1, 0));
    outbox.advance(lease / 2).await;
    assert_eq!((outbox.drain_now().await.done, mailer.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn leases_in_hand_are_renewed_meanwhile() {
    let mailer = Recorder::new();
    let options = Options { listener_time_limit: Duration::from_secs(86_400), ..Options::default() };
    let outbox = testing::outbox().listen_all(mailer.clone()).options(options).start_test().await;
    let gate = mailer.block();
    write(&outbox, [event("e1", "Any")]).await;
    mailer.wait_for(1).await;
    let born = outbox.admin().find(mailer.deliveries()[0].id()).await.unwrap().unwrap().state.lease.unwrap();
    outbox.advance(10 * Options::default().lease).await;
    let now = outbox.admin().find(mailer.deliveries()[0].id()).await.unwrap().unwrap().state.lease.unwrap();
    assert_eq!(born.0, now.0);
    assert!(now.1.since(born.1) > 9 * Options::default().lease, "{born:?} {now:?}");
    gate.open();
    assert_eq!((outbox.drain_now().await.done, mailer.count()), (1, 1));
}
