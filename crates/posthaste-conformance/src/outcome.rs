//! Part D: what a listener's answer makes of the row.

use std::sync::Arc;
use std::sync::mpsc as blocking_mpsc;
use std::time::Duration;

use posthaste_core::listener::{Delivery, Failure, Listener, Outcome, batch, blocking};
use posthaste_core::store::RowState;
use posthaste_core::{Options, RetryPolicy, Status};
use tokio::sync::{Mutex, mpsc};
use tracing::Level;

use crate::fixture::Fixture;
use crate::journal::Journal;
use crate::outboxes::{no_interval, start, write, write_all};
use crate::rows::{assert_at, event, events, insert};
use crate::tap::Tap;
use crate::wait::{Gate, within};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// How long after its insert a row becomes available.
fn wait_of(state: &RowState) -> Duration {
    state.available_at.since(state.created_at)
}

/// Failures wait ever longer, spread by the jitter and never over the maximum, and the last of them is the end.
pub async fn case_42_backoff_until_dead<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let tap = tap.answering(|event| Err(Failure::retryable(format!("failure {}", event.attempt()))));
    let options = Options { retry_base: HOUR, retry_max: HOUR * 3, retry_attempts: 4, ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, tap).await;
    let id = write(&outbox, event("Fails")).await;
    let mut passed = Duration::ZERO;
    for (failures, shortest, longest) in [(1, HOUR / 2, HOUR * 3 / 2), (2, HOUR, HOUR * 3), (3, HOUR * 3 / 2, HOUR * 3)]
    {
        assert_eq!(inbox.next().await.attempt(), failures);
        meter.until("it failed", |tally| tally.failed == u64::from(failures)).await;
        let row = assert_at(outbox.store(), &id, Status::Retry, failures).await;
        assert_eq!(row.last_error, Some(format!("failure {failures}")));
        let delay = wait_of(&row) - passed;
        assert!(delay >= shortest && delay < longest + MINUTE, "{delay:?} after failure {failures}");
        fixture.advance(HOUR * 3).await;
        passed += HOUR * 3;
        outbox.wake();
    }
    assert_eq!(inbox.next().await.attempt(), 4);
    meter.until("it is dead", |tally| tally.dead == 1).await;
    let row = assert_at(outbox.store(), &id, Status::Dead, 4).await;
    assert_eq!(row.last_error.as_deref(), Some("failure 4"));
    assert_eq!(meter.tally().failed, 3);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// With one attempt the first failure is the last.
pub async fn case_42_one_attempt<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let tap = tap.answering(|_| Err(Failure::retryable("once")));
    let (outbox, meter) = start(fixture.store(), Options { retry_attempts: 1, ..no_interval() }, tap).await;
    let id = write(&outbox, event("Fails")).await;
    meter.until("it is dead", |tally| tally.dead == 1).await;
    assert_at(outbox.store(), &id, Status::Dead, 1).await;
    outbox.shutdown().await;
    assert_eq!(inbox.rest().len(), 1);
}

/// A listener's own policy goes before that of the options, and retries come by themselves when they are due.
pub async fn case_42_policy_of_a_listener<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let tap = tap.answering(|_| Err(Failure::retryable("again")));
    let policy = RetryPolicy::fixed([1, 2].map(Duration::from_millis));
    let (outbox, meter) = start(fixture.store(), no_interval(), tap.with_retry(policy)).await;
    let id = write(&outbox, event("Fails")).await;
    meter.until("it is dead", |tally| tally.dead == 1).await;
    assert_at(outbox.store(), &id, Status::Dead, 3).await;
    outbox.shutdown().await;
    let attempts: Vec<u32> = inbox.rest().iter().map(Delivery::attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

/// Done; not now; failed with its own delay; dead with a reason; failed for good. Each leaves its own trace.
pub async fn case_43_outcomes<F: Fixture>(fixture: F) {
    let (tap, _inbox) = Tap::new();
    let tap = tap.answering(|event| match event.event_type() {
        "Done" => Ok(Outcome::Done),
        "Later" => Ok(Outcome::RetryAfter(HOUR)),
        "Failed" => Err(Failure::retryable("busy").retry_in(HOUR * 5)),
        "Dead" => Ok(Outcome::Dead("no such customer".into())),
        "Permanent" => Err(Failure::permanent("will never work")),
        _ => Err(Failure::undecodable("not what was agreed")),
    });
    let journal = Journal::keep();
    let (outbox, meter) = start(fixture.store(), no_interval(), tap).await;
    let types = ["Done", "Later", "Failed", "Dead", "Permanent", "Undecodable"];
    let ids = write_all(&outbox, types.map(event)).await;
    meter.until("all are settled", |tally| tally.delivered + tally.deferred + tally.failed + tally.dead == 6).await;
    let store = outbox.store();
    assert_at(store, &ids[0], Status::Done, 0).await;
    let later = assert_at(store, &ids[1], Status::New, 0).await;
    assert!(wait_of(&later) >= HOUR && wait_of(&later) < HOUR + MINUTE, "{later:?}");
    assert_eq!(later.last_error, None);
    let failed = assert_at(store, &ids[2], Status::Retry, 1).await;
    assert!(wait_of(&failed) >= HOUR * 5 && wait_of(&failed) < HOUR * 5 + MINUTE, "{failed:?}");
    assert_eq!(failed.last_error.as_deref(), Some("busy"));
    let errors = ["no such customer", "will never work", "not what was agreed"];
    for (id, error) in ids[3..].iter().zip(errors) {
        let dead = assert_at(store, id, Status::Dead, 1).await;
        assert_eq!(dead.last_error.as_deref(), Some(error));
        for logged in [format!("message=event is dead event_id={id} "), format!("reason={error:?}")] {
            assert!(journal.has(Level::ERROR, &logged), "{logged} was not logged");
        }
    }
    let tally = meter.tally();
    assert_eq!((tally.delivered, tally.deferred, tally.failed, tally.dead), (1, 1, 1, 3));
    outbox.shutdown().await;
}

/// To be put off is no failure, however often it happens.
pub async fn case_43_deferrals_do_not_count<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let seen = std::sync::atomic::AtomicU32::new(0);
    let tap = tap.answering(move |_| match seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0..5 => Ok(Outcome::RetryAfter(Duration::from_millis(1))),
        _ => Ok(Outcome::Done),
    });
    let (outbox, meter) = start(fixture.store(), Options { retry_attempts: 2, ..no_interval() }, tap).await;
    let id = write(&outbox, event("Later")).await;
    meter.until("it is settled", |tally| tally.delivered + tally.dead == 1).await;
    assert_at(outbox.store(), &id, Status::Done, 0).await;
    outbox.shutdown().await;
    let attempts: Vec<u32> = inbox.rest().iter().map(Delivery::attempt).collect();
    assert_eq!(attempts, [1; 6]);
}

/// A panic is one failed attempt, and the only worker lives on.
pub async fn case_46_panic_in_a_listener<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let tap = tap.answering(|event| match event.event_type() {
        "Panics" => panic!("on purpose"),
        _ => Ok(Outcome::Done),
    });
    let options = Options { workers: 1, retry_base: HOUR, retry_max: HOUR, ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, tap).await;
    let ids = write_all(&outbox, ["Panics", "Fine", "Panics", "Fine"].map(event)).await;
    inbox.ids(4).await;
    meter.until("all are settled", |tally| tally.failed == 2 && tally.delivered == 2).await;
    let failed = assert_at(outbox.store(), &ids[0], Status::Retry, 1).await;
    assert!(failed.last_error.unwrap().contains("on purpose"));
    assert_at(outbox.store(), &ids[1], Status::Done, 0).await;
    assert!(outbox.shutdown().await.is_clean());
}

/// So is a panic off the async threads, and one of a listener that takes slices: there it is one for each event.
pub async fn case_46_panic_elsewhere<F: Fixture>(fixture: F) {
    let options = || Options { workers: 1, retry_base: HOUR, retry_max: HOUR, ..no_interval() };
    let thrower = blocking(|event: &Delivery| assert_ne!(event.event_type(), "Panics", "on purpose"));
    let (outbox, meter) = start(fixture.store(), options(), thrower).await;
    let ids = write_all(&outbox, ["Panics", "Fine"].map(event)).await;
    meter.until("both are settled", |tally| tally.failed == 1 && tally.delivered == 1).await;
    assert!(assert_at(outbox.store(), &ids[0], Status::Retry, 1).await.last_error.unwrap().contains("on purpose"));
    outbox.shutdown().await;

    let slices = batch(|events: Vec<Delivery>| async move {
        assert!(events.iter().all(|event| event.event_type() != "Panics"), "on purpose");
        events.iter().map(|_| Ok(Outcome::Done)).collect()
    });
    let (outbox, meter) = start(fixture.store(), options(), slices).await;
    let ids = write_all(&outbox, ["Panics", "Panics"].map(event)).await;
    meter.until("both failed", |tally| tally.failed == 2).await;
    for id in &ids {
        assert_at(outbox.store(), id, Status::Retry, 1).await;
    }
    write(&outbox, event("Fine")).await;
    meter.until("the worker lives on", |tally| tally.delivered == 1).await;
    outbox.shutdown().await;
}

/// Tells when it is dropped.
struct Cancelled(mpsc::UnboundedSender<()>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A listener over its time limit is cancelled; that is one failed attempt, and its worker goes on.
pub async fn case_47_time_limit<F: Fixture>(fixture: F) {
    let (sender, mut cancelled) = mpsc::unbounded_channel();
    let slow = move |event: Delivery| {
        let guard = Cancelled(sender.clone());
        async move {
            if event.event_type() == "Hangs" {
                std::future::pending::<()>().await;
            }
            std::mem::forget(guard);
        }
    };
    let options = Options { workers: 1, retry_base: HOUR, retry_max: HOUR, ..no_interval() };
    let slow = slow.with_time_limit(Duration::from_millis(20));
    let (outbox, meter) = start(fixture.store(), options, slow).await;
    let ids = write_all(&outbox, ["Hangs", "Fine"].map(event)).await;
    within("the listener is cancelled", cancelled.recv()).await;
    meter.until("both are settled", |tally| tally.failed == 1 && tally.delivered == 1).await;
    let failed = assert_at(outbox.store(), &ids[0], Status::Retry, 1).await;
    assert!(failed.last_error.unwrap().contains("time limit"));
    assert!(cancelled.try_recv().is_err(), "the other was not cancelled");
    outbox.shutdown().await;
}

/// The time limit of the options serves listeners without one of their own.
pub async fn case_47_time_limit_of_the_options<F: Fixture>(fixture: F) {
    let options = Options { listener_time_limit: Duration::from_millis(20), retry_attempts: 1, ..no_interval() };
    let (tap, _inbox) = Tap::new();
    let (outbox, meter) = start(fixture.store(), options, tap.behind(&Gate::new())).await;
    write(&outbox, event("Hangs")).await;
    meter.until("it is dead", |tally| tally.dead == 1).await;
    outbox.shutdown().await;
}

/// A blocking listener runs off the async threads: while it blocks, everything else goes on.
pub async fn case_47_blocking_listener<F: Fixture>(fixture: F) {
    let (started, mut starts) = mpsc::unbounded_channel();
    let (release, released) = blocking_mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let listener = blocking(move |_: &Delivery| {
        started.send(std::thread::current().id()).unwrap();
        // On an async thread this would wait in vain: the one that sends could not run.
        released.lock().unwrap().recv_timeout(Duration::from_secs(10)).map_err(|_| "nobody else could run")
    });
    let options = Options { retry_attempts: 1, ..no_interval() };
    let (outbox, meter) = start(fixture.store(), options, listener).await;
    write(&outbox, event("Blocks")).await;
    let thread = within("the listener starts", starts.recv()).await.unwrap();
    assert_ne!(thread, std::thread::current().id());
    release.send(()).unwrap();
    meter.until("it is settled", |tally| tally.delivered + tally.dead == 1).await;
    assert_eq!(meter.tally().delivered, 1);
    outbox.shutdown().await;
}

/// A listener that takes slices gets what is there, within its limit, and answers for each.
pub async fn case_68_slices<F: Fixture>(fixture: F) {
    insert(&fixture.store(), &events(25)).await;
    let (sender, mut sizes) = mpsc::unbounded_channel();
    let seen = Arc::new(Mutex::new(0));
    let listener = batch(move |events: Vec<Delivery>| {
        sender.send(events.len()).unwrap();
        let seen = Arc::clone(&seen);
        async move {
            let mut seen = seen.lock().await;
            let mut answer = |_: &Delivery| {
                *seen += 1;
                if *seen % 5 == 0 { Err(Failure::permanent("every fifth")) } else { Ok(Outcome::Done) }
            };
            events.iter().map(&mut answer).collect()
        }
    })
    .with_max_batch(10);
    let (outbox, meter) = start(fixture.store(), Options { workers: 1, ..no_interval() }, listener).await;
    meter.until("all are settled", |tally| tally.delivered == 20 && tally.dead == 5).await;
    outbox.shutdown().await;
    let mut all = Vec::new();
    while let Ok(size) = sizes.try_recv() {
        all.push(size);
    }
    assert_eq!(all.iter().sum::<usize>(), 25);
    assert!(all.iter().all(|size| *size <= 10), "{all:?}");
    assert!(all.iter().any(|size| *size > 1), "they came one by one");
}

/// Too few or too many answers: nobody knows which belongs to which, so each event of the slice has failed once.
pub async fn case_68_wrong_number_of_answers<F: Fixture>(fixture: F) {
    for answers in [0, 1, 7] {
        let rows = events(3);
        insert(&fixture.store(), &rows).await;
        let listener = batch(move |_: Vec<Delivery>| async move { (0..answers).map(|_| Ok(Outcome::Done)).collect() });
        let options = Options { workers: 1, retry_base: HOUR, retry_max: HOUR, ..no_interval() };
        let (outbox, meter) = start(fixture.store(), options, listener).await;
        meter.until("all failed", |tally| tally.failed == 3).await;
        for row in &rows {
            let failed = assert_at(outbox.store(), row.id(), Status::Retry, 1).await;
            assert!(failed.last_error.unwrap().contains(&format!("{answers} verdicts for 3")));
        }
        outbox.shutdown().await;
    }
}
