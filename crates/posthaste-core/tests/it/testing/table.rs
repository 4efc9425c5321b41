//! Questions to the table.

use std::time::Duration;

use posthaste_core::listener::Failure;
use posthaste_core::store::Counts;
use posthaste_core::testing::{self, Recorder, TestOutbox, Wanted};
use posthaste_core::{Delivery, Event, MemoryStore, Options, Outbox};

use super::{OrderPlaced, event, failure, order, write};

#[tokio::test]
async fn an_event_is_found_by_everything_that_it_is() {
    let outbox = testing::writer().await;
    let full = order("e1", 42, 3).tenant_id("acme").header("trace", "7f3a");
    write(&outbox, [full, event("e2", "OrderCancelled")]).await;

    let total = 3;
    let found = outbox.assert_written::<OrderPlaced>(|order| order.total == total).await;
    assert_eq!(found.id().as_str(), "e1");
    outbox.assert_written_event(Wanted::any().times(2)).await;
    outbox.assert_written_event(Wanted::id(found.id()).times(1)).await;
    let all = || Wanted::event("OrderPlaced").aggregate("Order", 42).tenant_id("acme").header("trace", "7f3a");
    outbox.assert_written_event(all().json(|order| order["total"] == 3).that(|event| !event.is_delayed())).await;

    // Each condition counts.
    outbox.assert_not_written(Wanted::event("OrderShipped")).await;
    outbox.assert_not_written(Wanted::any().aggregate("Order", 43)).await;
    outbox.assert_not_written(Wanted::any().aggregate("Customer", 42)).await;
    outbox.assert_not_written(Wanted::any().tenant_id("other")).await;
    outbox.assert_not_written(Wanted::any().header("trace", "other")).await;
    outbox.assert_not_written(all().json(|order| order["total"] == 4)).await;
    outbox.assert_not_written(all().that(Event::is_delayed)).await;
    outbox.assert_not_written(Wanted::typed::<OrderPlaced>(|order| order.id == 7)).await;
    assert_eq!(outbox.written::<OrderPlaced>().await, [OrderPlaced { id: 42, total: 3 }]);
}

#[tokio::test]
async fn the_same_event_type_of_another_aggregate_is_not_taken_for_a_typed_event() {
    let outbox = testing::writer().await;
    let other = Event::builder("OrderPlaced").aggregate("Wholesale", 1).json_text(r#"{"id":1,"total":3}"#);
    write(&outbox, [other]).await;
    outbox.assert_not_written(Wanted::typed::<OrderPlaced>(|_| true)).await;
    assert_eq!(outbox.written::<OrderPlaced>().await, []);
}

#[tokio::test]
async fn what_is_not_there_is_told_with_what_is() {
    let outbox = testing::writer().await;
    let wanted = || outbox.assert_written::<OrderPlaced>(|order| order.total == 3);
    assert_eq!(
        failure(wanted()).await,
        "OrderPlaced with a payload that fits the condition given was not written; the table is empty"
    );

    let bytes = Event::builder("Scanned").id("e2").aggregate_type("Page").bytes(vec![1, 2, 3]);
    write(&outbox, [order("e1", 42, 4), bytes]).await;
    assert_eq!(
        failure(wanted()).await,
        "OrderPlaced with a payload that fits the condition given was not written; the table holds 2 events:\n  \
         e1 OrderPlaced of Order 42, NEW\n    {\"id\":42,\"total\":4}\n  \
         e2 Scanned of Page, NEW\n    3 bytes of application/octet-stream"
    );
}

#[tokio::test]
async fn a_wrong_number_is_told() {
    let outbox = testing::writer().await;
    write(&outbox, [order("e1", 1, 1), order("e2", 2, 2)]).await;
    let one = outbox.assert_written_event(Wanted::event("OrderPlaced").times(1));
    let message = failure(one).await;
    assert!(
        message.starts_with("OrderPlaced was written 2 times instead of 1; the table holds 2 events:\n"),
        "{message}"
    );
    let none = failure(outbox.assert_written_event(Wanted::event("OrderShipped").times(2))).await;
    assert!(none.starts_with("OrderShipped was written 0 times instead of 2; "), "{none}");
}

#[tokio::test]
async fn a_payload_that_does_not_decode_is_told() {
    let outbox = testing::writer().await;
    let wrong = Event::builder("OrderPlaced").id("e1").aggregate("Order", 1).json_text(r#"{"id":1,"total":"two"}"#);
    write(&outbox, [wrong]).await;
    let expected = "the table holds 1 event:\n  e1 OrderPlaced of Order 1, NEW\n    {\"id\":1,\"total\":\"two\"}\n    \
                    cannot be looked at: OrderPlaced version 1 does not decode: total: invalid type: string \"two\", \
                    expected u32 at line 1 column 21; mend the reader or the payload, then redrive the event";
    assert_eq!(
        failure(outbox.assert_written::<OrderPlaced>(|_| true)).await,
        format!("OrderPlaced with a payload that fits the condition given was not written; {expected}")
    );
    assert_eq!(
        failure(outbox.written::<OrderPlaced>()).await,
        format!(
            "OrderPlaced with a payload that fits the condition given was written, but not all of it decodes; {expected}"
        )
    );
}

#[tokio::test]
async fn nothing_is_written_by_a_rollback() {
    let outbox = testing::writer().await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order("e1", 1, 1)).await.unwrap();
    tx.rollback().await.unwrap();
    outbox.assert_nothing_written().await;
    outbox.assert_not_written(Wanted::typed::<OrderPlaced>(|_| true)).await;

    write(&outbox, [event("e2", "OrderPlaced")]).await;
    let listed = "the table holds 1 event:\n  e2 OrderPlaced, NEW\n    {}";
    let message = failure(outbox.assert_nothing_written()).await;
    assert_eq!(message, format!("nothing should have been written; {listed}"));
    let message = failure(outbox.assert_not_written(Wanted::event("OrderPlaced"))).await;
    assert_eq!(message, format!("OrderPlaced was written; {listed}"));
}

#[tokio::test]
async fn a_long_list_and_a_long_payload_are_cut() {
    let outbox = testing::writer().await;
    let long = Event::builder("Any").json_text(format!("\"{}\"", "x".repeat(1000)));
    write(&outbox, std::iter::repeat_with(|| long.clone()).take(23)).await;
    let message = failure(outbox.assert_nothing_written()).await;
    assert!(message.starts_with("nothing should have been written; the table holds 23 events:\n"), "{message}");
    assert!(message.ends_with("x…\n  and 3 more"), "{message}");
    assert_eq!(message.lines().count(), 1 + 2 * 20 + 1);
}

#[tokio::test(start_paused = true)]
async fn a_delivery_is_waited_for_through_its_retries() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    mailer.fail_next(3);
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.write(order("e1", 1, 1)).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    outbox.wait_delivered(&id).await;
    assert_eq!(mailer.count(), 4);
    // Another one, by the number of its type.
    write(&outbox, [order("e2", 2, 2)]).await;
    outbox.wait_delivered(Wanted::event("OrderPlaced").times(2)).await;
    outbox.wait_delivered(Wanted::typed::<OrderPlaced>(|order| order.id == 2)).await;
    assert_eq!(mailer.count(), 5);
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_vain_hears_where_the_event_stands() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await.with_patience(Duration::from_secs(1));
    let nothing = failure(outbox.wait_delivered(Wanted::event("OrderPlaced"))).await;
    let expected = "waited 1s in vain until OrderPlaced is delivered; 0 written, 0 delivered; the table is empty";
    assert_eq!(nothing, expected);

    mailer.answer_type("OrderPlaced", |_| Err(Failure::retryable("smtp is down").retry_in(Duration::from_secs(60))));
    write(&outbox, [order("e1", 1, 1), event("e2", "Other")]).await;
    let message = failure(outbox.wait_delivered(Wanted::event("OrderPlaced").times(2))).await;
    let due_at = outbox.admin().find(&"e1".parse_id()).await.unwrap().unwrap().state.available_at;
    assert_eq!(
        message,
        format!(
            "waited 1s in vain until OrderPlaced is delivered; 1 of 2 written, 0 delivered; the table holds 2 events:\n  \
             e1 OrderPlaced of Order 1, RETRY after 1 failure, due at {due_at}, last error: smtp is down\n    \
             {{\"id\":1,\"total\":1}}\n  e2 Other, DONE\n    {{}}"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_what_is_dead_does_not_wait() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    mailer.answer_next(1, |_| Err(Failure::permanent("no such customer")));
    write(&outbox, [order("e1", 1, 1)]).await;
    let started_at = tokio::time::Instant::now();
    let message = failure(outbox.wait_delivered(Wanted::any())).await;
    assert_eq!(
        message,
        "any event is DEAD; the table holds 1 event:\n  \
         e1 OrderPlaced of Order 1, DEAD after 1 failure, last error: no such customer\n    {\"id\":1,\"total\":1}"
    );
    assert!(started_at.elapsed() < Duration::from_secs(1), "{:?}", started_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_with_what_is_left_for_later() {
    let mailer = Recorder::new();
    let outbox = testing::outbox().listen_all(mailer.clone()).start_test().await;
    assert_eq!(outbox.drain_now().await, Counts::default());
    mailer.fail_type("Late");
    mailer.answer_type("Poison", |_| Err(Failure::permanent("poison")));
    let tomorrow = event("e5", "Any").deliver_after(Duration::from_secs(86_400));
    let events = [event("e1", "Any"), event("e2", "Late"), event("e3", "Poison"), event("e4", "Any"), tomorrow];
    write(&outbox, events).await;
    assert_eq!(outbox.drain_now().await, Counts { new: 1, retry: 1, done: 2, dead: 1 });
    assert_eq!(outbox.in_flight(), 0);
}

#[tokio::test]
async fn a_backlog_is_drained_whatever_the_size_of_the_queues() {
    let store = MemoryStore::new();
    let writer = TestOutbox::over(store.clone()).await;
    write(&writer, (0..500).map(|n| order(&n.to_string(), n, 1))).await;
    let mailer = Recorder::new();
    let options = Options { hot_queue: 1, cold_queue: 3, poll_batch: 2, ..Options::default() };
    let outbox = testing::outbox_on(store).listen_all(mailer.clone()).options(options).start_test().await;
    write(&outbox, (500..600).map(|n| order(&n.to_string(), n, 1))).await;
    assert_eq!(outbox.drain_now().await, Counts { done: 600, ..Counts::default() });
    assert_eq!(mailer.count(), 600);
}

#[tokio::test]
async fn a_listener_that_writes_is_drained_as_well() {
    let store = MemoryStore::new();
    let writer = TestOutbox::over(store.clone()).await;
    let follow_up = writer.clone();
    let outbox = testing::outbox_on(store)
        .listen("Order", "OrderPlaced", move |placed: Delivery| {
            let outbox = follow_up.clone();
            async move { write(&outbox, [event(&format!("after {}", placed.id()), "Mailed")]).await }
        })
        .listen_all(Recorder::new())
        .start_test()
        .await;
    write(&outbox, (0..10).map(|n| order(&n.to_string(), n, 1))).await;
    assert_eq!(outbox.drain_now().await, Counts { done: 20, ..Counts::default() });
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_does_not_end_says_what_is_left() {
    let mailer = Recorder::new();
    let options = Options { owner: Some("me".into()), ..Options::default() };
    let outbox = testing::outbox().listen_all(mailer.clone()).options(options).start_test().await;
    let outbox = outbox.with_patience(Duration::from_secs(5));
    let gate = mailer.block();
    write(&outbox, [event("e1", "Any")]).await;
    let message = failure(outbox.drain_now()).await;
    let start = "waited 5s in vain until everything due is delivered; 1 in hand; the table holds 1 event:\n  \
                 e1 Any, NEW, leased by me-";
    assert!(message.starts_with(start), "{message}");
    gate.open();
    assert_eq!(outbox.drain_now().await.done, 1);
}

#[tokio::test]
async fn what_delivers_nothing_cannot_be_drained() {
    let nothing = "the outbox only writes or was shut down, so there is nothing to drain";
    assert_eq!(failure(testing::writer().await.drain_now()).await, nothing);
    let outbox = testing::outbox().listen_all(Recorder::new()).start_test().await;
    outbox.shutdown().await;
    assert_eq!(failure(outbox.drain_now()).await, nothing);
}

#[tokio::test]
async fn an_outbox_of_the_program_is_asked_as_well() {
    let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await.unwrap();
    let asked = TestOutbox::from(outbox.clone());
    write(&outbox, [order("e1", 1, 1)]).await;
    asked.wait_delivered(Wanted::any()).await;
}

#[tokio::test]
#[should_panic(expected = "the outbox did not start: no listener is registered")]
async fn what_cannot_start_fails_the_test() {
    testing::outbox().start_test().await;
}

trait ParseId {
    fn parse_id(&self) -> posthaste_core::EventId;
}

impl ParseId for str {
    fn parse_id(&self) -> posthaste_core::EventId {
        posthaste_core::EventId::new(self).unwrap()
    }
}
