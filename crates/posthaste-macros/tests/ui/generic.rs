extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "Changed")]
struct Changed<T> {
    to: T,
}

fn main() {}
