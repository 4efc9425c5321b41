use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use posthaste_core::{Event, MemoryStore, Options, Ordered, Outbox, RetryPolicy};
use posthaste_publishers::nats::{Nats, NatsOptions};
use posthaste_publishers::{BreakerState, Message, PublishErrorKind, Publisher, Results};
use posthaste_torture::proxy::Proxy;
use serde_json::Value;
use tokio::time::timeout_at;

use crate::backlog::{self, EVENTS};
use crate::certificate::certificate;
use crate::formats::{self, CARRIER, Carrier, Seen, from_base64};
use crate::port::free_port;
use crate::started::{Started, kinds, message, messages, rows, run, until, variable, write};

const OUTAGE: Option<PublishErrorKind> = Some(PublishErrorKind::Outage);
const DEFERRED: Option<PublishErrorKind> = Some(PublishErrorKind::Deferred);
const RETRYABLE: Option<PublishErrorKind> = Some(PublishErrorKind::Retryable);
const PERMANENT: Option<PublishErrorKind> = Some(PublishErrorKind::Permanent);

fn url() -> String {
    variable("POSTHASTE_TEST_NATS_URL", "nats")
}

fn client(url: &str, command: &str, argument: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/jetstream.py");
    run(variable("POSTHASTE_TEST_NATS_PYTHON", "nats"), [script, url, command, argument])
}

/// Makes a stream for `NAME.>`, with more of its configuration as JSON.
fn add_stream(url: &str, name: &str, more: &str) {
    client(url, "add", &format!(r#"{{"name": "{name}", "subjects": ["{name}.>"]{more}}}"#));
}

fn read(url: &str, stream: &str) -> Vec<Value> {
    client(url, "read", stream).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bodies(read: &[Value]) -> Vec<&str> {
    read.iter().map(|message| message["body"].as_str().unwrap()).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// Connects to a server that is there. It has two seconds to answer, which on a busy machine may be too few for once.
async fn connect(url: &str) -> Nats {
    for _ in 0..4 {
        if let Ok(nats) = Nats::connect(NatsOptions::new(url)).await {
            return nats;
        }
    }
    Nats::connect(NatsOptions::new(url)).await.unwrap()
}

#[tokio::test]
async fn events_arrive_with_headers_and_ids() {
    add_stream(&url(), "arrive", "");
    let store = MemoryStore::new();
    let nats = connect(&url()).await;
    let listener = nats.subject("arrive.{aggregate_type}.{event_type}");
    let outbox = Outbox::builder(store.clone()).listen("Order", "*", listener).start().await.unwrap();
    let event = |n: usize| {
        let event = Event::builder("Placed").id(format!("id-{n}")).aggregate("Order", 42).tenant_id("acme");
        event.header("région", "x").header("trace", "äöü €").json_text(format!("{{\"n\":{n}}}"))
    };
    let plain =
        |n: usize| Event::builder("Placed").id(format!("id-{n}")).aggregate("Order", 42).header("trace", "äöü €");
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event(0)).await.unwrap();
    tx.write_all((1..2000).map(|n| plain(n).tenant_id("acme").json_text(format!("{{\"n\":{n}}}")))).await.unwrap();
    tx.commit().await.unwrap();
    until(&store, "all are delivered", |counts| counts.done == 2000).await;

    let messages = read(&url(), "arrive");
    assert_eq!(messages.len(), 2000);
    // A name that NATS cannot carry is written in another way.
    let zero = messages.iter().find(|message| message["headers"]["event-id"] == "id-0").unwrap();
    assert_eq!(zero["headers"]["r%C3%A9gion"], "x", "{zero}");
    let first = messages.iter().find(|message| message["headers"]["event-id"] == "id-1").unwrap();
    assert_eq!(first["subject"], "arrive.Order.Placed");
    for (name, value) in [
        ("Nats-Msg-Id", "id-1/arrive.Order.Placed"),
        ("event-id", "id-1"),
        ("event-type", "Placed"),
        ("aggregate-type", "Order"),
        ("aggregate-id", "42"),
        ("tenant-id", "acme"),
        ("trace", "%C3%A4%C3%B6%C3%BC%20%E2%82%AC"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(first["headers"][name], value, "{first}");
    }
    let bodies: HashSet<_> = bodies(&messages).into_iter().map(str::to_owned).collect();
    assert_eq!(bodies, (0..2000).map(|n| format!("{{\"n\":{n}}}")).collect());
    outbox.shutdown().await;
    nats.close().await;
    let after = nats.publish(vec![message("arrive.x", "late", "")]).await;
    assert_eq!(kinds(&after), [OUTAGE]);
}

#[tokio::test]
async fn every_format_is_read_back() {
    add_stream(&url(), "formats", "");
    let nats = connect(&url()).await;
    let carrier = Carrier { prefix: "ce-", ascii: true, type_is_attribute: true, ..CARRIER };
    let seen = |message: Value| {
        let (to, body) = (message["subject"].as_str().unwrap().to_owned(), from_base64(&message["base64"]));
        let mut headers = formats::headers(&message["headers"]);
        assert!(headers.remove("Nats-Msg-Id").is_some_and(|id| id.ends_with("/formats.OrderPlaced")), "{message}");
        Seen { to, key: None, content_type: headers.remove("content-type"), headers, body }
    };
    let read = async |_| read(&url(), "formats").into_iter().map(seen).collect();
    formats::are_read_back(carrier, "formats.OrderPlaced", || nats.subject("formats.{event_type}"), read).await;
}

#[tokio::test]
async fn a_backlog_goes_in_batches() {
    add_stream(&url(), "backlog", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let nats = connect(&format!("nats://{}", proxy.addr())).await;
    backlog::delivered(EVENTS, nats.subject("backlog.x"), Some(&proxy)).await.is_in_batches();
    assert_eq!(client(&url(), "count", "backlog").trim(), EVENTS.to_string());
}

#[tokio::test]
async fn a_batch_is_stored_in_its_order_also_when_fewer_may_be_in_flight() {
    for (stream, in_flight) in [("order", 4096), ("order-few", 7)] {
        add_stream(&url(), stream, "");
        let nats = Nats::connect(NatsOptions::new(url()).max_in_flight(in_flight)).await.unwrap();
        let to = |n: usize| format!("{stream}.{}", n % 3);
        let batch = (0..500).map(|n| message(&to(n), &format!("m-{n}"), n.to_string())).collect();
        assert_eq!(kinds(&nats.publish(batch).await), [None; 500]);
        assert_eq!(bodies(&read(&url(), stream)), numbers(0..500));
    }
}

/// Messages of one key, each with its number as the body.
fn run_of(to: &str, key: &str, count: usize) -> Vec<Message> {
    let of_key = |n: usize| Message { key: Some(key.into()), ..message(to, &format!("{key}-{n}"), n.to_string()) };
    (0..count).map(of_key).collect()
}

async fn in_order(nats: &Nats, messages: Vec<Message>) -> Vec<Option<PublishErrorKind>> {
    let results = Results::new(messages.len(), tokio::time::Instant::now() + Duration::from_secs(60)).in_order();
    nats.publish_into(messages, &results).await;
    kinds(&results.into_noted().into_iter().map(Option::unwrap).collect::<Vec<_>>())
}

/// The bodies that a stream has of each key, as they came.
fn by_key(stream: &[Value]) -> HashMap<String, Vec<String>> {
    let mut by_key: HashMap<_, Vec<String>> = HashMap::new();
    for message in stream {
        let id = message["headers"]["event-id"].as_str().unwrap();
        let key = id.rsplit_once('-').unwrap().0.to_owned();
        by_key.entry(key).or_default().push(message["body"].as_str().unwrap().to_owned());
    }
    by_key
}

#[tokio::test]
async fn in_order_nothing_is_stored_behind_one_that_is_not() {
    add_stream(&url(), "prefix", r#", "max_msg_size": 400"#);
    let nats = connect(&url()).await;
    let mut batch = run_of("prefix.x", "a", 50);
    batch[20].body = "x".repeat(500).into();
    batch.extend(run_of("prefix.x", "b", 50));
    let said = in_order(&nats, batch.clone()).await;
    assert_eq!(said[..20], [None; 20]);
    assert_eq!(said[20], PERMANENT);
    assert_eq!(said[21..50], [DEFERRED; 29]);
    assert_eq!(said[50..], [None; 50]);
    assert_eq!(
        by_key(&read(&url(), "prefix")),
        [("a", 20), ("b", 50)].map(|(k, n)| (k.to_owned(), numbers(0..n))).into()
    );
    // What could not be sent at all holds up those behind it as well.
    let mut batch = run_of("prefix.x", "c", 5);
    batch[2].to = "prefix x".into();
    let said = in_order(&nats, batch).await;
    assert_eq!(said, [None, None, PERMANENT, DEFERRED, DEFERRED]);
    assert_eq!(by_key(&read(&url(), "prefix"))["c"], ["0", "1"]);
}

#[tokio::test]
async fn in_order_repeats_and_several_streams_are_no_obstacle() {
    for stream in ["first-half", "second-half"] {
        add_stream(&url(), stream, "");
    }
    let nats = connect(&url()).await;
    let mut batch = run_of("first-half.x", "a", 60);
    for (n, message) in batch.iter_mut().enumerate().filter(|(n, _)| n % 3 == 0) {
        message.to = format!("second-half.{}", n % 2).into();
    }
    // The second time the first of them are there.
    assert_eq!(in_order(&nats, batch[..30].to_vec()).await, [None; 30]);
    assert_eq!(in_order(&nats, batch).await, [None; 60]);
    let stored = |stream| bodies(&read(&url(), stream)).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let (third, other): (Vec<_>, Vec<_>) = (0..60).partition(|n| n % 3 == 0);
    let texts = |numbers: Vec<usize>| numbers.into_iter().map(|n| n.to_string()).collect::<Vec<_>>();
    assert_eq!(stored("first-half"), texts(other));
    assert_eq!(stored("second-half"), texts(third));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_order_others_may_write_to_the_same_stream() {
    add_stream(&url(), "busy", "");
    let mut tasks = tokio::task::JoinSet::new();
    for connection in 0..3 {
        let nats = connect(&url()).await;
        for task in 0..3 {
            let nats = nats.clone();
            tasks.spawn(async move {
                let keys = (0..5).map(|key| format!("k{connection}.{task}.{key}"));
                let batch: Vec<_> = keys.flat_map(|key| run_of("busy.x", &key, 100)).collect();
                assert_eq!(in_order(&nats, batch).await, [None; 500]);
            });
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let stored = by_key(&read(&url(), "busy"));
    assert_eq!(stored.len(), 45);
    assert!(stored.values().all(|of_key| *of_key == numbers(0..100)));
}

#[tokio::test]
async fn in_order_events_of_one_aggregate_do_not_wait_for_each_other() {
    add_stream(&url(), "together", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let nats = connect(&format!("nats://{}", proxy.addr())).await;
    proxy.delay(Some(Duration::from_millis(50)));
    let began_at = Instant::now();
    assert_eq!(in_order(&nats, run_of("together.x", "a", 500)).await, [None; 500]);
    // One after the other they would take 25 s.
    assert!(began_at.elapsed() < Duration::from_secs(12), "{:?}", began_at.elapsed());
    assert_eq!(bodies(&read(&url(), "together")), numbers(0..500));
}

#[tokio::test]
async fn events_of_an_aggregate_arrive_in_order_through_lost_connections() {
    add_stream(&url(), "lost-order", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let options = NatsOptions::new(format!("nats://{}", proxy.addr())).ack_timeout(Duration::from_secs(1));
    let nats = Nats::connect(options).await.unwrap();
    let store = MemoryStore::new();
    let listener = nats.subject("lost-order.{event_type}");
    let soon =
        Options { retry_base: Duration::from_millis(10), retry_max: Duration::from_millis(10), ..Options::default() };
    let outbox = Outbox::builder(store.clone()).options(soon).ordered(Ordered::all());
    let outbox = outbox.listen("Order", "*", listener).start().await.unwrap();
    const EVENTS: usize = 3000;
    let writer = {
        let outbox = outbox.clone();
        tokio::spawn(async move {
            for n in 0..EVENTS {
                // One aggregate has nine tenths of them.
                let order = if n % 10 == 0 { n % 7 + 1 } else { 0 };
                let event = Event::builder("Placed").id(format!("{order}-{n:05}")).aggregate("Order", order);
                let mut tx = outbox.begin().await.unwrap();
                tx.write(event.json_text(n.to_string())).await.unwrap();
                tx.commit().await.unwrap();
                if n % 100 == 0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        })
    };
    for n in 0..12 {
        tokio::time::sleep(Duration::from_millis(40 + n * 7)).await;
        proxy.cut();
        outbox.wake();
    }
    writer.await.unwrap();
    until(&store, "all are delivered", |counts| counts.done == EVENTS as u64).await;
    outbox.shutdown().await;
    let stored = by_key(&read(&url(), "lost-order"));
    let all: usize = stored.values().map(Vec::len).sum();
    // The stream drops repeats.
    assert_eq!(all, EVENTS);
    for (order, bodies) in stored {
        let numbers: Vec<usize> = bodies.iter().map(|body| body.parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "order {order}: {numbers:?}");
    }
}

#[tokio::test]
async fn several_batches_at_once_get_along_with_few_places() {
    add_stream(&url(), "places", "");
    let nats = Nats::connect(NatsOptions::new(url()).max_in_flight(10)).await.unwrap();
    let batches = (0..8).map(|batch| {
        let nats = nats.clone();
        tokio::spawn(async move { nats.publish(messages("places.x", &format!("b{batch}"), 100)).await })
    });
    for batch in batches.collect::<Vec<_>>() {
        assert_eq!(kinds(&batch.await.unwrap()), [None; 100]);
    }
    assert_eq!(read(&url(), "places").len(), 800);
}

#[tokio::test]
async fn a_repeat_is_acknowledged_and_stored_once() {
    add_stream(&url(), "repeat", "");
    let nats = connect(&url()).await;
    for _ in 0..2 {
        assert_eq!(kinds(&nats.publish(messages("repeat.x", "m", 10)).await), [None; 10]);
    }
    assert_eq!(bodies(&read(&url(), "repeat")), numbers(0..10));
}

#[tokio::test]
async fn an_event_for_two_subjects_of_a_stream_is_stored_for_each() {
    add_stream(&url(), "twice", "");
    let nats = connect(&url()).await;
    for _ in 0..2 {
        let batch = vec![message("twice.a", "1", "a"), message("twice.b", "1", "b")];
        assert_eq!(kinds(&nats.publish(batch).await), [None, None]);
    }
    assert_eq!(bodies(&read(&url(), "twice")), ["a", "b"]);
}

#[tokio::test]
async fn a_subject_that_is_too_long_or_an_order_to_the_server_is_permanent_and_spares_the_others() {
    add_stream(&url(), "orders-to", "");
    let nats = connect(&url()).await;
    let long = format!("orders-to.{}", "x".repeat(5000));
    let batch =
        ["orders-to.a", &long, "$JS.API.STREAM.DELETE.orders-to", "$SYS.REQ.SERVER.PING", "_INBOX.x", "orders-to.b"];
    let batch = batch.iter().enumerate().map(|(n, to)| message(to, &n.to_string(), n.to_string())).collect();
    let results = nats.publish(batch).await;
    assert_eq!(kinds(&results), [None, PERMANENT, PERMANENT, PERMANENT, PERMANENT, None], "{results:?}");
    assert_eq!(bodies(&read(&url(), "orders-to")), ["0", "5"]);
}

/// A cluster of three, of which the third alone keeps the stream.
async fn cluster(stream: &str) -> (Vec<Started>, Vec<String>) {
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let routes = ports.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect::<Vec<_>>().join(", ");
    let (servers, urls): (Vec<_>, Vec<_>) = ports
        .iter()
        .enumerate()
        .map(|(n, port)| {
            let conf = format!(
                "server_name: n{n}\nserver_tags: [n{n}]\n\
                 cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n"
            );
            Started::with_files("nats", &["-c", "{dir}/conf"], &[("conf", &conf)])
        })
        .unzip();
    let given_up_at = Instant::now() + Duration::from_secs(60);
    while Nats::connect(NatsOptions::new(&urls[0])).await.is_err() {
        assert!(Instant::now() < given_up_at, "the cluster has no leader");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    add_stream(&urls[0], stream, r#", "placement": {"tags": ["n2"]}"#);
    (servers, urls)
}

#[tokio::test]
async fn a_stream_without_a_leader_is_waited_for_and_a_missing_one_is_not() {
    let (servers, urls) = cluster("leader").await;
    assert_eq!(kinds(&connect(&urls[0]).await.publish(messages("leader.x", "first", 3)).await), [None; 3]);
    let nats = Nats::connect(NatsOptions::new(&urls[0]).ack_timeout(Duration::from_secs(2))).await.unwrap();
    servers[2].stop();
    let given_up_at = Instant::now() + Duration::from_secs(120);
    loop {
        let batch = vec![message("leader.x", "1", "1"), message("missing.x", "2", "2")];
        let results = nats.publish(batch).await;
        assert_ne!(kinds(&results)[0], RETRYABLE, "{results:?}");
        if kinds(&results) == [DEFERRED, RETRYABLE] {
            break;
        }
        // The leader of the cluster may have gone with it, for a while.
        assert!(Instant::now() < given_up_at, "{results:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    servers[2].start();
    while kinds(&nats.publish(vec![message("leader.x", "1", "1")]).await) != [None] {
        assert!(Instant::now() < given_up_at, "it has a leader");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(bodies(&read(&urls[0], "leader")), ["0", "1", "2", "1"]);
}

#[tokio::test]
async fn a_subject_without_a_stream_is_an_error_that_says_so_and_spares_the_others() {
    add_stream(&url(), "known", "");
    let nats = connect(&url()).await;
    let batch = vec![message("known.a", "1", ""), message("unknown.b", "2", ""), message("known.c", "3", "")];
    let results = nats.publish(batch).await;
    assert_eq!(kinds(&results), [None, RETRYABLE, None]);
    let error = results[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("no stream of JetStream listens to the subject \"unknown.b\""), "{error}");
    assert_eq!(read(&url(), "known").len(), 2);
}

#[tokio::test]
async fn another_stream_than_expected_refuses() {
    add_stream(&url(), "wanted", "");
    add_stream(&url(), "other", "");
    let nats = Nats::connect(NatsOptions::new(url()).expected_stream("wanted")).await.unwrap();
    let results = nats.publish(vec![message("wanted.a", "1", "yes"), message("other.a", "2", "no")]).await;
    assert_eq!(kinds(&results), [None, RETRYABLE]);
    assert!(results[1].as_ref().unwrap_err().to_string().contains("expected stream does not match"), "{results:?}");
    assert_eq!((bodies(&read(&url(), "wanted")), read(&url(), "other").len()), (vec!["yes"], 0));

    let error = Nats::connect(NatsOptions::new(url()).expected_stream("nowhere")).await.unwrap_err();
    assert!(error.to_string().contains("no stream \"nowhere\""), "{error}");
}

#[tokio::test]
async fn what_is_too_large_or_cannot_be_carried_is_permanent_and_spares_the_others() {
    add_stream(&url(), "large", r#", "max_msg_size": 2000"#);
    let nats = connect(&url()).await;
    let mut broken = message("large.x", "5", "");
    broken.headers.push("x", "two\nlines");
    let batch = vec![
        message("large.x", "1", "small"),
        message("large.x", "2", vec![b'x'; 3000]),
        message("large.x", "3", vec![b'x'; 2 << 20]),
        message("large.*", "4", ""),
        broken,
        message("large.x", "6", "also small"),
    ];
    let results = nats.publish(batch).await;
    assert_eq!(kinds(&results), [None, PERMANENT, PERMANENT, PERMANENT, PERMANENT, None]);
    let said = |n: usize| results[n].as_ref().unwrap_err().to_string();
    assert!(said(1).contains("message size exceeds maximum allowed"), "{}", said(1));
    assert!(said(2).contains("max_payload"), "{}", said(2));
    assert!(said(3).contains("\"large.*\" is no subject"), "{}", said(3));
    assert!(said(4).contains("\"x\" has a line break"), "{}", said(4));
    assert_eq!(bodies(&read(&url(), "large")), ["small", "also small"]);
}

#[tokio::test]
async fn a_full_stream_is_retryable() {
    add_stream(&url(), "full", r#", "max_msgs": 3, "discard": "new""#);
    let results = connect(&url()).await.publish(messages("full.x", "m", 5)).await;
    assert_eq!(kinds(&results), [None, None, None, RETRYABLE, RETRYABLE]);
    assert!(results[4].as_ref().unwrap_err().to_string().contains("maximum messages exceeded"), "{results:?}");
    assert_eq!(bodies(&read(&url(), "full")), numbers(0..3));
}

#[tokio::test]
async fn a_stream_that_does_not_acknowledge_is_no_outage_and_nothing_is_done() {
    add_stream(&url(), "mute", r#", "no_ack": true"#);
    add_stream(&url(), "speaking", "");
    let nats = Nats::connect(NatsOptions::new(url()).ack_timeout(Duration::from_millis(1500))).await.unwrap();
    let mut batch = messages("mute.x", "m", 50);
    batch.push(message("speaking.x", "s", ""));
    let begun = Instant::now();
    let results = nats.publish(batch).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "waited for each: {:?}", begun.elapsed());
    let mut wanted = vec![DEFERRED; 50];
    wanted.push(None);
    assert_eq!(kinds(&results), wanted);
    assert!(results[0].as_ref().unwrap_err().to_string().contains("does it acknowledge?"), "{results:?}");
}

#[tokio::test]
async fn a_subject_without_answers_is_left_alone_and_tried_again() {
    add_stream(&url(), "mute-for-long", r#", "no_ack": true"#);
    let nats = Nats::connect(NatsOptions::new(url()).ack_timeout(Duration::from_millis(50))).await.unwrap();
    // Until the subject is tried for the second time, what goes there waits.
    let mut tried = 0;
    let given_up_at = Instant::now() + Duration::from_secs(30);
    while tried < 2 {
        assert!(Instant::now() < given_up_at, "it is tried again");
        let results = nats.publish(vec![message("mute-for-long.x", "1", "1")]).await;
        assert_eq!(kinds(&results), [DEFERRED]);
        tried += usize::from(results[0].as_ref().unwrap_err().to_string().contains("does it acknowledge?"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_event_whose_words_make_no_subject_is_unroutable_and_uses_up_no_attempt() {
    add_stream(&url(), "words", "");
    let (store, nats) = (MemoryStore::new(), connect(&url()).await);
    let listener = nats.subject("words.{tenant_id}");
    let outbox = Outbox::builder(store.clone()).listen("Order", "*", listener).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    for (id, tenant) in [("good", "acme"), ("spaced", "two words"), ("wild", "*")] {
        let event = Event::builder("Placed").id(id).aggregate("Order", id).tenant_id(tenant).json_text("1");
        tx.write(event).await.unwrap();
    }
    tx.commit().await.unwrap();
    until(&store, "all are settled", |counts| counts.done == 1 && counts.dead == 2).await;
    let rows = rows(&store).await;
    assert!(rows.iter().all(|row| row.state.attempts == 0), "{rows:?}");
    outbox.shutdown().await;
}

#[tokio::test]
async fn an_answer_that_comes_twice_counts_for_no_other_message() {
    add_stream(&url(), "mute-too", r#", "no_ack": true"#);
    // Somebody who answers as JetStream does, but twice.
    let other = async_nats::connect(url()).await.unwrap();
    let mut asked = other.subscribe("echoed.>").await.unwrap();
    other.flush().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let answering = tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            let to = message.reply.unwrap();
            let answer = if message.subject.ends_with("word") { "hello" } else { r#"{"stream": "echoed", "seq": 1}"# };
            other.publish(to.clone(), answer.into()).await.unwrap();
            other.publish(to.clone(), answer.into()).await.unwrap();
            other.flush().await.unwrap();
            tell.send(to.to_string()).unwrap();
        }
    });
    let nats = Nats::connect(NatsOptions::new(url()).ack_timeout(Duration::from_millis(1500))).await.unwrap();
    let results = nats.publish(vec![message("echoed.x", "1", ""), message("echoed.word", "2", "")]).await;
    assert_eq!(kinds(&results), [None, RETRYABLE]);
    assert!(results[1].as_ref().unwrap_err().to_string().contains("who is not JetStream"), "{results:?}");
    let mut inboxes = vec![told.recv().await.unwrap(), told.recv().await.unwrap()];
    // The second answers are there by now.
    let results = nats.publish(messages("mute-too.x", "m", 2)).await;
    assert_eq!(kinds(&results), [DEFERRED, DEFERRED]);
    for _ in 0..2 {
        assert_eq!(kinds(&nats.publish(vec![message("echoed.x", "3", "")]).await), [None]);
        inboxes.push(told.recv().await.unwrap());
    }
    answering.abort();
    let numbers: HashSet<&String> = inboxes.iter().collect();
    assert_eq!(numbers.len(), 4, "a number was used twice: {inboxes:?}");
    let inboxes: Vec<&str> = inboxes.iter().map(|inbox| inbox.rsplit_once('.').unwrap().0).collect();
    assert!(inboxes[0] == inboxes[1] && inboxes[2] == inboxes[3], "an inbox is kept: {inboxes:?}");
    assert_ne!(inboxes[1], inboxes[2], "not one that was left without an answer");
}

#[tokio::test]
async fn a_server_that_is_away_or_has_no_jetstream_is_said_at_the_start() {
    let error = Nats::connect(NatsOptions::new("nats://127.0.0.1:1")).await.unwrap_err();
    assert_eq!(error.kind(), PublishErrorKind::Outage);
    assert!(error.to_string().contains("cannot connect to nats://127.0.0.1:1"), "{error}");
    let lazy = Nats::connect(NatsOptions::new("nats://127.0.0.1:1").lazy(true)).await.unwrap();
    assert_eq!(kinds(&lazy.publish(messages("x", "m", 2)).await), [OUTAGE, OUTAGE]);

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options =
        NatsOptions::new(silent.local_addr().unwrap().to_string()).connect_timeout(Duration::from_millis(200));
    let error = Nats::connect(options).await.unwrap_err();
    assert!(error.to_string().contains("timed out") || error.to_string().contains("no answer"), "{error}");

    let accounts = "accounts { A { users: [ { user: a, password: a } ] } }\n";
    let (_server, url) = Started::with_files("nats", &["-c", "{dir}/conf"], &[("conf", accounts)]);
    let error = Nats::connect(NatsOptions::new(url).user_and_password("a", "a")).await.unwrap_err();
    assert!(error.to_string().contains("JetStream"), "{error}");
}

#[tokio::test]
async fn a_stranger_is_refused_and_a_subject_that_is_not_permitted_is_retryable() {
    let users = r#"authorization { users: [
        { user: all, password: secret }
        { user: some, password: secret, permissions: { publish: ["permit.ok", "permit.too", "nowhere"], subscribe: ["_INBOX.>"] } }
    ] }"#;
    let (server, url) = Started::with_files("nats", &["-c", "{dir}/conf"], &[("conf", users)]);
    let as_all = url.replace("://", "://all:secret@");
    add_stream(&as_all, "permit", "");
    let wrong = NatsOptions::new(&url).user_and_password("all", "wrong");
    for (options, said) in [
        (NatsOptions::new(&url), "authorization violation"),
        (wrong.clone(), "authorization violation"),
        (NatsOptions::new(&url).token("wrong"), "authorization violation"),
        (NatsOptions::new(&url).nkey_seed("wrong"), "look at the seed"),
        (NatsOptions::new(&url).credentials_file("/nowhere.creds"), "/nowhere.creds"),
    ] {
        let error = Nats::connect(options).await.unwrap_err();
        assert_eq!(error.kind(), PublishErrorKind::Permanent, "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
    }
    // It is no fault of events that are on their way.
    let lazy = Nats::connect(wrong.lazy(true)).await.unwrap();
    assert_eq!(kinds(&lazy.publish(messages("permit.ok", "m", 2)).await), [OUTAGE, OUTAGE]);
    let in_order = Results::new(2, tokio::time::Instant::now() + Duration::from_secs(30)).in_order();
    lazy.publish_into(messages("permit.ok", "m", 2), &in_order).await;
    let noted: Vec<_> = in_order.into_noted().into_iter().map(Option::unwrap).collect();
    assert_eq!(kinds(&noted), [OUTAGE, OUTAGE]);
    assert_eq!(lazy.check().await.unwrap_err().kind(), PublishErrorKind::Permanent);

    // This user may not ask JetStream whether it is there, either.
    let some = NatsOptions::new(&url).user_and_password("some", "secret").ack_timeout(Duration::from_secs(30));
    let nats = Nats::connect(some).await.unwrap();
    let begun = Instant::now();
    let batch = ["permit.ok", "permit.not", "permit.too", "permit.not", "permit.never"];
    let batch = batch.iter().enumerate().map(|(n, to)| message(to, &n.to_string(), n.to_string())).collect();
    let results = nats.publish(batch).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "the answer was not waited for");
    assert_eq!(kinds(&results), [None, RETRYABLE, None, RETRYABLE, RETRYABLE]);
    assert!(results[1].as_ref().unwrap_err().to_string().contains("not permitted to publish to \"permit.not\""));
    assert_eq!(bodies(&read(&as_all, "permit")), ["0", "2"]);
    // Nor whether there is a stream, so that nobody says that there is none.
    let results = nats.publish(vec![message("nowhere", "5", "5")]).await;
    assert_eq!(kinds(&results), [RETRYABLE]);
    let said = results[0].as_ref().unwrap_err().to_string();
    assert!(said.contains("this user may not ask which; permit it to publish to $JS.API.STREAM.NAMES"), "{said}");
    drop(server);
}

#[tokio::test]
async fn of_a_batch_that_is_out_of_time_what_was_stored_is_noted() {
    add_stream(&url(), "partial", "");
    add_stream(&url(), "partial-mute", r#", "no_ack": true"#);
    let nats = Nats::connect(NatsOptions::new(url()).max_in_flight(2)).await.unwrap();
    let to = |n: usize| if n == 3 { "partial-mute.x" } else { "partial.x" };
    let batch = (0..6).map(|n| message(to(n), &format!("m-{n}"), n.to_string())).collect();
    let results = Results::new(6, tokio::time::Instant::now() + Duration::from_secs(3));
    let in_time = timeout_at(results.until(), nats.publish_into(batch, &results)).await;
    assert!(in_time.is_err(), "the time of the batch was not over");
    let noted: Vec<_> = results.into_noted().into_iter().map(|result| result.map(|result| result.is_ok())).collect();
    assert_eq!(noted, [Some(true), Some(true), Some(true), None, None, None]);
    assert_eq!(bodies(&read(&url(), "partial")), numbers(0..3));
}

/// Keeps counters by their names.
#[cfg(feature = "metrics")]
#[derive(Default)]
struct Counted(std::sync::Mutex<std::collections::BTreeMap<String, std::sync::Arc<std::sync::atomic::AtomicU64>>>);

#[cfg(feature = "metrics")]
impl metrics::Recorder for Counted {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        metrics::Counter::from_arc(std::sync::Arc::clone(self.0.lock().unwrap().entry(key.to_string()).or_default()))
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::noop()
    }

    fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}

#[cfg(feature = "metrics")]
#[tokio::test]
async fn repeats_that_the_stream_drops_are_counted() {
    add_stream(&url(), "counted", "");
    let nats = connect(&url()).await;
    let counted = Counted::default();
    let _listening = metrics::set_default_local_recorder(&counted);
    let told = || {
        let all = counted.0.lock().unwrap();
        all.iter().map(|(name, count)| (name.clone(), count.load(std::sync::atomic::Ordering::SeqCst))).next()
    };
    assert_eq!(kinds(&nats.publish(messages("counted.x", "m", 7)).await), [None; 7]);
    assert_eq!(told(), None);
    assert_eq!(kinds(&nats.publish(messages("counted.x", "m", 10)).await), [None; 10]);
    let (name, count) = told().unwrap();
    assert!(name.contains("posthaste_repeats_dropped_total") && name.contains("nats"), "{name}");
    assert_eq!(count, 7);
}

#[tokio::test]
async fn a_server_that_goes_and_comes_back_gets_everything_and_no_attempt_is_used_up() {
    let (server, url) = Started::new("nats", &[]);
    add_stream(&url, "back", "");
    let store = MemoryStore::new();
    let nats = connect(&url).await;
    let listener = nats.subject("back.{event_type}").retry(RetryPolicy::fixed([]));
    let outbox = Outbox::builder(store.clone()).listen("Test", "*", listener).start().await.unwrap();
    write(&outbox, 0..100).await;
    until(&store, "the first are delivered", |counts| counts.done == 100).await;

    server.stop();
    write(&outbox, 100..300).await;
    while nats.breaker().state() == BreakerState::Closed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(nats.check().await.is_err());
    server.start();
    until(&store, "all are delivered", |counts| counts.done == 300).await;
    assert_eq!(nats.breaker().state(), BreakerState::Closed);
    assert!(rows(&store).await.iter().all(|row| row.state.attempts == 0), "an attempt was used up");
    let messages = read(&url, "back");
    assert_eq!(messages.len(), 300);
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_lost_acknowledgement_is_an_outage_and_the_repeat_is_stored_once() {
    add_stream(&url(), "lost", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let options = NatsOptions::new(format!("nats://{}", proxy.addr())).ack_timeout(Duration::from_secs(30));
    let nats = Nats::connect(options).await.unwrap();
    proxy.lose_reply_to(b"PUB lost.x", 1);
    let begun = Instant::now();
    let results = nats.publish(messages("lost.x", "m", 20)).await;
    assert_eq!(kinds(&results), [OUTAGE; 20]);
    assert!(begun.elapsed() < Duration::from_secs(20), "a lost connection is known before the time is over");
    assert!(!read(&url(), "lost").is_empty(), "it was stored");
    assert_eq!(kinds(&nats.publish(messages("lost.x", "m", 20)).await), [None; 20]);
    assert_eq!(bodies(&read(&url(), "lost")), numbers(0..20));
}

#[tokio::test]
async fn a_connection_that_was_lost_does_not_come_back_by_itself() {
    add_stream(&url(), "back", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let nats = connect(&format!("nats://{}", proxy.addr())).await;
    assert_eq!(kinds(&nats.publish(messages("back.x", "m", 5)).await), [None; 5]);
    let before = proxy.stats().total;
    for round in 1..=5 {
        // It could come back at once, and would be one connection more.
        assert!(proxy.cut() > 0);
        let given_up_at = Instant::now() + Duration::from_secs(20);
        while kinds(&nats.publish(messages("back.x", "m", 10)).await) != [None; 10] {
            assert!(Instant::now() < given_up_at, "there is another connection");
        }
        assert_eq!(proxy.stats().total, before + round);
    }
    assert_eq!(bodies(&read(&url(), "back")), numbers(0..10));
}

#[tokio::test]
async fn a_pulled_cable_is_an_outage_and_another_connection_follows() {
    add_stream(&url(), "cable", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let options = NatsOptions::new(format!("nats://{}", proxy.addr())).ack_timeout(Duration::from_millis(1500));
    let nats = Nats::connect(options).await.unwrap();
    assert_eq!(kinds(&nats.publish(messages("cable.x", "m", 5)).await), [None; 5]);
    proxy.black_hole(true);
    assert_eq!(kinds(&nats.publish(messages("cable.x", "m", 10)).await), [OUTAGE; 10]);
    proxy.black_hole(false);
    assert_eq!(kinds(&nats.publish(messages("cable.x", "m", 10)).await), [None; 10]);
    assert_eq!(bodies(&read(&url(), "cable")), numbers(0..10));
}

#[tokio::test]
async fn over_tls_both_have_to_prove_who_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let [server, client, stranger] = ["server", "client", "stranger"].map(|name| certificate(directory.path(), name));
    let [server, client, stranger] =
        [&server, &client, &stranger].map(|(certificate, key)| (certificate.to_str().unwrap(), key.to_str().unwrap()));
    let demands = ["--tlsverify", "--tlscacert", client.0, "--tlscert", server.0, "--tlskey", server.1];
    let (_server, url) = Started::new("nats", &demands);
    let url = url.replace("nats://", "tls://");
    let reader = format!("{url}#{},{},{}", server.0, client.0, client.1);
    add_stream(&reader, "secure", "");

    let options = NatsOptions::new(&url).connect_timeout(Duration::from_secs(2));
    // Whoever is not refused at once is waited for.
    let shown = options.clone().client_certificate(client.0, client.1).connect_timeout(Duration::from_secs(20));
    let nats = Nats::connect(shown.clone().ca_file(server.0)).await.unwrap();
    assert_eq!(kinds(&nats.publish(messages("secure.x", "m", 100)).await), [None; 100]);
    assert_eq!(bodies(&read(&reader, "secure")), numbers(0..100));

    let (outage, permanent) = (PublishErrorKind::Outage, PublishErrorKind::Permanent);
    for (options, kind, said) in [
        (shown.clone(), outage, "invalid peer certificate"),
        (shown.clone().ca_file(stranger.0), outage, "invalid peer certificate"),
        (options.clone().ca_file(server.0), outage, ""),
        (options.clone().ca_file(server.0).client_certificate(stranger.0, stranger.1), outage, ""),
        (options.ca_file(server.0).client_certificate(client.0, client.0), permanent, "private key"),
        (shown.ca_file("/nowhere.pem"), permanent, "/nowhere.pem"),
    ] {
        let error = Nats::connect(options.clone()).await.expect_err(&format!("{options:?}"));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[tokio::test]
async fn behind_a_part_that_had_no_answer_no_other_is_sent() {
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let options = NatsOptions::new(format!("nats://{}", proxy.addr())).max_in_flight(1);
    let nats = Nats::connect(options.ack_timeout(Duration::from_millis(500))).await.unwrap();
    proxy.black_hole(true);
    let begun = Instant::now();
    // Behind each it would be asked for two seconds whether the server is there.
    assert_eq!(kinds(&nats.publish(messages("parts.x", "m", 20)).await), [OUTAGE; 20]);
    assert!(begun.elapsed() < Duration::from_secs(12), "waited for each: {:?}", begun.elapsed());
}

#[tokio::test]
async fn who_waited_for_a_connection_in_vain_does_not_try_it_once_more() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = NatsOptions::new(silent.local_addr().unwrap().to_string()).lazy(true);
    let nats = Nats::connect(options.connect_timeout(Duration::from_secs(1))).await.unwrap();
    let begun = Instant::now();
    let batches = (0..15).map(|_| nats.publish(messages("x", "m", 2)));
    for results in futures_util::future::join_all(batches).await {
        assert_eq!(kinds(&results), [OUTAGE; 2]);
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "one after the other: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_is_silent_for_longer_than_a_listener_may_take_uses_up_no_attempt() {
    add_stream(&url(), "limit", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    let options = NatsOptions::new(format!("nats://{}", proxy.addr())).ack_timeout(Duration::from_secs(1));
    let nats = Nats::connect(options).await.unwrap();
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone())
        .listen("Test", "*", nats.subject("limit.x").retry(RetryPolicy::fixed([])))
        .options(Options { listener_time_limit: Duration::from_millis(300), ..Options::default() })
        .start()
        .await
        .unwrap();
    proxy.black_hole(true);
    write(&outbox, 0..20).await;
    let open = async {
        while nats.breaker().state() == BreakerState::Closed {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), open).await.expect("the breaker opens");
    proxy.black_hole(false);
    until(&store, "all are delivered", |counts| counts.done == 20).await;
    assert!(rows(&store).await.iter().all(|row| row.state.attempts == 0), "an attempt was used up");
    outbox.shutdown().await;
}

#[tokio::test]
async fn closing_waits_for_what_is_on_its_way() {
    add_stream(&url(), "closing", "");
    let proxy = Proxy::start(url().trim_start_matches("nats://").parse().unwrap()).await.unwrap();
    // Few at once, so that some are not sent yet.
    let options = NatsOptions::new(format!("nats://{}", proxy.addr())).max_in_flight(5);
    let nats = Nats::connect(options).await.unwrap();
    proxy.delay(Some(Duration::from_millis(20)));
    let mut publishing = std::pin::pin!(nats.publish(messages("closing.x", "m", 20)));
    assert!(publishing.as_mut().now_or_never().is_none());
    let (results, ()) = futures_util::future::join(publishing, nats.close()).await;
    assert_eq!(kinds(&results), [None; 20]);
    assert_eq!(kinds(&nats.publish(messages("closing.x", "late", 1)).await), [OUTAGE]);
    assert_eq!(bodies(&read(&url(), "closing")), numbers(0..20));
}

#[tokio::test]
async fn a_certificate_of_ours_is_not_left_unused() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(directory.path(), "us");
    let error = Nats::connect(NatsOptions::new(url()).client_certificate(certificate, key)).await.unwrap_err();
    assert!(error.to_string().to_lowercase().contains("tls"), "{error}");
}
