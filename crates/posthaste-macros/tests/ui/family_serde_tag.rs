extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Order")]
#[serde(rename_all = "camelCase", tag = "type")]
enum OrderEvent {
    #[event(type = "OrderPlaced")]
    Placed { id: u64 },
}

fn main() {}
