//! Private servers and the proxy do what the nemesis relies on.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod client;
mod server;
