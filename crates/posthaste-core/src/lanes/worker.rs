//! A worker: take a run, route, call, classify, settle, and on to the next event of the run.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use smallvec::SmallVec;
use tokio::sync::mpsc;
use tokio::sync::mpsc::PermitIterator;
use tracing::{debug, error};

use super::settle::Settling;
use crate::dispatcher::caller::Caller;
use crate::event::EventId;
use crate::instrument::Measuring;
use crate::keys::{Item, KeyId, Keys, Run};
use crate::listener::{AnyListener, Delivery};
use crate::order::OnDead;
use crate::poller::undecodable;
use crate::queue::AT_ONCE;
use crate::store::{Action, MalformedInLane};

/// The most events of one key that a worker takes at once, for a listener that gets them one by one.
const RUN: usize = 100;

#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) keys: Arc<Keys>,
    pub(crate) caller: Caller,
    /// For listeners that say nothing, for events that have none, and for rows that are no events.
    pub(crate) on_dead: OnDead,
    /// To each settler. A lane has always the same.
    pub(crate) outcomes: Arc<[mpsc::Sender<Settling>]>,
    /// How many events are with a listener.
    pub(crate) with_listeners: Arc<AtomicUsize>,
}

/// Counts events as being with a listener, for as long as it is kept.
struct WithListener<'a>(&'a AtomicUsize, usize);

impl<'a> WithListener<'a> {
    fn new(count: &'a AtomicUsize, events: usize) -> Self {
        count.fetch_add(events, Ordering::Relaxed);
        Self(count, events)
    }
}

impl Drop for WithListener<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Worker {
    /// Works until the keys are closed.
    pub(crate) async fn run(self) {
        while let Some(run) = self.keys.take(|item| self.length_for(item)).await {
            self.deliver_run(run).await;
            // A listener that never waits must not keep the other tasks of its thread from running.
            tokio::task::consume_budget().await;
        }
    }

    fn listener_for(&self, item: &Item) -> Option<&AnyListener> {
        item.row.as_ref().ok().and_then(|event| self.caller.registry.listener_for(event))
    }

    /// How many events of a key to take that begins with this one.
    fn length_for(&self, item: &Item) -> usize {
        match self.listener_for(item) {
            Some(listener) if listener.max_batch() > 1 => listener.most_of_one_key(),
            _ => RUN,
        }
    }

    /// Delivers the events of one key one after the other, until one of them is not acknowledged. For a listener that takes
    /// batches, one batch with other keys.
    async fn deliver_run(&self, mut run: Run) {
        while run.goes_on() {
            let head = &run.items()[0];
            if let Err(malformed) = &head.row {
                let (event_id, action) = bury(malformed);
                self.hand_over(&mut run, event_id, action).await;
                continue;
            }
            let listener = self.listener_for(head);
            if let Some(batching) = listener.filter(|listener| listener.max_batch() > 1) {
                let mut hand = self.filled_up(batching, run);
                return self.deliver(listener, &mut hand).await;
            }
            let mut hand = [(run, 1)];
            self.deliver(listener, &mut hand).await;
            [(run, _)] = hand;
            tokio::task::consume_budget().await;
        }
    }

    /// Hands over the outcome of a row that is no event.
    async fn hand_over(&self, run: &mut Run, event_id: EventId, action: Action) {
        match self.outcomes[self.settler_of(run)].reserve().await {
            Ok(place) => place.send(self.settling(run, event_id, action, self.on_dead)),
            Err(_) => self.keys.give_up_unsettled(run.held().lease),
        }
    }

    /// Which settler gets the outcomes of a run: the same for all of a lane, so that they are written in their order.
    fn settler_of(&self, run: &Run) -> usize {
        usize::from(run.held().lease.lane.0) % self.outcomes.len()
    }

    /// A place for the outcome of each event, with its settler. None if one of them is gone.
    async fn reserve(&self, hand: &[(Run, usize)]) -> Option<SmallVec<[PermitIterator<'_, Settling>; 2]>> {
        let mut places = SmallVec::new();
        for (settler, outcomes) in self.outcomes.iter().enumerate() {
            let of_it = hand.iter().filter(|(run, _)| self.settler_of(run) == settler);
            places.push(outcomes.reserve_many(of_it.map(|(_, count)| count).sum()).await.ok()?);
        }
        Some(places)
    }

    /// A batch that begins with this run: with the runs of other keys that begin with an event for the same listener, as far as it
    /// takes them.
    fn filled_up(&self, listener: &AnyListener, run: Run) -> Vec<(Run, usize)> {
        let same = |item: &Item| self.listener_for(item).is_some_and(|other| other.is(listener));
        let (of_one_key, mut room) = (listener.most_of_one_key(), listener.max_batch());
        let count = run.items().iter().take(of_one_key.min(room)).take_while(|item| same(item)).count();
        room -= count;
        let mut hand = vec![(run, count)];
        while room > 0 {
            let most = room.min(AT_ONCE);
            let more = self.keys.take_wanted(most, of_one_key, same).into_iter().map(|run| {
                let count = run.items().len();
                (run, count)
            });
            let before = hand.len();
            hand.extend(more);
            let taken: usize = hand[before..].iter().map(|(_, count)| count).sum();
            room -= taken;
            if taken < most {
                break;
            }
        }
        hand
    }

    /// Runs the first events of each run, so many of each, and hands over their outcomes.
    async fn deliver(&self, listener: Option<&AnyListener>, hand: &mut [(Run, usize)]) {
        let count = hand.iter().map(|(_, count)| count).sum();
        // The place for the outcomes comes first: between a verdict and its settlement there is then nothing to wait
        // for, and nothing at which an abort could lose it.
        let Some(mut places) = self.reserve(hand).await else {
            error!(events = count, "settler is gone; the events wait until their lanes are leased anew");
            // Nobody would write their outcomes.
            hand.iter().for_each(|(run, _)| self.keys.give_up_unsettled(run.held().lease));
            return;
        };
        // Only now, since there may have been a long wait for a place while the database was away.
        for (run, count) in hand.iter_mut() {
            if !run.goes_on() {
                *count = 0;
            }
        }
        // Mostly there is one, for which nothing is allocated.
        let mut deliveries: SmallVec<[Delivery; 1]> = SmallVec::with_capacity(count);
        for (run, count) in hand.iter() {
            for (item, delivery) in
                run.items().iter().take(*count).filter_map(|item| Some((item, item.row.as_ref().ok()?)))
            {
                self.caller.metrics.latency(delivery.path(), item.lag + item.queued_at.elapsed());
                deliveries.push(delivery.clone());
            }
        }
        if deliveries.is_empty() {
            return;
        }
        let _counted = WithListener::new(&self.with_listeners, deliveries.len());
        let measuring = Measuring::begin(&self.caller.instruments, &deliveries);
        let verdicts = tokio::select! {
            biased;
            verdicts = self.caller.call(&measuring, listener, &deliveries) => Some(verdicts),
            () = until_cut(hand) => None,
        };
        let Some(verdicts) = verdicts else {
            debug!(events = deliveries.len(), "cut short, since a lane of them may be another's by now");
            hand.iter().for_each(|(run, _)| run.held().note_interrupted());
            self.caller.metrics.lease_lost(deliveries.len() as u64);
            return;
        };
        let policy = self.caller.policy(listener);
        let on_dead = listener.and_then(AnyListener::dead_policy).unwrap_or(self.on_dead);
        let actions: SmallVec<[(EventId, Action); 1]> = measuring.entered(|| {
            let classified = deliveries.into_iter().zip(verdicts);
            classified
                .map(|(event, verdict)| {
                    let action = self.caller.classify(&event, verdict, policy, Some(on_dead));
                    (event.id().clone(), action)
                })
                .collect()
        });
        let ended_with: Vec<_> = match measuring.is_empty() {
            true => Vec::new(),
            false => actions.iter().map(|(_, action)| action.clone()).collect(),
        };
        let mut actions = actions.into_iter();
        for (run, count) in hand {
            let mut stopped = false;
            for (event_id, action) in actions.by_ref().take(*count) {
                // What was said of events behind one that is not done is disregarded: they come again after it.
                if !stopped {
                    stopped = action != Action::Done;
                    let place = places[self.settler_of(run)].next();
                    let place = place.expect("a place was reserved for each event in hand");
                    place.send(self.settling(run, event_id, action, on_dead));
                }
            }
        }
        // After the outcomes are on their way, which must not wait for somebody's exporter.
        measuring.end(&ended_with);
    }

    /// The outcome of the next event of a run, which is over with it, or waits for it.
    fn settling(&self, run: &mut Run, event_id: EventId, action: Action, on_dead: OnDead) -> Settling {
        let (lease, id) = (run.held().lease, run.id().clone());
        let has_followers = matches!(id, KeyId::Aggregate(_));
        let closes = has_followers && on_dead == OnDead::Park && matches!(action, Action::Dead { .. });
        let item = if action == Action::Done { run.pass() } else { run.stop() };
        let item = item.expect("an outcome is of an event in hand");
        Settling { lease, id, event_id, item, action, closes }
    }
}

/// What becomes of a row that is no event.
fn bury(malformed: &MalformedInLane) -> (EventId, Action) {
    let (id, reason) = (malformed.malformed.id.clone(), undecodable(&malformed.malformed.reason));
    error!(event_id = %id, reason, "event is dead");
    (id, Action::Dead { error: reason, counts: false })
}

/// Waits until attempts of one of their lanes are to end.
async fn until_cut(hand: &[(Run, usize)]) {
    match hand {
        [(run, _)] => run.held().until_cut().await,
        runs => {
            let mut ends: Vec<_> = runs.iter().map(|(run, _)| Box::pin(run.held().until_cut())).collect();
            poll_fn(|context| match ends.iter_mut().any(|end| end.as_mut().poll(context).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
    }
}
