//! What is wrong with the payload of an event.

use posthaste::event::DecodeError;
use posthaste::{Event, EventBuilder};
use serde::{Deserialize, Serialize};

use super::Book;

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order")]
struct PlacedV1 {
    id: u64,
}

#[derive(Debug, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", version = 2, from = PlacedV1)]
pub(super) struct Placed {
    id: u64,
    lines: Vec<Line>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    total: u32,
}

impl From<PlacedV1> for Placed {
    fn from(old: PlacedV1) -> Self {
        Self { id: old.id, lines: Vec::new() }
    }
}

#[derive(Debug, Serialize, Deserialize, Event)]
#[event(type = "OrderReturned", version = 2)]
struct Returned {}

#[derive(Debug, Serialize, Deserialize, Event)]
#[event(aggregate = "Order")]
enum OrderEvent {
    #[event(type = "OrderCancelled")]
    Cancelled { id: u64, reason: String },
    #[event(type = "OrderShipped")]
    Shipped,
}

pub(super) fn placed(json: &str) -> EventBuilder {
    Event::builder("OrderPlaced").aggregate("Order", 42).version(2).json_text(json)
}

pub(super) fn write(book: &mut Book) {
    let mut add = |call: &str, error: DecodeError| {
        let debug = format!("{error:?}");
        let mismatch = debug.split_once("mismatch: ").map_or("", |(_, mismatch)| mismatch);
        book.see("decode", mismatch);
        book.add("decode error", call, &error);
    };
    let read = |event: EventBuilder| event.build().unwrap().typed::<Placed>().unwrap_err();
    let wrong_total = r#"{"id":1,"lines":[{"total":1},{"total":"two"}]}"#;

    add("Event::typed, a field of another type", read(placed(wrong_total)));
    add("Event::typed, a field that is missing", read(placed(r#"{"id":1,"lines":[{}]}"#)));
    add("Event::typed, another shape altogether", read(placed("[]")));
    add("Event::typed, the older version", read(placed("{}").version(1)));
    add("Event::typed, a newer version", read(placed("{}").version(3)));
    add("Event::typed, an older version without an upcast", {
        Event::of_json("OrderReturned", "{}").unwrap().typed::<Returned>().unwrap_err()
    });
    add("Event::typed, a version that is no number", read(placed("{}").header("event-version", "two")));
    add("Event::typed, another event type", read(Event::builder("OrderLost").json_text("{}")));
    add("Event::typed, bytes that are no JSON", read(Event::builder("OrderPlaced").version(2).bytes([0xff, 0x00])));
    let cancelled = Event::of_json("OrderCancelled", r#"{"id":1,"reason":7}"#).unwrap();
    add("Event::typed, a member of a family", cancelled.typed::<OrderEvent>().unwrap_err());
    let unknown = Event::of_json("OrderLost", "{}").unwrap();
    add("Event::typed, no member of the family", unknown.typed::<OrderEvent>().unwrap_err());
    let event = placed(wrong_total).build().unwrap();
    add("Event::decode", event.decode::<Placed>().unwrap_err());
    add(r#"DecodeError::other("the checksum is wrong")"#, DecodeError::other("the checksum is wrong"));
}
