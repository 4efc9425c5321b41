//! Where events of a route go: a publisher, an address, an envelope.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::RetryPolicy;
use posthaste_core::listener::{
    AnyListener, BatchListener, Delivery, Failure, FailureKind, Outcome, Room, Verdict, batch,
};
use tokio::time::Instant;

use crate::breaker::{Breaker, BreakerState};
use crate::envelope::Envelope;
use crate::publisher::{Message, PublishError, PublishErrorKind, Publisher};
use crate::template::{Template, TemplateError};

/// How long a message waits that was put off without a word for how long.
const DEFERRED: Duration = Duration::from_secs(1);

/// How long a probe may have taken for others to follow it in the same call.
const QUICK: Duration = Duration::from_secs(1);

/// Where the events of a route go: over which connection, to which address, in which envelope.
///
/// It is a listener that takes batches: `listen("Order", "*", kafka.topic("orders"))`. What is wrong with its templates, its
/// envelope, or an address that is the same for all events is said when the outbox is started. An event that lacks what a template needs becomes DEAD as unroutable, which uses
/// up no attempt.
pub struct Destination<P> {
    publisher: Arc<P>,
    breaker: Breaker,
    to: Result<Template, TemplateError>,
    key: Option<Result<Template, TemplateError>>,
    envelope: Envelope,
    max_batch: usize,
    time_limit: Option<Duration>,
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
            time_limit: None,
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

    /// Sets how long one batch may take.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Sets when to try again what was refused.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
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
        if let Err(error) = envelope.check() {
            return AnyListener::mistaken(error);
        }
        if let Some(Err(error)) = to.fixed().map(|to| publisher.check_address(to)) {
            return AnyListener::mistaken(error);
        }
        let gate = breaker.clone();
        gate.tell();
        let mut listener =
            batch(Sending { publisher, breaker, to, key, envelope }).with_max_batch(max_batch).with_gate(gate);
        if let Some(limit) = time_limit {
            listener = listener.with_time_limit(limit);
        }
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
    key: Option<Template>,
    envelope: Envelope,
}

impl<P: Publisher> BatchListener for Sending<P> {
    async fn on_events(&self, events: &[Delivery]) -> Vec<Verdict> {
        let (mut verdicts, mut messages) = (Vec::with_capacity(events.len()), Vec::with_capacity(events.len()));
        for event in events {
            verdicts.push(match self.message(event) {
                Ok(message) => {
                    messages.push(message);
                    None
                }
                Err(failure) => Some(Err(failure)),
            });
        }
        let mut answers = self.send(messages).await.into_iter();
        verdicts.into_iter().map(|verdict| verdict.or_else(|| answers.next()).expect("one for each message")).collect()
    }
}

impl<P: Publisher> Sending<P> {
    fn message(&self, event: &Delivery) -> Result<Message, Failure> {
        let unroutable = |lack| Failure::new(FailureKind::Unroutable, lack);
        let to = self.to.render(event).map_err(unroutable)?;
        let key = match &self.key {
            Some(key) => Some(key.render(event).map_err(unroutable)?),
            None => event.aggregate_id().map(str::to_owned),
        };
        let wrapped =
            self.envelope.wrap(P::BINDING, event).map_err(|lack| Failure::new(FailureKind::Unroutable, lack))?;
        let (id, content_type, headers) = (event.id().clone(), wrapped.content_type, wrapped.headers);
        Ok(Message { id, to, key, content_type, headers, body: wrapped.body })
    }

    /// Sends the messages, as far as the breaker lets them, and gives a verdict for each.
    async fn send(&self, mut messages: Vec<Message>) -> Vec<Verdict> {
        if messages.is_empty() {
            return Vec::new();
        }
        let few = match self.breaker.enter() {
            Room::Open => messages.len(),
            Room::Few(few) => few.min(messages.len()),
            _ => 0,
        };
        let (behind, begun) = (messages.split_off(few), Instant::now());
        let mut verdicts = if few > 0 { self.sent(messages).await } else { Vec::new() };
        // Those behind a probe follow it at once if it has arrived, and in time: they share its time limit.
        let follow = few > 0 && self.breaker.state() == BreakerState::Closed && begun.elapsed() < QUICK;
        if !behind.is_empty() && follow {
            verdicts.extend(self.sent(behind).await);
        } else {
            verdicts.extend(self.breaker.put_off(behind.len()).into_iter().map(later));
        }
        verdicts
    }

    async fn sent(&self, messages: Vec<Message>) -> Vec<Verdict> {
        let sent = messages.len();
        let results = self.publisher.publish(messages).await;
        if results.len() != sent {
            let reason = format!("{} gave {} results for {sent} messages", self.publisher.name(), results.len());
            return (0..sent).map(|_| Err(Failure::retryable(reason.clone()))).collect();
        }
        self.judged(results)
    }

    /// What the results make of the events and of the breaker.
    fn judged(&self, results: Vec<Result<(), PublishError>>) -> Vec<Verdict> {
        let is =
            |kind| move |result: &&Result<(), PublishError>| result.as_ref().is_err_and(|error| error.kind() == kind);
        let lost = results.iter().filter(is(PublishErrorKind::Outage)).count();
        match results.iter().find(is(PublishErrorKind::Outage)) {
            Some(Err(error)) => self.breaker.failed(error.pause(), error),
            // What was refused was refused by somebody: the destination is there. Of what was deferred nobody was asked.
            _ if !results.iter().all(|result| is(PublishErrorKind::Deferred)(&result)) => self.breaker.succeeded(),
            _ => {}
        }
        let mut pauses = self.breaker.put_off(lost).into_iter();
        let mut verdict = |error: PublishError| {
            let kind = match error.kind() {
                PublishErrorKind::Outage => return later(pauses.next().expect("a pause for each of them")),
                PublishErrorKind::Deferred => return later(error.pause().unwrap_or(DEFERRED)),
                PublishErrorKind::Retryable => FailureKind::Retryable,
                PublishErrorKind::Permanent => FailureKind::Permanent,
            };
            let asked_for = error.pause();
            let failure = Failure::new(kind, error.into_source());
            Err(match asked_for {
                Some(pause) => failure.retry_in(pause),
                None => failure,
            })
        };
        results.into_iter().map(|result| result.map_or_else(&mut verdict, |()| Ok(Outcome::Done))).collect()
    }
}

fn later(pause: Duration) -> Verdict {
    Ok(Outcome::RetryAfter(pause))
}
