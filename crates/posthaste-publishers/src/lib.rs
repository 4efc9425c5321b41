//! Destinations of the Posthaste transactional outbox: brokers, webhooks, files.
//!
//! A publisher keeps one connection. What it gives for an address is a listener that takes batches: register it like any other.
//! An event is DONE when the other end has acknowledged it, and nothing less.

#[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
mod address;
mod breaker;
mod destination;
mod envelope;
#[cfg(feature = "mqtt")]
pub mod mqtt;
#[cfg(feature = "nats")]
pub mod nats;
mod publisher;
#[cfg(feature = "redis")]
pub mod redis;
mod template;

pub use breaker::{Breaker, BreakerState};
pub use destination::Destination;
pub use envelope::{Binding, Envelope, Wrapped};
pub use publisher::{Message, PublishError, PublishErrorKind, Publisher};
pub use template::{EmptyPlace, Template, TemplateError};
