//! The helpers for tests of users: that they find what is there, fail when it is not, and say what is there instead.

mod faults;
mod recorder;
mod table;
mod time;

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use posthaste_core::event::{EventBuilder, Kind};
use posthaste_core::store::Store;
use posthaste_core::{Event, Outbox, TypedEvent};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct OrderPlaced {
    id: u64,
    total: u32,
}

impl TypedEvent for OrderPlaced {
    const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)];
    const AGGREGATE_TYPE: &'static str = "Order";

    fn aggregate_id(&self) -> Option<String> {
        Some(self.id.to_string())
    }
}

/// An order with an id that a message can be compared with.
fn order(event_id: &str, id: u64, total: u32) -> EventBuilder {
    OrderPlaced { id, total }.to_builder().id(event_id)
}

/// An event of a type alone.
fn event(event_id: &str, event_type: &str) -> EventBuilder {
    Event::builder(event_type).id(event_id).json_text("{}")
}

/// Writes events in one transaction and commits.
async fn write<S: Store>(outbox: &Outbox<S>, events: impl IntoIterator<Item = EventBuilder>) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all(events).await.unwrap();
    tx.commit().await.unwrap();
}

/// What a test says that fails, but for its last line, which must name this directory.
async fn failure<T>(test: impl Future<Output = T>) -> String {
    let Err(panic) = AssertUnwindSafe(test).catch_unwind().await else { panic!("it did not fail") };
    let text = panic.downcast_ref::<String>().expect("the message is a text");
    let (message, place) = text.rsplit_once('\n').expect("the message has more than one line");
    assert!(place.starts_with("asked at ") && place.contains("tests/it/testing/"), "{place}");
    message.to_owned()
}
