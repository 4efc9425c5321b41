//! Where events of a route go: a publisher, an address, an envelope.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::listener::{
    AnyListener, BatchListener, Delivery, Failure, FailureKind, OfOneKey, Outcome, Verdict, batch,
};
use posthaste_core::{Event, RetryPolicy};
use tokio::time::{Instant, timeout_at};

use crate::breaker::{Breaker, BreakerState, Pass};
use crate::envelope::{Binding, Envelope};
use crate::message::Text;
use crate::publisher::{Message, PublishError, PublishErrorKind, Publisher, Results};
use crate::template::{Template, TemplateError};

/// How long a message waits that was put off without a word for how long.
const DEFERRED: Duration = Duration::from_secs(1);

/// How long a batch may take, unless it is said: as long as a listener by default.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How long a probe may have taken for others to follow it in the same call.
const QUICK: Duration = Duration::from_secs(1);

/// Longer than any limit that is meant, and short enough for moments in the future to be expressed.
pub(crate) const LONGEST_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// How much later the time limit of listeners strikes, which takes everything for a failure. So it never does.
const LATER: Duration = Duration::from_secs(10);

/// Where the events of a route go: over which connection, to which address, in which envelope.
///
/// It is a listener that takes batches: `listen("Order", "*", kafka.topic("orders"))`. What is wrong with its templates, its
/// envelope or its address is said when the outbox is started. An event that lacks what a template needs, or whose words make no address,
/// becomes DEAD as unroutable, which uses up no attempt.
pub struct Destination<P> {
    publisher: Arc<P>,
    breaker: Breaker,
    to: Result<Template, TemplateError>,
    key: Option<Result<Template, TemplateError>>,
    envelope: Envelope,
    max_batch: usize,
    time_limit: Duration,
    retry: Option<RetryPolicy>,
}

impl<P: Publisher> Destination<P> {
    /// Events go to the address that the template makes of each, over that connection and behind its breaker.
    pub fn new(publisher: Arc<P>, breaker: Breaker, to: &str) -> Self {
        Self {
            publisher,
            breaker,
            to: to.parse(),
            key: None,
            envelope: Envelope::default(),
            max_batch: P::MAX_BATCH,
            time_limit: TIME_LIMIT,
            retry: None,
        }
    }

    /// Sets how events look on their way. Default: [`Envelope::Plain`].
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = envelope;
        self
    }

    /// Sets what has to stay in order, as a template. Default: the aggregate id, if the event has one.
    #[must_use]
    pub fn key(mut self, template: &str) -> Self {
        self.key = Some(template.parse());
        self
    }

    /// Sets the most events to send at once.
    #[must_use]
    pub fn max_batch(mut self, events: usize) -> Self {
        self.max_batch = events.max(1);
        self
    }

    /// Sets how long one batch may take. Default 60 s, or what suits the protocol.
    ///
    /// What has no answer by then is given back and uses up no attempt. If nothing of the batch has one, it is an outage.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit.min(LONGEST_LIMIT);
        self
    }

    /// Sets when to try again what was refused.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// The same destination through a publisher that is put around its own: one that counts, records, or signs.
    ///
    /// What it makes of [outages](PublishErrorKind::Outage) is seen by the breaker, which stays the one of the connection.
    #[must_use]
    pub fn through<Q: Publisher>(self, around: impl FnOnce(Arc<P>) -> Q) -> Destination<Q> {
        let Self { publisher, breaker, to, key, envelope, max_batch, time_limit, retry } = self;
        let publisher = Arc::new(around(publisher));
        Destination { publisher, breaker, to, key, envelope, max_batch, time_limit, retry }
    }

    /// The breaker of its connection, which also says whether the destination can be reached.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }
}

impl<P: Publisher> From<Destination<P>> for AnyListener {
    fn from(destination: Destination<P>) -> Self {
        let Destination { publisher, breaker, to, key, envelope, max_batch, time_limit, retry } = destination;
        let (to, key) = match (to, key.transpose()) {
            (Ok(to), Ok(key)) => (to, key),
            (Err(error), _) | (_, Err(error)) => return AnyListener::mistaken(error),
        };
        let example = (!to.begins_with_place()).then(|| to.example());
        if let Some(Err(error)) = example.map(|example| publisher.check_address(&example)) {
            return AnyListener::mistaken(error);
        }
        if let Err(error) = envelope.check_for(P::BINDING) {
            return AnyListener::mistaken(error);
        }
        let gate = breaker.clone();
        gate.tell();
        // A key of the destination's own may differ within an aggregate: then nothing would keep its events in order.
        let of_one_key = if key.is_none() { P::OF_ONE_KEY } else { OfOneKey::One };
        let keeps_order = of_one_key == OfOneKey::Prefix;
        let fixed = to.fixed().map(Arc::from);
        let mut listener = batch(Sending { publisher, breaker, to, fixed, key, envelope, time_limit, keeps_order })
            .with_max_batch(max_batch)
            .with_of_one_key(of_one_key)
            .with_time_limit(time_limit + LATER)
            .with_gate(gate);
        if let Some(policy) = retry {
            listener = listener.with_retry(policy);
        }
        listener.into()
    }
}

impl<P> fmt::Debug for Destination<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Destination");
        debug.field("to", &self.to).field("key", &self.key).field("envelope", &self.envelope);
        debug.field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

/// A destination whose templates are right.
struct Sending<P> {
    publisher: Arc<P>,
    breaker: Breaker,
    to: Template,
    /// The address, if it is the same for every event.
    fixed: Option<Arc<str>>,
    key: Option<Template>,
    envelope: Envelope,
    time_limit: Duration,
    /// Several events of an aggregate may be in one batch although they are delivered in order.
    keeps_order: bool,
}

impl<P: Publisher> BatchListener for Sending<P> {
    async fn on_events(&self, events: &[Delivery]) -> Vec<Verdict> {
        let in_order = self.keeps_order && events.iter().any(|event| event.seq().is_some());
        let (mut messages, mut not_sent) = (Vec::with_capacity(events.len()), Vec::new());
        let mut not_taken = NotTaken::default();
        for (place, event) in events.iter().enumerate() {
            if in_order && not_taken.holds_up(aggregate(event)) {
                not_sent.push((place, later(Duration::ZERO)));
                continue;
            }
            match self.message(event) {
                Ok(message) => messages.push(message),
                Err(failure) => {
                    not_taken.note(aggregate(event));
                    not_sent.push((place, Err(failure)));
                }
            }
        }
        let answers = self.send(messages, in_order).await;
        if not_sent.is_empty() {
            return answers;
        }
        let (mut answers, mut not_sent) = (answers.into_iter(), not_sent.into_iter().peekable());
        let verdict = |place| match not_sent.next_if(|(at, _)| *at == place) {
            Some((_, verdict)) => verdict,
            None => answers.next().expect("one for each message"),
        };
        (0..events.len()).map(verdict).collect()
    }
}

impl<P: Publisher> Sending<P> {
    fn message(&self, event: &Delivery) -> Result<Message, Failure> {
        let unroutable = |lack| Failure::new(FailureKind::Unroutable, lack);
        let to = match &self.fixed {
            Some(to) => Text::from(Arc::clone(to)),
            None => {
                let to = self.to.address(P::PLACES, event);
                let to = to.map_err(|error| Failure::new(FailureKind::Unroutable, error))?;
                // Words of an event may be none of an address, which is known before anybody is asked. Of a URL more is
                // asked than its words, and each time.
                if P::BINDING != Binding::Http {
                    let checked = self.publisher.check_address(&to);
                    checked.map_err(|error| Failure::new(FailureKind::Unroutable, error))?;
                }
                to.into()
            }
        };
        let key = match &self.key {
            Some(key) => Some(key.render(event).map_err(unroutable)?.into()),
            None => Text::aggregate_id(event),
        };
        let wrapped =
            self.envelope.wrap(P::BINDING, event).map_err(|lack| Failure::new(FailureKind::Unroutable, lack))?;
        let (id, content_type, headers) = (event.id().clone(), wrapped.content_type, wrapped.headers);
        Ok(Message { id, to, key, content_type, headers, body: wrapped.body })
    }

    /// Sends the messages, as far as the breaker lets them, and gives a verdict for each.
    async fn send(&self, mut messages: Vec<Message>, in_order: bool) -> Vec<Verdict> {
        if messages.is_empty() {
            return Vec::new();
        }
        let Some(pass) = self.breaker.enter() else {
            return self.breaker.put_off(messages.len()).into_iter().map(later).collect();
        };
        let (behind, begun) = (messages.split_off(pass.most().min(messages.len())), Instant::now());
        let keys: Vec<_> = match in_order && !behind.is_empty() {
            true => messages.iter().map(|message| message.key.clone()).collect(),
            false => Vec::new(),
        };
        let mut verdicts = self.sent(pass, messages, in_order).await;
        if behind.is_empty() {
            return verdicts;
        }
        let mut not_taken = NotTaken::default();
        for (key, _) in keys.iter().zip(&verdicts).filter(|(_, verdict)| !matches!(verdict, Ok(Outcome::Done))) {
            not_taken.note(key.as_deref());
        }
        // Those behind a probe follow it at once if it has arrived, and in time: they share its time limit.
        let arrived = self.breaker.state() == BreakerState::Closed && begun.elapsed() < QUICK;
        match arrived.then(|| self.breaker.enter()).flatten() {
            Some(pass) => {
                let held_up: Vec<bool> =
                    behind.iter().map(|message| not_taken.holds_up(message.key.as_deref())).collect();
                let mut kept = held_up.iter();
                let go_on = behind.into_iter().filter(|_| !kept.next().is_some_and(|held_up| *held_up)).collect();
                let mut answers = self.sent(pass, go_on, in_order).await.into_iter();
                let answer = |held_up| if held_up { Some(later(Duration::ZERO)) } else { answers.next() };
                verdicts.extend(held_up.into_iter().map(answer).map(|verdict| verdict.expect("one for each message")));
            }
            None => verdicts.extend(self.breaker.put_off(behind.len()).into_iter().map(later)),
        }
        verdicts
    }

    async fn sent(&self, pass: Pass, messages: Vec<Message>, in_order: bool) -> Vec<Verdict> {
        let results = Results::new(messages.len(), Instant::now() + self.time_limit);
        let results = if in_order { results.in_order() } else { results };
        let in_time = timeout_at(results.until(), self.publisher.publish_into(messages, &results)).await.is_ok();
        if results.messages() > 0 && results.are_all_acknowledged() {
            pass.succeeded();
            return (0..results.messages()).map(|_| Ok(Outcome::Done)).collect();
        }
        self.judged(pass, self.complete(results.into_noted(), in_time))
    }

    /// A result for each message, also for those that have none.
    fn complete(&self, noted: Vec<Option<Result<(), PublishError>>>, in_time: bool) -> Vec<Result<(), PublishError>> {
        let (name, limit, sent) = (self.publisher.name(), self.time_limit, noted.len());
        let known = noted.iter().flatten().count();
        let is_there = noted.iter().flatten().any(shows_life);
        let unknown = || {
            if in_time {
                PublishError::retryable(format!("{name} gave {known} results for {sent} messages"))
            } else if is_there {
                PublishError::deferred(format!("{name} has answered others, but not this within {limit:?}"), DEFERRED)
            } else {
                PublishError::outage(format!("no answer from {name} within {limit:?}"))
            }
        };
        noted.into_iter().map(|result| result.unwrap_or_else(|| Err(unknown()))).collect()
    }

    /// What the results make of the events and of the breaker.
    fn judged(&self, pass: Pass, results: Vec<Result<(), PublishError>>) -> Vec<Verdict> {
        let is_outage = |error: &&PublishError| error.kind() == PublishErrorKind::Outage;
        let errors = || results.iter().filter_map(|result| result.as_ref().err());
        match errors().find(is_outage) {
            Some(error) => pass.failed(error.pause(), error),
            None if results.iter().any(shows_life) => pass.succeeded(),
            // Nobody was asked.
            None => drop(pass),
        }
        let mut pauses = self.breaker.put_off(errors().filter(is_outage).count()).into_iter();
        let mut verdict = |error: PublishError| {
            let kind = match error.kind() {
                PublishErrorKind::Outage => {
                    // None if the destination was back meanwhile.
                    let pause = pauses.next().filter(|pause| !pause.is_zero());
                    return later(pause.unwrap_or(DEFERRED));
                }
                PublishErrorKind::Deferred => return later(error.pause().unwrap_or(DEFERRED)),
                PublishErrorKind::Retryable => FailureKind::Retryable,
                PublishErrorKind::Permanent => FailureKind::Permanent,
            };
            let asked_for = error.pause();
            let failure = Failure::new(kind, error.into_source());
            Err(match asked_for {
                Some(pause) => failure.retry_not_before(pause),
                None => failure,
            })
        };
        results.into_iter().map(|result| result.map_or_else(&mut verdict, |()| Ok(Outcome::Done))).collect()
    }
}

/// Keys of which an event was not taken, so that none behind it may be sent.
struct NotTaken<K>(HashSet<K>);

impl<K> Default for NotTaken<K> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<K: Eq + Hash> NotTaken<K> {
    fn note(&mut self, key: Option<K>) {
        self.0.extend(key);
    }

    fn holds_up(&self, key: Option<K>) -> bool {
        key.is_some_and(|key| self.0.contains(&key))
    }
}

/// What events are in order of: ids of aggregates are unique within their type only.
fn aggregate(event: &Event) -> Option<(&str, &str)> {
    Some((event.aggregate_type(), event.aggregate_id()?))
}

fn later(pause: Duration) -> Verdict {
    Ok(Outcome::RetryAfter(pause))
}

/// Whether a result is of somebody who is there: what was refused or put off was so by them.
fn shows_life(result: &Result<(), PublishError>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => !error.is_unasked() && error.kind() != PublishErrorKind::Outage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_aggregates_with_the_same_id_only_that_of_the_same_type_is_held_up() {
        let event = |aggregate_type| Event::builder("E").aggregate(aggregate_type, 42).json_text("{}").build().unwrap();
        let ([order, bill], without) = (["Order", "Bill"].map(event), Event::builder("E").json_text("{}").build());
        let mut not_taken = NotTaken::default();
        not_taken.note(aggregate(&order));
        not_taken.note(aggregate(without.as_ref().unwrap()));
        assert!(not_taken.holds_up(aggregate(&order)));
        assert!(!not_taken.holds_up(aggregate(&bill)));
        assert!(!not_taken.holds_up(aggregate(without.as_ref().unwrap())), "without an id there is no order");
    }
}
