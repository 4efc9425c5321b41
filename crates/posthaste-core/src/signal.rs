//! Telling other processes that there is something to claim, and being told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::listener::chain;
use crate::retry::{Jitter, RetryPolicy};
use crate::store::{BoxFuture, Error, NewRow};
use crate::wake::Wake;

/// A way for processes on one table to tell each other of new rows, where the database has one.
///
/// It only saves time: a signal may get lost, and polling finds every row without it. So nothing here is waited for by
/// writers, and a database without such a way has none.
pub trait Signal: Send + Sync + 'static {
    /// Tells every process that listens. Not part of anybody's transaction.
    ///
    /// # Errors
    /// What the database said. It is logged; the rows wait for the next signal or poll.
    fn send(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Listens, and calls `wake` for every signal, for several at once if they come together. Also calls it as soon as
    /// it listens, for what it missed before. Ends only when it cannot go on, and is then called again, a little later.
    ///
    /// # Cancellation
    /// Dropped when the outbox shuts down.
    fn listen<'a>(&'a self, wake: &'a Wake) -> BoxFuture<'a, Error>;
}

/// The signals of one outbox: at most one under way, and one task that listens.
pub(crate) struct Signals {
    outgoing: Arc<Outgoing>,
    stop: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct Outgoing {
    due: AtomicBool,
    changed: Notify,
}

/// After a signal, the least time to the next. Commits in between share it. Short enough not to be noticed by who waits
/// for an event, long enough that a thousand commits a second do not cost the database a thousand signals.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a shutdown waits for the last signal.
const LAST_SIGNAL: Duration = Duration::from_secs(1);

/// Whoever has listened for this long had a good connection, and starts over with short pauses.
const GOOD_CONNECTION: Duration = Duration::from_secs(30);

impl Signals {
    /// Sends signals when there are rows for others, and wakes the poller, if there is one, when others have rows.
    pub(crate) fn start(signal: Arc<dyn Signal>, poller: Option<Wake>, jitter: Jitter) -> Self {
        let (outgoing, stop) = (Arc::<Outgoing>::default(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(tell(Arc::clone(&signal), Arc::clone(&outgoing), stop.clone()));
        if let Some(wake) = poller {
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = listen(signal, wake, jitter) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
        Self { outgoing, stop, tasks: Mutex::new(tasks) }
    }

    /// Rows were committed, or may have been. Those that this process has leased are its own business.
    pub(crate) fn committed(&self, rows: &[NewRow]) {
        if rows.iter().any(|row| row.lease.is_none()) && !self.outgoing.due.swap(true, Ordering::AcqRel) {
            self.outgoing.changed.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops listening, after what was to be told has been.
    pub(crate) async fn close(&self) {
        self.stop();
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
    }
}

async fn tell(signal: Arc<dyn Signal>, outgoing: Arc<Outgoing>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = outgoing.changed.notified() => {}
            () = stop.cancelled() => {}
        }
        let last = stop.is_cancelled();
        if outgoing.due.swap(false, Ordering::AcqRel) {
            match timeout(LAST_SIGNAL, signal.send()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(error = %chain(&error), "signal not sent; pollers find the rows"),
                Err(_) => debug!("signal not sent in time; pollers find the rows"),
            }
        }
        if last {
            return;
        }
        tokio::select! {
            () = sleep(PAUSE) => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn listen(signal: Arc<dyn Signal>, wake: Wake, jitter: Jitter) {
    let pauses = RetryPolicy::exponential(Duration::from_millis(100), Duration::from_secs(30));
    let mut failures = 0;
    loop {
        let began_at = Instant::now();
        let error = signal.listen(&wake).await;
        if began_at.elapsed() >= GOOD_CONNECTION {
            failures = 0;
        }
        failures += 1;
        let pause = pauses.delay(failures, &jitter);
        if failures == 1 {
            warn!(error = %chain(&error), ?pause, "not listening for signals, trying again; polling goes on");
        } else {
            debug!(error = %chain(&error), ?pause, failures, "not listening for signals, trying again");
        }
        sleep(pause).await;
    }
}
