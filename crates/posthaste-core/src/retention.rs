//! Deletes old rows and looks after the parts of the table, round after round, for as long as the outbox lives.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::listener::chain;
use crate::metrics::{self, Metrics};
use crate::options::Options;
use crate::retry::Jitter;
use crate::store::{AdminStore, Error, Maintained, Purge, contained};

/// The task that deletes what is kept long enough. Dropped, it ends where it is.
pub(crate) struct Retention {
    stop: CancellationToken,
    task: Mutex<JoinSet<()>>,
}

impl Retention {
    /// Starts it, unless every row is to be kept for ever in a table without parts.
    pub(crate) fn start(
        store: impl AdminStore,
        options: &Options,
        metrics: Arc<dyn Metrics>,
        jitter: Jitter,
    ) -> Option<Self> {
        let kept = options.retention().or_else(|| store.has_parts().then(Purge::default))?;
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let (metrics, interval) = (Arc::new(metrics::Contained(metrics)), options.retention_interval);
        let rounds = Rounds { store, kept, interval, metrics, jitter, stop: stop.clone() };
        task.spawn(rounds.run());
        Some(Self { stop, task: Mutex::new(task) })
    }

    /// No more chunks after the one under way.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops, and waits for the chunk under way.
    pub(crate) async fn close(&self) {
        self.stop();
        let mut task = std::mem::take(&mut *self.task.lock().unwrap_or_else(PoisonError::into_inner));
        while task.join_next().await.is_some() {}
    }
}

struct Rounds<S> {
    store: S,
    kept: Purge,
    interval: Duration,
    metrics: Arc<dyn Metrics>,
    jitter: Jitter,
    stop: CancellationToken,
}

impl<S: AdminStore> Rounds<S> {
    async fn run(self) {
        while !self.stop.is_cancelled() {
            self.maintain().await;
            self.round().await;
            // Spread, so that nodes that started together do not go on deleting at the same moment.
            tokio::select! {
                () = sleep(self.interval.mul_f64(self.jitter.factor())) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Makes and drops parts of the table, where it has parts. What fails is left to the next round.
    async fn maintain(&self) {
        match contained(async { self.store.maintain(&self.kept).await }).await {
            Ok(Maintained { made: 0, moved: 0, dropped: 0 }) => {}
            Ok(Maintained { made, moved, dropped }) => info!(made, moved, dropped, "parts of the table looked after"),
            Err(error) => {
                warn!(error = %chain(&error), "parts of the table not looked after; trying again in the next round");
            }
        }
    }

    /// Deletes chunk after chunk until nothing old is left.
    async fn round(&self) {
        let started_at = Instant::now();
        let mut purged = 0;
        while !self.stop.is_cancelled() {
            match self.chunk(started_at.elapsed()).await {
                Ok(0) => break,
                Ok(count) => {
                    debug!(rows = count, "chunk of old rows deleted");
                    self.metrics.purged(count);
                    purged += count;
                }
                Err(error) => {
                    warn!(error = %chain(&error), "old rows not deleted; trying again in the next round");
                    break;
                }
            }
            yield_now().await;
        }
        if purged > 0 {
            info!(rows = purged, took = ?started_at.elapsed(), "old rows deleted");
        }
    }

    /// Deletes one chunk of what was old when the round began. What has become old since is left to the next round:
    /// otherwise a round would have no end where rows are done faster than a chunk of them is deleted.
    async fn chunk(&self, since: Duration) -> Result<u64, Error> {
        let longer = |kept: Option<Duration>| kept.map(|kept| kept + since);
        let purge = Purge {
            done_after: longer(self.kept.done_after),
            dead_after: longer(self.kept.dead_after),
            any_after: longer(self.kept.any_after),
            by_parts: true,
            chunk: self.kept.chunk,
        };
        contained(async { self.store.purge(&purge).await }).await
    }
}
