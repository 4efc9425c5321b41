//! Several listeners for one event.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::gate::InARow;
use super::{
    AnyListener, Delivery, Failure, FailureKind, Gate, Listener, Outcome, Room, Verdict, call, wrong_number_of_verdicts,
};
use crate::event::EventId;

/// How much later the limit of the whole strikes, so that it is known whose time was over.
const LATER: Duration = Duration::from_secs(1);

/// How long events wait while another one tries whether a gate opens.
const WHILE_TRYING: Duration = Duration::from_secs(1);

/// How many events are remembered that were put off.
const MOST: usize = 10_000;

/// How long after its moment an event that was put off is remembered: then another process has it, or nobody.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Hands one event to several listeners, in the order in which they were added.
///
/// Done when all are done. The first that is not ends the attempt with its verdict; the next attempt begins with the
/// first listener again, so each of them must bear repetition. An event that one of them only
/// [puts off](Outcome::RetryAfter), which is no attempt, goes on with that one when it comes again to this process: those
/// before it have had it. The last 10,000 such events are remembered. The time limit of each listener counts for its part, and
/// that of the whole for all, which is the sum of theirs unless it is given; the retry policy is that of the whole. With nobody
/// in it, every event is unroutable.
///
/// Where one of them is behind a [`Gate`] that is shut, as destinations are that are away, no one gets the event until it opens;
/// then one event at a time tries the way. Events are handed over one by one, also to who would take batches.
///
/// Put [`with_concurrency`](Listener::with_concurrency) and [`with_rate`](Listener::with_rate) around the whole, not around one
/// of its listeners: a limit inside gives the event back when there is no turn, and those before it get it again if it then comes
/// to another process.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::{Delivery, FanOut};
///
/// let listener = FanOut::new()
///     .and(|_event: Delivery| async { /* send the mail */ })
///     .and(|_event: Delivery| async { /* write the audit log */ });
/// assert_eq!(listener.len(), 2);
/// ```
#[derive(Clone, Default)]
pub struct FanOut {
    listeners: Vec<AnyListener>,
    /// An event is on its way to see whether a gate opens.
    trying: Arc<AtomicBool>,
    progress: Progress,
}

impl FanOut {
    /// A fan-out to nobody yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener after those added before.
    #[must_use]
    pub fn and(mut self, listener: impl Into<AnyListener>) -> Self {
        self.listeners.push(listener.into());
        self
    }

    /// How many listeners there are.
    pub fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Whether all gates would let the event pass; if not, when to come again. Those before a gate would otherwise get the event
    /// each time it is turned away there.
    fn enter(&self) -> Result<Option<Trying<'_>>, Duration> {
        let gates = self.listeners.iter().filter_map(AnyListener::gate);
        match gates.map(|gate| gate.room()).fold(Room::Open, Room::and) {
            Room::Open => Ok(None),
            Room::ShutFor(pause) => Err(pause),
            Room::Few(_) if self.trying.swap(true, Ordering::AcqRel) => Err(WHILE_TRYING),
            Room::Few(_) => Ok(Some(Trying(&self.trying))),
        }
    }
}

/// How far events have come that were put off.
#[derive(Default)]
struct Progress(Mutex<HashMap<EventId, Reached>>);

struct Reached {
    /// How many listeners have had it.
    listeners: usize,
    /// In which attempt. In another, elsewhere, it has failed meanwhile.
    attempt: u32,
    until: Instant,
}

/// A copy may get other listeners, and knows nothing of any event.
impl Clone for Progress {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Progress {
    /// How many listeners have had the event already. It is remembered no longer.
    fn take(&self, event: &Delivery) -> usize {
        let mut all = self.all();
        let reached = if all.is_empty() { None } else { all.remove(event.id()) };
        reached.filter(|reached| reached.attempt == event.attempt()).map_or(0, |reached| reached.listeners)
    }

    /// So many have had it when it was put off for that long.
    fn keep(&self, event: &Delivery, listeners: usize, pause: Duration) {
        if listeners == 0 {
            return;
        }
        let (mut all, now) = (self.all(), Instant::now());
        if all.len() >= MOST {
            all.retain(|_, reached| reached.until > now);
        }
        if let Some(until) = now.checked_add(pause.saturating_add(REMEMBERED))
            && all.len() < MOST
        {
            all.insert(event.id().clone(), Reached { listeners, attempt: event.attempt(), until });
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<EventId, Reached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event that tries the way, until it ends or its future is dropped.
struct Trying<'a>(&'a AtomicBool);

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Listener for FanOut {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        if self.listeners.is_empty() {
            return Err(Failure::new(
                FailureKind::Unroutable,
                "the fan-out has no listeners; add one with FanOut::and, then redrive the event",
            ));
        }
        let _trying = match self.enter() {
            Ok(trying) => trying,
            Err(pause) => {
                call::give_back();
                let had_by = self.progress.take(event);
                self.progress.keep(event, had_by, pause);
                return Ok(Outcome::RetryAfter(pause));
            }
        };
        let (given_back, had_by) = (call::given_back(), self.progress.take(event));
        for (place, listener) in (1..).zip(&self.listeners).skip(had_by) {
            let run = listener.run(std::slice::from_ref(event));
            let verdicts = match listener.time_limit() {
                None => run.await,
                Some(limit) => match call::within(limit, run).await {
                    Some(verdicts) => verdicts,
                    None => {
                        return Err(Failure::retryable(format!(
                            "listener {place} of the fan-out took longer than its time limit of {limit:?}; \
                             give it more with with_time_limit"
                        )));
                    }
                },
            };
            if verdicts.len() != 1 {
                let reason = wrong_number_of_verdicts(verdicts.len(), 1);
                return Err(Failure::retryable(format!("listener {place} of the fan-out: {reason}")));
            }
            if place > had_by + 1 {
                // Even if this one's limit has given the event back: others have had it.
                call::reached(given_back);
            }
            for verdict in verdicts {
                match verdict {
                    Ok(Outcome::Done) => {}
                    Ok(Outcome::RetryAfter(pause)) => {
                        self.progress.keep(event, place - 1, pause);
                        return verdict;
                    }
                    _ => return verdict,
                }
            }
        }
        Ok(Outcome::Done)
    }

    /// What the listeners say together, and what is left to the others once.
    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        let said = |listener: &AnyListener| listener.time_limit_or(Duration::ZERO);
        let others = |listener: &AnyListener| listener.time_limit_or(otherwise).saturating_sub(said(listener));
        let others = self.listeners.iter().map(others).max().unwrap_or(otherwise);
        match self.listeners.iter().map(said).fold(Duration::ZERO, Duration::saturating_add) {
            Duration::ZERO => others,
            said => said.saturating_add(others).saturating_add(LATER),
        }
    }

    fn gate(&self) -> Option<Arc<dyn Gate>> {
        let gates: Vec<_> = self.listeners.iter().filter_map(AnyListener::gate).collect();
        (!gates.is_empty()).then(|| Arc::new(InARow(gates)) as Arc<dyn Gate>)
    }

    fn mistake(&self) -> Option<&str> {
        self.listeners.iter().find_map(AnyListener::mistake)
    }
}
