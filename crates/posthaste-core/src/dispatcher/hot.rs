//! The hot path: from a commit straight into memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::Work;
use crate::event::Availability;
use crate::handback::Handback;
use crate::hook::{HookError, WriteHook};
use crate::inflight::InFlight;
use crate::listener::{Delivery, Path};
use crate::metrics::Metrics;
use crate::queue::Queues;
use crate::store::{Leases, NewRow};
use crate::wake::Wake;

/// The dispatcher's write hook.
///
/// Before the insert it promises each event a place in the hot queue and gives it the lease under which it will be
/// tried. For an event without a place nothing is promised and nothing leased: any poller may have it at once. So what
/// was leased cannot be refused after the commit, and what is refused needs no second statement.
pub(crate) struct HotPath {
    pub(crate) queues: Arc<Queues<Work>>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) lease_duration: Duration,
    pub(crate) handback: Handback,
    pub(crate) poller: Wake,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) overflow: Overflow,
}

impl HotPath {
    /// Takes back what was promised to rows that were never inserted.
    pub(crate) fn cancel(&self, rows: &[NewRow]) {
        self.queues.unreserve_hot(leased(rows).count());
    }

    /// Leaves rows to the pollers that may or may not be in the table.
    pub(crate) fn hand_back<'a>(&self, rows: impl Iterator<Item = &'a NewRow>) {
        self.handback.add(rows.filter_map(|row| Some((row.event.id().clone(), row.lease.clone()?))));
    }

    /// Leaves rows to the pollers that are in the table, if they ever will be.
    pub(crate) fn after_nested(&self, rows: &[NewRow]) {
        self.cancel(rows);
        let leased = rows.iter().filter_map(|row| Some((row.event.id().clone(), row.lease.clone()?)));
        self.handback.add_once(leased);
        self.poller.now();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queues.is_closed()
    }
}

impl WriteHook for HotPath {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        // Leases are given here and nowhere else, or the places would not add up.
        rows.iter_mut().for_each(|row| row.lease = None);
        let wanted = rows.iter().filter(|row| !row.event.is_delayed()).count();
        let granted = self.queues.reserve_hot(wanted);
        if granted > 0 {
            // A new one for each write: an id that was rolled back may be written again while its old lease is still
            // being given back.
            let lease = self.leases.next();
            for row in rows.iter_mut().filter(|row| !row.event.is_delayed()).take(granted) {
                row.lease = Some(lease.clone());
            }
        }
        if granted < wanted && !self.is_closed() {
            self.metrics.hot_dropped((wanted - granted) as u64);
            self.overflow.warn((wanted - granted) as u64);
        }
        Ok(())
    }

    fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
        // A transaction that stayed open for long has used up its lease; another process may have the row by now.
        let too_late = self.lease_duration / 2;
        let (timely, late): (Vec<_>, Vec<_>) = leased(rows).partition(|row| row.prepared_at().elapsed() < too_late);
        if !late.is_empty() {
            self.queues.unreserve_hot(late.len());
            self.hand_back(late.into_iter());
        }

        let queued_at = Instant::now();
        let reserved = timely.len();
        let mut works = Vec::with_capacity(reserved);
        for row in timely {
            let lease = row.lease.as_ref().expect("only leased rows are taken");
            if let Some(token) = self.in_flight.acquire(row.event.id(), lease, row.prepared_at()) {
                let delivery = Delivery::new(row.event.clone(), 0, Path::Hot);
                works.push(Work { delivery, seq: None, token, queued_at, lag: Duration::ZERO });
            }
        }
        self.queues.unreserve_hot(reserved - works.len());
        let count = works.len() as u64;
        match self.queues.push_reserved(works) {
            Ok(()) if count > 0 => {
                kill_point!("hot.enqueued");
                self.metrics.hot_enqueued(count);
            }
            Ok(()) => {}
            Err(refused) => {
                let unused = refused.iter().filter_map(|work| {
                    let (id, lease) = (work.delivery.id(), self.in_flight.lease(work.delivery.id(), work.token)?);
                    self.in_flight.release(id, work.token);
                    Some((id.clone(), lease))
                });
                self.handback.add(unused);
            }
        }

        for row in rows.iter().filter(|row| row.lease.is_none()) {
            self.poller.after(match row.event.availability() {
                // How far off a moment is, only the database can say: it is asked by a claim, which learns what comes next.
                Availability::Now | Availability::At(_) => Duration::ZERO,
                Availability::After(delay) => delay,
            });
        }
        Ok(())
    }

    fn after_rollback(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.cancel(rows);
        Ok(())
    }

    fn after_unknown(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.cancel(rows);
        self.hand_back(rows.iter());
        self.poller.now();
        Ok(())
    }
}

fn leased(rows: &[NewRow]) -> impl Iterator<Item = &NewRow> {
    rows.iter().filter(|row| row.lease.is_some())
}

/// Warns of a full hot queue, at most once a second: under overload every event would be a line.
#[derive(Debug)]
pub(crate) struct Overflow {
    started_at: Instant,
    next_second: AtomicU64,
    unsaid: AtomicU64,
}

impl Overflow {
    pub(crate) fn new() -> Self {
        Self { started_at: Instant::now(), next_second: AtomicU64::new(0), unsaid: AtomicU64::new(0) }
    }

    fn warn(&self, events: u64) {
        self.unsaid.fetch_add(events, Ordering::Relaxed);
        let second = self.started_at.elapsed().as_secs();
        let next = self.next_second.load(Ordering::Relaxed);
        let mine = second >= next
            && self.next_second.compare_exchange(next, second + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine {
            let events = self.unsaid.swap(0, Ordering::Relaxed);
            warn!(events, "hot queue is full; the poller will deliver them");
        }
    }
}
