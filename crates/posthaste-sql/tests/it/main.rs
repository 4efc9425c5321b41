//! What is particular to each store; the modules without a name of one are about SQLite. What every store must do is in
//! the conformance suite.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod admin;
#[cfg(any(feature = "mysql", all(feature = "postgres", feature = "tls")))]
mod between;
mod busy;
mod cancel;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod failover;
mod migration;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod relay;
mod support;
mod undone;
mod write;
