//! How an event looks on its way.

mod binding;
mod cloud_events;
mod debezium;
mod encoding;
mod plain;
mod when;

use std::borrow::Cow;

use posthaste_core::Delivery;
use posthaste_core::event::JSON;
use serde::Deserialize;

use crate::message::{Body, Headers};
use crate::template::{EmptyPlace, TemplateError};

pub use binding::Binding;
pub use cloud_events::CloudEvents;
pub(crate) use cloud_events::{STRUCTURED, TRACE};
pub use debezium::Debezium;
pub(crate) use encoding::{base64, is_json, percent_encoded};
use when::When;

/// How an event looks on its way.
///
/// The id of the event is in every one of them, the same for each attempt: by this a receiver tells repeats. What the body is
/// (its content type) is carried where the protocol has a place for it, and never among the headers.
///
/// | envelope | body | id |
/// |---|---|---|
/// | [`Plain`](Self::Plain) | the payload | header `event-id` |
/// | [`CloudEventsBinary`](Self::CloudEventsBinary) | the payload | attribute `id`: header `ce_id`, `ce-id`, … |
/// | [`CloudEventsStructured`](Self::CloudEventsStructured) | a JSON document around the payload | its member `id` |
/// | [`Debezium`](Self::Debezium) | the payload | header `id` |
///
/// # What a protocol cannot carry
/// Headers of HTTP and NATS hold printable ASCII only. What else is in a name or in a value is percent-encoded there, and such a
/// value as a whole, as CloudEvents do it; a value without it is left as it is. HTTP does not tell capitals from small letters in names:
/// of headers that differ in nothing else the first in the order of the alphabet is sent, capitals before small letters, and not all
/// of them as values of one. Elsewhere they are different headers, and all of them are sent. Headers that mean something to the protocol
/// itself are not taken from an event: of HTTP those that frame and route a request, such as `host` and `content-length`; of
/// NATS all that begin with `Nats-`; of AMQP `CC` and `BCC`, and names of more than 255 bytes.
///
/// In a file of settings: `envelope = { format = "cloudevents-binary", source = "/shop/{aggregate_type}" }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(tag = "format")]
#[non_exhaustive]
pub enum Envelope {
    /// The payload is the body; what else is known of the event is in headers:
    ///
    /// `event-id`, `event-type`, `aggregate-type`, `aggregate-id`, `tenant-id`, `occurred-at` (RFC 3339), and the headers of
    /// the event under their own names, unless they have one of these, in capitals or not, or are called `content-type`.
    #[default]
    #[serde(rename = "plain")]
    Plain,
    /// A CloudEvent whose attributes are beside the body, as the binding of the protocol names them. The payload is the body.
    #[serde(rename = "cloudevents-binary")]
    CloudEventsBinary(CloudEvents),
    /// A CloudEvent that is one JSON document, the payload included.
    #[serde(rename = "cloudevents-structured")]
    CloudEventsStructured(CloudEvents),
    /// What Debezium's outbox event router would have put on Kafka.
    #[serde(rename = "debezium")]
    Debezium(Debezium),
}

/// What is sent of an event.
#[derive(Clone, Debug)]
pub struct Wrapped {
    /// What the body is.
    pub content_type: Cow<'static, str>,
    /// Beside the body.
    pub headers: Headers,
    /// The body.
    pub body: Body,
}

/// Why an event was not put into its envelope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// A CloudEvent has to say where it comes from.
    #[error("the source of the CloudEvents is empty; give a URI reference, such as \"/shop/{{aggregate_type}}\"")]
    NoSource,
    /// The template of the source is wrong.
    #[error("the source of the CloudEvents is not right")]
    Source(#[source] TemplateError),
    /// The event lacks what the source needs.
    #[error("the source of the CloudEvent cannot be told")]
    EmptyPlace(#[source] EmptyPlace),
    /// The event type is to be in a header without a name.
    #[error("the header for the event type has no name; give one, such as \"eventType\"")]
    NoHeaderName,
    /// The event type is to be in a header that is another, or that the protocol has for itself.
    #[error("the header for the event type cannot be called {name:?}; give another name, such as \"eventType\"")]
    HeaderName {
        /// What it would be called.
        name: String,
    },
}

impl Envelope {
    /// Puts an event into this envelope, as that protocol carries it.
    ///
    /// # Errors
    /// When a [setting](Self::check) is wrong, or the event lacks what the source of CloudEvents is made of.
    pub fn wrap(&self, binding: Binding, event: &Delivery) -> Result<Wrapped, EnvelopeError> {
        match self {
            Self::Plain => Ok(plain::wrap(binding, event)),
            Self::CloudEventsBinary(settings) => settings.wrap_binary(binding, event),
            Self::CloudEventsStructured(settings) => settings.wrap_structured(binding, event),
            Self::Debezium(settings) => Ok(settings.wrap(binding, event)),
        }
    }

    /// Whether its settings are right. A [`Destination`](crate::Destination) asks when the outbox is started.
    ///
    /// # Errors
    /// Names the setting that is wrong.
    pub fn check(&self) -> Result<(), EnvelopeError> {
        match self {
            Self::Plain => Ok(()),
            Self::CloudEventsBinary(settings) | Self::CloudEventsStructured(settings) => settings.check(),
            Self::Debezium(settings) => settings.check(),
        }
    }

    /// Whether that protocol can carry it as well.
    pub(crate) fn check_for(&self, binding: Binding) -> Result<(), EnvelopeError> {
        self.check()?;
        match self {
            Self::Debezium(settings) => settings.check_for(binding),
            _ => Ok(()),
        }
    }
}

/// The payload as the body, without a copy.
fn with_payload(binding: Binding, event: &Delivery, headers: Headers) -> Wrapped {
    let content_type = match event.content_type() {
        // Nearly always, and needs no memory.
        JSON => Cow::Borrowed(JSON),
        other => Cow::Owned(binding.value(other).into_owned()),
    };
    Wrapped { content_type, headers, body: Body::payload(event) }
}
