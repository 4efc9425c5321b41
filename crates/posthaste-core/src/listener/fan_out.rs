//! Several listeners for one event.

use super::{AnyListener, Delivery, Failure, FailureKind, Listener, Outcome, Verdict, call, wrong_number_of_verdicts};

/// Hands one event to several listeners, in the order in which they were added.
///
/// Done when all are done. The first that is not ends the attempt with its verdict; the next attempt begins with the
/// first listener again, so each of them must bear repetition. The time limit of each listener counts for its part, and
/// that of the whole for all; the retry policy is that of the whole. With nobody in it, every event is unroutable.
///
/// Put [`with_concurrency`](Listener::with_concurrency) and [`with_rate`](Listener::with_rate) around the whole, not around one
/// of its listeners: a limit inside gives the event back when there is no turn, and those before it get it again each time.
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
}

impl Listener for FanOut {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        if self.listeners.is_empty() {
            return Err(Failure::new(
                FailureKind::Unroutable,
                "the fan-out has no listeners; add one with FanOut::and, then redrive the event",
            ));
        }
        let given_back = call::given_back();
        for (place, listener) in (1..).zip(&self.listeners) {
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
            if place > 1 {
                // Even if this one's limit has given the event back: others have had it.
                call::reached(given_back);
            }
            for verdict in verdicts {
                if !matches!(verdict, Ok(Outcome::Done)) {
                    return verdict;
                }
            }
        }
        Ok(Outcome::Done)
    }
}
