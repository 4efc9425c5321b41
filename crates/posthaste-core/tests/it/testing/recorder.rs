//! A listener that does as it is told.

use std::time::Duration;

use posthaste_core::listener::Outcome;
use posthaste_core::store::Counts;
use posthaste_core::testing::{self, Recorder};

use super::{OrderPlaced, event, failure, order, write};

#[tokio::test(start_paused = true)]
async fn it_fails_as_often_as_it_is_told_and_recovers() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    mailer.fail_type("Bad");
    write(&outbox, [event("e1", "Bad"), order("e2", 2, 3)]).await;
    assert_eq!(outbox.drain_now().await, Counts { retry: 1, done: 1, ..Counts::default() });
    let failed = outbox.admin().find(mailer.deliveries()[0].id()).await.unwrap().unwrap();
    assert_eq!(failed.state.last_error.as_deref(), Some("failed on demand"));

    mailer.recover();
    outbox.advance(Duration::from_secs(1)).await;
    assert_eq!(outbox.drain_now().await.done, 2);
    let attempts: Vec<_> = mailer.deliveries().iter().map(|event| (event.id().to_string(), event.attempt())).collect();
    assert_eq!(attempts, [("e1".to_owned(), 1), ("e2".to_owned(), 1), ("e1".to_owned(), 2)]);
    assert_eq!(mailer.received::<OrderPlaced>(), [OrderPlaced { id: 2, total: 3 }]);
}

#[tokio::test(start_paused = true)]
async fn it_answers_as_it_is_told() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    mailer.answer_next(1, |event| Ok(Outcome::Dead(format!("{} is not wanted", event.id()))));
    write(&outbox, [event("e1", "Any")]).await;
    assert_eq!(outbox.drain_now().await.dead, 1);
    let dead = outbox.admin().find(mailer.deliveries()[0].id()).await.unwrap().unwrap();
    assert_eq!(dead.state.last_error.as_deref(), Some("e1 is not wanted"));
}

#[tokio::test]
async fn it_holds_events_at_a_gate() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    let gate = mailer.block();
    write(&outbox, [event("e1", "Any")]).await;
    mailer.wait_for(1).await;
    assert_eq!((outbox.in_flight(), outbox.admin().counts().await.unwrap().new), (1, 1));
    gate.open();
    assert_eq!(outbox.drain_now().await.done, 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_vain_hears_what_was_received() {
    let mailer = Recorder::new();
    let second = Duration::from_secs(1);
    let none = failure(mailer.wait_for_within(1, second)).await;
    assert_eq!(none, "waited 1s in vain for 1 deliveries; there were none");
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    mailer.fail_next(1);
    write(&outbox, [order("e1", 1, 1)]).await;
    let message = failure(mailer.wait_for_within(3, second)).await;
    assert_eq!(
        message,
        "waited 1s in vain for 3 deliveries; there were 2:\n  \
         e1 OrderPlaced of Order 1, attempt 1\n  e1 OrderPlaced of Order 1, attempt 2"
    );
}
