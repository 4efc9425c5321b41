extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "order_id")]
struct OrderPlaced {
    id: u64,
    customer: u64,
    total: u32,
}

fn main() {}
