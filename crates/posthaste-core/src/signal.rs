//! Telling other processes that there is something to claim, and being told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Rows committed so far.
    rows: AtomicU64,
    changed: Notify,
}

/// When rows come faster than this, per second, signals pause in between, and many commits share one. Whoever waits for
/// one of so many events waits for those before it in any case. Slower ones are signalled at once, each commit.
const MANY_ROWS: f64 = 2000.0;

/// Over how long rows are counted, at least.
const COUNTED: Duration = Duration::from_millis(50);

/// Where signals usually take longer than this they are followed by a pause in any case, as long as the last one took, and at most
/// so long: then they take half of one connection at most. One that was held up now and then is not: who commits just then has
/// waited for it already.
const QUICK: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Of how many signals it is known what they usually take, about.
const USUALLY: u32 = 8;

/// The least pause, and how many times as long as the signal took: so that of a busy database signals take a tenth of one
/// connection at most.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_FACTOR: u32 = 8;

/// The longest pause, also when there are many: whoever sleeps for a long interval relies on signals.
const LONGEST_PAUSE_OF_MANY: Duration = Duration::from_millis(100);

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
        let for_others = rows.iter().filter(|row| row.lease.is_none()).count() as u64;
        if for_others == 0 {
            return;
        }
        self.outgoing.rows.fetch_add(for_others, Ordering::Relaxed);
        if !self.outgoing.due.swap(true, Ordering::AcqRel) {
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

/// How fast rows come.
struct Pace {
    since: Instant,
    rows: u64,
    per_second: f64,
}

impl Pace {
    fn new() -> Self {
        Self { since: Instant::now(), rows: 0, per_second: 0.0 }
    }

    /// Whether there are too many rows for a signal per commit.
    fn is_too_fast(&mut self, rows: u64) -> bool {
        let elapsed = self.since.elapsed();
        if elapsed >= COUNTED {
            self.per_second = (rows - self.rows) as f64 / elapsed.as_secs_f64();
            (self.since, self.rows) = (Instant::now(), rows);
        }
        self.per_second > MANY_ROWS
    }
}

async fn tell(signal: Arc<dyn Signal>, outgoing: Arc<Outgoing>, stop: CancellationToken) {
    let (mut pace, mut usual) = (Pace::new(), Duration::ZERO);
    loop {
        tokio::select! {
            () = outgoing.changed.notified() => {}
            () = stop.cancelled() => {}
        }
        let last = stop.is_cancelled();
        let began_at = Instant::now();
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
        let took = began_at.elapsed();
        usual = (usual * (USUALLY - 1) + took.min(LAST_SIGNAL)) / USUALLY;
        let pause = match pace.is_too_fast(outgoing.rows.load(Ordering::Relaxed)) {
            true => (took * PAUSE_FACTOR).clamp(PAUSE, LONGEST_PAUSE_OF_MANY),
            false if usual < QUICK || took < QUICK => continue,
            false => took.min(LONGEST_PAUSE),
        };
        tokio::select! {
            () = sleep(pause) => {}
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::event::Event;
    use crate::store::Lease;

    /// Counts, and takes its time.
    #[derive(Default)]
    struct Counting {
        sent: AtomicUsize,
        /// Of so many one takes longer.
        slow_of: usize,
        listened: AtomicUsize,
    }

    impl Signal for Counting {
        fn send(&self) -> BoxFuture<'_, Result<(), Error>> {
            Box::pin(async {
                let is_slow = self.slow_of > 0 && self.sent.load(Ordering::Relaxed).is_multiple_of(self.slow_of);
                sleep(Duration::from_millis(if is_slow { 4 } else { 1 })).await;
                self.sent.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        }

        fn listen<'a>(&'a self, _: &'a Wake) -> BoxFuture<'a, Error> {
            Box::pin(async {
                self.listened.fetch_add(1, Ordering::Relaxed);
                Error::Unavailable("gone".into())
            })
        }
    }

    fn row() -> NewRow {
        NewRow::new(Event::builder("T").json_text("1").build().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn commits_in_a_row_share_signals_and_the_last_one_goes_out() {
        let counting = Arc::new(Counting::default());
        let signals = Signals::start(Arc::clone(&counting) as Arc<_>, None, Jitter::seeded(1));
        for _ in 0..1000 {
            for _ in 0..5 {
                signals.committed(&[row()]);
            }
            sleep(Duration::from_millis(1)).await;
        }
        let sent = counting.sent.load(Ordering::Relaxed);
        assert!((50..=200).contains(&sent), "{sent} signals for five thousand commits");
        sleep(Duration::from_secs(1)).await;
        let before = counting.sent.load(Ordering::Relaxed);
        signals.committed(&[row()]);
        signals.close().await;
        assert_eq!(counting.sent.load(Ordering::Relaxed), before + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn commits_of_many_rows_share_signals_too() {
        let counting = Arc::new(Counting::default());
        let signals = Signals::start(Arc::clone(&counting) as Arc<_>, None, Jitter::seeded(1));
        let rows: Vec<_> = (0..100).map(|_| row()).collect();
        for _ in 0..1000 {
            signals.committed(&rows);
            sleep(Duration::from_millis(1)).await;
        }
        let sent = counting.sent.load(Ordering::Relaxed);
        assert!((50..=200).contains(&sent), "{sent} signals for a thousand commits of a hundred rows");
        signals.close().await;
    }

    #[tokio::test(start_paused = true)]
    async fn commits_now_and_then_have_a_signal_each() {
        let counting = Arc::new(Counting::default());
        let signals = Signals::start(Arc::clone(&counting) as Arc<_>, None, Jitter::seeded(1));
        for _ in 0..300 {
            signals.committed(&[row()]);
            sleep(Duration::from_millis(3)).await;
        }
        signals.close().await;
        assert_eq!(counting.sent.load(Ordering::Relaxed), 300);
    }

    #[tokio::test(start_paused = true)]
    async fn only_where_signals_are_slow_again_and_again_they_pause() {
        for (slow_of, expected) in [(20, 900..=1000), (1, 240..=300)] {
            let counting = Arc::new(Counting { slow_of, ..Counting::default() });
            let signals = Signals::start(Arc::clone(&counting) as Arc<_>, None, Jitter::seeded(1));
            for _ in 0..1000 {
                signals.committed(&[row()]);
                sleep(Duration::from_millis(2)).await;
            }
            signals.close().await;
            let sent = counting.sent.load(Ordering::Relaxed);
            assert!(expected.contains(&sent), "{sent} signals where one of {slow_of} is slow");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_this_process_delivers_are_no_business_of_others() {
        let counting = Arc::new(Counting::default());
        let signals = Signals::start(Arc::clone(&counting) as Arc<_>, None, Jitter::seeded(1));
        signals.committed(&[NewRow::leased(row().event, Lease::new("me", 1))]);
        signals.committed(&[]);
        signals.close().await;
        assert_eq!(counting.sent.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_cannot_listen_tries_again_ever_more_rarely() {
        let counting = Arc::new(Counting::default());
        let signals = Signals::start(Arc::clone(&counting) as Arc<_>, Some(Wake::new()), Jitter::seeded(1));
        sleep(Duration::from_secs(600)).await;
        let listened = counting.listened.load(Ordering::Relaxed);
        assert!((20..60).contains(&listened), "{listened} times within ten minutes");
        signals.close().await;
    }
}
