//! How fast the publisher is, beside a bare loop over librdkafka's producer with as many messages in flight.
//!
//! ```text
//! eval "$(scripts/brokers/kafka start "$(mktemp -d)")"
//! cargo run --release -p posthaste-publishers --features kafka --example kafka_rate -- [MESSAGES] [ROUNDS]
//! ```
//!
//! That broker writes each request to SQLite, and is then all that is measured. For the cost of the publisher itself start it by
//! hand with `--storage-engine memory://tansu/`.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use bytes::Bytes;
use posthaste_core::EventId;
use posthaste_publishers::kafka::{Kafka, KafkaOptions};
use posthaste_publishers::{Message, Publisher};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, ProducerContext, ThreadedProducer};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const IN_FLIGHT: usize = 20_000;
const BATCH: usize = <Kafka as Publisher>::MAX_BATCH;
const BODY: usize = 200;
const KEYS: usize = 1_000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let brokers = std::env::var("POSTHASTE_TEST_KAFKA_URL").context("set POSTHASTE_TEST_KAFKA_URL to a broker")?;
    let mut arguments = std::env::args().skip(1);
    let messages: usize = arguments.next().map_or(Ok(200_000), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let messages = (messages / BATCH).max(1) * BATCH;

    let kafka = Kafka::connect(KafkaOptions::new(&brokers)).await?;
    let bare = bare_producer(&brokers)?;
    println!("{messages} messages of {BODY} bytes, {IN_FLIGHT} in flight, per second:");
    let (mut bare_rates, mut our_rates) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let topic = new_topic(&brokers).await?;
        let one = rate(messages, bare_loop(&bare, &topic, messages)).await?;
        let topic = new_topic(&brokers).await?;
        let other = rate(messages, publisher(&kafka, &topic, messages)).await?;
        if round == 0 {
            continue; // to warm up
        }
        println!("  round {round}: bare loop {one:>9.0}  publisher {other:>9.0}  ratio {:.2}", other / one);
        bare_rates.push(one);
        our_rates.push(other);
    }
    let (bare, ours) = (median(&mut bare_rates), median(&mut our_rates));
    println!("  median:  bare loop {bare:>9.0}  publisher {ours:>9.0}  ratio {:.2}", ours / bare);
    kafka.close().await;
    Ok(())
}

async fn new_topic(brokers: &str) -> anyhow::Result<String> {
    let name = format!("rate-{}", EventId::generate());
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let made =
        admin.create_topics([&NewTopic::new(&name, 4, TopicReplication::Fixed(1))], &AdminOptions::new()).await?;
    ensure!(made.iter().all(Result::is_ok), "{made:?}");
    Ok(name)
}

async fn rate(messages: usize, sending: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<f64> {
    let begun_at = Instant::now();
    sending.await?;
    #[expect(clippy::cast_precision_loss, reason = "nobody sends that many")]
    Ok(messages as f64 / begun_at.elapsed().as_secs_f64())
}

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn headers() -> [(&'static str, &'static str); 5] {
    [
        ("event-id", "01HX0000000000000000000000"),
        ("event-type", "OrderPlaced"),
        ("aggregate-type", "Order"),
        ("aggregate-id", "42"),
        ("occurred-at", "2026-01-01T00:00:00Z"),
    ]
}

/// As many batches under way as make the messages in flight.
async fn publisher(kafka: &Kafka, topic: &str, messages: usize) -> anyhow::Result<()> {
    let body = Bytes::from(vec![b'x'; BODY]);
    let message = |number: usize| Message {
        id: EventId::generate(),
        to: topic.to_owned(),
        key: Some((number % KEYS).to_string()),
        content_type: Cow::Borrowed("application/json"),
        headers: headers().map(|(name, value)| (Cow::Borrowed(name), value.to_owned())).to_vec(),
        body: body.clone(),
    };
    let mut under_way = VecDeque::new();
    for batch in 0..messages / BATCH {
        if under_way.len() == IN_FLIGHT / BATCH {
            arrived(under_way.pop_front().expect("there are some")).await?;
        }
        let batch: Vec<Message> = (batch * BATCH..(batch + 1) * BATCH).map(message).collect();
        let kafka = kafka.clone();
        under_way.push_back(tokio::spawn(async move { kafka.publish(batch).await }));
    }
    for batch in under_way {
        arrived(batch).await?;
    }
    Ok(())
}

async fn arrived(
    batch: tokio::task::JoinHandle<Vec<Result<(), posthaste_publishers::PublishError>>>,
) -> anyhow::Result<()> {
    batch.await?.into_iter().try_for_each(|result| Ok(result?))
}

/// Gives the place in flight back when the report has come.
struct Counting;

impl rdkafka::ClientContext for Counting {}

impl ProducerContext for Counting {
    type DeliveryOpaque = Box<OwnedSemaphorePermit>;

    fn delivery(&self, result: &DeliveryResult<'_>, place: Box<OwnedSemaphorePermit>) {
        if let Err((error, _)) = result {
            eprintln!("{error}");
            std::process::exit(1);
        }
        drop(place);
    }
}

fn bare_producer(brokers: &str) -> anyhow::Result<ThreadedProducer<Counting>> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("enable.idempotence", "true").set("acks", "all");
    config.set("partitioner", "murmur2_random");
    Ok(ThreadedProducer::from_config_and_context(&config, Counting)?)
}

async fn bare_loop(producer: &ThreadedProducer<Counting>, topic: &str, messages: usize) -> anyhow::Result<()> {
    let body = vec![b'x'; BODY];
    let places = Arc::new(Semaphore::new(IN_FLIGHT));
    for number in 0..messages {
        let place = Box::new(Arc::clone(&places).acquire_owned().await?);
        let mut all = OwnedHeaders::new_with_capacity(6);
        all = all.insert(Header { key: "content-type", value: Some("application/json") });
        for (name, value) in headers() {
            all = all.insert(Header { key: name, value: Some(value) });
        }
        let key = (number % KEYS).to_string();
        let record = BaseRecord::with_opaque_to(topic, place).payload(body.as_slice()).key(key.as_str()).headers(all);
        producer.send(record).map_err(|(error, _)| error)?;
    }
    let _all = places.acquire_many(u32::try_from(IN_FLIGHT)?).await?;
    Ok(())
}
