//! Claims rows from the table and hands them on: the cold path.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use crate::event::EventId;
use crate::listener::chain;
use crate::metrics::{self, Metrics, NoMetrics};
use crate::options::{self, Options};
use crate::retry::{Jitter, RetryPolicy};
use crate::store::{
    self, Action, BoxFuture, Claim, ClaimedRow, Lease, Leases, Malformed, RelayStore, Settled, Settlement,
};
use crate::wake::Wake;

/// Receives claimed rows from a [`Poller`]. The [`Dispatcher`](crate::Dispatcher) is one.
pub trait ClaimHandler: Send + Sync + 'static {
    /// How many rows it would take now. The poller claims no more, and does not ask the database at all for none.
    fn capacity(&self) -> usize;

    /// Waits until it would take that many rows, or as many as it ever can. The poller does not wait longer than its
    /// interval. Default: waits for ever, so that the interval decides.
    fn room_for(&self, wanted: usize) -> BoxFuture<'_, ()> {
        let _ = wanted;
        Box::pin(std::future::pending())
    }

    /// Takes one row, and with it the duty to settle it under that lease. `leased_at` is a moment at which the lease had
    /// not begun yet.
    fn handle(&self, row: ClaimedRow, lease: &Lease, leased_at: Instant) -> Handled;

    /// Takes the rows of one claim, in their order, until it refuses one. Gives back the ids of that one and of all after it.
    /// Default: takes them one by one.
    fn handle_all(&self, rows: Vec<ClaimedRow>, lease: &Lease, leased_at: Instant) -> Vec<EventId> {
        let mut refused = Vec::new();
        for row in rows {
            let id = row.event.id().clone();
            if !refused.is_empty() || self.handle(row, lease, leased_at) == Handled::Refused {
                refused.push(id);
            }
        }
        refused
    }
}

/// What a handler says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// It has it.
    Accepted,
    /// It does not want it, nor any more: this poll ends, and the rest is released.
    Refused,
}

/// Where events come from that did not come hot: the poller today, a log of the database tomorrow.
pub trait Source: Send + Sync + 'static {
    /// Begins to feed its handler. Does nothing the second time.
    fn start(&self);

    /// Asks it to stop, without waiting.
    fn stop(&self);

    /// Stops feeding, within a bounded time. Does nothing the second time, or before a start.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// How many times as large a batch is as the full one before it.
const GROWTH: usize = 4;

/// How many bytes of payload a claim should bring at most, as far as the one before it tells.
const CLAIM_BYTES: usize = 32 << 20;

/// Claims rows that are due and hands them to a handler.
///
/// Polls at once when it starts, again at once after a full batch, with a larger one, and otherwise when something wakes
/// it: a write, a retry or a delay that is due, the interval. Errors are tried again with a growing, random delay.
/// Cheap to clone; when the last clone is dropped it stops. See [`Dispatcher`](crate::Dispatcher) for an example.
#[derive(Clone)]
pub struct Poller {
    inner: Arc<Inner>,
    started: Arc<AtomicBool>,
    tasks: TaskTracker,
    _stops: Arc<DropGuard>,
}

struct Inner {
    store: Arc<dyn RelayStore>,
    handler: Arc<dyn ClaimHandler>,
    options: Options,
    leases: Arc<Leases>,
    metrics: Arc<dyn Metrics>,
    jitter: Jitter,
    wake: Wake,
    stop: CancellationToken,
    /// How many bytes a row of the last claim had.
    row_bytes: AtomicUsize,
}

/// Builds a [`Poller`].
#[must_use = "a builder does nothing until it is built"]
pub struct PollerBuilder(Inner);

/// What one poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Rows that were claimed.
    pub claimed: usize,
    /// Rows that the handler took.
    pub accepted: usize,
    /// Whether there may be more: the claim found as many rows as it asked for.
    pub full: bool,
    /// Whether the handler had no room, so that the database was not asked.
    pub no_room: bool,
}

impl Poller {
    /// Starts to build a poller that feeds this handler.
    pub fn builder(store: Arc<dyn RelayStore>, handler: Arc<dyn ClaimHandler>) -> PollerBuilder {
        let options = Options::default();
        PollerBuilder(Inner {
            store,
            handler,
            leases: Arc::new(Leases::new(options.new_owner())),
            options,
            metrics: Arc::new(NoMetrics),
            jitter: Jitter::default(),
            wake: Wake::new(),
            stop: CancellationToken::new(),
            row_bytes: AtomicUsize::new(0),
        })
    }

    /// The handle that wakes this poller.
    pub fn wake(&self) -> Wake {
        self.inner.wake.clone()
    }

    /// Polls once, for at most `limit` rows. After the close it does nothing.
    ///
    /// # Errors
    /// What the database said; nothing was claimed then, or its leases run out.
    pub async fn poll(&self, limit: usize) -> Result<Polled, store::Error> {
        self.inner.poll(limit).await.map(|(polled, _)| polled)
    }
}

impl Source for Poller {
    fn start(&self) {
        if self.inner.stop.is_cancelled() || self.started.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(&self.inner);
        self.tasks.spawn(async move { inner.run().await });
    }

    fn stop(&self) {
        self.inner.stop.cancel();
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.stop();
            self.tasks.close();
            // A claim under way is let finish, so that its rows are released and not left to their leases.
            if tokio::time::timeout(self.inner.options.shutdown_deadline, self.tasks.wait()).await.is_err() {
                warn!("a poll is still under way; what it claims is released");
            }
        })
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").field("started", &self.started).finish_non_exhaustive()
    }
}

impl Inner {
    async fn run(&self) {
        let mut batch = self.options.poll_batch;
        let mut failures = 0;
        while !self.stop.is_cancelled() {
            self.wake.reset();
            let began_at = Instant::now();
            match self.poll(batch).await {
                Ok((polled, next_in)) => {
                    failures = 0;
                    if polled.no_room {
                        // There may be a backlog behind a full queue: wait for room that makes a claim worth its trip.
                        self.wait_for_room(batch).await;
                    } else if polled.full {
                        batch = batch.saturating_mul(GROWTH);
                        self.wait_for_room(batch).await;
                    } else {
                        batch = self.options.poll_batch;
                        let rest = rest_after(began_at.elapsed(), self.options.poll_interval);
                        self.sleep(next_in.map_or(rest, |next_in| next_in.min(rest))).await;
                    }
                }
                Err(reason) => {
                    failures += 1;
                    self.metrics.poll_failed();
                    let delay = self.error_delay(failures);
                    error!(error = %chain(&reason), ?delay, "poll failed, trying again");
                    self.pause(delay).await;
                }
            }
        }
    }

    /// Claims up to `limit` rows and hands them on. Also says when the next row is due, as far as is known.
    async fn poll(&self, limit: usize) -> Result<(Polled, Option<Duration>), store::Error> {
        let fitting = CLAIM_BYTES / self.row_bytes.load(Ordering::Relaxed).max(1);
        let limit = limit.min(fitting.max(1)).min(self.handler.capacity());
        if self.stop.is_cancelled() {
            return Ok((Polled::default(), None));
        }
        if limit == 0 {
            return Ok((Polled { no_room: true, ..Polled::default() }, None));
        }
        let claim = Claim {
            lease: self.leases.next(),
            lease_duration: self.options.lease,
            limit,
            skip_recent: self.options.poll_skip_recent,
        };
        let leased_at = Instant::now();
        kill_point!("claim.before");
        let claimed = self.store.claim(&claim).await?;
        let count = claimed.rows.len() + claimed.malformed.len();
        self.metrics.oldest_lag(claimed.rows.first().map_or(Duration::ZERO, |row| row.lag));
        if count > 0 {
            kill_point!("claim.after");
            self.metrics.claim_batch(count);
            let bytes: usize = claimed.rows.iter().map(|row| row.event.payload().len()).sum();
            self.row_bytes.store(bytes / claimed.rows.len().max(1), Ordering::Relaxed);
            debug!(rows = count, limit, "rows claimed");
        }
        self.bury(&claim.lease, claimed.malformed).await;
        let accepted = self.hand_over(&claim.lease, leased_at, claimed.rows).await;
        let polled = Polled { claimed: count, accepted, full: count >= limit, no_room: false };
        Ok((polled, claimed.next_in))
    }

    /// Hands rows over until one is refused, and releases that one and the rest.
    async fn hand_over(&self, lease: &Lease, leased_at: Instant, rows: Vec<ClaimedRow>) -> usize {
        let count = rows.len();
        let refused = if self.stop.is_cancelled() {
            rows.iter().map(|row| row.event.id().clone()).collect()
        } else {
            self.handler.handle_all(rows, lease, leased_at)
        };
        let refused: Vec<_> =
            refused.into_iter().map(|id| Settlement::new(id, lease.clone(), Action::Release)).collect();
        if !refused.is_empty() {
            kill_point!("refuse.before");
            match self.store.settle(&refused).await {
                Ok(results) => {
                    kill_point!("refuse.after");
                    self.metrics.released(applied(&results));
                }
                Err(reason) => warn!(error = %chain(&reason), rows = refused.len(),
                    "rows not released; they wait until their leases run out"),
            }
        }
        count.saturating_sub(refused.len())
    }

    /// Makes rows DEAD that are no events; the rest of the batch goes on.
    async fn bury(&self, lease: &Lease, malformed: Vec<Malformed>) {
        if malformed.is_empty() {
            return;
        }
        let settlements: Vec<_> = malformed
            .into_iter()
            .map(|row| {
                let reason = undecodable(&row.reason);
                error!(event_id = %row.id, reason, "event is dead");
                let action = Action::Dead { error: reason, counts: false };
                Settlement::new(row.id, lease.clone(), action)
            })
            .collect();
        kill_point!("bury.before");
        match self.store.settle(&settlements).await {
            Ok(results) => {
                kill_point!("bury.after");
                self.metrics.dead(applied(&results));
            }
            Err(reason) => warn!(error = %chain(&reason), rows = settlements.len(),
                "undecodable rows not settled; they are claimed again when their leases run out"),
        }
    }

    /// Waits until the handler has room for a batch, but for half its room at most: the other half is worked on while
    /// the next claim is under way.
    async fn wait_for_room(&self, batch: usize) {
        let wanted = batch.min(self.options.cold_queue.div_ceil(2)).max(1);
        tokio::select! {
            biased;
            () = self.handler.room_for(wanted) => {}
            () = tokio::time::sleep(self.options.poll_interval) => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn sleep(&self, length: Duration) {
        tokio::select! {
            biased;
            () = self.wake.sleep_until(Instant::now() + length) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Sleeps without listening for wake-ups: what fails is not to be tried at the rate of the writes.
    async fn pause(&self, length: Duration) {
        tokio::select! {
            biased;
            () = tokio::time::sleep(length) => {}
            () = self.stop.cancelled() => {}
        }
    }

    fn error_delay(&self, failures: u32) -> Duration {
        let longest = self.options.poll_interval.max(Duration::from_millis(100));
        RetryPolicy::exponential(Duration::from_millis(100), longest).delay(failures, &self.jitter)
    }
}

/// How long an idle table is left alone after a look that took so long. The interval is from one look to the answer of the next, so
/// that a row which just missed the first is in hand when it is over.
pub(crate) fn rest_after(look: Duration, interval: Duration) -> Duration {
    interval - look.saturating_mul(2).min(interval / 4)
}

/// What a row keeps of why it is no event.
pub(crate) fn undecodable(reason: &str) -> String {
    format!("undecodable: {reason}; mend the row, then redrive it")
}

fn applied(results: &[Settled]) -> u64 {
    results.iter().filter(|settled| **settled == Settled::Applied).count() as u64
}

impl PollerBuilder {
    /// Sets all options.
    pub fn options(mut self, options: Options) -> Self {
        self.0.leases = Arc::new(Leases::new(options.new_owner()));
        self.0.options = options;
        self
    }

    pub(crate) fn leases(mut self, leases: Arc<Leases>) -> Self {
        self.0.leases = leases;
        self
    }

    /// Sets where to report.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.0.metrics = metrics;
        self
    }

    /// Sets the randomness that spreads retries after errors.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.0.jitter = jitter;
        self
    }

    /// Sets the handle that wakes this poller, shared with whoever has something for it.
    pub fn wake(mut self, wake: Wake) -> Self {
        self.0.wake = wake;
        self
    }

    /// Makes the poller. It polls when it is asked, or once it is started by itself.
    ///
    /// # Errors
    /// Names the option that is wrong.
    pub fn build(mut self) -> Result<Poller, options::Error> {
        self.0.options.check()?;
        // What is claimed by an answer that comes later is leased no longer.
        self.0.store = Arc::new(store::Contained::new(self.0.store, self.0.options.lease));
        self.0.metrics = Arc::new(metrics::Contained(self.0.metrics));
        let stops = Arc::new(self.0.stop.clone().drop_guard());
        Ok(Poller { inner: Arc::new(self.0), started: Arc::default(), tasks: TaskTracker::new(), _stops: stops })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn looks_are_a_part_of_the_interval_unless_they_are_slow() {
        let (second, slow) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(rest_after(Duration::ZERO, second), second);
        assert_eq!(rest_after(Duration::from_millis(3), second), Duration::from_millis(994));
        assert_eq!(rest_after(slow, second), Duration::from_millis(750));
        assert_eq!(rest_after(Duration::MAX, second), Duration::from_millis(750));
    }

    /// Finds nothing, and takes its time for it. Tells when it is asked.
    struct Slow {
        look: Duration,
        asked_at: mpsc::UnboundedSender<Instant>,
    }

    impl RelayStore for Slow {
        fn claim<'a>(&'a self, _: &'a Claim) -> BoxFuture<'a, Result<store::Claimed, store::Error>> {
            Box::pin(async {
                self.asked_at.send(Instant::now()).ok();
                tokio::time::sleep(self.look).await;
                Ok(store::Claimed::default())
            })
        }

        fn settle<'a>(&'a self, _: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, store::Error>> {
            unreachable!("nothing is claimed")
        }

        fn renew<'a>(&'a self, _: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, store::Error>> {
            unreachable!("nothing is claimed")
        }

        fn release_all(&self) -> BoxFuture<'_, Result<u64, store::Error>> {
            unreachable!("nothing is claimed")
        }
    }

    struct Nobody;

    impl ClaimHandler for Nobody {
        fn capacity(&self) -> usize {
            1
        }

        fn handle(&self, _: ClaimedRow, _: &Lease, _: Instant) -> Handled {
            Handled::Refused
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_just_missed_a_look_is_found_by_the_next_when_the_interval_is_over() {
        let (asked_at, mut asked) = mpsc::unbounded_channel();
        let look = Duration::from_millis(10);
        let store = Arc::new(Slow { look, asked_at });
        let options = Options { poll_interval: Duration::from_secs(1), ..Options::default() };
        let poller = Poller::builder(store, Arc::new(Nobody)).options(options).build().unwrap();
        poller.start();
        let (first, second) = (asked.recv().await.unwrap(), asked.recv().await.unwrap());
        assert_eq!(second + look - first, Duration::from_secs(1));
        poller.close().await;
    }
}
