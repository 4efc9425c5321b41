//! Redis Streams.
//!
//! ```no_run
//! use posthaste_core::{MemoryStore, Outbox};
//! use posthaste_publishers::redis::{Redis, RedisOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = Redis::connect(RedisOptions::new("redis://127.0.0.1:6379")).await?;
//! let builder = Outbox::builder(MemoryStore::new()).listen("Order", "*", redis.stream("orders:{event_type}"));
//! # Ok(())
//! # }
//! ```
//!
//! An event is an entry of a stream, added by `XADD`. Its fields are those of the envelope, `event-id` among them,
//! `content-type`, and last the body in `payload`. Headers of an event that are called `content-type` or `payload` are left out.
//!
//! | | |
//! |---|---|
//! | acknowledgement | the server has added the entry and given it an id |
//! | power loss | as its `appendfsync` says: with `everysec`, which is usual, the last second can be gone; without `appendonly` more. Replicas follow later, and a failover can lose what was acknowledged |
//! | repeats | nothing is dropped: where an acknowledgement is lost, the entries of that request are added twice. Consumers tell repeats by the field `event-id` |
//! | order | entries of one batch are added in their order |
//! | at once | a batch in one request, or in several of about a megabyte each, one after another. What is larger goes alone |
//!
//! | what happens | kind |
//! |---|---|
//! | no connection, or lost, or no answer in time; not authenticated; `LOADING`, `READONLY`, `MASTERDOWN`, `CLUSTERDOWN`, `TRYAGAIN`, `BUSY`, `MISCONF`, `NOREPLICAS`, `OOM` | outage |
//! | `NOPERM`; `MOVED` and `ASK`, as clusters are not followed: connect to the node that has the stream; no stream of that name, if none is to be made; any other refusal; a body of more than a megabyte over which the server ends the connection, as it does when its `proto-max-bulk-len` is smaller; no answer to it in time while others have theirs | retryable |
//! | `WRONGTYPE`: the key is no stream; a body that is too large | permanent |
//!
//! [`check`](Publisher::check), and with it [`Redis::connect`], says of a login that is refused that it is permanent.
//!
//! What has no answer in time goes alone from then on. If it has none alone either, say because its body is too large for the time,
//! it comes last in its batch, and uses up attempts as soon as others have got through.

mod connection;
mod error;
mod options;
mod sending;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, RedisError, RedisResult};

use crate::address;
use crate::breaker::Breaker;
use crate::connection::Slot;
use crate::destination::Destination;
use crate::durability::Concern;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher};
use crate::suspects::{Suspects, in_place};

use connection::{dial, unwelcome};
use error::said;

pub use options::RedisOptions;

/// As many requests as have time in a batch, if they take as long as they may.
const REQUESTS: u32 = 4;

/// How much longer than its requests a batch may take as a whole.
const LATE: Duration = Duration::from_secs(5);

/// A connection to Redis. Clones share it.
#[derive(Clone)]
pub struct Redis(Arc<Inner>);

struct Inner {
    options: RedisOptions,
    client: Client,
    breaker: Breaker,
    connection: Slot<MultiplexedConnection>,
    suspects: Suspects,
}

impl Redis {
    /// Connects, and asks whether the server is ready.
    ///
    /// # Errors
    /// When an option is wrong, or the server is away or refuses the connection.
    pub async fn connect(options: RedisOptions) -> Result<Self, PublishError> {
        let client = options.client().map_err(PublishError::permanent)?;
        let redis = Self(Arc::new(Inner {
            breaker: Breaker::new(&options.name),
            client,
            connection: Slot::new(address::shown(&options.url)),
            suspects: Suspects::default(),
            options,
        }));
        if !redis.0.options.lazy {
            redis.check().await?;
        }
        Ok(redis)
    }

    /// Events go to the stream that the template makes of each: the name of its key.
    pub fn stream(&self, template: &str) -> Destination<Self> {
        let RedisOptions { connect_timeout, ack_timeout, .. } = &self.0.options;
        // One more that has begun in time, and whether the server is still there.
        let limit = self.longest() + *ack_timeout + *connect_timeout + *ack_timeout + LATE;
        Destination::new(Arc::new(self.clone()), self.0.breaker.clone(), template).time_limit(limit)
    }

    /// Until when requests of a batch are begun.
    fn longest(&self) -> Duration {
        self.0.options.connect_timeout + self.0.options.ack_timeout * REQUESTS
    }

    /// Asks whether what it acknowledges survives a restart of the server, and stays there.
    ///
    /// # Errors
    /// When the server is away, or refuses to say.
    pub async fn concerns(&self) -> Result<Vec<Concern>, PublishError> {
        let connection = self.connection().await?;
        let mut connection = MultiplexedConnection::clone(&connection);
        let refused =
            |error: RedisError| PublishError::retryable(format!("{} does not say: {}", self.shown(), said(&error)));
        let persistence: String =
            ::redis::cmd("INFO").arg("persistence").query_async(&mut connection).await.map_err(refused)?;
        let mut concerns = Vec::new();
        if persistence.lines().any(|line| line.trim() == "aof_enabled:0") {
            concerns.push(Concern::mistake(
                "appendonly is off: what was acknowledged since the last snapshot is lost when the server ends",
                "CONFIG SET appendonly yes, and the same in redis.conf",
            ));
        }
        // Where CONFIG is forbidden, as on hosted servers, the rest is not known.
        let settings: Vec<(String, String)> =
            match ::redis::cmd("CONFIG").arg("GET").arg("*").query_async(&mut connection).await {
                Ok(settings) => settings,
                Err(_) => return Ok(concerns),
            };
        let setting = |name: &str| settings.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value.as_str());
        if concerns.is_empty() && !["", "always"].contains(&setting("appendfsync")) {
            concerns.push(Concern::choice(
                format!(
                    "appendfsync is {}: a power cut loses what was acknowledged in the last second or so",
                    setting("appendfsync")
                ),
                "CONFIG SET appendfsync always, if that must not be",
            ));
        }
        let policy = setting("maxmemory-policy");
        if policy.starts_with("allkeys") && !["", "0"].contains(&setting("maxmemory")) {
            concerns.push(Concern::mistake(
                format!("maxmemory-policy is {policy}: streams are thrown away when memory is short"),
                "CONFIG SET maxmemory-policy noeviction",
            ));
        }
        Ok(concerns)
    }

    /// The breaker of the connection.
    pub fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    /// The connection, which is made if there is none. Clones of what it gives share it.
    async fn connection(&self) -> Result<Arc<MultiplexedConnection>, PublishError> {
        let Inner { options, client, connection, .. } = &*self.0;
        connection.get(|_| true, dial(options, client)).await
    }

    fn shown(&self) -> String {
        address::shown(&self.0.options.url)
    }
}

impl Publisher for Redis {
    const BINDING: Binding = Binding::Fields;

    fn name(&self) -> &str {
        &self.0.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        let _under_way = self.0.connection.under_way().await;
        let limit = self.0.options.max_payload;
        let too_large = |message: &Message| {
            let bytes = message.body.len();
            (bytes > limit).then(|| {
                PublishError::permanent(format!(
                    "a body of {bytes} bytes for the stream {:?}, where {limit} are allowed; raise max_payload and \
                     proto-max-bulk-len of the server, or send less",
                    message.to
                ))
                .unasked()
            })
        };
        let (messages, places) = self.0.suspects.silent_last(messages);
        let refused: Vec<_> = messages.iter().map(too_large).collect();
        let fitting: Vec<Message> = messages
            .into_iter()
            .zip(&refused)
            .filter_map(|(message, refused)| refused.is_none().then_some(message))
            .collect();
        let mut sent = self.requests(&fitting).await.into_iter();
        let results = refused.into_iter().map(|error| error.map_or_else(|| sent.next().expect("one for each"), Err));
        in_place(places, results)
    }

    /// A login that is refused is permanent here: waiting would not help.
    async fn check(&self) -> Result<(), PublishError> {
        let connection = self.connection().await?;
        let answer: RedisResult<String> =
            ::redis::cmd("PING").query_async(&mut MultiplexedConnection::clone(&connection)).await;
        match answer {
            Ok(_) => Ok(()),
            Err(error) => {
                self.0.connection.leave(&connection).await;
                Err(unwelcome(&error, format!("{} does not take anything: {}", self.shown(), said(&error))))
            }
        }
    }

    async fn close(&self) {
        drop(self.0.connection.close().await);
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("options", &self.0.options)
            .field("breaker", &self.0.breaker)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wrong_address_is_refused_without_showing_its_password() {
        let error = Redis::connect(RedisOptions::new("http://me:secret@127.0.0.1")).await.unwrap_err();
        assert!(
            error.to_string().contains("is no address of Redis") && !error.to_string().contains("secret"),
            "{error}"
        );
    }
}
