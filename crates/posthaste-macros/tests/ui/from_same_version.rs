extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced")]
struct OrderPlacedV1 {
    id: u64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", from = OrderPlacedV1)]
struct OrderPlaced {
    id: u64,
}

impl From<OrderPlacedV1> for OrderPlaced {
    fn from(old: OrderPlacedV1) -> Self {
        Self { id: old.id }
    }
}

fn main() {}
