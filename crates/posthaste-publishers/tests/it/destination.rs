//! What a destination makes of the results of its publisher. Time is paused: pauses are kept to the letter.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::testing::{self, Call, Faults, Faulty, Recorder, TestOutbox};
use posthaste_core::{
    Event, EventBuilder, EventId, FanOut, MemoryStore, Metrics, Options, Outbox, RetryPolicy, Status,
};
use posthaste_publishers::{
    Binding, Breaker, BreakerState, CloudEvents, Debezium, Destination, Envelope, Message, PublishError, Publisher,
    Results,
};
use tokio::sync::watch;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

type Answer = dyn Fn(&Message) -> Result<(), PublishError> + Send + Sync;

/// A broker in memory, which takes everything until it is told otherwise. Clones are the same.
#[derive(Clone)]
struct Broker {
    shared: Arc<Shared>,
    breaker: Breaker,
}

#[derive(Default)]
struct Shared {
    away: AtomicBool,
    silent: AtomicBool,
    forgetful: AtomicBool,
    answer: Mutex<Option<Arc<Answer>>>,
    batches: watch::Sender<Vec<(Instant, Vec<Message>)>>,
    taken: watch::Sender<Vec<Message>>,
}

impl Broker {
    fn new() -> Self {
        Self::with_breaker(Breaker::with_pauses("broker", 10 * SECOND, 60 * SECOND))
    }

    fn with_breaker(breaker: Breaker) -> Self {
        Self { shared: Arc::default(), breaker }
    }

    fn to(&self, template: &str) -> Destination<Self> {
        Destination::new(Arc::new(self.clone()), self.breaker.clone(), template)
    }

    fn set_away(&self, away: bool) {
        self.shared.away.store(away, Ordering::Relaxed);
    }

    fn answer(&self, answer: impl Fn(&Message) -> Result<(), PublishError> + Send + Sync + 'static) {
        *self.shared.answer.lock().unwrap() = Some(Arc::new(answer));
    }

    fn batches(&self) -> Vec<(Instant, Vec<Message>)> {
        self.shared.batches.borrow().clone()
    }

    fn taken(&self) -> Vec<String> {
        self.shared.taken.borrow().iter().map(|message| message.id.as_str().to_owned()).collect()
    }

    async fn until_asked(&self, times: usize) {
        let mut batches = self.shared.batches.subscribe();
        let asked = batches.wait_for(|batches| batches.len() >= times);
        assert!(tokio::time::timeout(3600 * SECOND, asked).await.is_ok(), "not asked {times} times within an hour");
    }
}

impl Publisher for Broker {
    const BINDING: Binding = Binding::Kafka;

    fn name(&self) -> &str {
        "broker"
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.shared.batches.send_modify(|batches| batches.push((Instant::now(), messages.clone())));
        if self.shared.away.load(Ordering::Relaxed) {
            return messages.iter().map(|_| Err(PublishError::outage("connection refused"))).collect();
        }
        if self.shared.silent.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        if self.shared.forgetful.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let answer = self.shared.answer.lock().unwrap().clone();
        let take = |message: Message| {
            answer.as_ref().map_or(Ok(()), |answer| answer(&message))?;
            self.shared.taken.send_modify(|taken| taken.push(message));
            Ok(())
        };
        messages.into_iter().map(take).collect()
    }

    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// The same broker, whose results come one by one, and then no more, unless there are that many.
struct OneByOne(Broker, usize);

impl Publisher for OneByOne {
    const BINDING: Binding = Binding::Kafka;

    fn name(&self) -> &str {
        "broker"
    }

    async fn publish(&self, _: Vec<Message>) -> Vec<Result<(), PublishError>> {
        unreachable!("a destination asks for results as they come")
    }

    async fn publish_into(&self, mut messages: Vec<Message>, results: &Results) {
        let all = messages.len() <= self.1;
        messages.truncate(self.1);
        for (place, result) in self.0.publish(messages).await.into_iter().enumerate() {
            results.note(place, result);
        }
        if !all {
            std::future::pending::<()>().await;
        }
    }

    async fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    async fn close(&self) {}
}

/// Polls often, so that what is claimed although it should not be is seen.
fn options() -> Options {
    Options { poll_interval: Duration::from_millis(100), workers: 2, ..Options::default() }
}

fn store() -> (Faulty<MemoryStore>, Faults) {
    Faulty::new(MemoryStore::new())
}

fn order(id: impl AsRef<str>) -> EventBuilder {
    Event::builder("OrderPlaced").id(id).aggregate("Order", 42).json_text("{}")
}

async fn write(outbox: &Outbox<Faulty<MemoryStore>>, events: impl IntoIterator<Item = EventBuilder>) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all(events).await.unwrap();
    tx.commit().await.unwrap();
}

/// What became of an event: status, attempts, and the last error.
async fn state(outbox: &TestOutbox<Faulty<MemoryStore>>, id: &str) -> (Status, u32, String) {
    let record = outbox.admin().find(&EventId::new(id).unwrap()).await.unwrap().unwrap();
    (record.state.status, record.state.attempts, record.state.last_error.unwrap_or_default())
}

async fn refusal(destination: Destination<Broker>) -> String {
    let error = testing::outbox().listen("Order", "OrderPlaced", destination).start().await.unwrap_err();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[tokio::test]
async fn mistakes_are_said_at_the_start_with_their_route() {
    let broker = Broker::new();
    for (destination, mistake) in [
        (broker.to("orders.{color}"), "{color}; there are {aggregate_type}"),
        (broker.to(""), "a template is empty"),
        (broker.to("orders").key("{tenant_id"), "'{' at character 1"),
        (broker.to("orders").envelope(CloudEvents::new("").binary()), "the source of the CloudEvents is empty"),
        (
            broker.to("orders").envelope(CloudEvents::new("/{x}").structured()),
            "the source of the CloudEvents is not right",
        ),
        (broker.to("orders").envelope(CloudEvents::new("/{x}").structured()), "has the place {x}"),
        (
            broker.to("orders").envelope(Envelope::Debezium(Debezium::new().event_type_header(""))),
            "the header for the event type has no name",
        ),
        (
            broker.to("orders").envelope(Envelope::Debezium(Debezium::new().event_type_header("ID"))),
            "the header for the event type cannot be called \"ID\"",
        ),
        (
            broker.to("orders").envelope(Envelope::Debezium(Debezium::new().event_type_header(" eventType"))),
            "cannot be called \" eventType\"",
        ),
        (
            broker.to("orders").envelope(Envelope::Debezium(Debezium::new().event_type_header("event\ntype"))),
            "cannot be called \"event\\ntype\"",
        ),
        (broker.to("two words"), "the address \"two words\" cannot be used: a topic of Kafka has letters"),
    ] {
        let text = refusal(destination).await;
        let route = "the listener for aggregate type \"Order\" and event type \"OrderPlaced\" is not right: ";
        assert!(text.starts_with(route) && text.contains(mistake), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_have_address_key_and_envelope() {
    let broker = Broker::new();
    let (store, _) = store();
    let by_tenant = broker.to("{topic}.{event_type}").key("{tenant_id}").envelope(CloudEvents::new("/shop").binary());
    let outbox = testing::outbox_on(store).listen("Order", "OrderPlaced", by_tenant).listen_all(broker.to("rest"));
    let outbox = outbox.start_test().await;
    write(
        &outbox,
        [order("1").tenant_id("acme").topic("orders"), order("2").aggregate_type("Cart"), {
            Event::builder("Tick").id("3").json_text("{}")
        }],
    )
    .await;
    assert_eq!(outbox.drain_now().await.done, 3);

    let taken = broker.shared.taken.borrow().clone();
    let find = |id: &str| taken.iter().find(|message| message.id == *id).unwrap();
    let shape = |id| (find(id).to.as_str(), find(id).key.as_deref(), find(id).headers.iter().next().unwrap().1);
    assert_eq!(shape("1"), ("orders.OrderPlaced", Some("acme"), "1.0"));
    assert_eq!(shape("2"), ("rest", Some("42"), "2"));
    assert_eq!(shape("3"), ("rest", None, "3"));
}

/// Puts a number before the name of every address.
struct Numbering(Arc<Broker>);

impl Publisher for Numbering {
    const BINDING: Binding = Broker::BINDING;

    fn name(&self) -> &str {
        self.0.name()
    }

    async fn publish(&self, mut messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        for (number, message) in messages.iter_mut().enumerate() {
            message.to = format!("{number}.{}", message.to).into();
        }
        self.0.publish(messages).await
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.0.check().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_publisher_around_another_keeps_what_was_set() {
    let broker = Broker::new();
    let (store, _) = store();
    let destination = broker.to("orders.{event_type}").key("{tenant_id}").max_batch(1).through(Numbering);
    let outbox = testing::outbox_on(store).listen("Order", "*", destination).start_test().await;
    write(&outbox, [order("1").tenant_id("acme"), order("2").tenant_id("acme")]).await;
    assert_eq!(outbox.drain_now().await.done, 2);
    for message in &*broker.shared.taken.borrow() {
        assert_eq!((message.to.as_str(), message.key.as_deref()), ("0.orders.OrderPlaced", Some("acme")));
    }
    broker.set_away(true);
    write(&outbox, [order("3").tenant_id("acme")]).await;
    broker.until_asked(3).await;
    tokio::task::yield_now().await;
    assert_eq!(broker.breaker.state(), BreakerState::Open);
}

#[tokio::test(start_paused = true)]
async fn what_lacks_a_place_or_makes_no_address_is_unroutable_and_uses_no_attempt() {
    let broker = Broker::new();
    let (store, _) = store();
    let outbox = testing::outbox_on(store)
        .listen("Order", "*", broker.to("orders.{tenant_id}"))
        .listen("Cart", "*", broker.to("carts").key("{headers.region}"))
        .listen("Bill", "*", broker.to("bills").envelope(CloudEvents::new("/{tenant_id}").structured()))
        .start_test()
        .await;
    let events = ["Order", "Cart", "Bill"].map(|aggregate| order(aggregate).aggregate_type(aggregate));
    let more = [order("good").tenant_id("acme"), order("spaced").tenant_id("two words")];
    write(&outbox, events.into_iter().chain(more)).await;
    let counts = outbox.drain_now().await;
    assert_eq!((counts.done, counts.dead), (1, 4));
    assert_eq!(broker.taken(), ["good"]);
    for (id, place) in [
        ("Order", "needs tenant_id"),
        ("Cart", "needs headers.region"),
        ("Bill", "needs tenant_id"),
        ("spaced", "the address \"orders.two words\" cannot be used: a topic of Kafka has"),
    ] {
        let (status, attempts, reason) = state(&outbox, id).await;
        assert_eq!((status, attempts), (Status::Dead, 0), "{reason}");
        assert!(reason.contains(place), "{reason}");
    }
    assert_eq!(broker.breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn of_a_batch_each_message_has_its_own_result() {
    let broker = Broker::new();
    broker.answer(|message| match message.id.as_str() {
        "2" => Err(PublishError::retryable("not now")),
        "4" => Err(PublishError::permanent("too large")),
        _ => Ok(()),
    });
    let (store, _) = store();
    let retry = RetryPolicy::fixed([5 * SECOND]);
    let outbox = testing::outbox_on(store).listen_all(broker.to("orders").retry(retry)).start_test().await;
    write(&outbox, (1..=5).map(|id| order(id.to_string()))).await;
    let counts = outbox.drain_now().await;
    assert_eq!((counts.done, counts.retry, counts.dead), (3, 1, 1));
    assert_eq!(broker.batches().len(), 1, "they were sent together");
    assert_eq!(broker.taken(), ["1", "3", "5"]);
    assert_eq!(state(&outbox, "2").await, (Status::Retry, 1, "not now".to_owned()));
    let (status, attempts, reason) = state(&outbox, "4").await;
    assert_eq!((status, attempts), (Status::Dead, 1));
    assert!(reason.contains("too large"), "{reason}");
    assert_eq!(broker.breaker.state(), BreakerState::Closed, "what refuses is there");

    broker.answer(|_| Ok(()));
    outbox.advance(5 * SECOND).await;
    assert_eq!(outbox.drain_now().await.done, 4);
    assert_eq!(broker.taken(), ["1", "3", "5", "2"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_than_a_batch_is_sent_at_once() {
    let broker = Broker::new();
    let (store, _) = store();
    let outbox = testing::outbox_on(store).listen_all(broker.to("orders").max_batch(4)).start_test().await;
    write(&outbox, (0..10).map(|id| order(id.to_string()))).await;
    assert_eq!(outbox.drain_now().await.done, 10);
    let sizes: Vec<_> = broker.batches().iter().map(|(_, batch)| batch.len()).collect();
    // Batches of one would not be too large either.
    assert!(sizes.len() <= 5 && sizes.iter().all(|size| *size <= 4), "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn during_an_outage_nothing_is_claimed_and_no_attempt_is_used_up() {
    let broker = Broker::new();
    broker.set_away(true);
    let (store, faults) = store();
    let outbox = testing::outbox_on(store)
        .options(options())
        .listen("Order", "*", broker.to("orders"))
        .listen("Cart", "*", broker.to("carts"))
        .start_test()
        .await;
    write(&outbox, (0..30).map(|id| order(format!("before-{id}")))).await;
    broker.until_asked(1).await;
    // A claim that had begun by then may end.
    tokio::time::sleep(SECOND).await;
    assert_eq!(broker.breaker.state(), BreakerState::Open);
    let (asked, claims) = (broker.batches().len(), faults.count(Call::Claim));

    // A pause takes 8 s at least: 60 polls of 100 ms fall into it.
    write(&outbox, (0..10).map(|id| order(format!("meanwhile-{id}")).aggregate_type("Cart"))).await;
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(faults.count(Call::Claim), claims, "claimed for destinations that are away");
    assert_eq!(broker.batches().len(), asked, "sent to a broker that is away");

    // Long enough for every event to be tried more often than its ten attempts allow, if these were attempts.
    tokio::time::sleep(1800 * SECOND).await;
    let batches = broker.batches();
    assert!(
        batches.len() - asked >= 1800 / 72 && batches.len() - asked <= 1800 / 24,
        "{} probes",
        batches.len() - asked
    );
    let counts = outbox.admin().counts().await.unwrap();
    assert_eq!((counts.pending(), counts.dead, counts.done), (40, 0, 0));

    broker.set_away(false);
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!(outbox.admin().counts().await.unwrap().done, 40);
    assert_eq!(broker.breaker.state(), BreakerState::Closed);
    let taken = broker.taken();
    assert_eq!((taken.len(), taken.iter().collect::<BTreeSet<_>>().len()), (40, 40));
    for id in &taken {
        let (status, attempts, _) = state(&outbox, id).await;
        assert_eq!((status, attempts), (Status::Done, 0), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_an_outage_and_uses_up_no_attempt() {
    let broker = Broker::new();
    broker.shared.silent.store(true, Ordering::Relaxed);
    let (store, _) = store();
    // Where a destination says nothing of its own time, the limit of listeners is not its.
    let options = Options { listener_time_limit: 20 * SECOND, ..options() };
    let outbox = testing::outbox_on(store).options(options).listen_all(broker.to("orders")).start_test().await;
    write(&outbox, (0..30).map(|id| order(id.to_string()))).await;
    broker.until_asked(20).await;
    assert_eq!(broker.breaker.state(), BreakerState::HalfOpen);
    let counts = outbox.admin().counts().await.unwrap();
    assert_eq!((counts.pending(), counts.dead), (30, 0));
    broker.shared.silent.store(false, Ordering::Relaxed);
    tokio::time::sleep(300 * SECOND).await;
    assert_eq!(outbox.admin().counts().await.unwrap().done, 30);
    for id in broker.taken() {
        assert_eq!(state(&outbox, &id).await.1, 0, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_before_the_time_was_over_is_done() {
    let broker = Broker::new();
    let (store, _) = store();
    let slow = Destination::new(Arc::new(OneByOne(broker.clone(), 2)), broker.breaker.clone(), "orders");
    let outbox = testing::outbox_on(store).options(options()).listen_all(slow.time_limit(5 * SECOND));
    let outbox = outbox.start_test().await;
    write(&outbox, (1..=5).map(|id| order(id.to_string()))).await;
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!((outbox.admin().counts().await.unwrap().done, broker.breaker.state()), (2, BreakerState::Closed));
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(broker.taken(), ["1", "2", "3", "4", "5"]);
    for id in broker.taken() {
        let (status, attempts, _) = state(&outbox, &id).await;
        assert_eq!((status, attempts), (Status::Done, 0), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_without_a_breaker_goes_on_meanwhile() {
    let broker = Broker::new();
    broker.set_away(true);
    let (store, faults) = store();
    let mailer = Recorder::new();
    let outbox = testing::outbox_on(store)
        .options(options())
        .listen("Order", "*", broker.to("orders"))
        .listen("Mail", "*", mailer.clone())
        .start_test()
        .await;
    write(&outbox, [order("order-1")]).await;
    broker.until_asked(1).await;
    let claims = faults.count(Call::Claim);
    // From the table, not from memory: these are claimed.
    let delayed = (0..20).map(|id| order(format!("mail-{id}")).aggregate_type("Mail").deliver_after(SECOND));
    write(&outbox, delayed.chain([order("order-2"), order("order-3").deliver_after(SECOND)])).await;
    mailer.wait_for(20).await;
    assert_eq!(broker.breaker.state(), BreakerState::Open);
    assert!(faults.count(Call::Claim) > claims);
    assert_eq!(broker.batches().len(), 1, "what was claimed with the others was not sent");

    broker.set_away(false);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(
        broker.taken().into_iter().collect::<BTreeSet<_>>(),
        ["order-1", "order-2", "order-3"].map(String::from).into()
    );
    for id in ["order-1", "order-2", "order-3"] {
        let (status, attempts, _) = state(&outbox, id).await;
        assert_eq!((status, attempts), (Status::Done, 0), "{id}");
    }
    assert_eq!(mailer.count(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_of_a_few_and_the_others_follow_it_or_wait_unharmed() {
    let broker = Broker::new();
    broker.set_away(true);
    let (store, _) = store();
    let outbox = testing::outbox_on(store)
        .options(Options { workers: 1, ..options() })
        .listen("Order", "*", broker.to("orders"))
        // Claims go on, because of this one.
        .listen("Mail", "*", Recorder::new())
        .start_test()
        .await;
    write(&outbox, (0..30).map(|id| order(id.to_string()))).await;
    broker.until_asked(2).await;
    tokio::time::sleep(SECOND).await;
    broker.set_away(false);
    broker.until_asked(4).await;
    assert_eq!(outbox.drain_now().await.done, 30);
    let batches = broker.batches();
    let sizes: Vec<_> = batches.iter().map(|(_, batch)| batch.len()).collect();
    assert_eq!(sizes, [30, 10, 10, 20]);
    assert_eq!(batches[3].0, batches[2].0, "the others had to wait although the probe had arrived");
    for id in 0..30 {
        assert_eq!(state(&outbox, &id.to_string()).await.1, 0);
    }
}

/// Counts what is put off.
#[derive(Default)]
struct PutOff(AtomicU64);

impl Metrics for PutOff {
    fn deferred(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_backlog_for_who_is_away_hinders_nobody_and_is_there_soon_after_the_return() {
    const BACKLOG: usize = 10_000;
    const OUTAGE: u64 = 120;
    let (orders, mails) = (Broker::with_breaker(Breaker::new("orders")), Broker::new());
    orders.set_away(true);
    let (store, faults) = store();
    let writer = Outbox::writer_only(store.clone()).start().await.unwrap();
    write(&writer, (0..BACKLOG).map(|id| order(format!("order-{id}")))).await;
    let put_off = Arc::new(PutOff::default());
    let outbox = testing::outbox_on(store)
        .metrics(put_off.clone())
        .listen("Order", "*", orders.to("orders"))
        .listen("Mail", "*", mails.to("mails"))
        .start_test()
        .await;

    let begun = Instant::now();
    let mut late = Duration::ZERO;
    for second in 0..OUTAGE {
        // One from memory, one from the table.
        let mail = |path: &str| order(format!("{path}-{second}")).aggregate_type("Mail");
        write(&outbox, [mail("hot"), mail("cold").deliver_after(SECOND / 2)]).await;
        let written = Instant::now();
        tokio::time::sleep_until(begun + u32::try_from(second + 1).unwrap() * SECOND).await;
        for (path, due) in [("hot", written), ("cold", written + SECOND / 2)] {
            let id = format!("{path}-{second}");
            let batches = mails.batches();
            let sent = batches.iter().find(|(_, batch)| batch.iter().any(|message| message.id == *id.as_str()));
            late = late.max(sent.unwrap_or_else(|| panic!("{id} was not sent within a second")).0 - due);
        }
    }
    assert!(late <= Duration::from_millis(50), "a mail waited for {late:?}");
    let (claims, settlements, rows) =
        (faults.count(Call::Claim), faults.count(Call::Settle), put_off.0.load(Ordering::Relaxed));
    println!("{claims} claims, {settlements} settlements and {rows} rows put off in {OUTAGE} s");
    // Without its own: two claims and two settlements for the mails of each second.
    assert!(
        claims as u64 <= 10 * OUTAGE && settlements as u64 <= 10 * OUTAGE,
        "{claims} claims, {settlements} settlements"
    );
    assert!(rows <= 2_000 * OUTAGE, "{rows} rows were put off");
    assert!(orders.batches().iter().all(|(_, batch)| batch.len() <= 500), "sent in batches");
    let probes = &orders.batches()[4..];
    assert!(!probes.is_empty() && probes.iter().all(|(_, batch)| batch.len() <= 10), "a probe is of a few");
    let counts = outbox.admin().counts().await.unwrap();
    assert_eq!((counts.pending(), counts.retry, counts.done as u64), (BACKLOG as u64, 0, 2 * OUTAGE));

    orders.set_away(false);
    let back = Instant::now();
    // A pause takes 36 s at most.
    tokio::time::timeout(45 * SECOND, async {
        while orders.taken().len() < BACKLOG {
            tokio::time::sleep(SECOND / 10).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{} of {BACKLOG} were sent in 45 s", orders.taken().len()));
    println!("all were sent {:?} after the return", back.elapsed());
    assert_eq!(orders.taken().iter().collect::<BTreeSet<_>>().len(), BACKLOG, "some were sent twice");
    assert_eq!(state(&outbox, "order-0").await.1, 0);
}

#[tokio::test(start_paused = true)]
async fn of_a_batch_in_an_outage_what_arrived_is_done() {
    let broker = Broker::new();
    broker.answer(|message| if message.id == "1" { Ok(()) } else { Err(PublishError::outage("connection lost")) });
    let (store, _) = store();
    let outbox = testing::outbox_on(store).options(options()).listen_all(broker.to("orders")).start_test().await;
    write(&outbox, [order("1"), order("2"), order("3")]).await;
    broker.until_asked(1).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(broker.breaker.state(), BreakerState::Open);
    assert_eq!(state(&outbox, "1").await.0, Status::Done);
    assert_eq!((state(&outbox, "2").await.0, state(&outbox, "2").await.1), (Status::New, 0));
    broker.answer(|_| Ok(()));
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(outbox.admin().counts().await.unwrap().done, 3);
    assert_eq!(broker.taken(), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_take_does_not_pass_for_a_sign_of_life() {
    let broker = Broker::new();
    broker.set_away(true);
    let (store, _) = store();
    let outbox = testing::outbox_on(store)
        .options(options())
        .listen("Order", "*", broker.to("orders"))
        .listen("Cart", "*", broker.to("{tenant_id}"))
        .start_test()
        .await;
    write(&outbox, [order("1").deliver_after(3600 * SECOND), order("2")]).await;
    broker.until_asked(1).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(broker.breaker.state(), BreakerState::Open);
    write(&outbox, [order("no-tenant").aggregate_type("Cart")]).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(state(&outbox, "no-tenant").await.0, Status::Dead);
    assert_eq!((broker.breaker.state(), broker.batches().len()), (BreakerState::Open, 1));
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_other_end_asks_for_is_kept() {
    let broker = Broker::new();
    broker.answer(|_| Err(PublishError::retryable("429 too many requests").retry_after(90 * SECOND)));
    let (store, _) = store();
    let outbox = testing::outbox_on(store).options(options()).listen_all(broker.to("orders")).start_test().await;
    write(&outbox, [order("1")]).await;
    broker.until_asked(1).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(state(&outbox, "1").await, (Status::Retry, 1, "429 too many requests".to_owned()));
    broker.until_asked(2).await;
    let at: Vec<_> = broker.batches().iter().map(|(at, _)| *at).collect();
    assert!((90 * SECOND..91 * SECOND).contains(&(at[1] - at[0])), "{:?}", at[1] - at[0]);

    broker.answer(|_| Err(PublishError::outage("503 maintenance").retry_after(300 * SECOND)));
    broker.until_asked(3).await;
    assert_eq!(broker.breaker.state(), BreakerState::Open);
    broker.answer(|_| Ok(()));
    broker.until_asked(4).await;
    let at: Vec<_> = broker.batches().iter().map(|(at, _)| *at).collect();
    assert!((300 * SECOND..302 * SECOND).contains(&(at[3] - at[2])), "{:?}", at[3] - at[2]);
    assert_eq!(outbox.drain_now().await.done, 1);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_shorter_than_that_of_the_policy_is_not_kept() {
    let broker = Broker::new();
    broker.answer(|_| Err(PublishError::retryable("503 unavailable").retry_after(Duration::ZERO)));
    let (store, _) = store();
    let retry = RetryPolicy::fixed([30 * SECOND]);
    let outbox = testing::outbox_on(store).options(options()).listen_all(broker.to("orders").retry(retry));
    let outbox = outbox.start_test().await;
    write(&outbox, [order("1")]).await;
    broker.until_asked(2).await;
    let at: Vec<_> = broker.batches().iter().map(|(at, _)| *at).collect();
    assert!(at[1] - at[0] >= 30 * SECOND, "{:?}", at[1] - at[0]);
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_publisher_refuses_by_itself_is_no_sign_of_life() {
    let broker = Broker::new();
    broker.set_away(true);
    let (store, _) = store();
    let outbox = testing::outbox_on(store).options(options()).listen_all(broker.to("orders")).start_test().await;
    write(&outbox, [order("good")]).await;
    broker.until_asked(1).await;
    broker.set_away(false);
    broker.answer(|message| match message.id.as_str() {
        "good" => Err(PublishError::outage("connection refused")),
        _ => Err(PublishError::permanent("longer than a topic may be").unasked()),
    });
    write(&outbox, (0..5).map(|id| order(format!("bad-{id}")))).await;
    broker.until_asked(5).await;
    while outbox.admin().counts().await.unwrap().dead < 5 {
        assert_ne!(broker.breaker.state(), BreakerState::Closed);
        tokio::time::sleep(SECOND).await;
    }
    assert_ne!(broker.breaker.state(), BreakerState::Closed, "nobody was asked");
    assert_eq!(state(&outbox, "good").await.1, 0);
}

#[tokio::test(start_paused = true)]
async fn in_a_fan_out_who_is_first_gets_no_event_again_and_again_while_another_is_away() {
    let broker = Broker::new();
    broker.set_away(true);
    let (store, _) = store();
    let mailer = Recorder::new();
    let both = FanOut::new().and(mailer.clone()).and(broker.to("orders"));
    let outbox = testing::outbox_on(store).options(options()).listen_all(both).start_test().await;
    write(&outbox, (0..20).map(|id| order(id.to_string()))).await;
    tokio::time::sleep(1800 * SECOND).await;
    let (probes, mails) = (broker.batches().len(), mailer.count());
    assert!(probes >= 25 && mails <= probes + 2, "{mails} mails for {probes} probes");
    broker.set_away(false);
    tokio::time::sleep(200 * SECOND).await;
    assert_eq!((outbox.admin().counts().await.unwrap().done, broker.taken().len()), (20, 20));
    assert_eq!(state(&outbox, "7").await.1, 0);
    let mistaken = FanOut::new().and(mailer).and(broker.to("{color}"));
    let error = testing::outbox().listen_all(mistaken).start().await.unwrap_err();
    assert!(error.to_string().contains("{color}; there are"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn results_that_cannot_be_told_apart_count_for_nobody() {
    let broker = Broker::new();
    broker.shared.forgetful.store(true, Ordering::Relaxed);
    let (store, _) = store();
    let retry = RetryPolicy::fixed([5 * SECOND]);
    let outbox = testing::outbox_on(store).listen_all(broker.to("orders").retry(retry)).start_test().await;
    write(&outbox, [order("1"), order("2")]).await;
    let counts = outbox.drain_now().await;
    assert_eq!((counts.done, counts.retry), (0, 2));
    let (_, attempts, reason) = state(&outbox, "1").await;
    assert_eq!((attempts, reason.as_str()), (1, "broker gave 0 results for 2 messages"));
}

#[tokio::test(start_paused = true)]
async fn in_a_fan_out_who_is_first_gets_an_event_once_that_another_puts_off() {
    let broker = Broker::new();
    broker.answer(|_| Err(PublishError::deferred("no leader", 5 * SECOND)));
    let (store, _) = store();
    let mailer = Recorder::new();
    let both = FanOut::new().and(mailer.clone()).and(broker.to("orders"));
    let outbox = testing::outbox_on(store).options(options()).listen_all(both).start_test().await;
    write(&outbox, (0..20).map(|id| order(id.to_string()))).await;
    broker.until_asked(100).await;
    assert_eq!((mailer.count(), broker.breaker.state()), (20, BreakerState::Closed));
    broker.answer(|_| Ok(()));
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!((outbox.admin().counts().await.unwrap().done, broker.taken().len(), mailer.count()), (20, 20, 20));
    assert_eq!(state(&outbox, "7").await.1, 0);
}

#[tokio::test(start_paused = true)]
async fn who_puts_off_has_spoken_unless_nobody_was_asked() {
    for is_asked in [true, false] {
        let broker = Broker::new();
        broker.set_away(true);
        let (store, _) = store();
        let outbox = testing::outbox_on(store).options(options()).listen_all(broker.to("orders")).start_test().await;
        write(&outbox, [order("1")]).await;
        broker.until_asked(1).await;
        broker.answer(move |_| {
            let put_off = PublishError::deferred("no leader", 3600 * SECOND);
            Err(if is_asked { put_off } else { put_off.unasked() })
        });
        broker.set_away(false);
        broker.until_asked(2).await;
        tokio::time::sleep(SECOND).await;
        let expected = if is_asked { BreakerState::Closed } else { BreakerState::Open };
        assert_eq!((broker.breaker.state(), state(&outbox, "1").await.1), (expected, 0));
    }
}
