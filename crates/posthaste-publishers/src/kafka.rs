//! Kafka, and what speaks its protocol.
//!
//! ```no_run
//! # async fn example(store: posthaste_core::MemoryStore) -> anyhow::Result<()> {
//! use posthaste_core::Outbox;
//! use posthaste_publishers::kafka::{Kafka, KafkaOptions};
//!
//! let kafka = Kafka::connect(KafkaOptions::new("127.0.0.1:9092")).await?;
//! let outbox = Outbox::builder(store).listen("Order", "*", kafka.topic("orders.{event_type}"));
//! # let _ = outbox;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! | | |
//! |---|---|
//! | acknowledgement | All replicas in sync have the message (`acks=all`). How many these have to be is `min.insync.replicas` of the topic; whether it is on a disk is up to the broker. |
//! | once or more | At least once. What the client itself repeats arrives once, since the producer is idempotent. A message whose time ran out in the client may have arrived; it is sent again, as a message of its own, with the same header `event-id`. The same goes for a process that died. |
//! | order | Messages with the same key go to the same partition, and within a batch in their order, also when the client repeats some of them. What failed and is tried again later comes behind those that did not; so does what the broker refused together with others (see below), the first time that this happens with a topic. |
//! | batches | All messages of a batch are on their way at once, also of several batches at once. |
//!
//! # What a message looks like
//!
//! The key is the aggregate id, unless the destination says otherwise; events without one are spread over the
//! partitions. For the same key it is the same partition that clients in Java choose. The body is the value, and what
//! the envelope says is in headers, together with `content-type` (not as of Debezium). The time of the message is the time of sending.
//!
//! # What becomes of errors
//!
//! | error | kind |
//! |---|---|
//! | no broker answers | outage |
//! | no leader, too few replicas in sync, no answer in time, while Kafka answers otherwise | put off: no attempt is used up, and the topic is left alone for a second, then longer each time, up to 30 s; if other partitions of the topic take something, only those keys are |
//! | login refused, idempotent writes not allowed | outage: nothing at all is taken from us |
//! | fatal error of the idempotent producer | outage: the next batch gets another producer, as it does after a timeout |
//! | the queue of the client is full | waited for; an outage after the delivery timeout |
//! | the topic is missing | retryable: somebody may create it. Said after 5 s at most |
//! | not allowed to write to the topic | retryable: somebody may allow it |
//! | message too large, or invalid to the broker | permanent |
//! | not the name of a topic (letters, digits, `.`, `_` and `-`, 249 at most) | permanent |
//! | anything else | retryable |
//!
//! A broker refuses a request as a whole when it is too large or a message in it is invalid. What was refused for that
//! is sent again in smaller requests, down to one message in each, so that none is DEAD for what its neighbours are like. A
//! topic that refused a request for its size gets smaller ones from then on.

mod error;
mod options;
mod producer;
mod requests;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer as _, PurgeConfig};
use tokio::time::Instant;
use tracing::warn;

pub use error::Error;
pub use options::{Compression, KafkaOptions, Mechanism, Sasl, Tls};

use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::pauses::Pauses;
use crate::publisher::{Message, PublishError, PublishErrorKind, Publisher};
use producer::{Producer, Report, deliver};
use requests::{SIZES, Size, Sizes};

/// How much later than its timeout librdkafka may say that a message has timed out: it looks once in a second.
const LATE: Duration = Duration::from_secs(3);

/// How long Kafka has to answer when it has acknowledged nothing, to tell a topic that is away from a Kafka that is.
const ANSWER: Duration = Duration::from_secs(2);

/// How long what had no answer is left alone, if nothing is known of where it would have gone.
const AGAIN: Duration = Duration::from_secs(1);

/// The longest name of a topic.
const LONGEST_NAME: usize = 249;

/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(5);

/// A connection to Kafka. Clones share it. See the [module](self) for what it promises.
#[derive(Clone)]
pub struct Kafka(Arc<Inner>);

struct Inner {
    options: KafkaOptions,
    config: ClientConfig,
    breaker: Breaker,
    producers: Mutex<Producers>,
    /// Which topics take small requests only.
    sizes: Sizes,
    /// Topics that are away, and keys of topics of which a part is.
    pauses: Pauses,
}

#[derive(Default)]
struct Producers {
    /// One for each size of requests, once it was needed.
    by_size: [Option<Producer>; SIZES],
    closed: bool,
    /// A topic that took something, and is there.
    known_topic: Option<String>,
}

/// What became of a batch so far.
struct Batch<'a> {
    messages: &'a [Message],
    results: Vec<Option<Result<(), PublishError>>>,
    /// What had no answer, which may be the fault of its topic alone.
    doubtful: Vec<usize>,
    worn_out: Vec<(Size, Producer)>,
}

impl Kafka {
    /// Connects, and waits until a broker has answered, unless the options say `lazy`.
    ///
    /// # Errors
    /// When an option is wrong, or nobody answers.
    pub async fn connect(options: KafkaOptions) -> Result<Self, Error> {
        let config = options.config()?;
        let breaker = Breaker::new(options.label());
        let kafka = Self(Arc::new(Inner {
            options,
            config,
            breaker,
            producers: Mutex::default(),
            sizes: Sizes::default(),
            pauses: Pauses::default(),
        }));
        // What is wrong with the configuration is found here.
        kafka.producer(Size::default()).map_err(Error::client)?;
        if !kafka.0.options.is_lazy() {
            kafka.check().await.map_err(|error| Error::Unreachable {
                brokers: kafka.0.options.brokers().to_owned(),
                reason: error.to_string(),
            })?;
        }
        Ok(kafka)
    }

    /// Where events go: to the topic that the [template](crate::Template) makes of each.
    ///
    /// Its time limit follows from the delivery timeout, so that there is always a verdict before it is over.
    pub fn topic(&self, template: &str) -> Destination<Self> {
        let limit = self.longest() + ANSWER + LATE;
        Destination::new(Arc::new(self.clone()), self.0.breaker.clone(), template).time_limit(limit)
    }

    /// The breaker of this connection.
    pub fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    /// How long a batch takes at most: its messages wait for room in the queue, and then for the broker.
    fn longest(&self) -> Duration {
        self.0.options.timeout() * 2 + LATE
    }

    fn producers(&self) -> MutexGuard<'_, Producers> {
        self.0.producers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The producer, or another if it has had a fatal error, after which it takes nothing any more.
    fn producer(&self, size: Size) -> Result<Producer, KafkaError> {
        let mut producers = self.producers();
        if producers.closed {
            return Err(KafkaError::Canceled);
        }
        let place = &mut producers.by_size[size.index()];
        if let Some(producer) = place {
            match producer.client().fatal_error() {
                None => return Ok(producer.clone()),
                Some((code, reason)) => {
                    warn!(destination = self.name(), %code, reason, "fatal error of kafka's producer; making another");
                }
            }
        }
        let mut config = self.0.config.clone();
        size.set(&mut config);
        let producer = Producer::new(&config)?;
        *place = Some(producer.clone());
        Ok(producer)
    }

    /// Lets the next batch have another producer, if this is still the one.
    ///
    /// After a timeout a producer goes on with the next epoch of its id, which it does not announce. Not every broker that
    /// speaks the protocol bears that; another producer begins with an id of its own.
    fn retire(&self, size: Size, producer: &Producer) {
        self.producers().by_size[size.index()].take_if(|current| current.is(producer));
    }

    /// Why a message is not even sent now.
    fn not_sent(&self, message: &Message) -> Option<PublishError> {
        if !is_topic(&message.to) {
            return Some(
                PublishError::permanent(format!(
                    "{:?} is no name of a topic: letters, digits, '.', '_' and '-', {LONGEST_NAME} of them at most",
                    message.to
                ))
                .unasked(),
            );
        }
        let pauses = &self.0.pauses;
        let part_of = || part(message).and_then(|part| pauses.left(&part));
        let left = pauses.left(&message.to).or_else(part_of)?;
        let reason = format!("the topic {:?} had no answer, and is left alone for a while", message.to);
        Some(PublishError::deferred(reason, left))
    }

    /// Sends messages in requests of these sizes, and gives those back that are to be sent again in smaller ones.
    async fn sent(
        &self,
        batch: &mut Batch<'_>,
        round: Vec<(usize, Size)>,
        full_until: Instant,
        until: Instant,
    ) -> Vec<(usize, Size)> {
        let (mut taken, mut given) = (Vec::with_capacity(round.len()), Vec::with_capacity(round.len()));
        for (place, size) in round {
            match self.producer(size) {
                Ok(producer) => {
                    taken.push((place, size));
                    given.push((producer, &batch.messages[place]));
                }
                Err(error) => batch.results[place] = Some(Err(no_producer(error))),
            }
        }
        let reports = deliver(&given, full_until, until).await;
        let mut again = Vec::new();
        for (((place, size), report), (producer, message)) in taken.into_iter().zip(reports).zip(given) {
            if let Some(Err(refusal)) = report
                && error::may_be_the_fault_of_others(refusal)
                && let Some(smaller) = size.smaller(&self.0.config, message.body.len())
            {
                if error::is_about_size(refusal.code) {
                    self.0.sizes.at_most(&message.to, smaller);
                }
                again.push((place, smaller));
                continue;
            }
            let (doubtful, worn_out) = match report {
                Some(Ok(())) => (false, false),
                Some(Err(refusal)) => (error::may_be_the_topic(refusal.code), error::ends_a_producer(refusal.code)),
                None => (true, true),
            };
            if doubtful {
                batch.doubtful.push(place);
            }
            batch.results[place] = Some(self.result(&producer, report));
            if worn_out && !batch.worn_out.iter().any(|(_, known)| known.is(&producer)) {
                batch.worn_out.push((size, producer));
            }
        }
        again
    }

    /// Puts off what had no answer from its topic, if Kafka is there.
    async fn put_off(&self, batch: &mut Batch<'_>) {
        let arrived = batch.messages.iter().zip(&batch.results).filter(|(_, result)| matches!(result, Some(Ok(()))));
        let arrived: Vec<&Message> = arrived.map(|(message, _)| message).collect();
        let topics: HashSet<&str> = arrived.iter().map(|message| message.to.as_str()).collect();
        if !self.0.pauses.is_empty() {
            topics.iter().for_each(|topic| self.0.pauses.there(topic));
            arrived.iter().filter_map(|message| part(message)).for_each(|part| self.0.pauses.there(&part));
        }
        if batch.doubtful.is_empty() || (arrived.is_empty() && self.asked(ANSWER).await.is_err()) {
            return;
        }
        for place in std::mem::take(&mut batch.doubtful) {
            let message = &batch.messages[place];
            let pause = match part(message) {
                _ if !topics.contains(message.to.as_str()) => self.0.pauses.away(&message.to),
                Some(part) => self.0.pauses.away(&part),
                None => AGAIN,
            };
            if let Some(Err(error)) = batch.results[place].take() {
                let reason = format!("the topic {:?} is away, and kafka is not: {error}", message.to);
                batch.results[place] = Some(Err(PublishError::deferred(reason, pause)));
            }
        }
    }

    fn result(&self, producer: &Producer, report: Option<Report>) -> Result<(), PublishError> {
        let (code, at_once) = match report {
            Some(Ok(())) => return Ok(()),
            Some(Err(refusal)) => (refusal.code, refusal.at_once),
            None => return Err(PublishError::outage("kafka's client gave no report in time")),
        };
        let kind = error::kind(code);
        let mut reason = format!("{code}{}", error::advice(code));
        if kind == PublishErrorKind::Outage
            && let Some(trouble) = producer.trouble(self.longest())
        {
            reason = format!("{reason} ({trouble})");
        }
        let error = PublishError::new(kind, reason);
        Err(if at_once { error.unasked() } else { error })
    }

    /// Asks a broker for what it knows.
    async fn asked(&self, patience: Duration) -> Result<(), PublishError> {
        let producer = self.producer(Size::default()).map_err(no_producer)?;
        let topic = self.producers().known_topic.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let answer = producer.client().fetch_metadata(topic.as_deref(), patience);
            answer.map(drop).map_err(|error| (error, producer))
        });
        match asked.await.map_err(PublishError::outage)? {
            Ok(()) => Ok(()),
            Err((error, producer)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                let reason = match producer.trouble(patience + LATE) {
                    Some(trouble) => format!("{code} ({trouble})"),
                    None => code.to_string(),
                };
                Err(PublishError::outage(reason))
            }
        }
    }
}

/// What a message shares with others of its topic that go where it goes.
fn part(message: &Message) -> Option<String> {
    message.key.as_ref().map(|key| format!("{}\0{key}", message.to))
}

/// Whether Kafka takes that for the name of a topic.
fn is_topic(name: &str) -> bool {
    let allowed = |sign: u8| sign.is_ascii_alphanumeric() || matches!(sign, b'.' | b'_' | b'-');
    (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(allowed)
}

fn no_producer(error: KafkaError) -> PublishError {
    match error {
        KafkaError::Canceled => PublishError::outage("the connection to kafka was closed"),
        error => match Error::client(error) {
            Error::Client(error) => PublishError::outage(error),
            other => PublishError::outage(other),
        },
    }
}

impl Publisher for Kafka {
    const BINDING: Binding = Binding::Kafka;

    /// As many as the outbox holds claimed by default: a broker takes many small messages in one request.
    const MAX_BATCH: usize = 2000;

    fn name(&self) -> &str {
        self.0.options.label()
    }

    /// If the future is dropped, the messages may arrive all the same.
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let begun_at = Instant::now();
        let (full_until, until) = (begun_at + self.0.options.timeout(), begun_at + self.longest());
        let results: Vec<_> = messages.iter().map(|message| self.not_sent(message).map(Err)).collect();
        let open = results.iter().enumerate().filter(|(_, result)| result.is_none());
        let mut round: Vec<_> = open.map(|(place, _)| (place, self.0.sizes.of(&messages[place].to))).collect();
        let mut batch = Batch { messages: &messages, results, doubtful: Vec::new(), worn_out: Vec::new() };
        while !round.is_empty() {
            round = self.sent(&mut batch, round, full_until, until).await;
        }
        for (size, producer) in std::mem::take(&mut batch.worn_out) {
            self.retire(size, &producer);
        }
        if let Some(taken) = batch.results.iter().position(|result| matches!(result, Some(Ok(())))) {
            self.producers().known_topic.get_or_insert_with(|| messages[taken].to.clone());
        }
        self.put_off(&mut batch).await;
        batch.results.into_iter().map(|result| result.expect("each was sent or not")).collect()
    }

    /// Asks a broker for what it knows, which needs a connection and a login.
    async fn check(&self) -> Result<(), PublishError> {
        self.asked(self.0.options.patience()).await
    }

    /// Waits for what is on its way, for 5 s at most. What is published later is an outage.
    async fn close(&self) {
        let all = {
            let mut producers = self.producers();
            producers.closed = true;
            std::mem::take(&mut producers.by_size)
        };
        let until = std::time::Instant::now() + CLOSING;
        let closing = tokio::task::spawn_blocking(move || {
            for producer in all.into_iter().flatten() {
                let left = until.saturating_duration_since(std::time::Instant::now());
                if let Err(error) = producer.flush(left) {
                    warn!(%error, "closed kafka's producer while messages were on their way");
                    // Who waits for them is told.
                    producer.purge(PurgeConfig::default().queue().inflight());
                }
            }
        });
        let _ = closing.await;
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Kafka");
        debug.field("options", &self.0.options).field("breaker", &self.0.breaker).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;

    #[test]
    fn names_of_topics_are_as_kafka_has_them() {
        for good in ["orders", "shop.Order_1-x", "...", &"x".repeat(LONGEST_NAME)] {
            assert!(is_topic(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "größe", "a\0", &"x".repeat(LONGEST_NAME + 1)] {
            assert!(!is_topic(bad), "{bad:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_producer_that_had_no_answer_is_replaced_and_no_other() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 1, 1).unwrap();
        let options = KafkaOptions::new(mock.bootstrap_servers()).delivery_timeout(Duration::from_secs(1));
        let kafka = Kafka::connect(options).await.unwrap();
        let first = kafka.producer(Size::default()).unwrap();
        let mut errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 1_000];
        errors[0] = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
        mock.request_errors(RDKafkaApiKey::Produce, &errors);
        let message = Message {
            id: posthaste_core::EventId::generate(),
            to: "orders".to_owned(),
            key: None,
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: "x".into(),
        };
        let result = kafka.publish(vec![message]).await.remove(0);
        assert_eq!(result.unwrap_err().kind(), PublishErrorKind::Deferred);
        let producers = kafka.producers();
        assert!(producers.by_size[0].as_ref().is_some_and(|current| current.is(&first)));
        assert!(producers.by_size[1..].iter().all(Option::is_none));
    }
}
