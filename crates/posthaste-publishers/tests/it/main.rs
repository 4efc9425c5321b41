//! Publishers against real brokers, read back by clients that are not ours.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
mod started;
