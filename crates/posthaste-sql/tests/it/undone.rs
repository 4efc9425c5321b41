//! Events that their user has undone by statements of his own, through the connection that was lent to him.

use std::time::Duration;

use posthaste_core::listener::Path;
use posthaste_core::store::Store;
use posthaste_core::{Delivery, EventId, Options, Outbox};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::support::event;

/// What is done in a transaction of the outbox, in this order.
pub(crate) enum Step {
    /// Writes these events at once.
    Write(&'static [&'static str]),
    /// Says this through the connection.
    Say(&'static str),
}

/// What became of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The events that were delivered, each with its path, in the order of their names.
    pub(crate) delivered: Vec<(String, Path)>,
    /// Those that are in the table, in the same order.
    pub(crate) stored: Vec<String>,
    /// Whether it was committed.
    pub(crate) committed: bool,
}

impl Outcome {
    pub(crate) fn of(hot: &[&str], cold: &[&str]) -> Self {
        let by = |ids: &[&str], path| ids.iter().map(|id| ((*id).to_owned(), path)).collect::<Vec<_>>();
        let mut delivered = [by(hot, Path::Hot), by(cold, Path::Cold)].concat();
        delivered.sort_by(|one, other| one.0.cmp(&other.0));
        let stored = delivered.iter().map(|(id, _)| id.clone()).collect();
        Self { delivered, stored, committed: true }
    }

    pub(crate) fn not_committed() -> Self {
        Self { committed: false, ..Self::of(&[], &[]) }
    }
}

/// Carries out the steps in a transaction, commits it, and waits until all that is in the table is delivered.
pub(crate) async fn after<S: Store + Clone>(
    store: &S,
    steps: &[Step],
    say: impl AsyncFn(&mut S::Connection, &'static str),
) -> Outcome {
    let (tell, mut told) = mpsc::unbounded_channel();
    let listener = move |event: Delivery| {
        tell.send((event.id().to_string(), event.path())).unwrap();
        async {}
    };
    // The poller comes when it is called, and not by itself.
    let options = Options { poll_interval: Duration::from_secs(3600), ..Options::default() };
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let mut written = Vec::new();
    for step in steps {
        match step {
            Step::Write(ids) => {
                written.extend_from_slice(ids);
                tx.write_all(ids.iter().map(|id| event(id))).await.unwrap();
            }
            Step::Say(sql) => say(&mut tx, sql).await,
        }
    }
    let committed = tx.commit().await.is_ok();
    let all_done = async {
        while outbox.admin().counts().await.unwrap().pending() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), all_done).await.expect("what is in the table is delivered");
    outbox.shutdown().await;

    written.sort_unstable();
    written.dedup();
    let mut stored = Vec::new();
    for id in written {
        if outbox.admin().find(&EventId::from_row(id)).await.unwrap().is_some() {
            stored.push(id.to_owned());
        }
    }
    let mut delivered = Vec::new();
    while let Ok(delivery) = told.try_recv() {
        delivered.push(delivery);
    }
    delivered.sort_by(|one, other| one.0.cmp(&other.0));
    Outcome { delivered, stored, committed }
}
