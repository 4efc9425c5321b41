//! Gathers the outcomes of all workers and writes them back in batches.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::dispatcher::Work;
use crate::event::EventId;
use crate::inflight::{InFlight, Standing, Token};
use crate::listener::{Path, chain};
use crate::metrics::Metrics;
use crate::queue::Queues;
use crate::retry::{Jitter, RetryPolicy};
use crate::store::{Action, Lease, RelayStore, Settled, Settlement};
use crate::wake::Wake;

/// How many times as long as the last settlement took outcomes wait for company, and how many times as long as they do while the
/// database is quick.
const BUSY: u32 = 4;

/// An outcome that a worker hands over.
#[derive(Debug)]
pub(crate) struct Settling {
    pub(crate) id: EventId,
    pub(crate) seq: Option<i64>,
    pub(crate) token: Token,
    pub(crate) path: Path,
    pub(crate) action: Action,
    /// How often the event had failed before.
    pub(crate) failed: u32,
    /// The lease in a statement that failed. It may have been carried out all the same.
    pub(crate) open_under: Option<Lease>,
}

impl Settling {
    fn with(&self, action: Action) -> Self {
        let (id, open_under) = (self.id.clone(), self.open_under.clone());
        Self { id, seq: self.seq, token: self.token, path: self.path, action, failed: self.failed, open_under }
    }

    /// Under another lease than it was reached under, an outcome may be that of a row which has gone on since: because this
    /// outcome was written and its answer lost, or because others have had the event. It would count a failure twice, or
    /// undo a redrive, so the row is given back instead. Done still holds: a row that is DONE is not claimed again.
    fn reconsider(&mut self, standing: &Standing) {
        let gone_on = self.failed != standing.failed
            || self.open_under.as_ref().is_some_and(|open| *open != standing.lease)
            // Of an event that died before its first failure was counted and was redriven, the count tells nothing.
            || (standing.adopted && matches!(self.action, Action::Dead { .. }));
        if gone_on && self.action != Action::Done {
            self.action = Action::Release;
        }
    }
}

/// Writes outcomes back, many in one statement, until every sender is gone.
pub(crate) struct Settler {
    pub(crate) store: Arc<dyn RelayStore>,
    pub(crate) in_flight: Arc<InFlight>,
    /// Whose depths are reported with every settlement.
    pub(crate) queues: Arc<Queues<Work>>,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) wake: Wake,
    pub(crate) jitter: Jitter,
    pub(crate) max_batch: usize,
    pub(crate) linger: Duration,
    /// How long outcomes are kept while the database does not take them: after that the leases are gone anyway.
    pub(crate) patience: Duration,
    /// No more lingering: the outbox is closing.
    pub(crate) closing: CancellationToken,
}

impl Settler {
    pub(crate) async fn run(self, mut outcomes: mpsc::Receiver<Settling>) {
        let mut batch = Vec::with_capacity(self.max_batch);
        let mut took = Duration::ZERO;
        while self.gather(&mut outcomes, &mut batch, took).await {
            let began_at = Instant::now();
            self.write(std::mem::take(&mut batch)).await;
            took = began_at.elapsed();
            self.metrics.in_flight(self.in_flight.len());
            let (hot, cold) = self.queues.depths();
            self.metrics.queue_depths(hot, cold);
        }
    }

    /// Waits for one outcome, then a little for more: the longer, the longer the last settlement took. So those of a busy
    /// database become fewer and larger. False when there will be none.
    async fn gather(&self, outcomes: &mut mpsc::Receiver<Settling>, batch: &mut Vec<Settling>, took: Duration) -> bool {
        if outcomes.recv_many(batch, self.max_batch).await == 0 {
            return false;
        }
        let mut deadline = Instant::now() + self.linger;
        if batch.iter().all(|outcome| outcome.path == Path::Hot) {
            // Well within the lease.
            deadline += (took * BUSY).min(self.linger * BUSY).min(self.patience / 4).saturating_sub(self.linger);
        }
        while batch.len() < self.max_batch && self.worth_waiting(batch) {
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

    /// Nobody waits for the settlement of a hot event, so it lingers for company. Behind a cold one stands a backlog,
    /// which goes on the sooner the sooner it is settled; there it pays to wait only for events already in hand.
    fn worth_waiting(&self, batch: &[Settling]) -> bool {
        !self.closing.is_cancelled()
            && (batch.iter().all(|outcome| outcome.path == Path::Hot) || self.in_flight.len() > batch.len())
    }

    /// Writes one batch, trying again while the database is away. The listener has succeeded or failed already: what
    /// goes wrong here is not its failure.
    async fn write(&self, batch: Vec<Settling>) {
        let started_at = Instant::now();
        let mut failures = 0;
        let backoff = RetryPolicy::exponential(Duration::from_millis(50), Duration::from_secs(5));
        // Halves of a batch that was refused as a whole, until the row that is to blame is alone.
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            match self.settle(&mut part).await {
                Ok(adopted) => {
                    if !adopted.is_empty() {
                        parts.push(adopted);
                    }
                    continue;
                }
                Err(error) if !error.is_transient() && part.len() > 1 => {
                    warn!(error = %chain(&error), rows = part.len(), "settlement refused, trying its halves");
                    let half = part.split_off(part.len() / 2);
                    parts.push(half);
                    parts.push(part);
                    continue;
                }
                Err(error) => {
                    self.metrics.settle_failed();
                    failures += 1;
                    let hopeless = !error.is_transient() && failures > 3;
                    if hopeless || started_at.elapsed() >= self.patience {
                        error!(error = %chain(&error), rows = part.len(),
                            "settlement given up; the events will be delivered again when their leases run out");
                        self.forget(&part);
                        continue;
                    }
                    warn!(error = %chain(&error), rows = part.len(), "settlement failed, trying again");
                }
            }
            tokio::time::sleep(backoff.delay(failures, &self.jitter)).await;
            parts.push(part);
        }
    }

    /// Writes one statement. Gives what is to be written after it, under leases that were taken anew meanwhile.
    async fn settle(&self, batch: &mut [Settling]) -> Result<Vec<Settling>, crate::store::Error> {
        let mut held = Vec::with_capacity(batch.len());
        let mut settlements = Vec::with_capacity(batch.len());
        // Leases may have been taken anew since the workers began.
        let standings = self.in_flight.standings(batch.iter().map(|outcome| (&outcome.id, outcome.token)));
        for (outcome, standing) in batch.iter_mut().zip(standings) {
            if let Some(standing) = standing {
                outcome.reconsider(&standing);
                let (id, action) = (outcome.id.clone(), outcome.action.clone());
                settlements.push(Settlement { id, seq: outcome.seq, lease: standing.lease, action });
                held.push(outcome);
            }
        }
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        kill_point!("settle.before");
        let results = match self.store.settle(&settlements).await {
            Ok(results) => results,
            Err(error) => {
                for (outcome, settlement) in held.into_iter().zip(settlements) {
                    outcome.open_under = Some(settlement.lease);
                }
                return Err(error);
            }
        };
        kill_point!("settle.after");
        self.metrics.settle_batch(settlements.len());
        let under = held.iter().zip(&settlements).map(|(outcome, under)| (&outcome.id, outcome.token, &under.lease));
        let finished = self.in_flight.finish(under);
        let mut tally = Tally::default();
        let mut adopted = Vec::new();
        for ((outcome, finished), settled) in held.into_iter().zip(finished).zip(results) {
            let taken_anew = !finished;
            match settled {
                Settled::Applied => {
                    tally.count(&outcome.action);
                    self.wake_for(&outcome.action);
                    // Claimed again after the statement and before its answer; nobody is at it, so it is given back.
                    if taken_anew {
                        adopted.push(outcome.with(Action::Release));
                    }
                }
                // Claimed again before the statement: the outcome still holds, under the new lease.
                Settled::Lost if taken_anew => adopted.push(outcome.with(outcome.action.clone())),
                Settled::Lost => {
                    tally.lost += 1;
                    debug!(event_id = %outcome.id, "lease lost before the settlement; the event is delivered again");
                }
            }
        }
        tally.report(&*self.metrics);
        Ok(adopted)
    }

    /// Wakes the poller for what is to be claimed again.
    fn wake_for(&self, action: &Action) {
        match action {
            Action::Retry { delay, .. } | Action::Defer { delay } => self.wake.after(*delay),
            Action::Release => self.wake.now(),
            Action::Done | Action::Dead { .. } => {}
        }
    }

    fn forget(&self, batch: &[Settling]) {
        for outcome in batch {
            self.in_flight.release(&outcome.id, outcome.token);
        }
    }
}

/// What one settlement did.
#[derive(Default)]
pub(crate) struct Tally {
    done: u64,
    failed: u64,
    deferred: u64,
    dead: u64,
    released: u64,
    pub(crate) lost: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, action: &Action) {
        match action {
            Action::Done => self.done += 1,
            Action::Retry { .. } => self.failed += 1,
            Action::Defer { .. } => self.deferred += 1,
            Action::Dead { .. } => self.dead += 1,
            Action::Release => self.released += 1,
        }
    }

    pub(crate) fn report(&self, metrics: &dyn Metrics) {
        // A metric that says nothing happened is only noise.
        let told = |count: u64, tell: &dyn Fn(u64)| {
            if count > 0 {
                tell(count);
            }
        };
        told(self.done, &|count| metrics.delivered(count));
        told(self.failed, &|count| metrics.failed(count));
        told(self.deferred, &|count| metrics.deferred(count));
        told(self.dead, &|count| metrics.dead(count));
        told(self.released, &|count| metrics.released(count));
        told(self.lost, &|count| metrics.lease_lost(count));
        if self.lost > 0 {
            warn!(events = self.lost, "leases lost before their settlement");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reconsidered(action: Action, open_under: Option<Lease>, lease: &Lease, failed: u32) -> Action {
        let id = EventId::from_row("e");
        let token = InFlight::new(None).acquire(&id, lease, Instant::now()).expect("nobody else has it");
        let mut settling = Settling { id, seq: None, token, path: Path::Cold, action, failed: 1, open_under };
        let adopted = *lease != Lease::new("me", 1);
        settling.reconsider(&Standing { lease: lease.clone(), failed, adopted });
        settling.action
    }

    #[test]
    fn an_outcome_holds_under_another_lease_unless_the_row_has_gone_on() {
        let (old, new) = (Lease::new("me", 1), Lease::new("me", 2));
        let retry = || Action::Retry { delay: Duration::ZERO, error: "no".to_owned() };
        // Adopted before anything was written, or tried again under the same lease.
        assert_eq!(reconsidered(retry(), None, &new, 1), retry());
        assert_eq!(reconsidered(retry(), Some(old.clone()), &old, 1), retry());
        // Perhaps written; or failed elsewhere, or redriven.
        assert_eq!(reconsidered(retry(), Some(old.clone()), &new, 1), Action::Release);
        assert_eq!(reconsidered(retry(), None, &new, 2), Action::Release);
        let dead = || Action::Dead { error: String::new(), counts: true };
        assert_eq!(reconsidered(dead(), None, &new, 0), Action::Release);
        // It may have died elsewhere at the same attempt, and been redriven.
        assert_eq!(reconsidered(dead(), None, &new, 1), Action::Release);
        assert_eq!(reconsidered(dead(), None, &old, 1), dead());
        // What was delivered was delivered.
        assert_eq!(reconsidered(Action::Done, Some(old), &new, 2), Action::Done);
    }
}
