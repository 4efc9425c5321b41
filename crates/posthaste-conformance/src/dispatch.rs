//! Part D: queues, workers, settlements and the close.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::inflight::InFlight;
use posthaste_core::listener::{Delivery, Path};
use posthaste_core::poller::{ClaimHandler, Handled};
use posthaste_core::store::{RelayStore, Store};
use posthaste_core::{Closed, Dispatcher, EventId, Options, Registry, Status};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::faulty::{Call, Fault, Faulty};
use crate::fixture::Fixture;
use crate::meter::Meter;
use crate::outboxes::{no_interval, start, write, write_all};
use crate::rows::{LEASE, assert_at, claim, claim_ids, counts, event, events, ids_of, insert, lease, state};
use crate::tap::Tap;
use crate::wait::{Gate, eventually, settle_down, within};

const HOUR: Duration = Duration::from_secs(3600);

/// The database is away when the outcome is to be written: it is written later, and the listener did not fail.
pub async fn case_45_settled_again<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = start(store, no_interval(), tap).await;
    faults.times(2, Call::Settle, Fault::Unavailable);
    let id = write(&outbox, event("Delivered")).await;
    meter.until("it is settled", |tally| tally.delivered == 1).await;
    assert_eq!(meter.tally().settle_failed, 2);
    assert_eq!((meter.tally().failed, outbox.in_flight()), (0, 0));
    outbox.shutdown().await;
    assert_at(outbox.store(), &id, Status::Done, 0).await;
    assert_eq!(inbox.rest().len(), 1, "the listener had succeeded");
}

/// The outcome can never be written: its entry is freed, and the event comes again when its lease has run out, as the
/// first attempt that it still is.
pub async fn case_45_redelivered<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = start(store, no_interval(), tap).await;
    faults.always(Call::Settle, Fault::Refused);
    let id = write(&outbox, event("Delivered")).await;
    inbox.next().await;
    meter.until("it is given up", |tally| tally.settle_failed > 3 && tally.in_flight.last() == Some(&0)).await;
    assert_eq!(outbox.in_flight(), 0);
    faults.clear();
    fixture.advance(LEASE).await;
    outbox.wake();
    let again = inbox.next().await;
    assert_eq!((again.id(), again.attempt()), (&id, 1));
    meter.until("it is settled", |tally| tally.delivered == 1).await;
    assert_at(outbox.store(), &id, Status::Done, 0).await;
    outbox.shutdown().await;
}

/// One outcome that the database refuses does not keep the others of its batch from being written.
pub async fn case_45_one_bad_row<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let rows = events(9);
    insert(&fixture.store(), &rows).await;
    let bad = rows[4].id().clone();
    faults.poison(&bad);
    let (tap, _inbox) = Tap::new();
    let (outbox, meter) = start(store, no_interval(), tap).await;
    meter.until("the others are settled", |tally| tally.delivered == 8).await;
    meter.until("it is given up", |tally| tally.in_flight.last() == Some(&0)).await;
    let counts = counts(outbox.store()).await;
    assert_eq!((counts.done, counts.new), (8, 1));
    assert_eq!(state(outbox.store(), &bad).await.status, Status::New);
    outbox.shutdown().await;
}

/// A dispatcher without a poller, for rows that a case hands over itself.
fn dispatcher<S: Store>(store: S, options: Options, tap: Tap) -> (Arc<Dispatcher>, Meter) {
    let meter = Meter::new();
    let mut registry = Registry::new();
    registry.register_all(tap).unwrap();
    let builder = Dispatcher::builder(Arc::new(store), registry).options(options).metrics(Arc::new(meter.clone()));
    (builder.start().unwrap(), meter)
}

/// Claims rows and hands them to a dispatcher.
async fn hand_over<S: RelayStore>(store: &S, dispatcher: &Arc<Dispatcher>) -> Vec<Handled> {
    let leased_at = Instant::now();
    let (lease, rows) = claim(store, 1000).await;
    rows.into_iter().map(|row| dispatcher.handle(row, &lease, leased_at)).collect()
}

/// Thirty cold events on one worker are delivered at once: the empty hot queue is not waited for, not even a moment.
pub async fn case_48_idle_queue<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    insert(&fixture.store(), &events(30)).await;
    let settlements = Gate::new();
    faults.always(Call::Settle, Fault::Wait(settlements.clone()));
    let (tap, mut inbox) = Tap::new();
    let (dispatcher, meter) = dispatcher(store, Options { workers: 1, ..no_interval() }, tap);
    // The worker sleeps by now, and the database is not asked again before the clock runs on.
    settle_down().await;
    let leased_at = Instant::now();
    let (lease, rows) = claim(&fixture.store(), 30).await;
    tokio::time::pause();
    let handed_at = Instant::now();
    for row in rows {
        assert_eq!(dispatcher.handle(row, &lease, leased_at), Handled::Accepted);
    }
    inbox.ids(30).await;
    let took = handed_at.elapsed();
    tokio::time::resume();
    assert!(took < Duration::from_millis(10), "waited {took:?} for the other queue");
    settlements.open();
    meter.until("all are delivered", |tally| tally.delivered == 30).await;
    assert!(dispatcher.close().await.is_clean());
}

/// While both queues have work, two deliveries of three are hot and one is cold, so neither starves.
pub async fn case_49_share_of_hot_and_cold<F: Fixture>(fixture: F) {
    const EACH: usize = 600;
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let options = Options { workers: 1, hot_queue: EACH, cold_queue: 10 * EACH, ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, tap.behind(&gate)).await;
    // The only worker is kept busy until both queues are full.
    write(&outbox, event("First")).await;
    inbox.next().await;
    insert(&fixture.store(), &events(EACH)).await;
    outbox.wake();
    write_all(&outbox, events(EACH)).await;
    let full = EACH as u64;
    meter.until("both are full", |tally| tally.hot_enqueued == full + 1 && tally.cold_enqueued == full).await;
    gate.open();
    let mut paths = Vec::new();
    for _ in 0..EACH {
        paths.push(inbox.next().await.path());
    }
    let hot = paths.iter().filter(|path| **path == Path::Hot).count();
    assert!(hot.abs_diff(EACH * 2 / 3) <= EACH / 20, "{hot} of {EACH} were hot");
    for window in paths.windows(6) {
        assert!(window.contains(&Path::Hot) && window.contains(&Path::Cold), "one starves: {window:?}");
    }
    inbox.ids(EACH).await;
    meter.until("all are delivered", |tally| tally.delivered == 2 * full + 1).await;
    outbox.shutdown().await;
}

/// An event that hangs is started again after the time to live; the old attempt's late end does not touch the new one.
pub async fn case_50_late_end_of_an_old_attempt<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let gates = [Gate::new(), Gate::new()];
    let started = AtomicUsize::new(0);
    let listener = {
        let gates = gates.clone();
        move |event: Delivery| {
            let gate = gates[started.fetch_add(1, Ordering::Relaxed)].clone();
            let tap = tap.clone();
            async move {
                posthaste_core::Listener::on_event(&tap, &event).await?;
                gate.pass().await;
                Ok::<_, posthaste_core::Failure>(())
            }
        }
    };
    let options = Options { workers: 2, in_flight_ttl: Some(Duration::from_micros(1)), ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, listener).await;
    let id = write(&outbox, event("Hangs")).await;
    assert_eq!(inbox.next().await.path(), Path::Hot);
    fixture.advance(LEASE).await;
    outbox.wake();
    assert_eq!(inbox.next().await.path(), Path::Cold);
    let held = state(outbox.store(), &id).await;

    gates[0].open();
    meter.until("the settler has looked at the old end", |tally| !tally.in_flight.is_empty()).await;
    assert_eq!(outbox.in_flight(), 1, "the new attempt was ended");
    assert_eq!(state(outbox.store(), &id).await, held, "the old attempt was settled");
    gates[1].open();
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    assert_eq!(outbox.in_flight(), 0);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// The tracker itself: one acquisition at a time, and only the current one can be released.
pub async fn case_50_tracker<F: Fixture>(_fixture: F) {
    tokio::time::pause();
    let tracker = InFlight::new(Some(Duration::from_secs(10)));
    let id = EventId::new("x").unwrap();
    let (first, second) = (lease(), lease());
    let old = tracker.acquire(&id, &first, Instant::now()).unwrap();
    assert_eq!(tracker.lease(&id, old), Some(first.clone()));
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(tracker.acquire(&id, &second, Instant::now()).is_none(), "it is in hand");
    assert_eq!(tracker.lease(&id, old), Some(second.clone()), "and goes on under the new lease");
    tokio::time::advance(Duration::from_secs(1)).await;
    let new = tracker.acquire(&id, &first, Instant::now()).expect("the old acquisition is forgotten");
    assert_eq!(tracker.lease(&id, old), None);
    assert!(!tracker.release(&id, old), "too late");
    assert_eq!((tracker.len(), tracker.lease(&id, new)), (1, Some(first)));
    assert!(tracker.release(&id, new));
    assert!(tracker.is_empty() && !tracker.release(&id, new));

    let patient = InFlight::new(None);
    let token = patient.acquire(&id, &second, Instant::now()).unwrap();
    tokio::time::advance(HOUR * 1000).await;
    assert!(patient.acquire(&id, &second, Instant::now()).is_none(), "without a time to live it is never forgotten");
    assert!(patient.release(&id, token));
}

/// As many listeners run at once as there are workers, hot and cold together: all of them, and never one more.
pub async fn case_51_workers<F: Fixture>(fixture: F) {
    const WORKERS: usize = 3;
    let running = watch::Sender::new((0_usize, 0_usize));
    let gate = Gate::new();
    let listener = {
        let (running, gate) = (running.clone(), gate.clone());
        move |_: Delivery| {
            let (running, gate) = (running.clone(), gate.clone());
            async move {
                running.send_modify(|(now, most)| {
                    *now += 1;
                    *most = (*most).max(*now);
                });
                gate.pass().await;
                tokio::task::yield_now().await;
                running.send_modify(|(now, _)| *now -= 1);
            }
        }
    };
    insert(&fixture.store(), &events(20)).await;
    let options = Options { workers: WORKERS, ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, listener).await;
    write_all(&outbox, events(20)).await;
    let mut watched = running.subscribe();
    within("all workers are busy", watched.wait_for(|(now, _)| *now == WORKERS)).await.unwrap();
    meter.until("both queues are filled", |tally| tally.hot_enqueued == 20 && tally.cold_enqueued == 20).await;
    settle_down().await;
    assert_eq!(*running.borrow(), (WORKERS, WORKERS));
    gate.open();
    meter.until("all are delivered", |tally| tally.delivered == 40).await;
    outbox.shutdown().await;
    assert_eq!(*running.borrow(), (0, WORKERS));
}

/// A close refuses what is new and delivers what is there.
pub async fn case_52_drains<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let (dispatcher, _) = dispatcher(store.clone(), Options { workers: 1, ..no_interval() }, tap.behind(&gate));
    let rows = events(5);
    insert(&store, &rows).await;
    assert_eq!(hand_over(&store, &dispatcher).await, [Handled::Accepted; 5]);
    inbox.next().await;
    let dispatcher = dispatcher;
    let closing = tokio::spawn({
        let dispatcher = Arc::clone(&dispatcher);
        async move { dispatcher.close().await }
    });
    eventually("it is closing", || async { dispatcher.capacity() == 0 }).await;
    insert(&store, &events(1)).await;
    assert_eq!(hand_over(&store, &dispatcher).await, [Handled::Refused]);
    assert!(!closing.is_finished());
    gate.open();
    assert!(within("it closes", closing).await.unwrap().is_clean());
    assert_eq!(inbox.rest().len(), 4);
    assert_eq!((counts(&store).await.done, dispatcher.in_flight()), (5, 0));
}

/// The same for an outbox with work in both queues.
pub async fn case_52_drains_both_queues<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let (outbox, meter) = start(fixture.store(), Options { workers: 1, ..no_interval() }, tap.behind(&gate)).await;
    write(&outbox, event("First")).await;
    inbox.next().await;
    insert(&fixture.store(), &events(3)).await;
    outbox.wake();
    write_all(&outbox, events(3)).await;
    meter.until("both are filled", |tally| tally.hot_enqueued == 4 && tally.cold_enqueued == 3).await;
    let open = async {
        settle_down().await;
        gate.open();
    };
    let (closed, ()) = tokio::join!(outbox.shutdown(), open);
    assert!(closed.is_clean(), "{closed:?}");
    assert_eq!(inbox.rest().len(), 6);
    assert_eq!(counts(outbox.store()).await.done, 7);
}

/// How long the database gets to take events back.
const DATABASE: Duration = Duration::from_millis(500);

/// Runs a case whose end gives events back. The database gets half a second for that, and on a busy machine may need longer: the case
/// then says that they were abandoned, and begins anew with another table. That it is so again and again cannot be, nor where there was
/// time.
async fn gives_back<F: Fixture>(mut fixture: F, mut case: impl AsyncFnMut(&F) -> Closed) {
    for _ in 0..4 {
        let begun_at = Instant::now();
        if case(&fixture).await.abandoned == 0 {
            return;
        }
        assert!(begun_at.elapsed() >= DATABASE, "abandoned after {:?}", begun_at.elapsed());
        fixture = F::create().await;
    }
    assert_eq!(case(&fixture).await.abandoned, 0);
}

/// What the deadline does not leave time for is released: untried, and available to others at once.
pub async fn case_52_keeps_to_the_deadline<F: Fixture>(fixture: F) {
    gives_back(fixture, async |fixture: &F| {
        let (tap, mut inbox) = Tap::new();
        let options = Options { workers: 1, shutdown_deadline: Duration::from_millis(50), ..no_interval() };
        let (outbox, _) = start(fixture.store(), options, tap.behind(&Gate::new())).await;
        let rows = events(4);
        write_all(&outbox, &rows).await;
        inbox.next().await;
        let closed = within("it keeps to its deadline", outbox.shutdown()).await;
        if closed.abandoned > 0 {
            return closed;
        }
        assert_eq!(closed.released, 4);
        for row in &rows {
            assert_at(outbox.store(), row.id(), Status::New, 0).await;
        }
        assert_eq!(outbox.in_flight(), 0);
        assert_eq!(claim_ids(&fixture.store(), 10).await, ids_of(&rows));
        inbox.assert_empty();
        closed
    })
    .await;
}

/// Even a database that does not answer does not hold up the end.
pub async fn case_52_database_does_not_answer<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let options = Options { workers: 1, shutdown_deadline: Duration::from_millis(50), ..no_interval() };
    let (outbox, _) = start(store, options, tap.behind(&Gate::new())).await;
    write_all(&outbox, events(3)).await;
    inbox.next().await;
    faults.always(Call::Settle, Fault::Wait(Gate::new()));
    let closed = within("it keeps to its deadline", outbox.shutdown()).await;
    assert_eq!(closed, Closed { released: 0, abandoned: 3 });
}

/// To close twice, or from several tasks at once, is to close once.
pub async fn case_52_twice_and_at_once<F: Fixture>(fixture: F) {
    gives_back(fixture, async |fixture: &F| {
        let (tap, mut inbox) = Tap::new();
        let options = Options { workers: 1, shutdown_deadline: Duration::from_millis(50), ..no_interval() };
        let (outbox, meter) = start(fixture.store(), options, tap.behind(&Gate::new())).await;
        write_all(&outbox, events(2)).await;
        inbox.next().await;
        let other = outbox.clone();
        let ends = async { tokio::join!(outbox.shutdown(), other.shutdown(), outbox.shutdown()) };
        let (a, b, c) = within("all end", ends).await;
        assert_eq!((a, b, c), (a, a, a));
        assert_eq!(outbox.shutdown().await, a);
        assert_eq!(outbox.shutdown_now().await, a);
        if a.abandoned == 0 {
            assert_eq!(a.released, 2);
            assert_eq!(meter.tally().released, 2);
        }
        a
    })
    .await;
}

/// A second signal cuts a shutdown short, whether it is still waited for or not.
pub async fn case_52_cut_short<F: Fixture>(fixture: F) {
    gives_back(fixture, async |fixture: &F| {
        for still_waited_for in [true, false] {
            let (tap, mut inbox) = Tap::new();
            let options = Options { workers: 1, shutdown_deadline: HOUR, ..no_interval() };
            let (outbox, _) = start(fixture.store(), options, tap.behind(&Gate::new())).await;
            let rows = events(2);
            write_all(&outbox, &rows).await;
            inbox.next().await;
            let first = tokio::spawn({
                let outbox = outbox.clone();
                async move { outbox.shutdown().await }
            });
            settle_down().await;
            if !still_waited_for {
                first.abort();
            }
            let closed = within("it is cut short", outbox.shutdown_now()).await;
            if still_waited_for {
                assert_eq!(within("the first ends as well", first).await.unwrap(), closed);
            }
            if closed.abandoned > 0 {
                return closed;
            }
            assert_eq!(closed.released, 2);
            assert_eq!(claim_ids(&fixture.store(), 10).await, ids_of(&rows));
        }
        Closed::default()
    })
    .await;
}

/// An event in hand whose lease ran out and that its own process claimed again is not started twice; it goes on under
/// the new lease, and is settled under it.
pub async fn case_69_lease_is_adopted<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let (outbox, meter) = start(fixture.store(), no_interval(), tap.behind(&gate)).await;
    let id = write(&outbox, event("Slow")).await;
    inbox.next().await;
    let born = state(outbox.store(), &id).await.lease.unwrap().0;
    fixture.advance(LEASE).await;
    outbox.wake();
    meter.until("it is claimed again", |tally| tally.claim_batch == [1]).await;
    settle_down().await;
    assert_ne!(state(outbox.store(), &id).await.lease.unwrap().0, born);
    gate.open();
    meter.until("it is settled", |tally| tally.delivered + tally.lease_lost == 1).await;
    assert_eq!(meter.tally().delivered, 1);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_at(outbox.store(), &id, Status::Done, 0).await;
}

/// The same while its settlement is on the way to the database: that one comes too late, and another follows it under
/// the new lease.
pub async fn case_69_adopted_while_settling<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = start(store, no_interval(), tap).await;
    meter.until("the first poll is over", |tally| !tally.oldest_lag.is_empty()).await;
    let gate = Gate::new();
    faults.times(1, Call::Settle, Fault::Wait(gate.clone()));
    let id = write(&outbox, event("Slow")).await;
    inbox.next().await;
    faults.until(Call::Settle, 1).await;
    fixture.advance(LEASE).await;
    outbox.wake();
    meter.until("it is claimed again", |tally| tally.claim_batch == [1]).await;
    settle_down().await;
    gate.open();
    meter.until("it is settled", |tally| tally.delivered == 1).await;
    assert_eq!((meter.tally().lease_lost, outbox.in_flight()), (0, 0));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_at(outbox.store(), &id, Status::Done, 0).await;
}

/// The same between the settlement and its answer: the row is to be tried again, is claimed at once, and is then nobody's
/// business but the next attempt's.
pub async fn case_69_claimed_before_the_answer<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let tap = tap.answering(|event| match event.attempt() {
        1 => Err(posthaste_core::Failure::retryable("at first").retry_in(Duration::ZERO)),
        _ => Ok(posthaste_core::Outcome::Done),
    });
    let (outbox, meter) = start(store, no_interval(), tap).await;
    meter.until("the first poll is over", |tally| !tally.oldest_lag.is_empty()).await;
    let gate = Gate::new();
    faults.times(1, Call::Settle, Fault::AnswerWaits(gate.clone()));
    let id = write(&outbox, event("Fails once")).await;
    inbox.next().await;
    let failed = || async { state(outbox.store(), &id).await.status == Status::Retry };
    eventually("the failure is written", failed).await;
    outbox.wake();
    meter.until("it is claimed again", |tally| tally.claim_batch == [1]).await;
    settle_down().await;
    gate.open();
    assert_eq!(inbox.next().await.attempt(), 2);
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_at(outbox.store(), &id, Status::Done, 1).await;
}

/// While a listener runs its lease is renewed, far beyond the time for which it was taken.
pub async fn case_70_slow_listener_keeps_its_lease<F: Fixture>(fixture: F) {
    // The database has as long for each settlement, also while the machine is busy.
    let lease = Duration::from_millis(800);
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let (outbox, meter) = start(fixture.store(), Options { lease, ..no_interval() }, tap.behind(&gate)).await;
    let id = write(&outbox, event("Slow")).await;
    inbox.next().await;
    let born = state(outbox.store(), &id).await.lease.unwrap();
    let renewed = || async {
        let (now, at) = state(outbox.store(), &id).await.lease.expect("it was given up");
        assert_eq!(now, born.0);
        at.since(born.1) > lease * 3 / 2
    };
    eventually("the lease is renewed again and again", renewed).await;
    gate.open();
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A renewal that fails is tried again in time.
pub async fn case_70_failed_renewal<F: Fixture>(fixture: F) {
    let lease = Duration::from_millis(900);
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let (outbox, meter) = start(store, Options { lease, ..no_interval() }, tap.behind(&gate)).await;
    faults.times(1, Call::Renew, Fault::Unavailable);
    let id = write(&outbox, event("Slow")).await;
    inbox.next().await;
    let born = state(outbox.store(), &id).await.lease.unwrap();
    let renewed = || async { state(outbox.store(), &id).await.lease.unwrap().1 > born.1 };
    eventually("the lease is renewed", renewed).await;
    assert!(faults.count(Call::Renew) >= 2);
    gate.open();
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    outbox.shutdown().await;
}

/// An event whose lease ran out while it was queued is not started: another process may have it. It comes again by a
/// claim.
pub async fn case_75_lease_runs_out_in_the_queue<F: Fixture>(fixture: F) {
    let lease = Duration::from_millis(800);
    let (store, faults) = Faulty::new(fixture.store());
    faults.always(Call::Renew, Fault::Unavailable);
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let options = Options { lease, workers: 1, ..no_interval() };
    let (outbox, meter) = start(store, options, tap.behind(&gate)).await;
    let ids = write_all(&outbox, events(2)).await;
    assert_eq!(inbox.next().await.id(), &ids[0]);
    // Time has to pass; nothing is waited for.
    tokio::time::sleep(lease * 2).await;
    gate.open();
    meter.until("it is left alone", |tally| tally.lease_lost >= 1).await;
    // Nobody wakes the poller but who let it go.
    meter.until("both are delivered", |tally| tally.delivered == 2).await;
    let again = inbox.next().await;
    assert_eq!((again.id(), again.path(), again.attempt()), (&ids[1], Path::Cold, 1));
    outbox.shutdown().await;
    inbox.assert_empty();
}
