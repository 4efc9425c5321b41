//! Listeners made from other listeners and from plain functions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{BatchListener, Delivery, Gate, Listener, Verdict};
use crate::order::OnDead;
use crate::retry::RetryPolicy;

/// A listener with settings of its own. Made by [`Listener::with_time_limit`], [`Listener::with_retry`] and
/// [`Listener::on_dead`].
#[derive(Clone, Debug)]
pub struct Configured<L> {
    pub(super) inner: L,
    pub(super) time_limit: Option<Duration>,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) on_dead: Option<OnDead>,
}

impl<L> Configured<L> {
    pub(super) fn new(inner: L) -> Self {
        Self { inner, time_limit: None, retry: None, on_dead: None }
    }

    /// Sets how long one event, or one batch, may take.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Sets when to try again after a failure.
    #[must_use]
    pub fn with_retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Sets what becomes of an aggregate with an event that cannot be delivered, in an outbox with order.
    #[must_use]
    pub fn on_dead(mut self, policy: OnDead) -> Self {
        self.on_dead = Some(policy);
        self
    }
}

impl<L: Listener> Listener for Configured<L> {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        self.inner.on_event(event).await
    }

    fn time_limit(&self) -> Option<Duration> {
        self.time_limit.or_else(|| self.inner.time_limit())
    }

    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        self.time_limit.unwrap_or_else(|| self.inner.time_limit_or(otherwise))
    }

    fn retry_policy(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref().or_else(|| self.inner.retry_policy())
    }

    fn gate(&self) -> Option<Arc<dyn Gate>> {
        self.inner.gate()
    }

    fn mistake(&self) -> Option<&str> {
        self.inner.mistake()
    }

    fn dead_policy(&self) -> Option<OnDead> {
        self.on_dead.or_else(|| self.inner.dead_policy())
    }
}

/// Makes a listener of something that takes a slice of events and answers for each.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::{batch, Delivery, Outcome};
///
/// let listener = batch(|events: Vec<Delivery>| async move {
///     // One round trip for all of them, and a verdict for each.
///     events.iter().map(|_| Ok(Outcome::Done)).collect()
/// })
/// .with_max_batch(500);
/// ```
pub fn batch<B: BatchListener>(listener: B) -> Batch<B> {
    let max = listener.max_batch().max(1);
    Batch { max, settings: Configured::new(listener), gate: None, of_one_key: OfOneKey::One }
}

/// A listener that takes slices. Made by [`batch`].
#[derive(Clone)]
pub struct Batch<B> {
    pub(super) settings: Configured<B>,
    pub(super) max: usize,
    pub(super) gate: Option<Arc<dyn Gate>>,
    pub(super) of_one_key: OfOneKey,
}

/// How many events of one aggregate a batch may have, where they are delivered in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OfOneKey {
    /// One; others come with the next batch. The default, since of most destinations nobody knows what has arrived when one of
    /// several events has failed.
    #[default]
    One,
    /// As many as fit: if one is not accepted, no later one of the same aggregate in that batch is.
    Prefix,
}

impl<B> Batch<B> {
    /// Sets the most events to hand over at once.
    #[must_use]
    pub fn with_max_batch(mut self, max: usize) -> Self {
        self.max = max.max(1);
        self
    }

    /// Sets what says whether events should be claimed for it.
    #[must_use]
    pub fn with_gate(mut self, gate: impl Gate) -> Self {
        self.gate = Some(Arc::new(gate));
        self
    }

    /// Sets how long one batch may take.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.settings.time_limit = Some(limit);
        self
    }

    /// Sets when to try again after a failure.
    #[must_use]
    pub fn with_retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = Some(policy);
        self
    }

    /// Sets what becomes of an aggregate with an event that cannot be delivered, in an outbox with order.
    #[must_use]
    pub fn on_dead(mut self, policy: OnDead) -> Self {
        self.settings.on_dead = Some(policy);
        self
    }

    /// Sets how many events of one aggregate a batch may have, in an outbox with order.
    #[must_use]
    pub fn with_of_one_key(mut self, of_one_key: OfOneKey) -> Self {
        self.of_one_key = of_one_key;
        self
    }
}

impl<B: fmt::Debug> fmt::Debug for Batch<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("settings", &self.settings).field("max", &self.max).finish_non_exhaustive()
    }
}
