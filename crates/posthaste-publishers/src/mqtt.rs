//! MQTT 5.
//!
//! ```no_run
//! use posthaste_core::{MemoryStore, Outbox};
//! use posthaste_publishers::mqtt::{Mqtt, MqttOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mqtt = Mqtt::connect(MqttOptions::new("mqtt://127.0.0.1:1883")).await?;
//! let builder = Outbox::builder(MemoryStore::new()).listen("Order", "*", mqtt.topic("shop/{aggregate_type}/{event_type}"));
//! # Ok(())
//! # }
//! ```
//!
//! What the envelope says are user properties; the content type is that of the message.
//!
//! | | |
//! |---|---|
//! | acknowledgement | PUBACK (or PUBCOMP with [quality of service 2](MqttOptions::exactly_once)) with a reason that is none of failure: the broker has the message. Who has no session there and is not connected does not get it, and without any subscriber it is thrown away; see [`require_subscriber`](MqttOptions::require_subscriber) |
//! | power loss | whatever the broker does: Mosquitto keeps messages in memory, and writes them down now and then if its `persistence` is on |
//! | repeats | nothing is dropped: where an acknowledgement is lost, the message is sent again, in another session. Subscribers tell repeats by the property `event-id` |
//! | order | messages of one batch are sent in their order, and brokers keep it for each topic |
//! | at once | as many as the broker takes (its `receive maximum`) |
//!
//! Addresses that begin with `mqtts://` are with TLS (feature `mqtt-tls`); others are not encrypted.
//!
//! | what happens | kind |
//! |---|---|
//! | no connection, or lost, or no answer in time; the broker refuses the connection | outage |
//! | not authorised for the topic; a quota is exceeded; nobody has subscribed, if somebody has to; the broker ends the connection over it; any other failure | retryable |
//! | a topic, a property or a body that MQTT or the broker cannot carry | permanent |
//!
//! Brokers may end the connection instead of saying what they refuse, or right behind it: Mosquitto does so for a message over its
//! `message_size_limit` and for a topic that is not permitted. What was under way then is an outage, and each of these messages goes
//! alone next time, while nothing else is under way. One over which two connections in a row end is refused: that counts as an
//! attempt.

mod connection;
mod error;
mod options;
mod sending;
mod suspects;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;
use tokio::time::{Instant, timeout};

use crate::address;
use crate::breaker::Breaker;
use crate::connection::Slot;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, PublishErrorKind, Publisher, Results};

use connection::Connection;
use error::{End, Trouble, is_topic, no_topic};
use suspects::Suspects;

pub use options::MqttOptions;

/// As many parts of a batch as have time, if each waits as long as it may.
const PARTS: u32 = 4;

/// How much longer than its parts a batch may take as a whole.
const LATE: Duration = Duration::from_secs(5);

/// How long what a batch had no time for is put off.
const SOON: Duration = Duration::from_secs(1);

/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(5);

/// How many connections a message has to end, alone, to be refused. The first may have been about to end anyway.
const CUTS: u32 = 2;

/// A connection to a broker. Clones share it.
#[derive(Clone)]
pub struct Mqtt(Arc<Inner>);

struct Inner {
    options: MqttOptions,
    client_options: rumqttc::MqttOptions,
    breaker: Breaker,
    connection: Slot<Connection>,
    suspects: Suspects,
    /// Held by batches under way, and taken by a message that has to be alone.
    alone: RwLock<()>,
}

impl Mqtt {
    /// Connects.
    ///
    /// # Errors
    /// When an option is wrong, or the broker is away or refuses the connection.
    pub async fn connect(options: MqttOptions) -> Result<Self, PublishError> {
        let client_options = options.client_options().map_err(PublishError::permanent)?;
        let mqtt = Self(Arc::new(Inner {
            breaker: Breaker::new(&options.name),
            client_options,
            connection: Slot::new(address::shown(&options.url)),
            suspects: Suspects::default(),
            alone: RwLock::default(),
            options,
        }));
        if !mqtt.0.options.lazy {
            mqtt.check().await?;
        }
        Ok(mqtt)
    }

    /// Events go to the topic that the template makes of each.
    pub fn topic(&self, template: &str) -> Destination<Self> {
        let MqttOptions { connect_timeout, ack_timeout, .. } = &self.0.options;
        // One more message that was alone, and ended a connection.
        let limit = self.longest() + (*connect_timeout + *ack_timeout) * CUTS + LATE;
        Destination::new(Arc::new(self.clone()), self.0.breaker.clone(), template).time_limit(limit)
    }

    /// Until when parts of a batch are begun.
    fn longest(&self) -> Duration {
        self.0.options.connect_timeout + self.0.options.ack_timeout * PARTS
    }

    /// The breaker of the connection.
    pub fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    /// The connection, which is made if there is none.
    async fn connection(&self) -> Result<Arc<Connection>, PublishError> {
        let Inner { options, client_options, connection, .. } = &*self.0;
        connection.get(Connection::stands, Connection::dial(options, client_options)).await
    }

    /// Leaves a connection that is lost or does not answer.
    async fn leave(&self, connection: &Arc<Connection>) {
        connection.abandon();
        self.0.connection.leave(connection).await;
    }

    /// Sends a batch, and tells of each message that the broker has by its place, as soon as it is known.
    async fn publish_telling(
        &self,
        messages: &[Message],
        stored: &(impl Fn(usize) + Sync),
    ) -> Vec<Result<(), PublishError>> {
        let _under_way = self.0.connection.under_way().await;
        let until = Instant::now() + self.longest();
        let mut results: Vec<Result<(), PublishError>> = Vec::with_capacity(messages.len());
        for part in self.0.suspects.parts(messages) {
            let sent = match (results.last(), part) {
                // What comes behind an outage would only wait for another.
                (Some(Err(error)), _) if error.is_outage() => error.of_each(part.len()).collect(),
                (Some(_), _) if Instant::now() >= until => {
                    let late =
                        || PublishError::deferred("the broker took the time of the whole batch for others", SOON);
                    part.iter().map(|_| Err(late())).collect()
                }
                (_, [suspect]) if self.0.suspects.has(suspect) => vec![self.alone(suspect).await],
                _ => {
                    let before = results.len();
                    self.together(part, &|at| stored(before + at)).await
                }
            };
            results.extend(sent);
        }
        results
    }

    /// Sends a batch at once. What the end of the connection found under way is suspected of it.
    async fn together(&self, messages: &[Message], stored: &(impl Fn(usize) + Sync)) -> Vec<Result<(), PublishError>> {
        let _with_others = self.0.alone.read().await;
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return error.of_each(messages.len()).collect(),
        };
        let results = sending::send(&connection, &self.0.options, messages, stored).await;
        let ended = results.iter().any(|result| matches!(result, Err(Trouble::Over(_))));
        if ended {
            self.leave(&connection).await;
        }
        // It may also have ended behind what the broker said it refuses.
        let is_suspect = |result: &Result<(), Trouble>| match result {
            Err(Trouble::Over(end)) => *end == End::Cut,
            Err(Trouble::Told(error)) => ended && error.kind() == PublishErrorKind::Retryable,
            Ok(()) => false,
        };
        let suspects = messages.iter().zip(&results).filter(|(_, result)| is_suspect(result));
        self.0.suspects.add(suspects.map(|(message, _)| &message.id));
        results.into_iter().map(|result| result.map_err(|trouble| self.explained(trouble))).collect()
    }

    /// Sends a message while nothing else is under way, so that it is known whether a connection ends over it.
    async fn alone(&self, message: &Message) -> Result<(), PublishError> {
        let _nobody_else = self.0.alone.write().await;
        let mut cuts = 0;
        loop {
            let connection = self.connection().await?;
            let result =
                sending::send(&connection, &self.0.options, std::slice::from_ref(message), &|_| {}).await.pop();
            let trouble = match result.expect("one for the message") {
                Ok(()) => {
                    self.0.suspects.clear_of_suspicion(message);
                    return Ok(());
                }
                Err(trouble) => trouble,
            };
            // It may end behind a refusal, too, and take others with it.
            self.leave(&connection).await;
            match trouble {
                Trouble::Over(End::Cut) => cuts += 1,
                trouble => return Err(self.explained(trouble)),
            }
            if cuts == CUTS {
                return Err(PublishError::retryable(format!(
                    "{} ends the connection over a message on {:?} with a body of {} bytes; its log may say why",
                    address::shown(&self.0.options.url),
                    message.to,
                    message.body.len()
                )));
            }
        }
    }

    fn explained(&self, trouble: Trouble) -> PublishError {
        let (shown, limit) = (address::shown(&self.0.options.url), self.0.options.ack_timeout);
        match trouble {
            Trouble::Told(error) => error,
            Trouble::Over(End::Cut | End::Unsent) => {
                PublishError::outage(format!("the connection to {shown} was lost before the acknowledgement"))
            }
            Trouble::Over(End::Silent) => {
                PublishError::outage(format!("no acknowledgement from {shown} within {limit:?}"))
            }
        }
    }
}

impl Publisher for Mqtt {
    const BINDING: Binding = Binding::Mqtt;

    fn name(&self) -> &str {
        &self.0.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.publish_telling(&messages, &|_| {}).await
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let answers = self.publish_telling(&messages, &|at| results.note(at, Ok(()))).await;
        answers.into_iter().enumerate().for_each(|(at, answer)| results.note(at, answer));
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        if is_topic(to) { Ok(()) } else { Err(PublishError::permanent(no_topic(to))) }
    }

    /// Whether there is a connection; nothing is asked over it.
    async fn check(&self) -> Result<(), PublishError> {
        self.connection().await.map(drop)
    }

    async fn close(&self) {
        if let Some(connection) = self.0.connection.close().await {
            timeout(CLOSE, connection.close()).await.ok();
        }
    }
}

impl fmt::Debug for Mqtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mqtt")
            .field("options", &self.0.options)
            .field("breaker", &self.0.breaker)
            .finish_non_exhaustive()
    }
}
