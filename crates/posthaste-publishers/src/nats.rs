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

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{Context, ContextBuilder, PublishAckFuture, PublishErrorKind as Refusal};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use bytes::Bytes;
use futures_util::FutureExt;
use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::Deserialize;
use tokio::sync::{Mutex, Semaphore, broadcast};
use tokio::time::{Instant, sleep_until, timeout};

use crate::address;
use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher};

/// How long a server has to say that it is there.
const CHECK: Duration = Duration::from_secs(2);

/// How long closing may take.
const CLOSE: Duration = Duration::from_secs(5);

/// How many words of the server wait for batches that are under way.
const NEWS: usize = 1024;

/// How to reach NATS, and how to publish there.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatsOptions {
    url: String,
    #[serde(default = "default_name")]
    name: String,
    user: Option<String>,
    password: Option<String>,
    token: Option<String>,
    nkey_seed: Option<String>,
    credentials_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    certificate_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    expected_stream: Option<String>,
    #[serde(default = "default_max_in_flight")]
    max_in_flight: usize,
    #[serde(default = "default_ack_timeout", with = "compact::required")]
    ack_timeout: Duration,
    #[serde(default = "default_connect_timeout", with = "compact::required")]
    connect_timeout: Duration,
    #[serde(default)]
    lazy: bool,
}

fn default_name() -> String {
    "nats".to_owned()
}

fn default_max_in_flight() -> usize {
    4096
}

fn default_ack_timeout() -> Duration {
    Duration::from_secs(5)
}

fn default_connect_timeout() -> Duration {
    Duration::from_secs(5)
}

impl NatsOptions {
    /// The server at that address, such as `nats://127.0.0.1:4222`, or `tls://…`; several of a cluster are separated by commas.
    /// User and password are not part of it.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: default_name(),
            user: None,
            password: None,
            token: None,
            nkey_seed: None,
            credentials_file: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            expected_stream: None,
            max_in_flight: default_max_in_flight(),
            ack_timeout: default_ack_timeout(),
            connect_timeout: default_connect_timeout(),
            lazy: false,
        }
    }

    /// Sets what it is called in logs and metrics. Default `nats`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets user and password.
    #[must_use]
    pub fn user_and_password(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        (self.user, self.password) = (Some(user.into()), Some(password.into()));
        self
    }

    /// Sets a token instead of a user.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the seed of an nkey.
    #[must_use]
    pub fn nkey_seed(mut self, seed: impl Into<String>) -> Self {
        self.nkey_seed = Some(seed.into());
        self
    }

    /// Sets a file with credentials, as `nsc` makes it: a JWT and its seed.
    #[must_use]
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials_file = Some(path.into());
        self
    }

    /// Sets a file with certificates of authorities to trust beside those of the system, and demands TLS.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Sets the files of a certificate to show to the server, and of its key.
    #[must_use]
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        (self.certificate_file, self.key_file) = (Some(certificate.into()), Some(key.into()));
        self
    }

    /// Sets the stream that has to store the events: another refuses them. Default: whichever listens to the subject.
    #[must_use]
    pub fn expected_stream(mut self, stream: impl Into<String>) -> Self {
        self.expected_stream = Some(stream.into());
        self
    }

    /// Sets how many messages wait for their acknowledgement at once, over all batches. Default 4096.
    #[must_use]
    pub fn max_in_flight(mut self, messages: usize) -> Self {
        self.max_in_flight = messages;
        self
    }

    /// Sets how long to wait when no further acknowledgement comes. Default 5 s.
    #[must_use]
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Sets how long connecting to one server may take. Default 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Whether to connect with the first batch only. A server that is away is then an outage and no error of
    /// [`Nats::connect`]. Default false: what is wrong is said at the start.
    #[must_use]
    pub fn lazy(mut self, lazy: bool) -> Self {
        self.lazy = lazy;
        self
    }

    /// The servers, if the options go together.
    fn servers(&self) -> Result<Vec<ServerAddr>, String> {
        if self.password.is_some() && self.user.is_none() {
            return Err("there is a password for NATS, but no user; set both, or a token".to_owned());
        }
        if self.expected_stream.as_deref().is_some_and(|stream| !is_subject(stream) || stream.contains('.')) {
            return Err(format!(
                "{:?} is no name of a stream of NATS",
                self.expected_stream.as_deref().unwrap_or_default()
            ));
        }
        if self.certificate_file.is_some() != self.key_file.is_some() {
            return Err("certificate_file and key_file for NATS belong together; set both".to_owned());
        }
        let server = |url: &str| {
            let address: ServerAddr = url
                .trim()
                .parse()
                .map_err(|error| format!("{:?} is no address of NATS: {error}", address::shown(url)))?;
            if address.has_user_pass() {
                return Err(format!(
                    "the address {} has a user in it; set user and password, or token, beside it",
                    address::shown(url)
                ));
            }
            Ok(address)
        };
        self.url.split(',').map(server).collect()
    }

    async fn connect_options(&self) -> Result<ConnectOptions, String> {
        let mut options = ConnectOptions::new().name(&self.name).connection_timeout(self.connect_timeout);
        if let Some(user) = &self.user {
            options = options.user_and_password(user.clone(), self.password.clone().unwrap_or_default());
        }
        if let Some(token) = &self.token {
            options = options.token(token.clone());
        }
        if let Some(seed) = &self.nkey_seed {
            options = options.nkey(seed.clone());
        }
        if let Some(path) = &self.credentials_file {
            let unread = |error| format!("the credentials in {} cannot be read: {error}", path.display());
            options = options.credentials_file(path).await.map_err(unread)?;
        }
        if let Some(path) = &self.ca_file {
            options = options.add_root_certificates(path.clone()).require_tls(true);
        }
        if let (Some(certificate), Some(key)) = (&self.certificate_file, &self.key_file) {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        Ok(options)
    }
}

impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("NatsOptions");
        debug.field("url", &address::shown(&self.url)).field("name", &self.name).field("user", &self.user);
        debug.field("expected_stream", &self.expected_stream).field("max_in_flight", &self.max_in_flight);
        debug.field("ack_timeout", &self.ack_timeout).field("connect_timeout", &self.connect_timeout);
        debug.field("lazy", &self.lazy).finish_non_exhaustive()
    }
}

/// A connection to NATS. Clones share it.
#[derive(Clone)]
pub struct Nats(Arc<Inner>);

struct Inner {
    options: NatsOptions,
    servers: Vec<ServerAddr>,
    breaker: Breaker,
    in_flight: Semaphore,
    connection: Mutex<Option<Arc<Connection>>>,
    closed: AtomicBool,
}

/// One connection, until it is lost: another is made then. So nothing that was given up is sent later, behind what came after it.
struct Connection {
    jetstream: Context,
    lost: Arc<AtomicBool>,
    news: broadcast::Sender<News>,
}

/// What the server says beside its acknowledgements.
#[derive(Clone, Debug)]
enum News {
    /// Publishing to that subject is not permitted.
    Denied(String),
    /// The connection is lost.
    Lost,
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
            connection: Mutex::new(None),
            closed: AtomicBool::new(false),
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
        let mut slot = self.0.connection.lock().await;
        if self.0.closed.load(Ordering::Acquire) {
            return Err(PublishError::outage(format!("the connection to {} is closed", self.shown())));
        }
        match slot.as_ref().filter(|connection| !connection.lost.load(Ordering::Acquire)) {
            Some(connection) => Ok(connection.clone()),
            None => {
                *slot = None;
                let connection = Arc::new(self.dial().await?);
                *slot = Some(connection.clone());
                Ok(connection)
            }
        }
    }

    async fn dial(&self) -> Result<Connection, PublishError> {
        let Inner { options, servers, .. } = &*self.0;
        let (news, lost) = (broadcast::Sender::new(NEWS), Arc::new(AtomicBool::new(false)));
        let (tell, gone) = (news.clone(), lost.clone());
        let servers_tried = servers.len();
        let connecting = options
            .connect_options()
            .await
            .map_err(PublishError::outage)?
            // Its own attempts to connect again end soon: it is replaced.
            .max_reconnects(servers_tried)
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => {
                        gone.store(true, Ordering::Release);
                        tell.send(News::Lost).ok();
                    }
                    Event::ServerError(ServerError::Other(text)) => {
                        if let Some(subject) = denied(&text) {
                            tell.send(News::Denied(subject.to_owned())).ok();
                        }
                    }
                    _ => {}
                }
                std::future::ready(())
            })
            .connect(servers);
        let limit = options.connect_timeout.saturating_mul(u32::try_from(servers_tried).unwrap_or(u32::MAX));
        let client = match timeout(limit, connecting).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => {
                let hint = match error.kind() {
                    ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                        "; the server does not know the user, token or key, or its password is another"
                    }
                    _ => "",
                };
                return Err(PublishError::outage(format!("cannot connect to {}: {error}{hint}", self.shown())));
            }
            Err(_) => return Err(PublishError::outage(format!("no answer from {} within {limit:?}", self.shown()))),
        };
        let jetstream = ContextBuilder::new()
            .timeout(options.ack_timeout)
            .ack_timeout(options.ack_timeout)
            // The limit is ours. Theirs is wide enough for what batches that were cut short leave behind.
            .max_ack_inflight(options.max_in_flight.clamp(1, Semaphore::MAX_PERMITS / 8).saturating_mul(4))
            .build(client);
        Ok(Connection { jetstream, lost, news })
    }

    /// Leaves a connection that does not answer.
    async fn leave(&self, connection: &Arc<Connection>) {
        connection.lost.store(true, Ordering::Release);
        self.0.connection.lock().await.take_if(|current| Arc::ptr_eq(current, connection));
    }

    fn shown(&self) -> String {
        address::shown(&self.0.options.url)
    }

    /// Sends so many messages as may be in flight, and waits for their acknowledgements.
    async fn send(&self, connection: &Arc<Connection>, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        let mut news = Watch::new(connection, self.0.options.ack_timeout);
        let mut sent = Vec::with_capacity(messages.len());
        for message in messages {
            sent.push(match self.prepared(message) {
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
                message.to, self.0.options.ack_timeout
            )),
        };
        let results = messages.iter().zip(results);
        results.map(|(message, result)| result.map_err(|trouble| explained(message, trouble))).collect()
    }

    fn prepared(&self, message: &Message) -> Result<PublishMessage, PublishError> {
        if !is_subject(&message.to) {
            return Err(PublishError::permanent(format!(
                "{:?} is no subject of NATS to publish to: words between dots, without spaces and wildcards",
                message.to
            )));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &message.headers {
            let parsed = HeaderName::from_str(name).ok().filter(|_| !name.is_empty()).ok_or_else(|| {
                PublishError::permanent(format!(
                    "{name:?} is no name for a header in NATS, which has visible ASCII without colons"
                ))
            })?;
            headers.insert(parsed, header_value(name, value)?);
        }
        headers.insert("content-type", header_value("content-type", &message.content_type)?);
        headers.insert(NATS_MESSAGE_ID, header_value("Nats-Msg-Id", message.id.as_str())?);
        if let Some(stream) = &self.0.options.expected_stream {
            headers.insert(NATS_EXPECTED_STREAM, header_value("Nats-Expected-Stream", stream)?);
        }
        Ok(PublishMessage::build().payload(message.body.clone()).headers(headers))
    }

    /// Tells a server that does not answer, whose connection is left, from a subject where nobody does.
    async fn answers(&self, connection: &Arc<Connection>) -> Result<(), PublishError> {
        let there = self.checked(connection).await;
        if there.is_err() {
            self.leave(connection).await;
        }
        there
    }

    /// Whether an answer is that of a JetStream that works.
    fn understood(&self, answer: &[u8]) -> Result<(), String> {
        let answer: serde_json::Value = serde_json::from_slice(answer)
            .map_err(|error| format!("{} answers something else than JetStream does: {error}", self.shown()))?;
        match (&answer["error"], &self.0.options.expected_stream) {
            (serde_json::Value::Null, _) => Ok(()),
            (error, Some(stream)) if error["err_code"] == ErrorCode::STREAM_NOT_FOUND.0 => {
                Err(format!("there is no stream {stream:?} at {}; make it, or expect another", self.shown()))
            }
            (error, _) => Err(format!("JetStream at {} is not ready: {}", self.shown(), error["description"])),
        }
    }

    async fn checked(&self, connection: &Connection) -> Result<(), PublishError> {
        let mut news = connection.news.subscribe();
        let asking = async {
            // Their types for the answers know newer servers only.
            let subject = match &self.0.options.expected_stream {
                None => "$JS.API.INFO".to_owned(),
                Some(stream) => format!("$JS.API.STREAM.INFO.{stream}"),
            };
            let answer = connection.jetstream.client().request(subject, Bytes::new()).await;
            let answer = answer.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => {
                    format!("JetStream is not enabled at {}; start the server with -js", self.shown())
                }
                _ => format!("JetStream does not answer at {}: {error}", self.shown()),
            })?;
            self.understood(&answer.payload)
        };
        let word = async {
            loop {
                match news.recv().await {
                    // Who may not ask may publish all the same; the server is there.
                    Ok(News::Denied(subject)) if subject.starts_with("$JS.API.") => return Ok(()),
                    Ok(News::Denied(_)) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Ok(News::Lost) | Err(broadcast::error::RecvError::Closed) => {
                        return Err(format!("the connection to {} is lost", self.shown()));
                    }
                }
            }
        };
        let answered = async {
            tokio::select! {
                answer = asking => answer,
                word = word => word,
            }
        };
        timeout(CHECK, answered)
            .await
            .unwrap_or_else(|_| Err(format!("no answer from JetStream at {} within {CHECK:?}", self.shown())))
            .map_err(PublishError::outage)
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
                Err(error) => {
                    results.extend(part.iter().map(|_| Err(PublishError::new(error.kind(), error.to_string()))));
                }
            }
        }
        results
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.checked(&*self.connection().await?).await
    }

    async fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
        let closing = async {
            if let Some(connection) = self.0.connection.lock().await.take() {
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

/// Why there is no acknowledgement.
enum Trouble {
    /// The server or the connection said so.
    Told(PublishError),
    /// Nobody said anything.
    Silence,
}

/// Waits for acknowledgements of a batch, and for what makes waiting vain.
struct Watch {
    news: broadcast::Receiver<News>,
    denied: HashSet<String>,
    lost: bool,
    /// Nothing came for too long.
    silent: bool,
    patience: Duration,
    until: Instant,
}

impl Watch {
    fn new(connection: &Connection, patience: Duration) -> Self {
        let (news, until) = (connection.news.subscribe(), Instant::now() + patience);
        // Who listens only now has not heard that.
        let lost = connection.lost.load(Ordering::Acquire);
        Self { news, denied: HashSet::new(), lost, silent: false, patience, until }
    }

    /// Something came: the next has as much time again.
    fn judged<T>(&mut self, subject: &str, answer: Result<T, jetstream::context::PublishError>) -> Result<T, Trouble> {
        let result = answer.map_err(|error| refused(subject, &error));
        if matches!(result, Err(Trouble::Silence)) {
            self.silent = true;
        } else {
            self.until = Instant::now() + self.patience;
        }
        result
    }

    /// Why there is nothing to wait for.
    fn vain(&self, subject: &str) -> Option<Trouble> {
        if self.denied.contains(subject) {
            let reason = format!("not permitted to publish to {subject:?}; the server has to permit it to this user");
            Some(Trouble::Told(PublishError::retryable(reason)))
        } else if self.lost {
            Some(Trouble::Told(lost()))
        } else if self.silent {
            Some(Trouble::Silence)
        } else {
            None
        }
    }

    /// Waits for news, or until patience ends.
    async fn look(&mut self) {
        tokio::select! {
            word = self.news.recv() => match word {
                Ok(News::Denied(subject)) => {
                    self.denied.insert(subject);
                }
                Ok(News::Lost) | Err(broadcast::error::RecvError::Closed) => self.lost = true,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
            },
            () = sleep_until(self.until) => self.silent = true,
        }
    }

    /// Hands a message over to the connection, behind those before it.
    async fn handed_over(
        &mut self,
        connection: &Connection,
        subject: &str,
        publish: PublishMessage,
    ) -> Result<PublishAckFuture, Trouble> {
        let sending = connection.jetstream.send_publish(subject.to_owned(), publish);
        tokio::pin!(sending);
        loop {
            // What was not handed over while the server was silent is not sent behind it.
            if (self.lost || self.silent)
                && let Some(trouble) = self.vain(subject)
            {
                return Err(trouble);
            }
            tokio::select! {
                biased;
                sent = &mut sending => {
                    // The subject is right, so that its end of the connection is gone.
                    if sent.as_ref().is_err_and(|error| error.kind() == Refusal::Other) {
                        connection.lost.store(true, Ordering::Release);
                        self.lost = true;
                        return Err(Trouble::Told(lost()));
                    }
                    return self.judged(subject, sent);
                }
                () = self.look() => {}
            }
        }
    }

    async fn acknowledged(&mut self, subject: &str, pending: PublishAckFuture) -> Result<(), Trouble> {
        let mut pending = pending.into_future();
        loop {
            if let Some(trouble) = self.vain(subject) {
                let answer = (&mut pending).now_or_never();
                return answer
                    .map_or(Err(trouble), |answer| answer.map(drop).map_err(|error| refused(subject, &error)));
            }
            tokio::select! {
                biased;
                answer = &mut pending => return self.judged(subject, answer.map(drop)),
                () = self.look() => {}
            }
        }
    }
}

/// What kind of refusal it was.
fn refused(subject: &str, error: &jetstream::context::PublishError) -> Trouble {
    Trouble::Told(match error.kind() {
        Refusal::TimedOut => return Trouble::Silence,
        kind => told(subject, kind, error),
    })
}

fn told(subject: &str, kind: Refusal, error: &jetstream::context::PublishError) -> PublishError {
    let said = std::error::Error::source(error).and_then(|source| source.downcast_ref::<jetstream::Error>());
    match (kind, said) {
        (Refusal::StreamNotFound, _) => PublishError::retryable(format!(
            "no stream of JetStream listens to the subject {subject:?}; make one that does, or change the subject"
        )),
        (Refusal::MaxPayloadExceeded, _) => PublishError::permanent(format!(
            "{error}; raise max_payload of the server, or send less and redrive the event"
        )),
        (Refusal::BrokenPipe, _) => lost(),
        (_, Some(said)) => {
            let text = format!("JetStream refused a message on {subject:?}: {said}");
            match said.error_code() {
                ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                    PublishError::permanent(text)
                }
                ErrorCode::CLUSTER_NOT_AVAILABLE
                | ErrorCode::CLUSTER_NOT_LEADER
                | ErrorCode::CLUSTER_NOT_ACTIVE
                | ErrorCode::JETSTREAM_NOT_ENABLED
                | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
                | ErrorCode::INSUFFICIENT_RESOURCES
                | ErrorCode::STREAM_TOO_MANY_REQUESTS => PublishError::outage(text),
                _ => PublishError::retryable(text),
            }
        }
        _ => PublishError::retryable(format!("publishing to {subject:?} failed: {error}")),
    }
}

fn lost() -> PublishError {
    PublishError::outage("the connection to NATS was lost before the acknowledgement")
}

/// The subject of `Permissions Violation for Publish to "orders"`: the protocol has a text and nothing else for that.
fn denied(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("Permissions Violation for Publish to \"")?;
    rest.split_once('"').map(|(subject, _)| subject)
}

fn is_subject(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && word != "*"
            && word != ">"
            && !word.contains(|sign: char| sign.is_whitespace() || sign.is_control())
    };
    text.split('.').all(word)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, PublishError> {
    let broken = |_| PublishError::permanent(format!("the header {name:?} has a line break, which NATS cannot carry"));
    HeaderValue::from_str(value).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_words_between_dots() {
        for good in ["orders", "shop.Order.OrderPlaced", "a.b*c", "bestellung.größe", "$x"] {
            assert!(is_subject(good), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "a\tb", "a\r\nPUB b 0"] {
            assert!(!is_subject(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_subject_of_a_denial_is_found() {
        assert_eq!(denied("Permissions Violation for Publish to \"orders.x\""), Some("orders.x"));
        assert_eq!(denied("nats: Permissions Violation for Publish to \"a\" using queue"), Some("a"));
        assert_eq!(denied("Permissions Violation for Subscription to \"a\""), None);
    }

    #[test]
    fn options_are_read_and_show_no_secrets() {
        let text = r#"{"url": "nats://127.0.0.1:4222", "user": "me", "password": "pass-word", "token": "to-ken",
            "nkey_seed": "se-ed", "expected_stream": "ORDERS", "ack_timeout": "200ms"}"#;
        let options: NatsOptions = serde_json::from_str(text).unwrap();
        assert_eq!((options.ack_timeout, options.max_in_flight), (Duration::from_millis(200), 4096));
        let shown = format!("{options:?}");
        assert!(shown.contains("ORDERS"), "{shown}");
        for secret in ["pass-word", "to-ken", "se-ed"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let error = serde_json::from_str::<NatsOptions>(r#"{"url": "x", "pasword": "secret"}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `pasword`"), "{error}");
    }

    #[tokio::test]
    async fn a_user_in_the_address_is_refused_without_showing_it() {
        let error = Nats::connect(NatsOptions::new("nats://me:secret@127.0.0.1:1")).await.unwrap_err();
        assert!(error.to_string().contains("nats://…@127.0.0.1:1 has a user in it"), "{error}");
    }
}
