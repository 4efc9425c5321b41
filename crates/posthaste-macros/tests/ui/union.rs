extern crate posthaste_core as posthaste;

use posthaste_macros::Event;

#[derive(Event)]
#[event(type = "Changed")]
union Changed {
    a: u32,
    b: f32,
}

fn main() {}
