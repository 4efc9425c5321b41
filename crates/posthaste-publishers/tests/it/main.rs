//! Destinations, with real servers where there are any.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod destination;
mod envelope;
mod ndjson;
