//! A listener of any kind behind one type, as the registry keeps it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::gate::InARow;
use super::{Batch, BatchListener, Delivery, FanOut, Gate, Hold, Listener, OfOneKey, Verdict, call, chain};
use crate::order::OnDead;
use crate::retry::RetryPolicy;

/// A verdict for each event. One alone, the usual number, needs no memory of its own.
pub(crate) type Verdicts = SmallVec<[Verdict; 1]>;

type Boxed<'a> = Pin<Box<dyn Future<Output = Verdicts> + Send + 'a>>;

/// A listener of any kind: what [`Registry`](crate::Registry) keeps for each route.
#[derive(Clone)]
pub struct AnyListener {
    run: Arc<dyn Run>,
    max_batch: usize,
    time_limit: Option<Duration>,
    retry: Option<RetryPolicy>,
    gate: Option<Arc<dyn Gate>>,
    on_dead: Option<OnDead>,
    of_one_key: OfOneKey,
    /// What is wrong with it, for whoever registers it.
    mistake: Option<Arc<str>>,
}

/// One object-safe method behind every kind of listener; a single event is a slice of one.
trait Run: Send + Sync {
    fn run<'a>(&'a self, events: &'a [Delivery]) -> Boxed<'a>;

    /// How long one call may take, where nothing else was said.
    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        otherwise
    }
}

struct Single<L>(L);

impl<L: Listener> Run for Single<L> {
    fn run<'a>(&'a self, events: &'a [Delivery]) -> Boxed<'a> {
        Box::pin(async move {
            let mut verdicts = Verdicts::with_capacity(events.len());
            for event in events {
                verdicts.push(self.0.on_event(event).await);
            }
            verdicts
        })
    }

    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        self.0.time_limit_or(otherwise)
    }
}

/// What to say of a batch listener that did not answer once for each event.
pub(crate) fn wrong_number_of_verdicts(verdicts: usize, events: usize) -> String {
    format!(
        "the listener gave {verdicts} verdicts for {events} events, so none of them counts; \
         give one for each event, in their order"
    )
}

struct Slice<B>(B);

impl<B: BatchListener> Run for Slice<B> {
    fn run<'a>(&'a self, events: &'a [Delivery]) -> Boxed<'a> {
        // Called inside the future, so that what panics before it returns one panics there too.
        Box::pin(async move { self.0.on_events(events).await.into() })
    }
}

/// A listener with what may keep events from it.
struct Held {
    inner: Arc<dyn Run>,
    holds: Box<[Hold]>,
}

impl Run for Held {
    fn run<'a>(&'a self, events: &'a [Delivery]) -> Boxed<'a> {
        match self.holds.iter().find_map(|hold| hold.put_off(events.len())) {
            Some(verdicts) => Box::pin(async move {
                call::give_back();
                verdicts.into()
            }),
            None => self.inner.run(events),
        }
    }

    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        self.inner.time_limit_or(otherwise)
    }
}

impl AnyListener {
    /// The same listener behind these: while one of them is held, no event comes to it. See [`Hold`].
    #[must_use]
    pub fn held_by(self, holds: impl IntoIterator<Item = Hold>) -> Self {
        let holds: Box<[Hold]> = holds.into_iter().collect();
        let gates = holds.iter().map(|hold| Arc::new(hold.clone()) as Arc<dyn Gate>).chain(self.gate).collect();
        Self { run: Arc::new(Held { inner: self.run, holds }), gate: Some(Arc::new(InARow(gates))), ..self }
    }

    /// A listener that cannot be used: whoever registers it hears why. For what makes listeners of settings, some of which may
    /// be wrong.
    pub fn mistaken(mistake: impl std::error::Error + 'static) -> Self {
        let mistake: Arc<str> = chain(&mistake).into();
        let reason = Arc::clone(&mistake);
        let never = move |_: Delivery| std::future::ready(Err::<(), _>(reason.to_string()));
        Self { mistake: Some(mistake), ..Self::from(never) }
    }

    /// What is wrong with it, if it cannot be used.
    pub fn mistake(&self) -> Option<&str> {
        self.mistake.as_deref()
    }

    pub(crate) fn gate(&self) -> Option<Arc<dyn Gate>> {
        self.gate.clone()
    }

    /// The most events to hand over at once.
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// How long one call may take, if the listener says.
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// How long one call may take where the options say so much.
    pub(crate) fn time_limit_or(&self, otherwise: Duration) -> Duration {
        self.time_limit.unwrap_or_else(|| self.run.time_limit_or(otherwise))
    }

    /// When to try again after a failure, if the listener says.
    pub fn retry_policy(&self) -> Option<&RetryPolicy> {
        self.retry.as_ref()
    }

    /// What becomes of an aggregate with an event that it cannot deliver, if the listener says.
    pub fn dead_policy(&self) -> Option<OnDead> {
        self.on_dead
    }

    /// The same listener with another policy for that.
    pub fn on_dead(mut self, policy: OnDead) -> Self {
        self.on_dead = Some(policy);
        self
    }

    /// How many events of one aggregate it takes at once, where they are delivered in order.
    pub(crate) fn most_of_one_key(&self) -> usize {
        match self.of_one_key {
            OfOneKey::One => 1,
            OfOneKey::Prefix => self.max_batch,
        }
    }

    pub(crate) fn run<'a>(&'a self, events: &'a [Delivery]) -> Boxed<'a> {
        self.run.run(events)
    }

    /// Whether two routes lead to the same listener, so that their events may share a batch.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.run, &other.run)
    }
}

impl fmt::Debug for AnyListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyListener")
            .field("max_batch", &self.max_batch)
            .field("time_limit", &self.time_limit)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

impl<L: Listener> From<L> for AnyListener {
    fn from(listener: L) -> Self {
        Self {
            max_batch: 1,
            time_limit: listener.time_limit(),
            retry: listener.retry_policy().cloned(),
            gate: listener.gate(),
            on_dead: listener.dead_policy(),
            of_one_key: OfOneKey::One,
            mistake: listener.mistake().map(Arc::from),
            run: Arc::new(Single(listener)),
        }
    }
}

impl<B: BatchListener> From<Batch<B>> for AnyListener {
    fn from(batch: Batch<B>) -> Self {
        Self {
            max_batch: batch.max,
            time_limit: batch.settings.time_limit,
            retry: batch.settings.retry,
            run: Arc::new(Slice(batch.settings.inner)),
            gate: batch.gate,
            on_dead: batch.settings.on_dead,
            of_one_key: batch.of_one_key,
            mistake: None,
        }
    }
}

impl fmt::Debug for FanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanOut").field("listeners", &self.len()).finish()
    }
}
