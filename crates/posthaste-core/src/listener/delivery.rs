//! An event on its way to a listener.

use std::ops::Deref;

use crate::event::Event;

/// An event on its way to a listener, with what is known of this attempt.
///
/// Dereferences to the [`Event`]. Cheap to clone.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::Path;
/// use posthaste::{Delivery, Event};
///
/// // For a test of a listener: the third attempt, after two that failed.
/// let event = Delivery::new(Event::of_json("OrderPlaced", "{}")?, 2, Path::Cold);
/// assert_eq!((event.attempt(), event.event_type()), (3, "OrderPlaced"));
/// # Ok::<(), posthaste::event::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Delivery {
    event: Event,
    attempt: u32,
    path: Path,
    seq: Option<i64>,
}

/// How an event came to the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Path {
    /// Straight from the commit that wrote it, in memory.
    Hot,
    /// From the table, by a claim.
    Cold,
}

impl Delivery {
    /// An event with the number of failed attempts before this one.
    pub fn new(event: Event, failed_attempts: u32, path: Path) -> Self {
        Self { event, attempt: failed_attempts.saturating_add(1), path, seq: None }
    }

    /// With the number of its row.
    pub(crate) fn with_seq(mut self, seq: i64) -> Self {
        self.seq = Some(seq);
        self
    }

    /// Others have had it meanwhile, and it failed with them.
    pub(crate) fn set_failed_attempts(&mut self, failed_attempts: u32) {
        self.attempt = failed_attempts.saturating_add(1);
    }

    /// How often it had failed before this attempt.
    pub(crate) fn failed_attempts(&self) -> u32 {
        self.attempt.saturating_sub(1)
    }

    /// The event itself.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Which attempt this is; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The number that the database gave it, where it is known: in an outbox with order always. Of two events of an aggregate the
    /// later one has the higher number, so whoever keeps the last one that he took can tell a repeat that comes after later events.
    pub fn seq(&self) -> Option<i64> {
        self.seq
    }

    /// How it came here.
    pub fn path(&self) -> Path {
        self.path
    }
}

impl Deref for Delivery {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

impl From<Delivery> for Event {
    fn from(delivery: Delivery) -> Self {
        delivery.event
    }
}
