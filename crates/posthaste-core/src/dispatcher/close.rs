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
const HURRY: Duration = Duration::from_millis(50);

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

/// The one end of something that is made of tasks, however often and by however many it is asked for.
pub(crate) struct Ending {
    /// It is to end now, even if it began with more time.
    hurry: CancellationToken,
    /// How long it may take.
    pub(crate) deadline: Duration,
    closer: Mutex<Option<JoinHandle<()>>>,
    closed: watch::Sender<Option<Closed>>,
}

impl Ending {
    pub(crate) fn new(deadline: Duration) -> Self {
        let (hurry, closer, closed) = (CancellationToken::new(), Mutex::default(), watch::Sender::new(None));
        Self { hurry, deadline, closer, closed }
    }

    /// Has an end that is under way, or is to come, take no more time.
    pub(crate) fn hurry(&self) {
        self.hurry.cancel();
    }

    /// Ends it, if that has not begun, in a task of its own, which goes on when nobody waits for it; and waits for that.
    pub(crate) async fn end<T, E>(of: &Arc<T>, ending: fn(&T) -> &Self, end: impl FnOnce(Arc<T>) -> E) -> Closed
    where
        T: Send + Sync + 'static,
        E: Future<Output = Closed> + Send + 'static,
    {
        let mut closed = ending(of).closed.subscribe();
        {
            let mut closer = ending(of).closer.lock().unwrap_or_else(PoisonError::into_inner);
            if closer.is_none() {
                let (end, of) = (end(Arc::clone(of)), Arc::clone(of));
                *closer = Some(tokio::spawn(async move {
                    let closed = end.await;
                    ending(&of).closed.send_replace(Some(closed));
                }));
            }
        }
        let closed = closed.wait_for(Option::is_some).await;
        closed.ok().and_then(|closed| *closed).unwrap_or_default()
    }

    /// Waits for something to end by itself: until the deadline, or until there is a hurry and it had that much time.
    pub(crate) async fn until<T>(
        &self,
        deadline: Instant,
        in_a_hurry: Duration,
        end: impl Future<Output = T>,
    ) -> Option<T> {
        let hurried = async {
            self.hurry.cancelled().await;
            tokio::time::sleep(in_a_hurry).await;
        };
        tokio::select! {
            biased;
            ended = timeout_at(deadline, end) => ended.ok(),
            () = hurried => None,
        }
    }

    /// Waits for workers, and cuts short what the deadline does not leave time for. Says whether it had to.
    pub(crate) async fn end_workers(
        &self,
        workers: &Mutex<JoinSet<()>>,
        deadline: Instant,
        before_cut: impl FnOnce(),
    ) -> bool {
        let mut workers = take(workers);
        if self.until(deadline, HURRY, join(&mut workers)).await.is_some() {
            return false;
        }
        before_cut();
        workers.abort_all();
        // A listener that blocks its thread cannot be cut short; it is left behind.
        if timeout(CUT, join(&mut workers)).await.is_err() {
            warn!(listeners = workers.len(), "listeners block their threads and are left behind");
        }
        true
    }

    /// Waits for a settler to write what it was handed; it ends by itself when no worker is left.
    pub(crate) async fn end_settler(&self, settler: &Mutex<JoinSet<()>>, deadline: Instant) {
        let mut settler = take(settler);
        if self.until(at_least(deadline), DATABASE, join(&mut settler)).await.is_none() {
            settler.shutdown().await;
        }
    }
}

/// When listeners have to be through, so that a fifth of the time is left for the database.
pub(crate) fn for_listeners(started_at: Instant, deadline: Instant) -> Instant {
    started_at + (deadline - started_at).mul_f64(0.8)
}

/// The deadline, or what the database gets in any case.
pub(crate) fn at_least(deadline: Instant) -> Instant {
    deadline.max(Instant::now() + DATABASE)
}

/// The tasks of a dispatcher, and the signals that end them.
pub(super) struct Tasks {
    pub(super) workers: Mutex<JoinSet<()>>,
    pub(super) settler: Mutex<JoinSet<()>>,
    pub(super) keeper: Mutex<JoinSet<()>>,
    pub(super) stop_keeper: CancellationToken,
    closing: CancellationToken,
    ending: Ending,
}

impl Tasks {
    pub(super) fn new(deadline: Duration, closing: CancellationToken) -> Self {
        let (workers, settler, keeper) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (stop_keeper, ending) = (CancellationToken::new(), Ending::new(deadline));
        Self { workers, settler, keeper, stop_keeper, closing, ending }
    }
}

impl Dispatcher {
    /// Ends the dispatcher in order: refuses new work, drains both queues, settles, and gives back what the deadline
    /// cut off. Calling it again, or from several tasks at once, waits for the one end and tells the same.
    ///
    /// # Cancellation
    /// The end is a task of its own: it goes on when nobody waits for it.
    pub async fn close(self: &Arc<Self>) -> Closed {
        self.close_by(Instant::now() + self.tasks.ending.deadline).await
    }

    /// Like [`close`](Self::close), but gives back at once what has not ended by itself. Cuts a close under way short.
    pub async fn close_now(self: &Arc<Self>) -> Closed {
        self.tasks.ending.hurry();
        self.close_by(Instant::now()).await
    }

    pub(crate) async fn close_by(self: &Arc<Self>, deadline: Instant) -> Closed {
        let end = |dispatcher: Arc<Self>| async move { dispatcher.end(deadline).await };
        Ending::end(self, |dispatcher| &dispatcher.tasks.ending, end).await
    }

    async fn end(&self, deadline: Instant) -> Closed {
        let (tasks, started_at) = (&self.tasks, Instant::now());
        tasks.closing.cancel();
        self.queues.close();
        let for_listeners = for_listeners(started_at, deadline);
        tasks.ending.end_workers(&tasks.workers, for_listeners, || drop(self.queues.drain())).await;
        kill_point!("shutdown.drained");
        tasks.ending.end_settler(&tasks.settler, deadline).await;
        kill_point!("shutdown.settled");
        let closed = self.release_the_rest(at_least(deadline)).await;
        self.end_keeper().await;
        info!(released = closed.released, abandoned = closed.abandoned, took = ?started_at.elapsed(), "dispatcher closed");
        closed
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
            && let Some(Ok(results)) =
                self.tasks.ending.until(deadline, DATABASE, self.keeper.store.settle(&releases)).await
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
        if self.tasks.ending.until(deadline, DATABASE, self.keeper.give_back(unused)).await.is_none() {
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

pub(crate) fn spawn(tasks: &Mutex<JoinSet<()>>, task: impl Future<Output = ()> + Send + 'static) {
    tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(task);
}

pub(crate) fn take(tasks: &Mutex<JoinSet<()>>) -> JoinSet<()> {
    std::mem::take(&mut *tasks.lock().unwrap_or_else(PoisonError::into_inner))
}

async fn join(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}
