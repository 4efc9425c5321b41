//! Destinations of the Posthaste transactional outbox: brokers, webhooks, files.
//!
//! A publisher keeps one connection. What it gives for an address is a listener that takes batches: register it like any other.
//! An event is DONE when the other end has acknowledged it, and nothing less.

mod breaker;
mod destination;
mod envelope;
mod publisher;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
mod template;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use breaker::{Breaker, BreakerState};
pub use destination::Destination;
pub use envelope::{Binding, Envelope, Wrapped};
pub use publisher::{Message, PublishError, PublishErrorKind, Publisher};
pub use template::{EmptyPlace, Template, TemplateError};
