//! Outboxes as the cases start them.

use std::time::Duration;

use posthaste_core::event::IntoEvent;
use posthaste_core::listener::AnyListener;
use posthaste_core::store::{Store, WriteStore};
use posthaste_core::{EventId, Options, Outbox};

use crate::meter::Meter;
use crate::tap::{Inbox, Tap};
use crate::witness::Witness;

/// Default options, but for an interval so long that nothing is ever delivered because of it.
pub fn no_interval() -> Options {
    Options { poll_interval: Duration::from_secs(3600), ..Options::default() }
}

/// An outbox with one listener for everything.
pub async fn start<S: Store>(store: S, options: Options, listener: impl Into<AnyListener>) -> (Outbox<S>, Meter) {
    let meter = Meter::new();
    let outbox = Outbox::builder(store).options(options).metrics(meter.clone()).listen_all(listener).start();
    (outbox.await.unwrap(), meter)
}

/// An outbox of one worker, which delivers in order: who hears of its transactions, and what it delivers. No interval is ever
/// over.
pub async fn watched<S: Store>(store: S) -> (Outbox<S>, Witness, Inbox) {
    let (tap, inbox) = Tap::new();
    let witness = Witness::default();
    let options = Options { workers: 1, ..no_interval() };
    let builder = Outbox::builder(store).options(options).hook(witness.clone()).listen_all(tap);
    (builder.start().await.unwrap(), witness, inbox)
}

/// Writes events in one transaction of the outbox.
pub(crate) async fn write_all<S: WriteStore, E: IntoEvent>(
    outbox: &Outbox<S>,
    events: impl IntoIterator<Item = E>,
) -> Vec<EventId> {
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all(events).await.unwrap();
    tx.commit().await.unwrap();
    ids
}

/// Writes one event in a transaction of its own.
pub(crate) async fn write<S: WriteStore>(outbox: &Outbox<S>, event: impl IntoEvent) -> EventId {
    write_all(outbox, [event]).await.pop().expect("no hook took it away")
}
