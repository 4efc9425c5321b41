//! As if Debezium had sent it.

use posthaste_core::Delivery;
use serde::Deserialize;

use super::{Binding, EnvelopeError, Wrapped, with_payload};

/// What Debezium's outbox event router puts on Kafka with its default settings: for consumers that were written for it.
///
/// | there | here |
/// |---|---|
/// | topic `outbox.event.<aggregate type>` | the address of the destination: `topic("outbox.event.{aggregate_type}")` |
/// | key: the aggregate id | the key of a destination, unless it says otherwise |
/// | header `id`: the id of the event | the same |
/// | value: the payload | the same, byte for byte |
/// | `table.fields.additional.placement=type:header:eventType` | [`event_type_header("eventType")`](Self::event_type_header) |
///
/// That is all that Debezium says of an event, so the tenant, the time and the headers of the event are not sent, nor is the
/// content type on Kafka. Elsewhere a publisher sends that where its protocol has a place for it. Debezium takes the name of the
/// topic from the aggregate type as it is written, capitals included.
///
/// ```
/// use posthaste_publishers::{Debezium, Envelope};
///
/// let envelope = Envelope::Debezium(Debezium::new().event_type_header("eventType"));
/// # assert!(envelope.check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Debezium {
    event_type_header: Option<String>,
}

impl Debezium {
    /// With the default settings of Debezium, with which the event type is not sent.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends the event type in a header of that name; most call it `eventType`. Default: not at all, as with Debezium.
    #[must_use]
    pub fn event_type_header(mut self, name: impl Into<String>) -> Self {
        self.event_type_header = Some(name.into());
        self
    }

    pub(super) fn check(&self) -> Result<(), EnvelopeError> {
        match self.event_type_header.as_deref() {
            Some(name) if name.trim().is_empty() => Err(EnvelopeError::NoHeaderName),
            Some(name)
                if name.trim() != name || ["id", "content-type"].iter().any(|own| own.eq_ignore_ascii_case(name)) =>
            {
                Err(EnvelopeError::HeaderName { name: name.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Whether a header of that name can be sent there.
    pub(super) fn check_for(&self, binding: Binding) -> Result<(), EnvelopeError> {
        match &self.event_type_header {
            Some(name) if binding.header(name, "").is_none() => Err(EnvelopeError::HeaderName { name: name.clone() }),
            _ => Ok(()),
        }
    }

    pub(super) fn wrap(&self, binding: Binding, event: &Delivery) -> Wrapped {
        let mut headers = vec![binding.own("id", event.id().as_str())];
        if let Some(name) = &self.event_type_header {
            headers.extend(binding.header(name, event.event_type()));
        }
        let wrapped = with_payload(binding, event, headers);
        match binding {
            Binding::Kafka => Wrapped { content_type: "".into(), ..wrapped },
            _ => wrapped,
        }
    }
}
