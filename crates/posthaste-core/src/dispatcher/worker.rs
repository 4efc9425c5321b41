//! A worker: take, route, run, classify, settle.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, error};

use super::Work;
use super::caller::Caller;
use crate::inflight::InFlight;
use crate::instrument::Measuring;
use crate::listener::{AnyListener, Delivery, Path};
use crate::queue::Queues;
use crate::settle;
use crate::store::Action;
use crate::wake::Wake;

#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) queues: Arc<Queues<Work>>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) caller: Caller,
    pub(crate) lease_duration: Duration,
    pub(crate) outcomes: mpsc::Sender<settle::Settling>,
    /// Wakes the poller for events that were let go.
    pub(crate) poller: Wake,
}

/// What a worker has in hand: events for one listener. Kept between rounds, so that a round needs no new memory.
#[derive(Default)]
struct Hand {
    works: Vec<Work>,
    deliveries: Vec<Delivery>,
    /// How often each had failed, whose lease stands.
    held: Vec<Option<u32>>,
    actions: Vec<Action>,
    /// The same for who measures.
    ended_with: Vec<Action>,
    latencies: Vec<Duration>,
}

impl Worker {
    /// Works until the queues are closed and empty.
    pub(crate) async fn run(self) {
        let mut hand = Hand::default();
        while let Some(work) = self.queues.take().await {
            let listener = self.caller.registry.listener_for(&work.delivery);
            hand.works.push(work);
            if let Some(listener) = listener {
                self.take_more_for(listener, &mut hand.works);
            }
            self.deliver(listener, &mut hand).await;
            // A listener that never waits must not keep the other tasks of its thread from running.
            tokio::task::consume_budget().await;
        }
    }

    /// Keeps in hand whose leases still stand. An event whose lease ran out while it was queued may be with another process by
    /// now, and is left alone. One that was there meanwhile, and has come back, may have failed there.
    fn hold(&self, hand: &mut Hand) {
        let acquisitions = hand.works.iter().map(|work| (work.delivery.id(), work.token));
        self.in_flight.hold_all(acquisitions, self.lease_duration, &mut hand.held);
        let mut held = hand.held.drain(..);
        hand.works.retain_mut(|work| {
            match held.next().flatten() {
                Some(failed) => {
                    work.delivery.set_failed_attempts(failed);
                    true
                }
                None => {
                    debug!(event_id = %work.delivery.id(), "lease ran out in the queue; the event is left to the next claim");
                    self.caller.metrics.lease_lost(1);
                    // In the table the lease began a little later than here, and ends a little later.
                    self.poller.after((self.lease_duration / 4).min(Duration::from_secs(1)));
                    false
                }
            }
        });
    }

    /// Fills the hand with more events for the same listener, as far as it takes batches. Those of others in between are left to
    /// the next worker, so that each listener has its batches full, whoever else there is.
    fn take_more_for(&self, listener: &AnyListener, works: &mut Vec<Work>) {
        let same =
            |next: &Work| self.caller.registry.listener_for(&next.delivery).is_some_and(|other| other.is(listener));
        let mut more = true;
        while more && works.len() < listener.max_batch() {
            more = self.queues.take_wanted(listener.max_batch() - works.len(), works, same);
        }
    }

    /// Tells how long the events in hand have waited, those of one path together.
    fn tell_latencies(&self, hand: &mut Hand) {
        let now = Instant::now();
        for path in [Path::Hot, Path::Cold] {
            let works = hand.works.iter().filter(|work| work.delivery.path() == path);
            hand.latencies.extend(works.map(|work| work.lag + now.duration_since(work.queued_at)));
            if !hand.latencies.is_empty() {
                self.caller.metrics.latencies(path, &hand.latencies);
                hand.latencies.clear();
            }
        }
    }

    /// Runs the events in hand and hands over their outcomes.
    async fn deliver(&self, listener: Option<&AnyListener>, hand: &mut Hand) {
        // The place for the outcomes comes first: between a verdict and its settlement there is then nothing to wait
        // for, and nothing at which an abort could lose it.
        let Ok(mut places) = self.outcomes.reserve_many(hand.works.len()).await else {
            error!(events = hand.works.len(), "settler is gone; the events wait until their leases run out");
            for work in hand.works.drain(..) {
                self.in_flight.release(work.delivery.id(), work.token);
            }
            return;
        };
        // Only now, since there may have been a long wait for a place while the database was away.
        self.hold(hand);
        if hand.works.is_empty() {
            return;
        }
        self.tell_latencies(hand);
        hand.deliveries.extend(hand.works.iter().map(|work| work.delivery.clone()));
        let measuring = Measuring::begin(&self.caller.instruments, &hand.deliveries);
        let verdicts = self.caller.call(&measuring, listener, &hand.deliveries).await;
        let policy = self.caller.policy(listener);
        let outcomes = hand.deliveries.drain(..).zip(verdicts);
        measuring.entered(|| {
            hand.actions.extend(outcomes.map(|(event, verdict)| self.caller.classify(&event, verdict, policy, None)));
        });
        if !measuring.is_empty() {
            hand.ended_with.extend_from_slice(&hand.actions);
        }
        for (work, action) in hand.works.drain(..).zip(hand.actions.drain(..)) {
            let place = places.next().expect("a place was reserved for each event in hand");
            place.send(settle::Settling {
                id: work.delivery.id().clone(),
                seq: work.seq,
                token: work.token,
                path: work.delivery.path(),
                failed: work.delivery.failed_attempts(),
                action,
                open_under: None,
            });
        }
        // After the outcomes are on their way, which must not wait for somebody's exporter.
        measuring.end(&hand.ended_with);
        hand.ended_with.clear();
    }
}
