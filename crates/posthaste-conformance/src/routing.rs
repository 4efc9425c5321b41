//! Part D: which listener gets which event.

use std::sync::{Arc, Mutex};

use posthaste_core::event::GLOBAL;
use posthaste_core::listener::{Delivery, FanOut, Outcome};
use posthaste_core::outbox::StartError;
use posthaste_core::{Event, EventType, Outbox, Status, registry};

use crate::fixture::Fixture;
use crate::meter::Meter;
use crate::outboxes::{no_interval, write, write_all};
use crate::rows::{assert_at, counts, event, insert};
use crate::tap::Tap;

fn of(aggregate_type: &str, event_type: &str) -> Event {
    Event::builder(event_type).aggregate_type(aggregate_type).json_text("{}").build().unwrap()
}

/// A type of event as an enum gives it.
enum Orders {
    Placed,
}

impl EventType for Orders {
    fn name(&self) -> &str {
        match self {
            Self::Placed => "Placed",
        }
    }
}

/// The most exact registration gets the event: both names, then the aggregate type, then the event type, then all.
pub async fn case_40_most_exact_route<F: Fixture>(fixture: F) {
    let meter = Meter::new();
    let mut builder = Outbox::builder(fixture.store()).options(no_interval()).metrics(meter.clone());
    let mut inboxes = Vec::new();
    for (aggregate_type, event_type) in [("Order", "*"), ("*", "*"), ("*", "Placed"), (GLOBAL, "Placed")] {
        let (tap, inbox) = Tap::new();
        builder = builder.listen(aggregate_type, event_type, tap);
        inboxes.push(inbox);
    }
    let (tap, inbox) = Tap::new();
    let outbox = builder.listen("Order", Orders::Placed, tap).start().await.unwrap();
    inboxes.push(inbox);
    for (expected, aggregate_type, event_type) in [
        (4, "Order", "Placed"),
        (0, "Order", "Paid"),
        (2, "Bill", "Placed"),
        (1, "Bill", "Paid"),
        (3, GLOBAL, "Placed"),
        (1, GLOBAL, "Paid"),
        (1, "order", "placed"),
    ] {
        let id = write(&outbox, of(aggregate_type, event_type)).await;
        assert_eq!(inboxes[expected].next().await.id(), &id, "{aggregate_type}/{event_type}");
    }
    meter.until("all are delivered", |tally| tally.delivered == 7).await;
    outbox.shutdown().await;
    for mut inbox in inboxes {
        inbox.assert_empty();
    }
}

/// A pair of names has one listener; a second is refused when the outbox starts, with both names.
pub async fn case_40_duplicate_registration<F: Fixture>(fixture: F) {
    for (aggregate_type, event_type) in [("Order", "Placed"), ("*", "*")] {
        let twice = Outbox::builder(fixture.store())
            .listen(aggregate_type, event_type, |_: Delivery| async {})
            .listen("Other", "Placed", |_: Delivery| async {})
            .listen(aggregate_type, event_type, |_: Delivery| async {});
        let Err(StartError::Registry(error)) = twice.start().await else { panic!("it was accepted") };
        assert!(matches!(error, registry::Error::Taken { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(aggregate_type) && text.contains(event_type) && text.contains("FanOut"), "{text}");
    }
    for (aggregate_type, event_type) in [("", "Placed"), ("Order", "")] {
        let empty = Outbox::builder(fixture.store()).listen(aggregate_type, event_type, |_: Delivery| async {});
        assert!(matches!(empty.start().await, Err(StartError::Registry(registry::Error::Empty { .. }))));
    }
}

/// Several listeners for one event run in the order in which they were added, and the first that is not done ends it.
pub async fn case_40_fan_out<F: Fixture>(fixture: F) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let listener = |name: &'static str, fails_at: u32| {
        let calls = Arc::clone(&calls);
        move |event: Delivery| {
            calls.lock().unwrap().push((name, event.attempt()));
            async move { if event.attempt() == fails_at { Err("not yet") } else { Ok(()) } }
        }
    };
    let meter = Meter::new();
    let outbox = Outbox::builder(fixture.store())
        .options(posthaste_core::Options { retry_base: std::time::Duration::ZERO, ..no_interval() })
        .metrics(meter.clone())
        .listen_all(FanOut::new().and(listener("a", 0)).and(listener("b", 1)).and(listener("c", 0)))
        .start()
        .await
        .unwrap();
    let id = write(&outbox, event("Happened")).await;
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    assert_eq!(*calls.lock().unwrap(), [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("c", 2)]);
    outbox.shutdown().await;
    assert_at(outbox.store(), &id, Status::Done, 1).await;
}

/// An event that nobody listens for is DEAD at once, hot or cold, and says what is missing. It was no attempt.
pub async fn case_41_unroutable<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let meter = Meter::new();
    let cold = of("Order", "Unheard");
    insert(&fixture.store(), std::slice::from_ref(&cold)).await;
    let outbox = Outbox::builder(fixture.store())
        .options(no_interval())
        .metrics(meter.clone())
        .listen("Order", "Placed", tap)
        .start()
        .await
        .unwrap();
    let hot = write(&outbox, of("Order", "Unheard")).await;
    let routed = write(&outbox, of("Order", "Placed")).await;
    assert_eq!(inbox.next().await.id(), &routed);
    meter.until("both are dead", |tally| tally.dead == 2).await;
    for id in [cold.id(), &hot] {
        let dead = assert_at(outbox.store(), id, Status::Dead, 0).await;
        let error = dead.last_error.unwrap();
        assert!(error.contains("\"Order\"") && error.contains("\"Unheard\""), "{error}");
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Events that waited in the table before the start find every listener, also the one registered last.
pub async fn case_41_listeners_are_complete_at_the_start<F: Fixture>(fixture: F) {
    let names: Vec<String> = (0..20).map(|n| format!("Type{n}")).collect();
    let waiting: Vec<Event> = names.iter().map(|name| of("Order", name)).collect();
    insert(&fixture.store(), &waiting).await;
    let meter = Meter::new();
    let mut builder = Outbox::builder(fixture.store()).options(no_interval()).metrics(meter.clone());
    for name in &names {
        builder = builder.listen("Order", name, |_: Delivery| async { Outcome::Done });
    }
    let outbox = builder.start().await.unwrap();
    meter.until("all are settled", |tally| tally.delivered + tally.dead == 20).await;
    assert_eq!(meter.tally().dead, 0);
    outbox.shutdown().await;
}

/// Without any listener an outbox does not start, so nothing dies of it.
pub async fn case_41_no_listener_at_all<F: Fixture>(fixture: F) {
    insert(&fixture.store(), &[event("Waiting")]).await;
    let Err(error) = Outbox::builder(fixture.store()).start().await else { panic!("it started") };
    assert!(matches!(error, StartError::NoListener));
    assert!(error.to_string().contains("writer_only"), "{error}");
    assert_eq!(counts(&fixture.store()).await.new, 1);
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    write_all(&outbox, [event("x")]).await;
}
