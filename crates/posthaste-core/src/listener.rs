//! What receives events: closures, structs, batches, blocking code, several of them at once, and all of these for typed
//! events.

mod adapters;
pub(crate) mod blocking;
mod delivery;
mod erased;
mod fan_out;
mod outcome;
mod typed;

use std::future::Future;
use std::time::Duration;

use crate::retry::RetryPolicy;

pub use adapters::{Batch, Configured, batch};
pub use blocking::{Blocking, blocking};
pub use delivery::{Delivery, Path};
pub use erased::AnyListener;
pub(crate) use erased::{Verdicts, wrong_number_of_verdicts};
pub use fan_out::FanOut;
pub(crate) use outcome::chain;
pub use outcome::{Failure, FailureKind, IntoVerdict, Outcome, Verdict};
pub use typed::{Handle, HandleFn, Typed, handler, typed};

/// Receives events, one at a time.
///
/// # Delivery
/// At least once. An event comes again, with the same id, when this returns a [`Failure`], when the process dies before
/// the outcome is stored, or when the lease was lost meanwhile. What it does must therefore bear repetition; the event
/// id tells repeats.
///
/// # Order
/// None is promised between events.
///
/// # Cancellation
/// The future is dropped when the listener's time limit is over, and when the outbox is shut down and its deadline is
/// over. The event is then delivered again.
///
/// Async functions and closures that take a [`Delivery`] are listeners; those that also take a decoded payload are made
/// listeners by [`typed`]. A struct becomes one like this:
///
/// ```
/// use posthaste_core::listener::{Delivery, Failure, Listener, Outcome};
///
/// struct Mailer { from: String }
///
/// impl Listener for Mailer {
///     async fn on_event(&self, event: &Delivery) -> Result<Outcome, Failure> {
///         let to = event.header("to").ok_or_else(|| Failure::permanent("no recipient"))?;
///         println!("{} writes to {to}", self.from);
///         Ok(Outcome::Done)
///     }
/// }
/// ```
pub trait Listener: Send + Sync + 'static {
    /// Handles one event.
    fn on_event(&self, event: &Delivery) -> impl Future<Output = Verdict> + Send;

    /// How long one event may take. Default: what the options say.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// When to try again after a failure. Default: what the options say.
    fn retry_policy(&self) -> Option<&RetryPolicy> {
        None
    }

    /// This listener with its own time limit.
    fn with_time_limit(self, limit: Duration) -> Configured<Self>
    where
        Self: Sized,
    {
        Configured::new(self).with_time_limit(limit)
    }

    /// This listener with its own retry policy.
    fn with_retry(self, policy: RetryPolicy) -> Configured<Self>
    where
        Self: Sized,
    {
        Configured::new(self).with_retry(policy)
    }
}

impl<F, Fut> Listener for F
where
    F: Fn(Delivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoVerdict> + Send,
{
    async fn on_event(&self, event: &Delivery) -> Verdict {
        self(event.clone()).await.into_verdict()
    }
}

/// Receives events as a slice and answers for each, so that many of them can share one round trip.
///
/// The promises are those of [`Listener`], for each event on its own. Register one with [`batch`].
pub trait BatchListener: Send + Sync + 'static {
    /// Handles the events and gives one verdict for each, in their order.
    ///
    /// An answer of another length counts as a failure of every event in the slice: it cannot be known which verdict
    /// belongs to which.
    fn on_events(&self, events: &[Delivery]) -> impl Future<Output = Vec<Verdict>> + Send;

    /// The most events to hand over at once. Default 100: enough to make a round trip cheap, few enough to repeat.
    fn max_batch(&self) -> usize {
        100
    }
}

impl<F, Fut> BatchListener for F
where
    F: Fn(Vec<Delivery>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Vec<Verdict>> + Send,
{
    async fn on_events(&self, events: &[Delivery]) -> Vec<Verdict> {
        self(events.to_vec()).await
    }
}
