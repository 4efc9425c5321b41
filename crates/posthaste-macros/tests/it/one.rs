//! Structs.

use posthaste::TypedEvent;
use posthaste::event::{GLOBAL, IntoEvent, Kind, VERSION_HEADER};
use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "order.placed/v", aggregate = "Order", key = "id", version = 3, topic = "orders", tenant = "shop.name")]
struct OrderPlaced {
    id: u64,
    shop: Shop,
    #[serde(rename = "sum")]
    total: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Shop {
    name: String,
}

fn order() -> OrderPlaced {
    OrderPlaced { id: 42, shop: Shop { name: "books".into() }, total: 7 }
}

#[test]
fn every_attribute_is_in_the_event() {
    let event = order().into_event().unwrap();
    assert_eq!(event.event_type(), "order.placed/v");
    assert_eq!((event.aggregate_type(), event.aggregate_id()), ("Order", Some("42")));
    assert_eq!((event.tenant_id(), event.topic()), (Some("books"), Some("orders")));
    assert_eq!(event.header(VERSION_HEADER), Some("3"));
    assert_eq!(event.payload().as_json(), Some(r#"{"id":42,"shop":{"name":"books"},"sum":7}"#));
    assert_eq!(event.typed::<OrderPlaced>().unwrap(), order());
    assert_eq!(OrderPlaced::KINDS, [Kind::new("order.placed/v", 3)]);
}

#[test]
fn a_reference_is_written_as_well() {
    let order = order();
    let event = (&order).into_event().unwrap();
    assert_eq!(event.typed::<OrderPlaced>().unwrap(), order);
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Ping")]
struct Ping;

#[test]
fn what_is_not_said_is_not_in_the_event() {
    let event = Ping.into_event().unwrap();
    assert_eq!((event.aggregate_type(), event.aggregate_id()), (GLOBAL, None));
    assert_eq!((event.tenant_id(), event.topic()), (None, None));
    assert!(event.headers().is_empty());
    event.typed::<Ping>().unwrap();
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Moved", aggregate = "Shelf", key = "1")]
struct Moved(u8, u16);

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Opened", aggregate = "Shop", key = "name")]
struct Opened(Shop);

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Closed", aggregate = "Shop", key = "0.0.name")]
struct Closed((Shop, u8));

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Typed", aggregate = "Kind", key = "type")]
struct Raw {
    r#type: char,
}

#[test]
fn keys_are_found_by_number_by_path_and_in_newtypes() {
    assert_eq!(Moved(1, 2).aggregate_id().unwrap(), "2");
    assert_eq!(Opened(Shop { name: "books".into() }).aggregate_id().unwrap(), "books");
    assert_eq!(Closed((Shop { name: "books".into() }, 0)).aggregate_id().unwrap(), "books");
    assert_eq!(Raw { r#type: 'x' }.aggregate_id().unwrap(), "x");
    assert_eq!(
        Opened(Shop { name: "books".into() }).into_event().unwrap().payload().as_json(),
        Some(r#"{"name":"books"}"#)
    );
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", version = 2, from = Oldest)]
struct Older {
    id: u64,
    total: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced")]
struct Oldest {
    id: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", version = 3, from = Older)]
struct Newest {
    id: u64,
    total: u32,
    currency: String,
}

impl From<Oldest> for Older {
    fn from(old: Oldest) -> Self {
        Self { id: old.id, total: 0 }
    }
}

impl From<Older> for Newest {
    fn from(old: Older) -> Self {
        Self { id: old.id, total: old.total, currency: "EUR".into() }
    }
}

#[test]
fn older_versions_are_accepted_step_by_step() {
    let oldest = Oldest { id: 1 }.into_event().unwrap();
    assert_eq!(oldest.typed::<Newest>().unwrap(), Newest { id: 1, total: 0, currency: "EUR".into() });
    let newest = Newest { id: 1, total: 2, currency: "CHF".into() }.into_event().unwrap();
    assert!(newest.typed::<Older>().is_err(), "an older program does not guess");
}
