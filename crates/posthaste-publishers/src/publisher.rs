//! What sends to a destination, and what it says.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::listener::OfOneKey;
use tokio::time::Instant;

use crate::address;
use crate::envelope::Binding;
use crate::message::{Body, Headers, Text};
use crate::template::Places;

/// Sends messages to one broker, or whatever is at the other end.
///
/// The same skeleton in every module: options, `connect`, [`publish`](Self::publish), errors put into their
/// [kinds](PublishErrorKind), [`check`](Self::check), [`close`](Self::close). Retries are not its business, nor are templates,
/// envelopes and outages: a [`Destination`](crate::Destination) has these.
pub trait Publisher: Send + Sync + 'static {
    /// How this protocol carries what an envelope says.
    const BINDING: Binding;

    /// What places of addresses may bring. Default: what suits the protocol of the binding.
    const PLACES: Places = Self::BINDING.places();

    /// The most messages to send at once, unless the destination says otherwise.
    const MAX_BATCH: usize = 500;

    /// What a batch may hold of one aggregate where events are delivered in order. [`OfOneKey::Prefix`] is for publishers that keep
    /// [order](Results::is_in_order). Default: one event, so that the next is sent when it was acknowledged.
    const OF_ONE_KEY: OfOneKey = OfOneKey::One;

    /// What it is called in logs and metrics, such as `kafka`.
    fn name(&self) -> &str;

    /// Sends the messages, as many at once as the protocol allows, and gives one result for each, in their order.
    ///
    /// `Ok` means that the other end has acknowledged the message, and nothing less. Messages with the same key are sent in
    /// their order; where one of them fails, those behind it may have arrived.
    fn publish(&self, messages: Vec<Message>) -> impl Future<Output = Vec<Result<(), PublishError>>> + Send;

    /// The same, and each result is noted as soon as it is known. A [`Destination`](crate::Destination) sends by this.
    ///
    /// At the [end of the batch's time](Results::until) the future is dropped, and what was noted by then counts. What was not is
    /// no failure of its event. As it is, everything is noted at the end: override it where results come one by one.
    fn publish_into(&self, messages: Vec<Message>, results: &Results) -> impl Future<Output = ()> + Send {
        async move {
            let sent = messages.len();
            let answers = self.publish(messages).await;
            let wrong = (answers.len() != sent)
                .then(|| format!("{} gave {} results for {sent} messages", self.name(), answers.len()));
            match wrong {
                // It cannot be known which result belongs to which message.
                Some(reason) => results.note_all((0..sent).map(|_| Err(PublishError::retryable(reason.clone())))),
                None => results.note_all(answers),
            }
        }
    }

    /// Whether messages could be sent to such an address at all. Asked when the outbox is started, with `x` for what an event will
    /// say: what is wrong with an address is then said once, and not by every event. Not asked then where already its beginning is for
    /// events to say. Asked again for each event that says something of its address, but over HTTP; so it is quick, and connects to
    /// nobody. Default: whether the protocol of the binding has such addresses.
    ///
    /// # Errors
    /// What is wrong with it, and what would be right. Such an event is DEAD as unroutable, which uses up no attempt.
    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        Self::BINDING.check_address(to)
    }

    /// Asks the other end whether it is there and would take something.
    fn check(&self) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Sends what is still on its way, and closes the connection, within a bounded time.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// What is sent: an event in its envelope.
#[derive(Clone)]
pub struct Message {
    /// The id of the event, the same for each attempt: by this a receiver tells repeats.
    pub id: EventId,
    /// Where to, as the template of the destination says: topic, subject, routing key, stream or URL.
    pub to: Text,
    /// What has to stay in order; the aggregate id, unless the destination says otherwise.
    pub key: Option<Text>,
    /// What the body is. It is not among the headers, so each publisher puts it where its protocol has it: on HTTP, Kafka and
    /// NATS the header `content-type`, on AMQP and MQTT 5 the property. If it is empty, there is none on Kafka.
    pub content_type: Cow<'static, str>,
    /// Beside the body, as the binding of the protocol names them.
    pub headers: Headers,
    /// The body.
    pub body: Body,
}

/// Without what may be secret: the body, headers, and what a URL has behind its host.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Message");
        debug.field("id", &self.id).field("to", &address::brief(&self.to)).field("key", &self.key);
        debug.field("content_type", &self.content_type).field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

/// The places of the messages of each key, in their order. Whatever has no key is alone.
///
/// The key is what the other end knows of: on Kafka it decides the partition. Two aggregates of different types that have the
/// same id share it, so one waits for the other within a batch. That costs them a little time and no attempt, and what is in
/// order for both together is so for each.
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) fn runs_of(messages: &[Message]) -> Vec<std::collections::VecDeque<usize>> {
    let (mut runs, mut by_key): (Vec<std::collections::VecDeque<usize>>, std::collections::HashMap<&str, usize>) =
        (Vec::new(), std::collections::HashMap::new());
    for (place, message) in messages.iter().enumerate() {
        let known = message.key.as_deref().map(|key| *by_key.entry(key).or_insert(runs.len()));
        match known.and_then(|run| runs.get_mut(run)) {
            Some(run) => run.push_back(place),
            None => runs.push(std::collections::VecDeque::from([place])),
        }
    }
    runs
}

/// Where a publisher notes what became of the messages of a batch.
#[derive(Debug)]
pub struct Results {
    messages: usize,
    until: Instant,
    in_order: bool,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
enum Noted {
    /// Nothing, as yet.
    Nothing,
    /// All of them were acknowledged, as nearly always: that needs no memory.
    AllAcknowledged,
    Each(Vec<Option<Result<(), PublishError>>>),
}

impl Noted {
    /// What was noted of each.
    fn each(&mut self, messages: usize) -> &mut Vec<Option<Result<(), PublishError>>> {
        let each = || match self {
            Self::AllAcknowledged => (0..messages).map(|_| Some(Ok(()))).collect(),
            _ => (0..messages).map(|_| None).collect(),
        };
        if !matches!(self, Self::Each(_)) {
            *self = Self::Each(each());
        }
        match self {
            Self::Each(each) => each,
            Self::Nothing | Self::AllAcknowledged => unreachable!("it has just become one for each"),
        }
    }

    fn are_all_acknowledged(&self, messages: usize) -> bool {
        match self {
            Self::Nothing => messages == 0,
            Self::AllAcknowledged => true,
            Self::Each(each) => each.iter().all(|result| matches!(result, Some(Ok(())))),
        }
    }
}

impl Results {
    /// For so many messages, whose time is over at that moment.
    pub fn new(messages: usize, until: Instant) -> Self {
        Self { messages, until, in_order: false, noted: Mutex::new(Noted::Nothing) }
    }

    /// The same for messages that have to be in order.
    #[must_use]
    pub fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Whether the messages have to be in order: of those with the same key none may be taken by the other end before those in
    /// front of it in the batch were, and none at all behind one that was not. So it is asked of publishers that say so
    /// ([`Publisher::OF_ONE_KEY`]).
    pub fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// When the time of the batch is over.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// For how many messages there are results.
    pub fn messages(&self) -> usize {
        self.messages
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what became of a message, by its place in the batch. The last word counts; a place that no message has does not.
    pub fn note(&self, place: usize, result: Result<(), PublishError>) {
        self.note_some([(place, result)]);
    }

    /// Notes what became of some messages, each by its place in the batch.
    pub fn note_some(&self, results: impl IntoIterator<Item = (usize, Result<(), PublishError>)>) {
        let mut noted = self.noted();
        let each = noted.each(self.messages);
        for (place, result) in results {
            if let Some(noted) = each.get_mut(place) {
                *noted = Some(result);
            }
        }
    }

    /// Notes what became of all messages, in their order, also of those of which something was noted before.
    pub fn note_all(&self, results: impl IntoIterator<Item = Result<(), PublishError>>) {
        self.note_some(results.into_iter().enumerate());
    }

    /// Notes that all messages were acknowledged, whatever was noted before.
    pub fn acknowledge_all(&self) {
        *self.noted() = Noted::AllAcknowledged;
    }

    /// Whether it was noted of all messages that they were acknowledged.
    pub fn are_all_acknowledged(&self) -> bool {
        self.noted().are_all_acknowledged(self.messages)
    }

    /// Shows what was noted by now, in the order of the messages.
    pub fn look(&self, mut see: impl FnMut(Option<&Result<(), PublishError>>)) {
        match &*self.noted() {
            Noted::Nothing => (0..self.messages).for_each(|_| see(None)),
            Noted::AllAcknowledged => (0..self.messages).for_each(|_| see(Some(&Ok(())))),
            Noted::Each(each) => each.iter().for_each(|result| see(result.as_ref())),
        }
    }

    /// What was noted, in the order of the messages.
    pub fn into_noted(self) -> Vec<Option<Result<(), PublishError>>> {
        let mut noted = self.noted.into_inner().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(noted.each(self.messages))
    }
}

/// Why a message was not acknowledged.
pub struct PublishError {
    kind: PublishErrorKind,
    retry_after: Option<Duration>,
    unasked: bool,
    source: Box<dyn Error + Send + Sync>,
}

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PublishErrorKind {
    /// The destination is away, or takes nothing from anybody: no failure of the event, which uses up no attempt. The breaker
    /// opens.
    Outage,
    /// Where this message goes is away, and where others go is not: like an outage, but no breaker opens. Whoever said so is
    /// there, which closes one that was open, unless [nobody was asked](PublishError::unasked). For publishers with many ends,
    /// which keep a breaker for each.
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
        Self { kind, retry_after: None, unasked: false, source: source.into() }
    }

    /// Asks for that long a pause, because the other end did.
    #[must_use]
    pub fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }

    /// A message that was not sent, since it has to be behind one that was not taken.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn behind() -> Self {
        Self::deferred("it has to come behind another one of its key, which was not taken", Duration::ZERO).unasked()
    }

    /// Says that nobody was asked: the publisher itself refused the message or puts it off, which shows nothing of the other end.
    #[must_use]
    pub fn unasked(mut self) -> Self {
        self.unasked = true;
        self
    }

    /// Whether nobody was asked.
    pub fn is_unasked(&self) -> bool {
        self.unasked
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> PublishErrorKind {
        self.kind
    }

    #[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
    pub(crate) fn is_outage(&self) -> bool {
        self.kind == PublishErrorKind::Outage
    }

    /// The same to events that are on their way: that the other end refuses us is not their fault.
    #[cfg(any(feature = "mqtt", feature = "nats", feature = "redis"))]
    pub(crate) fn into_outage(self) -> Self {
        Self { kind: PublishErrorKind::Outage, ..self }
    }

    /// Whether the other end has looked at this message and refused it.
    #[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq"))]
    pub(crate) fn is_refusal(&self) -> bool {
        !self.unasked && matches!(self.kind, PublishErrorKind::Retryable | PublishErrorKind::Permanent)
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
