//! What users import.

#![cfg(feature = "derive")]

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
