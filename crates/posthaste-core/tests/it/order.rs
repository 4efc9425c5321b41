//! Order, as a whole outbox keeps it.

use std::time::Duration;

use posthaste_core::listener::Failure;
use posthaste_core::store::{AdminStore, Key, Stall};
use posthaste_core::{Delivery, Event, EventId, MemoryStore, Ordered, Outbox};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::until;

/// Less than what passes between two sweeps.
const AT_ONCE: Duration = Duration::from_secs(1);

/// An outbox in which everything called Bad is DEAD, and what it delivers.
async fn outbox(store: &MemoryStore) -> (Outbox<MemoryStore>, UnboundedReceiver<String>) {
    let (tell, told) = unbounded_channel();
    let listener = move |event: Delivery| {
        let tell = tell.clone();
        async move {
            if event.event_type() == "Bad" {
                return Err(Failure::permanent("it is bad"));
            }
            let _ = tell.send(event.id().to_string());
            Ok(())
        }
    };
    let outbox = Outbox::builder(store.clone()).ordered(Ordered::types(["Order"])).listen_all(listener);
    (outbox.start().await.unwrap(), told)
}

async fn write(outbox: &Outbox<MemoryStore>, events: &[(&str, &str, &str)]) {
    let mut tx = outbox.begin().await.unwrap();
    for (id, event_type, order) in events {
        tx.write(Event::builder(*event_type).id(*id).aggregate("Order", *order).json_text("{}")).await.unwrap();
    }
    tx.commit().await.unwrap();
}

fn key(order: &str) -> Key {
    Key { aggregate_type: "Order".into(), aggregate_id: order.into() }
}

#[tokio::test(start_paused = true)]
async fn who_is_woken_looks_at_once_for_aggregates_that_were_let_go_on() {
    let store = MemoryStore::new();
    let (outbox, mut told) = outbox(&store).await;
    for (round, order) in ["1", "2", "3"].into_iter().enumerate() {
        let id = |what: &str| format!("{order}-{what}");
        write(&outbox, &[(&id("bad"), "Bad", order), (&id("next"), "Good", order)]).await;
        until(&store, "it is parked", |counts| counts.dead == round as u64 + 1).await;
        let stalled = store.stalled_keys(10).await.unwrap();
        assert_eq!((stalled.len(), stalled[0].stall, stalled[0].waiting), (1, Stall::Parked, 1));
        // A moment after a sweep, and before the next.
        tokio::time::sleep(Duration::from_millis(700) * u32::try_from(round).unwrap()).await;
        assert!(told.try_recv().is_err(), "nothing overtakes");
        assert!(store.skip_head(&key(order), &EventId::from_row(id("bad"))).await.unwrap());
        outbox.wake();
        let next = timeout(AT_ONCE, told.recv()).await.expect("it waits for the next sweep");
        assert_eq!(next, Some(id("next")));
    }
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_redriven_below_the_cursor_is_found_at_once_when_it_is_said() {
    let store = MemoryStore::new();
    let (outbox, mut told) = outbox(&store).await;
    // Not in order, so that others go on.
    let mut tx = outbox.begin().await.unwrap();
    tx.write(Event::builder("Bad").id("bad").aggregate("Other", "9").json_text("{}")).await.unwrap();
    tx.commit().await.unwrap();
    until(&store, "it is dead", |counts| counts.dead == 1).await;
    write(&outbox, &[("good", "Good", "1")]).await;
    assert_eq!(told.recv().await.as_deref(), Some("good"));
    tokio::time::sleep(Duration::from_secs(7)).await;
    let all = posthaste_core::store::Redrive::matching(posthaste_core::store::Filter::default());
    assert_eq!(store.redrive(&all).await.unwrap(), 1);
    outbox.wake();
    timeout(AT_ONCE, until(&store, "it was tried again", |counts| counts.dead == 1)).await.expect("it waits");
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_takes_a_lane_over_hears_what_an_operator_has_decided() {
    let store = MemoryStore::new();
    let (first, _told) = outbox(&store).await;
    write(&first, &[("bad", "Bad", "1"), ("next", "Good", "1")]).await;
    until(&store, "it is parked", |counts| counts.dead == 1).await;
    first.shutdown().await;
    assert!(store.skip_head(&key("1"), &EventId::from_row("bad")).await.unwrap());
    let (second, mut told) = outbox(&store).await;
    assert_eq!(timeout(AT_ONCE, told.recv()).await.expect("it waits for the next sweep").as_deref(), Some("next"));
    let holders = store.lane_holders().await.unwrap().unwrap();
    assert_eq!((holders.orders("Order"), holders.orders("Other")), (Some(true), Some(false)));
    second.shutdown().await;
}
