//! One call of a listener: inside its interceptors, within its time limit, and what its verdicts make of the rows.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tracing::{error, warn};

use crate::hook::panic_text;
use crate::instrument::{Instrument, Measuring};
use crate::interceptor::AnyInterceptor;
use crate::listener::{
    AnyListener, Delivery, Failure, FailureKind, Outcome, Verdict, Verdicts, call, wrong_number_of_verdicts,
};
use crate::metrics::Metrics;
use crate::order::OnDead;
use crate::registry::Registry;
use crate::retry::{Jitter, RetryPolicy};
use crate::store::Action;

/// What every worker needs to call a listener, however its events came.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) registry: Arc<Registry>,
    pub(crate) interceptors: Arc<[Arc<dyn AnyInterceptor>]>,
    pub(crate) instruments: Arc<[Arc<dyn Instrument>]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) time_limit: Duration,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) jitter: Jitter,
}

impl Caller {
    /// A verdict for each event, in their order. That nobody listens for an event is a failure of it.
    pub(crate) async fn call(
        &self,
        measuring: &Measuring,
        listener: Option<&AnyListener>,
        events: &[Delivery],
    ) -> Verdicts {
        match listener {
            Some(listener) => call::measured(measuring, self.run_intercepted(listener, events)).await,
            None => events.iter().map(|event| Err(unroutable(event))).collect(),
        }
    }

    /// When to try again what this listener fails with.
    pub(crate) fn policy<'a>(&'a self, listener: Option<&'a AnyListener>) -> &'a RetryPolicy {
        listener.and_then(AnyListener::retry_policy).unwrap_or(&self.retry)
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

    /// What a verdict makes of the row. Where the followers of an event wait for it for ever, it never is DEAD.
    pub(crate) fn classify(
        &self,
        event: &Delivery,
        verdict: Verdict,
        policy: &RetryPolicy,
        on_dead: Option<OnDead>,
    ) -> Action {
        let failure = match verdict {
            Ok(Outcome::Done) => return Action::Done,
            Ok(Outcome::RetryAfter(delay)) => return Action::Defer { delay },
            Ok(Outcome::Dead(reason)) if on_dead == Some(OnDead::Block) => return self.block(event, policy, reason),
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
            None if on_dead == Some(OnDead::Block) => self.block(event, policy, error),
            None => {
                let kind = failure.kind();
                error!(event_id = %event.id(), event_type = event.event_type(), attempt = event.attempt(), %kind, reason = error, "event is dead");
                Action::Dead { error, counts: kind != FailureKind::Unroutable }
            }
        }
    }

    /// Tries an event again, as often as it takes.
    fn block(&self, event: &Delivery, policy: &RetryPolicy, error: String) -> Action {
        let failures = event.attempt().max(policy.attempts());
        let asked = catch_unwind(AssertUnwindSafe(|| policy.delay(failures, &self.jitter)));
        let delay = asked.unwrap_or_else(|_| self.retry.delay(failures, &self.jitter));
        error!(event_id = %event.id(), event_type = event.event_type(), attempt = event.attempt(), ?delay, error, "event blocks those behind it");
        Action::Retry { delay, error }
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
