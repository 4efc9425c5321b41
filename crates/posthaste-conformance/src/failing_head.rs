//! Part G: what a failing event does to those behind it.

use std::time::Duration;

use posthaste_core::store::{AdminStore, Redrive};
use posthaste_core::{Failure, Listener, OnDead, Options, OutboxBuilder, Outcome, Status};

use crate::course::{key, number_of, numbered, options, ordered, told, write_each};
use crate::fixture::Lanes;
use crate::rows::{insert, state};
use crate::tap::Tap;

/// A listener that fails with the first event of an order, as often as it is told to, and shows what it gets.
fn failing(tap: Tap, failing: &'static str, times: u32) -> Tap {
    tap.answering(move |event| {
        let is_head = event.aggregate_id() == Some(failing) && number_of(event) == 0;
        if is_head && event.attempt() <= times { Err(Failure::retryable("not yet")) } else { Ok(Outcome::Done) }
    })
}

/// Behind an event that fails nothing of its order begins; other orders go on.
pub async fn case_87_block<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    // More often than a retry policy of two attempts allows.
    let listener = failing(tap, "bad", 4).on_dead(OnDead::Block);
    let (outbox, meter) = ordered(fixture.store(), options(), |builder| builder.listen_all(listener)).await;
    write_each(&outbox, ["bad", "good"].iter().flat_map(|order| (0..3).map(move |number| numbered(order, number))))
        .await;
    meter.until("all are delivered", |tally| tally.delivered == 6).await;
    let deliveries = inbox.rest();
    assert_eq!(told(&deliveries, "bad"), [0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(told(&deliveries, "good"), [0, 1, 2]);
    let attempts: Vec<_> = deliveries.iter().filter(|event| event.aggregate_id() == Some("bad")).collect();
    assert_eq!(attempts.iter().map(|event| event.attempt()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 1, 1]);
    assert!(attempts.windows(2).all(|pair| pair[0].seq() <= pair[1].seq()));
    assert_eq!((meter.tally().failed, meter.tally().dead), (4, 0));
    outbox.shutdown().await;
}

/// An event that would be tried again in an hour is given up by an operator: it is DEAD, and those behind it go on at once.
pub async fn case_87_given_up<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let hour = Duration::from_secs(3600);
    let options = Options { retry_base: hour, retry_max: hour, ..options() };
    let listener = failing(tap, "bad", u32::MAX).on_dead(OnDead::Block);
    let (outbox, meter) = ordered(fixture.node().await, options, |builder| builder.listen_all(listener)).await;
    let events: Vec<_> = (0..3).map(|number| numbered("bad", number)).collect();
    write_each(&outbox, events.clone()).await;
    meter.until("the first has failed", |tally| tally.failed == 1).await;
    assert!(!fixture.store().give_up_head(&key("bad"), events[1].id()).await.unwrap());
    assert!(fixture.store().give_up_head(&key("bad"), events[0].id()).await.unwrap());
    outbox.wake();
    meter.until("the others are delivered", |tally| tally.delivered == 2).await;
    assert_eq!(told(&inbox.rest(), "bad"), [0, 1, 2]);
    let head = state(&fixture.store(), events[0].id()).await;
    assert_eq!((head.status, head.attempts, head.last_error.as_deref()), (Status::Dead, 1, Some("not yet")));
    assert_eq!(fixture.store().closed_keys(10).await.unwrap(), []);
    outbox.shutdown().await;
}

/// Of a key that is parked there is nothing to give up: it stays as it is, and nothing overtakes, until somebody decides about it.
pub async fn case_87_given_up_when_parked<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let listener = failing(tap, "bad", 2);
    let (outbox, meter) = ordered(fixture.node().await, options(), |builder| builder.listen_all(listener)).await;
    let events: Vec<_> = (0..3).map(|number| numbered("bad", number)).collect();
    write_each(&outbox, events.clone()).await;
    meter.until("the first is dead", |tally| tally.dead == 1).await;
    for event in &events {
        assert!(!fixture.store().give_up_head(&key("bad"), event.id()).await.unwrap());
    }
    outbox.wake();
    write_each(&outbox, [numbered("other", 0)]).await;
    meter.until("others go on", |tally| tally.delivered == 1).await;
    assert_eq!(told(&inbox.rest(), "bad"), [0, 0]);
    let closed = fixture.store().closed_keys(10).await.unwrap();
    assert_eq!(
        closed.iter().map(|closed| (&closed.head_id, closed.reopened)).collect::<Vec<_>>(),
        [(events[0].id(), false)]
    );
    let states = [Status::Dead, Status::New, Status::New];
    for (event, status) in events.iter().zip(states) {
        assert_eq!(state(&fixture.store(), event.id()).await.status, status);
    }
    assert!(fixture.store().skip_head(&key("bad"), events[0].id()).await.unwrap());
    outbox.wake();
    meter.until("those behind it go on", |tally| tally.delivered == 3).await;
    assert_eq!(told(&inbox.rest(), "bad"), [1, 2]);
    outbox.shutdown().await;
}

/// An event that is given up is DEAD, and those behind it go on, where that was chosen.
pub async fn case_87_skip<F: Lanes>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let listener = failing(tap, "bad", u32::MAX).on_dead(OnDead::Skip);
    let (outbox, meter) = ordered(fixture.store(), options(), |builder| builder.listen_all(listener)).await;
    let events: Vec<_> = (0..3).map(|number| numbered("bad", number)).collect();
    write_each(&outbox, events.clone()).await;
    meter.until("the others are delivered", |tally| tally.delivered == 2).await;
    assert_eq!(told(&inbox.rest(), "bad"), [0, 0, 1, 2]);
    assert_eq!(state(&fixture.store(), events[0].id()).await.status, Status::Dead);
    // Redriven, it comes late.
    fixture.store().redrive(&Redrive::ids([events[0].id().clone()])).await.unwrap();
    outbox.wake();
    assert_eq!(number_of(inbox.next().await.event()), 0);
    outbox.shutdown().await;
}

/// Behind an event that is given up nothing of its order is delivered until somebody decides, whoever has the lane meanwhile.
pub async fn case_87_park<F: Lanes>(fixture: F) {
    for order in ["released", "skipped", "redriven"] {
        let (tap, mut inbox) = Tap::new();
        let (outbox, meter) = {
            let listener = failing(tap, order, u32::MAX);
            ordered(fixture.store(), options(), |builder| builder.listen_all(listener)).await
        };
        let events: Vec<_> = (0..3).map(|number| numbered(order, number)).collect();
        write_each(&outbox, events.clone()).await;
        meter.until("the first is dead", |tally| tally.dead == 1).await;
        write_each(&outbox, [numbered("other", 0)]).await;
        meter.until("others go on", |tally| tally.delivered == 1).await;
        outbox.shutdown().await;
        assert_eq!(told(&inbox.rest(), order), [0, 0]);

        // Another relay, whose listener does not fail, knows of it, too.
        let (tap, mut inbox) = Tap::new();
        let (outbox, meter) = ordered(fixture.node().await, options(), |builder| builder.listen_all(tap)).await;
        write_each(&outbox, [numbered(order, 3), numbered("other", 1)]).await;
        meter.until("others go on", |tally| tally.delivered == 1).await;
        assert_eq!(told(&inbox.rest(), order), [0; 0]);
        let closed = fixture.store().closed_keys(10).await.unwrap();
        assert_eq!(closed.iter().map(|closed| &closed.key).collect::<Vec<_>>(), [&key(order)]);
        assert_eq!(&closed[0].head_id, events[0].id());
        let (store, head) = (fixture.store(), events[0].id());
        let decided = match order {
            "skipped" => store.skip_head(&key(order), head).await.unwrap(),
            "released" => store.release_key(&key(order), head).await.unwrap(),
            // To redrive the event that is to blame is to release its order.
            _ => store.redrive(&Redrive::ids([head.clone()])).await.unwrap() == 1,
        };
        assert!(decided);
        let skips = order == "skipped";
        let rest = if skips { 3 } else { 4 };
        meter.until("it goes on", |tally| tally.delivered == 1 + rest).await;
        let expected: &[u32] = if skips { &[1, 2, 3] } else { &[0, 1, 2, 3] };
        assert_eq!(told(&inbox.rest(), order), expected);
        assert_eq!(fixture.store().closed_keys(10).await.unwrap(), []);
        outbox.shutdown().await;
    }
}

/// A row that is no event has its place in the order, and is DEAD in it.
pub async fn case_87_undecodable<F: Lanes>(fixture: F) {
    let events: Vec<_> = (0..3).map(|number| numbered("damaged", number)).collect();
    insert(&fixture.store(), &events).await;
    fixture.damage(events[1].id()).await;
    let (tap, mut inbox) = Tap::new();
    let more = |builder: OutboxBuilder<F::Store>| builder.on_dead(OnDead::Skip).listen_all(tap);
    let (outbox, meter) = ordered(fixture.store(), options(), more).await;
    meter.until("all are through", |tally| tally.delivered == 2 && tally.dead == 1).await;
    assert_eq!(told(&inbox.rest(), "damaged"), [0, 2]);
    assert_eq!(state(&fixture.store(), events[1].id()).await.status, Status::Dead);
    outbox.shutdown().await;
}
