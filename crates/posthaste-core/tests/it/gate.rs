//! Listeners behind gates: what cannot be reached is not claimed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{AnyListener, Gate, Outcome, Room, batch};
use posthaste_core::outbox::StartError;
use posthaste_core::testing::{Call, Faulty};
use posthaste_core::{Delivery, Event, MemoryStore, Outbox};

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
