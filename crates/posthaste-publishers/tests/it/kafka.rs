//! Kafka: a real broker, read back by `confluent-kafka`. What needs no broker is in `kafka_client`.

mod broker;
mod proxy;
#[cfg(feature = "kafka-tls")]
mod secured;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::store::{Counts, Filter, Page};
use posthaste_core::{Event, EventId, MemoryStore, Options, Outbox};
use posthaste_publishers::kafka::{Compression, Kafka, KafkaOptions};
use posthaste_publishers::{
    BreakerState, Debezium, Envelope, Headers, Message, PublishError, PublishErrorKind, Publisher,
};
use tokio::time::Instant;

use crate::backlog::{self, EVENTS};
use crate::formats::{self, CARRIER, Carrier};

use broker::{Private, Seen, create_topic, new_topic, read, shared, unused_topic};
use proxy::Proxy;

/// A machine may be busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

type Results = Vec<Result<(), PublishError>>;

fn patient(brokers: &str) -> KafkaOptions {
    KafkaOptions::new(brokers).connect_timeout(PATIENCE).delivery_timeout(PATIENCE)
}

async fn connect(brokers: &str) -> Kafka {
    Kafka::connect(patient(brokers)).await.unwrap()
}

pub(crate) fn message(topic: &str, key: &str, body: impl Into<Bytes>) -> Message {
    let (id, content_type) = (EventId::generate(), Cow::Borrowed("text/plain"));
    Message {
        id,
        to: topic.into(),
        key: Some(key.into()),
        content_type,
        headers: Headers::default(),
        body: body.into().into(),
    }
}

/// Messages with the numbers of that range, round robin over so many keys.
pub(crate) fn numbered(topic: &str, keys: usize, numbers: std::ops::Range<usize>) -> Vec<Message> {
    numbers.map(|number| message(topic, &format!("key-{}", number % keys), number.to_string())).collect()
}

pub(crate) fn assert_all_arrived(results: &Results) {
    if let Some(error) = results.iter().find_map(|result| result.as_ref().err()) {
        panic!("{error:?}");
    }
}

pub(crate) fn kinds(results: &Results) -> Vec<Option<PublishErrorKind>> {
    results.iter().map(|result| result.as_ref().err().map(PublishError::kind)).collect()
}

/// The numbers of each key, in the order in which they are in the topic.
fn numbers_by_key(seen: &[Seen]) -> BTreeMap<String, Vec<usize>> {
    let mut keys: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for message in seen {
        keys.entry(message.key.clone().unwrap()).or_default().push(message.text().parse().unwrap());
    }
    keys
}

/// Each number from 0 on is there once, in order within its key, and a key is in one partition only.
fn assert_once_and_in_order(seen: &[Seen], keys: usize, count: usize) {
    let expected: BTreeMap<String, Vec<usize>> =
        (0..keys).map(|key| (format!("key-{key}"), (key..count).step_by(keys).collect())).collect();
    assert_eq!(seen.len(), count);
    assert_eq!(numbers_by_key(seen), expected);
    let mut partitions: BTreeMap<&str, i32> = BTreeMap::new();
    for message in seen {
        let key = message.key.as_deref().unwrap();
        assert_eq!(*partitions.entry(key).or_insert(message.partition), message.partition);
    }
}

pub(crate) async fn write(outbox: &Outbox<MemoryStore>, events: impl IntoIterator<Item = Event>) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all(events.into_iter().collect::<Vec<_>>()).await.unwrap();
    tx.commit().await.unwrap();
}

/// Waits until the rows are as they should be.
pub(crate) async fn until(outbox: &Outbox<MemoryStore>, what: &str, reached: impl Fn(&Counts) -> bool) {
    let give_up_at = Instant::now() + PATIENCE;
    loop {
        let counts = outbox.admin().counts().await.unwrap();
        if reached(&counts) {
            return;
        }
        assert!(Instant::now() < give_up_at, "{what}: {counts:?} {:?}", failures(outbox).await.pop());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Why events failed, of those whose attempts were used up by it.
pub(crate) async fn failures(outbox: &Outbox<MemoryStore>) -> Vec<String> {
    let page = Page { limit: 10_000, ..Page::default() };
    let rows = outbox.admin().list(&Filter::default(), &page).await.unwrap();
    rows.into_iter().filter(|row| row.state.attempts > 0).filter_map(|row| row.state.last_error).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_read_back_with_key_headers_and_body() {
    let broker = shared();
    let prefix = unused_topic();
    for event_type in ["OrderPlaced", "OrderPaid"] {
        create_topic(&broker, &format!("{prefix}.{event_type}"), 3).await;
    }
    let kafka = connect(&broker).await;
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", kafka.topic(&format!("{prefix}.{{event_type}}")))
        .start()
        .await
        .unwrap();
    let event = |number: usize| {
        let event_type = if number.is_multiple_of(2) { "OrderPlaced" } else { "OrderPaid" };
        let event = Event::builder(event_type).aggregate("Order", number % 7).tenant_id("acme");
        let event = event.header("region", format!("eu-{number}")).header("empty", "").header("grüße", "✓");
        if number.is_multiple_of(3) {
            event.content_type("application/octet-stream").bytes(vec![0, 255, u8::try_from(number % 256).unwrap()])
        } else {
            event.json_text(format!("{{\"number\": {number}}}"))
        }
        .build()
        .unwrap()
    };
    let events: Vec<Event> = (0..1_000).map(event).collect();
    write(&outbox, events.clone()).await;
    until(&outbox, "all done", |counts| counts.done == 1_000).await;

    let mut seen = Vec::new();
    for event_type in ["OrderPlaced", "OrderPaid"] {
        let part = read(&broker, &format!("{prefix}.{event_type}")).await;
        assert!(part.iter().all(|message| message.header("event-type") == Some(event_type)));
        seen.extend(part);
    }
    assert_eq!(seen.len(), events.len());
    let seen: BTreeMap<&str, &Seen> = seen.iter().map(|seen| (seen.header("event-id").unwrap(), seen)).collect();
    for event in &events {
        let seen = seen[event.id().as_str()];
        assert_eq!(seen.key.as_deref(), event.aggregate_id());
        assert_eq!(seen.body, event.payload().as_bytes());
        assert_eq!(seen.header("content-type"), Some(event.content_type()));
        assert_eq!(seen.header("aggregate-type"), Some("Order"));
        assert_eq!(seen.header("aggregate-id"), event.aggregate_id());
        assert_eq!(seen.header("tenant-id"), Some("acme"));
        assert_eq!(seen.header("occurred-at"), Some(event.occurred_at().to_string().as_str()));
        for (name, value) in event.headers() {
            assert_eq!(seen.header(name), Some(value.as_str()), "{name}");
        }
    }
    outbox.shutdown().await;
    kafka.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_format_is_read_back() {
    let broker = shared();
    let topic = new_topic(&broker, 1).await;
    let kafka = connect(&broker).await;
    let carrier = Carrier { keyed: true, debezium_has_type: false, ..CARRIER };
    let seen = |message: Seen| {
        let count = message.headers.len();
        let mut headers: BTreeMap<_, _> = message.headers.into_iter().collect();
        assert_eq!(headers.len(), count, "a header twice: {headers:?}");
        let content_type = headers.remove("content-type");
        formats::Seen { to: topic.clone(), key: message.key, content_type, headers, body: message.body }
    };
    let read = async |_| read(&broker, &topic).await.into_iter().map(seen).collect();
    formats::are_read_back(carrier, &topic, || kafka.topic(&topic), read).await;
    kafka.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn as_of_debezium_there_is_nothing_beside_the_id() {
    let broker = shared();
    let topic = new_topic(&broker, 1).await;
    let kafka = connect(&broker).await;
    let as_of_debezium = |debezium| kafka.topic(&topic).envelope(Envelope::Debezium(debezium));
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", as_of_debezium(Debezium::new()))
        .listen("Bill", "*", as_of_debezium(Debezium::new().event_type_header("eventType")))
        .start()
        .await
        .unwrap();
    let event = |aggregate: &str| Event::builder("Placed").id(aggregate).aggregate(aggregate, 42).json_text("{}");
    for aggregate in ["Order", "Bill"] {
        write(&outbox, [event(aggregate).tenant_id("acme").header("region", "eu").build().unwrap()]).await;
    }
    until(&outbox, "all done", |counts| counts.done == 2).await;
    let mut seen = read(&broker, &topic).await;
    seen.sort_by_key(|message| message.headers.len());
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(seen[0].headers, [header("id", "Order")]);
    assert_eq!(seen[1].headers, [header("id", "Bill"), header("eventType", "Placed")]);
    assert!(seen.iter().all(|message| message.key.as_deref() == Some("42") && message.text() == "{}"));
    outbox.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn order_within_keys_is_kept_with_several_batches_in_flight() {
    let broker = shared();
    let topic = new_topic(&broker, 4).await;
    let kafka = connect(&broker).await;
    // Polled in their order, so that they are handed over one after the other and all under way together.
    let batches = (0..8).map(|batch| kafka.publish(numbered(&topic, 10, batch * 500..(batch + 1) * 500)));
    for results in futures_util::future::join_all(batches).await {
        assert_eq!(results.len(), 500);
        assert_all_arrived(&results);
    }
    let seen = read(&broker, &topic).await;
    assert_once_and_in_order(&seen, 10, 4_000);
    assert!(seen.iter().map(|message| message.partition).max() > Some(0), "all keys in one partition");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_goes_in_batches() {
    let broker = shared();
    let topic = new_topic(&broker, 4).await;
    let kafka = connect(&broker).await;
    // How many of them are in a request is the client's affair; for us it is enough that it has them together.
    backlog::delivered(EVENTS, kafka.topic(&topic), None).await.is_in_batches();
    assert_eq!(read(&broker, &topic).await.len(), EVENTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_full_is_waited_for() {
    let broker = shared();
    let topic = new_topic(&broker, 2).await;
    let narrow = patient(&broker).property("queue.buffering.max.messages", "50");
    let kafka = Kafka::connect(narrow).await.unwrap();
    assert_all_arrived(&kafka.publish(numbered(&topic, 5, 0..1_000)).await);
    assert_once_and_in_order(&read(&broker, &topic).await, 5, 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_compression_is_read_back() {
    let broker = shared();
    // It stores Snappy as well, and cannot give it back: see `kafka_client`.
    for compression in [Compression::Gzip, Compression::Lz4] {
        let topic = new_topic(&broker, 1).await;
        let kafka = Kafka::connect(patient(&broker).compression(compression)).await.unwrap();
        assert_all_arrived(&kafka.publish(numbered(&topic, 3, 0..500)).await);
        assert_once_and_in_order(&read(&broker, &topic).await, 3, 500);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_key_is_spread_and_an_empty_body_is_no_tombstone() {
    let broker = shared();
    let topic = new_topic(&broker, 4).await;
    let kafka = connect(&broker).await;
    let keyless = |_| Message { key: None, ..message(&topic, "", "") };
    // One after the other: within a batch they may stick to a partition.
    for number in 0..40 {
        assert_all_arrived(&kafka.publish(vec![keyless(number)]).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let seen = read(&broker, &topic).await;
    assert_eq!(seen.len(), 40);
    assert!(seen.iter().all(|message| message.key.is_none() && message.body.is_empty()));
    assert!(seen.iter().any(|message| message.partition != seen[0].partition));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_fails_its_own_messages_until_it_is_there() {
    let broker = shared();
    let (there, missing) = (new_topic(&broker, 1).await, unused_topic());
    let kafka = connect(&broker).await;
    let batch = || vec![message(&missing, "a", "0"), message(&there, "a", "1"), message(&missing, "a", "2")];
    let results = kafka.publish(batch()).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Retryable), None, Some(PublishErrorKind::Retryable)]);
    let reason = results[0].as_ref().unwrap_err().to_string();
    assert!(reason.contains("create the topic"), "{reason}");
    assert_eq!(read(&broker, &there).await.len(), 1);

    create_topic(&broker, &missing, 1).await;
    let give_up_at = Instant::now() + PATIENCE;
    while kinds(&kafka.publish(vec![message(&missing, "a", "3")]).await) != [None] {
        assert!(Instant::now() < give_up_at, "the topic is there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(read(&broker, &missing).await.last().unwrap().text(), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_large_is_dead_and_its_neighbours_are_not() {
    let broker = shared();
    let topic = new_topic(&broker, 1).await;
    let kafka = Kafka::connect(patient(&broker).max_message_bytes(10_000)).await.unwrap();
    let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", kafka.topic(&topic)).start().await.unwrap();
    let event =
        |bytes: usize| Event::builder("OrderPlaced").aggregate("Order", 1).bytes(vec![7; bytes]).build().unwrap();
    write(&outbox, [event(10), event(20_000), event(20)]).await;
    until(&outbox, "two done and one dead", |counts| (counts.done, counts.dead) == (2, 1)).await;
    let dead = Filter { error_contains: Some("max_message_bytes".to_owned()), ..Filter::default() };
    assert_eq!(outbox.admin().list(&dead, &Page::default()).await.unwrap().len(), 1);
    assert_eq!(kafka.breaker().state(), BreakerState::Closed);
    let sizes: Vec<usize> = read(&broker, &topic).await.iter().map(|message| message.body.len()).collect();
    assert_eq!(sizes, [10, 20]);
    outbox.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_none_is_permanent() {
    let broker = shared();
    let topic = new_topic(&broker, 1).await;
    let kafka = connect(&broker).await;
    let results = kafka.publish(vec![message("with\0nul", "a", "0"), message(&topic, "a", "1")]).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Permanent), None]);
    // Not only the first time.
    for _ in 0..3 {
        for name in ["with space", "grüße", "..", &"x".repeat(250)] {
            let results = kafka.publish(vec![message(name, "a", "0")]).await;
            assert_eq!(kinds(&results), [Some(PublishErrorKind::Permanent)], "{name}: {results:?}");
            let reason = results[0].as_ref().unwrap_err().to_string();
            assert!(reason.contains("is no name of a topic"), "{reason}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_killed_in_the_middle_and_back_loses_nothing_and_keeps_the_order() {
    const COUNT: usize = 6_000;
    let broker = Private::start(&[]).await;
    let topic = new_topic(broker.url(), 3).await;
    let kafka = Kafka::connect(patient(broker.url())).await.unwrap();
    let publishing = async {
        for batch in 0..COUNT / 1_000 {
            // Two halves under way together.
            let numbers = batch * 1_000..(batch + 1) * 1_000;
            let middle = numbers.start + 500;
            let first = kafka.publish(numbered(&topic, 10, numbers.start..middle));
            let second = kafka.publish(numbered(&topic, 10, middle..numbers.end));
            let (first, second) = futures_util::future::join(first, second).await;
            assert_all_arrived(&first);
            assert_all_arrived(&second);
        }
    };
    let killing = async {
        for pause in [60, 90] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            broker.kill();
            broker.restart(&[]).await;
        }
    };
    futures_util::future::join(publishing, killing).await;
    assert_once_and_in_order(&read(broker.url(), &topic).await, 10, COUNT);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_opens_the_breaker_uses_up_no_attempt_and_everything_arrives_after_it() {
    let broker = Private::start(&[]).await;
    let topic = new_topic(broker.url(), 2).await;
    let options = patient(broker.url()).delivery_timeout(Duration::from_secs(3));
    let kafka = Kafka::connect(options).await.unwrap();
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", kafka.topic(&topic))
        .options(Options { retry_attempts: 1, ..Options::default() })
        .start()
        .await
        .unwrap();
    let event = |number: usize| {
        let event = Event::builder("OrderPlaced").aggregate("Order", format!("key-{}", number % 5));
        event.content_type("text/plain").bytes(number.to_string()).build().unwrap()
    };
    write(&outbox, (0..100).map(event)).await;
    until(&outbox, "the first done", |counts| counts.done == 100).await;
    broker.kill();
    write(&outbox, (100..400).map(event)).await;
    let give_up_at = Instant::now() + PATIENCE;
    while kafka.breaker().state() == BreakerState::Closed {
        assert!(Instant::now() < give_up_at, "the breaker opens");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    broker.restart(&[]).await;
    until(&outbox, "all done", |counts| counts.pending() == 0).await;
    assert_eq!(failures(&outbox).await, Vec::<String>::new());
    let seen = read(broker.url(), &topic).await;
    let numbers: std::collections::BTreeSet<usize> =
        seen.iter().map(|message| message.text().parse().unwrap()).collect();
    assert_eq!(numbers, (0..400).collect());
    assert_eq!(kafka.breaker().state(), BreakerState::Closed);
    kafka.check().await.unwrap();
    outbox.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_acknowledgements_double_nothing() {
    let proxy = Proxy::losing_every(7).await;
    let proxied = proxy.addr().to_string();
    let broker = Private::start(&["--advertise", &proxied]).await;
    proxy.run(broker.url());
    let topic = new_topic(&proxied, 1).await;
    // Small requests, so that there are many acknowledgements to lose.
    let options = patient(&proxied).property("batch.num.messages", "20");
    let kafka = Kafka::connect(options.property("reconnect.backoff.max.ms", "200")).await.unwrap();
    for batch in 0..4 {
        assert_all_arrived(&kafka.publish(numbered(&topic, 4, batch * 500..(batch + 1) * 500)).await);
    }
    assert!(proxy.lost() >= 10, "only {} acknowledgements were lost", proxy.lost());
    assert_once_and_in_order(&read(&proxied, &topic).await, 4, 2_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_what_is_on_its_way_and_takes_no_more() {
    let broker = shared();
    let topic = new_topic(&broker, 1).await;
    let kafka = Kafka::connect(patient(&broker).property("linger.ms", "300")).await.unwrap();
    let publishing = kafka.publish(numbered(&topic, 1, 0..100));
    let (results, ()) = futures_util::future::join(publishing, kafka.close()).await;
    assert_all_arrived(&results);
    assert_once_and_in_order(&read(&broker, &topic).await, 1, 100);
    let results = kafka.publish(numbered(&topic, 1, 0..1)).await;
    assert_eq!(kinds(&results), [Some(PublishErrorKind::Outage)]);
    assert!(kafka.check().await.unwrap_err().to_string().contains("closed"));
}
