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
//! | repeats | the header `Nats-Msg-Id` is the id of the event and the subject; the stream drops a repeat within its `duplicate_window` (two minutes, unless the stream says otherwise) and acknowledges it, which the counter `posthaste_repeats_dropped_total` tells (feature `metrics`). What comes again later is there twice |
//! | order | messages of one batch are stored in their order, whatever their subjects are. In an outbox with order ([`Ordered`](posthaste_core::Ordered)), and without a [key](Destination::key) of its own, nothing of an aggregate is stored behind an event that is not, whatever becomes of the connection, the server or the events in between: see below |
//! | at once | a whole batch, and several of them up to [`max_in_flight`](NatsOptions::max_in_flight) messages |
//!
//! # In order, with many on their way
//!
//! Where events are delivered in order, those of one aggregate go together, each with the condition (`Nats-Expected-Last-Msg-Id`) that
//! the one before it is the last that the stream has stored. So the server itself refuses what comes behind one that it has not
//! stored. If somebody else's message got in between, what is behind it goes once more, when the one before it is acknowledged; the
//! fewer get through at once, the fewer are sent at once. So a stream that is busy with others stores one event of an aggregate in a
//! round trip at worst, and one that is not as many as are in the batch.
//!
//! Streams are not made here: they are the business of who runs the server. A subject that no stream listens to is an error
//! that says so. So that no other stream takes the events, name the one that shall:
//! [`expected_stream`](NatsOptions::expected_stream).
//!
//! A header whose name begins with `Nats-` is an instruction to the server, so none is taken from an event. Nor are subjects that
//! begin with `$JS`, `$SYS` or `_INBOX`: what is sent there is an order to the server or an answer to somebody.
//!
//! | what happens | kind |
//! |---|---|
//! | no connection, or lost; a login that is refused; JetStream is not there, has no leader or too much to do | outage. To [`check`](Publisher::check) and [`Nats::connect`] a login that is refused is permanent |
//! | the stream for the subject has no leader | put off: no attempt is used up, and the subject is left alone for a second, then longer each time, up to 30 s; then ten messages try it, and others wait for how that goes |
//! | no stream for the subject, or no leader where this user may not ask which (`$JS.API.STREAM.NAMES`); another stream than expected; not permitted to publish there; the stream is full; it does not answer while JetStream does | retryable |
//! | too large for the server or the stream; a subject or a header that NATS cannot carry | permanent |

mod connection;
mod error;
mod headers;
mod inbox;
mod options;
mod sending;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::ServerAddr;
use futures_util::future::join_all;
use posthaste_core::listener::OfOneKey;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::address;
use crate::breaker::Breaker;
use crate::connection::Slot;
use crate::destination::Destination;
use crate::durability::Concern;
use crate::envelope::Binding;
use crate::pauses::Pauses;
use crate::publisher::{Message, PublishError, Publisher, Results, runs_of};

use connection::{CHECK, Connection};
use error::{Trouble, no_stream, nobody_to_ask};
use sending::{Preparing, Watch, is_subject, no_subject, of_its_key_before};

pub use options::NatsOptions;

/// As many parts of a batch as have time, if each waits as long as it may.
const PARTS: u32 = 4;

/// How much longer than its parts a batch may take as a whole.
const LATE: Duration = Duration::from_secs(5);

/// How long what a batch had no time for is put off.
const SOON: Duration = Duration::from_secs(1);

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
    /// Subjects of streams that have no leader, or do not answer.
    pauses: Pauses,
    /// How many messages of one key are sent at once, where they have to be in order.
    run: AtomicUsize,
}

/// Why a message is not stored.
enum Missed {
    /// It was to be right behind another one, which others have got behind first.
    NotBehind,
    For(PublishError),
}

/// How often in a row a subject may have no answer before that is a failure of who goes there: a stream may be slow for minutes, and
/// one that is told not to acknowledge is silent for ever.
const LONGEST_SILENCE: u32 = 10;

/// At most so many messages of one key are sent at once, where they have to be in order.
const LONGEST_RUN: usize = 1024;

impl Nats {
    /// Connects, and asks whether JetStream is there.
    ///
    /// # Errors
    /// When an option is wrong; and unless they say [lazy](NatsOptions::lazy), when a file that they name cannot be used, or the server
    /// is away, refuses the login, or has no JetStream.
    pub async fn connect(options: NatsOptions) -> Result<Self, PublishError> {
        let servers = options.servers().map_err(PublishError::permanent)?;
        let nats = Self(Arc::new(Inner {
            breaker: Breaker::new(&options.name),
            // More than a semaphore can count is no limit.
            in_flight: Semaphore::new(options.max_in_flight.clamp(1, u32::MAX as usize)),
            connection: Slot::new(address::shown(&options.url)),
            pauses: Pauses::default(),
            run: AtomicUsize::new(LONGEST_RUN),
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
        // One more part that has begun in time, and what is asked behind it.
        let limit = self.longest() + self.0.options.ack_timeout + CHECK * 2 + LATE;
        Destination::new(Arc::new(self.clone()), self.0.breaker.clone(), template).time_limit(limit)
    }

    /// Until when parts of a batch are begun.
    fn longest(&self) -> Duration {
        let Inner { options, servers, .. } = &*self.0;
        let servers = u32::try_from(servers.len()).unwrap_or(u32::MAX);
        options.connect_timeout.saturating_mul(servers) + options.ack_timeout * PARTS
    }

    /// Asks how the stream keeps what it acknowledges that takes the subject, in which `x` stands for what events will say.
    ///
    /// # Errors
    /// When the server is away, or refuses to say.
    pub async fn concerns(&self, subject: &str) -> Result<Vec<Concern>, PublishError> {
        let connection = self.connection().await?;
        let jetstream = &connection.jetstream;
        let silent = |why: &dyn fmt::Display| {
            PublishError::retryable(format!("JetStream does not say which stream takes the subject {subject:?}: {why}"))
        };
        match connection.has_stream(&self.0.options, subject).await? {
            Some(true) => {}
            Some(false) => {
                let what = format!("no stream takes the subject {subject:?}");
                return Ok(vec![Concern::mistake(what, "add a stream for it: nats stream add")]);
            }
            None => return Err(silent(&"this user may not ask it (publish to $JS.API.STREAM.NAMES)")),
        }
        let stream = jetstream.stream_by_subject(subject).await.map_err(|error| silent(&error))?;
        let refused = |error| PublishError::retryable(format!("the stream {stream:?} does not say how it is: {error}"));
        let found = jetstream.get_stream(&stream).await.map_err(refused)?;
        let config = &found.cached_info().config;
        let mut concerns = Vec::new();
        if config.storage == async_nats::jetstream::stream::StorageType::Memory {
            concerns.push(Concern::mistake(
                format!("the stream {stream:?} is kept in memory: what was acknowledged is lost with its servers"),
                "make it anew with --storage file",
            ));
        } else if config.num_replicas < 2 {
            concerns.push(Concern::choice(
                format!(
                    "the stream {stream:?} has no replica, and JetStream acknowledges before it is on disk: a power cut loses \
                     what was acknowledged in the last two minutes, unless sync_interval is shorter"
                ),
                "set sync_interval: always in the jetstream block of the server, or give the stream 3 replicas",
            ));
        }
        Ok(concerns)
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

    /// Sends so many messages as may be in flight, and waits for their acknowledgements. Each that is stored is told of at once. In
    /// order, each is stored right behind the one before it, if that has the same key.
    async fn send(
        &self,
        connection: &Arc<Connection>,
        messages: &[&Message],
        in_order: bool,
        stored: &(impl Fn(&[usize]) + Sync),
    ) -> Vec<Result<(), Missed>> {
        let options = &self.0.options;
        let turn = if in_order { Some(connection.turn.lock().await) } else { None };
        let (mut news, mut ends) = (Watch::new(connection, options.ack_timeout), self.0.pauses.round());
        // All of them are prepared before the first is handed over: so many go over the connection together.
        let (mut prepared, mut preparing) = (Vec::with_capacity(messages.len()), Preparing::default());
        let is_any_away = !ends.nobody_is_away();
        for (place, message) in messages.iter().enumerate() {
            let before = in_order.then(|| of_its_key_before(messages, place)).flatten();
            if before.is_some() && prepared.last().is_some_and(Result::is_err) {
                prepared.push(Err(Trouble::NotSent));
                continue;
            }
            let left = if is_any_away { ends.enter(&[&message.to]).err() } else { None };
            let put_off = left.map(|left| Err(PublishError::deferred(left_alone(&message.to), left)));
            let publish =
                put_off.unwrap_or_else(|| preparing.prepared(message, options.expected_stream.as_deref(), before));
            // Nobody has seen it.
            prepared.push(publish.map_err(|error| Trouble::Told(error.unasked())));
        }
        let answers = news.exchanged(connection, turn, messages, prepared, stored).await;
        self.tell_of_repeats(answers.iter().filter(|answer| matches!(answer, Ok(true))).count() as u64);
        if ends.nobody_is_away() && answers.iter().all(Result::is_ok) {
            return answers.into_iter().map(|_| Ok(())).collect();
        }
        let results: Vec<Result<(), Trouble>> = answers.into_iter().map(|answer| answer.map(drop)).collect();
        if !ends.nobody_is_away() {
            let is_answered = |result: &Result<(), Trouble>| match result {
                Ok(()) => true,
                Err(Trouble::Told(error)) => error.is_refusal(),
                Err(Trouble::NotBehind) => true,
                Err(Trouble::Silence | Trouble::Nobody | Trouble::NotSent) => false,
            };
            let answered = messages.iter().zip(&results).filter(|(_, result)| is_answered(result));
            answered.for_each(|(message, _)| ends.there(&message.to));
        }
        let there = if news.is_silent() { self.answers(connection).await } else { Ok(()) };
        let nobody = messages.iter().zip(&results).filter(|(_, result)| matches!(result, Err(Trouble::Nobody)));
        let known = self.streams(connection, nobody.map(|(message, _)| message.to.as_str())).await;
        let mut explained = |message: &Message, trouble| match (trouble, &there) {
            (Trouble::Told(error), _) => error,
            (Trouble::NotBehind | Trouble::NotSent, _) => PublishError::behind(),
            (Trouble::Nobody, _) => match known.get(message.to.as_str()) {
                Some(Ok(Some(true))) => PublishError::deferred(no_leader(&message.to), ends.away(&message.to)),
                Some(Err(error)) => PublishError::outage(error.to_string()),
                Some(Ok(known)) => {
                    ends.there(&message.to);
                    if known.is_some() { no_stream(&message.to) } else { nobody_to_ask(&message.to) }
                }
                None => no_stream(&message.to),
            },
            (Trouble::Silence, Err(error)) => PublishError::outage(error.to_string()),
            (Trouble::Silence, Ok(())) => {
                let reason = format!(
                    "nobody acknowledged a message on {:?} within {:?}, while JetStream answers; is there a stream for it, and \
                     does it acknowledge?",
                    message.to, options.ack_timeout
                );
                let pause = ends.away(&message.to);
                match ends.times_away(&message.to) > LONGEST_SILENCE {
                    true => PublishError::retryable(reason),
                    false => PublishError::deferred(reason, pause),
                }
            }
        };
        let missed = |(message, result): (&&Message, Result<(), Trouble>)| match result {
            Err(Trouble::NotBehind) => Err(Missed::NotBehind),
            result => result.map_err(|trouble| Missed::For(explained(message, trouble))),
        };
        messages.iter().zip(results).map(missed).collect()
    }

    /// Tells of messages that their stream had already: somebody lost an acknowledgement.
    fn tell_of_repeats(&self, repeats: u64) {
        if repeats > 0 {
            let destination = self.name();
            debug!(destination, repeats, "the stream had some messages already, and has dropped the repeats");
            #[cfg(feature = "metrics")]
            metrics::counter!("posthaste_repeats_dropped_total", "destination" => destination.to_owned())
                .increment(repeats);
        }
    }

    /// For which of the subjects there is a stream, although nobody listens to them; nothing where we may not ask.
    async fn streams<'a>(
        &self,
        connection: &Connection,
        subjects: impl Iterator<Item = &'a str>,
    ) -> HashMap<&'a str, Result<Option<bool>, PublishError>> {
        let subjects: HashSet<&str> = subjects.collect();
        let ask = async |subject| (subject, connection.has_stream(&self.0.options, subject).await);
        join_all(subjects.into_iter().map(ask)).await.into_iter().collect()
    }

    /// Sends a batch, and tells of each message that is stored by its place, as soon as it is known.
    async fn publish_telling(
        &self,
        messages: &[Message],
        stored: &(impl Fn(&[usize]) + Sync),
    ) -> Vec<Result<(), PublishError>> {
        let _under_way = self.0.connection.under_way().await;
        let until = Instant::now() + self.longest();
        let mut results: Vec<Result<(), PublishError>> = Vec::with_capacity(messages.len());
        for part in messages.chunks(self.0.options.max_in_flight.clamp(1, u32::MAX as usize)) {
            // What comes behind an outage would only wait for another.
            if let Some(away) =
                results.iter().filter_map(|result| result.as_ref().err()).find(|error| error.is_outage())
            {
                let behind: Vec<_> = away.of_each(part.len()).collect();
                results.extend(behind);
                continue;
            }
            if !results.is_empty() && Instant::now() >= until {
                let late =
                    || PublishError::deferred("NATS took the time of the whole batch for others of it", SOON).unasked();
                results.extend(part.iter().map(|_| Err(late())));
                continue;
            }
            let places = u32::try_from(part.len()).expect("no more than there are places");
            let _places = self.0.in_flight.acquire_many(places).await.expect("it is never closed");
            match self.connection().await.map_err(PublishError::into_outage) {
                Ok(connection) => {
                    let before = results.len();
                    let part: Vec<_> = part.iter().collect();
                    let placed = |places: &[usize]| match before {
                        0 => stored(places),
                        _ => stored(&places.iter().map(|place| before + place).collect::<Vec<_>>()),
                    };
                    let sent = self.send(&connection, &part, false, &placed).await;
                    results.extend(sent.into_iter().map(|result| result.map_err(Missed::into_error)));
                }
                Err(error) => results.extend(error.of_each(part.len())),
            }
        }
        results
    }

    /// Sends a batch so that of each key nothing is stored behind a message that is not, and tells of those that are.
    ///
    /// All of a key go at once, each to be stored right behind the one before it. Where that fails because others were quicker, the
    /// first that is left goes without a condition: the one before it is stored by then.
    async fn publish_in_order(
        &self,
        messages: &[Message],
        stored: &(impl Fn(&[usize]) + Sync),
    ) -> Vec<Result<(), PublishError>> {
        let _under_way = self.0.connection.under_way().await;
        let until = Instant::now() + self.longest();
        let most = self.0.options.max_in_flight.clamp(1, u32::MAX as usize);
        let mut results: Vec<Option<Result<(), PublishError>>> = messages.iter().map(|_| None).collect();
        let mut runs = runs_of(messages);
        let mut first = true;
        while !runs.is_empty() && (std::mem::take(&mut first) || Instant::now() < until) {
            let length = self.0.run.load(Ordering::Relaxed);
            let places: Vec<usize> = runs.iter().flat_map(|run| run.iter().take(length)).take(most).copied().collect();
            let part: Vec<&Message> = places.iter().map(|place| &messages[*place]).collect();
            let in_flight = u32::try_from(part.len()).expect("no more than there are places");
            let _in_flight = self.0.in_flight.acquire_many(in_flight).await.expect("it is never closed");
            let connection = match self.connection().await.map_err(PublishError::into_outage) {
                Ok(connection) => connection,
                Err(error) => {
                    let left = results.iter_mut().filter(|result| result.is_none());
                    left.zip(error.of_each(messages.len())).for_each(|(left, error)| *left = Some(error));
                    break;
                }
            };
            let placed = |sent: &[usize]| stored(&sent.iter().map(|at| places[*at]).collect::<Vec<_>>());
            let answers = self.send(&connection, &part, true, &placed).await;
            let mut answers = answers.into_iter();
            let (mut left, mut shortest, mut away) = (places.len(), None, false);
            for run in &mut runs {
                let sent = run.len().min(length).min(left);
                left -= sent;
                let (mut through, mut goes_on) = (0, true);
                for answer in answers.by_ref().take(sent) {
                    match answer {
                        // What is said of those behind one that is not stored is of no account.
                        _ if !goes_on => {}
                        Ok(()) => {
                            through += 1;
                            run.pop_front().into_iter().for_each(|place| results[place] = Some(Ok(())));
                        }
                        Err(Missed::NotBehind) => {
                            goes_on = false;
                            shortest = Some(shortest.map_or(through, |shortest: usize| shortest.min(through)));
                        }
                        Err(Missed::For(error)) => {
                            goes_on = false;
                            away |= error.is_outage();
                            let behind: Vec<_> = match error.is_outage() {
                                true => error.of_each(run.len()).skip(1).collect(),
                                false => Vec::new(),
                            };
                            let mut behind = behind.into_iter();
                            if let Some(place) = run.pop_front() {
                                results[place] = Some(Err(error));
                            }
                            for place in run.drain(..) {
                                results[place] = Some(behind.next().unwrap_or_else(|| Err(PublishError::behind())));
                            }
                        }
                    }
                }
            }
            runs.retain(|run| !run.is_empty());
            let next = shortest.map_or(length.saturating_mul(2), |through| through + 1);
            self.0.run.store(next.clamp(1, LONGEST_RUN), Ordering::Relaxed);
            if away {
                // What comes behind an outage would only wait for another.
                let lost = PublishError::outage("NATS is away, which others of this batch have found");
                let left = results.iter_mut().filter(|result| result.is_none());
                left.zip(lost.of_each(messages.len())).for_each(|(left, error)| *left = Some(error));
                break;
            }
        }
        let late = || PublishError::deferred("NATS took the time of the whole batch for others of it", SOON).unasked();
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(late()))).collect()
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

    const OF_ONE_KEY: OfOneKey = OfOneKey::Prefix;

    fn name(&self) -> &str {
        &self.0.options.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.publish_telling(&messages, &|_| {}).await
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let stored = |places: &[usize]| results.note_some(places.iter().map(|place| (*place, Ok(()))));
        let answers = match results.is_in_order() {
            true => self.publish_in_order(&messages, &stored).await,
            false => self.publish_telling(&messages, &stored).await,
        };
        match answers.iter().all(Result::is_ok) {
            true => results.acknowledge_all(),
            false => results.note_all(answers),
        }
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        if is_subject(to) { Ok(()) } else { Err(no_subject(to)) }
    }

    /// A login that is refused is permanent here: waiting would not help.
    async fn check(&self) -> Result<(), PublishError> {
        self.connection().await?.check(&self.0.options).await
    }

    async fn close(&self) {
        if let Some(connection) = self.0.connection.close().await {
            timeout(CLOSE, connection.jetstream.client().drain()).await.ok();
        }
    }
}

impl Missed {
    fn into_error(self) -> PublishError {
        match self {
            Self::NotBehind => PublishError::behind(),
            Self::For(error) => error,
        }
    }
}

fn left_alone(subject: &str) -> String {
    format!("the subject {subject:?} had no answer from its stream, and is left alone for a while")
}

fn no_leader(subject: &str) -> String {
    format!("the stream for the subject {subject:?} is there, but has no leader now")
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
