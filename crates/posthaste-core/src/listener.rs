//! What receives events: closures, structs, batches, blocking code, several of them at once, and all of these for typed
//! events.
//!
//! # Around a listener
//!
//! Each of these makes a listener of a listener, and they are put around it in the order in which they are written: the last is
//! the outermost.
//!
//! | method | what it adds |
//! |---|---|
//! | [`with_time_limit`](Listener::with_time_limit) | what takes longer has failed |
//! | [`with_retry`](Listener::with_retry) | when to try again after a failure |
//! | [`on_dead`](Listener::on_dead) | how others of its aggregate go on, where they are delivered in order |
//! | [`with_concurrency`](Listener::with_concurrency) | so many events at once |
//! | [`with_rate`](Listener::with_rate) | so many events in some time |
//! | [`with_span`](Listener::with_span) | a span of `tracing` around each delivery |
//! | [`around`](Listener::around) | whatever you like |
//!
//! A [`batch`] takes the first two of them; what else it needs, it does for all its events in its own code.
//!
//! They are for one listener, and run around its call: they can hold something while it runs, keep the event from it, give it
//! another event, or answer something else. An [`Interceptor`](crate::Interceptor) is for all listeners of an outbox, batches
//! included, and runs before and after: it can look, and keep an event from its listener, but hold nothing and change nothing.
//! For auditing everything take an interceptor; for what belongs to one listener, wrap it. What must be entered whenever a
//! delivery runs, such as a span, is an [`Instrument`](crate::Instrument) for all listeners.

mod adapters;
mod around;
mod blocking;
pub(crate) mod call;
mod delivery;
mod erased;
mod fan_out;
mod gate;
mod hold;
mod limited;
mod outcome;
mod spanned;
mod typed;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::order::OnDead;
use crate::retry::RetryPolicy;

pub use adapters::{Batch, Configured, OfOneKey, batch};
pub use around::{Around, Next};
pub use blocking::{Blocking, blocking};
pub use delivery::{Delivery, Path};
pub use erased::AnyListener;
pub(crate) use erased::{Verdicts, wrong_number_of_verdicts};
pub use fan_out::FanOut;
pub(crate) use gate::Gates;
pub use gate::{Gate, Room};
pub use hold::Hold;
pub use limited::{AtOnce, Limited, Rate};
pub(crate) use outcome::chain;
pub use outcome::{Failure, FailureKind, IntoVerdict, Outcome, Verdict};
pub use spanned::Spanned;
pub use typed::{Handle, HandleFn, Typed, handler, typed, typed_with};

/// Receives events, one at a time.
///
/// # Delivery
/// At least once. An event comes again, with the same id, when this returns a [`Failure`], when the process dies before
/// the outcome is stored, or when the lease was lost meanwhile. What it does must therefore bear repetition; the event
/// id tells repeats.
///
/// # Order
/// None is promised between events, but for those of one aggregate in an outbox with
/// [order](crate::OutboxBuilder::ordered): an attempt at one of them begins when each earlier one was acknowledged or given up.
///
/// # Cancellation
/// The future is dropped when the listener's time limit is over, and when the outbox is shut down and its deadline is
/// over. The event is then delivered again.
///
/// Async functions and closures that take a [`Delivery`] are listeners; those that also take a decoded payload are made
/// listeners by [`typed`]. A struct becomes one like this:
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::{Delivery, Failure, Listener, Outcome};
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

    /// The same where the options say so much. A [`FanOut`] has what its listeners need together.
    fn time_limit_or(&self, otherwise: Duration) -> Duration {
        self.time_limit().unwrap_or(otherwise)
    }

    /// When to try again after a failure. Default: what the options say.
    fn retry_policy(&self) -> Option<&RetryPolicy> {
        None
    }

    /// What says whether it can be reached at all. Default: nothing does.
    fn gate(&self) -> Option<Arc<dyn Gate>> {
        None
    }

    /// What is wrong with its settings, for whoever registers it. Default: nothing.
    fn mistake(&self) -> Option<&str> {
        None
    }

    /// What becomes of an aggregate with an event that it cannot deliver, in an outbox with order. Default: what the outbox says.
    fn dead_policy(&self) -> Option<OnDead> {
        None
    }

    /// This listener with its own time limit.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::time::Duration;
    ///
    /// use posthaste::{Delivery, Listener};
    ///
    /// async fn mail(event: Delivery) -> std::io::Result<()> {
    ///     println!("{}", event.id());
    ///     Ok(())
    /// }
    ///
    /// let listener = mail.with_time_limit(Duration::from_secs(5));
    /// assert_eq!(listener.time_limit(), Some(Duration::from_secs(5)));
    /// ```
    fn with_time_limit(self, limit: Duration) -> Configured<Self>
    where
        Self: Sized,
    {
        Configured::new(self).with_time_limit(limit)
    }

    /// This listener with its own retry policy.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::time::Duration;
    ///
    /// use posthaste::{Delivery, Listener, RetryPolicy};
    ///
    /// let once_more = RetryPolicy::fixed([Duration::from_secs(1)]);
    /// let listener = (|_: Delivery| async { Err::<(), _>("no") }).with_retry(once_more);
    /// assert_eq!(listener.retry_policy().map(RetryPolicy::attempts), Some(2));
    /// ```
    fn with_retry(self, policy: RetryPolicy) -> Configured<Self>
    where
        Self: Sized,
    {
        Configured::new(self).with_retry(policy)
    }

    /// This listener with its own way to go on, or not, behind an event that it cannot deliver: for an outbox with
    /// [order](crate::OutboxBuilder::ordered).
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Listener, MemoryStore, OnDead, Ordered, Outbox};
    ///
    /// async fn publish(event: Delivery) -> std::io::Result<()> { Ok(()) }
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .ordered(Ordered::all())
    ///     .listen("Order", "*", publish.on_dead(OnDead::Block));
    /// ```
    fn on_dead(self, policy: OnDead) -> Configured<Self>
    where
        Self: Sized,
    {
        Configured::new(self).on_dead(policy)
    }

    /// This listener with so many events at once, at most, in this process; 0 counts as 1.
    ///
    /// Of the events that find all places taken one waits, with its worker, for a second at most and not all the time. The others
    /// are given back and come again one by one, about as fast as places become free, which counts as no attempt. So a backlog
    /// does not keep the workers from other listeners that are not with this one: give it fewer places than there are workers.
    /// The wait is no part of a time limit. A [`blocking`] call keeps its place until it ends, also when its time is over.
    ///
    /// Together with [`with_rate`](Self::with_rate), write this after it: then who has a turn has a place already, and begins. To
    /// limit a [`FanOut`], put this around the whole, or those before the limit may get the event again when it was given back.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use posthaste_core::{Delivery, Listener, MemoryStore, Outbox};
    ///
    /// async fn send(event: Delivery) -> std::io::Result<()> { /* to a mail server that takes two at a time */ Ok(()) }
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .listen("Order", "*", send.with_time_limit(Duration::from_secs(5)).with_concurrency(2));
    /// ```
    fn with_concurrency(self, events: usize) -> Limited<Self, AtOnce>
    where
        Self: Sized,
    {
        AtOnce::limit(self, events)
    }

    /// This listener with so many events in that time, at most, in this process; 0 counts as 1.
    ///
    /// In no stretch of that length are more of them begun. Of the events that find no turn one waits, with its worker, if the
    /// turn comes within a second, and not all the time. The others are given back and come again one by one when it is about
    /// their turn, which counts as no attempt. So a backlog does not keep the workers from other listeners. The wait is no part of
    /// a time limit. Every process has a limit of its own: with three of them, divide by three.
    ///
    /// Together with [`with_concurrency`](Self::with_concurrency), write this before it. The other way round a turn that then
    /// finds no place is handed back and nothing is lost of it, but an event may wait for its place after its turn has begun. To
    /// limit a [`FanOut`], put this around the whole, or those before the limit may get the event again when it was given back.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use posthaste_core::{Delivery, Listener, MemoryStore, Outbox};
    ///
    /// async fn post(event: Delivery) -> std::io::Result<()> { /* to a service that takes a hundred in a minute */ Ok(()) }
    ///
    /// let builder = Outbox::builder(MemoryStore::new())
    ///     .listen("Order", "*", post.with_rate(100, Duration::from_secs(60)));
    /// ```
    fn with_rate(self, events: u32, period: Duration) -> Limited<Self, Rate>
    where
        Self: Sized,
    {
        Rate::limit(self, events, period)
    }

    /// This listener in a span of `tracing` for each delivery, so that what it logs can be told apart.
    ///
    /// The span is called `delivery`, is of level INFO, and has the fields `event_id`, `event_type`, `aggregate_type`,
    /// `aggregate_id` (if there is one), `attempt` (the first is 1), `path` (`hot` or `cold`), and at the end `outcome`
    /// (`done`, `later`, `dead` or `failed`; `cut short` if it panicked or its time was over). The payload is not in it.
    ///
    /// ```
    /// use posthaste_core::{Delivery, Listener, MemoryStore, Outbox};
    ///
    /// async fn send(event: Delivery) { tracing::info!("sending") } // INFO delivery{event_id=… attempt=1 …}: sending
    ///
    /// let builder = Outbox::builder(MemoryStore::new()).listen("Order", "*", send.with_span());
    /// ```
    fn with_span(self) -> Spanned<Self>
    where
        Self: Sized,
    {
        Spanned::new(self)
    }

    /// This listener with code of yours around it, which goes on with [`Next::run`], or does not.
    ///
    /// It answers with what listeners answer. A time limit and a retry policy that were given before are those of the whole.
    /// What several listeners share, such as one limit for all of them, is captured.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use posthaste_core::listener::{Delivery, Listener, Next, Outcome};
    /// use posthaste_core::{MemoryStore, Outbox};
    /// use tokio::sync::Semaphore;
    ///
    /// async fn send(event: Delivery) -> std::io::Result<()> { Ok(()) }
    ///
    /// let connections = Arc::new(Semaphore::new(2));
    /// let listener = send.around(move |event: Delivery, next: Next| {
    ///     let connections = connections.clone();
    ///     async move {
    ///         if event.header("test").is_some() {
    ///             return Ok(Outcome::Done); // not sent at all
    ///         }
    ///         let _connection = connections.acquire().await?; // until the listener is through
    ///         next.run(event).await
    ///     }
    /// });
    /// let builder = Outbox::builder(MemoryStore::new()).listen("Order", "*", listener);
    /// ```
    fn around<F, Fut>(self, wrap: F) -> Around<F>
    where
        Self: Sized,
        F: Fn(Delivery, Next) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoVerdict> + Send,
    {
        Around::new(self.into(), wrap)
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
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::batch;
/// use posthaste::{BatchListener, Delivery, Outcome, Verdict};
///
/// struct Search;
///
/// impl BatchListener for Search {
///     async fn on_events(&self, events: &[Delivery]) -> Vec<Verdict> {
///         println!("{} documents in one request", events.len());
///         events.iter().map(|_| Ok(Outcome::Done)).collect()
///     }
/// }
///
/// let listener = batch(Search).with_max_batch(500);
/// # let _ = listener;
/// ```
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
