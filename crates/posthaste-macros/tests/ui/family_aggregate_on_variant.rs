extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
enum OrderEvent {
    #[event(type = "OrderPlaced", aggregate = "Order")]
    Placed { id: u64 },
}

fn main() {}
