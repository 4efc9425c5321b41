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
//! | at once | as many as the broker takes (its `receive maximum`), up to 100 |
//!
//! Addresses that begin with `mqtts://` are with TLS (feature `mqtt-tls`); others are not encrypted.
//!
//! | what happens | kind |
//! |---|---|
//! | no connection, or lost, or no answer in time; the broker refuses the connection, or ends it on its own account: it shuts down, a quota is exceeded, another has taken the session | outage |
//! | not authorised for the topic; a quota is exceeded for a message; nobody has subscribed, if somebody has to; the broker ends the connection over it; no answer to it in time while others have theirs; any other failure | retryable |
//! | a topic, a property or a body that MQTT or the broker cannot carry; a topic that begins with `$` where the template does not | permanent |
//!
//! [`check`](Publisher::check), and with it [`Mqtt::connect`], says of a login that is refused that it is permanent.
//!
//! Brokers may end the connection instead of saying what they refuse, or right behind it: Mosquitto does so for a message over its
//! `message_size_limit` and for a topic that is not permitted. What was under way then is an outage, unless the broker says that it
//! was nobody's fault, and each of these messages goes alone next time, while nothing else is under way. One over which the broker
//! ends the connection for a reason that it gives, or without one two connections in a row, is refused: that counts as an attempt.
//! The same goes for what was under way when nothing was heard any more. One that has no answer alone, say because it is too large
//! for the time, comes last in its batch from then on, and uses up attempts as soon as others have got through.

mod connection;
mod error;
mod options;
mod parting;
mod prompt;
mod sending;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rumqttc::DisconnectReasonCode;
use tokio::sync::RwLock;
use tokio::time::{Instant, timeout};

use crate::address;
use crate::breaker::Breaker;
use crate::connection::Slot;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, PublishErrorKind, Publisher, Results};
use crate::suspects::{Suspects, in_place};
use crate::template::Template;

use connection::Connection;
use error::{Dollar, End, Fault, Trouble, advice, fault, is_topic, no_topic};

pub use options::MqttOptions;

/// As many parts of a batch as have time, if each waits as long as it may.
const PARTS: u32 = 4;

/// How much longer than its parts a batch may take as a whole.
const LATE: Duration = Duration::from_secs(5);

/// How long what a batch had no time for is put off.
const SOON: Duration = Duration::from_secs(1);

/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(5);

/// How many messages in a row, each alone, have to be silent for the broker to be away.
const SILENT: u32 = 2;

/// How many connections a message has to end, alone, to be refused. The first may have been about to end anyway.
const CUTS: u32 = 2;

/// A connection to a broker. Clones share it.
#[derive(Clone)]
pub struct Mqtt(Arc<Inner>, Dollar);

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
        let inner = Arc::new(Inner {
            breaker: Breaker::new(&options.name),
            client_options,
            connection: Slot::new(address::shown(&options.url)),
            suspects: Suspects::default(),
            alone: RwLock::default(),
            options,
        });
        let mqtt = Self(inner, Dollar::Allowed);
        if !mqtt.0.options.lazy {
            mqtt.check().await?;
        }
        Ok(mqtt)
    }

    /// Events go to the topic that the template makes of each.
    ///
    /// A topic that begins with `$` has to do so in the template: what a place at its beginning brings does not.
    pub fn topic(&self, template: &str) -> Destination<Self> {
        let MqttOptions { connect_timeout, ack_timeout, .. } = &self.0.options;
        // One more message that was alone, and ended a connection.
        let limit = self.longest() + (*connect_timeout + *ack_timeout) * CUTS + LATE;
        let begins_with_place = template.parse::<Template>().is_ok_and(|template| template.begins_with_place());
        let dollar = if begins_with_place { Dollar::Refused } else { Dollar::Allowed };
        let sender = Self(Arc::clone(&self.0), dollar);
        Destination::new(Arc::new(sender), self.0.breaker.clone(), template).time_limit(limit)
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
        messages: Vec<Message>,
        stored: &(impl Fn(usize) + Sync),
    ) -> Vec<Result<(), PublishError>> {
        let _under_way = self.0.connection.under_way().await;
        let (messages, places) = self.0.suspects.silent_last(messages);
        let until = Instant::now() + self.longest();
        let mut results: Vec<Result<(), PublishError>> = Vec::with_capacity(messages.len());
        // Those that were alone, and of which nothing was heard; and how many of them in a row.
        let (mut silent, mut in_a_row) = (Vec::new(), 0);
        for part in self.0.suspects.parts(&messages) {
            let before = results.len();
            let sent = match (results.last(), part) {
                // What comes behind an outage would only wait for another.
                (Some(Err(error)), _) if error.is_outage() && (in_a_row == 0 || in_a_row >= SILENT) => {
                    error.of_each(part.len()).collect()
                }
                (Some(_), _) if Instant::now() >= until => {
                    let late = || {
                        PublishError::deferred("the broker took the time of the whole batch for others", SOON).unasked()
                    };
                    part.iter().map(|_| Err(late())).collect()
                }
                (_, [suspect]) if self.0.suspects.has(suspect) => match self.alone(suspect).await {
                    Err(Trouble::Over(End::Silent)) => {
                        silent.push(before);
                        in_a_row += 1;
                        vec![Err(self.explained(Trouble::Over(End::Silent), None))]
                    }
                    result => {
                        in_a_row = 0;
                        result.iter().for_each(|()| stored(places[before]));
                        vec![result.map_err(|trouble| self.explained(trouble, None))]
                    }
                },
                _ => {
                    in_a_row = 0;
                    self.together(part, &|at| stored(places[before + at])).await
                }
            };
            results.extend(sent);
        }
        for at in silent {
            if self.0.suspects.is_to_blame(&messages[at]) {
                results[at] = Err(PublishError::retryable(format!(
                    "no acknowledgement from {} within {:?} of a message on {:?} with a body of {} bytes, while others have \
                     theirs; raise ack_timeout, or send less",
                    address::shown(&self.0.options.url),
                    self.0.options.ack_timeout,
                    messages[at].to,
                    messages[at].body.len()
                )));
            }
        }
        in_place(places, results)
    }

    /// Sends a batch at once. What the end of the connection, or silence, found under way is suspected of it.
    async fn together(&self, messages: &[Message], stored: &(impl Fn(usize) + Sync)) -> Vec<Result<(), PublishError>> {
        let _with_others = self.0.alone.read().await;
        let connection = match self.connection().await.map_err(PublishError::into_outage) {
            Ok(connection) => connection,
            Err(error) => return error.of_each(messages.len()).collect(),
        };
        let results = sending::send(&connection, &self.0.options, self.1, messages, stored).await;
        self.0.suspects.acknowledged(results.iter().filter(|result| result.is_ok()).count());
        let is_over =
            |by: fn(End) -> bool| results.iter().any(|result| matches!(result, Err(Trouble::Over(end)) if by(*end)));
        let ended = is_over(|_| true);
        let reason = if ended && !is_over(|end| end == End::Silent) { connection.parting().await } else { None };
        if ended {
            self.leave(&connection).await;
        }
        // It may also have ended behind what the broker said it refuses.
        let is_suspect = |result: &Result<(), Trouble>| match result {
            Err(Trouble::Over(end)) => *end != End::Unsent,
            Err(Trouble::Told(error)) => ended && error.kind() == PublishErrorKind::Retryable,
            Ok(()) => false,
        };
        if reason.is_none_or(|reason| fault(reason) != Fault::Nobodys) {
            let suspects = messages.iter().zip(&results).filter(|(_, result)| is_suspect(result));
            self.0.suspects.add(suspects.map(|(message, _)| &message.id));
        }
        results.into_iter().map(|result| result.map_err(|trouble| self.explained(trouble, reason))).collect()
    }

    /// Sends a message while nothing else is under way, so that it is known whether a connection ends over it.
    async fn alone(&self, message: &Message) -> Result<(), Trouble> {
        let _nobody_else = self.0.alone.write().await;
        let mut cuts = 0;
        loop {
            let connection = self.connection().await.map_err(|error| Trouble::Told(error.into_outage()))?;
            let batch = std::slice::from_ref(message);
            let result = sending::send(&connection, &self.0.options, self.1, batch, &|_| {}).await.pop();
            let trouble = match result.expect("one for the message") {
                Ok(()) => {
                    self.0.suspects.acknowledged(1);
                    self.0.suspects.clear_of_suspicion(std::slice::from_ref(message));
                    return Ok(());
                }
                Err(trouble) => trouble,
            };
            let reason = match trouble {
                Trouble::Over(End::Cut) => connection.parting().await,
                Trouble::Over(_) | Trouble::Told(_) => None,
            };
            // It may end behind a refusal, too, and take others with it.
            self.leave(&connection).await;
            match trouble {
                Trouble::Over(End::Cut) => cuts += 1,
                Trouble::Over(End::Silent) => {
                    self.0.suspects.was_silent(message);
                    return Err(trouble);
                }
                trouble => return Err(trouble),
            }
            let over = || {
                let (shown, why) = (address::shown(&self.0.options.url), reason.map(said).unwrap_or_default());
                let bytes = message.body.len();
                format!(
                    "{shown} ends the connection over a message on {:?} with a body of {bytes} bytes{why}",
                    message.to
                )
            };
            let refused = match reason.map_or(Fault::Somebodys, fault) {
                Fault::Nobodys => return Err(Trouble::Told(self.explained(Trouble::Over(End::Cut), reason))),
                Fault::Retryable => PublishError::retryable(over()),
                Fault::Permanent => PublishError::permanent(over()),
                Fault::Somebodys if cuts < CUTS => continue,
                Fault::Somebodys => PublishError::retryable(format!("{}; its log may say why", over())),
            };
            return Err(Trouble::Told(refused));
        }
    }

    fn explained(&self, trouble: Trouble, reason: Option<DisconnectReasonCode>) -> PublishError {
        let (shown, limit) = (address::shown(&self.0.options.url), self.0.options.ack_timeout);
        match (trouble, reason) {
            (Trouble::Told(error), _) => error,
            (Trouble::Over(End::Silent), _) => {
                PublishError::outage(format!("no acknowledgement from {shown} within {limit:?}"))
            }
            (Trouble::Over(End::Cut | End::Unsent), Some(reason)) => {
                PublishError::outage(format!("{shown} ended the connection before the acknowledgement{}", said(reason)))
            }
            (Trouble::Over(End::Cut | End::Unsent), None) => {
                PublishError::outage(format!("the connection to {shown} was lost before the acknowledgement"))
            }
        }
    }
}

/// The reason that a broker gave, behind what it did.
fn said(reason: DisconnectReasonCode) -> String {
    format!(": {reason:?}{}", advice(reason))
}

impl Publisher for Mqtt {
    const BINDING: Binding = Binding::Mqtt;

    fn name(&self) -> &str {
        &self.0.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.publish_telling(messages, &|_| {}).await
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let answers = self.publish_telling(messages, &|at| results.note(at, Ok(()))).await;
        results.note_all(answers);
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        if is_topic(to) { Ok(()) } else { Err(PublishError::permanent(no_topic(to))) }
    }

    /// Whether there is a connection; nothing is asked over it. A login that is refused is permanent here: waiting would not help.
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
