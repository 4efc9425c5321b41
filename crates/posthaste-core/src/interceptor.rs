//! What runs around every delivery.

use std::future::Future;
use std::pin::Pin;

use crate::listener::{Delivery, Failure, Verdict};

/// Runs around every delivery, whatever the listener: auditing, logging, measuring.
///
/// `before` runs in the order of registration, `after` in reverse, and `after` only where that interceptor's `before`
/// succeeded. A failure in `before` takes the place of the listener's verdict, so it is retried by the same rules; a
/// failure in `after` is logged and changes nothing. Each call has the time limit of the options.
///
/// What belongs to one listener, or has to hold something while it runs (a place, a span, a lock), or changes the event or the
/// answer, is put [around that listener](crate::listener#around-a-listener) instead. A span of every delivery is made by an
/// [`Instrument`](crate::Instrument).
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Delivery, Failure, Interceptor, Verdict};
///
/// struct Audit;
///
/// impl Interceptor for Audit {
///     async fn before(&self, event: &Delivery) -> Result<(), Failure> {
///         println!("{} begins", event.id());
///         Ok(())
///     }
///
///     async fn after(&self, event: &Delivery, verdict: &Verdict) -> Result<(), Failure> {
///         println!("{} ended: {verdict:?}", event.id());
///         Ok(())
///     }
/// }
/// ```
pub trait Interceptor: Send + Sync + 'static {
    /// Runs before the listener. A failure keeps the event from it.
    fn before(&self, event: &Delivery) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = event;
        async { Ok(()) }
    }

    /// Runs after the listener, with its verdict or with the failure that kept the event from it.
    fn after(&self, event: &Delivery, verdict: &Verdict) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = (event, verdict);
        async { Ok(()) }
    }
}

/// An interceptor that only does something before.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Failure, interceptor};
///
/// let only_ours = interceptor::before(|event| match event.tenant_id() {
///     Some("shop-7") => Ok(()),
///     _ => Err(Failure::permanent("of another tenant")),
/// });
/// # let _ = only_ours;
/// ```
pub fn before(hook: impl Fn(&Delivery) -> Result<(), Failure> + Send + Sync + 'static) -> impl Interceptor {
    struct Before<F>(F);

    impl<F: Fn(&Delivery) -> Result<(), Failure> + Send + Sync + 'static> Interceptor for Before<F> {
        async fn before(&self, event: &Delivery) -> Result<(), Failure> {
            (self.0)(event)
        }
    }

    Before(hook)
}

/// An interceptor that only does something after.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::interceptor;
///
/// let loud = interceptor::after(|event, verdict| {
///     println!("{}: {verdict:?}", event.id());
///     Ok(())
/// });
/// # let _ = loud;
/// ```
pub fn after(hook: impl Fn(&Delivery, &Verdict) -> Result<(), Failure> + Send + Sync + 'static) -> impl Interceptor {
    struct After<F>(F);

    impl<F: Fn(&Delivery, &Verdict) -> Result<(), Failure> + Send + Sync + 'static> Interceptor for After<F> {
        async fn after(&self, event: &Delivery, verdict: &Verdict) -> Result<(), Failure> {
            (self.0)(event, verdict)
        }
    }

    After(hook)
}

type Boxed<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

/// The object-safe form in which the dispatcher keeps interceptors.
pub(crate) trait AnyInterceptor: Send + Sync {
    fn before<'a>(&'a self, event: &'a Delivery) -> Boxed<'a>;
    fn after<'a>(&'a self, event: &'a Delivery, verdict: &'a Verdict) -> Boxed<'a>;
}

impl<I: Interceptor> AnyInterceptor for I {
    fn before<'a>(&'a self, event: &'a Delivery) -> Boxed<'a> {
        // Called inside the future, so that what panics before it returns one panics there too.
        Box::pin(async move { Interceptor::before(self, event).await })
    }

    fn after<'a>(&'a self, event: &'a Delivery, verdict: &'a Verdict) -> Boxed<'a> {
        Box::pin(async move { Interceptor::after(self, event, verdict).await })
    }
}
