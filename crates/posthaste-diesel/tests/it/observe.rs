//! What the tests write, and what they see of it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use posthaste_conformance::{Inbox, Tap, no_interval};
use posthaste_core::hook::HookError;
use posthaste_core::store::{NewRow, Store};
use posthaste_core::{Event, EventId, Outbox, WriteHook};

/// What a [`Witness`] was told: the step, and the ids.
pub(crate) type Told = (&'static str, Vec<String>);

/// A hook that remembers what it was told.
#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Mutex<Vec<Told>>>);

impl Witness {
    fn note(&self, step: &'static str, rows: &[NewRow]) -> Result<(), HookError> {
        let ids = rows.iter().map(|row| row.event.id().to_string()).collect();
        self.0.lock().unwrap().push((step, ids));
        Ok(())
    }

    /// What it was told since it was asked last.
    pub(crate) fn told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl WriteHook for Witness {
    fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("commit", rows)
    }

    fn after_rollback(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("rollback", rows)
    }

    fn after_unknown(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("unknown", rows)
    }
}

pub(crate) fn told(step: &'static str, events: &[Event]) -> Told {
    (step, ids_of(events))
}

/// An outbox of one worker with a witness, which delivers to an inbox.
pub(crate) async fn start<S: Store>(store: S) -> (Outbox<S>, Witness, Inbox) {
    let (tap, inbox) = Tap::new();
    let witness = Witness::default();
    let options = posthaste_core::Options { workers: 1, ..no_interval() };
    let outbox = Outbox::builder(store).options(options).hook(witness.clone()).listen_all(tap).start().await.unwrap();
    (outbox, witness, inbox)
}

pub(crate) fn event(event_type: &str) -> Event {
    Event::builder(event_type).json_text("{}").build().unwrap()
}

pub(crate) fn events(count: usize) -> Vec<Event> {
    (0..count).map(|_| event("Happened")).collect()
}

pub(crate) fn ids_of(events: &[Event]) -> Vec<String> {
    texts(&events.iter().map(|event| event.id().clone()).collect::<Vec<_>>())
}

pub(crate) fn texts(ids: &[EventId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// How many rows the table has.
pub(crate) async fn total<S: Store>(outbox: &Outbox<S>) -> u64 {
    outbox.admin().counts().await.unwrap().total()
}

/// Polls a future that many times and then drops it. Its output, if it came to its end before.
pub(crate) async fn cut_short<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Pending if left == 0 => Poll::Ready(None),
            polled => polled.map(Some),
        }
    })
    .await
}
