//! The ordered end of a relay of lanes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::LaneRelay;
use crate::dispatcher::Closed;
use crate::dispatcher::close::{self, Ending};

/// The tasks of a relay, and the signals that end them.
pub(super) struct Tasks {
    pub(super) workers: Mutex<JoinSet<()>>,
    pub(super) settler: Mutex<JoinSet<()>>,
    pub(super) reader: Mutex<JoinSet<()>>,
    /// Who keeps the lanes, and who watches their leases.
    pub(super) owner: Mutex<JoinSet<()>>,
    /// Nothing more is read, and outcomes do not linger.
    pub(super) closing: CancellationToken,
    pub(super) stop_owner: CancellationToken,
    ending: Ending,
}

impl Tasks {
    pub(super) fn new(deadline: Duration) -> Self {
        Self {
            workers: Mutex::default(),
            settler: Mutex::default(),
            reader: Mutex::default(),
            owner: Mutex::default(),
            closing: CancellationToken::new(),
            stop_owner: CancellationToken::new(),
            ending: Ending::new(deadline),
        }
    }
}

impl LaneRelay {
    /// Stops reading and starting, without waiting.
    pub(crate) fn stop(&self) {
        self.tasks.closing.cancel();
        self.keys.close();
    }

    /// How long a close may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.tasks.ending.deadline
    }

    /// Ends at once what has not ended by itself.
    pub(crate) async fn close_now(self: &Arc<Self>) -> Closed {
        self.tasks.ending.hurry();
        self.close_by(Instant::now()).await
    }

    /// Ends in order: nothing more begins, what is with listeners ends and is settled, and the lanes are given back. Calling it
    /// again waits for the one end.
    pub(crate) async fn close_by(self: &Arc<Self>, deadline: Instant) -> Closed {
        let end = |relay: Arc<Self>| async move { relay.end(deadline).await };
        Ending::end(self, |relay| &relay.tasks.ending, end).await
    }

    async fn end(&self, deadline: Instant) -> Closed {
        let (ending, started_at) = (&self.tasks.ending, Instant::now());
        self.stop();
        let mut cut = 0;
        let note_cut = || {
            cut = self.with_listeners.load(Ordering::Relaxed);
            for held in self.keys.leases() {
                // One that blocks its thread is left behind, and so is its lane.
                held.note_interrupted();
            }
        };
        ending.end_workers(&self.tasks.workers, close::for_listeners(started_at, deadline), note_cut).await;
        kill_point!("shutdown.drained");
        ending.end_settler(&self.tasks.settler, deadline).await;
        kill_point!("shutdown.settled");
        // What was not written keeps its lanes, since nobody can tell whether it is.
        let unsettled = self.keys.begun();
        self.end_owner().await;
        let left = ending.until(close::at_least(deadline), close::DATABASE, self.owner.leave()).await.is_some();
        self.forget();
        close::take(&self.tasks.reader).shutdown().await;
        let given_back = if left { cut } else { 0 };
        let closed = Closed { released: given_back, abandoned: cut - given_back + unsettled };
        info!(released = closed.released, abandoned = closed.abandoned, took = ?started_at.elapsed(), "relay closed");
        closed
    }

    async fn end_owner(&self) {
        self.tasks.stop_owner.cancel();
        let mut owner = close::take(&self.tasks.owner);
        // Who watches the leases does not end by itself; a renewal that is under way is let finish.
        let _ = timeout(close::CUT, owner.join_next()).await;
        owner.shutdown().await;
    }

    /// Nothing is in hand any more: what was only queued is as free as if it had never been read.
    fn forget(&self) {
        for held in self.keys.leases() {
            self.keys.lost(held.lease);
        }
    }
}
