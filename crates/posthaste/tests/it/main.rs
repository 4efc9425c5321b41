//! What users import, and what they are told.

#![cfg(feature = "derive")]
#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

// Needs every store, as `--all-features` has them.
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlite", feature = "tls"))]
mod errors;

mod guide;
#[cfg(all(feature = "testing", feature = "sqlite"))]
mod testing;

use posthaste::event::IntoEvent;
use posthaste::{Event, TypedEvent};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
struct OrderPlaced {
    id: u64,
}

#[test]
fn one_import_brings_the_type_and_the_derive() {
    let event: Event = OrderPlaced { id: 42 }.into_event().expect("it is a good event");
    assert_eq!((event.event_type(), event.aggregate_id()), (OrderPlaced::KINDS[0].event_type, Some("42")));
    assert_eq!(event.typed::<OrderPlaced>().expect("it is what was written").id, 42);
}
