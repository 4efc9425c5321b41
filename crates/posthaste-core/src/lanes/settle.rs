//! Gathers the outcomes of all workers and writes them back in batches, under the epochs of their lanes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::event::EventId;
use crate::keys::{Ended, Item, KeyId, Keys, Then};
use crate::listener::chain;
use crate::metrics::Metrics;
use crate::retry::{Jitter, RetryPolicy};
use crate::settle::Tally;
use crate::store::{Action, Error, LaneLease, LaneSettlement, LaneStore, Settled};

/// After a settlement that has failed, the least time until its events are tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// What is further off is beyond this process's life.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// An outcome that a worker hands over. Those of a key come in their order.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) lease: LaneLease,
    pub(crate) id: KeyId,
    pub(crate) event_id: EventId,
    pub(crate) item: Item,
    pub(crate) action: Action,
    pub(crate) closes: bool,
}

impl Settling {
    fn settlement(&self) -> LaneSettlement {
        let (id, action) = (self.event_id.clone(), self.action.clone());
        LaneSettlement { lease: self.lease, seq: self.item.seq, id, action, closes: self.closes }
    }

    fn ended(self, then: impl FnOnce(KeyId, Item) -> Then) -> Ended {
        Ended { lease: self.lease, seq: self.item.seq, then: then(self.id, self.item) }
    }

    /// It is written.
    fn applied(mut self, now: Instant) -> Ended {
        let delay = match self.action {
            Action::Done => return self.ended(|_, _| Then::Done),
            Action::Dead { .. } if self.closes => return self.ended(|id, _| Then::Close(id)),
            Action::Dead { .. } => return self.ended(|id, _| Then::GoOn(id)),
            Action::Release => Duration::ZERO,
            Action::Defer { delay } => delay,
            Action::Retry { delay, .. } => {
                if let Ok(delivery) = &mut self.item.row {
                    delivery.set_failed_attempts(delivery.failed_attempts().saturating_add(1));
                }
                delay
            }
        };
        // The table counts from when it was written, which is before now.
        self.item.due_at = now + delay.min(LONGEST);
        (self.item.queued_at, self.item.lag) = (self.item.due_at, Duration::ZERO);
        self.ended(Then::Later)
    }

    /// It was refused: its lane is lost, or the row is not pending any more. A statement of which nobody has heard may have ended
    /// it, and closed its key. So what comes next is asked of the table.
    fn refused(self, now: Instant) -> Ended {
        match self.action {
            Action::Done => self.ended(|_, _| Then::Done),
            _ => self.ended(|id, _| Then::Reread(id, now)),
        }
    }

    /// Nobody knows whether it was written. So what comes next is asked of the table as well, but not sooner than it would have
    /// come otherwise: where nothing can be written, and reads go on, a listener that fails would be called without a pause.
    fn unknown(self, now: Instant) -> Ended {
        let delay = match self.action {
            Action::Done => return self.ended(|_, _| Then::Done),
            Action::Retry { delay, .. } | Action::Defer { delay } => delay,
            Action::Dead { .. } | Action::Release => Duration::ZERO,
        };
        let at = now + delay.clamp(PAUSE, LONGEST);
        self.ended(|id, _| Then::Reread(id, at))
    }
}

/// Outcomes that the database has answered for, and the keys have not been told of.
struct Written {
    outcomes: Vec<Settling>,
    results: Vec<Settled>,
    tally: Tally,
    /// When the answer came.
    at: Instant,
}

impl Written {
    /// Under which leases something was refused.
    fn refused(&self) -> BTreeSet<LaneLease> {
        let answered = self.outcomes.iter().zip(&self.results);
        answered.filter(|(_, settled)| **settled == Settled::Lost).map(|(outcome, _)| outcome.lease).collect()
    }
}

/// Writes outcomes back, many in one statement, until every sender is gone. It is one task, writes them in the order in which they
/// come, and has all of a lane: so of a key nothing is DONE while something before it is not.
#[derive(Clone)]
pub(crate) struct Settler {
    pub(crate) store: Arc<dyn LaneStore>,
    pub(crate) owner: Box<str>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) jitter: Jitter,
    pub(crate) max_batch: usize,
    pub(crate) linger: Duration,
    /// How long a lane is leased for, and how long outcomes are kept while the database does not take them.
    pub(crate) lane_lease: Duration,
    /// No more lingering: the outbox is closing.
    pub(crate) closing: CancellationToken,
}

impl Settler {
    pub(crate) async fn run(self, mut outcomes: mpsc::Receiver<Settling>) {
        let mut batch = Vec::with_capacity(self.max_batch);
        let mut written = None;
        loop {
            if !self.is_at_hand(&mut outcomes, &mut batch) {
                self.tell(written.take());
                if !self.gather(&mut outcomes, &mut batch).await {
                    return;
                }
            }
            written = self.write(std::mem::take(&mut batch), written).await;
            self.metrics.in_flight(self.keys.in_hand());
            self.metrics.queue_depths(0, self.keys.queued());
        }
    }

    /// Takes the outcomes that have come meanwhile. Whether they are enough to be written at once.
    fn is_at_hand(&self, outcomes: &mut mpsc::Receiver<Settling>, batch: &mut Vec<Settling>) -> bool {
        while batch.len() < self.max_batch {
            match outcomes.try_recv() {
                Ok(outcome) => batch.push(outcome),
                Err(_) => break,
            }
        }
        batch.len() >= self.enough()
    }

    /// How many outcomes need not wait for more. A statement for fewer would take little less time than one for them.
    fn enough(&self) -> usize {
        self.max_batch.div_ceil(2)
    }

    /// Waits for one outcome, then a little for more: nobody waits for it but a key that has failed, which waits anyway.
    async fn gather(&self, outcomes: &mut mpsc::Receiver<Settling>, batch: &mut Vec<Settling>) -> bool {
        if batch.is_empty() && outcomes.recv_many(batch, self.max_batch).await == 0 {
            return false;
        }
        let deadline = Instant::now() + self.linger;
        while batch.len() < self.enough() && !self.closing.is_cancelled() {
            let room = self.max_batch - batch.len();
            tokio::select! {
                biased;
                received = outcomes.recv_many(batch, room) => if received == 0 { break },
                () = tokio::time::sleep_until(deadline) => break,
                () = self.closing.cancelled() => break,
            }
        }
        true
    }

    /// Writes one batch, trying again while the database is away. What is given up gives up its lane: nothing later of that lane
    /// may be written before it. Meanwhile the keys are told of the batch before it.
    async fn write(&self, batch: Vec<Settling>, mut before: Option<Written>) -> Option<Written> {
        let started_at = Instant::now();
        let mut failures = 0;
        let backoff = RetryPolicy::exponential(Duration::from_millis(50), Duration::from_secs(5));
        // Halves of a batch that was refused as a whole, until the row that is to blame is alone; the first half first.
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            let (reason, mut part) = match self.settle(part, before.take()).await {
                Ok(written) => {
                    before = written;
                    continue;
                }
                Err(failed) => failed,
            };
            self.metrics.settle_failed();
            if part.is_empty() {
                continue;
            }
            if !reason.is_transient() && part.len() > 1 {
                warn!(error = %chain(&reason), rows = part.len(), "settlement refused, trying its halves");
                let half = part.split_off(part.len() / 2);
                parts.push(half);
                parts.push(part);
                continue;
            }
            failures += 1;
            let hopeless = !reason.is_transient() && failures > 3;
            if hopeless || started_at.elapsed() >= self.lane_lease {
                error!(error = %chain(&reason), rows = part.len(),
                    "settlement given up; its lanes are leased anew, and the events delivered again");
                self.give_up(part);
                continue;
            }
            warn!(error = %chain(&reason), rows = part.len(), "settlement failed, trying again");
            tokio::time::sleep(backoff.delay(failures, &self.jitter)).await;
            parts.push(part);
        }
        before
    }

    fn give_up(&self, part: Vec<Settling>) {
        let leases: BTreeSet<_> = part.iter().map(|outcome| outcome.lease).collect();
        for lease in leases {
            self.keys.give_up_unsettled(lease);
        }
        let now = Instant::now();
        self.keys.ended(part.into_iter().map(|outcome| outcome.unknown(now)));
    }

    /// Writes one statement, and tells the keys of the one before it while the database is at work. What is to be tried again
    /// comes back with the error: only what was delivered, since another outcome that was written all the same would count twice.
    /// Those are read again instead.
    async fn settle(
        &self,
        part: Vec<Settling>,
        mut before: Option<Written>,
    ) -> Result<Option<Written>, (Error, Vec<Settling>)> {
        let mut settling = BTreeMap::new();
        let settles =
            |outcome: &Settling| *settling.entry(outcome.lease).or_insert_with_key(|lease| self.keys.settles(*lease));
        let (held, lost): (Vec<_>, Vec<_>) = part.into_iter().partition(settles);
        let mut tally = Tally::default();
        if !lost.is_empty() {
            self.tell(before.take());
            tally.lost += lost.len() as u64;
            self.keys.ended(lost.into_iter().map(|outcome| outcome.refused(Instant::now())));
        }
        if held.is_empty() {
            self.tell(before);
            tally.report(&*self.metrics);
            return Ok(None);
        }
        let settlements: Vec<_> = held.iter().map(Settling::settlement).collect();
        kill_point!("settle.before");
        // The statement is on its way before the keys are told.
        let (results, ()) = tokio::join! {
            biased;
            self.store.settle_in_lanes(&self.owner, &settlements),
            async { self.tell(before) },
        };
        let results = match results {
            Ok(results) => results,
            Err(error) => {
                tally.report(&*self.metrics);
                let (again, unknown) = held.into_iter().partition(|outcome| outcome.action == Action::Done);
                let now = Instant::now();
                self.keys.ended(Vec::into_iter(unknown).map(|outcome| outcome.unknown(now)));
                return Err((error, again));
            }
        };
        kill_point!("settle.after");
        self.metrics.settle_batch(settlements.len());
        let at = Instant::now();
        let written = Written { outcomes: held, results, tally, at };
        let refused = written.refused();
        if refused.is_empty() {
            return Ok(Some(written));
        }
        for lease in self.which_are_lost(refused.into_iter().collect()).await {
            warn!(lane = lease.lane.0, epoch = lease.epoch, "lane lost before the settlement of its events");
            self.keys.lost(lease);
        }
        self.tell(Some(written));
        Ok(None)
    }

    /// Tells the keys what has become of their events.
    fn tell(&self, written: Option<Written>) {
        let Some(Written { outcomes, results, mut tally, at }) = written else { return };
        let ended = outcomes.into_iter().zip(results).map(|(outcome, settled)| match settled {
            Settled::Applied => {
                tally.count(&outcome.action);
                outcome.applied(at)
            }
            Settled::Lost => {
                tally.lost += 1;
                outcome.refused(at)
            }
        });
        let ended: Vec<_> = ended.collect();
        self.keys.ended(ended);
        tally.report(&*self.metrics);
    }

    /// A settlement is refused if its lane is lost, or if its row is not pending any more: it may have been settled by a statement
    /// of which the answer was lost. So it is asked which it is.
    async fn which_are_lost(&self, refused: Vec<LaneLease>) -> Vec<LaneLease> {
        if refused.is_empty() {
            return refused;
        }
        match self.store.renew_lanes(&self.owner, &refused, self.lane_lease).await {
            Ok(renewed) => {
                let held = renewed.held.iter().copied().chain(std::iter::repeat(false));
                refused.into_iter().zip(held).filter(|(_, held)| !held).map(|(lease, _)| lease).collect()
            }
            Err(error) => {
                warn!(error = %chain(&error), lanes = refused.len(), "not known whether lanes are held; they are leased anew");
                for lease in refused {
                    self.keys.give_up_unsettled(lease);
                }
                Vec::new()
            }
        }
    }
}
