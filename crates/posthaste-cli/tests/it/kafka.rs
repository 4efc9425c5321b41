//! `posthaste relay` to Kafka, read back by `confluent-kafka`.

use std::process::Command;

use serde_json::{Value, json};

use crate::brokers::{ORDERS, assert_each_once, relayed};
use crate::place::{Late, Place, until};
use crate::relay::{lines, unique};
use crate::{stderr, stdout};

fn variable(name: &str) -> String {
    let how = "run scripts/test kafka, or eval \"$(scripts/brokers/kafka start DIR)\" first";
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: {how}"))
}

/// Makes and reads topics.
fn client(arguments: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../posthaste-publishers/tests/it/kafka/client.py");
    let output = Command::new(variable("POSTHASTE_TEST_KAFKA_PYTHON")).arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output).to_owned()
}

fn header<'a>(record: &'a Value, name: &str) -> Option<&'a str> {
    let headers = record["headers"].as_array().unwrap();
    headers.iter().find(|header| header[0] == name).and_then(|header| header[1].as_str())
}

fn body(record: &Value) -> Vec<u8> {
    serde_json::from_value(record["body"].clone()).unwrap()
}

#[tokio::test]
async fn every_order_is_in_the_topic_of_its_type_with_its_aggregate_as_the_key() {
    let (brokers, name) = (variable("POSTHASTE_TEST_KAFKA_URL"), unique("shop-"));
    let topic = format!("{name}.Order");
    client(&["create", &brokers, &topic, "3"]);
    let settings = format!(
        r#"
[database]
url = "env:SHOP_DATABASE"

[destination.orders]
type = "kafka"
brokers = "{brokers}"
to = "{name}.{{aggregate_type}}"
compression = "lz4"

[[route]]
name = "orders"
match = {{ aggregate_type = "Order" }}
to = "orders"
"#
    );
    relayed(&settings, &[]).await;
    let records = lines(&client(&["read", &brokers, &topic]));
    let came: Vec<_> =
        records.iter().map(|record| (header(record, "event-id").unwrap().to_owned(), body(record))).collect();
    assert_each_once(&came);
    for record in &records {
        assert_eq!(header(record, "event-id"), Some(&*format!("id-{}", record["key"].as_str().unwrap())), "{record}");
        assert_eq!((header(record, "tenant-id"), header(record, "region")), (Some("shop"), Some("eu")));
    }
    assert_eq!(records.len(), ORDERS);
}

#[test]
fn a_broker_that_is_away_at_the_start_is_waited_for() {
    let (brokers, topic) = (variable("POSTHASTE_TEST_KAFKA_URL"), unique("late-"));
    client(&["create", &brokers, &topic, "1"]);
    let late = Late::to(&brokers);
    let here = Place::with(&format!(
        "[destination.orders]\ntype = \"kafka\"\nbrokers = \"{}\"\nto = \"{topic}\"\n\
         envelope = {{ format = \"debezium\", event_type_header = \"eventType\" }}\n",
        late.address
    ));
    here.ok(&["events", "write", "--id", "e1", "--type", "OrderPlaced", r#"{"n":1}"#]);
    let mut relay = here.start(&["relay"]);
    relay.says("the destination orders cannot be reached; waiting for it");
    assert_eq!(here.json(&["stats", "--output", "json"])["leases"], json!({}), "nothing is claimed");
    late.arrive();
    until("it is delivered", || here.json(&["stats", "--output", "json"])["done"] == 1);
    relay.terminate();
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    let records = lines(&client(&["read", &brokers, &topic]));
    assert_eq!(records.len(), 1);
    assert_eq!((header(&records[0], "id"), header(&records[0], "eventType")), (Some("e1"), Some("OrderPlaced")));
    assert_eq!(body(&records[0]), br#"{"n":1}"#);
}

#[test]
fn the_doctor_tells_of_topics_without_replicas_and_makes_none() {
    let (brokers, name) = (variable("POSTHASTE_TEST_KAFKA_URL"), unique("doctor-"));
    client(&["create", &brokers, &name, "1"]);
    let destination = |kind: &str, to: &str| {
        format!("[destination.{kind}]\ntype = \"kafka\"\nbrokers = \"{brokers}\"\nto = \"{to}\"\n")
    };
    let here = Place::with(
        &[
            destination("one", &name),
            destination("missing", &format!("no-{name}")),
            destination("chosen", "{event_type}"),
            "[[route]]\nto = [\"one\", \"missing\", \"chosen\"]\n".to_owned(),
        ]
        .concat(),
    );
    here.ok(&["migrate", "up"]);
    for _ in 0..2 {
        // Had it been made by who looks, it would be there the second time.
        let findings = here.json(&["doctor", "--output", "json"]);
        let of = |check: &str| {
            let check = format!("destination {check}");
            let found = findings.as_array().unwrap().iter().find(|finding| finding["check"] == check.as_str()).unwrap();
            (found["level"].as_str().unwrap(), found["finding"].as_str().unwrap())
        };
        let (level, what) = of("one");
        assert!(level == "note" && what.contains("no replica"), "{what}");
        let (level, what) = of("missing");
        assert!(level == "note" && what.contains("there is no topic"), "{what}");
        let (level, what) = of("chosen");
        assert!(level == "ok" && what.contains("was not asked, since events say"), "{what}");
    }
}
