//! What is entered whenever a delivery runs, and learns how it ended.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tracing::error;

use crate::hook::panic_text;
use crate::listener::Delivery;
use crate::store::Action;

/// Measures every delivery, whatever the listener, batches included: for spans and for what else belongs to a thread while a
/// delivery runs on it.
///
/// An [`Interceptor`](crate::Interceptor) runs before and after; this is also entered and left each time the delivery goes on
/// and waits, and hears what becomes of the event. It can look, but keep no event from its listener, and change nothing. It
/// runs on the worker's task, so it should be quick; what panics in it is logged and goes no further.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::sync::Arc;
///
/// use posthaste::instrument::{Instrument, Running};
/// use posthaste::store::Action;
/// use posthaste::{Delivery, MemoryStore, Outbox};
///
/// /// A span around every delivery. For one listener alone, there is `with_span`.
/// struct Spans;
///
/// struct Span(tracing::Span);
///
/// impl Instrument for Spans {
///     fn begin(&self, events: &[Delivery]) -> Option<Arc<dyn Running>> {
///         Some(Arc::new(Span(tracing::info_span!("deliveries", events = events.len()))))
///     }
/// }
///
/// impl Running for Span {
///     fn enter(&self, run: &mut dyn FnMut()) {
///         self.0.in_scope(run);
///     }
///
///     fn end(&self, actions: &[Action]) {
///         self.enter(&mut || tracing::info!(?actions, "delivered"));
///     }
/// }
///
/// let builder = Outbox::builder(MemoryStore::new()).instrument(Spans).listen_all(|_: Delivery| async {});
/// ```
pub trait Instrument: Send + Sync + 'static {
    /// Before a delivery: of one event, or of several to a batch listener. `None` when there is nothing to do for these.
    fn begin(&self, events: &[Delivery]) -> Option<Arc<dyn Running>>;
}

/// A delivery that is under way. Dropped without [`end`](Self::end), it was cut short: by the deadline of a shutdown.
pub trait Running: Send + Sync {
    /// Runs a part of the delivery, up to where it waits or ends: calls `run` once, and on this thread.
    ///
    /// Interceptors and the listener run inside, and so does a [`blocking`](crate::listener::blocking) one on its own thread,
    /// maybe after the end, if its time was over. What a listener spawns does not.
    fn enter(&self, run: &mut dyn FnMut());

    /// The delivery is over, and this becomes of each of its events, in their order. It is not yet in the table.
    fn end(&self, actions: &[Action]);
}

impl<I: Instrument + ?Sized> Instrument for Arc<I> {
    fn begin(&self, events: &[Delivery]) -> Option<Arc<dyn Running>> {
        (**self).begin(events)
    }
}

/// What measures one delivery, the outermost first. Mostly there is none, or one.
#[derive(Clone, Default)]
pub(crate) struct Measuring(SmallVec<[Arc<dyn Running>; 1]>);

impl Measuring {
    pub(crate) fn begin(instruments: &[Arc<dyn Instrument>], events: &[Delivery]) -> Self {
        let begin = |instrument: &Arc<dyn Instrument>| contained("begin", || instrument.begin(events)).flatten();
        Self(instruments.iter().filter_map(begin).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs a future inside of all.
    pub(crate) async fn around<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|cx| self.entered(|| future.as_mut().poll(cx))).await
    }

    /// Runs a function inside of all, and outside of them if one of them does not let it.
    pub(crate) fn entered<T>(&self, run: impl FnOnce() -> T) -> T {
        let (mut run, mut answer) = (Some(run), None);
        contained("enter", || {
            enter(&self.0, &mut || {
                if let Some(run) = run.take() {
                    // Not this function's panic to contain.
                    answer = Some(catch_unwind(AssertUnwindSafe(run)));
                }
            });
        });
        match (answer, run) {
            (Some(Ok(answer)), _) => answer,
            (Some(Err(panic)), _) => resume_unwind(panic),
            (None, run) => run.expect("what gave no answer was not run")(),
        }
    }

    pub(crate) fn end(&self, actions: &[Action]) {
        for running in self.0.iter().rev() {
            contained("end", || running.end(actions));
        }
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        while let Some(running) = self.0.pop() {
            contained("drop", || drop(running));
        }
    }
}

fn enter(measuring: &[Arc<dyn Running>], run: &mut dyn FnMut()) {
    match measuring.split_first() {
        None => run(),
        Some((outer, inner)) => outer.enter(&mut || enter(inner, run)),
    }
}

/// Runs what belongs to the user; a panic of it ends here.
fn contained<T>(step: &'static str, run: impl FnOnce() -> T) -> Option<T> {
    let answer = catch_unwind(AssertUnwindSafe(run));
    answer.inspect_err(|panic| error!(step, panic = panic_text(&**panic), "instrument panicked")).ok()
}

impl fmt::Debug for Measuring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Measuring").field(&self.0.len()).finish()
    }
}
