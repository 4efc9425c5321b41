//! Publishers against real brokers, read back by clients that are not ours.

#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
mod started;
