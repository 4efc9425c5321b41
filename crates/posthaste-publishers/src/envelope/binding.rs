//! How protocols carry headers.

use std::borrow::Cow;

use super::encoding::{fits_header, percent_encoded};
use crate::message::Headers;

/// How a protocol carries what an envelope says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Binding {
    /// Kafka: headers.
    Kafka,
    /// NATS: headers.
    Nats,
    /// AMQP 0.9.1, as RabbitMQ has it: headers of the message.
    Amqp,
    /// HTTP: headers of the request.
    Http,
    /// MQTT 5: user properties.
    Mqtt,
    /// Fields beside the body, as in an entry of a Redis stream or in a line of JSON.
    Fields,
}

/// What HTTP uses for itself: a request would be another, or be cut elsewhere, if an event could set these.
const OF_HTTP: [&str; 11] = [
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What publishers say in headers of HTTP, or leave out unless it is allowed.
const OF_WEBHOOKS: [&str; 6] =
    ["authorization", "cookie", "proxy-authorization", "webhook-id", "webhook-signature", "webhook-timestamp"];

/// What publishers say in fields.
const OF_FIELDS: [&str; 2] = ["event-id", "payload"];

/// The longest name in a table of AMQP 0.9.1, in bytes.
const LONGEST_OF_AMQP: usize = 255;

impl Binding {
    /// What a header of an event is called under its own name, if the protocol can have it.
    pub(super) fn header_name(self, name: &str) -> Option<String> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        let starts_with =
            |prefix: &str| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        let taken = is("content-type")
            || match self {
                Self::Http => OF_HTTP.into_iter().any(is),
                Self::Nats => starts_with("nats-"),
                Self::Amqp => is("cc") || is("bcc") || !self.can_be_called(name.len()),
                Self::Kafka | Self::Mqtt | Self::Fields => false,
            };
        (!taken).then(|| self.name(name))
    }

    /// Names that publishers use, so that a header of an event that has one of them may be left out, or taken for theirs.
    pub(super) fn has_for_itself(self) -> &'static [&'static str] {
        match self {
            Self::Http => &OF_WEBHOOKS,
            Self::Fields => &OF_FIELDS,
            Self::Kafka | Self::Nats | Self::Amqp | Self::Mqtt => &[],
        }
    }

    /// Adds one of our own headers. What it is called fits every protocol.
    pub(super) fn own(self, headers: &mut Headers, name: &'static str, value: &str) {
        headers.push(name, self.value(value));
    }

    /// Whether two headers of an event, which have names of their own there, would have one here.
    pub(super) fn is_one_name(self, name: &str, other: &str) -> bool {
        self == Self::Http && name.eq_ignore_ascii_case(other)
    }

    /// Whether a name may have that many bytes.
    pub(super) fn can_be_called(self, bytes: usize) -> bool {
        self != Self::Amqp || bytes <= LONGEST_OF_AMQP
    }

    fn name(self, name: &str) -> String {
        match self {
            // A token of HTTP, which NATS takes as well.
            Self::Http | Self::Nats => {
                percent_encoded(name, |c| c.is_ascii_alphanumeric() || "!#$&'*+-.^_`|~".contains(c))
            }
            _ => name.to_owned(),
        }
    }

    pub(super) fn value(self, value: &str) -> Cow<'_, str> {
        match self {
            Self::Http | Self::Nats => fits_header(value),
            _ => Cow::Borrowed(value),
        }
    }
}
