//! What is measured.

#[cfg(feature = "brokers")]
pub(crate) mod brokers;
pub(crate) mod cost;
pub(crate) mod dispatcher;
pub(crate) mod drain;
pub(crate) mod growth;
pub(crate) mod latency;
pub(crate) mod options;
pub(crate) mod ordered;
pub(crate) mod relay;
pub(crate) mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use posthaste_core::{Delivery, Metrics};
use tokio::sync::Notify;

/// How long a backlog may take until it is given up.
const PATIENCE: Duration = Duration::from_secs(600);

/// Counts deliveries.
pub(crate) struct Counter {
    delivered: Arc<AtomicUsize>,
    all: Arc<Notify>,
}

impl Counter {
    /// One that waits for that many, and the listener that counts.
    pub(crate) fn listener(
        events: usize,
    ) -> (Self, impl Fn(Delivery) -> std::future::Ready<()> + Send + Sync + 'static) {
        let counter = Self { delivered: Arc::default(), all: Arc::default() };
        let (delivered, all) = (Arc::clone(&counter.delivered), Arc::clone(&counter.all));
        let listener = move |_: Delivery| {
            if delivered.fetch_add(1, Ordering::Relaxed) + 1 == events {
                all.notify_one();
            }
            std::future::ready(())
        };
        (counter, listener)
    }

    /// Until all were delivered, which fails if that takes longer than anybody would wait.
    pub(crate) async fn wait(&self) -> anyhow::Result<()> {
        let all = tokio::time::timeout(PATIENCE, self.all.notified()).await;
        all.with_context(|| format!("only {} events were delivered", self.delivered.load(Ordering::Relaxed)))
    }
}

/// Counts events that are DONE.
#[derive(Clone, Default)]
pub(crate) struct Done(Arc<Counted>);

#[derive(Default)]
struct Counted {
    delivered: AtomicU64,
    more: Notify,
}

impl Metrics for Done {
    fn delivered(&self, count: u64) {
        self.0.delivered.fetch_add(count, Ordering::Relaxed);
        self.0.more.notify_one();
    }
}

impl Done {
    /// Until so many are, which fails if that takes longer than anybody would wait.
    pub(crate) async fn wait(&self, events: u64) -> anyhow::Result<()> {
        let delivered = || self.0.delivered.load(Ordering::Relaxed);
        let all = async {
            while delivered() < events {
                self.0.more.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.with_context(|| format!("only {} events were delivered", delivered()))
    }
}
