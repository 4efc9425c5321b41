//! Where events go: to Kafka, or to standard output, one JSON document a line.

use std::io::Write;
use std::time::Duration;

use posthaste::listener::AnyListener;
use posthaste::{Delivery, Failure, Listener, Outcome, RetryPolicy, Verdict};
use serde_json::{Value, json};

/// Prints events. To see what happens when nobody takes them, name a topic that is down.
struct Publisher {
    down: Option<String>,
}

/// Tries each event five times, with 100, 200, 400 and 800 ms in between, more or less.
fn five_attempts() -> RetryPolicy {
    RetryPolicy::exponential(Duration::from_millis(100), Duration::from_millis(1600)).max_attempts(5)
}

pub(crate) fn to_stdout(down: Option<String>) -> AnyListener {
    Publisher { down }.with_retry(five_attempts()).into()
}

/// The key of a message is the order, so that the events of one stay in their order. While no broker is there, nothing is tried.
#[cfg(feature = "kafka")]
pub(crate) async fn to_kafka(brokers: &str, topic: &str) -> anyhow::Result<AnyListener> {
    use posthaste::publishers::{Kafka, KafkaOptions};

    let kafka = Kafka::connect(KafkaOptions::new(brokers)).await?;
    Ok(kafka.topic(topic).retry(five_attempts()).into())
}

#[cfg(not(feature = "kafka"))]
pub(crate) fn to_kafka(brokers: &str, _: &str) -> std::future::Ready<anyhow::Result<AnyListener>> {
    std::future::ready(Err(anyhow::anyhow!("events cannot go to Kafka at {brokers}: build this with --features kafka")))
}

impl Publisher {
    fn publish(&self, event: &Delivery) -> Result<(), Failure> {
        let topic = format!("{}.events", event.aggregate_type().to_lowercase());
        if self.down.as_ref() == Some(&topic) {
            return Err(Failure::retryable(format!("no broker takes {topic}")));
        }
        let value: Value = serde_json::from_str(event.payload().as_json().unwrap_or("null"))?;
        let record = json!({ "topic": topic, "key": event.aggregate_id(), "value": value });
        writeln!(std::io::stdout().lock(), "{record}")?;
        Ok(())
    }
}

impl Listener for Publisher {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        self.publish(event).map(|()| Outcome::Done)
    }
}
