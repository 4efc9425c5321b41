extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", version = 2, from = "OrderPlacedV1")]
struct OrderPlaced {
    id: u64,
}

fn main() {}
