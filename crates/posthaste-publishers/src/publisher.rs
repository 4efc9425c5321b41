//! What sends to a destination, and what it says.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::EventId;

use crate::envelope::Binding;

/// Sends messages to one broker, or whatever is at the other end.
///
/// The same skeleton in every module: options, `connect`, [`publish`](Self::publish), errors put into their
/// [kinds](PublishErrorKind), [`check`](Self::check), [`close`](Self::close). Retries are not its business, nor are templates,
/// envelopes and outages: a [`Destination`](crate::Destination) has these.
pub trait Publisher: Send + Sync + 'static {
    /// How this protocol carries what an envelope says.
    const BINDING: Binding;

    /// The most messages to send at once, unless the destination says otherwise.
    const MAX_BATCH: usize = 500;

    /// What it is called in logs and metrics, such as `kafka`.
    fn name(&self) -> &str;

    /// Sends the messages, as many at once as the protocol allows, and gives one result for each, in their order.
    ///
    /// `Ok` means that the other end has acknowledged the message, and nothing less. Messages with the same key are sent in
    /// their order; where one of them fails, those behind it may have arrived.
    fn publish(&self, messages: Vec<Message>) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;

    /// Whether messages could be sent to such an address at all. Asked when the outbox is started, of addresses that are the same for
    /// all events: what is wrong with one of these is then said once, and not by every event. Nobody is connected to for it.
    /// Default: yes.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right.
    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        let _ = to;
        Ok(())
    }

    /// Asks the other end whether it is there and would take something.
    fn check(&self) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Sends what is still on its way, and closes the connection, within a bounded time.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// What is sent: an event in its envelope.
#[derive(Clone, Debug)]
pub struct Message {
    /// The id of the event, the same for each attempt: by this a receiver tells repeats.
    pub id: EventId,
    /// Where to, as the template of the destination says: topic, subject, routing key, stream or URL.
    pub to: String,
    /// What has to stay in order; the aggregate id, unless the destination says otherwise.
    pub key: Option<String>,
    /// What the body is. It is not among the headers, so each publisher puts it where its protocol has it: on HTTP, Kafka and
    /// NATS the header `content-type`, on AMQP and MQTT 5 the property. If it is empty, there is none on Kafka.
    pub content_type: Cow<'static, str>,
    /// Beside the body, as the binding of the protocol names them.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// The body.
    pub body: Bytes,
}

/// Why a message was not acknowledged.
pub struct PublishError {
    kind: PublishErrorKind,
    retry_after: Option<Duration>,
    source: Box<dyn Error + Send + Sync>,
}

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PublishErrorKind {
    /// The destination is away, or takes nothing from anybody: no failure of the event, which uses up no attempt. The breaker
    /// opens.
    Outage,
    /// Where this message goes is away, and where others go is not: like an outage, but the breaker stays as it is. For
    /// publishers with many ends, which keep a breaker for each.
    Deferred,
    /// This message was not taken, but may be later: an attempt.
    Retryable,
    /// This message will never be taken: DEAD at once.
    Permanent,
}

impl PublishError {
    /// The destination is away.
    pub fn outage(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(PublishErrorKind::Outage, source)
    }

    /// Where this message goes is away for that long.
    pub fn deferred(source: impl Into<Box<dyn Error + Send + Sync>>, pause: Duration) -> Self {
        Self::new(PublishErrorKind::Deferred, source).retry_after(pause)
    }

    /// This message was not taken, but may be later.
    pub fn retryable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(PublishErrorKind::Retryable, source)
    }

    /// This message will never be taken.
    pub fn permanent(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(PublishErrorKind::Permanent, source)
    }

    /// An error of the given kind.
    pub fn new(kind: PublishErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, retry_after: None, source: source.into() }
    }

    /// Asks for that long a pause, because the other end did.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> PublishErrorKind {
        self.kind
    }

    #[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
    pub(crate) fn is_outage(&self) -> bool {
        self.kind == PublishErrorKind::Outage
    }

    /// The same as the result of each of so many messages.
    #[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
    pub(crate) fn of_each(&self, messages: usize) -> impl Iterator<Item = Result<(), Self>> {
        (0..messages).map(|_| Err(Self::new(self.kind, self.to_string())))
    }

    /// How long a pause the other end asked for.
    pub fn pause(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The error behind it.
    pub fn into_source(self) -> Box<dyn Error + Send + Sync> {
        self.source
    }
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)
    }
}

impl fmt::Debug for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.source)
    }
}

impl Error for PublishError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}
