//! Outboxes as the cases start them.

use std::time::Duration;

use posthaste_core::event::IntoEvent;
use posthaste_core::listener::AnyListener;
use posthaste_core::store::{Store, WriteStore};
use posthaste_core::{EventId, Options, Outbox};

use crate::meter::Meter;

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
