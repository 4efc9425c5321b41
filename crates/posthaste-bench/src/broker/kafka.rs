//! Kafka's protocol.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use posthaste_core::EventId;
use posthaste_publishers::kafka::{Kafka, KafkaOptions};
use posthaste_publishers::{Destination, Message};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{ClientConfig, ClientContext, Offset, TopicPartitionList};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Broker;
use crate::versions;

/// Messages on their way in the loop by hand.
const IN_FLIGHT: usize = 20_000;

const PARTITIONS: i32 = 4;

/// How long the next message to be read back may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct KafkaBroker {
    publisher: Kafka,
    bare: ThreadedProducer<Places>,
    admin: AdminClient<DefaultClientContext>,
    /// Where it is.
    config: ClientConfig,
    about: String,
}

impl KafkaBroker {
    pub(crate) async fn connect(brokers: &str, about: Option<&str>) -> anyhow::Result<Self> {
        let publisher = Kafka::connect(KafkaOptions::new(brokers)).await?;
        // As the publisher is: what the client repeats arrives once. All else is as librdkafka has it, for throughput.
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        let mut producer = config.clone();
        producer.set("enable.idempotence", "true").set("acks", "all").set("partitioner", "murmur2_random");
        let bare = ThreadedProducer::from_config_and_context(&producer, Places::default())?;
        let admin = config.create()?;
        let about = about.unwrap_or("a broker that speaks Kafka's protocol").to_owned();
        Ok(Self { publisher, bare, admin, config, about })
    }
}

impl Broker for KafkaBroker {
    type Publisher = Kafka;

    fn description(&self) -> String {
        let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
        format!("{}; acks=all, idempotent; {}, librdkafka {librdkafka}", self.about, versions::of("rdkafka"))
    }

    fn publisher(&self) -> &Kafka {
        &self.publisher
    }

    async fn fresh(&self) -> anyhow::Result<String> {
        let topic = format!("posthaste-bench-{}", EventId::generate());
        let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1));
        let made = self.admin.create_topics([&new], &AdminOptions::new()).await?;
        ensure!(made.iter().all(Result::is_ok), "the topic was not made: {made:?}");
        Ok(topic)
    }

    fn destination(&self, topic: &str) -> Destination<Kafka> {
        self.publisher.topic(topic)
    }

    async fn publish_by_hand(&self, messages: Vec<Message>) -> anyhow::Result<()> {
        let places = Arc::new(Semaphore::new(IN_FLIGHT));
        for message in &messages {
            let place = Box::new(Arc::clone(&places).acquire_owned().await?);
            let mut headers = OwnedHeaders::new_with_capacity(message.headers.len() + 1);
            headers = headers.insert(Header { key: "content-type", value: Some(message.content_type.as_ref()) });
            for (name, value) in message.headers.iter() {
                headers = headers.insert(Header { key: name, value: Some(value) });
            }
            let key = message.key.as_deref().context("every message has a key")?;
            let record = BaseRecord::with_opaque_to(&message.to, place).payload(message.body.as_ref());
            self.bare.send(record.key(key).headers(headers)).map_err(|(error, _)| error)?;
        }
        let _all = places.acquire_many(u32::try_from(IN_FLIGHT)?).await?;
        match self.bare.context().refused.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Reads them. What tansu says of its offsets is too little while it stores in memory.
    async fn count(&self, topic: &str, enough: u64) -> anyhow::Result<u64> {
        let (mut config, topic) = (self.config.clone(), topic.to_owned());
        let counting = tokio::task::spawn_blocking(move || {
            let consumer: BaseConsumer = config.set("group.id", "posthaste-bench").create()?;
            let mut all = TopicPartitionList::new();
            for partition in 0..PARTITIONS {
                all.add_partition_offset(&topic, partition, Offset::Beginning)?;
            }
            consumer.assign(&all)?;
            let mut count = 0;
            while count < enough
                && let Some(message) = consumer.poll(PATIENCE)
            {
                message?;
                count += 1;
            }
            Ok::<_, KafkaError>(count)
        });
        Ok(counting.await??)
    }

    async fn delete(&self, topic: &str) -> anyhow::Result<()> {
        let deleted = self.admin.delete_topics(&[topic], &AdminOptions::new()).await?;
        // It is gone all the same, or will be.
        let known = |result: &Result<String, (String, RDKafkaErrorCode)>| !matches!(result, Err((_, code)) if *code != RDKafkaErrorCode::UnknownTopicOrPartition);
        ensure!(deleted.iter().all(known), "the topic was not deleted: {deleted:?}");
        Ok(())
    }
}

/// Gives the place in flight back when the report of a message has come.
#[derive(Default)]
struct Places {
    refused: Mutex<Option<KafkaError>>,
}

impl ClientContext for Places {}

impl ProducerContext for Places {
    type DeliveryOpaque = Box<OwnedSemaphorePermit>;

    fn delivery(&self, result: &DeliveryResult<'_>, place: Box<OwnedSemaphorePermit>) {
        if let Err((error, _)) = result {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
        drop(place);
    }
}
