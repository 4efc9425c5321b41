//! As if Debezium had sent it.

use posthaste_core::Delivery;
use serde::Deserialize;

use super::{Binding, EnvelopeError, Wrapped, with_payload};
use crate::message::Headers;

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
                if name.trim() != name
                    || name.contains(char::is_control)
                    || ["id", "content-type"].iter().any(|own| own.eq_ignore_ascii_case(name)) =>
            {
                Err(EnvelopeError::HeaderName { name: name.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Whether a header of that name can be sent there, and arrives under that name.
    pub(super) fn check_for(&self, binding: Binding) -> Result<(), EnvelopeError> {
        let Some(name) = &self.event_type_header else { return Ok(()) };
        let arrives = binding.header_name(name).is_some_and(|sent| sent == *name);
        if arrives && !binding.has_for_itself().iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Ok(());
        }
        Err(EnvelopeError::HeaderName { name: name.clone() })
    }

    pub(super) fn wrap(&self, binding: Binding, event: &Delivery) -> Wrapped {
        let mut headers = Headers::default();
        binding.own(&mut headers, "id", event.id().as_str());
        if let Some(name) = self.event_type_header.as_deref().and_then(|name| binding.header_name(name)) {
            headers.push(name, binding.value(event.event_type()));
        }
        let wrapped = with_payload(binding, event, headers);
        match binding {
            Binding::Kafka => Wrapped { content_type: "".into(), ..wrapped },
            _ => wrapped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_be_lost_or_changed_on_its_way_is_refused() {
        let check = |binding, name: &str| {
            let settings = Debezium::new().event_type_header(name);
            settings.check().and_then(|()| settings.check_for(binding)).is_ok()
        };
        let all = [Binding::Kafka, Binding::Nats, Binding::Amqp, Binding::Http, Binding::Mqtt, Binding::Fields];
        assert!(all.into_iter().all(|binding| check(binding, "eventType")));
        for name in ["", " type", "a\nb", "ID", "Content-Type"] {
            assert!(!all.into_iter().any(|binding| check(binding, name)), "{name:?}");
        }
        for (binding, name) in [
            (Binding::Http, "webhook-id"),
            (Binding::Http, "Authorization"),
            (Binding::Http, "host"),
            (Binding::Http, "größe"),
            (Binding::Http, "event type"),
            (Binding::Nats, "Nats-Msg-Id"),
            (Binding::Nats, "event:type"),
            (Binding::Amqp, "CC"),
            (Binding::Fields, "payload"),
            (Binding::Fields, "event-id"),
        ] {
            assert!(!check(binding, name), "{binding:?}: {name}");
            assert!(check(Binding::Kafka, name), "{name}");
        }
    }
}
