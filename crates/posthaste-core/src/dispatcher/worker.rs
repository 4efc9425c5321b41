//! A worker: take, route, run, classify, settle.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tracing::{debug, error, warn};

use super::Work;
use crate::hook::panic_text;
use crate::inflight::InFlight;
use crate::instrument::{Instrument, Measuring};
use crate::interceptor::AnyInterceptor;
use crate::listener::{
    AnyListener, Delivery, Failure, FailureKind, Outcome, Verdict, Verdicts, call, wrong_number_of_verdicts,
};
use crate::metrics::Metrics;
use crate::queue::Queues;
use crate::registry::Registry;
use crate::retry::{Jitter, RetryPolicy};
use crate::settle;
use crate::store::Action;
use crate::wake::Wake;

#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) queues: Arc<Queues<Work>>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) interceptors: Arc<[Arc<dyn AnyInterceptor>]>,
    pub(crate) instruments: Arc<[Arc<dyn Instrument>]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) time_limit: Duration,
    pub(crate) lease_duration: Duration,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) jitter: Jitter,
    pub(crate) outcomes: mpsc::Sender<settle::Settling>,
    /// Wakes the poller for events that were let go.
    pub(crate) poller: Wake,
}

/// What a worker has in hand: events for one listener. Kept between rounds, so that a round needs no new memory.
#[derive(Default)]
struct Hand {
    works: Vec<Work>,
    deliveries: Vec<Delivery>,
    actions: Vec<Action>,
}

impl Worker {
    /// Works until the queues are closed and empty.
    pub(crate) async fn run(self) {
        let mut hand = Hand::default();
        while let Some(work) = self.queues.take().await {
            let listener = self.registry.listener_for(&work.delivery);
            hand.works.push(work);
            if let Some(listener) = listener {
                self.take_more_for(listener, &mut hand.works);
            }
            self.deliver(listener, &mut hand).await;
            // A listener that never waits must not keep the other tasks of its thread from running.
            tokio::task::consume_budget().await;
        }
    }

    /// Whether the lease of an event still stands. One whose lease ran out while it was queued may be with another
    /// process by now, and is left alone. One that was there meanwhile, and has come back, may have failed there.
    fn holds(&self, work: &mut Work) -> bool {
        let id = work.delivery.id();
        match self.in_flight.hold_failed(id, work.token, self.lease_duration) {
            Some(failed) => {
                work.delivery.set_failed_attempts(failed);
                true
            }
            None => {
                debug!(event_id = %id, "lease ran out in the queue; the event is left to the next claim");
                self.metrics.lease_lost(1);
                // In the table the lease began a little later than here, and ends a little later.
                self.poller.after((self.lease_duration / 4).min(Duration::from_secs(1)));
                false
            }
        }
    }

    /// Fills the hand with more events for the same listener, as far as it takes batches and they are next in line.
    fn take_more_for(&self, listener: &AnyListener, works: &mut Vec<Work>) {
        while works.len() < listener.max_batch() {
            let same = |next: &Work| self.registry.listener_for(&next.delivery).is_some_and(|other| other.is(listener));
            match self.queues.take_if(same) {
                Some(work) => works.push(work),
                None => break,
            }
        }
    }

    /// Runs the events in hand and hands over their outcomes.
    async fn deliver(&self, listener: Option<&AnyListener>, hand: &mut Hand) {
        // The place for the outcomes comes first: between a verdict and its settlement there is then nothing to wait
        // for, and nothing at which an abort could lose it.
        let Ok(mut places) = self.outcomes.reserve_many(hand.works.len()).await else {
            error!(events = hand.works.len(), "settler is gone; the events wait until their leases run out");
            for work in hand.works.drain(..) {
                self.in_flight.release(work.delivery.id(), work.token);
            }
            return;
        };
        // Only now, since there may have been a long wait for a place while the database was away.
        hand.works.retain_mut(|work| self.holds(work));
        if hand.works.is_empty() {
            return;
        }
        for work in &hand.works {
            self.metrics.latency(work.delivery.path(), work.lag + work.queued_at.elapsed());
        }
        hand.deliveries.extend(hand.works.iter().map(|work| work.delivery.clone()));
        let measuring = Measuring::begin(&self.instruments, &hand.deliveries);
        let verdicts = match listener {
            Some(listener) => call::measured(&measuring, self.run_intercepted(listener, &hand.deliveries)).await,
            None => hand.deliveries.iter().map(|event| Err(unroutable(event))).collect(),
        };
        let policy = listener.and_then(AnyListener::retry_policy).unwrap_or(&self.retry);
        let outcomes = hand.deliveries.drain(..).zip(verdicts);
        measuring.entered(|| {
            hand.actions.extend(outcomes.map(|(event, verdict)| self.classify(&event, verdict, policy)));
        });
        let ended_with = if measuring.is_empty() { Vec::new() } else { hand.actions.clone() };
        for (work, action) in hand.works.drain(..).zip(hand.actions.drain(..)) {
            let place = places.next().expect("a place was reserved for each event in hand");
            place.send(settle::Settling {
                id: work.delivery.id().clone(),
                seq: work.seq,
                token: work.token,
                path: work.delivery.path(),
                failed: work.delivery.failed_attempts(),
                action,
                open_under: None,
            });
        }
        // After the outcomes are on their way, which must not wait for somebody's exporter.
        measuring.end(&ended_with);
    }

    /// Runs the listener inside the interceptors. Gives a verdict for each event, in their order.
    async fn run_intercepted(&self, listener: &AnyListener, events: &[Delivery]) -> Verdicts {
        if self.interceptors.is_empty() {
            return self.run_listener(listener, events).await;
        }
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(events.len());
        let mut entered = Vec::with_capacity(events.len());
        let mut admitted = Vec::with_capacity(events.len());
        for event in events {
            let (count, failure) = self.run_before(event).await;
            entered.push(count);
            if failure.is_none() {
                admitted.push(event.clone());
            }
            verdicts.push(failure.map(Err));
        }
        if !admitted.is_empty() {
            let mut answers = self.run_listener(listener, &admitted).await.into_iter();
            for verdict in verdicts.iter_mut().filter(|verdict| verdict.is_none()) {
                *verdict = answers.next();
            }
        }
        let verdicts: Verdicts = verdicts.into_iter().flatten().collect();
        for ((event, verdict), entered) in events.iter().zip(&verdicts).zip(entered) {
            self.run_after(event, verdict, entered).await;
        }
        verdicts
    }

    /// Runs `before` of each interceptor until one fails; says how many succeeded.
    async fn run_before(&self, event: &Delivery) -> (usize, Option<Failure>) {
        for (index, interceptor) in self.interceptors.iter().enumerate() {
            let before = interceptor.before(event);
            if let Err(failure) = self.contained(Who::Interceptor(index + 1), self.time_limit, before).await {
                return (index, Some(failure));
            }
        }
        (self.interceptors.len(), None)
    }

    /// Runs `after` of the interceptors whose `before` succeeded, the last one first.
    async fn run_after(&self, event: &Delivery, verdict: &Verdict, entered: usize) {
        for (index, interceptor) in self.interceptors[..entered].iter().enumerate().rev() {
            let after = interceptor.after(event, verdict);
            if let Err(failure) = self.contained(Who::Interceptor(index + 1), self.time_limit, after).await {
                error!(event_id = %event.id(), error = %failure, "interceptor failed afterwards");
            }
        }
    }

    /// Runs the listener within its time limit; a panic is a failure like any other.
    async fn run_listener(&self, listener: &AnyListener, events: &[Delivery]) -> Verdicts {
        let started_at = tokio::time::Instant::now();
        let (waited, given_back) = (call::waited(), call::given_back());
        let limit = listener.time_limit_or(self.time_limit);
        kill_point!("listener.before");
        let answer = self.contained(Who::Listener, limit, listener.run(events).map(Ok)).await;
        kill_point!("listener.after");
        if given_back == call::given_back() {
            self.metrics.listener_duration(started_at.elapsed().saturating_sub(call::waited() - waited));
        }
        let reason = match answer {
            Ok(verdicts) if verdicts.len() == events.len() => return verdicts,
            Ok(verdicts) => wrong_number_of_verdicts(verdicts.len(), events.len()),
            Err(failure) => failure.text(),
        };
        events.iter().map(|_| Err(Failure::retryable(reason.clone()))).collect()
    }

    /// Runs what belongs to the user: within a time limit, and a panic of it is a failure like any other.
    async fn contained<T>(
        &self,
        who: Who,
        limit: Duration,
        run: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match call::within(limit, AssertUnwindSafe(run).catch_unwind()).await {
            Some(Ok(answer)) => answer.map_err(|failure| match who {
                Who::Listener => failure,
                Who::Interceptor(place) => failure.of_interceptor(place),
            }),
            Some(Err(panic)) => Err(Failure::retryable(format!("{who} panicked: {}", panic_text(&*panic)))),
            None => Err(Failure::retryable(format!(
                "{who} took longer than its time limit of {limit:?}; give it more with {}",
                who.limit()
            ))),
        }
    }

    /// The delay before the next attempt, if there is one. A policy that panics is as good as none.
    fn next_delay(&self, policy: &RetryPolicy, attempt: u32) -> Option<Duration> {
        let asked = catch_unwind(AssertUnwindSafe(|| policy.next_delay(attempt, &self.jitter)));
        asked.unwrap_or_else(|panic| {
            error!(panic = panic_text(&*panic), "retry policy panicked; using the one of the options");
            self.retry.next_delay(attempt, &self.jitter)
        })
    }

    /// What a verdict makes of the row.
    fn classify(&self, event: &Delivery, verdict: Verdict, policy: &RetryPolicy) -> Action {
        let failure = match verdict {
            Ok(Outcome::Done) => return Action::Done,
            Ok(Outcome::RetryAfter(delay)) => return Action::Defer { delay },
            Ok(Outcome::Dead(reason)) => {
                error!(event_id = %event.id(), event_type = event.event_type(), attempt = event.attempt(), reason, "event is dead");
                return Action::Dead { error: reason, counts: true };
            }
            Err(failure) => failure,
        };
        let retry = (failure.kind() == FailureKind::Retryable)
            .then(|| self.next_delay(policy, event.attempt()))
            .flatten()
            .map(|delay| failure.delay_instead_of(delay));
        let error = failure.text();
        match retry {
            Some(delay) => {
                warn!(event_id = %event.id(), event_type = event.event_type(), attempt = event.attempt(), ?delay, error, "delivery failed");
                Action::Retry { delay, error }
            }
            None => {
                let kind = failure.kind();
                error!(event_id = %event.id(), event_type = event.event_type(), attempt = event.attempt(), %kind, reason = error, "event is dead");
                Action::Dead { error, counts: kind != FailureKind::Unroutable }
            }
        }
    }
}

/// Whose code runs.
#[derive(Clone, Copy)]
enum Who {
    Listener,
    /// With its place; the first is 1.
    Interceptor(usize),
}

impl Who {
    /// What its time limit is set with.
    fn limit(self) -> &'static str {
        match self {
            Self::Listener => "with_time_limit, or all listeners with the option listener_time_limit",
            Self::Interceptor(_) => "the option listener_time_limit",
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listener => f.write_str("the listener"),
            Self::Interceptor(place) => write!(f, "interceptor {place}"),
        }
    }
}

fn unroutable(event: &Delivery) -> Failure {
    Failure::new(
        FailureKind::Unroutable,
        format!(
            "no listener for aggregate type {:?} and event type {:?}; register one and redrive the event",
            event.aggregate_type(),
            event.event_type()
        ),
    )
}
