extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Archived", aggregate = "Order", key = "id")]
struct Archived;

fn main() {}
