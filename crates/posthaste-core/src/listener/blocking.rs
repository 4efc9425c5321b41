//! Listeners that block their thread.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{Delivery, Failure, IntoVerdict, Listener, Verdict};

tokio::task_local! {
    /// How many more blocking calls the dispatcher may have under way.
    static PERMITS: Arc<Semaphore>;
}

/// Runs a worker whose blocking calls share these permits.
pub(crate) async fn within(permits: Arc<Semaphore>, worker: impl Future<Output = ()>) {
    PERMITS.scope(permits, worker).await;
}

/// Makes a listener of a function that blocks, and runs it off the async threads.
///
/// A blocking call cannot be cancelled: when its time limit is over the event counts as failed and its worker goes on,
/// while the call itself runs to its end. It still counts as one of the `workers` until then, so calls that hang take up
/// no more threads than that.
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
        let permit = match PERMITS.try_with(Arc::clone) {
            Ok(permits) => permits.acquire_owned().await.ok(),
            // Not run by a dispatcher.
            Err(_) => None,
        };
        let function = Arc::clone(&self.function);
        let event = event.clone();
        let call = move || {
            // Goes with the call, however long that takes.
            let _permit = permit;
            function(&event).into_verdict()
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
