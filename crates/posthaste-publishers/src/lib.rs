//! Destinations of the Posthaste transactional outbox: brokers, webhooks, files.
//!
//! A publisher keeps one connection. What it gives for an address is a listener that takes batches: register it like any other.
//! An event is DONE when the other end has acknowledged it, and nothing less.

mod breaker;
mod destination;
mod envelope;
#[cfg(feature = "kafka")]
pub mod kafka;
mod publisher;
mod template;

pub use breaker::{Breaker, BreakerState};
pub use destination::Destination;
pub use envelope::{Binding, Envelope, Wrapped};
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaOptions};
pub use publisher::{Message, PublishError, PublishErrorKind, Publisher};
pub use template::{EmptyPlace, Template, TemplateError};
