//! Waiting for something to happen, and stopping before it has.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

pub use posthaste_core::testing::Gate;

/// How long a case waits before it gives up. Longer than a busy machine needs for the largest of them, because it is only ever waited
/// for by a case that fails.
const PATIENCE: Duration = Duration::from_secs(90);

/// The output of a future that should end soon; a case that waits in vain fails, and says what it waited for.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited in vain until {what}"),
    }
}

/// Asks again and again until the answer is yes, where nothing gives a signal.
pub async fn eventually(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Lets every task that is ready run until it waits, on a runtime of one thread.
pub(crate) async fn settle_down() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Polls a future that many times and then drops it. Its output, if it came to its end before.
pub async fn cut_short<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        if polled.is_pending() && left == 0 {
            return Poll::Ready(None);
        }
        polled
    })
    .await
}

/// The output of a future and how often it was polled: at least once for every round trip.
pub(crate) async fn counting_polls<T>(future: impl Future<Output = T>) -> (T, usize) {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context).map(|output| (output, polls))
    })
    .await
}
