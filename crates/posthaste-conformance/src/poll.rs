//! Part E: the poller.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{Delivery, Path};
use posthaste_core::poller::{ClaimHandler, Handled, Polled, Source};
use posthaste_core::retry::Jitter;
use posthaste_core::store::{Action, BoxFuture, ClaimedRow, Lease, RelayStore, Settlement};
use posthaste_core::{EventId, Options, Poller, Status};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Level;

use crate::faulty::{Call, Fault, Faults, Faulty};
use crate::fixture::Fixture;
use crate::journal::Journal;
use crate::meter::Meter;
use crate::outboxes::{no_interval, start, write};
use crate::rows::{assert_at, claim_ids, counts, event, events, ids_of, insert, state};
use crate::tap::Tap;
use crate::wait::{Gate, settle_down, within};

/// A handler that keeps what it is given.
struct Keeper {
    capacity: AtomicUsize,
    /// How many rows it takes before it says no.
    takes: usize,
    asked: AtomicUsize,
    rows: watch::Sender<Vec<(EventId, Lease)>>,
}

impl Keeper {
    fn new(capacity: usize, takes: usize) -> Arc<Self> {
        let rows = watch::Sender::new(Vec::new());
        Arc::new(Self { capacity: AtomicUsize::new(capacity), takes, asked: AtomicUsize::new(0), rows })
    }

    fn ids(&self) -> Vec<String> {
        self.rows.borrow().iter().map(|(id, _)| id.to_string()).collect()
    }

    async fn until(&self, count: usize) {
        let mut rows = self.rows.subscribe();
        within("rows are handed over", rows.wait_for(|rows| rows.len() >= count)).await.unwrap();
    }
}

impl ClaimHandler for Keeper {
    fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    fn handle(&self, row: ClaimedRow, lease: &Lease, leased_at: Instant) -> Handled {
        assert!(leased_at <= Instant::now());
        if self.asked.fetch_add(1, Ordering::Relaxed) >= self.takes {
            return Handled::Refused;
        }
        self.rows.send_modify(|rows| rows.push((row.event.id().clone(), lease.clone())));
        Handled::Accepted
    }
}

fn poller<F: Fixture>(fixture: &F, handler: Arc<dyn ClaimHandler>) -> (Poller, Faults, Meter) {
    let (store, faults) = Faulty::new(fixture.store());
    let meter = Meter::new();
    let builder = Poller::builder(Arc::new(store), handler).options(no_interval()).metrics(Arc::new(meter.clone()));
    (builder.build().unwrap(), faults, meter)
}

/// Without room the database is not even asked; with some, no more than that is claimed.
pub async fn case_53_free_capacity<F: Fixture>(fixture: F) {
    let rows = events(10);
    insert(&fixture.store(), &rows).await;
    let keeper = Keeper::new(0, usize::MAX);
    let (poller, faults, _) = poller(&fixture, keeper.clone());
    let polled = poller.poll(50).await.unwrap();
    assert_eq!(polled, Polled { no_room: true, ..Polled::default() });
    assert_eq!(faults.count(Call::Claim), 0);

    keeper.capacity.store(3, Ordering::Relaxed);
    let polled = poller.poll(50).await.unwrap();
    assert_eq!(polled, Polled { claimed: 3, accepted: 3, full: true, no_room: false });
    assert_eq!(faults.limits(), [3]);
    assert_eq!(keeper.ids(), ids_of(&rows[..3]));
    for row in &rows[3..] {
        assert_at(&fixture.store(), row.id(), Status::New, 0).await;
    }
    keeper.capacity.store(100, Ordering::Relaxed);
    let polled = poller.poll(5).await.unwrap();
    assert_eq!((polled.claimed, polled.full), (5, true));
    let polled = poller.poll(50).await.unwrap();
    assert_eq!((polled.claimed, polled.full), (2, false));
}

/// A running outbox never claims more than its cold queue has room for.
pub async fn case_53_outbox_claims_what_fits<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    insert(&fixture.store(), &events(60)).await;
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let options = Options { workers: 1, cold_queue: 8, ..no_interval() };
    let (outbox, meter) = start(store, options, tap.behind(&gate)).await;
    inbox.next().await;
    // One is with the listener, eight are queued, and the table is left alone.
    meter.until("the queue is full", |tally| tally.cold_enqueued >= 8).await;
    settle_down().await;
    assert!(outbox.in_flight() <= 9, "{} in hand", outbox.in_flight());
    gate.open();
    meter.until("all are delivered", |tally| tally.delivered == 60).await;
    assert!(faults.limits().iter().all(|limit| (1..=8).contains(limit)), "{:?}", faults.limits());
    assert_eq!(meter.tally().released, 0, "nothing was claimed in vain");
    outbox.shutdown().await;
}

/// When the handler says no the poll stops: it is not asked again, and the rows it did not take are free at once.
pub async fn case_54_handler_refuses<F: Fixture>(fixture: F) {
    let rows = events(6);
    insert(&fixture.store(), &rows).await;
    let keeper = Keeper::new(100, 2);
    let (poller, faults, meter) = poller(&fixture, keeper.clone());
    let polled = poller.poll(50).await.unwrap();
    assert_eq!((polled.claimed, polled.accepted), (6, 2));
    assert_eq!(keeper.asked.load(Ordering::Relaxed), 3);
    assert_eq!(keeper.ids(), ids_of(&rows[..2]));
    assert_eq!((meter.tally().released, faults.count(Call::Settle)), (4, 1));
    for row in &rows[2..] {
        assert_at(&fixture.store(), row.id(), Status::New, 0).await;
    }
    assert_eq!(claim_ids(&fixture.store(), 10).await, ids_of(&rows[2..]));
    // What it took it can settle.
    let (id, lease) = keeper.rows.borrow()[0].clone();
    let settlement = Settlement::new(id.clone(), lease, Action::Done);
    fixture.store().settle(&[settlement]).await.unwrap();
    assert_at(&fixture.store(), &id, Status::Done, 0).await;
}

/// A row that is no event is DEAD, with the reason; the rest of the batch goes on.
pub async fn case_55_undecodable_row<F: Fixture>(fixture: F) {
    let rows = events(5);
    insert(&fixture.store(), &rows).await;
    let bad = rows[2].id();
    fixture.damage(bad).await;
    let keeper = Keeper::new(100, usize::MAX);
    let (poller, _, meter) = poller(&fixture, keeper.clone());
    let journal = Journal::keep();
    let polled = poller.poll(50).await.unwrap();
    assert_eq!((polled.claimed, polled.accepted), (5, 4));
    let expected: Vec<String> = ids_of(&rows).into_iter().filter(|id| id != bad.as_str()).collect();
    assert_eq!(keeper.ids(), expected);
    let dead = assert_at(&fixture.store(), bad, Status::Dead, 0).await;
    let error = dead.last_error.unwrap();
    assert!(error.contains("undecodable") && error.contains("headers"), "{error}");
    let logged = format!("message=event is dead event_id={bad} reason={error:?}");
    assert!(journal.has(Level::ERROR, &logged), "{logged} was not logged");
    assert_eq!(meter.tally().dead, 1);
    assert_eq!(poller.poll(50).await.unwrap().claimed, 0);
}

/// The same with the whole outbox around it, and when all rows of a batch are damaged.
pub async fn case_55_undecodable_batch<F: Fixture>(fixture: F) {
    let rows = events(60);
    insert(&fixture.store(), &rows).await;
    for row in &rows[..55] {
        fixture.damage(row.id()).await;
    }
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = start(fixture.store(), no_interval(), tap).await;
    meter.until("the rest is delivered", |tally| tally.delivered == 5 && tally.dead == 55).await;
    let mut delivered = inbox.ids(5).await;
    delivered.sort_unstable();
    assert_eq!(delivered, ids_of(&rows[55..]));
    outbox.shutdown().await;
}

/// A query that fails says nothing about the table: the lag stays what it was.
pub async fn case_56_lag_is_not_guessed<F: Fixture>(fixture: F) {
    insert(&fixture.store(), &[event("Waiting")]).await;
    fixture.advance(Duration::from_secs(60)).await;
    let (poller, faults, meter) = poller(&fixture, Keeper::new(100, 0));
    poller.poll(1).await.unwrap();
    let told = meter.tally().oldest_lag;
    assert!(told.len() == 1 && told[0] >= Duration::from_secs(60), "{told:?}");
    faults.times(3, Call::Claim, Fault::Unavailable);
    for _ in 0..3 {
        poller.poll(1).await.unwrap_err();
    }
    assert_eq!(meter.tally().oldest_lag, told);
    poller.poll(1).await.unwrap();
    assert_eq!(meter.tally().oldest_lag.len(), 2);
    assert!(meter.tally().oldest_lag[1] >= Duration::from_secs(60));
}

/// Errors are tried again after ever longer, spread delays, however often the poller is woken, and then all is well.
pub async fn case_56_errors_back_off<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let rows = events(3);
    insert(&fixture.store(), &rows).await;
    let meter = Meter::new();
    let keeper = Keeper::new(100, usize::MAX);
    let options = Options { poll_interval: Duration::from_secs(2), ..Options::default() };
    let poller = Poller::builder(Arc::new(store), keeper.clone())
        .options(options)
        .metrics(Arc::new(meter.clone()))
        .jitter(Jitter::seeded(7))
        .build()
        .unwrap();
    faults.always(Call::Claim, Fault::Unavailable);
    // No call reaches the database now, so the clock may jump from one delay to the next.
    tokio::time::pause();
    poller.start();
    for failures in 1..=12 {
        faults.until(Call::Claim, failures).await;
        poller.wake().now();
    }
    tokio::time::resume();
    let at = faults.at(Call::Claim);
    let gaps: Vec<Duration> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, doublings) in gaps.iter().zip(0..) {
        let middle = (Duration::from_millis(100) * (1 << doublings)).min(Duration::from_secs(2));
        // Tokio's clock ticks in milliseconds.
        let (shortest, longest) = (middle / 2, (middle * 3 / 2).min(Duration::from_secs(2)) + Duration::from_millis(3));
        assert!(*gap >= shortest && *gap <= longest, "{gap:?} after failure {}", doublings + 1);
    }
    let late: std::collections::HashSet<_> = gaps[5..].iter().map(Duration::as_millis).collect();
    assert!(late.len() > 1, "the delays are not spread: {gaps:?}");
    assert!(meter.tally().poll_failed >= 11);
    assert!(meter.tally().oldest_lag.is_empty());
    faults.clear();
    keeper.until(3).await;
    assert_eq!(keeper.ids(), ids_of(&rows));
    poller.close().await;
}

/// The first poll comes at once, and a second start starts nothing.
pub async fn case_57_start_twice<F: Fixture>(fixture: F) {
    let (poller, faults, _) = poller(&fixture, Keeper::new(100, usize::MAX));
    let gate = Gate::new();
    faults.always(Call::Claim, Fault::Wait(gate.clone()));
    poller.start();
    faults.until(Call::Claim, 1).await;
    poller.start();
    poller.clone().start();
    settle_down().await;
    assert_eq!(faults.count(Call::Claim), 1);
    gate.open();
    within("it closes", poller.close()).await;
    assert_eq!(faults.count(Call::Claim), 1);
}

/// After the close nothing is claimed; to close twice, without a start, or before one, is harmless.
pub async fn case_57_close_in_any_order<F: Fixture>(fixture: F) {
    insert(&fixture.store(), &events(2)).await;
    let (idle, faults, _) = poller(&fixture, Keeper::new(100, usize::MAX));
    within("it closes", idle.close()).await;
    within("it closes", idle.close()).await;
    idle.start();
    idle.wake().now();
    settle_down().await;
    assert_eq!(idle.poll(10).await.unwrap(), Polled::default());
    assert_eq!(faults.count(Call::Claim), 0);

    let keeper = Keeper::new(100, usize::MAX);
    let (started, faults, _) = poller(&fixture, keeper.clone());
    started.start();
    keeper.until(2).await;
    within("it closes", async { tokio::join!(started.close(), started.close()) }).await;
    let claims = faults.count(Call::Claim);
    started.wake().now();
    started.start();
    settle_down().await;
    assert_eq!(started.poll(10).await.unwrap(), Polled::default());
    assert_eq!(faults.count(Call::Claim), claims);
}

/// Rows that a claim under way brings after the close began are given back, not left to their leases.
pub async fn case_57_close_during_a_claim<F: Fixture>(fixture: F) {
    let rows = events(3);
    insert(&fixture.store(), &rows).await;
    let keeper = Keeper::new(100, usize::MAX);
    let (poller, faults, _) = poller(&fixture, keeper.clone());
    let gate = Gate::new();
    faults.always(Call::Claim, Fault::AnswerWaits(gate.clone()));
    poller.start();
    let leased = || async { state(&fixture.store(), rows[0].id()).await.lease.is_some() };
    crate::wait::eventually("they are claimed", leased).await;
    let open = async {
        settle_down().await;
        gate.open();
    };
    within("it closes", async { tokio::join!(poller.close(), open) }).await;
    assert_eq!(keeper.ids(), [""; 0]);
    for row in &rows {
        assert_at(&fixture.store(), row.id(), Status::New, 0).await;
    }
}

/// A backlog drains with default settings without an interval being waited for, in claims that grow.
pub async fn case_58_backlog<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    for _ in 0..F::BACKLOG / 5_000 {
        insert(&fixture.store(), &events(5_000)).await;
    }
    let delivered = watch::Sender::new(0_usize);
    let listener = {
        let delivered = delivered.clone();
        move |event: Delivery| {
            assert_eq!(event.path(), Path::Cold);
            delivered.send_modify(|count| *count += 1);
            async {}
        }
    };
    // An interval of an hour: whoever waits for one waits in vain.
    let (outbox, meter) = start(store, no_interval(), listener).await;
    meter.until("all are delivered", |tally| tally.delivered as usize == F::BACKLOG).await;
    assert_eq!(*delivered.borrow(), F::BACKLOG);
    let limits = faults.limits();
    assert_eq!(limits[..3], [50, 200, 800], "each full claim is followed by a larger one");
    assert!(limits.iter().all(|limit| *limit <= Options::default().cold_queue));
    assert!(limits.len() < F::BACKLOG / 100, "{} claims for {} rows", limits.len(), F::BACKLOG);
    outbox.shutdown().await;
    assert_eq!(counts(outbox.store()).await.done as usize, F::BACKLOG);
}

/// A handler that cannot say when it has room again is asked after the interval, and no sooner.
pub async fn case_58_exactly_full<F: Fixture>(fixture: F) {
    // As many rows as one batch: the poll is full, so the next comes at once, finds nothing, and the poller sleeps.
    insert(&fixture.store(), &events(50)).await;
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = start(store, no_interval(), tap).await;
    inbox.ids(50).await;
    meter.until("all are delivered", |tally| tally.delivered == 50).await;
    faults.until(Call::Claim, 2).await;
    settle_down().await;
    assert_eq!(faults.limits(), [50, 200], "an empty table is not asked again and again");
    // The next backlog begins with a small claim again.
    write(&outbox, event("Hot")).await;
    outbox.wake();
    faults.until(Call::Claim, 3).await;
    assert_eq!(faults.limits()[2], 50);
    outbox.shutdown().await;
}

/// Whoever has no way to say when there is room again is asked at every interval.
struct Silent(Mutex<Vec<EventId>>);

impl ClaimHandler for Silent {
    fn capacity(&self) -> usize {
        1
    }

    fn room_for(&self, wanted: usize) -> BoxFuture<'_, ()> {
        let _ = wanted;
        Box::pin(std::future::pending())
    }

    fn handle(&self, row: ClaimedRow, _lease: &Lease, _leased_at: Instant) -> Handled {
        self.0.lock().unwrap().push(row.event.id().clone());
        Handled::Accepted
    }
}

/// Such a handler gets everything, an interval at a time.
pub async fn case_58_handler_without_signal<F: Fixture>(fixture: F) {
    let rows = events(3);
    insert(&fixture.store(), &rows).await;
    let handler = Arc::new(Silent(Mutex::default()));
    let (store, faults) = Faulty::new(fixture.store());
    let poller = Poller::builder(Arc::new(store), Arc::clone(&handler) as Arc<_>)
        .options(Options { poll_interval: Duration::from_millis(5), ..Options::default() })
        .build()
        .unwrap();
    poller.start();
    faults.until(Call::Claim, 4).await;
    poller.close().await;
    let ids: Vec<String> = handler.0.lock().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(ids, ids_of(&rows));
}

/// A row that somebody else wrote and that is due later is claimed when it is due, once a poll has seen it, however long
/// the interval.
pub async fn case_74_next_moment<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let later = crate::rows::delayed(Duration::from_millis(50));
    insert(&fixture.store(), std::slice::from_ref(&later)).await;
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    assert_eq!(inbox.next().await.id(), later.id());
    outbox.shutdown().await;
}

/// What an operator redrives, or somebody else inserts, is delivered as soon as the poller is woken.
pub async fn case_74_wake<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let tap = tap.answering(|event| match event.event_type() {
        "Dies" => Err(posthaste_core::Failure::permanent("at first")),
        _ => Ok(posthaste_core::Outcome::Done),
    });
    let (outbox, meter) = start(fixture.store(), no_interval(), tap).await;
    meter.until("the first poll is over", |tally| !tally.oldest_lag.is_empty()).await;
    let id = write(&outbox, event("Dies")).await;
    inbox.next().await;
    meter.until("it is dead", |tally| tally.dead == 1).await;
    outbox.admin().redrive(&posthaste_core::store::Redrive::ids([id.clone()])).await.unwrap();
    outbox.wake();
    let again = inbox.next().await;
    assert_eq!((again.id(), again.attempt(), again.path()), (&id, 1, Path::Cold));
    let foreign = event("Foreign");
    insert(&fixture.store(), std::slice::from_ref(&foreign)).await;
    outbox.wake();
    assert_eq!(inbox.next().await.id(), foreign.id());
    outbox.shutdown().await;
}

/// Rows with large payloads are claimed a few at a time, as soon as one claim has told how large they are.
pub async fn case_53_large_payloads<F: Fixture>(fixture: F) {
    const ROWS: usize = 120;
    let payload = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let large: Vec<_> = (0..ROWS)
        .map(|_| posthaste_core::Event::builder("Large").json_text(payload.clone()).build().unwrap())
        .collect();
    insert(&fixture.store(), &large).await;
    let (store, faults) = Faulty::new(fixture.store());
    let (outbox, meter) = start(store, no_interval(), |_: Delivery| async {}).await;
    meter.until("all are delivered", |tally| tally.delivered as usize == ROWS).await;
    let limits = faults.limits();
    assert_eq!(limits[0], 50);
    assert!(limits[1..].iter().all(|limit| *limit <= 32), "{limits:?}");
    outbox.shutdown().await;
}
