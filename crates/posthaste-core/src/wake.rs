//! How a sleeping poller is told that there is something to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::{Mutex, Notify};

/// Wakes a poller: now, or at a moment. Cheap to clone; waking twice is as good as once.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    due_at: Mutex<Option<Instant>>,
    /// Whether rows may have become due that were there before.
    everywhere: AtomicBool,
    changed: Notify,
}

impl Wake {
    /// A handle that nobody sleeps on yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// There is something to do now.
    pub fn now(&self) {
        self.at(Instant::now());
    }

    /// There is something to do now, and it may be with rows that were there before: somebody has redriven them, or let their
    /// aggregate go on.
    pub fn everywhere(&self) {
        self.0.everywhere.store(true, Ordering::Release);
        self.now();
    }

    /// Whether that was said since this was asked for the last time. To be asked after [`reset`](Self::reset).
    pub(crate) fn take_everywhere(&self) -> bool {
        self.0.everywhere.load(Ordering::Relaxed) && self.0.everywhere.swap(false, Ordering::AcqRel)
    }

    /// There will be something to do after this long.
    pub fn after(&self, delay: Duration) {
        // A delay beyond what an instant can express is beyond this process's life.
        if let Some(at) = Instant::now().checked_add(delay) {
            self.at(at);
        }
    }

    /// There will be something to do at that moment.
    pub(crate) fn at(&self, at: Instant) {
        let sooner = {
            let mut due_at = self.0.due_at.lock().unwrap_or_else(PoisonError::into_inner);
            let sooner = due_at.is_none_or(|due| at < due);
            if sooner {
                *due_at = Some(at);
            }
            sooner
        };
        if sooner {
            self.0.changed.notify_one();
        }
    }

    /// Forgets what was due: it is about to be looked after.
    pub(crate) fn reset(&self) {
        *self.0.due_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Sleeps until something is due, at the latest until `deadline`.
    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        loop {
            let due_at = *self.0.due_at.lock().unwrap_or_else(PoisonError::into_inner);
            let until = due_at.map_or(deadline, |due| due.min(deadline));
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(until) => return,
                () = self.0.changed.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use shuttle::future::{block_on, spawn};

    use super::*;
    use crate::sync::explore;

    #[test]
    fn in_any_order_who_is_woken_looks_after_what_it_was_woken_for() {
        explore(|| {
            let (wake, work) = (Wake::new(), Arc::new(AtomicU32::new(0)));
            for _ in 0..2 {
                let (wake, work) = (wake.clone(), Arc::clone(&work));
                spawn(async move {
                    work.fetch_add(1, Ordering::Relaxed);
                    wake.now();
                });
            }
            block_on(async {
                let far = Instant::now() + Duration::from_secs(3600);
                let mut done = 0;
                loop {
                    wake.reset();
                    done += work.swap(0, Ordering::Relaxed);
                    if done == 2 {
                        break;
                    }
                    wake.sleep_until(far).await;
                }
            });
        });
    }
}
