//! What is put around one listener.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::listener::{AnyListener, Listener, Next, Path, batch, blocking};
use posthaste_core::store::{AdminStore, Record};
use posthaste_core::{Delivery, Event, Failure, MemoryStore, Metrics, Options, Outbox, Outcome, RetryPolicy, Verdict};
use tokio::time::{Instant, sleep};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record as Recorded};

use crate::{until, write};

const SECOND: Duration = Duration::from_secs(1);

/// An outbox with a listener for the events "Limited", and a plain one for others.
async fn outbox(store: &MemoryStore, limited: impl Into<AnyListener>, metrics: impl Metrics) -> Outbox<MemoryStore> {
    let others = Outbox::builder(store.clone()).listen_all(|_: Delivery| async {});
    others.listen("*", "Limited", limited).metrics(metrics).start().await.unwrap()
}

/// Counts events that were given back.
#[derive(Clone, Debug, Default)]
struct GivenBack(Arc<AtomicU64>);

impl Metrics for GivenBack {
    fn deferred(&self, events: u64) {
        self.0.fetch_add(events, Ordering::SeqCst);
    }
}

async fn records(store: &MemoryStore, event_type: &str) -> Vec<Record> {
    let filter = posthaste_core::store::Filter { event_type: Some(event_type.into()), ..Default::default() };
    store.list(&filter, &Default::default()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn so_many_run_at_once_and_no_more() {
    let store = MemoryStore::new();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let listener = {
        let (running, most) = (running.clone(), most.clone());
        move |_: Delivery| {
            let (running, most) = (running.clone(), most.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(100)).await;
                running.fetch_sub(1, Ordering::SeqCst);
            }
        }
    };
    let options = Options { workers: 8, ..Options::default() };
    let listener = listener.with_concurrency(2);
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    for _ in 0..20 {
        write(&outbox, "Limited").await;
    }
    until(&store, "all are done", |counts| counts.done == 20).await;
    assert_eq!(most.load(Ordering::SeqCst), 2);
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_place_is_given_back_and_holds_up_nobody() {
    let store = MemoryStore::new();
    let given_back = GivenBack::default();
    let slow = |_: Delivery| sleep(Duration::from_secs(30));
    let outbox = outbox(&store, slow.with_concurrency(1), given_back.clone()).await;
    for _ in 0..9 {
        write(&outbox, "Limited").await;
    }
    write(&outbox, "Other").await;
    let begun = Instant::now();
    until(&store, "the other is done", |counts| counts.done == 1).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    assert!(given_back.0.load(Ordering::SeqCst) >= 6);
    assert!(records(&store, "Limited").await.iter().all(|record| record.state.attempts == 0));
    until(&store, "all are done", |counts| counts.done == 10).await;
    // One after the other, with little lost between them.
    assert!(begun.elapsed() >= 270 * SECOND && begun.elapsed() < 300 * SECOND, "{:?}", begun.elapsed());
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn in_no_stretch_of_time_do_more_begin() {
    let (store, given_back) = (MemoryStore::new(), GivenBack::default());
    let begun_at = Arc::new(Mutex::new(Vec::new()));
    let listener = {
        let begun_at = begun_at.clone();
        move |_: Delivery| {
            begun_at.lock().unwrap().push(Instant::now());
            std::future::ready(())
        }
    };
    let period = 10 * SECOND;
    let outbox = outbox(&store, listener.with_rate(5, period), given_back.clone()).await;
    for _ in 0..40 {
        write(&outbox, "Limited").await;
    }
    write(&outbox, "Other").await;
    let started_at = Instant::now();
    until(&store, "the other is done", |counts| counts.done == 6).await;
    assert!(started_at.elapsed() < SECOND, "what is far from its turn does not wait: {:?}", started_at.elapsed());

    until(&store, "all are done", |counts| counts.done == 41).await;
    let begun_at = begun_at.lock().unwrap().clone();
    assert_eq!(begun_at.len(), 40);
    for six in begun_at.windows(6) {
        assert!(six[5] - six[0] >= period, "{:?} in {:?}", six.len(), six[5] - six[0]);
    }
    let whole = begun_at[39] - begun_at[0];
    assert!(whole >= 70 * SECOND && whole < 90 * SECOND, "{whole:?}");
    // Each is given back once or twice, not once for each that goes before it.
    let given_back = given_back.0.load(Ordering::SeqCst);
    assert!((30..=80).contains(&given_back), "{given_back}");
    assert!(records(&store, "Limited").await.iter().all(|record| record.state.attempts == 0));
    outbox.shutdown().await;
}

/// How long it takes until an event is done that comes after many for a limited listener, and until all are.
async fn behind_a_backlog(backlog: u64, workers: usize, limited: impl Into<AnyListener>) -> (Duration, Duration, u64) {
    let (store, given_back) = (MemoryStore::new(), GivenBack::default());
    let (done, mut other_done) = tokio::sync::mpsc::unbounded_channel();
    let other = move |_: Delivery| std::future::ready(done.send(Instant::now()));
    let outbox = Outbox::builder(store.clone())
        .options(Options { workers, ..Options::default() })
        .listen("*", "Limited", limited)
        .listen_all(other)
        .metrics(given_back.clone())
        .start()
        .await
        .unwrap();
    let begun = Instant::now();
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((0..backlog).map(|_| Event::of_json("Limited", "{}"))).await.unwrap();
    tx.write(Event::of_json("Other", "{}")).await.unwrap();
    tx.commit().await.unwrap();
    let other = other_done.recv().await.unwrap() - begun;
    until(&store, "all are done", |counts| counts.done == backlog + 1).await;
    let all = begun.elapsed();
    assert!(records(&store, "Limited").await.iter().all(|record| record.state.attempts == 0));
    outbox.shutdown().await;
    (other, all, given_back.0.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_backlog_for_a_rate_holds_up_nobody_and_drains_at_that_rate() {
    for workers in [1, 4] {
        for (events, period) in [(10, SECOND), (1, SECOND / 10), (100, 10 * SECOND)] {
            let (other, all, given_back) =
                behind_a_backlog(900, workers, (|_: Delivery| async {}).with_rate(events, period)).await;
            assert!(other < 2 * SECOND, "{workers} workers, {events} in {period:?}: {other:?}");
            assert!(all >= 80 * SECOND && all < 95 * SECOND, "{workers} workers, {events} in {period:?}: {all:?}");
            assert!(given_back < 2 * 900, "{workers} workers, {events} in {period:?}: {given_back}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_backlog_for_few_places_holds_up_nobody_and_keeps_them_taken() {
    for (workers, places, takes) in [(2, 1, 200), (4, 1, 200), (4, 3, 600), (16, 2, 400), (4, 1, 20), (4, 1, 2000)] {
        let takes = Duration::from_millis(takes);
        let whole = takes * 200 / places;
        let busy = move |_: Delivery| sleep(takes);
        let (other, all, given_back) = behind_a_backlog(200, workers, busy.with_concurrency(places as usize)).await;
        assert!(other < 2 * SECOND, "{workers} workers, {places} at once: {other:?}");
        assert!(all >= whole && all < whole * 115 / 100, "{workers} workers, {places} at once: {all:?}, not {whole:?}");
        assert!(given_back < 5 * 200, "{workers} workers, {places} at once: {given_back}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_backlog_drains_at_the_full_rate() {
    let (store, given_back) = (MemoryStore::new(), GivenBack::default());
    let outbox = outbox(&store, (|_: Delivery| async {}).with_rate(100, 60 * SECOND), given_back.clone()).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((0..3000).map(|_| Event::of_json("Limited", "{}"))).await.unwrap();
    tx.commit().await.unwrap();
    sleep((29 * 60 - 1) * SECOND).await;
    let done = store.counts().await.unwrap().done;
    assert!((2850..=2900).contains(&done), "{done}");
    sleep(65 * SECOND).await;
    assert_eq!(store.counts().await.unwrap().done, 3000);
    assert!(given_back.0.load(Ordering::SeqCst) < 3300, "{given_back:?}");
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_event_waits_for_a_turn_that_comes_soon() {
    let (store, given_back) = (MemoryStore::new(), GivenBack::default());
    let outbox = outbox(&store, (|_: Delivery| async {}).with_rate(10, SECOND), given_back.clone()).await;
    for _ in 0..11 {
        write(&outbox, "Limited").await;
    }
    until(&store, "all are done", |counts| counts.done == 11).await;
    assert_eq!(given_back.0.load(Ordering::SeqCst), 0);
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_not_used_is_handed_back() {
    let slow = |_: Delivery| sleep(5 * SECOND);
    let hour = 3600 * SECOND;
    let orders: [AnyListener; 2] =
        [slow.with_concurrency(1).with_rate(10, hour).into(), slow.with_rate(10, hour).with_concurrency(1).into()];
    for listener in orders {
        let (store, given_back) = (MemoryStore::new(), GivenBack::default());
        let outbox = outbox(&store, listener, given_back.clone()).await;
        for _ in 0..11 {
            write(&outbox, "Limited").await;
        }
        let begun = Instant::now();
        until(&store, "ten are done", |counts| counts.done == 10).await;
        assert!(begun.elapsed() < 60 * SECOND, "{:?}", begun.elapsed());
        assert!(given_back.0.load(Ordering::SeqCst) >= 8, "{given_back:?}");
        // The limit counts those ten.
        for _ in 0..30 {
            sleep(60 * SECOND).await;
        }
        assert_eq!(store.counts().await.unwrap().done, 10);
        outbox.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_handed_back_when_the_wait_for_the_next_limit_is_cut_short() {
    let slow = |_: Delivery| sleep(SECOND / 2);
    let listener = slow.with_concurrency(1).with_rate(2, 3600 * SECOND);
    let event = delivery();
    let (first, second) = tokio::join!(listener.on_event(&event), async {
        tokio::time::timeout(SECOND / 4, listener.on_event(&event)).await
    });
    assert_eq!(first.unwrap(), Outcome::Done);
    assert!(second.is_err(), "it waited for the place of the first");
    assert_eq!(listener.on_event(&event).await.unwrap(), Outcome::Done);
    assert!(matches!(listener.on_event(&event).await.unwrap(), Outcome::RetryAfter(_)));
    // Whoever is dropped while he waits for the rate itself has taken nothing, and leaves the head of the line.
    let listener = (|_: Delivery| async {}).with_rate(1, SECOND);
    let begun = Instant::now();
    assert_eq!(listener.on_event(&event).await.unwrap(), Outcome::Done);
    tokio::time::timeout(SECOND / 10, listener.on_event(&event)).await.unwrap_err();
    sleep(SECOND / 10).await;
    assert_eq!(listener.on_event(&event).await.unwrap(), Outcome::Done);
    assert_eq!(begun.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_used_up_when_code_around_the_next_limit_goes_on_all_the_same() {
    let full = (|_: Delivery| async {}).with_rate(1, 3600 * SECOND);
    full.on_event(&delivery()).await.unwrap();
    let listener = full.around(|event, next| async move {
        assert!(matches!(next.run(event).await, Ok(Outcome::RetryAfter(_))));
    });
    let listener = listener.with_rate(1, 3600 * SECOND);
    assert_eq!(listener.on_event(&delivery()).await.unwrap(), Outcome::Done);
    assert!(matches!(listener.on_event(&delivery()).await.unwrap(), Outcome::RetryAfter(_)));
    // So it is when the first of several has had the event.
    let full = (|_: Delivery| async {}).with_rate(1, 3600 * SECOND);
    full.on_event(&delivery()).await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let first = move |_: Delivery| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(())
    };
    let listener = posthaste_core::FanOut::new().and(first).and(full).with_rate(1, 3600 * SECOND);
    for _ in 0..2 {
        assert!(matches!(listener.on_event(&delivery()).await.unwrap(), Outcome::RetryAfter(_)));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// Keeps what is told of the duration of listeners.
#[derive(Clone, Default)]
struct Durations(Arc<Mutex<Vec<Duration>>>);

impl Metrics for Durations {
    fn listener_duration(&self, duration: Duration) {
        self.0.lock().unwrap().push(duration);
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_turn_counts_for_no_time_limit_and_no_duration() {
    let takes = Duration::from_millis(400);
    let busy = move |_: Delivery| sleep(takes);
    let limit = Duration::from_millis(500);
    let listeners: [AnyListener; 4] = [
        busy.with_concurrency(1).into(),
        busy.with_time_limit(limit).with_concurrency(1).into(),
        busy.with_concurrency(1).with_time_limit(limit).into(),
        posthaste_core::FanOut::new().and(busy.with_concurrency(1).with_time_limit(limit)).into(),
    ];
    for listener in listeners {
        let (store, durations) = (MemoryStore::new(), Durations::default());
        let outbox = Outbox::builder(store.clone())
            .options(Options { listener_time_limit: limit, retry_attempts: 1, ..Options::default() })
            .listen_all(listener)
            .metrics(durations.clone())
            .start()
            .await
            .unwrap();
        for _ in 0..8 {
            write(&outbox, "Limited").await;
        }
        until(&store, "all have ended", |counts| counts.done + counts.dead == 8).await;
        assert_eq!(store.counts().await.unwrap().done, 8);
        assert_eq!(*durations.0.lock().unwrap(), [takes; 8]);
        outbox.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_limited_listener_that_hangs_is_cut_off_when_its_time_is_over() {
    let hangs = |_: Delivery| std::future::pending::<()>();
    for listener in
        [AnyListener::from(hangs.with_rate(1, SECOND)), hangs.with_time_limit(SECOND).with_rate(1, SECOND).into()]
    {
        let (store, durations) = (MemoryStore::new(), Durations::default());
        let outbox = Outbox::builder(store.clone())
            .options(Options { listener_time_limit: SECOND, retry_attempts: 1, ..Options::default() })
            .listen_all(listener)
            .metrics(durations.clone())
            .start()
            .await
            .unwrap();
        // The second waits for its turn before it hangs.
        write(&outbox, "Limited").await;
        write(&outbox, "Limited").await;
        until(&store, "both are dead", |counts| counts.dead == 2).await;
        for record in records(&store, "Limited").await {
            assert!(record.state.last_error.unwrap().contains("longer than its time limit of 1s"));
        }
        let durations = durations.0.lock().unwrap().clone();
        assert!(durations.iter().all(|took| *took >= SECOND && *took < SECOND * 11 / 10), "{durations:?}");
        outbox.shutdown().await;
    }
}

#[tokio::test]
async fn a_blocking_call_keeps_its_place_when_its_time_is_over() {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running_now, most_of_all) = (running.clone(), most.clone());
    let listener = blocking(move |_| {
        most_of_all.fetch_max(running_now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let _ = wait.lock().unwrap().recv();
        running_now.fetch_sub(1, Ordering::SeqCst);
    });
    let listener = listener.with_concurrency(1);
    let (event, limit) = (delivery(), Duration::from_millis(50));
    tokio::time::timeout(limit, listener.on_event(&event)).await.unwrap_err();
    // The call goes on, so there is no place for another.
    let second = tokio::time::timeout(10 * SECOND, listener.on_event(&event)).await;
    go_on.send(()).unwrap();
    assert!(matches!(second, Ok(Ok(Outcome::RetryAfter(_)))), "{second:?}");
    go_on.send(()).unwrap();
    while listener.on_event(&event).await.unwrap() != Outcome::Done {}
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

fn delivery() -> Delivery {
    let event = Event::builder("OrderPlaced").aggregate("Order", 42).id("order-42").json_text("{}").build().unwrap();
    Delivery::new(event, 1, Path::Cold)
}

#[tokio::test(start_paused = true)]
async fn limits_of_nothing_let_one_pass() {
    let listener = (|_: Delivery| async {}).with_concurrency(0).with_rate(0, Duration::MAX);
    assert_eq!(listener.on_event(&delivery()).await.unwrap(), Outcome::Done);
    let second = listener.on_event(&delivery()).await.unwrap();
    assert!(matches!(second, Outcome::RetryAfter(delay) if delay > 364 * 24 * 3600 * SECOND), "{second:?}");
    // Without a length of time there is no limit.
    let listener = (|_: Delivery| async {}).with_rate(1, Duration::ZERO);
    for _ in 0..10 {
        assert_eq!(listener.on_event(&delivery()).await.unwrap(), Outcome::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn settings_given_before_are_kept_by_what_comes_around() {
    let policy = || RetryPolicy::fixed([SECOND, SECOND]);
    let plain = || (|_: Delivery| async {}).with_retry(policy()).with_time_limit(SECOND);
    assert_eq!(plain().with_concurrency(1).retry_policy().unwrap().attempts(), 3);
    assert_eq!(plain().with_rate(1, SECOND).retry_policy().unwrap().attempts(), 3);
    let spanned = plain().with_span();
    assert_eq!((spanned.retry_policy().unwrap().attempts(), spanned.time_limit()), (3, Some(SECOND)));
    let wrapped = plain().around(|event, next| async move { next.run(event).await });
    assert_eq!((wrapped.retry_policy().unwrap().attempts(), wrapped.time_limit()), (3, Some(SECOND)));
}

#[tokio::test(start_paused = true)]
async fn code_around_a_listener_may_change_the_event_and_the_answer_or_go_without() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let listener = {
        let seen = seen.clone();
        move |event: Delivery| {
            seen.lock().unwrap().push(event.header("stamp").map(str::to_owned));
            std::future::ready(Err::<(), _>("no answer"))
        }
    };
    let listener = listener.around(|event: Delivery, next: Next| async move {
        if event.attempt() == 1 {
            return Ok(Outcome::RetryAfter(SECOND));
        }
        let stamped = event.to_builder().header("stamp", "7").build()?;
        let stamped = Delivery::new(stamped, event.attempt() - 1, event.path());
        let first = next.run(stamped.clone()).await;
        assert!(first.is_err());
        next.run(stamped).await.map_err(|failure| Failure::permanent(format!("twice: {failure}")))
    });
    let first = Delivery::new(delivery().into(), 0, Path::Hot);
    assert_eq!(listener.on_event(&first).await.unwrap(), Outcome::RetryAfter(SECOND));
    assert!(seen.lock().unwrap().is_empty());
    let failure = listener.on_event(&delivery()).await.unwrap_err();
    assert_eq!(failure.text(), "twice: no answer");
    assert_eq!(*seen.lock().unwrap(), [Some("7".to_owned()), Some("7".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn code_around_a_listener_that_panics_is_a_failure() {
    let store = MemoryStore::new();
    async fn panics(_: Delivery, _: Next) {
        panic!("no luck")
    }
    let listener = (|_: Delivery| async {}).around(panics).with_retry(RetryPolicy::never());
    let outbox = outbox(&store, listener, GivenBack::default()).await;
    write(&outbox, "Limited").await;
    until(&store, "it is dead", |counts| counts.dead == 1).await;
    let record = records(&store, "Limited").await.remove(0);
    assert_eq!(record.state.last_error.as_deref(), Some("the listener panicked: no luck"));
    outbox.shutdown().await;
}

/// Remembers the fields of spans and, for each line that is logged, the spans that it is in.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

impl Visit for Spans {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut spans = self.0.lock().unwrap();
        spans.last_mut().unwrap().insert(field.name().to_owned(), format!("{value:?}").replace('"', ""));
    }
}

impl tracing::Subscriber for Spans {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "delivery"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.lock().unwrap().push(BTreeMap::new());
        span.record(&mut self.clone());
        Id::from_u64(self.0.lock().unwrap().len() as u64)
    }

    fn record(&self, _: &Id, values: &Recorded<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &Id) {
        self.0.lock().unwrap().last_mut().unwrap().insert("entered".into(), "yes".into());
    }

    fn exit(&self, _: &Id) {
        self.0.lock().unwrap().last_mut().unwrap().insert("entered".into(), "no".into());
    }
}

#[tokio::test(start_paused = true)]
async fn a_span_says_which_delivery_it_is() {
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(spans.clone());
    let inside = {
        let spans = spans.clone();
        move |_: Delivery| {
            let spans = spans.clone();
            async move {
                let entered = spans.0.lock().unwrap()[0]["entered"].clone();
                Err::<(), _>(Failure::permanent(format!("entered: {entered}")))
            }
        }
    };
    let verdict: Verdict = inside.with_span().on_event(&delivery()).await;
    assert_eq!(verdict.unwrap_err().text(), "entered: yes");
    let expected = [
        ("aggregate_id", "42"),
        ("aggregate_type", "Order"),
        ("attempt", "2"),
        ("entered", "no"),
        ("event_id", "order-42"),
        ("event_type", "OrderPlaced"),
        ("outcome", "failed"),
        ("path", "cold"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(*spans.0.lock().unwrap(), [expected]);

    let global = Event::of_json("Any", "{}").unwrap();
    (|_: Delivery| async {}).with_span().on_event(&Delivery::new(global, 0, Path::Hot)).await.unwrap();
    let second = spans.0.lock().unwrap()[1].clone();
    assert_eq!((second["path"].as_str(), second["outcome"].as_str()), ("hot", "done"));
    assert!(!second.contains_key("aggregate_id"));

    let hangs = (|_: Delivery| std::future::pending::<()>()).with_span();
    tokio::time::timeout(SECOND, hangs.on_event(&delivery())).await.unwrap_err();
    assert_eq!(spans.0.lock().unwrap()[2]["outcome"], "cut short");
    async fn panics(_: Delivery) {
        panic!("no luck")
    }
    let event = delivery();
    let panicked = AssertUnwindSafe(panics.with_span().on_event(&event)).catch_unwind().await;
    assert!(panicked.is_err());
    assert_eq!(spans.0.lock().unwrap()[3]["outcome"], "cut short");
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_stand_behind_next() {
    let short = AnyListener::from(batch(|_: Vec<Delivery>| async { Vec::new() }));
    let fan_out = posthaste_core::FanOut::new().and(short).around(|event, next| async move { next.run(event).await });
    let failure = fan_out.on_event(&delivery()).await.unwrap_err();
    assert!(failure.text().contains("0 verdicts for 1"), "{failure}");
}
