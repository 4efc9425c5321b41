//! The same with Kafka, read back by a client that is not ours.

use std::process::Command;

use serde_json::Value;

use super::{Publishing, database, says, says_until, service};

fn variable(name: &str) -> String {
    let how = "eval \"$(scripts/brokers/kafka start \"$(mktemp -d)\")\"";
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; start a broker first: {how}"))
}

/// Makes and reads topics, in Python.
fn client(arguments: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/posthaste-publishers/tests/it/kafka/client.py");
    let output = Command::new(variable("POSTHASTE_TEST_KAFKA_PYTHON")).arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn an_order_arrives_in_a_topic_with_the_order_as_its_key() {
    let (url, brokers) = (database("kafka").await, variable("POSTHASTE_TEST_KAFKA_URL"));
    let topic = url.rsplit_once('/').unwrap().1.split('?').next().unwrap().replace("order_service_", "orders-");
    client(&["create", &brokers, &topic, "3"]);
    let order = says(&url, &["create", "4711", "Green tea", "2", "1250"]);
    // By the variable and by the argument.
    for (arguments, kafka) in [(&[][..], Some(&brokers)), (&["--kafka", brokers.as_str()], None)] {
        let mut publishing = service(&url, &["publish"]);
        publishing.args(arguments).env("KAFKA_TOPIC", &topic).envs(kafka.map(|brokers| ("KAFKA_URL", brokers)));
        let _publishing = Publishing::run(&mut publishing);
        let second = says(&url, &["create", "4712", "Teapot", "1", "4900"]);
        for order in [&order, &second] {
            says_until(&url, &["history", order], |said| said.contains("DONE after 0 failures"));
        }
    }

    let read = client(&["read", &brokers, &topic]);
    let records: Vec<Value> = read.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 3, "{read}");
    let first = records.iter().find(|record| record["key"] == order).unwrap();
    let body: Vec<u8> = serde_json::from_value(first["body"].clone()).unwrap();
    let value: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&value["orderId"], &value["totalCents"]), (&order.into(), &2500.into()));
    let event_id = &value["eventId"];
    let headers = first["headers"].as_array().unwrap();
    assert!(headers.contains(&serde_json::json!(["event-id", event_id])), "{headers:?}");
}

#[tokio::test]
async fn without_a_broker_it_does_not_start() {
    let url = database("no_kafka").await;
    let output = service(&url, &["publish", "--kafka", "127.0.0.1:1"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
}
