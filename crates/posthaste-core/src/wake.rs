//! How a sleeping poller is told that there is something to do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Wakes a poller: now, or at a moment. Cheap to clone; waking twice is as good as once.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    due_at: Mutex<Option<Instant>>,
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
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                () = self.0.changed.notified() => {}
            }
        }
    }
}
