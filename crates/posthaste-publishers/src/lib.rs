//! Destinations of the Posthaste transactional outbox: brokers, webhooks, files.
//!
//! A publisher keeps one connection. What it gives for an address is a listener that takes batches: register it like any other.
//! An event is DONE when the other end has acknowledged it, and nothing less.

mod address;
mod breaker;
#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
mod connection;
mod destination;
mod durability;
mod envelope;
#[cfg(feature = "kafka")]
pub mod kafka;
mod message;
#[cfg(feature = "mqtt")]
pub mod mqtt;
#[cfg(feature = "nats")]
pub mod nats;
pub mod ndjson;
#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
mod options;
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
mod pauses;
mod publisher;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mqtt", feature = "redis"))]
mod suspects;
mod template;
#[cfg(any(feature = "mqtt-tls", feature = "webhook"))]
mod tls;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use breaker::{Breaker, BreakerState};
pub use destination::Destination;
pub use durability::Concern;
pub use envelope::{Binding, CloudEvents, Debezium, Envelope, EnvelopeError, Wrapped};
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaOptions};
pub use message::{Body, Headers, Text};
#[cfg(feature = "mqtt")]
pub use mqtt::{Mqtt, MqttOptions};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsOptions};
pub use ndjson::{Ndjson, NdjsonOptions};
pub use publisher::{Message, PublishError, PublishErrorKind, Publisher, Results};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{Rabbit, RabbitOptions};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisOptions};
pub use template::{AddressError, EmptyPlace, Places, Template, TemplateError};
#[cfg(feature = "webhook")]
pub use webhook::{Webhook, WebhookOptions};

/// The page of the guide, so that its Rust is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/destinations.md")]
mod guide {}
