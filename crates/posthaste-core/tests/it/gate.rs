//! Listeners behind gates: what cannot be reached is not claimed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{AnyListener, Gate, Outcome, Room, batch};
use posthaste_core::outbox::StartError;
use posthaste_core::testing::{Call, Faulty, Recorder};
use posthaste_core::{Delivery, Event, FanOut, Listener, MemoryStore, Options, Outbox, RetryPolicy};

/// A gate that a test opens and shuts.
#[derive(Clone)]
struct ByHand(Arc<Mutex<Room>>);

impl ByHand {
    fn new(room: Room) -> Self {
        Self(Arc::new(Mutex::new(room)))
    }

    fn set(&self, room: Room) {
        *self.0.lock().unwrap() = room;
    }
}

impl Gate for ByHand {
    fn room(&self) -> Room {
        *self.0.lock().unwrap()
    }
}

const SHUT: Room = Room::ShutFor(Duration::from_secs(1));

fn behind(gate: &ByHand) -> impl Into<AnyListener> {
    let done = |events: Vec<Delivery>| async move { events.iter().map(|_| Ok(Outcome::Done)).collect() };
    batch(done).with_gate(gate.clone())
}

/// A table in which so many events of that type wait.
async fn waiting(event_type: &str, events: usize) -> MemoryStore {
    let store = MemoryStore::new();
    let writer = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    tx.write_all((0..events).map(|_| Event::of_json(event_type, "{}"))).await.unwrap();
    tx.commit().await.unwrap();
    store
}

#[tokio::test(start_paused = true)]
async fn while_every_gate_is_shut_nothing_is_claimed() {
    let table = waiting("Any", 50).await;
    let (store, faults) = Faulty::new(table.clone());
    let gate = ByHand::new(SHUT);
    let outbox = Outbox::builder(store).listen_all(behind(&gate)).start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(faults.count(Call::Claim), 0);
    gate.set(Room::Open);
    crate::until(&table, "all are done", |counts| counts.done == 50).await;
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_tries_gets_a_few() {
    let table = waiting("Any", 50).await;
    let (store, faults) = Faulty::new(table.clone());
    let gate = ByHand::new(Room::Few(3));
    let outbox = Outbox::builder(store).listen_all(behind(&gate)).start().await.unwrap();
    crate::until(&table, "some are done", |counts| counts.done > 0).await;
    assert!(faults.limits().iter().all(|limit| *limit <= 3), "{:?}", faults.limits());
    gate.set(Room::Open);
    crate::until(&table, "all are done", |counts| counts.done == 50).await;
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_open_way_is_enough() {
    let table = waiting("Open", 50).await;
    let gate = ByHand::new(SHUT);
    let outbox = Outbox::builder(table.clone())
        .listen("*", "Shut", behind(&gate))
        .listen("*", "Open", |_: Delivery| async {})
        .start()
        .await
        .unwrap();
    crate::until(&table, "all are done", |counts| counts.done == 50).await;
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_listener_of_wrong_settings_is_refused_at_the_start() {
    let mistaken = AnyListener::mistaken(std::io::Error::other("no such topic"));
    let error = Outbox::builder(MemoryStore::new()).listen("Order", "*", mistaken).start().await.unwrap_err();
    assert!(matches!(error, StartError::Registry(_)));
    let text = error.to_string();
    assert!(text.contains("\"Order\"") && text.ends_with("no such topic"), "{text}");
}

#[tokio::test]
async fn a_fan_out_with_a_listener_of_wrong_settings_is_refused_at_the_start() {
    let mistaken = || AnyListener::mistaken(std::io::Error::other("no such topic"));
    let whole = || FanOut::new().and(|_: Delivery| async {}).and(mistaken());
    for listener in [
        whole().into(),
        AnyListener::from(whole().with_retry(RetryPolicy::never()).with_span().with_concurrency(1)),
        FanOut::new().and(whole().around(|event, next| async move { next.run(event).await })).into(),
    ] {
        let error = Outbox::builder(MemoryStore::new()).listen("Order", "*", listener).start().await.unwrap_err();
        assert!(error.to_string().ends_with("no such topic"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_in_a_fan_out_gets_an_event_before_all_gates_are_open() {
    let table = waiting("Any", 20).await;
    let (first, gate, other) = (Recorder::new(), ByHand::new(Room::Open), ByHand::new(SHUT));
    let whole = FanOut::new().and(first.clone()).and(behind(&gate)).and(behind(&other)).with_span();
    // Events of the other route are claimed, and those of this one with them.
    let outbox = Outbox::builder(table.clone()).listen_all(whole).listen("*", "Other", |_: Delivery| async {});
    let outbox = outbox.start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(first.count(), 0, "it was given events that could not get to the last");
    other.set(Room::Open);
    crate::until(&table, "all are done", |counts| counts.done == 20).await;
    assert_eq!(first.count(), 20);
    outbox.shutdown().await;

    let (store, faults) = Faulty::new(waiting("Any", 20).await);
    let outbox = Outbox::builder(store).listen_all(FanOut::new().and(first).and(behind(&gate)));
    gate.set(SHUT);
    let outbox = outbox.start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(faults.count(Call::Claim), 0, "it was claimed for a fan-out that is shut");
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_event_of_a_fan_out_at_a_time_tries_a_gate() {
    let table = waiting("Any", 20).await;
    let (first, gate) = (Recorder::new(), ByHand::new(Room::Few(10)));
    // Turned away behind the gate, as by a broker that is still away, after the time that it takes to notice.
    let away = |events: Vec<Delivery>| async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        events.iter().map(|_| Ok(Outcome::RetryAfter(Duration::from_secs(5)))).collect()
    };
    let whole = FanOut::new().and(first.clone()).and(batch(away).with_gate(gate));
    let outbox = Outbox::builder(table).options(Options { workers: 8, ..Options::default() }).listen_all(whole);
    let outbox = outbox.start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!((6..=12).contains(&first.count()), "{} in a minute", first.count());
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_has_the_time_of_all_its_listeners() {
    let table = waiting("Any", 1).await;
    let takes = |seconds: u64| {
        let slow = move |_: Delivery| tokio::time::sleep(Duration::from_secs(seconds));
        slow.with_time_limit(Duration::from_secs(seconds + 1))
    };
    // Beside the minute of the options for who says nothing.
    let rest = |_: Delivery| tokio::time::sleep(Duration::from_secs(50));
    let whole = FanOut::new().and(takes(40)).and(FanOut::new().and(rest).and(takes(50)));
    let outbox = Outbox::builder(table.clone()).listen_all(whole).start().await.unwrap();
    crate::until(&table, "it is done", |counts| counts.done == 1).await;
    outbox.shutdown().await;
}
