//! Making time pass.

use std::time::Duration;

use tokio::time::Instant;

use super::Faulty;
use crate::memory::MemoryStore;
use crate::store::BoxFuture;

/// A store for which a test can make time pass: what [`TestOutbox::advance`](super::TestOutbox::advance) needs of it.
pub trait PassTime: Send + Sync {
    /// Makes that much time pass for every row: what was due by then is due, and leases that ended by then have ended.
    fn pass_time(&self, length: Duration) -> BoxFuture<'_, ()>;
}

/// Its clock is tokio's. When that one is paused, time passes for the whole program, from one timer to the next;
/// otherwise for the rows only.
impl PassTime for MemoryStore {
    fn pass_time(&self, length: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if is_paused() {
                // Not `tokio::time::advance`, which jumps: what is to happen on the way happens at its own moment.
                tokio::time::sleep(length).await;
            } else {
                self.advance(length);
            }
        })
    }
}

impl<S: PassTime> PassTime for Faulty<S> {
    fn pass_time(&self, length: Duration) -> BoxFuture<'_, ()> {
        self.inner().pass_time(length)
    }
}

/// Whether tokio's clock stands still while that of the machine goes on.
fn is_paused() -> bool {
    let (tokio, machine) = (Instant::now(), std::time::Instant::now());
    while machine.elapsed() < Duration::from_micros(10) {
        std::hint::spin_loop();
    }
    tokio.elapsed() == Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_is_told_from_one_that_goes() {
        assert!(is_paused());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(is_paused());
        tokio::time::resume();
        assert!(!is_paused());
    }
}
