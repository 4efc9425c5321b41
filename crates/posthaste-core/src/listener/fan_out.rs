//! Several listeners for one event.

use super::{AnyListener, Delivery, Failure, Listener, Outcome, Verdict};

/// Hands one event to several listeners, in the order in which they were added.
///
/// Done when all are done. The first that is not ends the attempt with its verdict; the next attempt begins with the
/// first listener again, so each of them must bear repetition.
///
/// ```
/// use posthaste_core::listener::{Delivery, FanOut};
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
        for listener in &self.listeners {
            let verdicts = listener.run(std::slice::from_ref(event)).await;
            match <[Verdict; 1]>::try_from(verdicts) {
                Ok([Ok(Outcome::Done)]) => {}
                Ok([verdict]) => return verdict,
                Err(verdicts) => {
                    return Err(Failure::retryable(format!("listener gave {} verdicts for 1 event", verdicts.len())));
                }
            }
        }
        Ok(Outcome::Done)
    }
}
