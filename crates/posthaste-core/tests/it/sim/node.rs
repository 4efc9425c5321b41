//! A process: an outbox, its listener, and those who write through it.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::listener::batch;
use posthaste_core::retry::Jitter;
use posthaste_core::store::WriteStore;
use posthaste_core::{
    BatchListener, CommitError, Delivery, Event, EventBuilder, EventId, Failure, Metrics, OnDead, Options, Ordered,
    Outbox, Outcome, Verdict,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::ledger::{Fact, Kind, Said};
use super::plan::millis;
use super::store::{SimStore, SimTx};
use super::{Process, Sim};

/// A process that runs.
pub(super) struct Node {
    pub(super) process: Arc<Process>,
    pub(super) outbox: Outbox<SimStore>,
    pub(super) writers: JoinSet<()>,
}

impl Node {
    pub(super) async fn start(sim: &Arc<Sim>, name: String) -> Self {
        let process = Arc::new(Process::new(name));
        let store = SimStore { sim: Arc::clone(sim), process: Arc::clone(&process) };
        let options = Options { owner: Some(process.name.clone()), ..sim.plan.options.clone() };
        let listener = Listening { sim: Arc::clone(sim), process: Arc::clone(&process) };
        let bounds = Bounds { sim: Arc::clone(sim), batch: sim.plan.batch, options: options.clone() };
        let builder =
            if sim.plan.single_node { Outbox::single_node(store.clone()) } else { Outbox::many_nodes(store.clone()) };
        let builder = match sim.plan.lanes {
            Some(policy) => builder.ordered(Ordered::all()).on_dead(policy),
            None => builder,
        };
        let outbox = builder
            .options(options)
            .metrics(bounds)
            .jitter(Jitter::seeded(sim.draw(|rng| rng.u64(..))))
            .listen("Order", "*", batch(listener).with_max_batch(sim.plan.batch))
            .start()
            .await
            .unwrap();
        sim.note(format!("{} is up", process.name));
        let mut writers = JoinSet::new();
        for _ in 0..sim.draw(|rng| rng.u32(1..=2)) {
            let writer = Writer { sim: Arc::clone(sim), outbox: outbox.clone(), store: store.clone() };
            writers.spawn(writer.run());
        }
        Self { process, outbox, writers }
    }
}

/// The most events of a key that a worker has at once.
const RUN: usize = 100;

/// Checks what the outbox tells about itself.
struct Bounds {
    sim: Arc<Sim>,
    batch: usize,
    options: Options,
}

impl Metrics for Bounds {
    fn queue_depths(&self, hot: usize, cold: usize) {
        // With lanes, what a worker has not begun goes back to its key.
        let back = if self.sim.plan.lanes.is_some() { RUN * self.options.workers } else { 0 };
        if hot > self.options.hot_queue || cold > self.options.cold_queue + back {
            self.sim.broken(format!("bound: {hot} events in the hot queue, {cold} in the cold one"));
        }
    }

    fn in_flight(&self, count: usize) {
        let options = &self.options;
        let with_workers = options.workers * self.batch;
        // The queues, the hands, the places for outcomes, and the batch that is being written.
        let runs = if self.sim.plan.lanes.is_some() { 2 * RUN * options.workers } else { 0 };
        let most = options.hot_queue + options.cold_queue + 2 * with_workers + 3 * options.settle_batch + runs;
        if count > most {
            self.sim.broken(format!("bound: {count} events in flight, {most} at most"));
        }
    }
}

struct Listening {
    sim: Arc<Sim>,
    process: Arc<Process>,
}

/// A call of the listener, noted as ended even when it is cut short.
struct Running<'a> {
    listening: &'a Listening,
    ids: Vec<EventId>,
    started_at: Instant,
}

impl Running<'_> {
    fn end(&mut self, said: impl Fn(&EventId) -> Option<Said>) {
        let sim = &self.listening.sim;
        for id in self.ids.drain(..) {
            sim.ledger().ended(sim.now(), &self.listening.process.name, &id, said(&id));
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.listening.process.is_dead() {
            let limit = self.listening.sim.plan.options.listener_time_limit;
            let timed_out = self.started_at.elapsed() >= limit;
            self.end(|_| timed_out.then_some(Said::Failed));
        }
    }
}

/// What a listener does with a batch.
enum Mood {
    /// Answers for each of them.
    Answers,
    Panics,
    TimesOut,
}

impl BatchListener for Listening {
    async fn on_events(&self, events: &[Delivery]) -> Vec<Verdict> {
        self.process.lives().await;
        let sim = &self.sim;
        for event in events {
            sim.ledger().started(sim.now(), &self.process.name, event);
        }
        let ids = events.iter().map(|event| event.id().clone()).collect();
        let mut running = Running { listening: self, ids, started_at: Instant::now() };
        let (mood, length) = self.mood(events);
        sleep_if(length).await;
        self.process.lives().await;
        match mood {
            Mood::Answers => {}
            Mood::Panics => {
                running.end(|_| Some(Said::Failed));
                // Without the hook that prints it.
                resume_unwind(Box::new("the listener panics by the seed"));
            }
            Mood::TimesOut => std::future::pending().await,
        }
        let verdicts: Vec<_> = events.iter().map(|event| self.verdict(event)).collect();
        let said = |id: &EventId| {
            let index = events.iter().position(|event| event.id() == id)?;
            Some(match &verdicts[index] {
                Ok(Outcome::Done) => Said::Done,
                Ok(Outcome::RetryAfter(_)) => Said::Deferred,
                _ => Said::Failed,
            })
        };
        running.end(said);
        verdicts
    }
}

async fn sleep_if(length: Duration) {
    if !length.is_zero() {
        sleep(length).await;
    }
}

impl Listening {
    fn mood(&self, events: &[Delivery]) -> (Mood, Duration) {
        let (temper, limit) = (self.sim.plan.listener, self.sim.plan.options.listener_time_limit);
        // Once all is healed nobody takes long, or a single worker would have to be waited for for hours.
        let healed = self.sim.is_healed();
        let mut may_fail = !healed;
        {
            let ledger = self.sim.ledger();
            for event in events {
                may_fail &= ledger.facts.get(event.id()).is_some_and(|fact| fact.failures_left > 0);
            }
        }
        let drawn = self.sim.draw(|rng| {
            let length =
                if !healed && temper.slow.hit(rng) { limit.mul_f64(rng.f64() * 0.9) } else { millis(rng, 0..=3) };
            let mood = match () {
                () if may_fail && temper.panics.hit(rng) => Mood::Panics,
                () if may_fail && temper.times_out.hit(rng) => Mood::TimesOut,
                () => Mood::Answers,
            };
            (mood, length.min(limit.mul_f64(0.9)))
        });
        if !matches!(drawn.0, Mood::Answers) {
            let mut ledger = self.sim.ledger();
            for event in events {
                ledger.facts.get_mut(event.id()).unwrap().failures_left -= 1;
            }
        }
        drawn
    }

    fn verdict(&self, event: &Delivery) -> Verdict {
        let temper = self.sim.plan.listener;
        let (fails, defers, own_delay, delay) = self.sim.draw(|rng| {
            (temper.fails.hit(rng), temper.defers.hit(rng), rng.u8(..4) == 0, millis(rng, 0..=temper.longest_delay))
        });
        let mut ledger = self.sim.ledger();
        let Some(fact) = ledger.facts.get_mut(event.id()) else { return Ok(Outcome::Done) };
        if defers && fact.deferrals_left > 0 {
            fact.deferrals_left -= 1;
            return Ok(Outcome::RetryAfter(delay));
        }
        match fact.kind {
            Kind::Poison => Err(Failure::retryable("poison")),
            Kind::Permanent => Err(Failure::permanent("never")),
            Kind::GivenUp => Ok(Outcome::Dead("given up".to_owned())),
            Kind::Fine | Kind::Unroutable if fails && fact.failures_left > 0 => {
                fact.failures_left -= 1;
                let failure = Failure::retryable("not now");
                Err(if own_delay { failure.retry_in(delay) } else { failure })
            }
            Kind::Fine | Kind::Unroutable => Ok(Outcome::Done),
        }
    }
}

impl Sim {
    /// A new event that fails and is put off so often.
    pub(super) fn event(&self, kind: Kind, failures: u32, deferrals: u32) -> EventBuilder {
        let mut ledger = self.ledger();
        let number = ledger.facts.len();
        let (id, payload) = (format!("e{number}"), format!("{{ \"number\":{number} }}"));
        let fact = Fact::new(kind, payload.clone(), failures, deferrals);
        ledger.facts.insert(EventId::new(&id).unwrap(), fact);
        let aggregate = if kind == Kind::Unroutable { "Nobody" } else { "Order" };
        // With lanes it is about those of one key.
        let aggregate_id = if self.plan.lanes.is_some() { number % 4 } else { number };
        Event::builder("Placed").id(&id).aggregate(aggregate, aggregate_id).header("of", &id).json_text(payload)
    }
}

/// Somebody who writes through the outbox of a process.
struct Writer {
    sim: Arc<Sim>,
    outbox: Outbox<SimStore>,
    store: SimStore,
}

/// How a transaction is to end.
#[derive(Clone, Copy)]
enum Ending {
    Commit,
    /// The commit goes on, but nobody waits for it.
    CommitUnheard,
    Rollback,
    Drop,
}

impl Writer {
    async fn run(self) {
        while self.sim.takes_transaction() {
            let (rest, foreign) = self.sim.draw(|rng| (millis(rng, 0..=1000), rng.u8(..4) == 0));
            sleep(rest).await;
            let events = self.events();
            let again = if foreign { self.foreign(&events).await } else { self.own(&events).await };
            // Whoever does not know whether it was committed does it again, with the same ids.
            // (Where DONE is deleted an id is free again, so nobody could tell.)
            if again && !self.sim.plan.deletes_done && self.sim.draw(fastrand::Rng::bool) {
                self.own(&events).await;
            }
        }
    }

    fn events(&self) -> Vec<EventBuilder> {
        let count = self.sim.draw(|rng| if rng.u8(..4) == 0 { rng.usize(2..=6) } else { 1 });
        (0..count).map(|_| self.event()).collect()
    }

    fn event(&self) -> EventBuilder {
        let attempts = self.sim.plan.options.retry_attempts;
        let blocks = self.sim.plan.lanes == Some(OnDead::Block);
        let (kind, failures, deferrals, delay) = self.sim.draw(|rng| {
            let kind = match rng.u8(..20) {
                // Nothing would ever come after them.
                _ if blocks => Kind::Fine,
                0 => Kind::Poison,
                1 => Kind::Permanent,
                2 => Kind::GivenUp,
                3 => Kind::Unroutable,
                _ => Kind::Fine,
            };
            let delay = (rng.u8(..8) == 0).then(|| millis(rng, 1..=5000));
            // One failure fewer than it takes to be dead.
            let failures = match kind {
                Kind::Fine => rng.u32(..attempts),
                _ => 0,
            };
            (kind, failures, rng.u32(..3), delay)
        });
        let event = self.sim.event(kind, failures, deferrals);
        match delay {
            Some(delay) => event.deliver_after(delay),
            None => event,
        }
    }

    fn ending(&self) -> (Ending, Duration, Duration) {
        let half_a_lease = self.sim.plan.options.lease.as_millis() as u64 / 2;
        self.sim.draw(|rng| {
            let ending = match rng.u8(..16) {
                0 => Ending::Rollback,
                1 => Ending::Drop,
                2 | 3 => Ending::CommitUnheard,
                _ => Ending::Commit,
            };
            // Now and then so long that its leases are of no use any more.
            let open = if rng.u8(..16) == 0 { half_a_lease * 3 } else { 5 };
            (ending, millis(rng, 0..=open), millis(rng, 0..=3))
        })
    }

    /// A transaction of the outbox. Says whether it is open what became of it.
    async fn own(&self, events: &[EventBuilder]) -> bool {
        let Ok(Ok(mut tx)) = AssertUnwindSafe(self.outbox.begin()).catch_unwind().await else { return false };
        let (ending, open, patience) = self.ending();
        let (at_once, cut_off) = self.sim.draw(|rng| (rng.bool(), rng.u8(..16) == 0));
        // What was cut off may be committed without anybody knowing of it, so again only the interval finds it.
        if cut_off && !self.sim.plan.calm {
            let _ = timeout(patience, tx.write_all(events.to_vec())).await;
        } else if at_once {
            let Ok(_) = tx.write_all(events.to_vec()).await else { return true };
        } else {
            for event in events {
                let Ok(_) = tx.write(event.clone()).await else { return true };
            }
        }
        sleep_if(open).await;
        match ending {
            Ending::Commit => {
                let committed = AssertUnwindSafe(tx.commit()).catch_unwind().await;
                !matches!(committed, Ok(Ok(())))
            }
            Ending::CommitUnheard => {
                let _ = timeout(patience, AssertUnwindSafe(tx.commit()).catch_unwind()).await;
                true
            }
            Ending::Rollback => {
                let _ = AssertUnwindSafe(tx.rollback()).catch_unwind().await;
                false
            }
            Ending::Drop => {
                drop(tx);
                false
            }
        }
    }

    /// A transaction of somebody else, with a receipt.
    async fn foreign(&self, events: &[EventBuilder]) -> bool {
        let mut tx = SimTx::default();
        let Ok(receipt) = self.outbox.write_all(&mut tx, events.to_vec()).await else { return true };
        let (ending, open, _) = self.ending();
        sleep_if(open).await;
        let committed = AssertUnwindSafe(self.store.commit(tx)).catch_unwind();
        match ending {
            // The receipt is dropped before the commit: there is nothing to find yet when it is looked for. Nobody is told
            // of the commit then, so only the interval finds it.
            Ending::CommitUnheard if !self.sim.plan.calm => {
                drop(receipt);
                sleep_if(open).await;
                !matches!(committed.await, Ok(Ok(())))
            }
            Ending::Commit | Ending::CommitUnheard => match committed.await {
                Ok(Ok(())) => {
                    // Some forget to tell; the row is found all the same.
                    if self.sim.draw(|rng| rng.u8(..4) > 0) {
                        receipt.dispatch();
                    }
                    false
                }
                Ok(Err(CommitError::NotCommitted(_))) => {
                    receipt.rolled_back();
                    true
                }
                _ => true,
            },
            Ending::Rollback => {
                receipt.rolled_back();
                false
            }
            Ending::Drop => false,
        }
    }
}
