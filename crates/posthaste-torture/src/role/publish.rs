//! Sending events to a broker, through the publishers as everybody uses them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use posthaste_core::OutboxBuilder;
use posthaste_core::listener::AnyListener;
use posthaste_publishers::rabbitmq::QueueOptions;
use posthaste_publishers::{
    Binding, Destination, Kafka, KafkaOptions, Message, Nats, NatsOptions, PublishError, PublishErrorKind, Publisher,
    Rabbit, RabbitOptions,
};
use tokio::time::sleep;

use super::deliver::Unanswered;
use super::producer::AGGREGATE;
use crate::config::{self, Config, Sabotage};
use crate::database::Database;
use crate::history::{Recorder, What};
use crate::watched::Watched;

/// How long a broker may take to acknowledge, and to let somebody in. Short, since much is broken.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long Kafka's client tries by itself: a few times, when a broker has gone and come back.
const KAFKA_PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a broker.
pub(super) struct Line {
    to: To,
    recorder: Arc<Recorder>,
    sabotage: Option<Sabotage>,
}

enum To {
    Kafka(Kafka),
    Nats(Nats),
    Rabbit(Rabbit),
}

impl Line {
    /// Opens it, whether the broker is there at this moment or not.
    pub(super) async fn open(config: &Config, recorder: &Arc<Recorder>) -> anyhow::Result<Self> {
        let at = config.destination_at;
        let to = match config.destination {
            config::Destination::Kafka => {
                let options = KafkaOptions::new(at.to_string()).delivery_timeout(KAFKA_PATIENCE).lazy(true);
                To::Kafka(Kafka::connect(options).await?)
            }
            config::Destination::Nats => {
                let options = NatsOptions::new(format!("nats://{at}"));
                let options = options.ack_timeout(PATIENCE).connect_timeout(PATIENCE).lazy(true);
                To::Nats(Nats::connect(options).await?)
            }
            config::Destination::Rabbitmq => {
                let options = RabbitOptions::new(format!("amqp://guest:guest@{at}/%2f"))
                    .declare_topic_exchange("torture")
                    .declare_queue(QueueOptions::new("accounts"))
                    .bind("accounts", "torture", "accounts.#");
                let options = options.confirm_timeout(PATIENCE).connect_timeout(PATIENCE).lazy(true);
                To::Rabbit(Rabbit::connect(options).await?)
            }
            config::Destination::Sink => bail!("a sink is no broker"),
        };
        Ok(Self { to, recorder: Arc::clone(recorder), sabotage: config.sabotage })
    }

    pub(super) fn listen<D: Database>(&self, builder: OutboxBuilder<Watched<D>>) -> OutboxBuilder<Watched<D>> {
        let listener = match &self.to {
            To::Kafka(kafka) => self.noting(kafka.topic("{topic}")),
            To::Nats(nats) => self.noting(nats.subject("{topic}.{event_type}")),
            To::Rabbit(rabbit) => self.noting(rabbit.exchange("torture").routing_key("{topic}.{event_type}")),
        };
        builder.listen(AGGREGATE, "*", listener)
    }

    fn noting<P: Publisher>(&self, destination: Destination<P>) -> AnyListener {
        let (recorder, sabotage) = (Arc::clone(&self.recorder), self.sabotage);
        destination.through(|publisher| Noting { publisher, recorder, sabotage }).into()
    }

    pub(super) async fn close(&self) {
        match &self.to {
            To::Kafka(kafka) => kafka.close().await,
            To::Nats(nats) => nats.close().await,
            To::Rabbit(rabbit) => rabbit.close().await,
        }
    }
}

/// A publisher that writes down what it was told, and makes mistakes if it is told to.
struct Noting<P> {
    publisher: Arc<P>,
    recorder: Arc<Recorder>,
    sabotage: Option<Sabotage>,
}

impl<P: Publisher> Noting<P> {
    async fn noted(publisher: &P, recorder: &Recorder, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let poison: Vec<bool> = messages.iter().map(is_poison).collect();
        let ids = messages.iter().map(|message| message.id.to_string()).collect();
        let unanswered = Unanswered::new(recorder, ids);
        let results = publisher.publish(messages).await;
        let mut lost = Vec::new();
        let mut notes = Vec::new();
        for ((id, poison), result) in unanswered.answered().into_iter().zip(poison).zip(&results) {
            match result {
                Ok(()) => notes.push(What::Taken { id }),
                Err(error) if poison && error.kind() == PublishErrorKind::Retryable => notes.push(What::Refused { id }),
                Err(error) if error.kind() == PublishErrorKind::Permanent => notes.push(What::Refused { id }),
                // It may have been sent, and it may have arrived.
                Err(_) => lost.push(id),
            }
        }
        if !lost.is_empty() {
            notes.push(What::AnswerLost { ids: lost });
        }
        // Before the outcome is: what is DONE was taken by then.
        recorder.record_all(notes);
        results
    }
}

impl<P: Publisher> Publisher for Noting<P> {
    const BINDING: Binding = P::BINDING;
    const MAX_BATCH: usize = P::MAX_BATCH;

    fn name(&self) -> &str {
        self.publisher.name()
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let taken: Vec<Result<(), PublishError>> = messages.iter().map(|_| Ok(())).collect();
        match self.sabotage {
            Some(Sabotage::MarkBeforePublish) => {
                let (publisher, recorder) = (Arc::clone(&self.publisher), Arc::clone(&self.recorder));
                tokio::spawn(async move {
                    sleep(Duration::from_millis(100)).await;
                    Self::noted(&publisher, &recorder, messages).await
                });
                taken
            }
            Some(Sabotage::IgnoreAcknowledgement) => {
                Self::noted(&self.publisher, &self.recorder, messages).await;
                taken
            }
            _ => Self::noted(&self.publisher, &self.recorder, messages).await,
        }
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.publisher.check().await
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}

/// Whether it goes where the broker takes nothing, by plan.
fn is_poison(message: &Message) -> bool {
    message.headers.iter().any(|(name, _)| name == "poison")
}
