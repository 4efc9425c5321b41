//! Connections that are encrypted, and brokers that want a login.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use posthaste_publishers::kafka::{Error, Kafka, KafkaOptions, Sasl, Tls};
use posthaste_publishers::{PublishErrorKind, Publisher};

use super::broker::{Private, client, create_topic, new_topic, python, read, unused_topic};
use super::{assert_all_arrived, assert_once_and_in_order, kinds, numbered};
use crate::certificate::certificate;

#[tokio::test(flavor = "multi_thread")]
async fn a_login_by_scram_is_taken_and_a_wrong_one_is_an_outage() {
    let broker = Private::start(&[]).await;
    let topic = new_topic(broker.url(), 1).await;
    client(&["user", broker.url(), "shop", "secret"]).await;
    broker.kill();
    broker.restart(&["--authentication"]).await;

    let options = KafkaOptions::new(broker.url());
    let options = options.connect_timeout(Duration::from_secs(2)).delivery_timeout(Duration::from_secs(2));
    let right = options.clone().delivery_timeout(Duration::from_secs(20)).sasl(Sasl::scram_sha_512("shop", "secret"));
    let kafka = Kafka::connect(right).await.unwrap();
    assert_all_arrived(&kafka.publish(numbered(&topic, 2, 0..100)).await);

    let wrong = options.clone().sasl(Sasl::scram_sha_512("shop", "guess"));
    let error = Kafka::connect(wrong.clone()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("authentication failed"), "{error}");
    assert!(!error.to_string().contains("guess"), "{error}");
    let lazy = Kafka::connect(wrong.lazy(true)).await.unwrap();
    let results = lazy.publish(numbered(&topic, 1, 0..1)).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Outage)]);
    assert!(results[0].as_ref().unwrap_err().to_string().contains("authentication failed"));
    assert_eq!(lazy.check().await.unwrap_err().kind(), PublishErrorKind::Permanent);
    assert!(Kafka::connect(options).await.is_err(), "somebody who did not log in was let in");

    let reader = serde_json::json!({
        "bootstrap.servers": broker.url(), "security.protocol": "sasl_plaintext", "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "shop", "sasl.password": "secret",
    });
    assert_once_and_in_order(&read(&reader.to_string(), &topic).await, 2, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_connection_is_used_and_a_stranger_is_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let (stranger, _) = certificate(directory.path(), "stranger");
    let (certificate, key) = certificate(directory.path(), "server");
    let mut terminator = Terminator::start(&certificate, &key);
    let broker = Private::start(&["--advertise", &terminator.url]).await;
    terminator.speak_for(broker.url());

    let reader = serde_json::json!({
        "bootstrap.servers": terminator.url, "security.protocol": "ssl", "ssl.ca.location": certificate,
    });
    let (reader, topic) = (reader.to_string(), unused_topic());
    create_topic(&reader, &topic, 1).await;
    let options = KafkaOptions::new(&terminator.url).connect_timeout(Duration::from_secs(2));
    let kafka = Kafka::connect(options.clone().tls(Tls::new().ca(&certificate))).await.unwrap();
    assert_all_arrived(&kafka.publish(numbered(&topic, 2, 0..100)).await);
    assert_once_and_in_order(&read(&reader, &topic).await, 2, 100);

    let error = Kafka::connect(options.clone().tls(Tls::new().ca(&stranger))).await.unwrap_err().to_string();
    assert!(error.contains("certificate verify failed"), "{error}");
    let missing = Kafka::connect(options.clone().tls(Tls::new().ca("/nowhere.pem"))).await.unwrap_err();
    assert!(matches!(missing, Error::Client(_)), "{missing}");
    assert!(Kafka::connect(options).await.is_err(), "the connection was not encrypted");
}

/// Speaks TLS for a broker that does not.
struct Terminator {
    process: Child,
    url: String,
}

impl Terminator {
    fn start(certificate: &Path, key: &Path) -> Self {
        let mut command = python();
        command.arg("tls").arg(certificate).arg(key).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { process, url: format!("127.0.0.1:{}", port.trim()) }
    }

    fn speak_for(&mut self, broker: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{broker}").unwrap();
    }
}

impl Drop for Terminator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
