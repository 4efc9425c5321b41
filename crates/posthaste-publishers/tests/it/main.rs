//! Destinations on real servers, read back by clients that are not ours.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

#[cfg(feature = "kafka")]
mod kafka;
