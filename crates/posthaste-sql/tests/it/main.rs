//! What is particular to each store; outside of a module with its name, to SQLite. What every store must do is in the conformance suite.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod admin;
mod busy;
mod cancel;
mod migration;
#[cfg(feature = "mysql")]
mod mysql;
mod relay;
mod support;
mod write;
