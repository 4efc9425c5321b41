//! Names of the user's do not get in the way, and what is deprecated is read without a warning.
#![deny(warnings)]
#![allow(dead_code, non_camel_case_types, non_upper_case_globals)]

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

struct Option;
struct Result;
struct Some;
struct None;
struct Ok;
struct Err;
struct From;
struct ToString;
struct Kind;
struct EventBuilder;
mod std {}
mod core {}
mod alloc {}
mod posthaste {}
const field: u8 = 0;
static event: u8 = 0;
static tenant: u8 = 0;
struct old;

#[deprecated]
#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", crate = ::posthaste_core)]
struct OrderPlacedV1 {
    id: u64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "type", tenant = "event", version = 2, topic = "*")]
#[event(from = OrderPlacedV1, crate = ::posthaste_core)]
struct OrderPlaced {
    r#type: ::std::string::String,
    event: u64,
}

#[allow(deprecated)]
impl ::core::convert::From<OrderPlacedV1> for OrderPlaced {
    fn from(before: OrderPlacedV1) -> Self {
        Self { r#type: ::std::string::String::new(), event: before.id }
    }
}

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Order", key = "type", tenant = "shop", topic = "orders", crate = ::posthaste_core)]
enum OrderEvent {
    #[event(type = "OrderCancelled")]
    r#move { r#type: u64, shop: u8 },
    #[event(type = "OrderLost")]
    None { r#type: u64, shop: u8 },
}

impl OrderEvent {
    const KINDS: () = ();
    const AGGREGATE_TYPE: () = ();

    fn encode(&self) {}
    fn kind(&self) {}
    fn to_builder(&self) {}
}

fn main() {
    let written = ::posthaste_core::TypedEvent::to_builder(&OrderEvent::r#move { r#type: 7, shop: 1 });
    let written = written.build().unwrap();
    assert_eq!((written.event_type(), written.aggregate_id()), ("OrderCancelled", ::core::option::Option::Some("7")));
}
