//! Listeners for typed events.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Delivery, IntoVerdict, Listener, Verdict};
use crate::event::{TypedEvent, Upcasts};
use crate::retry::RetryPolicy;

/// Handles typed events: the struct that stands behind [`handle`](crate::OutboxBuilder::handle).
///
/// The promises are those of [`Listener`]. One struct may handle several types, and an `Arc` of it handles what it does.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::sync::Arc;
///
/// use posthaste::listener::{Delivery, Handle, Outcome, Verdict};
/// use posthaste::{MemoryStore, Outbox};
/// # use posthaste::event::{Kind, TypedEvent};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { id: u64 }
/// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderCancelled { id: u64 }
/// # impl TypedEvent for OrderCancelled { const KINDS: &'static [Kind] = &[Kind::new("OrderCancelled", 1)]; }
///
/// struct Mailer { from: String }
///
/// impl Handle<OrderPlaced> for Mailer {
///     async fn handle(&self, event: Delivery, order: OrderPlaced) -> Verdict {
///         println!("{} confirms order {}, attempt {}", self.from, order.id, event.attempt());
///         Ok(Outcome::Done)
///     }
/// }
///
/// impl Handle<OrderCancelled> for Mailer {
///     async fn handle(&self, _: Delivery, order: OrderCancelled) -> Verdict {
///         println!("{} regrets order {}", self.from, order.id);
///         Ok(Outcome::Done)
///     }
/// }
///
/// let mailer = Arc::new(Mailer { from: "shop".into() });
/// let builder = Outbox::builder(MemoryStore::new())
///     .handle::<OrderPlaced>(mailer.clone())
///     .handle::<OrderCancelled>(mailer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not handle `{T}`",
    note = "implement `Handle<{T}>` for it, or pass an async function that takes a `Delivery` and a `{T}`"
)]
pub trait Handle<T: TypedEvent>: Send + Sync + 'static {
    /// Handles one event.
    fn handle(&self, event: Delivery, payload: T) -> impl Future<Output = Verdict> + Send;

    /// How long one event may take. Default: what the options say.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// When to try again after a failure. Default: what the options say.
    fn retry_policy(&self) -> Option<&RetryPolicy> {
        None
    }
}

impl<T: TypedEvent, F: HandleFn<T>> Handle<T> for F {
    async fn handle(&self, event: Delivery, payload: T) -> Verdict {
        self(event, payload).await.into_verdict()
    }
}

impl<T: TypedEvent, H: Handle<T>> Handle<T> for Arc<H> {
    async fn handle(&self, event: Delivery, payload: T) -> Verdict {
        (**self).handle(event, payload).await
    }

    fn time_limit(&self) -> Option<Duration> {
        (**self).time_limit()
    }

    fn retry_policy(&self) -> Option<&RetryPolicy> {
        (**self).retry_policy()
    }
}

/// An async function or closure that takes a [`Delivery`] and a decoded payload. Implemented for all of them.
///
/// A name for `Fn(Delivery, T) -> impl Future`, which cannot be written where it is needed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an async function of a `Delivery` and a `{T}`",
    note = "a struct that implements `Handle<{T}>` is registered with `handle`, other listeners with `listen_for`"
)]
pub trait HandleFn<T>: Fn(Delivery, T) -> Self::Answer + Send + Sync + 'static {
    /// What the function returns.
    type Answer: Future<Output: IntoVerdict> + Send;
}

impl<T, F, Fut> HandleFn<T> for F
where
    F: Fn(Delivery, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoVerdict> + Send,
{
    type Answer = Fut;
}

/// Makes a listener of an async function of typed events, for where the function alone is not enough: with a time limit
/// or retry policy of its own, with upcasts of its own, or as one of several in a [`FanOut`](super::FanOut).
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::time::Duration;
///
/// use posthaste::listener::{Listener, typed};
/// use posthaste::{MemoryStore, Outbox, RetryPolicy};
/// # use posthaste::event::{Kind, TypedEvent};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { id: u64 }
/// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
///
/// let listener = typed::<OrderPlaced>(|_event, order| async move { println!("{}", order.id) })
///     .with_time_limit(Duration::from_secs(5))
///     .with_retry(RetryPolicy::fixed([100, 200, 400].map(Duration::from_millis)));
/// let builder = Outbox::builder(MemoryStore::new()).listen_for::<OrderPlaced>(listener);
/// ```
pub fn typed<T: TypedEvent>(function: impl HandleFn<T>) -> Typed<T, impl Handle<T>> {
    handler::<T>(function)
}

/// Makes a listener of an async function of typed events, and what it works with: a clone of it is handed to every call.
/// Otherwise like [`typed`]; where nothing is put around it, [`on_with`](crate::OutboxBuilder::on_with) is shorter.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use posthaste::listener::{Delivery, Listener, typed_with};
/// use posthaste::{MemoryStore, Outbox};
/// # use posthaste::event::{Kind, TypedEvent};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { id: u64 }
/// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
///
/// struct Mailer { from: String }
///
/// async fn confirm(mailer: Arc<Mailer>, _event: Delivery, order: OrderPlaced) -> std::io::Result<()> {
///     println!("{} confirms order {}", mailer.from, order.id);
///     Ok(())
/// }
///
/// let mailer = Arc::new(Mailer { from: "shop".into() });
/// let listener = typed_with(mailer, confirm).with_time_limit(Duration::from_secs(5)).with_concurrency(2);
/// let builder = Outbox::builder(MemoryStore::new()).listen_for::<OrderPlaced>(listener);
/// ```
pub fn typed_with<S, T, F, Fut>(state: S, function: F) -> Typed<T, impl Handle<T>>
where
    S: Clone + Send + Sync + 'static,
    T: TypedEvent,
    F: Fn(S, Delivery, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoVerdict> + Send + 'static,
{
    typed::<T>(move |event, payload| function(state.clone(), event, payload))
}

/// Makes a listener of a struct that handles typed events. Otherwise like [`typed`].
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::time::Duration;
///
/// use posthaste::listener::{Delivery, Handle, Listener, Outcome, Verdict, handler};
/// use posthaste::{MemoryStore, Outbox};
/// # use posthaste::event::{Kind, TypedEvent};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { id: u64 }
/// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
///
/// struct Mailer;
///
/// impl Handle<OrderPlaced> for Mailer {
///     async fn handle(&self, _event: Delivery, order: OrderPlaced) -> Verdict {
///         println!("{}", order.id);
///         Ok(Outcome::Done)
///     }
/// }
///
/// let listener = handler::<OrderPlaced>(Mailer).with_time_limit(Duration::from_secs(5));
/// let builder = Outbox::builder(MemoryStore::new()).listen_for::<OrderPlaced>(listener);
/// ```
pub fn handler<T: TypedEvent>(handler: impl Handle<T>) -> Typed<T, impl Handle<T>> {
    Typed { handler, upcasts: T::upcasts() }
}

/// A listener for typed events. Made by [`typed`], [`typed_with`] and [`handler`].
///
/// An event that does not decode, or has a version that is not accepted, is DEAD with a reason that names its type and
/// version, and the field and place at fault or the versions that are accepted.
pub struct Typed<T, H> {
    handler: H,
    upcasts: Upcasts<T>,
}

impl<T: TypedEvent, H> Typed<T, H> {
    /// Accepts an older version as well, through this function: as in [`TypedEvent::upcasts`], for this listener alone.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::listener::typed;
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlacedV1 { id: u64 }
    /// # impl TypedEvent for OrderPlacedV1 { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { id: u64, currency: String }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 2)]; }
    ///
    /// let listener = typed::<OrderPlaced>(|_event, order| async move { println!("{}", order.currency) })
    ///     .upcast(|old: OrderPlacedV1| OrderPlaced { id: old.id, currency: "EUR".into() });
    /// ```
    ///
    /// If the older one has another event type, say with [`listen`](crate::OutboxBuilder::listen) that this listener
    /// gets it; [`listen_for`](crate::OutboxBuilder::listen_for) knows only what belongs to the type.
    #[must_use]
    pub fn upcast<Old: TypedEvent>(mut self, convert: impl Fn(Old) -> T + Send + Sync + 'static) -> Self {
        self.upcasts = self.upcasts.upcast(convert);
        self
    }
}

impl<T: TypedEvent, H: Handle<T>> Listener for Typed<T, H> {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        let payload = self.upcasts.read(event)?;
        self.handler.handle(event.clone(), payload).await
    }

    fn time_limit(&self) -> Option<Duration> {
        self.handler.time_limit()
    }

    fn retry_policy(&self) -> Option<&RetryPolicy> {
        self.handler.retry_policy()
    }
}

impl<T, H> fmt::Debug for Typed<T, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").field("upcasts", &self.upcasts).finish_non_exhaustive()
    }
}
