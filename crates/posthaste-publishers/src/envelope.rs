//! How an event looks on its way.

use std::borrow::Cow;

use bytes::Bytes;
use posthaste_core::Delivery;

/// How an event looks on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Envelope {
    /// The payload is the body; what else is known of the event is in headers:
    ///
    /// `event-id`, `event-type`, `aggregate-type`, `aggregate-id`, `tenant-id`, `occurred-at` (RFC 3339), and the headers of
    /// the event under their own names, unless they have one of these.
    #[default]
    Plain,
}

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

/// What is sent of an event.
#[derive(Clone, Debug)]
pub struct Wrapped {
    /// What the body is.
    pub content_type: Cow<'static, str>,
    /// Beside the body.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// The body.
    pub body: Bytes,
}

impl Envelope {
    /// Puts an event into this envelope, as that protocol carries it.
    pub fn wrap(self, binding: Binding, event: &Delivery) -> Wrapped {
        let _ = binding;
        match self {
            Self::Plain => plain(event),
        }
    }
}

fn plain(event: &Delivery) -> Wrapped {
    let ours = [
        ("event-id", Some(event.id().as_str())),
        ("event-type", Some(event.event_type())),
        ("aggregate-type", Some(event.aggregate_type())),
        ("aggregate-id", event.aggregate_id()),
        ("tenant-id", event.tenant_id()),
    ];
    let mut headers: Vec<(Cow<'static, str>, String)> = ours
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (Cow::Borrowed(name), value.to_owned())))
        .collect();
    headers.push((Cow::Borrowed("occurred-at"), event.occurred_at().to_string()));
    for (name, value) in event.headers() {
        if !headers.iter().any(|(taken, _)| taken == name) {
            headers.push((Cow::Owned(name.clone()), value.clone()));
        }
    }
    Wrapped { content_type: Cow::Owned(event.content_type().to_owned()), headers, body: body(event) }
}

/// The payload, without a copy.
fn body(event: &Delivery) -> Bytes {
    struct Payload(Delivery);
    impl AsRef<[u8]> for Payload {
        fn as_ref(&self) -> &[u8] {
            self.0.payload().as_bytes()
        }
    }
    Bytes::from_owner(Payload(event.clone()))
}
