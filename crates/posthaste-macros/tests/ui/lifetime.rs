extern crate posthaste_core as posthaste;

use posthaste_macros::Event;
use serde::Serialize;

#[derive(Serialize, Event)]
#[event(type = "Changed")]
struct Changed<'a> {
    to: &'a str,
}

fn main() {}
