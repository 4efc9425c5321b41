//! The ordered end of a dispatcher.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Dispatcher;
use crate::store::{Action, Settled, Settlement};

/// How long listeners that are cut short may take to be gone.
pub(crate) const CUT: Duration = Duration::from_millis(200);

/// How long the database gets for each of the last statements, even when the deadline is over.
pub(crate) const DATABASE: Duration = Duration::from_millis(500);

/// How long workers get when there is a hurry, to hand over what they have just finished.
pub(crate) const HURRY: Duration = Duration::from_millis(50);

/// How a dispatcher ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Events that were given back because the deadline came first. Others may deliver them at once.
    pub released: usize,
    /// Events that could not even be given back. They are delivered when their leases run out.
    pub abandoned: usize,
}

impl Closed {
    /// Whether everything in hand was delivered and settled.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

/// The tasks of a dispatcher, and the signals that end them.
pub(super) struct Tasks {
    workers: Mutex<JoinSet<()>>,
    settler: Mutex<JoinSet<()>>,
    keeper: Mutex<JoinSet<()>>,
    stop_keeper: CancellationToken,
    closing: CancellationToken,
    /// The close is to end now, even if it began with more time.
    hurry: CancellationToken,
    deadline: Duration,
    closer: Mutex<Option<JoinHandle<()>>>,
    closed: watch::Sender<Option<Closed>>,
}

impl Tasks {
    pub(super) fn new(deadline: Duration, closing: CancellationToken) -> Self {
        Self {
            workers: Mutex::default(),
            settler: Mutex::default(),
            keeper: Mutex::default(),
            stop_keeper: CancellationToken::new(),
            closing,
            hurry: CancellationToken::new(),
            deadline,
            closer: Mutex::default(),
            closed: watch::Sender::new(None),
        }
    }

    pub(super) fn stop_keeper(&self) -> CancellationToken {
        self.stop_keeper.clone()
    }

    pub(super) fn spawn_worker(&self, worker: impl Future<Output = ()> + Send + 'static) {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).spawn(worker);
    }

    pub(super) fn spawn_settler(&self, settler: impl Future<Output = ()> + Send + 'static) {
        self.settler.lock().unwrap_or_else(PoisonError::into_inner).spawn(settler);
    }

    pub(super) fn spawn_keeper(&self, keeper: impl Future<Output = ()> + Send + 'static) {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).spawn(keeper);
    }
}

impl Dispatcher {
    /// Ends the dispatcher in order: refuses new work, drains both queues, settles, and gives back what the deadline
    /// cut off. Calling it again, or from several tasks at once, waits for the one end and tells the same.
    ///
    /// # Cancellation
    /// The end is a task of its own: it goes on when nobody waits for it.
    pub async fn close(self: &Arc<Self>) -> Closed {
        self.close_by(Instant::now() + self.tasks.deadline).await
    }

    /// Like [`close`](Self::close), but gives back at once what has not ended by itself. Cuts a close under way short.
    pub async fn close_now(self: &Arc<Self>) -> Closed {
        self.tasks.hurry.cancel();
        self.close_by(Instant::now()).await
    }

    pub(crate) async fn close_by(self: &Arc<Self>, deadline: Instant) -> Closed {
        let mut closed = self.tasks.closed.subscribe();
        {
            let mut closer = self.tasks.closer.lock().unwrap_or_else(PoisonError::into_inner);
            if closer.is_none() {
                let dispatcher = Arc::clone(self);
                *closer = Some(tokio::spawn(async move {
                    let closed = dispatcher.end(deadline).await;
                    dispatcher.tasks.closed.send_replace(Some(closed));
                }));
            }
        }
        let closed = closed.wait_for(Option::is_some).await;
        closed.ok().and_then(|closed| *closed).unwrap_or_default()
    }

    async fn end(&self, deadline: Instant) -> Closed {
        let started_at = Instant::now();
        self.tasks.closing.cancel();
        self.queues.close();
        // A fifth of the time is for the database.
        self.end_workers(started_at + (deadline - started_at).mul_f64(0.8)).await;
        kill_point!("shutdown.drained");
        self.end_settler(deadline.max(Instant::now() + DATABASE)).await;
        kill_point!("shutdown.settled");
        let closed = self.release_the_rest(deadline.max(Instant::now() + DATABASE)).await;
        self.end_keeper().await;
        info!(released = closed.released, abandoned = closed.abandoned, took = ?started_at.elapsed(), "dispatcher closed");
        closed
    }

    /// Waits for the workers to drain the queues, and cuts short what the deadline does not leave time for.
    async fn end_workers(&self, deadline: Instant) {
        let mut workers = take(&self.tasks.workers);
        if self.until(deadline, HURRY, join(&mut workers)).await.is_none() {
            self.queues.drain();
            workers.abort_all();
            // A listener that blocks its thread cannot be cut short; it is left behind.
            if timeout(CUT, join(&mut workers)).await.is_err() {
                warn!(listeners = workers.len(), "listeners block their threads and are left behind");
            }
        }
    }

    /// Waits for the settler to write what it was handed; it ends by itself now that no worker is left.
    async fn end_settler(&self, deadline: Instant) {
        let mut settler = take(&self.tasks.settler);
        if self.until(deadline, DATABASE, join(&mut settler)).await.is_none() {
            settler.shutdown().await;
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

    /// Gives back every event that is still in hand: in a queue, or with a listener that was cut short.
    async fn release_the_rest(&self, deadline: Instant) -> Closed {
        self.queues.drain();
        let rest = self.in_flight.drain();
        let releases: Vec<_> =
            rest.into_iter().map(|(id, lease)| Settlement::new(id, lease, Action::Release)).collect();
        let mut closed = Closed { released: 0, abandoned: releases.len() };
        kill_point!("release.before");
        if !releases.is_empty()
            && let Some(Ok(results)) = self.until(deadline, DATABASE, self.keeper.store.settle(&releases)).await
        {
            kill_point!("release.after");
            let released = results.iter().filter(|settled| **settled == Settled::Applied).count();
            self.metrics.released(released as u64);
            // What was lost belongs to somebody else by now, and is nothing that we leave behind.
            closed = Closed { released, abandoned: 0 };
        }
        if closed.abandoned > 0 {
            warn!(events = closed.abandoned, "events not given back; they wait until their leases run out");
        }
        let unused = self.hot.handback.take_all();
        if self.until(deadline, DATABASE, self.keeper.give_back(unused)).await.is_none() {
            warn!("unused leases not given back; their events wait until they run out");
        }
        closed
    }

    async fn end_keeper(&self) {
        self.tasks.stop_keeper.cancel();
        let mut keeper = take(&self.tasks.keeper);
        if timeout(CUT, join(&mut keeper)).await.is_err() {
            keeper.shutdown().await;
        }
    }
}

pub(crate) fn take(tasks: &Mutex<JoinSet<()>>) -> JoinSet<()> {
    std::mem::take(&mut *tasks.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(crate) async fn join(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}
