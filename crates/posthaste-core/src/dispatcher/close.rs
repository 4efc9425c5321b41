//! The ordered end of a dispatcher.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Dispatcher;
use crate::store::{Action, Settled, Settlement};

/// How long listeners that are cut short may take to be gone.
const CUT: Duration = Duration::from_millis(200);

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
    settler: Mutex<Option<JoinHandle<()>>>,
    keeper: Mutex<JoinSet<()>>,
    stop_keeper: CancellationToken,
    closing: CancellationToken,
    /// The close is to end now, even if it began with more time.
    hurry: CancellationToken,
    deadline: Duration,
    closed: OnceCell<Closed>,
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
            closed: OnceCell::new(),
        }
    }

    pub(super) fn stop_keeper(&self) -> CancellationToken {
        self.stop_keeper.clone()
    }

    pub(super) fn spawn_workers(&self, workers: impl Iterator<Item = impl Future<Output = ()> + Send + 'static>) {
        let mut set = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for worker in workers {
            set.spawn(worker);
        }
    }

    pub(super) fn spawn_settler(&self, settler: impl Future<Output = ()> + Send + 'static) {
        *self.settler.lock().unwrap_or_else(PoisonError::into_inner) = Some(tokio::spawn(settler));
    }

    pub(super) fn spawn_keeper(&self, keeper: impl Future<Output = ()> + Send + 'static) {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).spawn(keeper);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // Workers and keeper end with their sets; the settler would otherwise outlive its dispatcher.
        if let Some(settler) = self.settler.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            settler.abort();
        }
    }
}

impl Dispatcher {
    /// Ends the dispatcher in order: refuses new work, drains both queues, settles, and gives back what the deadline
    /// cut off. Calling it again, or from several tasks at once, waits for the one end and tells the same.
    ///
    /// # Cancellation
    /// When the future is dropped the end stops where it was; another call takes it up.
    pub async fn close(&self) -> Closed {
        *self.tasks.closed.get_or_init(|| self.close_within(self.tasks.deadline)).await
    }

    /// Like [`close`](Self::close), but gives back at once what has not ended by itself. Cuts a close under way short.
    pub async fn close_now(&self) -> Closed {
        self.tasks.hurry.cancel();
        *self.tasks.closed.get_or_init(|| self.close_within(Duration::ZERO)).await
    }

    async fn close_within(&self, deadline: Duration) -> Closed {
        let started_at = Instant::now();
        self.tasks.closing.cancel();
        self.queues.close();
        self.end_workers(started_at + deadline.mul_f64(0.8)).await;
        // What is left of the deadline, and a little, is for the database.
        let at_least = Instant::now() + Duration::from_millis(500);
        let hurried = self.tasks.hurry.is_cancelled();
        let end_at = if hurried { at_least } else { (started_at + deadline).max(at_least) };
        self.end_settler(end_at).await;
        let closed = self.release_the_rest(end_at).await;
        self.end_keeper(end_at).await;
        info!(released = closed.released, abandoned = closed.abandoned, took = ?started_at.elapsed(), "dispatcher closed");
        closed
    }

    /// Waits for the workers to drain the queues, and cuts short what the deadline does not leave time for.
    async fn end_workers(&self, deadline: Instant) {
        let mut workers = std::mem::take(&mut *self.tasks.workers.lock().unwrap_or_else(PoisonError::into_inner));
        let drained = tokio::select! {
            biased;
            drained = timeout_at(deadline, async { while workers.join_next().await.is_some() {} }) => drained.is_ok(),
            () = self.tasks.hurry.cancelled() => false,
        };
        if !drained {
            self.queues.drain();
            workers.abort_all();
            // A listener that blocks its thread cannot be cut short; it is left behind.
            let cut = timeout_at(Instant::now() + CUT, async { while workers.join_next().await.is_some() {} }).await;
            if cut.is_err() {
                warn!(listeners = workers.len(), "listeners block their threads and are left behind");
            }
        }
    }

    /// Waits for the settler to write what it was handed; it ends by itself now that no worker is left.
    async fn end_settler(&self, end_at: Instant) {
        let settler = self.tasks.settler.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut settler) = settler else { return };
        if timeout_at(end_at, &mut settler).await.is_err() {
            settler.abort();
        }
    }

    /// Gives back every event that is still in hand: in a queue, or with a listener that was cut short.
    async fn release_the_rest(&self, end_at: Instant) -> Closed {
        self.queues.drain();
        let rest = self.in_flight.drain();
        let releases: Vec<_> =
            rest.into_iter().map(|(id, lease)| Settlement::new(id, lease, Action::Release)).collect();
        let unused = self.hot.handback.take_all();
        let release = async {
            self.keeper.give_back(unused).await;
            if releases.is_empty() { Ok(Vec::new()) } else { self.keeper.store.settle(&releases).await }
        };
        let end_at = end_at.max(Instant::now() + Duration::from_millis(200));
        match timeout_at(end_at, release).await {
            Ok(Ok(results)) => {
                let released = results.iter().filter(|settled| **settled == Settled::Applied).count();
                self.metrics.released(released as u64);
                Closed { released, abandoned: 0 }
            }
            Ok(Err(_)) | Err(_) => {
                warn!(events = releases.len(), "events not given back; they wait until their leases run out");
                Closed { released: 0, abandoned: releases.len() }
            }
        }
    }

    async fn end_keeper(&self, end_at: Instant) {
        self.tasks.stop_keeper.cancel();
        let mut keeper = std::mem::take(&mut *self.tasks.keeper.lock().unwrap_or_else(PoisonError::into_inner));
        let end_at = end_at.max(Instant::now() + Duration::from_millis(100));
        if timeout_at(end_at, async { while keeper.join_next().await.is_some() {} }).await.is_err() {
            keeper.shutdown().await;
        }
    }
}
