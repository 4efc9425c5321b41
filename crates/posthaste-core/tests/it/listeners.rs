//! Listeners of unusual shapes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::event::DecodeError;
use posthaste_core::listener::{FailureKind, batch, blocking};
use posthaste_core::store::AdminStore;
use posthaste_core::{Delivery, Event, Failure, FanOut, Listener, MemoryStore, Options, Ordered, Outbox, Outcome};

use crate::{until, write};

#[tokio::test(start_paused = true)]
async fn a_batch_may_be_larger_than_a_settlement() {
    let store = MemoryStore::new();
    let writer = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    tx.write_all((0..500).map(|_| Event::of_json("Any", "{}"))).await.unwrap();
    tx.commit().await.unwrap();

    let largest = Arc::new(AtomicUsize::new(0));
    let listener = {
        let largest = Arc::clone(&largest);
        batch(move |events: Vec<Delivery>| {
            largest.fetch_max(events.len(), Ordering::SeqCst);
            std::future::ready(events.iter().map(|_| Ok(Outcome::Done)).collect())
        })
        .with_max_batch(300)
    };
    let options = Options { settle_batch: 10, ..Options::default() };
    let _outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    until(&store, "all are done", |counts| counts.done == 500).await;
    assert!(largest.load(Ordering::SeqCst) > 20, "{largest:?}");
}

/// Two listeners get batches of a hundred, and every other event is for the other one. Says how many batches there were.
async fn batches_of_two(ordered: Ordered, options: Options, written_before: bool) -> usize {
    const EVENTS: usize = 2_000;
    let (store, batches) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let counting = || {
        let batches = Arc::clone(&batches);
        let listener = move |events: Vec<Delivery>| {
            assert!(events.iter().all(|event| event.event_type() == events[0].event_type()), "{events:?}");
            batches.fetch_add(1, Ordering::SeqCst);
            std::future::ready(events.iter().map(|_| Ok(Outcome::Done)).collect())
        };
        batch(listener).with_max_batch(100)
    };
    let outbox = Outbox::builder(store.clone()).ordered(ordered.clone()).options(options);
    let outbox = outbox.listen("*", "A", counting()).listen("*", "B", counting());
    let events = (0..EVENTS).map(|number| {
        Event::builder(["A", "B"][number % 2]).aggregate("Order", number / 4).json_text("{}").build().unwrap()
    });
    let write = async |writer: &Outbox<MemoryStore>| {
        let mut tx = writer.begin().await.unwrap();
        tx.write_all(events).await.unwrap();
        tx.commit().await.unwrap();
    };
    let _outbox = match written_before {
        true => {
            let writer = Outbox::writer_only(store.clone()).ordered(ordered).start().await.unwrap();
            write(&writer).await;
            outbox.start().await.unwrap()
        }
        false => {
            let outbox = outbox.start().await.unwrap();
            write(&outbox).await;
            outbox
        }
    };
    until(&store, "all are done", |counts| counts.done == EVENTS as u64).await;
    batches.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn batches_of_one_listener_are_full_although_others_come_in_between() {
    let many = || Options { hot_queue: 2_000, ..Options::default() };
    for (ordered, written_before) in [(Ordered::None, true), (Ordered::None, false), (Ordered::All, true)] {
        let batches = batches_of_two(ordered.clone(), many(), written_before).await;
        println!("{batches} batches: {ordered:?}, written before: {written_before}");
        assert!(batches <= 60, "{batches} batches of 2,000 events: {ordered:?}, written before: {written_before}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fan_out_to_nobody_does_not_pass_for_delivered() {
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone()).listen_all(FanOut::new()).start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "it is dead", |counts| counts.dead == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_fan_out_keeps_its_time_limit() {
    let store = MemoryStore::new();
    let hangs = (|_: Delivery| std::future::pending::<()>()).with_time_limit(Duration::from_millis(5));
    let whole = FanOut::new().and(hangs).with_retry(posthaste_core::RetryPolicy::never());
    let outbox = Outbox::builder(store.clone()).listen_all(whole).start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "it is dead", |counts| counts.dead == 1).await;
    let record = store.list(&Default::default(), &Default::default()).await.unwrap().remove(0);
    assert!(record.state.last_error.unwrap().contains("time limit of 5ms"));
}

/// Answers so, one after the other, and DONE at the end; and counts how often it was asked.
fn answers(
    verdicts: impl IntoIterator<Item = Result<Outcome, &'static str>>,
) -> (impl Listener + Clone, Arc<AtomicUsize>) {
    let (asked, verdicts) = (Arc::new(AtomicUsize::new(0)), verdicts.into_iter().collect::<Vec<_>>());
    let counted = Arc::clone(&asked);
    let listener = move |_: Delivery| {
        let answer = verdicts.get(counted.fetch_add(1, Ordering::SeqCst)).cloned();
        std::future::ready(answer.unwrap_or(Ok(Outcome::Done)))
    };
    (listener, asked)
}

#[tokio::test(start_paused = true)]
async fn an_event_that_one_of_a_fan_out_puts_off_goes_on_with_that_one() {
    let later = || Ok(Outcome::RetryAfter(Duration::from_secs(60)));
    let (first, firsts) = answers([]);
    let (second, seconds) = answers([later(), later(), Err("not yet"), later()]);
    let (third, thirds) = answers([later()]);
    let store = MemoryStore::new();
    let whole = FanOut::new().and(first).and(second).and(third);
    let options = Options { retry_base: Duration::from_secs(1), ..Options::default() };
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(whole).start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "it is done", |counts| counts.done == 1).await;
    let asked = [firsts, seconds, thirds].map(|asked| asked.load(Ordering::SeqCst));
    // The first once for each attempt, of which there were two; the third got it when the second was through.
    assert_eq!(asked, [2, 5, 2]);
    let record = store.list(&Default::default(), &Default::default()).await.unwrap().remove(0);
    assert_eq!(record.state.attempts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_a_fan_out_has_seen_nothing() {
    let (first, firsts) = answers([]);
    let (second, _) = answers([Ok(Outcome::RetryAfter(Duration::from_secs(1)))]);
    let whole = FanOut::new().and(first).and(second);
    let event = Delivery::new(Event::of_json("Any", "{}").unwrap(), 0, posthaste_core::listener::Path::Cold);
    assert_eq!(whole.on_event(&event).await.unwrap(), Outcome::RetryAfter(Duration::from_secs(1)));
    assert_eq!(whole.clone().on_event(&event).await.unwrap(), Outcome::Done);
    assert_eq!(firsts.load(Ordering::SeqCst), 2);
    // Another attempt has failed elsewhere, and begins anew.
    let (second, _) = answers([Ok(Outcome::RetryAfter(Duration::from_secs(1)))]);
    let (first, firsts) = answers([]);
    let whole = FanOut::new().and(first).and(second);
    whole.on_event(&event).await.unwrap();
    let next = Delivery::new(event.event().clone(), 1, posthaste_core::listener::Path::Cold);
    assert_eq!(whole.on_event(&next).await.unwrap(), Outcome::Done);
    assert_eq!(firsts.load(Ordering::SeqCst), 2);
}

#[test]
fn a_payload_that_does_not_decode_is_known_for_what_it_is() {
    let event = Event::of_json("Any", r#"{"total":"many"}"#).unwrap();
    let decode = || -> Result<(), DecodeError> { event.decode::<std::collections::BTreeMap<String, u32>>().map(drop) };
    let plain: Failure = decode().unwrap_err().into();
    assert_eq!(plain.kind(), FailureKind::Undecodable);
    assert!(plain.text().starts_with("the payload does not decode: total: invalid type: string"), "{plain}");

    #[derive(Debug, thiserror::Error)]
    #[error("order could not be read")]
    struct Wrapped(#[source] DecodeError);
    let wrapped: Failure = Wrapped(decode().unwrap_err()).into();
    assert_eq!(wrapped.kind(), FailureKind::Undecodable);
    let through_anyhow: Failure = anyhow::Error::from(decode().unwrap_err()).into();
    assert_eq!(through_anyhow.kind(), FailureKind::Undecodable);
    let other: Failure = "no answer".into();
    assert_eq!(other.kind(), FailureKind::Retryable);
}

#[tokio::test]
async fn blocking_calls_that_hang_take_no_more_threads_than_there_are_workers() {
    let store = MemoryStore::new();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let listener = {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        blocking(move |_| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Returns when the test lets go of its end.
            let _ = held.lock().map(|held| held.recv());
            running.fetch_sub(1, Ordering::SeqCst);
        })
        .with_time_limit(Duration::from_millis(5))
    };
    let options = Options {
        workers: 2,
        retry_base: Duration::from_millis(1),
        retry_max: Duration::from_millis(1),
        retry_attempts: 3,
        ..Options::default()
    };
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    for _ in 0..5 {
        write(&outbox, "Hangs").await;
    }
    until(&store, "all are dead", |counts| counts.dead == 5).await;
    // On a busy machine a thread may begin only now.
    let both = async {
        while most.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    posthaste_core::testing::within("two of them run", both).await;
    drop(hold);
    assert_eq!(most.load(Ordering::SeqCst), 2);
}
