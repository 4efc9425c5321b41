extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Order", key = "id")]
enum OrderEvent {
    #[event(type = "OrderPlaced")]
    Placed { id: u64 },
    #[event(type = "OrderCancelled")]
    Cancelled { order: u64, reason: String },
    #[event(type = "OrdersArchived")]
    Archived,
}

fn main() {}
