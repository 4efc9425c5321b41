//! One event in every format, for every destination: what a client that is not ours reads back is what the binding of CloudEvents
//! for that protocol says, or the pages of the envelopes. The tests are beside the others of each destination.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use posthaste_core::{Event, MemoryStore, Outbox, Timestamp};
use posthaste_publishers::{CloudEvents, Debezium, Destination, Envelope, Publisher};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};

/// A message as a client read it.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    /// Topic, subject, routing key, stream or path.
    pub(crate) to: String,
    /// The key, where the protocol has one.
    pub(crate) key: Option<String>,
    pub(crate) content_type: Option<String>,
    /// Everything else beside the body, but for what the protocol adds by itself.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// How a protocol carries what an envelope says.
#[derive(Clone, Copy)]
pub(crate) struct Carrier {
    /// What stands before the name of an attribute of a CloudEvent in binary mode.
    pub(crate) prefix: &'static str,
    /// Names and values are ASCII, and percent-encoded where they would not be.
    pub(crate) ascii: bool,
    /// Names are small letters.
    pub(crate) lower_case: bool,
    /// The aggregate id is the key.
    pub(crate) keyed: bool,
    /// The content type of a CloudEvent in binary mode is an attribute as well.
    pub(crate) type_is_attribute: bool,
    /// What Debezium sends has a content type.
    pub(crate) debezium_has_type: bool,
    /// The id is there as `event-id` in every format.
    pub(crate) always_event_id: bool,
    /// A trace is beside a CloudEvent under its own name.
    pub(crate) trace: Trace,
}

/// Where the header `traceparent` is beside what a CloudEvent says of it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Trace {
    /// Also under its own name.
    Beside,
    /// Attributes have their own names, so it is there once.
    Attribute,
    /// As [`Self::Beside`], but a structured event is all that is written.
    BesideUnlessStructured,
}

/// What suits most.
pub(crate) const CARRIER: Carrier = Carrier {
    prefix: "ce_",
    ascii: false,
    lower_case: false,
    keyed: false,
    type_is_attribute: false,
    debezium_has_type: true,
    always_event_id: false,
    trace: Trace::Beside,
};

/// The formats, and what ids of events begin with there.
fn formats() -> [(&'static str, Envelope); 4] {
    [
        ("plain", Envelope::Plain),
        ("binary", CloudEvents::new("https://shop.example/{aggregate_type}").binary()),
        ("structured", CloudEvents::new("https://shop.example/{aggregate_type}").structured()),
        ("debezium", Envelope::Debezium(Debezium::new().event_type_header("eventType"))),
    ]
}

/// Bodies: JSON, whose text has to stay as it is, and bytes that are no text.
const BODIES: [(&str, &[u8]); 2] = [
    ("application/json", "{ \"größe\": 1.0,  \"note\": \"Grüße 😀\" }".as_bytes()),
    ("image/png", &[0x89, 0x50, 0x4E, 0x47, 0x0D, 0x0A, 0x00, 0xFF, 0x22, 0x5C]),
];

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01";

/// What is said of the event beside its id and its type: by which header in plain, by which attribute, and what; and both again as
/// ASCII has them.
const SAID: [(&str, &str, &str, &str, &str); 7] = [
    ("event-type", "type", "OrderPlaced", "event-type", "OrderPlaced"),
    ("aggregate-type", "aggregatetype", "Order", "aggregate-type", "Order"),
    ("aggregate-id", "subject", "42 €", "aggregate-id", "42%20%E2%82%AC"),
    ("tenant-id", "tenantid", "Käufer", "tenant-id", "K%C3%A4ufer"),
    ("occurred-at", "time", "2026-02-02T02:40:00.25Z", "occurred-at", "2026-02-02T02:40:00.25Z"),
    ("région-2", "rgion2", "100 % Süd", "r%C3%A9gion-2", "100%20%25%20S%C3%BCd"),
    ("traceparent", "traceparent", TRACEPARENT, "traceparent", TRACEPARENT),
];

/// What two headers say whose names differ in capitals alone.
const CAPITALS: &str = "of the one with capitals";
const SMALL_LETTERS: &str = "of the one with small letters";

/// Headers of the event that are called as ours, but for capitals, and the extensions of CloudEvents that they are.
const TAKEN: [(&str, &str); 2] = [("EVENT-ID", "eventid"), ("Content-type", "contenttype")];

const SOMEBODYS: &str = "somebody's";

fn event(id: &str, content_type: &str, body: &[u8]) -> Event {
    let event = Event::builder("OrderPlaced").id(id).aggregate("Order", "42 €").tenant_id("Käufer");
    let event = event.occurred_at(Timestamp::from_micros(1_770_000_000_250_000)).content_type(content_type);
    let event = event.header("région-2", "100 % Süd").header("traceparent", TRACEPARENT);
    let event = event.header("Shelf", CAPITALS).header("shelf", SMALL_LETTERS);
    let event = event.headers(TAKEN.map(|(name, _)| (name, SOMEBODYS)));
    let event = match content_type {
        "application/json" => event.json_text(std::str::from_utf8(body).unwrap()),
        _ => event.bytes(body.to_vec()),
    };
    event.build().unwrap()
}

/// Sends the event in every format with either body, one after the other, and looks at what the client reads then.
pub(crate) async fn are_read_back<P: Publisher>(
    carrier: Carrier,
    to: &str,
    destination: impl Fn() -> Destination<P>,
    read: impl AsyncFnOnce(usize) -> Vec<Seen>,
) {
    let mut expected = Vec::new();
    for (format, envelope) in formats() {
        for (number, (content_type, body)) in BODIES.into_iter().enumerate() {
            let id = format!("{format}-{number}");
            deliver(destination().envelope(envelope.clone()), event(&id, content_type, body)).await;
            expected.push((carrier.expected(format, to, &id, content_type, body), format, content_type));
        }
    }
    let seen = read(expected.len()).await;
    assert_eq!(seen.len(), expected.len(), "{seen:#?}");
    for (mut seen, (mut expected, format, content_type)) in seen.into_iter().zip(expected) {
        if format == "structured" {
            let (document, wanted) = (seen.body, expected.body);
            // The payload is in it byte for byte, and what is around it may be written in more than one way.
            if content_type == "application/json" {
                let text = std::str::from_utf8(&document).unwrap();
                assert!(text.contains(std::str::from_utf8(BODIES[0].1).unwrap()), "{text}");
            }
            let parsed = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap();
            assert_eq!(parsed(&document), parsed(&wanted));
            (seen.body, expected.body) = (Vec::new(), Vec::new());
        }
        assert_eq!(seen, expected, "{format} with {content_type}");
    }
}

async fn deliver<P: Publisher>(destination: Destination<P>, event: Event) {
    let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", destination).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event).await.unwrap();
    tx.commit().await.unwrap();
    let done = async {
        while outbox.admin().counts().await.unwrap().done < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(90), done).await.expect("the event is DONE");
    outbox.shutdown().await;
}

impl Carrier {
    fn expected(self, format: &str, to: &str, id: &str, content_type: &str, body: &[u8]) -> Seen {
        let mut headers = BTreeMap::new();
        let mut says = |name: &str, value: &str| {
            let name = if self.lower_case { name.to_lowercase() } else { name.to_owned() };
            assert_eq!(headers.insert(name, value.to_owned()), None);
        };
        let (mut seen_type, mut seen_body) = (Some(content_type.to_owned()), body.to_vec());
        match format {
            "plain" => {
                says("event-id", id);
                for (name, _, text, ascii_name, ascii) in SAID {
                    if self.ascii { says(ascii_name, ascii) } else { says(name, text) }
                }
                says("Shelf", CAPITALS);
                // Where they are one name, the second would be another value of the first.
                if !self.lower_case {
                    says("shelf", SMALL_LETTERS);
                }
            }
            "binary" => {
                let source = "https://shop.example/Order";
                let mut attribute = |name: &str, value: &str| says(&format!("{}{name}", self.prefix), value);
                for (name, value) in [("specversion", "1.0"), ("id", id), ("source", source)] {
                    attribute(name, value);
                }
                for (_, name, text, _, ascii) in SAID {
                    attribute(name, if self.ascii { ascii } else { text });
                }
                attribute("shelf", &self.encoded(CAPITALS));
                TAKEN.iter().for_each(|(_, name)| attribute(name, SOMEBODYS));
                if self.type_is_attribute {
                    attribute("datacontenttype", content_type);
                }
                if self.trace != Trace::Attribute {
                    says("traceparent", TRACEPARENT);
                }
            }
            "structured" => {
                let mut document = json!({
                    "specversion": "1.0", "id": id, "source": "https://shop.example/Order",
                    "datacontenttype": content_type,
                });
                SAID.iter().for_each(|(_, name, text, _, _)| document[name] = json!(text));
                document["shelf"] = json!(CAPITALS);
                TAKEN.iter().for_each(|(_, name)| document[name] = json!(SOMEBODYS));
                match serde_json::from_slice::<Value>(body) {
                    Ok(data) => document["data"] = data,
                    Err(_) => document["data_base64"] = json!(BASE64_STANDARD.encode(body)),
                }
                if self.trace != Trace::BesideUnlessStructured {
                    says("traceparent", TRACEPARENT);
                }
                seen_type = Some("application/cloudevents+json; charset=utf-8".to_owned());
                seen_body = document.to_string().into_bytes();
            }
            _ => {
                says("id", id);
                says("eventType", "OrderPlaced");
                seen_type = seen_type.filter(|_| self.debezium_has_type);
            }
        }
        if self.always_event_id && format != "plain" {
            says("event-id", id);
        }
        let key = self.keyed.then(|| "42 €".to_owned());
        Seen { to: to.to_owned(), key, content_type: seen_type, headers, body: seen_body }
    }

    /// A value as an attribute of a CloudEvent has it.
    fn encoded(self, value: &str) -> String {
        if self.ascii { value.replace(' ', "%20") } else { value.to_owned() }
    }
}

/// The headers of a JSON object.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "webhook"))]
pub(crate) fn headers(object: &Value) -> BTreeMap<String, String> {
    let header = |(name, value): (&String, &Value)| (name.clone(), value.as_str().unwrap().to_owned());
    object.as_object().unwrap().iter().map(header).collect()
}

/// The same of an object in which a name may be there twice, which JSON allows and nobody should have to bear.
#[derive(Debug, Default)]
pub(crate) struct Once(pub(crate) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Once {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts, each name once")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Self, A::Error> {
        while let Some((name, value)) = members.next_entry::<String, String>()? {
            if self.0.contains_key(&name) {
                return Err(serde::de::Error::custom(format!("{name} is there twice")));
            }
            self.0.insert(name, value);
        }
        Ok(self)
    }
}

/// Bytes that a client wrote in base64.
pub(crate) fn from_base64(text: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(text.as_str().unwrap()).unwrap()
}
