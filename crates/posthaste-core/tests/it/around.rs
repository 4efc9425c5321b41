//! What is put around one listener.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{AnyListener, Listener, Next, Path, batch};
use posthaste_core::store::{AdminStore, Record};
use posthaste_core::{
    Delivery, Event, Failure, MemoryStore, Metrics, Options, Outbox, Outcome, RetryPolicy, Status, Verdict,
};
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
#[derive(Clone, Default)]
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
    // Eight before it, three workers, a second each.
    assert!(begun.elapsed() <= 4 * SECOND, "{:?}", begun.elapsed());
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

#[tokio::test(start_paused = true)]
async fn a_turn_that_comes_soon_is_waited_for() {
    let (store, given_back) = (MemoryStore::new(), GivenBack::default());
    let outbox = outbox(&store, (|_: Delivery| async {}).with_rate(10, SECOND), given_back.clone()).await;
    for _ in 0..20 {
        write(&outbox, "Limited").await;
    }
    until(&store, "all are done", |counts| counts.done == 20).await;
    assert_eq!(given_back.0.load(Ordering::SeqCst), 0);
    outbox.shutdown().await;
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
async fn a_time_limit_begins_with_the_turn() {
    let store = MemoryStore::new();
    let busy = |_: Delivery| sleep(Duration::from_millis(400));
    let listener =
        busy.with_time_limit(Duration::from_millis(500)).with_retry(RetryPolicy::never()).with_concurrency(1);
    let outbox = outbox(&store, listener, GivenBack::default()).await;
    for _ in 0..8 {
        write(&outbox, "Limited").await;
    }
    until(&store, "all have ended", |counts| counts.done + counts.dead == 8).await;
    assert!(records(&store, "Limited").await.iter().all(|record| record.state.status == Status::Done));
    outbox.shutdown().await;

    let listener = (|_: Delivery| std::future::pending::<()>()).with_time_limit(SECOND).with_rate(1, SECOND);
    let begun = Instant::now();
    let failure = listener.on_event(&delivery()).await.unwrap_err();
    assert!(failure.text().contains("time limit of 1s"), "{failure}");
    assert_eq!(begun.elapsed(), SECOND);
    // The dispatcher cuts off later than that.
    assert!(listener.time_limit().unwrap() > 2 * SECOND);
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
}

#[tokio::test(start_paused = true)]
async fn a_batch_may_stand_behind_next() {
    let short = AnyListener::from(batch(|_: Vec<Delivery>| async { Vec::new() }));
    let fan_out = posthaste_core::FanOut::new().and(short).around(|event, next| async move { next.run(event).await });
    let failure = fan_out.on_event(&delivery()).await.unwrap_err();
    assert!(failure.text().contains("0 verdicts for 1"), "{failure}");
}
