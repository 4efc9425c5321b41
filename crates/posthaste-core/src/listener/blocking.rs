//! Listeners that block their thread.

use std::sync::Arc;

use super::{Delivery, Failure, IntoVerdict, Listener, Verdict, call};

/// Makes a listener of a function that blocks, and runs it off the async threads.
///
/// A blocking call cannot be cancelled: when its time limit is over the event counts as failed and its worker goes on,
/// while the call itself runs to its end. It still counts as one of the `workers` until then, so calls that hang take up
/// no more threads than that, and keeps its place of [`with_concurrency`](Listener::with_concurrency).
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::blocking;
///
/// let listener = blocking(|event| std::fs::write("/tmp/last-event", event.payload().as_bytes()));
/// ```
pub fn blocking<F, R>(function: F) -> Blocking<F>
where
    F: Fn(&Delivery) -> R + Send + Sync + 'static,
    R: IntoVerdict,
{
    Blocking { function: Arc::new(function) }
}

/// A listener that blocks. Made by [`blocking`].
#[derive(Debug)]
pub struct Blocking<F> {
    function: Arc<F>,
}

impl<F, R> Listener for Blocking<F>
where
    F: Fn(&Delivery) -> R + Send + Sync + 'static,
    R: IntoVerdict,
{
    async fn on_event(&self, event: &Delivery) -> Verdict {
        let permit = match call::blocking() {
            Some(permits) => permits.acquire_owned().await.ok(),
            // Not run by a dispatcher.
            None => None,
        };
        let (places, measuring) = (call::places(), call::measuring());
        let function = Arc::clone(&self.function);
        let event = event.clone();
        let call = move || {
            // They go with the call, however long that takes.
            let _held = (permit, places);
            measuring.entered(|| function(&event).into_verdict())
        };
        match tokio::task::spawn_blocking(call).await {
            Ok(verdict) => verdict,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Failure::retryable("the runtime shut down before the blocking listener ran")),
            },
        }
    }
}
