//! What the derive makes of types, written and received through an outbox in memory, and what it refuses.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

// The derive names the crate that users add.
extern crate posthaste_core as posthaste;

mod delivery;
mod family;
mod one;
mod ui;
