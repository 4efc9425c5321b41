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
mod requests;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::listener::OfOneKey;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;
use tokio::time::Instant;
use tracing::{info, warn};

pub use error::Error;
pub use options::{Compression, KafkaOptions, Mechanism, Sasl, Tls};

use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::durability::Concern;
use crate::envelope::Binding;
use crate::pauses::{Pauses, Round};
use crate::publisher::{Message, PublishError, PublishErrorKind, Publisher, Results, runs_of};
use partitions::Partitions;
use producer::{Producer, Report, deliver};
use requests::{SIZES, Size, Sizes};

/// How much later than its timeout librdkafka may say that a message has timed out: it looks once in a second.
const LATE: Duration = Duration::from_secs(3);

/// How long Kafka has to answer when it has acknowledged nothing, to tell a topic that is away from a Kafka that is.
const ANSWER: Duration = Duration::from_secs(2);

/// How long what had no answer is left alone, if nothing is known of where it would have gone.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a message is put off that another one has left no way for.
const SOON: Duration = Duration::from_millis(100);

/// The longest name of a topic.
const LONGEST_NAME: usize = 249;

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

#[derive(Default)]
struct Producers {
    /// One for each size of requests, once it was needed; and those that leave no gaps.
    by_size: [Option<Producer>; SIZES],
    gapless: [Option<Producer>; SIZES],
    closed: bool,
    /// A topic that took something, and is there.
    known_topic: Option<String>,
}

/// What became of a batch so far.
struct Batch<'a> {
    messages: &'a [Message],
    results: Vec<Option<Result<(), PublishError>>>,
    /// What was refused for the size of its request.
    too_large_together: HashSet<usize>,
    /// What had no answer, which may be the fault of its topic alone.
    doubtful: Vec<usize>,
    worn_out: Vec<(Size, Producer)>,
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

    fn producers(&self) -> MutexGuard<'_, Producers> {
        self.0.producers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The producer, or another if it has had a fatal error, after which it takes nothing any more.
    fn producer(&self, size: Size) -> Result<Producer, KafkaError> {
        self.producer_of(size, false)
    }

    fn producer_of(&self, size: Size, gapless: bool) -> Result<Producer, KafkaError> {
        let mut producers = self.producers();
        if producers.closed {
            return Err(KafkaError::Canceled);
        }
        let place = &mut producers.all(gapless)[size.index()];
        if let Some(producer) = place {
            match producer.client().fatal_error() {
                None => return Ok(producer.clone()),
                Some((RDKafkaErrorCode::GaplessGuarantee, reason)) => {
                    info!(
                        destination = self.name(),
                        reason, "kafka's producer leaves no gap in the order; making another"
                    );
                }
                Some((code, reason)) => {
                    warn!(destination = self.name(), %code, reason, "fatal error of kafka's producer; making another");
                }
            }
        }
        let mut config = self.0.config.clone();
        size.set(&mut config);
        if gapless {
            config.set("enable.gapless.guarantee", "true");
            // What times out one by one leaves gaps all the same. So nothing does, and all of it is given up together.
            config.set("message.timeout.ms", "0");
        }
        let producer = Producer::new(&config)?;
        *place = Some(producer.clone());
        Ok(producer)
    }

    /// Lets the next batch have another producer, if this is still the one.
    ///
    /// After a timeout a producer goes on with the next epoch of its id, which it does not announce. Not every broker that
    /// speaks the protocol bears that; another producer begins with an id of its own.
    fn retire(&self, size: Size, producer: &Producer) {
        let mut producers = self.producers();
        for gapless in [false, true] {
            producers.all(gapless)[size.index()].take_if(|current| current.is(producer));
        }
    }

    /// Why a message is not even sent now.
    fn not_sent(&self, message: &Message, ends: &mut Round<'_>) -> Option<PublishError> {
        if !is_topic(&message.to) {
            return Some(
                PublishError::permanent(format!(
                    "{:?} is no name of a topic: letters, digits, '.', '_' and '-', {LONGEST_NAME} of them at most",
                    message.to
                ))
                .unasked(),
            );
        }
        if ends.nobody_is_away() {
            return None;
        }
        let entered = match self.part(message) {
            Some(part) => ends.enter(&[&message.to, &part]),
            None => ends.enter(&[&message.to]),
        };
        let reason = format!("the topic {:?} had no answer, and is left alone for a while", message.to);
        Some(PublishError::deferred(reason, entered.err()?).unasked())
    }

    /// What a message shares with others of its topic that go where it goes: the partition, or the key while it is not known
    /// where that leads.
    fn part(&self, message: &Message) -> Option<String> {
        let (topic, key) = (&message.to, message.key.as_deref()?);
        Some(match self.0.partitions.of(topic, key) {
            Some(partition) => format!("{topic}\0{partition}"),
            None => format!("{topic}\0\0{key}"),
        })
    }

    /// Asks how many partitions topics have.
    async fn learn_partitions(&self, topics: HashSet<&str>) {
        let Ok(producer) = self.producer(Size::default()) else { return };
        let (topics, until) = (topics.into_iter().map(str::to_owned).collect::<Vec<_>>(), Instant::now() + ANSWER);
        let asked = tokio::task::spawn_blocking(move || {
            let count = |topic: String| {
                let left = until.checked_duration_since(Instant::now())?;
                let answer = producer.client().fetch_metadata(Some(&topic), left).ok()?;
                let partitions = answer.topics().iter().find(|known| known.name() == topic)?.partitions().len();
                Some((topic, u32::try_from(partitions).ok()?))
            };
            topics.into_iter().map_while(count).collect::<Vec<_>>()
        });
        asked.await.into_iter().flatten().for_each(|(topic, count)| self.0.partitions.learn(topic, count));
    }

    /// Sends messages in requests of these sizes, and gives those back that are to be sent again in smaller ones.
    async fn sent(
        &self,
        batch: &mut Batch<'_>,
        round: Vec<(usize, Size)>,
        full_until: Instant,
        until: Instant,
    ) -> Vec<(usize, Size)> {
        let (mut taken, mut given) = (Vec::with_capacity(round.len()), Vec::with_capacity(round.len()));
        for (place, size) in round {
            match self.producer(size) {
                Ok(producer) => {
                    taken.push((place, size));
                    given.push((producer, &batch.messages[place]));
                }
                Err(error) => batch.results[place] = Some(Err(no_producer(error))),
            }
        }
        let reports = deliver(&given, full_until, until).await;
        let mut again = Vec::new();
        for (((place, size), report), (producer, message)) in taken.into_iter().zip(reports).zip(given) {
            if let Some(Err(refusal)) = report
                && error::may_be_the_fault_of_others(refusal)
                && let Some(smaller) = size.smaller(&self.0.config, message.body.len())
            {
                if error::is_about_size(refusal.code) {
                    batch.too_large_together.insert(place);
                }
                again.push((place, smaller));
                continue;
            }
            if matches!(report, Some(Ok(()))) && batch.too_large_together.contains(&place) {
                self.0.sizes.at_most(&message.to, size);
            }
            let (doubtful, worn_out) = match report {
                Some(Ok(())) => (false, false),
                Some(Err(refusal)) => (error::may_be_the_topic(refusal.code), error::ends_a_producer(refusal.code)),
                None => (true, true),
            };
            if doubtful {
                batch.doubtful.push(place);
            }
            batch.results[place] = Some(self.result(&producer, report));
            if worn_out && !batch.worn_out.iter().any(|(_, known)| known.is(&producer)) {
                batch.worn_out.push((size, producer));
            }
        }
        again
    }

    /// Sends messages so that of each key nothing is taken behind one that was not: of each run those at its beginning that go to the
    /// same topic. Says what is left of them.
    async fn sent_in_order(
        &self,
        batch: &mut Batch<'_>,
        runs: Vec<VecDeque<usize>>,
        ends: &mut Round<'_>,
        full_until: Instant,
        until: Instant,
    ) -> Vec<VecDeque<usize>> {
        let (mut left, mut taken, mut given) = (Vec::new(), Vec::new(), Vec::new());
        for mut run in runs {
            let topic = run.front().map(|place| batch.messages[*place].to.as_str());
            let size = self.0.sizes.of(topic.unwrap_or_default());
            let same = run.iter().take_while(|place| Some(batch.messages[**place].to.as_str()) == topic).count();
            let behind = run.split_off(same);
            let (mut sent, mut missing) = (VecDeque::new(), None);
            while let Some(place) = run.pop_front() {
                let message = &batch.messages[place];
                let producer = match self.not_sent(message, ends) {
                    Some(error) => Err(error),
                    None => self.producer_of(size, true).map_err(no_producer),
                };
                match producer {
                    Ok(producer) => {
                        given.push((producer, message));
                        sent.push_back(place);
                    }
                    Err(error) => {
                        missing = Some((place, error));
                        break;
                    }
                }
            }
            if let Some((place, error)) = missing {
                batch.results[place] = Some(Err(error));
                run.into_iter()
                    .chain(behind)
                    .for_each(|place| batch.results[place] = Some(Err(PublishError::behind())));
                taken.push((sent, VecDeque::new(), size));
            } else {
                taken.push((sent, behind, size));
            }
        }
        let reports = deliver(&given, full_until, until).await;
        let mut reports = reports.into_iter().zip(given);
        for (mut sent, mut behind, size) in taken {
            let count = sent.len();
            let mut goes_on = true;
            for (report, (producer, message)) in reports.by_ref().take(count) {
                // What is said of those behind one that was not taken is of no account.
                let Some(place) = sent.pop_front().filter(|_| goes_on) else { continue };
                if let Some(Ok(())) = report {
                    batch.results[place] = Some(Ok(()));
                    continue;
                }
                goes_on = false;
                let error = self.missed(batch, place, &producer, message, size, report);
                batch.results[place] = Some(Err(error));
                for place in sent.iter().chain(&behind) {
                    batch.results[*place] = Some(Err(PublishError::behind()));
                }
                behind.clear();
            }
            if goes_on && !behind.is_empty() {
                left.push(behind);
            }
        }
        left
    }

    /// Why a message that had to be in order was not taken.
    fn missed(
        &self,
        batch: &mut Batch<'_>,
        place: usize,
        producer: &Producer,
        message: &Message,
        size: Size,
        report: Option<Report>,
    ) -> PublishError {
        if let Some(Err(refusal)) = report
            && error::may_be_the_fault_of_others(refusal)
            && let Some(smaller) = size.smaller(&self.0.config, message.body.len())
        {
            // It comes again in a smaller request, by itself in the end.
            self.0.sizes.at_most(&message.to, smaller);
            let reason = format!("kafka refused it together with others ({}), and gets it with fewer", refusal.code);
            return PublishError::deferred(reason, SOON);
        }
        // It did not fail itself: another message did, and this one would have come behind a gap.
        let gap = producer.client().fatal_error().is_some_and(|(code, _)| code == RDKafkaErrorCode::GaplessGuarantee);
        if (gap || producer.is_given_up())
            && report.is_some_and(|report| report.is_err_and(|refusal| error::is_about_the_producer(refusal.code)))
        {
            let reason = "another message was not taken, behind which this one would have left a gap";
            return PublishError::deferred(reason, SOON).unasked();
        }
        let (doubtful, worn_out) = match report {
            Some(Ok(())) => (false, false),
            Some(Err(refusal)) => (error::may_be_the_topic(refusal.code), error::ends_a_producer(refusal.code)),
            None => (true, true),
        };
        if doubtful {
            batch.doubtful.push(place);
        }
        if worn_out && !batch.worn_out.iter().any(|(_, known)| known.is(producer)) {
            batch.worn_out.push((size, producer.clone()));
        }
        self.result(producer, report).err().unwrap_or_else(PublishError::behind)
    }

    /// Puts off what had no answer from its topic, if Kafka is there.
    async fn put_off(&self, batch: &mut Batch<'_>, ends: &mut Round<'_>) {
        let messages = batch.messages;
        if !ends.nobody_is_away() {
            let is_answered = |result: &Option<Result<(), PublishError>>| match result {
                Some(Ok(())) => true,
                Some(Err(error)) => error.is_refusal(),
                None => false,
            };
            for (message, _) in messages.iter().zip(&batch.results).filter(|(_, result)| is_answered(result)) {
                ends.there(&message.to);
                self.part(message).into_iter().for_each(|part| ends.there(&part));
            }
        }
        let arrived = messages.iter().zip(&batch.results).filter(|(_, result)| matches!(result, Some(Ok(()))));
        let arrived: HashSet<&str> = arrived.map(|(message, _)| message.to.as_str()).collect();
        if batch.doubtful.is_empty() || (arrived.is_empty() && self.asked(ANSWER).await.is_err()) {
            return;
        }
        let doubtful = batch.doubtful.iter().map(|place| messages[*place].to.as_str());
        let in_part: HashSet<&str> = doubtful.filter(|topic| arrived.contains(topic)).collect();
        if !in_part.is_empty() {
            self.learn_partitions(in_part).await;
        }
        for place in std::mem::take(&mut batch.doubtful) {
            let message = &messages[place];
            let pause = match self.part(message) {
                _ if !arrived.contains(message.to.as_str()) => ends.away(&message.to),
                Some(part) => ends.away(&part),
                None => AGAIN,
            };
            if let Some(Err(error)) = batch.results[place].take() {
                let reason = format!("the topic {:?} is away, and kafka is not: {error}", message.to);
                batch.results[place] = Some(Err(PublishError::deferred(reason, pause)));
            }
        }
    }

    fn result(&self, producer: &Producer, report: Option<Report>) -> Result<(), PublishError> {
        let (code, at_once) = match report {
            Some(Ok(())) => return Ok(()),
            Some(Err(refusal)) => (refusal.code, refusal.at_once),
            None => return Err(PublishError::outage("kafka's client gave no report in time")),
        };
        let kind = error::kind(code);
        let mut reason = format!("{code}{}", error::advice(code));
        if kind == PublishErrorKind::Outage
            && let Some(trouble) = producer.trouble(self.longest())
        {
            reason = format!("{reason} ({trouble})");
        }
        let error = PublishError::new(kind, reason);
        Err(if at_once { error.unasked() } else { error })
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

impl Kafka {
    async fn publish_all(&self, messages: Vec<Message>, in_order: bool) -> Vec<Result<(), PublishError>> {
        let begun_at = Instant::now();
        let timeout = self.0.options.timeout();
        let (full_until, until) = match in_order {
            true => (begun_at + timeout / 2, begun_at + timeout),
            false => (begun_at + timeout, begun_at + self.longest()),
        };
        let mut ends = self.0.pauses.round();
        let (results, too_large_together) = (messages.iter().map(|_| None).collect(), HashSet::new());
        let (doubtful, worn_out) = (Vec::new(), Vec::new());
        let mut batch = Batch { messages: &messages, results, too_large_together, doubtful, worn_out };
        if in_order {
            let mut runs = runs_of(&messages);
            // Each time it is another topic of an aggregate, for which there is less time.
            while !runs.is_empty() && Instant::now() < until {
                runs = self.sent_in_order(&mut batch, runs, &mut ends, full_until, until).await;
            }
            for place in runs.into_iter().flatten() {
                let late = PublishError::deferred("kafka took the time of the whole batch for others of it", AGAIN);
                batch.results[place] = Some(Err(late.unasked()));
            }
        } else {
            batch.results = messages.iter().map(|message| self.not_sent(message, &mut ends).map(Err)).collect();
            let open = batch.results.iter().enumerate().filter(|(_, result)| result.is_none());
            let mut round: Vec<_> = open.map(|(place, _)| (place, self.0.sizes.of(&messages[place].to))).collect();
            while !round.is_empty() {
                round = self.sent(&mut batch, round, full_until, until).await;
            }
        }
        for (size, producer) in std::mem::take(&mut batch.worn_out) {
            self.retire(size, &producer);
            if in_order {
                producer.give_up();
            }
        }
        if let Some(taken) = batch.results.iter().position(|result| matches!(result, Some(Ok(())))) {
            self.producers().known_topic.get_or_insert_with(|| messages[taken].to.to_string());
        }
        self.put_off(&mut batch, &mut ends).await;
        batch.results.into_iter().map(|result| result.expect("each was sent or not")).collect()
    }
}

impl Producers {
    fn all(&mut self, gapless: bool) -> &mut [Option<Producer>; SIZES] {
        if gapless { &mut self.gapless } else { &mut self.by_size }
    }
}

/// Whether Kafka takes that for the name of a topic.
fn is_topic(name: &str) -> bool {
    let allowed = |sign: u8| sign.is_ascii_alphanumeric() || matches!(sign, b'.' | b'_' | b'-');
    (1..=LONGEST_NAME).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(allowed)
}

fn no_producer(error: KafkaError) -> PublishError {
    match error {
        KafkaError::Canceled => PublishError::outage("the connection to kafka was closed"),
        error => match Error::client(error) {
            Error::Client(error) => PublishError::outage(error),
            other => PublishError::outage(other),
        },
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
        let all = {
            let mut producers = self.producers();
            producers.closed = true;
            [std::mem::take(&mut producers.by_size), std::mem::take(&mut producers.gapless)]
        };
        let until = std::time::Instant::now() + CLOSING;
        let closing = tokio::task::spawn_blocking(move || {
            for producer in all.into_iter().flatten().flatten() {
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

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;

    #[test]
    fn names_of_topics_are_as_kafka_has_them() {
        for good in ["orders", "shop.Order_1-x", "...", &"x".repeat(LONGEST_NAME)] {
            assert!(is_topic(good), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "größe", "a\0", &"x".repeat(LONGEST_NAME + 1)] {
            assert!(!is_topic(bad), "{bad:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_producer_that_had_no_answer_is_replaced_and_no_other() {
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic("orders", 1, 1).unwrap();
        let options = KafkaOptions::new(mock.bootstrap_servers()).delivery_timeout(Duration::from_secs(3));
        let kafka = Kafka::connect(options).await.unwrap();
        let first = kafka.producer(Size::default()).unwrap();
        let message = || Message {
            id: posthaste_core::EventId::generate(),
            to: "orders".into(),
            key: None,
            content_type: "text/plain".into(),
            headers: crate::Headers::default(),
            body: "x".into(),
        };
        // Once it has found its broker, the first one has its answer at once, however busy the machine is.
        kafka.publish(vec![message()]).await.remove(0).unwrap();
        let mut errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT; 1_000];
        errors[0] = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
        mock.request_errors(RDKafkaApiKey::Produce, &errors);
        let result = kafka.publish(vec![message()]).await.remove(0);
        assert_eq!(result.unwrap_err().kind(), PublishErrorKind::Deferred);
        let producers = kafka.producers();
        assert!(producers.by_size[0].as_ref().is_some_and(|current| current.is(&first)));
        assert!(producers.by_size[1..].iter().all(Option::is_none));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_partition_that_is_away_puts_off_its_own_keys_and_is_tried_with_a_few() {
        let mock = MockCluster::new(2).unwrap();
        mock.create_topic("orders", 4, 1).unwrap();
        // A partition without any leader makes their mock fall over.
        (0..4).for_each(|id| mock.partition_leader("orders", id, Some(if id == 1 { 2 } else { 1 })).unwrap());
        let options = KafkaOptions::new(mock.bootstrap_servers()).delivery_timeout(Duration::from_secs(1));
        let kafka = Kafka::connect(options).await.unwrap();
        let message = |key: usize| Message {
            id: posthaste_core::EventId::generate(),
            to: "orders".into(),
            key: Some(key.to_string().into()),
            content_type: "text/plain".into(),
            headers: crate::Headers::default(),
            body: "x".into(),
        };
        let batch = |keys: std::ops::Range<usize>| keys.map(message).collect::<Vec<_>>();
        // On a busy machine its brokers are not found in the first second.
        let begun_at = Instant::now();
        while kafka.publish(batch(0..200)).await.iter().any(Result::is_err) {
            assert!(begun_at.elapsed() < Duration::from_secs(60), "they are not found");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        kafka.0.partitions.learn("orders".to_owned(), 4);
        let is_away = |key: usize| kafka.0.partitions.of("orders", &key.to_string()) == Some(1);
        assert!((0..200).any(is_away), "no key leads there");

        mock.broker_down(2).unwrap();
        let begun_at = Instant::now();
        let put_off = loop {
            // The producer learns of it when it asks for the leaders next. On a busy machine others may be late as well, for once.
            let results = kafka.publish(batch(0..200)).await;
            assert!(begun_at.elapsed() < Duration::from_secs(60), "{results:?}");
            let is_alone = results.iter().enumerate().all(|(key, result)| result.is_ok() != is_away(key));
            match results.into_iter().find_map(Result::err) {
                Some(error) if is_alone && !error.is_unasked() => break error,
                Some(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                None => {}
            }
        };
        assert_eq!((put_off.kind(), put_off.is_unasked()), (PublishErrorKind::Deferred, false), "kafka has spoken");
        // Keys that were never tried are known to lead there, and nobody waits for them.
        let waiting = kafka.publish((200..600).filter(|key| is_away(*key)).map(message).collect()).await;
        assert!(waiting.iter().all(|result| result.as_ref().is_err_and(PublishError::is_unasked)), "{waiting:?}");

        let (asked, tried) = loop {
            let tried = kafka.publish((200..600).filter(|key| is_away(*key)).map(message).collect()).await;
            let asked = tried.iter().filter(|result| result.as_ref().is_err_and(|error| !error.is_unasked())).count();
            if asked > 0 {
                break (asked, tried);
            }
            assert!(begun_at.elapsed() < Duration::from_secs(90), "{tried:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert_eq!((asked, tried.iter().filter(|result| result.is_ok()).count()), (10, 0), "{tried:?}");

        mock.broker_up(2).unwrap();
        while kafka.publish(batch(0..200)).await.iter().any(Result::is_err) {
            assert!(begun_at.elapsed() < Duration::from_secs(120), "it is back");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
