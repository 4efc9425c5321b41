//! Destinations, on real servers where there are any, read back by clients that are not ours.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

#[cfg(any(feature = "kafka", feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod backlog;
#[cfg(any(feature = "kafka-tls", feature = "mqtt-tls", feature = "nats", feature = "webhook"))]
mod certificate;
mod destination;
mod envelope;
mod formats;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_client;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
mod ndjson;
#[cfg(any(feature = "nats", feature = "webhook"))]
mod port;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
mod started;
#[cfg(feature = "webhook")]
mod webhook;
