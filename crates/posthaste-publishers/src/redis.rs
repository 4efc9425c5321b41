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

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisResult};
use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use crate::address;
use crate::breaker::Breaker;
use crate::connection::Slot;
use crate::destination::Destination;
use crate::durability::Concern;
use crate::envelope::Binding;
use crate::options::{connection_setters, five_seconds};
use crate::publisher::{Message, PublishError, Publisher};
use crate::suspects::{Suspects, in_place};

/// About how many bytes one request has: few enough to be answered in time.
const REQUEST: usize = 1 << 20;

/// The largest field that every server takes: `proto-max-bulk-len` cannot be less.
const EVERYWHERE: usize = 1 << 20;

/// As many requests as have time in a batch, if they take as long as they may.
const REQUESTS: u32 = 4;

/// How many messages in a row, each alone, have to be silent for the server to be away.
const SILENT: u32 = 2;

/// How much longer than its requests a batch may take as a whole.
const LATE: Duration = Duration::from_secs(5);

/// How long what a batch had no time for is put off.
const SOON: Duration = Duration::from_secs(1);

/// How to reach Redis, and how to add to streams there.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisOptions {
    url: String,
    #[serde(default = "default_name")]
    name: String,
    user: Option<String>,
    password: Option<String>,
    ca_file: Option<PathBuf>,
    max_len: Option<u64>,
    #[serde(default = "default_create_streams")]
    create_streams: bool,
    #[serde(default = "default_max_payload")]
    max_payload: usize,
    #[serde(default = "five_seconds", with = "compact::required")]
    ack_timeout: Duration,
    #[serde(default = "five_seconds", with = "compact::required")]
    connect_timeout: Duration,
    #[serde(default)]
    lazy: bool,
}

fn default_name() -> String {
    "redis".to_owned()
}

fn default_create_streams() -> bool {
    true
}

fn default_max_payload() -> usize {
    512 << 20
}

impl RedisOptions {
    /// The server at that address, such as `redis://127.0.0.1:6379/0`; `rediss://` is with TLS (feature `redis-tls`).
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: default_name(),
            user: None,
            password: None,
            ca_file: None,
            max_len: None,
            create_streams: default_create_streams(),
            max_payload: default_max_payload(),
            ack_timeout: five_seconds(),
            connect_timeout: five_seconds(),
            lazy: false,
        }
    }

    /// Sets the user. Default: that of the address, or the user called `default`.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the password. Default: that of the address, if it has one.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets a file with certificates of authorities to trust instead of those of the system.
    #[cfg(feature = "redis-tls")]
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets about how many entries a stream keeps (`MAXLEN ~`); older ones are removed, read or not. Default: all.
    #[must_use]
    pub fn max_len(mut self, entries: u64) -> Self {
        self.max_len = Some(entries);
        self
    }

    /// Whether a stream that is not there is made. Default true, as Redis does it.
    #[must_use]
    pub fn create_streams(mut self, create: bool) -> Self {
        self.create_streams = create;
        self
    }

    /// Sets how many bytes a body may have. Default 512 MB, which is `proto-max-bulk-len` of the server unless that is set: it
    /// closes the connection when it gets more.
    #[must_use]
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.max_payload = bytes;
        self
    }

    connection_setters!(name: "redis", ack_timeout: "one request may take", connect: "Redis::connect");

    fn client(&self) -> Result<Client, String> {
        if cfg!(not(feature = "redis-tls")) && self.url.starts_with("rediss://") {
            return Err(format!("{} is with TLS: build with the feature redis-tls", address::shown(&self.url)));
        }
        let wrong = |error: RedisError| format!("{:?} is no address of Redis: {error}", address::shown(&self.url));
        let mut info = self.url.as_str().into_connection_info().map_err(wrong)?;
        let mut settings = info.redis_settings().clone();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        info = info.set_redis_settings(settings);
        if self.ca_file.is_some() && !matches!(info.addr(), ::redis::ConnectionAddr::TcpTls { .. }) {
            let shown = address::shown(&self.url);
            return Err(format!("ca_file is for TLS, and {shown} is without; write rediss:// (feature redis-tls)"));
        }
        self.open(info)
    }

    #[cfg(feature = "redis-tls")]
    fn open(&self, info: ::redis::ConnectionInfo) -> Result<Client, String> {
        let failed = |error: RedisError| error.to_string();
        // With several implementations of cryptography in one program, there has to be a choice.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let Some(path) = &self.ca_file else { return Client::open(info).map_err(failed) };
        let unread = |error| format!("the certificates in {} cannot be read: {error}", path.display());
        let root_cert = Some(std::fs::read(path).map_err(unread)?);
        Client::build_with_tls(info, ::redis::TlsCertificates { client_tls: None, root_cert }).map_err(failed)
    }

    #[cfg(not(feature = "redis-tls"))]
    fn open(&self, info: ::redis::ConnectionInfo) -> Result<Client, String> {
        if self.ca_file.is_some() {
            return Err("ca_file is for TLS: build with the feature redis-tls".to_owned());
        }
        Client::open(info).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("RedisOptions");
        debug.field("url", &address::shown(&self.url)).field("name", &self.name).field("user", &self.user);
        debug.field("ca_file", &self.ca_file).field("max_len", &self.max_len);
        debug.field("create_streams", &self.create_streams).field("max_payload", &self.max_payload);
        debug.field("ack_timeout", &self.ack_timeout).field("connect_timeout", &self.connect_timeout);
        debug.field("lazy", &self.lazy).finish_non_exhaustive()
    }
}

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

/// Why a request has no answers.
enum Trouble {
    Told(PublishError),
    /// Nothing was heard in time.
    Silence(PublishError),
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
        self.0.connection.get(|_| true, self.dial()).await
    }

    async fn dial(&self) -> Result<MultiplexedConnection, PublishError> {
        let Inner { options, client, .. } = &*self.0;
        let limit = options.connect_timeout;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(Some(options.ack_timeout));
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let failed = |reason: String| format!("cannot connect to {}: {reason}", self.shown());
        // Their limit is for the socket; a server that accepts and says nothing would keep us waiting.
        match timeout(limit, connecting).await {
            Ok(connected) => connected.map_err(|error| unwelcome(&error, failed(error.to_string()))),
            Err(_) => Err(PublishError::outage(failed(format!("no answer within {limit:?}")))),
        }
    }

    fn shown(&self) -> String {
        address::shown(&self.0.options.url)
    }

    /// Sends one request, and gives a result for each of its messages.
    async fn request(&self, messages: &[Message]) -> Result<Vec<Result<(), PublishError>>, Trouble> {
        let connection = self.connection().await.map_err(|error| Trouble::Told(error.into_outage()))?;
        let mut pipeline = Pipeline::with_capacity(messages.len());
        for message in messages {
            self.add(&mut pipeline, message);
        }
        let answer: RedisResult<Vec<RedisResult<Option<String>>>> =
            pipeline.ignore_errors().query_async(&mut MultiplexedConnection::clone(&connection)).await;
        let answers = match answer {
            Ok(answers) if answers.len() == messages.len() => answers,
            Ok(answers) => {
                self.0.connection.leave(&connection).await;
                let reason = format!("{} answers for {} entries", answers.len(), messages.len());
                return Err(Trouble::Told(PublishError::outage(reason)));
            }
            Err(error) => {
                self.0.connection.leave(&connection).await;
                if let [message] = messages
                    && is_large(message)
                    && !error.is_timeout()
                    && self.check().await.is_ok()
                {
                    return Ok(vec![Err(PublishError::retryable(format!(
                        "{} ended the connection over a body of {} bytes; raise its proto-max-bulk-len, or send less",
                        self.shown(),
                        message.body.len()
                    )))]);
                }
                let away = PublishError::outage(format!("{} did not acknowledge: {error}", self.shown()));
                return Err(if error.is_timeout() { Trouble::Silence(away) } else { Trouble::Told(away) });
            }
        };
        // Behind this the server hangs up.
        let hangs_up = answers.iter().any(|answer| answer.as_ref().is_err_and(is_of_the_protocol));
        let results: Vec<_> = messages.iter().zip(answers).map(|(message, answer)| judged(message, answer)).collect();
        // Behind the same address may be another server by now.
        if hangs_up || results.iter().any(|result| result.as_ref().is_err_and(PublishError::is_outage)) {
            self.0.connection.leave(&connection).await;
        }
        Ok(results)
    }

    /// Sends messages in as many requests as it takes. What had no answer in time goes alone from then on.
    async fn requests(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        let (suspects, until) = (&self.0.suspects, Instant::now() + self.longest());
        let mut results: Vec<Result<(), PublishError>> = Vec::with_capacity(messages.len());
        // Those that were alone, and of which nothing was heard; and how many of them in a row.
        let (mut silent, mut in_a_row) = (Vec::new(), 0);
        for request in requests(messages, |message| is_large(message) || suspects.has(message)) {
            match results.last() {
                // What comes behind an outage would only wait for another.
                Some(Err(error)) if error.is_outage() && (in_a_row == 0 || in_a_row >= SILENT) => {
                    let behind: Vec<_> = error.of_each(request.len()).collect();
                    results.extend(behind);
                    continue;
                }
                Some(_) if Instant::now() >= until => {
                    let reason = "Redis took the time of the whole batch for others of it";
                    results.extend(request.iter().map(|_| Err(PublishError::deferred(reason, SOON).unasked())));
                    continue;
                }
                _ => {}
            }
            match (self.request(request).await, request) {
                (Ok(answers), _) => {
                    in_a_row = 0;
                    suspects.acknowledged(answers.iter().filter(|answer| answer.is_ok()).count());
                    suspects.clear_of_suspicion(request);
                    results.extend(answers);
                }
                (Err(Trouble::Silence(error)), [message]) => {
                    in_a_row += 1;
                    suspects.was_silent(message);
                    silent.push(results.len());
                    results.push(Err(error));
                }
                (Err(Trouble::Silence(error)), _) => {
                    in_a_row = 0;
                    suspects.add(request.iter().map(|message| &message.id));
                    results.extend(error.of_each(request.len()));
                }
                (Err(Trouble::Told(error)), _) => {
                    in_a_row = 0;
                    results.extend(error.of_each(request.len()));
                }
            }
        }
        for at in silent {
            if suspects.is_to_blame(&messages[at]) {
                results[at] = Err(PublishError::retryable(format!(
                    "{} did not acknowledge a body of {} bytes within {:?}, while others have got through; raise ack_timeout, or \
                     send less",
                    self.shown(),
                    messages[at].body.len(),
                    self.0.options.ack_timeout
                )));
            }
        }
        results
    }

    fn add(&self, pipeline: &mut Pipeline, message: &Message) {
        let command = pipeline.cmd("XADD").arg(message.to.as_str());
        if !self.0.options.create_streams {
            command.arg("NOMKSTREAM");
        }
        if let Some(entries) = self.0.options.max_len {
            command.arg("MAXLEN").arg("~").arg(entries);
        }
        command.arg("*");
        if !message.headers.iter().any(|(name, _)| name == "event-id") {
            command.arg("event-id").arg(message.id.as_str());
        }
        for (name, value) in message.headers.iter().filter(|(name, _)| *name != "content-type" && *name != "payload") {
            command.arg(name).arg(value);
        }
        command.arg("content-type").arg(message.content_type.as_ref()).arg("payload").arg(&message.body[..]);
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

/// Why there is no connection: the server does not know us, or it is away.
fn unwelcome(error: &RedisError, reason: String) -> PublishError {
    let is_stranger =
        error.kind() == ErrorKind::AuthenticationFailed || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    if is_stranger {
        PublishError::permanent(format!("{reason}; check user and password"))
    } else {
        PublishError::outage(reason)
    }
}

/// Whether the server could not read what it was sent.
fn is_of_the_protocol(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("Protocol error"))
}

/// What the server said, in its own words.
fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// Whether a server may end the connection over it, so that it goes alone.
fn is_large(message: &Message) -> bool {
    message.body.len() > EVERYWHERE || message.headers.iter().any(|(_, value)| value.len() > EVERYWHERE)
}

/// Cuts a batch into requests of about [`REQUEST`] bytes, and those that go alone into one each.
fn requests(messages: &[Message], alone: impl Fn(&Message) -> bool) -> impl Iterator<Item = &[Message]> {
    let mut rest = messages;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let before = |message: &&Message| {
            let alone = alone(message);
            let fits = bytes == 0 || (bytes < REQUEST && !alone);
            bytes += if alone { REQUEST } else { message.body.len() + 256 };
            fits
        };
        let (request, behind) = rest.split_at(rest.iter().take_while(before).count());
        rest = behind;
        (!request.is_empty()).then_some(request)
    })
}

/// What an answer makes of a message.
fn judged(message: &Message, answer: RedisResult<Option<String>>) -> Result<(), PublishError> {
    let to = &message.to;
    let error = match answer {
        Ok(Some(_)) => return Ok(()),
        Ok(None) => {
            let reason =
                format!("there is no stream {to:?}, and none is to be made; add to it, or allow create_streams");
            return Err(PublishError::retryable(reason));
        }
        Err(error) => error,
    };
    let text = format!("Redis did not add to the stream {to:?}: {}", said(&error));
    Err(match error.code() {
        Some(
            "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "MISCONF" | "NOREPLICAS"
            | "OOM" | "NOAUTH" | "WRONGPASS",
        ) => PublishError::outage(text),
        Some("WRONGTYPE") => PublishError::permanent(text),
        Some("MOVED" | "ASK") => {
            PublishError::retryable(format!("{text}; clusters are not followed: connect to the node that has it"))
        }
        // Who has not logged in may not even say much.
        _ if is_of_the_protocol(&error) && text.contains("unauthenticated") => PublishError::outage(text),
        _ if is_of_the_protocol(&error) => {
            PublishError::retryable(format!("{text}; raise its proto-max-bulk-len, or send less"))
        }
        _ if error.is_io_error() || error.kind() == ErrorKind::AuthenticationFailed => PublishError::outage(text),
        _ => PublishError::retryable(text),
    })
}

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;

    use super::*;

    fn message(bytes: usize) -> Message {
        let id = EventId::new("id").unwrap();
        let body = vec![b'x'; bytes].into();
        let headers = crate::Headers::default();
        Message { id, to: "s".into(), key: None, content_type: "text/plain".into(), headers, body }
    }

    #[test]
    fn requests_are_cut_by_size_and_nothing_is_left_out() {
        let sizes = |sizes: &[usize]| {
            let messages: Vec<_> = sizes.iter().map(|size| message(*size)).collect();
            requests(&messages, is_large).map(<[Message]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[10; 500]), [500]);
        assert_eq!(sizes(&[REQUEST; 3]), [1, 1, 1]);
        assert_eq!(sizes(&[REQUEST / 2, REQUEST / 2, 10, 10]), [2, 2]);
        assert_eq!(sizes(&[10, 10, EVERYWHERE + 1, 10, EVERYWHERE + 1, EVERYWHERE + 1]), [2, 1, 1, 1, 1]);
    }

    /// What a server writes, and what it makes of a message.
    #[test]
    fn refusals_are_put_into_their_kinds() {
        use crate::publisher::PublishErrorKind::{Outage, Permanent, Retryable};
        for (wire, kind) in [
            ("LOADING Redis is loading the dataset in memory", Outage),
            ("READONLY You can't write against a read only replica.", Outage),
            ("MASTERDOWN Link with MASTER is down", Outage),
            ("CLUSTERDOWN The cluster is down", Outage),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Outage),
            ("BUSY Redis is busy running a script.", Outage),
            ("MISCONF Redis is configured to save RDB snapshots", Outage),
            ("NOREPLICAS Not enough good replicas to write.", Outage),
            ("OOM command not allowed when used memory > 'maxmemory'.", Outage),
            ("NOAUTH Authentication required.", Outage),
            ("WRONGPASS invalid username-password pair", Outage),
            ("ERR Protocol error: unauthenticated multibulk length", Outage),
            ("ERR Protocol error: invalid bulk length", Retryable),
            ("NOPERM this user has no permissions", Retryable),
            ("MOVED 3999 127.0.0.1:6381", Retryable),
            ("ASK 3999 127.0.0.1:6381", Retryable),
            ("ERR syntax error", Retryable),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Permanent),
        ] {
            let value = ::redis::parse_redis_value(format!("-{wire}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            assert_eq!(judged(&message(1), Err(error)).unwrap_err().kind(), kind, "{wire}");
        }
    }

    #[test]
    fn options_are_read_and_show_no_secrets() {
        let text =
            r#"{"url": "redis://me:in-url@127.0.0.1", "password": "pass-word", "max_len": 1000, "ack_timeout": "2s"}"#;
        let options: RedisOptions = serde_json::from_str(text).unwrap();
        assert_eq!(
            (options.ack_timeout, options.max_len, options.create_streams),
            (Duration::from_secs(2), Some(1000), true)
        );
        let shown = format!("{options:?}");
        assert!(
            shown.contains("redis://…@127.0.0.1") && !shown.contains("in-url") && !shown.contains("pass-word"),
            "{shown}"
        );
        let error = serde_json::from_str::<RedisOptions>(r#"{"url": "x", "pasword": "secret"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `pasword`"), "{error}");
    }

    #[tokio::test]
    async fn a_wrong_address_is_refused_without_showing_its_password() {
        let error = Redis::connect(RedisOptions::new("http://me:secret@127.0.0.1")).await.unwrap_err();
        assert!(
            error.to_string().contains("is no address of Redis") && !error.to_string().contains("secret"),
            "{error}"
        );
    }
}
