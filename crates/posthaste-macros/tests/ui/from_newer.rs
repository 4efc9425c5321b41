extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", from = OrderPlacedV2)]
struct OrderPlaced {
    id: u64,
}

impl From<OrderPlacedV2> for OrderPlaced {
    fn from(other: OrderPlacedV2) -> Self {
        Self { id: other.id }
    }
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", version = 2, from = OrderPlaced)]
struct OrderPlacedV2 {
    id: u64,
}

impl From<OrderPlaced> for OrderPlacedV2 {
    fn from(other: OrderPlaced) -> Self {
        Self { id: other.id }
    }
}

fn main() {}
