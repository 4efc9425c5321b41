//! Sending events to a broker, through the publishers as everybody uses them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use posthaste_core::OutboxBuilder;
use posthaste_core::listener::{AnyListener, OfOneKey};
use posthaste_publishers::rabbitmq::QueueOptions;
use posthaste_publishers::{
    Binding, Destination, Kafka, KafkaOptions, Message, Nats, NatsOptions, Places, PublishError, PublishErrorKind,
    Publisher, Rabbit, RabbitOptions, Results,
};
use tokio::time::sleep;

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
                // Who ignores what is said is found out only where the client does not mend it by itself.
                let ignored = config.sabotage == Some(Sabotage::IgnoreAcknowledgement);
                let patience = if ignored { PATIENCE } else { KAFKA_PATIENCE };
                let options = KafkaOptions::new(at.to_string()).delivery_timeout(patience).lazy(true);
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

impl<P: Publisher> Publisher for Noting<P> {
    const BINDING: Binding = P::BINDING;
    const PLACES: Places = P::PLACES;
    const MAX_BATCH: usize = P::MAX_BATCH;
    // With order, several of a key are under way at once where the publisher keeps them in order, as in any other program.
    const OF_ONE_KEY: OfOneKey = P::OF_ONE_KEY;

    fn name(&self) -> &str {
        self.publisher.name()
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.publisher.publish(messages).await
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let taken = || messages.iter().map(|_| Ok(()));
        match self.sabotage {
            Some(Sabotage::MarkBeforePublish) => {
                results.note_all(taken());
                let (publisher, recorder) = (Arc::clone(&self.publisher), Arc::clone(&self.recorder));
                let said = said_of(&messages, results);
                tokio::spawn(async move {
                    sleep(Duration::from_millis(100)).await;
                    Noted::new(&recorder, &messages, said, None).by(&*publisher, messages).await;
                });
            }
            Some(Sabotage::IgnoreAcknowledgement) => {
                results.note_all(taken());
                let said = said_of(&messages, results);
                Noted::new(&self.recorder, &messages, said, None).by(&*self.publisher, messages).await;
            }
            Some(Sabotage::PublishAtOnce) => {
                let said = Results::new(messages.len(), results.until());
                let noted = Noted::new(&self.recorder, &messages, said, Some(results));
                noted.by_halves(&*self.publisher, messages).await;
            }
            _ => {
                let said = said_of(&messages, results);
                Noted::new(&self.recorder, &messages, said, Some(results)).by(&*self.publisher, messages).await;
            }
        }
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        self.publisher.check_address(to)
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.publisher.check().await
    }

    async fn close(&self) {
        self.publisher.close().await;
    }
}

/// Where the publisher says what became of a batch.
fn said_of(messages: &[Message], results: &Results) -> Results {
    let said = Results::new(messages.len(), results.until());
    if results.is_in_order() { said.in_order() } else { said }
}

/// Writes down what a publisher says of a batch and passes it on, also when the time of the batch is over and its future is dropped.
struct Noted<'a> {
    recorder: &'a Recorder,
    /// The ids, and whether each is poison.
    messages: Vec<(String, bool)>,
    said: Option<Results>,
    to: Option<&'a Results>,
}

impl<'a> Noted<'a> {
    fn new(recorder: &'a Recorder, messages: &[Message], said: Results, to: Option<&'a Results>) -> Self {
        let messages = messages.iter().map(|message| (message.id.to_string(), is_poison(message))).collect();
        Self { recorder, messages, said: Some(said), to }
    }

    async fn by<P: Publisher>(self, publisher: &P, messages: Vec<Message>) {
        let said = self.said.as_ref().expect("it is taken at the end");
        publisher.publish_into(messages, said).await;
    }

    /// The sabotaged way: every other message, and beside them those in between.
    async fn by_halves<P: Publisher>(self, publisher: &P, messages: Vec<Message>) {
        let said = self.said.as_ref().expect("it is taken at the end");
        let (behind, before) = messages.into_iter().enumerate().partition(|(place, _)| place % 2 == 1);
        tokio::join!(half(publisher, behind, said), half(publisher, before, said));
    }
}

/// Sends messages that have these places in a batch.
async fn half<P: Publisher>(publisher: &P, messages: Vec<(usize, Message)>, said: &Results) {
    if messages.is_empty() {
        return;
    }
    let (places, messages): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
    let of_half = Results::new(messages.len(), said.until());
    publisher.publish_into(messages, &of_half).await;
    let noted = places.into_iter().zip(of_half.into_noted());
    said.note_some(noted.filter_map(|(place, result)| Some((place, result?))));
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let said = self.said.take().map(Results::into_noted).unwrap_or_default();
        let (mut notes, mut lost) = (Vec::new(), Vec::new());
        for ((id, poison), result) in std::mem::take(&mut self.messages).into_iter().zip(&said) {
            match result {
                Some(Ok(())) => notes.push(What::Taken { id }),
                Some(Err(error)) if poison && error.kind() == PublishErrorKind::Retryable => {
                    notes.push(What::Refused { id });
                }
                Some(Err(error)) if error.kind() == PublishErrorKind::Permanent => notes.push(What::Refused { id }),
                // It may have been sent, and it may have arrived.
                _ => lost.push(id),
            }
        }
        if !lost.is_empty() {
            notes.push(What::AnswerLost { ids: lost });
        }
        // Before the outcome is: what is DONE was taken by then.
        self.recorder.record_all(notes);
        if let Some(to) = self.to {
            to.note_some(said.into_iter().enumerate().filter_map(|(place, result)| Some((place, result?))));
        }
    }
}

/// Whether it goes where the broker takes nothing, by plan.
fn is_poison(message: &Message) -> bool {
    message.headers.iter().any(|(name, _)| name == "poison")
}
