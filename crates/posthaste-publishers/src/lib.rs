//! Destinations of the Posthaste transactional outbox: brokers, webhooks, files.
//!
//! A publisher keeps one connection. What it gives for an address is a listener that takes batches: register it like any other.
//! An event is DONE when the other end has acknowledged it, and nothing less.

mod breaker;
mod destination;
mod envelope;
pub mod ndjson;
mod publisher;
mod template;

pub use breaker::{Breaker, BreakerState};
pub use destination::Destination;
pub use envelope::{Binding, CloudEvents, Debezium, Envelope, EnvelopeError, Wrapped};
pub use ndjson::{Ndjson, NdjsonOptions};
pub use publisher::{Message, PublishError, PublishErrorKind, Publisher};
pub use template::{EmptyPlace, Template, TemplateError};

/// The page of the guide, so that its Rust is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/destinations.md")]
mod guide {}
