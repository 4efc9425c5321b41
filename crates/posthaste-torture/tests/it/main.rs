//! What is left behind by processes that end before their time.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

#[cfg(feature = "failpoints")]
mod crash;
