extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Order")]
enum OrderEvent {
    #[event(type = "OrderPlaced")]
    Placed { id: u64 },
    Cancelled { id: u64 },
    Archived,
}

fn main() {}
