//! Futures that are run to their end even when their caller loses interest.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Runs a future in place; dropped before its end, the rest of it runs on as a task of `tasks`.
///
/// A statement that was sent cannot be taken back. sqlx forgets a `BEGIN` whose answer nobody waited for, and loses its
/// place in the conversation when the answer to a `PREPARE` is cut off; such a connection must not return to its pool.
///
/// The core has the same for itself. To share it would make tokio-util a part of the core's interface.
pub(crate) fn finish<F>(tasks: &TaskTracker, future: F) -> Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    Finish { future: Some(Box::pin(future)), started: false, tasks: tasks.clone() }
}

pub(crate) struct Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    future: Option<Pin<Box<F>>>,
    started: bool,
    tasks: TaskTracker,
}

impl<F> Future for Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.started = true;
        // Taken out meanwhile: what panics is not polled again.
        let mut future = self.future.take().expect("a future is not polled after its end");
        let poll = future.as_mut().poll(context);
        if poll.is_pending() {
            self.future = Some(future);
        }
        poll
    }
}

impl<F> Drop for Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        // What was never polled has sent nothing, and can simply be dropped.
        if self.started
            && let Ok(runtime) = Handle::try_current()
        {
            self.tasks.spawn_on(async move { drop(future.await) }, &runtime);
        }
    }
}
