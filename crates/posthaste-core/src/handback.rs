//! Leases that nobody in this process will use, to be taken off their rows.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::EventId;
use crate::store::Lease;
use crate::sync::Mutex;
use crate::wake::Wake;

/// The most leases that wait here. Rows beyond it wait until their lease runs out.
const CAPACITY: usize = 10_000;

/// The first pause before a row that was not found is looked for again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Leases that nobody in this process will use: of receipts that were dropped, of commits whose outcome is unknown, of
/// commits after the close.
///
/// Their rows may not be visible yet, or may never be, so each is looked for again, more and more rarely, until it would
/// have run out by itself.
#[derive(Clone, Debug)]
pub(crate) struct Handback {
    waiting: Arc<Mutex<Vec<Unused>>>,
    patience: Duration,
    keeper: Wake,
}

#[derive(Clone, Debug)]
pub(crate) struct Unused {
    pub(crate) id: EventId,
    pub(crate) lease: Lease,
    /// Whether it is there when it is looked for, or never.
    once: bool,
    pause: Duration,
    due_at: Instant,
    until: Instant,
}

impl Handback {
    pub(crate) fn new(patience: Duration, keeper: Wake) -> Self {
        Self { waiting: Arc::default(), patience, keeper }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Unused>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, leases: impl Iterator<Item = (EventId, Lease)>) {
        self.add_all(false, leases);
    }

    /// Those whose rows are visible by now, or never will be: they are looked for once, as soon as the database answers.
    pub(crate) fn add_once(&self, leases: impl Iterator<Item = (EventId, Lease)>) {
        self.add_all(true, leases);
    }

    fn add_all(&self, once: bool, leases: impl Iterator<Item = (EventId, Lease)>) {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let before = waiting.len();
        let until = now + self.patience;
        let unused = leases.map(|(id, lease)| Unused { id, lease, once, pause: FIRST_PAUSE, due_at: now, until });
        waiting.extend(unused.take(CAPACITY.saturating_sub(before)));
        if waiting.len() > before {
            self.keeper.now();
        }
    }

    /// Those to be looked for now.
    pub(crate) fn take_due(&self) -> Vec<Unused> {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let (due, later): (_, Vec<Unused>) =
            std::mem::take(&mut *waiting).into_iter().partition(|unused| unused.due_at <= now);
        *waiting = later;
        // The keeper has forgotten what it was woken for; remind it of those that are left.
        if let Some(next_at) = waiting.iter().map(|unused| unused.due_at).min() {
            self.keeper.at(next_at);
        }
        due
    }

    /// All of them, for the last time.
    pub(crate) fn take_all(&self) -> Vec<Unused> {
        std::mem::take(&mut *self.waiting())
    }

    /// One that was not found: later again, if it may be there by then.
    pub(crate) fn not_found(&self, unused: Unused) {
        if !unused.once {
            self.again(unused);
        }
    }

    /// One that could not be looked for: later again, unless it has run out.
    pub(crate) fn again(&self, mut unused: Unused) {
        let now = Instant::now();
        if now >= unused.until {
            return;
        }
        unused.due_at = now + unused.pause;
        self.keeper.after(unused.pause);
        unused.pause = (unused.pause * 2).min(LONGEST_PAUSE);
        self.waiting().push(unused);
    }
}

#[cfg(test)]
mod tests {
    use shuttle::future::{block_on, spawn};

    use super::*;
    use crate::sync::explore;

    #[test]
    fn in_any_order_the_keeper_looks_for_every_unused_lease() {
        explore(|| {
            let wake = Wake::new();
            let handback = Handback::new(Duration::from_secs(60), wake.clone());
            for number in 0..3 {
                let handback = handback.clone();
                let unused = (EventId::from_row(number.to_string()), Lease::new("me", number));
                spawn(async move { handback.add(std::iter::once(unused)) });
            }
            block_on(async {
                let far = Instant::now() + Duration::from_secs(3600);
                let mut found = 0;
                loop {
                    wake.reset();
                    found += handback.take_due().len();
                    if found == 3 {
                        break;
                    }
                    wake.sleep_until(far).await;
                }
            });
        });
    }
}
