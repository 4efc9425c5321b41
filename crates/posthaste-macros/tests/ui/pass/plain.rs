//! The path to the crate may be given, nothing but the derives is in scope, and nothing warns.
#![no_implicit_prelude]
#![deny(warnings)]
#![allow(dead_code)]

use ::posthaste_macros::Event;
use ::serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id", version = 2, crate = ::posthaste_core)]
#[event(topic = "orders", tenant = "shop", from = OrderPlacedV1)]
struct OrderPlaced {
    id: u64,
    shop: ::std::string::String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", crate = ::posthaste_core)]
struct OrderPlacedV1 {
    id: u64,
}

impl ::std::convert::From<OrderPlacedV1> for OrderPlaced {
    fn from(old: OrderPlacedV1) -> Self {
        Self { id: old.id, shop: ::std::string::String::new() }
    }
}

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Order", key = "id", tenant = "shop", topic = "orders", crate = ::posthaste_core)]
enum OrderEvent {
    #[event(type = "OrderPlaced", version = 2)]
    Placed(OrderPlaced),
    #[event(type = "OrderCancelled", topic = "cancellations")]
    Cancelled { id: u64, shop: u8 },
    #[event(type = "OrdersArchived")]
    #[deprecated]
    Archived,
}

fn main() {}
