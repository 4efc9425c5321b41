//! Writing in unusual ways.

use posthaste_core::memory::MemoryTx;
use posthaste_core::store::WriteStore;
#[cfg(feature = "testing")]
use posthaste_core::testing::{Call, Fault, Faulty};
use posthaste_core::{Delivery, Event, MemoryStore, Options, Outbox, Timestamp};

use crate::until;

#[test]
fn available_now_is_not_before_it_happened() {
    Event::builder("Any").json_text("{}").available_at(Timestamp::now()).build().unwrap();
    let long_ago = Timestamp::from_micros(0);
    assert!(Event::builder("Any").json_text("{}").available_at(long_ago).build().is_err());
}

/// Copies share the payload, and so do copies of copies; with another payload they are another event.
#[test]
fn a_changed_copy_shares_the_payload() {
    let payload = |event: &Event| event.payload().as_bytes().as_ptr();
    for event in [Event::of_json("Any", "[1, 2]"), Event::builder("Any").bytes([0, 1]).build()] {
        let event = event.unwrap();
        let copy = event.to_builder().header("seen", "yes").build().unwrap();
        let second = copy.to_builder().topic("t").build().unwrap();
        assert_eq!((payload(&copy), payload(&second)), (payload(&event), payload(&event)));
        assert_eq!((copy.content_type(), copy.payload()), (event.content_type(), event.payload()));
        drop((event, copy));
        assert_eq!(second.shared_payload(), second.payload().as_bytes());
        assert!(second.to_builder().json_text("1").build().is_err(), "it has one already");
    }
}

#[tokio::test(start_paused = true)]
async fn receipts_of_two_outboxes_each_go_their_own_way() {
    let (first, second) = (MemoryStore::new(), MemoryStore::new());
    let start = |store: &MemoryStore| {
        let options = Options { hot_queue: 1, ..Options::default() };
        Outbox::builder(store.clone()).options(options).listen_all(|_: Delivery| async {}).start()
    };
    let (left, right) = (start(&first).await.unwrap(), start(&second).await.unwrap());
    for round in 1..=3 {
        let (mut tx, mut other) = (MemoryTx::new(), MemoryTx::new());
        let receipt = left.write(&mut tx, Event::of_json("Left", "{}")).await.unwrap();
        let receipt = receipt.and(right.write(&mut other, Event::of_json("Right", "{}")).await.unwrap());
        assert_eq!(receipt.ids().len(), 2);
        // Both went hot: with one place in each queue, a place that was not given back would show.
        assert!(receipt.rows().all(|row| row.lease.is_some()));
        first.commit(tx).await.unwrap();
        second.commit(other).await.unwrap();
        receipt.dispatch();
        until(&first, "the left is done", |counts| counts.done == round).await;
        until(&second, "the right is done", |counts| counts.done == round).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_receipt_that_is_dropped_does_not_make_the_keeper_forget_another() {
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone()).listen_all(|_: Delivery| async {}).start().await.unwrap();
    let mut late = MemoryTx::new();
    drop(outbox.write(&mut late, Event::of_json("Late", "{}")).await.unwrap());
    // The keeper looks for it in vain, with growing pauses.
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    store.commit(late).await.unwrap();
    // Another one is found at once.
    let mut soon = MemoryTx::new();
    let receipt = outbox.write(&mut soon, Event::of_json("Soon", "{}")).await.unwrap();
    store.commit(soon).await.unwrap();
    drop(receipt);
    let dropped_at = tokio::time::Instant::now();
    until(&store, "both are done", |counts| counts.done == 2).await;
    assert!(dropped_at.elapsed() < std::time::Duration::from_secs(4), "{:?}", dropped_at.elapsed());
}

/// What was written in a savepoint is given back once, but not given up when the database does not answer just then.
#[cfg(feature = "testing")]
#[tokio::test(start_paused = true)]
async fn a_lease_of_a_savepoint_is_given_back_after_an_error() {
    let table = MemoryStore::new();
    let (store, faults) = Faulty::new(table.clone());
    let outbox = Outbox::builder(store).listen_all(|_: Delivery| async {}).start().await.unwrap();
    let receipt = outbox.prepare([Event::of_json("Left", "{}")]).unwrap().nested();
    let mut tx = MemoryTx::new();
    table.insert(&mut tx, receipt.rows_to_insert()).await.unwrap();
    table.commit(tx).await.unwrap();
    faults.times(2, Call::Settle, Fault::Unavailable);
    receipt.dispatch();
    let dispatched_at = tokio::time::Instant::now();
    until(&table, "it is done", |counts| counts.done == 1).await;
    assert!(dispatched_at.elapsed() < std::time::Duration::from_secs(1), "{:?}", dispatched_at.elapsed());
    assert!(faults.count(Call::Settle) >= 4, "two that failed, the lease, and the end");

    // One that is not there is not looked for again.
    let settled = faults.count(Call::Settle);
    outbox.prepare([Event::of_json("Undone", "{}")]).unwrap().nested().dispatch();
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    assert_eq!(faults.count(Call::Settle), settled + 1);
}

#[tokio::test]
async fn no_two_writes_share_a_lease() {
    let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await.unwrap();
    let prepare = || outbox.prepare([Event::builder("Any").id("again").json_text("{}")]).unwrap();
    let (first, second) = (prepare(), prepare());
    let lease = |receipt: &posthaste_core::Receipt| receipt.rows().next().unwrap().lease.clone().unwrap();
    assert_ne!(lease(&first), lease(&second));
    first.rolled_back();
    second.rolled_back();
}
