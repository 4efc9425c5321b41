//! CloudEvents 1.0.

use std::borrow::Cow;
use std::fmt;

use posthaste_core::event::limit;
use posthaste_core::{Delivery, Event};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::encoding::{attribute, attribute_in_header, base64, is_json, uri_reference};
use super::{Binding, Envelope, EnvelopeError, When, Wrapped, with_payload};
use crate::message::{Body, Headers};
use crate::template::{Template, TemplateError};

/// What structured events are.
pub(crate) const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";

/// Where events come from, unless it is said.
const SOURCE: &str = "/{aggregate_type}";

/// What an extension cannot be called.
const TAKEN: [&str; 10] =
    ["aggregatetype", "data", "datacontenttype", "id", "source", "specversion", "subject", "tenantid", "time", "type"];

/// The headers of a trace.
pub(crate) const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// How events become CloudEvents 1.0.
///
/// | attribute | what it is |
/// |---|---|
/// | `id` | the id of the event |
/// | `source` | what the [template](Template) says; default `/{aggregate_type}` |
/// | `specversion` | `1.0` |
/// | `type` | the event type |
/// | `subject` | the aggregate id, if there is one |
/// | `time` | when it happened |
/// | `datacontenttype` | the content type of the payload |
/// | `aggregatetype`, `tenantid` | extensions: the aggregate type, and the tenant if there is one |
/// | others | extensions: the headers of the event |
///
/// Extensions may be called by small letters and digits only. So capitals of a header become small, and what is neither letter
/// nor digit is left out: `Correlation-Id` is `correlationid`, `event-version` is `eventversion`. A header of whose name nothing
/// is left, or whose name is then one of those above, is not sent; of two that are called the same then, the first in the order
/// of the alphabet is. `dataschema` is the attribute of that name. `traceparent` and `tracestate` are the extension for
/// distributed tracing, and are sent under their own names, too, where the protocol has another for the attribute, so that
/// receivers that know nothing of CloudEvents go on with the trace.
///
/// Control characters, which attributes may not have, are percent-encoded. So is in a `source` what a URI cannot have.
///
/// # Names
/// | protocol | the attribute `id` in binary mode | the content type |
/// |---|---|---|
/// | Kafka | header `ce_id` | header `content-type` |
/// | HTTP | header `ce-id`, its value percent-encoded | header `content-type` |
/// | NATS | header `ce-id`, its value percent-encoded | headers `ce-datacontenttype` and `content-type` |
/// | AMQP | header `cloudEvents:id` | property `content-type` |
/// | MQTT 5 | user property `id` | property Content Type |
/// | fields | `ce_id` | a field beside |
///
/// In structured mode the body is the JSON of the event, and the content type is `application/cloudevents+json; charset=utf-8`. A
/// payload of JSON is its member `data`, byte for byte; bytes are `data_base64`.
///
/// ```
/// use posthaste_publishers::CloudEvents;
///
/// let binary = CloudEvents::new("https://shop.example/{aggregate_type}").binary();
/// # assert!(binary.check().is_ok());
/// assert!(CloudEvents::new("").structured().check().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Settings")]
pub struct CloudEvents {
    source: Result<Template, TemplateError>,
}

/// A name and a value.
type Attribute<'a> = (Cow<'a, str>, Cow<'a, str>);

/// As in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    source: Option<String>,
}

impl From<Settings> for CloudEvents {
    fn from(settings: Settings) -> Self {
        settings.source.map_or_else(Self::default, |source| Self::new(&source))
    }
}

impl Default for CloudEvents {
    fn default() -> Self {
        Self::new(SOURCE)
    }
}

impl fmt::Debug for CloudEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudEvents").field("source", &self.source.as_ref().map(Template::as_str)).finish()
    }
}

impl CloudEvents {
    /// Events that come from there: a URI reference, as a [template](Template). What is wrong with it is said when the outbox
    /// is started. Source and id together are to be unique in the world; an absolute URI is best.
    pub fn new(source: &str) -> Self {
        Self { source: source.trim().parse() }
    }

    /// The envelope whose attributes are beside the body.
    pub fn binary(self) -> Envelope {
        Envelope::CloudEventsBinary(self)
    }

    /// The envelope that is one JSON document.
    pub fn structured(self) -> Envelope {
        Envelope::CloudEventsStructured(self)
    }

    pub(super) fn check(&self) -> Result<(), EnvelopeError> {
        self.template().map(drop)
    }

    fn template(&self) -> Result<&Template, EnvelopeError> {
        self.source.as_ref().map_err(|error| match error {
            TemplateError::Empty => EnvelopeError::NoSource,
            other => EnvelopeError::Source(other.clone()),
        })
    }

    pub(super) fn wrap_binary(&self, binding: Binding, event: &Delivery) -> Result<Wrapped, EnvelopeError> {
        let attributes = self.attributes(event)?;
        // The content type has a place of its own, except on NATS.
        let beside = attributes.iter().filter(|(name, _)| name != "datacontenttype" || binding == Binding::Nats);
        let mut headers: Headers = beside.filter_map(|(name, value)| binding.attribute(name, value)).collect();
        // User properties of MQTT are called as the attributes are, so the trace is among them already.
        if binding != Binding::Mqtt {
            push_trace(&mut headers, binding, event);
        }
        Ok(with_payload(binding, event, headers))
    }

    pub(super) fn wrap_structured(&self, binding: Binding, event: &Delivery) -> Result<Wrapped, EnvelopeError> {
        let mut json = Vec::with_capacity(event.payload().len() + 512);
        json.push(b'{');
        for (name, value) in self.attributes(event)? {
            push_text(&mut json, &name);
            json.push(b':');
            push_text(&mut json, &value);
            json.push(b',');
        }
        push_data(&mut json, event);
        json.push(b'}');
        let mut headers = Headers::default();
        push_trace(&mut headers, binding, event);
        Ok(Wrapped { content_type: Cow::Borrowed(STRUCTURED), headers, body: Body::json(json) })
    }

    /// All attributes, each name once.
    fn attributes<'a>(&self, event: &'a Event) -> Result<Vec<Attribute<'a>>, EnvelopeError> {
        let source = self.template()?.render(event).map_err(EnvelopeError::EmptyPlace)?;
        let given = |value: &'a str| Some(value).filter(|value| !value.is_empty()).map(attribute);
        let core = [
            ("specversion", Some(Cow::Borrowed("1.0"))),
            ("id", given(event.id().as_str())),
            ("source", Some(Cow::Owned(uri_reference(&source)))),
            ("type", given(event.event_type())),
            ("subject", event.aggregate_id().and_then(given)),
            ("time", When::of(event).map(|when| Cow::Owned(when.as_str().to_owned()))),
            ("datacontenttype", given(event.content_type())),
            ("aggregatetype", given(event.aggregate_type())),
            ("tenantid", event.tenant_id().and_then(given)),
        ];
        let mut attributes: Vec<Attribute<'a>> =
            core.into_iter().filter_map(|(name, value)| Some((Cow::Borrowed(name), value?))).collect();
        for (name, value) in event.headers() {
            let name = extension(name);
            let taken =
                name.is_empty() || TAKEN.contains(&&*name) || attributes.iter().any(|(other, _)| *other == name);
            // A URI, if there is one.
            let value = match &*name {
                "dataschema" if value.is_empty() => continue,
                "dataschema" => Cow::Owned(uri_reference(value)),
                _ => attribute(value),
            };
            if !taken {
                attributes.push((name, value));
            }
        }
        Ok(attributes)
    }
}

/// A name with what extensions may be called by.
fn extension(name: &str) -> Cow<'_, str> {
    if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
        return Cow::Borrowed(name);
    }
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

impl Binding {
    /// An attribute beside the body, if it can be carried.
    fn attribute<'a>(self, name: &str, value: &'a str) -> Option<(String, Cow<'a, str>)> {
        let prefix = match self {
            Self::Kafka | Self::Fields => "ce_",
            Self::Http | Self::Nats => "ce-",
            Self::Amqp => "cloudEvents:",
            Self::Mqtt => "",
        };
        let value = match self {
            Self::Http | Self::Nats => Cow::Owned(attribute_in_header(value)),
            _ => Cow::Borrowed(value),
        };
        self.can_be_called(prefix.len() + name.len()).then(|| (format!("{prefix}{name}"), value))
    }
}

/// Adds the headers of a trace under their own names.
fn push_trace(headers: &mut Headers, binding: Binding, event: &Event) {
    for name in TRACE {
        if let Some(value) = event.header(name) {
            binding.own(headers, name, value);
        }
    }
}

fn push_text(json: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(json, text).expect("text can be written to memory as JSON");
}

fn push_data(json: &mut Vec<u8>, event: &Event) {
    match event.payload().as_json() {
        Some(text) if !is_json(event.content_type()) => {
            json.extend_from_slice(b"\"data\":");
            push_text(json, text);
        }
        // Of a row that others wrote, a text over the limit of ours was not looked at.
        Some(text) if text.len() <= limit::PAYLOAD || serde_json::from_str::<IgnoredAny>(text).is_ok() => {
            json.extend_from_slice(b"\"data\":");
            json.extend_from_slice(text.as_bytes());
        }
        _ => {
            json.extend_from_slice(b"\"data_base64\":\"");
            json.extend_from_slice(base64(event.payload().as_bytes()).as_bytes());
            json.push(b'"');
        }
    }
}
