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
//! | in order | In an outbox with order ([`Ordered`](posthaste_core::Ordered)), and without a [key](Destination::key) of its own, nothing of an aggregate is taken behind an event that was not: see below. |
//! | order | Otherwise messages with the same key go to the same partition, and within a batch in their order, also when the client repeats some of them. What failed and is tried again later comes behind those that did not; so does what the broker refused together with others (see below). |
//! | batches | All messages of a batch are on their way at once, also of several batches at once. |
//!
//! # In order, with many on their way
//!
//! Where events are delivered in order, those of one aggregate go together. Several requests are on their way, and Kafka takes those of
//! a producer for a partition in their sequence only. What the client does with the rest when a message fails for good, it is told
//! by `enable.gapless.guarantee`: such a producer takes nothing more, what it had is put off for a moment, and comes again through
//! another one. So an event that is refused costs those beside it that detour. An event for another topic than the one before it of
//! its aggregate waits until that one has arrived.
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
//! | no leader, too few replicas in sync, no answer in time, while Kafka answers otherwise | put off: no attempt is used up, and the topic is left alone for a second, then longer each time, up to 30 s; if other partitions of the topic take something, only that one is. Then ten messages try it, and others wait for how that goes |
//! | login refused, idempotent writes not allowed | outage: nothing at all is taken from us. To [`check`](Publisher::check) it is permanent |
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
//! topic that refused a request for its size, and took the same messages in smaller ones, gets such for ten minutes, then larger
//! ones again, step by step.

mod error;
mod options;
mod partitions;
mod producer;
mod producers;
mod requests;
mod sending;
mod topics;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::OfOneKey;
use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::Producer as _;
use tracing::warn;

pub use error::Error;
pub use options::{Compression, KafkaOptions, Mechanism, Sasl, Tls};

use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::durability::Concern;
use crate::envelope::Binding;
use crate::pauses::Pauses;
use crate::publisher::{Message, PublishError, Publisher, Results};
use partitions::Partitions;
use producers::{Producers, no_producer};
use requests::{Size, Sizes};
use topics::ANSWER;

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
    /// Which topics take small requests only.
    sizes: Sizes,
    /// Topics that are away, and partitions of topics of which a part is.
    pauses: Pauses,
    /// How many partitions such topics have.
    partitions: Partitions,
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
            partitions: Partitions::default(),
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

    /// Asks how many replicas the topic has. Nothing is made: brokers that make topics on demand are not asked for this one alone.
    ///
    /// How many of them must have a message before it is acknowledged (`min.insync.replicas`) is not asked.
    ///
    /// # Errors
    /// When no broker answers.
    pub async fn concerns(&self, topic: &str) -> Result<Vec<Concern>, PublishError> {
        let (producer, patience) = (self.producer(Size::default()).map_err(no_producer)?, self.0.options.patience());
        let asked = tokio::task::spawn_blocking(move || producer.client().fetch_metadata(None, patience));
        let answer = asked.await.map_err(PublishError::outage)?.map_err(PublishError::outage)?;
        let Some(found) = answer.topics().iter().find(|known| known.name() == topic) else {
            return Ok(vec![Concern::choice(
                format!(
                    "there is no topic {topic:?} yet, or this user may not see it: unless the brokers make it, its events use up \
                     their attempts"
                ),
                "make it: kafka-topics.sh --create",
            )]);
        };
        if found.partitions().is_empty() {
            let what = format!("the topic {topic:?} has no partitions yet, so its replicas are not known");
            return Ok(vec![Concern::choice(what, "ask again in a moment")]);
        }
        let fewest = found.partitions().iter().map(|partition| partition.replicas().len()).min().unwrap_or(0);
        if fewest > 1 {
            let what = format!(
                "the topic {topic:?} has {fewest} replicas; how many of them must have a message before it is acknowledged was not \
                 asked, and one is enough by default"
            );
            return Ok(vec![Concern::choice(what, "see that min.insync.replicas is 2 or more")]);
        }
        Ok(vec![Concern::choice(
            format!(
                "the topic {topic:?} has no replica of some partition, and Kafka acknowledges before it is on disk: what was \
                 acknowledged is lost with that broker, and some of it in a power cut"
            ),
            "give the topic 3 replicas, and set min.insync.replicas=2",
        )])
    }

    /// The breaker of this connection.
    pub fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    /// How long a batch takes at most: its messages wait for room in the queue, and then for the broker.
    fn longest(&self) -> Duration {
        self.0.options.timeout() * 2 + LATE
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
                Err(match error::is_about_us(code) || producer.is_refused(patience + LATE) {
                    true => PublishError::permanent(format!("{reason}; check the login")),
                    false => PublishError::outage(reason),
                })
            }
        }
    }
}

impl Publisher for Kafka {
    const BINDING: Binding = Binding::Kafka;

    const OF_ONE_KEY: OfOneKey = OfOneKey::Prefix;

    /// As many as the outbox holds claimed by default: a broker takes many small messages in one request.
    const MAX_BATCH: usize = 2000;

    fn name(&self) -> &str {
        self.0.options.label()
    }

    /// If the future is dropped, the messages may arrive all the same.
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.publish_all(messages, false).await
    }

    /// The same.
    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        results.note_all(self.publish_all(messages, results.is_in_order()).await);
    }

    /// Asks a broker for what it knows, which needs a connection and a login. One that is refused is permanent here: waiting would
    /// not help.
    async fn check(&self) -> Result<(), PublishError> {
        self.asked(self.0.options.patience()).await
    }

    /// Waits for what is on its way, for 5 s at most. What is published later is an outage.
    async fn close(&self) {
        let all = self.producers().close();
        let until = std::time::Instant::now() + CLOSING;
        let closing = tokio::task::spawn_blocking(move || {
            for producer in all {
                let left = until.saturating_duration_since(std::time::Instant::now());
                if let Err(error) = producer.flush(left) {
                    warn!(%error, "closed kafka's producer while messages were on their way");
                    // Who waits for them is told, and nothing follows them.
                    producer.give_up();
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
