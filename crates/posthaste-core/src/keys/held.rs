//! A lane that is held, as far as this relay knows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::store::LaneLease;

/// The lease of a lane, known to everyone who has events of it: workers ask it before each attempt, without a lock.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: LaneLease,
    leased_at: Instant,
    /// Until when it certainly stands, by this process's clock, in microseconds after it was leased.
    stands_for: AtomicU64,
    /// Nothing more begins.
    drains: AtomicBool,
    /// No outcome may be written any more.
    unsettled: AtomicBool,
    /// An attempt was cut short, and may go on in a thread of its own.
    interrupted: AtomicBool,
    cut: CancellationToken,
}

impl Held {
    pub(super) fn new(lease: LaneLease, stands_until: Instant) -> Self {
        let held = Self {
            lease,
            leased_at: Instant::now(),
            stands_for: AtomicU64::new(0),
            drains: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
            cut: CancellationToken::new(),
        };
        held.renewed(stands_until);
        held
    }

    /// It stands until then.
    pub(crate) fn renewed(&self, stands_until: Instant) {
        let length = stands_until.saturating_duration_since(self.leased_at).as_micros();
        self.stands_for.store(u64::try_from(length).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn stands_until(&self) -> Instant {
        self.leased_at + std::time::Duration::from_micros(self.stands_for.load(Ordering::Relaxed))
    }

    pub(crate) fn stands(&self, now: Instant) -> bool {
        now < self.stands_until()
    }

    /// Whether another attempt may begin.
    pub(crate) fn goes_on(&self) -> bool {
        !self.drains() && self.stands(Instant::now())
    }

    pub(crate) fn drains(&self) -> bool {
        self.drains.load(Ordering::Acquire)
    }

    pub(crate) fn settles(&self) -> bool {
        !self.unsettled.load(Ordering::Acquire)
    }

    pub(super) fn drain(&self) {
        self.drains.store(true, Ordering::Release);
    }

    pub(super) fn stop_settling(&self) {
        self.unsettled.store(true, Ordering::Release);
    }

    /// Attempts that are under way end here.
    pub(super) fn cut(&self) {
        self.cut.cancel();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_cancelled()
    }

    /// Waits until attempts are to end.
    pub(crate) async fn until_cut(&self) {
        self.cut.cancelled().await;
    }

    pub(super) fn lose(&self) {
        self.drain();
        self.stop_settling();
        self.cut();
    }

    /// An attempt did not end by itself.
    pub(crate) fn note_interrupted(&self) {
        self.interrupted.store(true, Ordering::Release);
    }

    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }
}
