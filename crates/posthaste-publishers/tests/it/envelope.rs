//! What every envelope makes of events for every protocol, byte for byte, kept in `tests/it/golden`. To accept a change:
//!
//! ```sh
//! POSTHASTE_GOLDEN=overwrite cargo test -p posthaste-publishers --test it envelope::
//! ```

use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use posthaste_core::EventBuilder;
use posthaste_core::listener::Path as Way;
use posthaste_core::time::Timestamp;
use posthaste_core::{Delivery, Event, MemoryStore, Outbox};
use posthaste_publishers::{
    Binding, Breaker, CloudEvents, Debezium, Destination, Envelope, EnvelopeError, Message, PublishError, Publisher,
};

const BINDINGS: [(&str, Binding); 6] = [
    ("Kafka", Binding::Kafka),
    ("NATS", Binding::Nats),
    ("AMQP", Binding::Amqp),
    ("HTTP", Binding::Http),
    ("MQTT", Binding::Mqtt),
    ("fields", Binding::Fields),
];

fn delivery(event: EventBuilder) -> Delivery {
    let event = event.occurred_at(Timestamp::from_micros(1_770_000_000_250_000)).build().unwrap();
    Delivery::new(event, 0, Way::Cold)
}

/// An event with everything that an event can have.
fn full() -> Delivery {
    let event = Event::builder("OrderPlaced").id("order-42-placed").aggregate("Order", 42).tenant_id("acme");
    let event = event.topic("orders").version(2).header("Correlation-Id", "c-7");
    let event = event.header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01");
    let event = event.header("tracestate", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
    delivery(event.json_text("{ \"total\": 19.90,\n  \"note\": \"Grüße\", \"items\":[1,1e2] }"))
}

/// An event with as little as an event can have.
fn bare() -> Delivery {
    delivery(Event::builder("Tick").id("tick-1").json_text("null"))
}

fn bytes() -> Delivery {
    let event = Event::builder("ImageTaken").id("image-1").aggregate("Camera", "c1").content_type("image/png");
    delivery(event.bytes([0x89, 0x50, 0x4E, 0x47, 0x0D, 0x0A, 0x1A, 0x0A, 0x00, 0xFF]))
}

/// An event whose headers are called as what is ours, or the protocol's, or as each other.
fn clashing() -> Delivery {
    let ours = ["event-id", "Event-Type", "AGGREGATE-ID", "tenant-id", "Content-Type"];
    let cloud_events = ["id", "Source", "spec-version", "TYPE", "subject", "time", "data", "data-content-type"];
    let extensions =
        ["aggregate_type", "tenantid", "CorrelationId", "correlation-id", "dataschema", "§§", "ce_id", "ce-id"];
    let protocols = ["Nats-Msg-Id", "nats-expected-stream", "Host", "content-length", "Transfer-Encoding", "CC", "Bcc"];
    // On HTTP these are one name, and one extension everywhere.
    let in_capitals = ["Shelf", "shelf", "SHELF"];
    let names = ours.into_iter().chain(cloud_events).chain(extensions).chain(protocols).chain(in_capitals);
    let event = Event::builder("OrderPaid").id("order-42-paid").aggregate("Order", 42);
    let event = event.headers(names.map(|name| (name, format!("header {name}"))));
    delivery(event.header("x".repeat(256), "a name of 256 bytes").json_text("{}"))
}

/// An event of which little is ASCII, and whose payload is not what its content type says.
fn foreign() -> Delivery {
    let event = Event::builder("Bestellung geändert").id("ä-1").aggregate("Käufer €", "42 % \"x\"").tenant_id("a\nb");
    let event = event.header("Grüße an", "Euro € 😀").header("quoted", "100 % \"sure\"").header("outer", " space ");
    let event =
        event.header("lines", "a\r\nInjected: yes").header("empty", "").content_type("text/plain; charset=utf-8");
    delivery(event.json_text("\"ein \\\"Text\\\" 😀\""))
}

fn events() -> [(&'static str, Delivery); 5] {
    [("full", full()), ("bare", bare()), ("bytes", bytes()), ("clashing", clashing()), ("foreign", foreign())]
}

#[derive(Default)]
struct Book(String);

impl Book {
    fn write(&mut self, envelope: &Envelope, binding: (&str, Binding), event: (&str, &Delivery)) {
        let wrapped = envelope.wrap(binding.1, event.1).unwrap();
        writeln!(self.0, "# {} on {}", event.0, binding.0).unwrap();
        writeln!(self.0, "[content type]: {}", wrapped.content_type).unwrap();
        for (name, value) in wrapped.headers.iter() {
            // So that a line break does not look like two headers.
            writeln!(
                self.0,
                "{}: {}",
                name.escape_debug(),
                value.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
            )
            .unwrap();
        }
        match std::str::from_utf8(&wrapped.body) {
            Ok(text) => writeln!(self.0, "[{} bytes]\n{text}\n", text.len()).unwrap(),
            Err(_) => writeln!(self.0, "[{} bytes] {:02x?}\n", wrapped.body.len(), &wrapped.body[..]).unwrap(),
        }
    }

    #[track_caller]
    fn is_as_kept(&self, name: &str) {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
        if std::env::var_os("POSTHASTE_GOLDEN").is_some_and(|wish| wish == "overwrite") {
            std::fs::write(&golden, &self.0).unwrap();
        }
        let kept = std::fs::read_to_string(&golden).unwrap_or_default();
        if kept != self.0 {
            let same = kept.lines().zip(self.0.lines()).take_while(|(kept, made)| kept == made).count();
            let line = |text: &str| text.lines().nth(same).unwrap_or("(nothing)").to_owned();
            panic!(
                "{name} is another from line {} on\n  kept: {}\n  made: {}\nPOSTHASTE_GOLDEN=overwrite accepts it",
                same + 1,
                line(&kept),
                line(&self.0)
            );
        }
    }
}

/// Every event on every protocol.
#[track_caller]
fn all_are_as_kept(envelope: &Envelope, name: &str) {
    let mut book = Book::default();
    for (title, event) in &events() {
        for binding in BINDINGS {
            book.write(envelope, binding, (title, event));
        }
    }
    book.is_as_kept(name);
}

#[test]
fn plain_events_are_as_kept() {
    all_are_as_kept(&Envelope::Plain, "plain.txt");
}

#[test]
fn cloud_events_in_binary_mode_are_as_kept() {
    all_are_as_kept(&CloudEvents::default().binary(), "cloudevents-binary.txt");
}

#[test]
fn cloud_events_in_structured_mode_are_as_kept() {
    all_are_as_kept(
        &CloudEvents::new("https://shop.example/{aggregate_type}").structured(),
        "cloudevents-structured.txt",
    );
}

/// Takes whatever a destination sends to Kafka.
#[derive(Clone, Default)]
struct Catcher(Arc<Mutex<Vec<Message>>>);

impl Publisher for Catcher {
    const BINDING: Binding = Binding::Kafka;

    fn name(&self) -> &str {
        "catcher"
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let results = messages.iter().map(|_| Ok(())).collect();
        self.0.lock().unwrap().extend(messages);
        results
    }

    /// Also what Kafka would not take.
    fn check_address(&self, _: &str) -> Result<(), PublishError> {
        Ok(())
    }

    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// Where events go that are sent as the guide says, and with which key.
async fn as_of_debezium(events: &[(&str, Delivery)]) -> Vec<Message> {
    let catcher = Catcher::default();
    let to = "outbox.event.{aggregate_type}";
    let destination = Destination::new(Arc::new(catcher.clone()), Breaker::new("catcher"), to);
    let destination = destination.envelope(Envelope::Debezium(Debezium::new()));
    let outbox = Outbox::builder(MemoryStore::new()).listen_all(destination).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all(events.iter().map(|(_, delivery)| Event::clone(delivery))).await.unwrap();
    tx.commit().await.unwrap();
    outbox.shutdown().await;
    catcher.0.lock().unwrap().clone()
}

#[tokio::test]
async fn events_as_of_debezium_are_as_kept() {
    let mut book = Book::default();
    let (events_in_order, sent) = (events(), as_of_debezium(&events()).await);
    for (title, event) in &events_in_order {
        writeln!(book.0, "# {title} to Kafka").unwrap();
        match sent.iter().find(|message| message.id == *event.id()) {
            Some(Message { to, key, .. }) => {
                let (to, key) = (&**to, key.as_ref().map_or("(none)", |key| &**key));
                writeln!(book.0, "[topic]: {to}\n[key]: {key}\n").unwrap();
            }
            None => writeln!(book.0, "(nowhere)\n").unwrap(),
        }
    }
    for envelope in [Debezium::new(), Debezium::new().event_type_header("eventType")].map(Envelope::Debezium) {
        for (title, event) in &events() {
            book.write(&envelope, BINDINGS[0], (title, event));
        }
        book.write(&envelope, BINDINGS[3], ("foreign", &foreign()));
    }
    book.is_as_kept("debezium.txt");
}

/// What else is true of all of them, whatever is kept.
#[test]
fn the_id_and_the_payload_are_in_every_envelope() {
    let envelopes = [
        Envelope::Plain,
        CloudEvents::default().binary(),
        CloudEvents::default().structured(),
        Envelope::Debezium(Debezium::new()),
    ];
    for envelope in &envelopes {
        for (_, binding) in BINDINGS {
            for event in [full(), bare(), bytes(), clashing()] {
                let wrapped = envelope.wrap(binding, &event).unwrap();
                let (id, payload) = (event.id().as_str(), event.payload().as_bytes());
                if let Envelope::CloudEventsStructured(_) = envelope {
                    let text = std::str::from_utf8(&wrapped.body).unwrap();
                    let json: serde_json::Value = serde_json::from_str(text).unwrap();
                    assert_eq!(json["id"], id);
                    assert!(
                        event
                            .payload()
                            .as_json()
                            .is_none_or(|payload| text.ends_with(&format!("\"data\":{payload}}}")))
                    );
                } else {
                    let ids = ["event-id", "ce_id", "ce-id", "cloudEvents:id", "id"];
                    let mine = wrapped.headers.iter().filter(|(name, value)| ids.contains(name) && *value == id);
                    assert_eq!(mine.count(), 1, "{envelope:?} on {binding:?}: {:?}", wrapped.headers);
                    assert_eq!(wrapped.body, payload);
                }
                let name = |name: &str| if binding == Binding::Http { name.to_lowercase() } else { name.to_owned() };
                let mut names: Vec<_> = wrapped.headers.iter().map(|(header, _)| name(header)).collect();
                let count = names.len();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), count, "{envelope:?} on {binding:?}: {names:?}");
            }
        }
    }
}

#[test]
fn headers_of_http_and_nats_are_printable_whatever_an_event_says() {
    for envelope in [Envelope::Plain, CloudEvents::default().binary(), CloudEvents::default().structured()] {
        for binding in [Binding::Http, Binding::Nats] {
            for (_, event) in &events() {
                for (name, value) in envelope.wrap(binding, event).unwrap().headers.iter() {
                    assert!(
                        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'),
                        "{name}"
                    );
                    assert!(value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{name}: {value}");
                }
            }
        }
    }
}

#[test]
fn a_moment_outside_of_rfc_3339_is_left_out() {
    let event = Event::builder("Tick").id("tick-1").json_text("{}").occurred_at(Timestamp::from_micros(i64::MAX));
    let event = Delivery::new(event.build().unwrap(), 0, Way::Cold);
    let plain = Envelope::Plain.wrap(Binding::Kafka, &event).unwrap();
    assert!(plain.headers.iter().all(|(name, _)| name != "occurred-at"));
    let structured = CloudEvents::default().structured().wrap(Binding::Kafka, &event).unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&structured.body).unwrap().get("time").is_none());
}

#[test]
fn a_source_is_checked_and_its_places_are_needed() {
    let check = |source: &str| CloudEvents::new(source).binary().check();
    assert_eq!(check("/shop/{tenant_id}"), Ok(()));
    assert_eq!(check(""), Err(EnvelopeError::NoSource));
    assert_eq!(check("  "), Err(EnvelopeError::NoSource));
    assert!(matches!(check("/{color}"), Err(EnvelopeError::Source(_))));
    let lacking = CloudEvents::new("/shop/{tenant_id}").structured().wrap(Binding::Http, &bare()).unwrap_err();
    assert!(matches!(&lacking, EnvelopeError::EmptyPlace(empty) if empty.place == "tenant_id"), "{lacking:?}");
    assert_eq!(Envelope::Debezium(Debezium::new().event_type_header(" ")).check(), Err(EnvelopeError::NoHeaderName));
}

#[test]
fn envelopes_are_read_from_files() {
    #[derive(serde::Deserialize)]
    struct File {
        envelope: Envelope,
    }
    let read = |text: &str| toml::from_str::<File>(&format!("envelope = {{ {text} }}")).map(|file| file.envelope);
    assert_eq!(read("format = 'plain'").unwrap(), Envelope::Plain);
    assert_eq!(read("format = 'cloudevents-binary'").unwrap(), CloudEvents::default().binary());
    let structured = read("format = 'cloudevents-structured', source = '/shop'").unwrap();
    assert_eq!(structured, CloudEvents::new("/shop").structured());
    let debezium = read("format = 'debezium', event_type_header = 'eventType'").unwrap();
    assert_eq!(debezium, Envelope::Debezium(Debezium::new().event_type_header("eventType")));
    for wrong in ["format = 'avro'", "format = 'cloudevents-binary', sauce = '/shop'", "format = 'debezium', x = 1", ""]
    {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_schema_is_a_uri_or_there_is_none() {
    let values = |schema: &str| {
        let event = delivery(Event::builder("Tick").id("tick-1").header("dataSchema", schema).json_text("{}"));
        let wrapped = CloudEvents::new("/100%").binary().wrap(Binding::Kafka, &event).unwrap();
        let wanted = wrapped.headers.iter().filter(|(name, _)| *name == "ce_dataschema" || *name == "ce_source");
        wanted.map(|(_, value)| value.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(""), ["/100%25"]);
    assert_eq!(values("/schemas/größe%20"), ["/100%25", "/schemas/gr%C3%B6%C3%9Fe%20"]);
}

#[test]
fn the_header_for_the_event_type_has_a_name_of_its_own() {
    for (name, good) in [("eventType", true), ("id", false), ("Content-Type", false), ("eventType ", false)] {
        let envelope = Envelope::Debezium(Debezium::new().event_type_header(name));
        assert_eq!(envelope.check().is_ok(), good, "{name}");
    }
}
