//! The producer of librdkafka, and the reports of a batch that it was given.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{debug, info, warn};

use super::error::is_about_us;
use crate::publisher::Message;

/// How long to wait until there may be room again in a queue that was full.
const FULL: Duration = Duration::from_millis(5);

/// Where the type of the content is, as CloudEvents has it.
const CONTENT_TYPE: &str = "content-type";

/// What became of a message.
pub(super) type Report = Result<(), Refusal>;

/// Why a message was not taken.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    pub(super) code: RDKafkaErrorCode,
    /// By the client already, before it was in its queue.
    pub(super) at_once: bool,
}

/// A producer of librdkafka. Clones share it, and nobody waits for its end: that takes a while.
#[derive(Clone)]
pub(super) struct Producer(Arc<Ending>);

struct Ending {
    inner: Option<ThreadedProducer<Reports>>,
    /// Read by who hands something over, until it is in the queue: what was behind others there is not sent without them.
    given_up: RwLock<bool>,
}

impl Producer {
    pub(super) fn new(config: &ClientConfig) -> Result<Self, KafkaError> {
        let inner = ThreadedProducer::from_config_and_context(config, Reports::default())?;
        Ok(Self(Arc::new(Ending { inner: Some(inner), given_up: RwLock::new(false) })))
    }

    /// Sends nothing more of what it has, and takes nothing more: whoever waits for it is told.
    pub(super) fn give_up(&self) {
        // Purging takes a while. Whatever was handed over before is in the queue by then, and nothing comes behind it.
        *self.0.given_up.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.purge(PurgeConfig::default().queue().inflight());
    }

    pub(super) fn is_given_up(&self) -> bool {
        *self.0.given_up.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a record over, unless it was given up.
    #[expect(clippy::result_large_err, reason = "as their own, which gives the record back")]
    fn hand_over<'a>(&self, record: Record<'a>) -> Result<(), (KafkaError, Record<'a>)> {
        let given_up = self.0.given_up.read().unwrap_or_else(PoisonError::into_inner);
        if *given_up {
            return Err((KafkaError::MessageProduction(RDKafkaErrorCode::PurgeQueue), record));
        }
        self.send(record)
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether a broker has refused who we are, as far as that is not longer ago.
    pub(super) fn is_refused(&self, within: Duration) -> bool {
        self.client().context().last(within).is_some_and(|(code, _)| code.is_some_and(is_about_us))
    }

    /// What was last wrong with it, as far as that is not longer ago.
    pub(super) fn trouble(&self, within: Duration) -> Option<String> {
        match self.client().fatal_error() {
            Some((code, fatal)) => Some(format!("{code}: {fatal}")),
            None => self.client().context().last(within).map(|(_, what)| what),
        }
    }
}

impl Deref for Producer {
    type Target = ThreadedProducer<Reports>;

    fn deref(&self) -> &Self::Target {
        self.0.inner.as_ref().expect("it is there until it ends")
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let inner = self.inner.take();
        // Without a thread it ends here: what it has to be dropped for is dropped with what failed.
        let _ = std::thread::Builder::new().name("kafka-end".to_owned()).spawn(move || drop(inner));
    }
}

/// Hands the messages over in their order, each to its producer, and waits for what becomes of each. Where the queue is full
/// until `full_until`, that is the report; where there is no report at `until`, there is none.
pub(super) async fn deliver(
    messages: &[(Producer, &Message)],
    full_until: Instant,
    until: Instant,
) -> Vec<Option<Report>> {
    let batch = Arc::new(Batch::of(messages.len()));
    for (index, (producer, message)) in messages.iter().enumerate() {
        let mut record = record(message, Box::new(Ticket { batch: Arc::clone(&batch), index }));
        while let Err((error, refused)) = producer.hand_over(record) {
            let code = error.rdkafka_error_code();
            if code != Some(RDKafkaErrorCode::QueueFull) || Instant::now() >= full_until {
                // A name with a NUL is the only mistake without a code.
                let code = code.unwrap_or(RDKafkaErrorCode::InvalidTopic);
                refused.delivery_opaque.report(Err(Refusal { code, at_once: true }));
                break;
            }
            record = refused;
            sleep(FULL).await;
        }
    }
    batch.all(until).await
}

/// A message as librdkafka has it.
type Record<'a> = BaseRecord<'a, str, [u8], Box<Ticket>>;

fn record(message: &Message, ticket: Box<Ticket>) -> Record<'_> {
    let mut headers = OwnedHeaders::new_with_capacity(message.headers.len() + 1);
    if !message.content_type.is_empty() && !message.headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
        headers = headers.insert(Header { key: CONTENT_TYPE, value: Some(message.content_type.as_ref()) });
    }
    for (name, value) in message.headers.iter() {
        headers = headers.insert(Header { key: name, value: Some(value) });
    }
    let record = BaseRecord::with_opaque_to(&message.to, ticket).payload(message.body.as_ref()).headers(headers);
    match &message.key {
        Some(key) => record.key(key.as_str()),
        None => record,
    }
}

/// The reports of messages that were handed over together.
struct Batch {
    reports: Box<[OnceLock<Report>]>,
    missing: AtomicUsize,
    complete: Notify,
}

/// The place of a message in its batch. Goes through librdkafka with it.
pub(super) struct Ticket {
    batch: Arc<Batch>,
    index: usize,
}

impl Batch {
    fn of(messages: usize) -> Self {
        let reports = (0..messages).map(|_| OnceLock::new()).collect();
        Self { reports, missing: AtomicUsize::new(messages), complete: Notify::new() }
    }

    /// All reports, as soon as they are there, or those that are there at that time.
    async fn all(&self, until: Instant) -> Vec<Option<Report>> {
        // A notice that came before is kept.
        if self.missing.load(Ordering::Acquire) > 0 {
            let _ = timeout_at(until, self.complete.notified()).await;
        }
        self.reports.iter().map(|report| report.get().copied()).collect()
    }
}

impl Ticket {
    fn report(&self, report: Report) {
        let batch = &self.batch;
        if batch.reports[self.index].set(report).is_ok() && batch.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            batch.complete.notify_one();
        }
    }
}

/// Takes what librdkafka tells: reports, errors of connections, logs.
#[derive(Default)]
pub(super) struct Reports {
    trouble: Mutex<Option<Trouble>>,
}

/// What is wrong with a connection.
struct Trouble {
    at: Instant,
    code: Option<RDKafkaErrorCode>,
    what: String,
}

impl Reports {
    /// What was last wrong with a connection, if that is not longer ago.
    fn last(&self, within: Duration) -> Option<(Option<RDKafkaErrorCode>, String)> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble
            .as_ref()
            .filter(|trouble| trouble.at.elapsed() <= within)
            .map(|trouble| (trouble.code, trouble.what.clone()))
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        ticket.report(match result {
            Ok(_) => Ok(()),
            Err((error, _)) => {
                Err(Refusal { code: error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail), at_once: false })
            }
        });
    }
}

impl ClientContext for Reports {
    fn error(&self, error: KafkaError, reason: &str) {
        debug!(%error, reason, "librdkafka reports an error");
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, code) = (Instant::now(), error.rdkafka_error_code());
        match &mut *trouble {
            // What happened to the last of them says more, and is not said again each time.
            Some(trouble) if code == Some(RDKafkaErrorCode::AllBrokersDown) => trouble.at = at,
            trouble => *trouble = Some(Trouble { at, code, what: reason.to_owned() }),
        }
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => warn!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => info!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Debug => debug!(target: "librdkafka", facility, "{message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;
    use rdkafka::mocking::MockCluster;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_producer_that_was_given_up_takes_nothing_behind_what_it_has_lost() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 1, 1).unwrap();
        let producer = Producer::new(ClientConfig::new().set("bootstrap.servers", mock.bootstrap_servers())).unwrap();
        let message = Message {
            id: EventId::generate(),
            to: "orders".into(),
            key: None,
            content_type: "text/plain".into(),
            headers: Default::default(),
            body: "x".into(),
        };
        let deliver = async || {
            let until = Instant::now() + Duration::from_secs(30);
            deliver(&[(producer.clone(), &message)], until, until).await.remove(0).unwrap()
        };
        assert!(deliver().await.is_ok());
        // Of a batch that hands one message after the other over some are lost here.
        producer.give_up();
        let refusal = deliver().await.unwrap_err();
        assert_eq!((refusal.code, refusal.at_once), (RDKafkaErrorCode::PurgeQueue, true));
        assert!(producer.is_given_up());
    }

    #[test]
    fn who_is_refused_is_known_by_the_last_that_was_said_of_a_broker() {
        let reports = Reports::default();
        let (minute, said) = (Duration::from_secs(60), |code| KafkaError::Global(code));
        let refused = || reports.last(minute).is_some_and(|(code, _)| code.is_some_and(is_about_us));
        assert!(!refused());
        reports.error(said(RDKafkaErrorCode::Authentication), "SASL authentication error");
        reports.error(said(RDKafkaErrorCode::AllBrokersDown), "1/1 brokers are down");
        assert!(refused());
        reports.error(said(RDKafkaErrorCode::BrokerTransportFailure), "connection refused");
        assert!(!refused());
    }
}
