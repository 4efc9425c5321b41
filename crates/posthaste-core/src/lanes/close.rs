//! The ordered end of a relay of lanes.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::LaneRelay;
use crate::dispatcher::{Closed, close};

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
    /// The close is to end now, even if it began with more time.
    hurry: CancellationToken,
    deadline: Duration,
    closer: Mutex<Option<JoinHandle<()>>>,
    closed: watch::Sender<Option<Closed>>,
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
            hurry: CancellationToken::new(),
            deadline,
            closer: Mutex::default(),
            closed: watch::Sender::new(None),
        }
    }
}

pub(super) fn spawn(tasks: &Mutex<JoinSet<()>>, task: impl Future<Output = ()> + Send + 'static) {
    tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
}

impl LaneRelay {
    /// Stops reading and starting, without waiting.
    pub(crate) fn stop(&self) {
        self.tasks.closing.cancel();
        self.keys.close();
    }

    /// How long a close may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.tasks.deadline
    }

    /// Ends at once what has not ended by itself.
    pub(crate) async fn close_now(self: &Arc<Self>) -> Closed {
        self.tasks.hurry.cancel();
        self.close_by(Instant::now()).await
    }

    /// Ends in order: nothing more begins, what is with listeners ends and is settled, and the lanes are given back. Calling it
    /// again waits for the one end.
    pub(crate) async fn close_by(self: &Arc<Self>, deadline: Instant) -> Closed {
        let mut closed = self.tasks.closed.subscribe();
        {
            let mut closer = self.tasks.closer.lock().unwrap_or_else(PoisonError::into_inner);
            if closer.is_none() {
                let relay = Arc::clone(self);
                *closer = Some(tokio::spawn(async move {
                    let closed = relay.end(deadline).await;
                    relay.tasks.closed.send_replace(Some(closed));
                }));
            }
        }
        let closed = closed.wait_for(Option::is_some).await;
        closed.ok().and_then(|closed| *closed).unwrap_or_default()
    }

    async fn end(&self, deadline: Instant) -> Closed {
        let started_at = Instant::now();
        self.stop();
        // A fifth of the time is for the database.
        let cut = self.end_workers(started_at + (deadline - started_at).mul_f64(0.8)).await;
        kill_point!("shutdown.drained");
        let mut settler = close::take(&self.tasks.settler);
        let last = || deadline.max(Instant::now() + close::DATABASE);
        if self.until(last(), close::DATABASE, close::join(&mut settler)).await.is_none() {
            settler.shutdown().await;
        }
        kill_point!("shutdown.settled");
        // What was not written keeps its lanes, since nobody can tell whether it is.
        let unsettled = self.keys.begun();
        self.end_owner().await;
        let left = self.until(last(), close::DATABASE, self.owner.leave()).await.is_some();
        self.forget();
        close::take(&self.tasks.reader).shutdown().await;
        let given_back = if left { cut } else { 0 };
        let closed = Closed { released: given_back, abandoned: cut - given_back + unsettled };
        info!(released = closed.released, abandoned = closed.abandoned, took = ?started_at.elapsed(), "relay closed");
        closed
    }

    /// Waits for what is with listeners, and cuts short what the deadline does not leave time for. Says how many events.
    async fn end_workers(&self, deadline: Instant) -> usize {
        let mut workers = close::take(&self.tasks.workers);
        if self.until(deadline, close::HURRY, close::join(&mut workers)).await.is_some() {
            return 0;
        }
        let cut = self.with_listeners.load(Ordering::Relaxed);
        for held in self.keys.leases() {
            held.note_interrupted();
        }
        workers.abort_all();
        // A listener that blocks its thread cannot be cut short; it is left behind, and so is its lane.
        if timeout(close::CUT, close::join(&mut workers)).await.is_err() {
            warn!(listeners = workers.len(), "listeners block their threads and are left behind");
        }
        cut
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

    /// Waits for something to end by itself: until the deadline, or until there is a hurry and it had that much time.
    async fn until<T>(&self, deadline: Instant, in_a_hurry: Duration, end: impl Future<Output = T>) -> Option<T> {
        let hurried = async {
            self.tasks.hurry.cancelled().await;
            tokio::time::sleep(in_a_hurry).await;
        };
        tokio::select! {
            biased;
            ended = timeout_at(deadline, end) => ended.ok(),
            () = hurried => None,
        }
    }
}
