//! A span around each delivery.

use std::sync::Arc;
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

use super::{Delivery, Gate, Listener, Outcome, Path, Verdict};
use crate::order::OnDead;
use crate::retry::RetryPolicy;

/// A listener that runs in a span. Made by [`Listener::with_span`].
#[derive(Clone, Debug)]
pub struct Spanned<L> {
    inner: L,
}

impl<L> Spanned<L> {
    pub(super) fn new(inner: L) -> Self {
        Self { inner }
    }
}

impl<L: Listener> Listener for Spanned<L> {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        let path = match event.path() {
            Path::Hot => "hot",
            Path::Cold => "cold",
        };
        let span = info_span!(
            "delivery",
            event_id = %event.id(),
            event_type = event.event_type(),
            aggregate_type = event.aggregate_type(),
            aggregate_id = event.aggregate_id(),
            attempt = event.attempt(),
            path,
            outcome = Empty,
        );
        let mut recorded = Recorded { span: span.clone(), outcome: "cut short" };
        let verdict = self.inner.on_event(event).instrument(span).await;
        recorded.outcome = word(&verdict);
        verdict
    }

    fn time_limit(&self) -> Option<Duration> {
        self.inner.time_limit()
    }

    fn retry_policy(&self) -> Option<&RetryPolicy> {
        self.inner.retry_policy()
    }

    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        self.inner.time_limit_or(otherwise)
    }

    fn gate(&self) -> Option<Arc<dyn Gate>> {
        self.inner.gate()
    }

    fn mistake(&self) -> Option<&str> {
        self.inner.mistake()
    }

    fn dead_policy(&self) -> Option<OnDead> {
        self.inner.dead_policy()
    }
}

/// Records the outcome when it goes, which it also does when the listener panics or its time is over.
struct Recorded {
    span: Span,
    outcome: &'static str,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.span.record("outcome", self.outcome);
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Ok(Outcome::Done) => "done",
        Ok(Outcome::RetryAfter(_)) => "later",
        Ok(Outcome::Dead(_)) => "dead",
        Err(_) => "failed",
    }
}
