//! What is particular to the SQLite store. What every store must do is in the conformance suite.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod admin;
mod busy;
mod cancel;
mod migration;
mod relay;
mod support;
mod write;
