//! Code of the user's around one listener.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{AnyListener, Delivery, Failure, Gate, IntoVerdict, Listener, Verdict, wrong_number_of_verdicts};
use crate::order::OnDead;
use crate::retry::RetryPolicy;

/// A listener with code around it. Made by [`Listener::around`].
#[derive(Clone)]
pub struct Around<F> {
    next: Next,
    wrap: F,
}

/// The listener that is wrapped: what code [around](Listener::around) it goes on with, or does not. Cheap to clone.
#[derive(Clone)]
pub struct Next {
    listener: AnyListener,
}

impl<F> Around<F> {
    pub(super) fn new(listener: AnyListener, wrap: F) -> Self {
        Self { next: Next { listener }, wrap }
    }
}

impl<F, Fut> Listener for Around<F>
where
    F: Fn(Delivery, Next) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoVerdict> + Send,
{
    async fn on_event(&self, event: &Delivery) -> Verdict {
        (self.wrap)(event.clone(), self.next.clone()).await.into_verdict()
    }

    fn time_limit(&self) -> Option<Duration> {
        self.next.listener.time_limit()
    }

    fn retry_policy(&self) -> Option<&RetryPolicy> {
        self.next.listener.retry_policy()
    }

    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        self.next.listener.time_limit_or(otherwise)
    }

    fn gate(&self) -> Option<Arc<dyn Gate>> {
        self.next.listener.gate()
    }

    fn mistake(&self) -> Option<&str> {
        self.next.listener.mistake()
    }

    fn dead_policy(&self) -> Option<OnDead> {
        self.next.listener.dead_policy()
    }
}

impl Next {
    /// Hands the event to the listener, and gives its verdict.
    pub async fn run(&self, event: Delivery) -> Verdict {
        let mut verdicts = self.listener.run(std::slice::from_ref(&event)).await;
        match (verdicts.len(), verdicts.pop()) {
            (1, Some(verdict)) => verdict,
            (other, _) => Err(Failure::retryable(wrong_number_of_verdicts(other, 1))),
        }
    }
}

impl<F> fmt::Debug for Around<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Around").field("listener", &self.next.listener).finish_non_exhaustive()
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Next").field(&self.listener).finish()
    }
}
