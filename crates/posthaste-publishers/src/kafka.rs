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
//! | order | Messages with the same key go to the same partition, and within a batch in their order, also when the client repeats some of them. What failed and is tried again later comes behind those that did not. |
//! | batches | All messages of a batch are on their way at once, also of several batches at once. |
//!
//! # What a message looks like
//!
//! The key is the aggregate id, unless the destination says otherwise; events without one are spread over the
//! partitions. For the same key it is the same partition that clients in Java choose. The body is the value, and what
//! the envelope says is in headers, together with `content-type`. The time of the message is the time of sending.
//!
//! # What becomes of errors
//!
//! | error | kind |
//! |---|---|
//! | no broker answers, the time ran out, too few replicas in sync, no leader | outage |
//! | login refused, idempotent writes not allowed | outage: nothing at all is taken from us |
//! | fatal error of the idempotent producer | outage: the next batch gets another producer, as it does after a timeout |
//! | the queue of the client is full | waited for; an outage after the delivery timeout |
//! | the topic is missing | retryable: somebody may create it. Said after 5 s at most |
//! | not allowed to write to the topic | retryable: somebody may allow it |
//! | message too large, or invalid to the broker | permanent |
//! | not the name of a topic | permanent |
//! | anything else | retryable |
//!
//! A broker refuses a request as a whole when it is too large or a message in it is invalid. What was refused for that
//! is sent once more, each message in a request of its own, so that none is DEAD for what its neighbours are like.

mod error;
mod options;
mod producer;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{Producer as _, PurgeConfig};
use tokio::time::Instant;
use tracing::warn;

pub use error::Error;
pub use options::{Compression, KafkaOptions, Mechanism, Sasl, Tls};

use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, PublishErrorKind, Publisher};
use producer::{Producer, Report, Reports, deliver};

/// How much later than its timeout librdkafka may say that a message has timed out: it looks once in a second.
const LATE: Duration = Duration::from_secs(3);

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
}

#[derive(Default)]
struct Producers {
    all: Option<Producer>,
    /// Sends each message in a request of its own. There is one once it was needed.
    one_by_one: Option<Producer>,
    closed: bool,
    /// A topic that took something, and is there.
    known_topic: Option<String>,
}

#[derive(Clone, Copy)]
enum Requests {
    Shared,
    OneByOne,
}

impl Kafka {
    /// Connects, and waits until a broker has answered, unless the options say `lazy`.
    ///
    /// # Errors
    /// When an option is wrong, or nobody answers.
    pub async fn connect(options: KafkaOptions) -> Result<Self, Error> {
        let config = options.config()?;
        let breaker = Breaker::new(options.label());
        let kafka = Self(Arc::new(Inner { options, config, breaker, producers: Mutex::default() }));
        // What is wrong with the configuration is found here.
        drop(kafka.producer(Requests::Shared).map_err(Error::Client)?);
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
        let limit = self.longest() + LATE;
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
    fn producer(&self, requests: Requests) -> Result<Producer, KafkaError> {
        let mut producers = self.producers();
        if producers.closed {
            return Err(KafkaError::Canceled);
        }
        let place = match requests {
            Requests::Shared => &mut producers.all,
            Requests::OneByOne => &mut producers.one_by_one,
        };
        if let Some(producer) = place {
            match producer.client().fatal_error() {
                None => return Ok(producer.clone()),
                Some((code, reason)) => {
                    warn!(destination = self.name(), %code, reason, "fatal error of kafka's producer; making another");
                }
            }
        }
        let mut config = self.0.config.clone();
        if matches!(requests, Requests::OneByOne) {
            // One on its way at a time: a refusal leaves a gap in the sequence that those behind it would fall into.
            config.set("batch.num.messages", "1").set("max.in.flight", "1");
        }
        let producer = Producer::from_config_and_context(&config, Reports::default())?;
        let old = place.replace(producer.clone());
        // It waits for its thread.
        drop(producers);
        drop(old);
        Ok(producer)
    }

    /// Lets the next batch have another producer, if this is still the one.
    ///
    /// After a timeout a producer goes on with the next epoch of its id, which it does not announce. Not every broker that
    /// speaks the protocol bears that; another producer begins with an id of its own.
    async fn retire(&self, producer: Producer) {
        let is_it = |current: &mut Producer| Arc::ptr_eq(current.client().context(), producer.client().context());
        let current = self.producers().all.take_if(is_it);
        // Its thread is waited for, and what it still has is given up, unless others have it.
        let _ = tokio::task::spawn_blocking(move || drop((current, producer))).await;
    }

    /// Sends again, each in a request of its own, what may have been refused for what others are like.
    async fn again_one_by_one(
        &self,
        messages: &[Message],
        reports: &mut [Option<Report>],
        full_until: Instant,
        until: Instant,
    ) {
        let again: Vec<usize> = reports
            .iter()
            .enumerate()
            .filter(|(_, report)| matches!(report, Some(Err(refusal)) if error::may_be_the_fault_of_others(*refusal)))
            .map(|(index, _)| index)
            .collect();
        if again.is_empty() {
            return;
        }
        let Ok(producer) = self.producer(Requests::OneByOne) else { return };
        let chosen: Vec<&Message> = again.iter().map(|index| &messages[*index]).collect();
        let answers = deliver(&producer, &chosen, full_until, until).await;
        for (index, answer) in again.into_iter().zip(answers) {
            reports[index] = answer;
        }
    }

    fn result(&self, producer: &Producer, report: Option<Report>) -> Result<(), PublishError> {
        let code = match report {
            Some(Ok(())) => return Ok(()),
            Some(Err(refusal)) => refusal.code,
            None => return Err(PublishError::outage("kafka's client gave no report in time")),
        };
        let kind = error::kind(code);
        let mut reason = format!("{code}{}", error::advice(code));
        if kind == PublishErrorKind::Outage {
            let trouble = match producer.client().fatal_error() {
                Some((code, fatal)) => Some(format!("{code}: {fatal}")),
                None => producer.client().context().trouble(self.longest()),
            };
            if let Some(trouble) = trouble {
                reason = format!("{reason} ({trouble})");
            }
        }
        Err(PublishError::new(kind, reason))
    }
}

fn no_producer(error: KafkaError) -> PublishError {
    match error {
        KafkaError::Canceled => PublishError::outage("the connection to kafka was closed"),
        error => PublishError::outage(error),
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
        let producer = match self.producer(Requests::Shared) {
            Ok(producer) => producer,
            Err(error) => return messages.iter().map(|_| Err(no_producer(error.clone()))).collect(),
        };
        let begun_at = Instant::now();
        let (full_until, until) = (begun_at + self.0.options.timeout(), begun_at + self.longest());
        let mut reports = deliver(&producer, &messages.iter().collect::<Vec<_>>(), full_until, until).await;
        self.again_one_by_one(&messages, &mut reports, full_until, until).await;
        if let Some(taken) = reports.iter().position(|report| matches!(report, Some(Ok(())))) {
            let mut producers = self.producers();
            producers.known_topic.get_or_insert_with(|| messages[taken].to.clone());
        }
        let worn_out = reports.iter().any(|report| match report {
            Some(Ok(())) => false,
            Some(Err(refusal)) => error::ends_a_producer(refusal.code),
            None => true,
        });
        let results = reports.into_iter().map(|report| self.result(&producer, report)).collect();
        if worn_out {
            self.retire(producer).await;
        }
        results
    }

    /// Asks a broker for what it knows, which needs a connection and a login.
    async fn check(&self) -> Result<(), PublishError> {
        let producer = self.producer(Requests::Shared).map_err(no_producer)?;
        let topic = self.producers().known_topic.clone();
        let patience = self.0.options.patience();
        let asked = tokio::task::spawn_blocking(move || {
            let answer = producer.client().fetch_metadata(topic.as_deref(), patience);
            answer.map(drop).map_err(|error| (error, producer))
        });
        match asked.await.map_err(PublishError::outage)? {
            Ok(()) => Ok(()),
            Err((error, producer)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                let reason = match producer.client().context().trouble(patience + LATE) {
                    Some(trouble) => format!("{code} ({trouble})"),
                    None => code.to_string(),
                };
                Err(PublishError::outage(reason))
            }
        }
    }

    /// Waits for what is on its way, for 5 s at most. What is published later is an outage.
    async fn close(&self) {
        let (all, one_by_one) = {
            let mut producers = self.producers();
            producers.closed = true;
            (producers.all.take(), producers.one_by_one.take())
        };
        let until = std::time::Instant::now() + CLOSING;
        let closing = tokio::task::spawn_blocking(move || {
            for producer in [all, one_by_one].into_iter().flatten() {
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
