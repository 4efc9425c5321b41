//! NATS JetStream.
//!
//! ```no_run
//! use posthaste_core::{MemoryStore, Outbox};
//! use posthaste_publishers::nats::{Nats, NatsOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let nats = Nats::connect(NatsOptions::new("nats://127.0.0.1:4222")).await?;
//! let builder = Outbox::builder(MemoryStore::new()).listen("Order", "*", nats.subject("orders.{event_type}"));
//! # Ok(())
//! # }
//! ```
//!
//! | | |
//! |---|---|
//! | acknowledgement | the stream has stored the message, on a majority of its replicas if it has several |
//! | power loss | the server writes to the disk, but does not wait for it each time (every two minutes, unless its `sync_interval` says otherwise): what it acknowledged just before a power cut can be gone from a stream with one replica |
//! | repeats | the header `Nats-Msg-Id` is the id of the event; the stream drops a repeat within its `duplicate_window` (two minutes, unless the stream says otherwise) and acknowledges it. What comes again later is there twice |
//! | order | messages of one batch are stored in their order, whatever their subjects are |
//! | at once | a whole batch, and several of them up to [`max_in_flight`](NatsOptions::max_in_flight) messages |
//!
//! Streams are not made here: they are the business of who runs the server. A subject that no stream listens to is an error
//! that says so. So that no other stream takes the events, name the one that shall:
//! [`expected_stream`](NatsOptions::expected_stream).
//!
//! A header of an event whose name begins with `Nats-` is an instruction to the server, as in any message.
//!
//! | what happens | kind |
//! |---|---|
//! | no connection, or lost; not authorised to connect; JetStream is not there, has no leader or too much to do | outage |
//! | no stream for the subject, or another than expected; not permitted to publish there; the stream is full; it does not answer while JetStream does | retryable |
//! | too large for the server or the stream; a subject or a header that NATS cannot carry | permanent |

mod connection;
mod error;
mod options;
mod sending;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ServerAddr;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::address;
use crate::breaker::Breaker;
use crate::connection::Slot;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher};

use connection::Connection;
use error::Trouble;
use sending::{Watch, is_subject, no_subject, prepared};

pub use options::NatsOptions;

/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(5);

/// A connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Nats(Arc<Inner>);

struct Inner {
    options: NatsOptions,
    servers: Vec<ServerAddr>,
    breaker: Breaker,
    in_flight: Semaphore,
    connection: Slot<Connection>,
}

impl Nats {
    /// Connects, and asks whether JetStream is there.
    ///
    /// # Errors
    /// When an option is wrong, the server is away or refuses the connection, or has no JetStream.
    pub async fn connect(options: NatsOptions) -> Result<Self, PublishError> {
        let servers = options.servers().map_err(PublishError::permanent)?;
        let nats = Self(Arc::new(Inner {
            breaker: Breaker::new(&options.name),
            // More than a semaphore can count is no limit.
            in_flight: Semaphore::new(options.max_in_flight.clamp(1, u32::MAX as usize)),
            connection: Slot::new(address::shown(&options.url)),
            servers,
            options,
        }));
        if !nats.0.options.lazy {
            nats.check().await?;
        }
        Ok(nats)
    }

    /// Events go to the subject that the template makes of each.
    pub fn subject(&self, template: &str) -> Destination<Self> {
        Destination::new(Arc::new(self.clone()), self.0.breaker.clone(), template)
    }

    /// The breaker of the connection.
    pub fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    /// The connection, which is made if there is none.
    async fn connection(&self) -> Result<Arc<Connection>, PublishError> {
        let Inner { options, servers, connection, .. } = &*self.0;
        connection.get(|connection| !connection.is_lost(), Connection::dial(options, servers)).await
    }

    /// Sends so many messages as may be in flight, and waits for their acknowledgements.
    async fn send(&self, connection: &Arc<Connection>, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        let options = &self.0.options;
        let mut news = Watch::new(connection, options.ack_timeout);
        let mut sent = Vec::with_capacity(messages.len());
        for message in messages {
            sent.push(match prepared(message, options.expected_stream.as_deref()) {
                Ok(publish) => news.handed_over(connection, &message.to, publish).await,
                Err(error) => Err(Trouble::Told(error)),
            });
        }
        let mut results = Vec::with_capacity(messages.len());
        for (message, pending) in messages.iter().zip(sent) {
            results.push(match pending {
                Ok(pending) => news.acknowledged(&message.to, pending).await,
                Err(trouble) => Err(trouble),
            });
        }
        let there = if news.silent { self.answers(connection).await } else { Ok(()) };
        let explained = |message: &Message, trouble| match (trouble, &there) {
            (Trouble::Told(error), _) => error,
            (Trouble::Silence, Err(error)) => PublishError::outage(error.to_string()),
            (Trouble::Silence, Ok(())) => PublishError::retryable(format!(
                "nobody acknowledged a message on {:?} within {:?}, while JetStream answers; is there a stream for it, and \
                 does it acknowledge?",
                message.to, options.ack_timeout
            )),
        };
        let results = messages.iter().zip(results);
        results.map(|(message, result)| result.map_err(|trouble| explained(message, trouble))).collect()
    }

    /// Tells a server that does not answer, whose connection is left, from a subject where nobody does.
    async fn answers(&self, connection: &Arc<Connection>) -> Result<(), PublishError> {
        let there = connection.check(&self.0.options).await;
        if there.is_err() {
            connection.set_lost();
            self.0.connection.leave(connection).await;
        }
        there
    }
}

impl Publisher for Nats {
    const BINDING: Binding = Binding::Nats;

    fn name(&self) -> &str {
        &self.0.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let mut results = Vec::with_capacity(messages.len());
        for part in messages.chunks(self.0.options.max_in_flight.clamp(1, u32::MAX as usize)) {
            let places = u32::try_from(part.len()).expect("no more than there are places");
            let _places = self.0.in_flight.acquire_many(places).await.expect("it is never closed");
            match self.connection().await {
                Ok(connection) => results.extend(self.send(&connection, part).await),
                Err(error) => results.extend(error.of_each(part.len())),
            }
        }
        results
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        if is_subject(to) { Ok(()) } else { Err(no_subject(to)) }
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.connection().await?.check(&self.0.options).await
    }

    async fn close(&self) {
        let closing = async {
            if let Some(connection) = self.0.connection.close().await {
                connection.jetstream.client().drain().await.ok();
            }
        };
        timeout(CLOSE, closing).await.ok();
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("options", &self.0.options)
            .field("breaker", &self.0.breaker)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_user_in_the_address_is_refused_without_showing_it() {
        let error = Nats::connect(NatsOptions::new("nats://me:secret@127.0.0.1:1")).await.unwrap_err();
        assert!(error.to_string().contains("nats://…@127.0.0.1:1 has a user in it"), "{error}");
    }
}
