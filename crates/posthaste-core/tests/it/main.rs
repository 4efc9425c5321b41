//! Regressions: each of these went wrong once. What every store and the dispatcher must do in general is in
//! `posthaste-conformance`.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod around;
mod containment;
#[cfg(feature = "testing")]
mod gate;
mod instrument;
mod lanes;
mod listeners;
mod order;
mod properties;
mod retention;
mod sim;
#[cfg(feature = "testing")]
mod testing;
mod typed;
mod writing;

use std::time::Duration;

use posthaste_core::store::{AdminStore, Counts};
use posthaste_core::{Event, MemoryStore, Outbox};

/// Writes one event and commits.
async fn write(outbox: &Outbox<MemoryStore>, event_type: &str) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write(Event::of_json(event_type, "{}")).await.unwrap();
    tx.commit().await.unwrap();
}

/// Waits until the table has these many rows of each status. Time is paused in these tests, so waiting costs nothing.
async fn until(store: &MemoryStore, what: &str, wanted: impl Fn(Counts) -> bool) {
    for _ in 0..100_000 {
        if wanted(store.counts().await.unwrap()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}: {:?}", store.counts().await.unwrap());
}
