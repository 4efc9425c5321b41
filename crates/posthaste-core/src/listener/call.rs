//! What is known of the call that a worker has under way, to whatever runs inside it: how long it has waited for a turn, which
//! counts for no time limit; how often a limit has given an event back, untouched; which places it holds; and what measures it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::instrument::Measuring;

tokio::task_local! {
    static CALL: Call;
}

/// A worker has one call at a time, so this is kept for all of them, and what was before a call is subtracted.
#[derive(Default)]
struct Call {
    /// How many more blocking calls the dispatcher may have under way; nothing when no dispatcher runs it.
    blocking: Option<Arc<Semaphore>>,
    waited: Cell<Duration>,
    waits_since: Cell<Option<Instant>>,
    given_back: Cell<u64>,
    places: RefCell<Vec<Arc<OwnedSemaphorePermit>>>,
    measuring: RefCell<Measuring>,
}

/// Runs a worker whose blocking calls share these permits.
pub(crate) async fn by_worker(blocking: Arc<Semaphore>, worker: impl Future<Output = ()>) {
    CALL.scope(Call { blocking: Some(blocking), ..Call::default() }, worker).await;
}

/// Runs what needs to know of its call, also where no worker does.
pub(super) async fn known<T>(run: impl Future<Output = T> + Send) -> T {
    if CALL.try_with(|_| ()).is_ok() { run.await } else { Box::pin(CALL.scope(Call::default(), run)).await }
}

/// Runs a call inside of what measures it, if anything does, and makes that known.
pub(crate) async fn measured<T>(measuring: &Measuring, call: impl Future<Output = T>) -> T {
    if measuring.is_empty() {
        return call.await;
    }
    let _ = CALL.try_with(|call| call.measuring.replace(measuring.clone()));
    let answer = measuring.around(call).await;
    let _ = CALL.try_with(|call| call.measuring.take());
    answer
}

/// What measures the call: who goes on with it on another thread enters it there.
pub(super) fn measuring() -> Measuring {
    CALL.try_with(|call| call.measuring.borrow().clone()).unwrap_or_default()
}

/// What the blocking calls of the dispatcher share.
pub(super) fn blocking() -> Option<Arc<Semaphore>> {
    CALL.try_with(|call| call.blocking.clone()).ok().flatten()
}

/// How long calls have waited for turns, in all.
pub(crate) fn waited() -> Duration {
    let waited =
        |call: &Call| call.waited.get() + call.waits_since.get().map_or(Duration::ZERO, |since| since.elapsed());
    CALL.try_with(waited).unwrap_or_default()
}

/// How often limits have given events back, in all. When it is the same after a call, the listener was reached.
pub(crate) fn given_back() -> u64 {
    CALL.try_with(|call| call.given_back.get()).unwrap_or_default()
}

/// A limit gives the event back, and nobody inside of it has seen it.
pub(super) fn give_back() {
    let _ = CALL.try_with(|call| call.given_back.set(call.given_back.get() + 1));
}

/// Some listener was reached all the same.
pub(super) fn reached(given_back: u64) {
    let _ = CALL.try_with(|call| call.given_back.set(given_back));
}

/// Waits for a turn, which is no part of the time that the call takes.
pub(super) async fn wait<T>(turn: impl Future<Output = T>) -> T {
    let waiting =
        Waiting { outer: CALL.try_with(|call| call.waits_since.replace(Some(Instant::now()))).ok().flatten() };
    let turn = turn.await;
    waiting.over();
    turn
}

/// Dropped before its time, the event has not reached its listener.
struct Waiting {
    /// Two waits at once, which code of the user's around listeners may bring about, count from the first.
    outer: Option<Instant>,
}

impl Waiting {
    fn over(self) {
        self.count();
        std::mem::forget(self);
    }

    fn count(&self) {
        let _ = CALL.try_with(|call| {
            if let Some(since) = call.waits_since.replace(self.outer) {
                call.waited.set(call.waited.get() + since.elapsed());
            }
        });
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.count();
        give_back();
    }
}

/// Waits for the end of a future, but no longer than this, waits for turns not counted.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut waited_before = waited();
    let mut left = limit;
    loop {
        if let Ok(output) = timeout(left, future.as_mut()).await {
            return Some(output);
        }
        let waited = waited();
        left = waited.saturating_sub(waited_before);
        if left.is_zero() {
            return None;
        }
        waited_before = waited;
    }
}

/// Makes it known that this place is held, until what is returned is dropped.
pub(super) fn hold(place: OwnedSemaphorePermit) -> Place {
    let place = Arc::new(place);
    let _ = CALL.try_with(|call| call.places.borrow_mut().push(Arc::clone(&place)));
    Place(place)
}

/// The places that the call holds: who goes on when the call is over takes them along.
pub(super) fn places() -> Vec<Arc<OwnedSemaphorePermit>> {
    CALL.try_with(|call| call.places.borrow().clone()).unwrap_or_default()
}

/// A place that is held.
pub(super) struct Place(Arc<OwnedSemaphorePermit>);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = CALL.try_with(|call| call.places.borrow_mut().retain(|place| !Arc::ptr_eq(place, &self.0)));
    }
}
