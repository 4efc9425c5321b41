use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use posthaste_core::{Event, EventBuilder, MemoryStore, Options, Outbox, RetryPolicy};
use posthaste_publishers::mqtt::{Mqtt, MqttOptions};
use posthaste_publishers::{BreakerState, PublishErrorKind, Publisher, Results};
use posthaste_torture::proxy::Proxy;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout_at;

use crate::backlog::{self, EVENTS};
use crate::formats::{self, CARRIER, Carrier, Once, Seen, Trace};
use crate::started::{
    Started, json_of_bytes, kinds, message, messages, rows, run, run_for_bytes, text_of, until, variable, write,
};

const OUTAGE: Option<PublishErrorKind> = Some(PublishErrorKind::Outage);
const RETRYABLE: Option<PublishErrorKind> = Some(PublishErrorKind::Retryable);
const PERMANENT: Option<PublishErrorKind> = Some(PublishErrorKind::Permanent);

fn url() -> String {
    variable("POSTHASTE_TEST_MOSQUITTO_URL", "mosquitto")
}

/// A session of `mosquitto_sub`, which the broker keeps messages for.
struct Reader {
    arguments: Vec<String>,
}

impl Reader {
    fn new(url: &str, filter: &str, more: &[&str]) -> Self {
        let port = url.rsplit_once(':').unwrap().1;
        // A session of an earlier run may have messages left.
        let id = format!("reader-{}-{}", std::process::id(), filter.replace(['/', '#'], "-"));
        let arguments =
            ["-h", "127.0.0.1", "-p", port, "-V", "5", "-i", &id, "-c", "-x", "600", "-q", "1", "-t", filter];
        let reader = Self { arguments: arguments.iter().chain(more).map(|&argument| argument.to_owned()).collect() };
        reader.run(&["-E"]);
        reader
    }

    fn run(&self, more: &[&str]) -> String {
        run("mosquitto_sub", self.arguments.iter().map(String::as_str).chain(more.iter().copied()))
    }

    /// So many lines of that format, as the broker had kept the messages. There may be any bytes in them.
    fn read_as(&self, format: &str, how_many: usize) -> Vec<u8> {
        let arguments = self.arguments.iter().map(String::as_str);
        run_for_bytes("mosquitto_sub", arguments.chain(["-C", &how_many.to_string(), "-W", "20", "-F", format]))
    }

    /// So many messages, as the broker had kept them.
    fn read(&self, how_many: usize) -> Vec<Value> {
        let printed = self.run(&["-C", &how_many.to_string(), "-W", "60", "-F", "%J"]);
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn bodies(read: &[Value]) -> Vec<u64> {
    read.iter().map(|message| message["payload"].as_u64().unwrap()).collect()
}

async fn connect(url: &str) -> Mqtt {
    Mqtt::connect(MqttOptions::new(url)).await.unwrap()
}

#[tokio::test]
async fn events_arrive_with_their_properties() {
    let reader = Reader::new(&url(), "arrive/#", &[]);
    let store = MemoryStore::new();
    let mqtt = connect(&url()).await;
    let listener = mqtt.topic("arrive/{aggregate_type}/{event_type}");
    let outbox = Outbox::builder(store.clone()).listen("Order", "*", listener).start().await.unwrap();
    let event = |n: usize| {
        let event = Event::builder("Placed").id(format!("id-{n}")).aggregate("Order", 42).tenant_id("acme");
        event.header("trace", "äöü €").json_text(format!("{{\"n\":{n}}}"))
    };
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((0..500).map(event)).await.unwrap();
    tx.commit().await.unwrap();
    until(&store, "all are delivered", |counts| counts.done == 500).await;

    let messages = reader.read(500);
    assert_eq!(messages.len(), 500);
    let seventh = messages.iter().find(|message| message["payload"]["n"] == 7).unwrap();
    assert_eq!(
        (&seventh["topic"], &seventh["qos"], &seventh["retain"]),
        (&"arrive/Order/Placed".into(), &1.into(), &0.into())
    );
    assert_eq!(seventh["properties"]["content-type"], "application/json");
    let properties = &seventh["properties"]["user-properties"];
    for (name, value) in [
        ("event-id", "id-7"),
        ("event-type", "Placed"),
        ("aggregate-type", "Order"),
        ("aggregate-id", "42"),
        ("tenant-id", "acme"),
        ("trace", "äöü €"),
    ] {
        assert_eq!(properties[name], value, "{seventh}");
    }
    outbox.shutdown().await;
    mqtt.close().await;
    assert_eq!(kinds(&mqtt.publish(vec![message("arrive/x", "late", "1")]).await), [OUTAGE]);
}

/// A message as `mosquitto_sub` prints it, where a user property that came twice is there twice.
#[derive(serde::Deserialize)]
struct Printed {
    topic: String,
    properties: Properties,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Properties {
    content_type: Option<String>,
    user_properties: Once,
}

#[tokio::test]
async fn every_format_is_read_back() {
    let reader = Reader::new(&url(), "formats/#", &[]);
    let mqtt = connect(&url()).await;
    let carrier = Carrier { prefix: "", trace: Trace::Attribute, ..CARRIER };
    let read = async |how_many| {
        let printed = reader.read_as("%x %j", how_many);
        let seen = |line: &[u8]| {
            // The body in hexadecimal digits, and everything as JSON, where the body may be cut off.
            let space = line.iter().position(|byte| *byte == b' ').unwrap();
            let digits = std::str::from_utf8(&line[..space]).unwrap();
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            let Printed { topic: to, properties } = json_of_bytes(&line[space + 1..]);
            let user = properties.user_properties.0.into_iter();
            let headers = user.map(|(name, value)| (text_of(&name), text_of(&value))).collect();
            let body = (0..digits.len()).step_by(2).map(byte).collect();
            Seen { to, key: None, content_type: properties.content_type, headers, body }
        };
        printed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(seen).collect()
    };
    formats::are_read_back(carrier, "formats/OrderPlaced", || mqtt.topic("formats/{event_type}"), read).await;
}

#[tokio::test]
async fn a_backlog_goes_in_batches() {
    // By itself it takes 20 messages before it has acknowledged the first of them.
    let (_server, url) = Started::new("mosquitto", &["allow_anonymous true", "max_inflight_messages 1000"]);
    let reader = Reader::new(&url, "backlog", &[]);
    let proxy = Proxy::start(url.trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let mqtt = connect(&format!("mqtt://{}", proxy.addr())).await;
    backlog::delivered(EVENTS, mqtt.topic("backlog"), Some(&proxy)).await.is_in_batches();
    assert_eq!(reader.read(EVENTS).len(), EVENTS);
}

#[tokio::test]
async fn a_batch_arrives_in_its_order_with_either_quality_of_service() {
    for (exactly_once, quality) in [(false, ", q1, "), (true, ", q2, ")] {
        let (server, url) = Started::new("mosquitto", &["allow_anonymous true", "log_type all"]);
        let reader = Reader::new(&url, "order/x", &[]);
        let mqtt = Mqtt::connect(MqttOptions::new(&url).exactly_once(exactly_once)).await.unwrap();
        assert_eq!(kinds(&mqtt.publish(messages("order/x", "m", 300)).await), [None; 300]);
        assert_eq!(bodies(&reader.read(300)), (0..300).collect::<Vec<_>>());
        let log = std::fs::read_to_string(server.directory.path().join("server/log")).unwrap();
        let received = log.lines().filter(|line| line.contains("Received PUBLISH from") && line.contains(quality));
        assert_eq!(received.count(), 300);
    }
}

#[tokio::test]
async fn batches_share_what_the_broker_takes_at_once_and_one_that_is_given_up_keeps_no_room() {
    for most in ["max_inflight_messages 1", "max_inflight_messages 20"] {
        let (_server, url) = Started::new("mosquitto", &["allow_anonymous true", most]);
        let reader = Reader::new(&url, "shared/#", &[]);
        let mqtt = connect(&url).await;
        let batch = |topic: String| mqtt.publish(messages(&topic, &topic, 50));
        assert!(batch("given-up".to_owned()).now_or_never().is_none());
        let batches = (0..4).map(|number| batch(format!("shared/{number}")));
        for results in futures_util::future::join_all(batches).await {
            assert_eq!(kinds(&results), [None; 50], "{most}");
        }
        let read = reader.read(200);
        for number in 0..4 {
            let topic = format!("shared/{number}");
            let of_batch: Vec<_> = read.iter().filter(|message| message["topic"] == topic).cloned().collect();
            assert_eq!(bodies(&of_batch), (0..50).collect::<Vec<_>>(), "{most}");
        }
    }
}

/// What is answered all the same, before anybody looks, is stored.
#[tokio::test]
async fn who_gives_no_time_for_an_answer_does_not_wait() {
    let mqtt = Mqtt::connect(MqttOptions::new(url()).ack_timeout(Duration::ZERO)).await.unwrap();
    let publishing = mqtt.publish(messages("no-time", "m", 30));
    let results = tokio::time::timeout(Duration::from_secs(20), publishing).await.expect("it ends");
    assert_eq!(results.len(), 30);
    assert!(kinds(&results).iter().all(|kind| [None, OUTAGE].contains(kind)), "{results:?}");
}

#[tokio::test]
async fn a_retained_message_is_there_for_who_comes_later() {
    let mqtt = Mqtt::connect(MqttOptions::new(url()).retain(true)).await.unwrap();
    let topic = format!("retained/{}", std::process::id());
    assert_eq!(kinds(&mqtt.publish(messages(&topic, "m", 3)).await), [None; 3]);
    let late = Reader { arguments: Reader::new(&url(), "other", &["-t", &topic]).arguments };
    assert_eq!(bodies(&late.read(1)), [2]);
}

#[tokio::test]
async fn without_a_subscriber_it_is_a_success_or_not() {
    let (known, unknown) = ("subscribed/x", "forgotten/x");
    let reader = Reader::new(&url(), known, &[]);
    let batch = || vec![message(known, "1", "1"), message(unknown, "2", "2")];
    assert_eq!(kinds(&connect(&url()).await.publish(batch()).await), [None, None]);
    let strict = Mqtt::connect(MqttOptions::new(url()).require_subscriber(true)).await.unwrap();
    let results = strict.publish(batch()).await;
    assert_eq!(kinds(&results), [None, RETRYABLE]);
    assert!(results[1].as_ref().unwrap_err().to_string().contains("nobody has subscribed"), "{results:?}");
    assert_eq!(bodies(&reader.read(2)), [1, 1]);
}

#[tokio::test]
async fn what_cannot_be_carried_is_permanent_and_spares_the_others() {
    let (_server, url) = Started::new("mosquitto", &["allow_anonymous true", "max_packet_size 2000"]);
    let reader = Reader::new(&url, "large/#", &[]);
    let mqtt = connect(&url).await;
    let mut broken = message("large/x", "5", "5");
    broken.headers.push("x", "two\nlines");
    let batch = vec![
        message("large/x", "1", "1"),
        message("large/x", "2", vec![b'2'; 3000]),
        message("large/+", "3", "3"),
        broken,
        message("large/x", "4", "4"),
    ];
    assert_eq!(kinds(&mqtt.publish(batch).await), [None, PERMANENT, PERMANENT, PERMANENT, None]);
    assert_eq!(bodies(&reader.read(2)), [1, 4]);
}

#[tokio::test]
async fn an_event_does_not_choose_a_topic_of_the_broker() {
    let (_server, url) = Started::new("mosquitto", &[]);
    let reader = Reader::new(&url, "$shop/#", &[]);
    let (store, mqtt) = (MemoryStore::new(), connect(&url).await);
    let outbox = Outbox::builder(store.clone())
        .listen("Chosen", "*", mqtt.topic("{topic}"))
        .listen("Meant", "*", mqtt.topic("$shop/{topic}"))
        .start()
        .await
        .unwrap();
    let event = |aggregate: &str, topic: &str| {
        let event = Event::builder("E").id(format!("{aggregate}-{topic}")).aggregate(aggregate, 1).topic(topic);
        event.json_text("1").build().unwrap()
    };
    let mut tx = outbox.begin().await.unwrap();
    let events = [event("Chosen", "$shop/x"), event("Chosen", "$CONTROL/dynamic-security/v1"), event("Meant", "x")];
    tx.write_all(events).await.unwrap();
    tx.commit().await.unwrap();
    until(&store, "all are settled", |counts| counts.dead == 2 && counts.done == 1).await;
    assert_eq!(bodies(&reader.read(1)), [1]);
    let errors: Vec<_> = rows(&store).await.into_iter().filter_map(|row| row.state.last_error).collect();
    assert!(errors.len() == 2 && errors.iter().all(|error| error.contains("begin the template with it")), "{errors:?}");
    outbox.shutdown().await;
}

/// A broker with the user `all`, who may do everything, and `some`, who may write to `permit/#`. The password of both is `secret`.
fn with_users() -> (Started, String) {
    let lines = ["allow_anonymous false", "password_file {dir}/passwords", "acl_file {dir}/permissions"];
    let permissions = "user all\ntopic readwrite #\nuser some\ntopic write permit/#\n";
    let directory = tempfile::tempdir().unwrap();
    let passwords = directory.path().join("passwords");
    let path = passwords.to_str().unwrap();
    run("mosquitto_passwd", ["-b", "-c", path, "all", "secret"]);
    run("mosquitto_passwd", ["-b", path, "some", "secret"]);
    let passwords = std::fs::read_to_string(passwords).unwrap();
    let files = [("passwords", passwords.as_str()), ("permissions", permissions)];
    Started::with_files("mosquitto", &lines, &files)
}

#[tokio::test]
async fn a_stranger_is_refused_and_a_topic_that_is_not_permitted_is_retryable() {
    let (_server, url) = with_users();
    for options in [MqttOptions::new(&url), MqttOptions::new(&url).user_and_password("all", "wrong")] {
        let error = Mqtt::connect(options.clone()).await.unwrap_err();
        assert_eq!(error.kind(), PublishErrorKind::Permanent);
        // Once events are on their way it is an outage: somebody may change the password back.
        let lazy = Mqtt::connect(options.lazy(true)).await.unwrap();
        assert_eq!(kinds(&lazy.publish(vec![message("permit/a", "0", "0")]).await), [OUTAGE]);
        assert_eq!(lazy.check().await.unwrap_err().kind(), PublishErrorKind::Permanent);
        assert!(error.to_string().contains("NotAuthorized") && !error.to_string().contains("wrong"), "{error}");
    }
    let reader = Reader::new(&url, "permit/#", &["-u", "all", "-P", "secret"]);
    let mqtt = Mqtt::connect(MqttOptions::new(&url).user_and_password("some", "secret")).await.unwrap();
    assert_eq!(kinds(&mqtt.publish(vec![message("permit/a", "1", "1")]).await), [None]);
    // This broker ends the connection behind a refusal, and what is under way then can take the refusal with it: it is alone.
    let results = mqtt.publish(vec![message("other/b", "2", "2")]).await;
    assert_eq!(kinds(&results), [RETRYABLE], "{results:?}");
    assert!(results[0].as_ref().unwrap_err().to_string().contains("NotAuthorized"), "{results:?}");
    let mut results = mqtt.publish(vec![message("permit/a", "3", "3")]).await;
    if results[0].is_err() {
        assert_eq!(kinds(&results), [OUTAGE]);
        results = mqtt.publish(vec![message("permit/a", "3", "3")]).await;
    }
    assert_eq!(kinds(&results), [None], "{results:?}");
    assert_eq!(bodies(&reader.read(2)), [1, 3]);
}

#[tokio::test]
async fn a_broker_that_is_away_is_said_at_the_start() {
    let error = Mqtt::connect(MqttOptions::new("mqtt://127.0.0.1:1")).await.unwrap_err();
    assert_eq!(error.kind(), PublishErrorKind::Outage);
    assert!(error.to_string().contains("cannot connect to mqtt://127.0.0.1:1"), "{error}");
    let lazy = Mqtt::connect(MqttOptions::new("mqtt://127.0.0.1:1").lazy(true)).await.unwrap();
    assert_eq!(kinds(&lazy.publish(messages("x", "m", 2)).await), [OUTAGE, OUTAGE]);

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("mqtt://{}", silent.local_addr().unwrap());
    let begun = Instant::now();
    let options = MqttOptions::new(address).connect_timeout(Duration::from_millis(200));
    assert_eq!(Mqtt::connect(options).await.unwrap_err().kind(), PublishErrorKind::Outage);
    // Less than it would be without this option.
    assert!(begun.elapsed() < Duration::from_millis(4800), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_broker_that_goes_and_comes_back_gets_everything_and_no_attempt_is_used_up() {
    let (server, url) = Started::new("mosquitto", &[]);
    let proxy = Proxy::start(url.trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let reader = Reader::new(&url, "back", &[]);
    let store = MemoryStore::new();
    let mqtt = connect(&format!("mqtt://{}", proxy.addr())).await;
    let listener = mqtt.topic("back").retry(RetryPolicy::fixed([]));
    let outbox = Outbox::builder(store.clone()).listen("Test", "*", listener).start().await.unwrap();
    write(&outbox, 0..100).await;
    until(&store, "the first are delivered", |counts| counts.done == 100).await;
    assert_eq!(reader.read(100).len(), 100);

    server.stop();
    write(&outbox, 100..300).await;
    while mqtt.breaker().state() == BreakerState::Closed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(mqtt.check().await.is_err());
    // What the broker remembers of the reader's session is its own affair, and some of the first may be open there. So this is another
    // one, of the same topic, and there before the events are.
    proxy.refuse(true);
    server.start();
    let reader = Reader::new(&url, "back/#", &[]);
    proxy.refuse(false);
    until(&store, "all are delivered", |counts| counts.done == 300).await;
    assert_eq!(mqtt.breaker().state(), BreakerState::Closed);
    assert!(rows(&store).await.iter().all(|row| row.state.attempts == 0), "an attempt was used up");
    let read = reader.read(200);
    let ids: std::collections::BTreeSet<_> = read
        .iter()
        .map(|message| message["properties"]["user-properties"]["event-id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids, (100..300).map(|n| format!("event-{n}")).collect());
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_lost_acknowledgement_is_an_outage_and_repeats_are_told_by_the_event_id() {
    let reader = Reader::new(&url(), "lost/x", &[]);
    let proxy = Proxy::start(url().trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let mqtt = connect(&format!("mqtt://{}", proxy.addr())).await;
    proxy.lose_reply_to(b"lost/x", 1);
    assert_eq!(kinds(&mqtt.publish(messages("lost/x", "m", 1)).await), [OUTAGE]);
    assert_eq!(kinds(&mqtt.publish(messages("lost/x", "m", 1)).await), [None]);
    let read = reader.read(2);
    assert!(read.iter().all(|message| message["properties"]["user-properties"]["event-id"] == "m-0"), "{read:?}");
}

#[tokio::test]
async fn a_pulled_cable_is_an_outage_and_another_connection_follows() {
    let proxy = Proxy::start(url().trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let options = MqttOptions::new(format!("mqtt://{}", proxy.addr())).ack_timeout(Duration::from_millis(1500));
    let mqtt = Mqtt::connect(options).await.unwrap();
    assert_eq!(kinds(&mqtt.publish(messages("cable", "m", 5)).await), [None; 5]);
    proxy.black_hole(true);
    let begun = Instant::now();
    assert_eq!(kinds(&mqtt.publish(messages("cable", "m", 200)).await), [OUTAGE; 200]);
    assert!(begun.elapsed() < Duration::from_secs(15), "waited for each: {:?}", begun.elapsed());
    proxy.black_hole(false);
    assert_eq!(kinds(&mqtt.publish(messages("cable", "m", 200)).await), [None; 200]);
}

#[tokio::test]
async fn a_body_that_does_not_get_through_in_time_uses_up_its_own_attempts_while_others_do() {
    let reader = Reader::new(&url(), "slow/x", &[]);
    let proxy = Proxy::start(url().trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let options = MqttOptions::new(format!("mqtt://{}", proxy.addr())).ack_timeout(Duration::from_secs(1));
    let mqtt = Mqtt::connect(options).await.unwrap();
    // About three megabytes in a second.
    proxy.delay(Some(Duration::from_millis(20)));
    let large = || message("slow/x", "large", vec![b'1'; 8 << 20]);
    let results = mqtt.publish(vec![message("slow/x", "1", "1"), large(), message("slow/x", "2", "2")]).await;
    assert_eq!(kinds(&results)[1..], [OUTAGE; 2], "whose fault it is, is not known: {results:?}");
    let results = mqtt.publish(vec![large(), message("slow/x", "2", "2"), message("slow/x", "3", "3")]).await;
    assert_eq!(kinds(&results), [RETRYABLE, None, None], "{results:?}");
    assert!(results[0].as_ref().unwrap_err().to_string().contains("raise ack_timeout"), "{results:?}");
    assert_eq!(kinds(&mqtt.publish(vec![large()]).await), [OUTAGE], "alone it shows nothing");
    let results = mqtt.publish(vec![large(), message("slow/x", "4", "4")]).await;
    assert_eq!(kinds(&results), [RETRYABLE, None], "{results:?}");

    proxy.black_hole(true);
    assert_eq!(kinds(&mqtt.publish(vec![message("slow/x", "5", "5"), large()]).await), [OUTAGE; 2]);
    proxy.black_hole(false);
    assert_eq!(bodies(&reader.read(4)), [1, 2, 3, 4], "each once");
}

/// A broker that takes every connection, and ends it at the first message for that reason. Counts connections.
async fn ending_for(reason: u8) -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, connections) = (format!("mqtt://{}", listener.local_addr().unwrap()), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut bytes = [0; 4096];
            // CONNECT, CONNACK, some PUBLISH, DISCONNECT.
            for answer in [&[0x20, 3, 0, 0, 0][..], &[0xe0, 2, reason, 0]] {
                if client.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                    client.write_all(answer).await.unwrap();
                }
            }
            while client.read(&mut bytes).await.is_ok_and(|read| read > 0) {}
        }
    });
    (url, connections)
}

#[tokio::test]
async fn the_reason_why_a_broker_ends_the_connection_is_read() {
    for (reason, name, expected, connections) in [
        // Nobody's fault: they go together again, over one connection.
        (0x8b, "ServerShuttingDown", OUTAGE, 1),
        (0x97, "QuotaExceeded", OUTAGE, 1),
        (0x8e, "SessionTakenOver", OUTAGE, 1),
        // That of one of them: each goes alone, and is judged at once.
        (0x87, "NotAuthorized", RETRYABLE, 3),
        (0x95, "PacketTooLarge", PERMANENT, 3),
        (0x90, "TopicNameInvalid", PERMANENT, 3),
        // Of one of them, perhaps: alone, twice.
        (0x83, "ImplementationSpecificError", RETRYABLE, 6),
    ] {
        let (url, counted) = ending_for(reason).await;
        let mqtt = Mqtt::connect(MqttOptions::new(url).lazy(true)).await.unwrap();
        let results = mqtt.publish(messages("ended", "m", 3)).await;
        assert_eq!((kinds(&results), counted.load(Ordering::SeqCst)), (vec![OUTAGE; 3], 1), "{name}: {results:?}");
        let results = mqtt.publish(messages("ended", "m", 3)).await;
        assert_eq!(kinds(&results), [expected; 3], "{name}: {results:?}");
        assert_eq!(counted.load(Ordering::SeqCst), 1 + connections, "{name}");
        assert!(results[0].as_ref().unwrap_err().to_string().contains(name), "{results:?}");
    }
}

#[tokio::test]
async fn a_broker_that_ends_the_connection_over_the_quality_of_service_says_so() {
    let (_server, url) = Started::new("mosquitto", &["allow_anonymous true", "max_qos 0"]);
    let mqtt = connect(&url).await;
    assert_eq!(kinds(&mqtt.publish(messages("quality", "m", 2)).await), [OUTAGE; 2]);
    let results = mqtt.publish(messages("quality", "m", 2)).await;
    assert_eq!(kinds(&results), [RETRYABLE; 2], "{results:?}");
    let said = results[0].as_ref().unwrap_err().to_string();
    assert!(said.contains("ends the connection over a message") && said.contains("QoSNotSupported"), "{said}");
}

#[tokio::test]
async fn of_a_batch_that_is_out_of_time_what_was_acknowledged_is_noted() {
    let reader = Reader::new(&url(), "partial/x", &[]);
    let proxy = Proxy::start(url().trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let mqtt = connect(&format!("mqtt://{}", proxy.addr())).await;
    // In the middle of the batch the cable is pulled.
    let body =
        |n: usize| message("partial/x", &format!("m-{n}"), if n < 10 { "1".repeat(10) } else { "1".repeat(200_000) });
    proxy.delay(Some(Duration::from_millis(100)));
    let results = Results::new(30, tokio::time::Instant::now() + Duration::from_secs(3));
    let publishing = timeout_at(results.until(), mqtt.publish_into((0..30).map(body).collect(), &results));
    let (in_time, ()) = futures_util::future::join(publishing, async {
        let before = proxy.stats().bytes_down;
        while proxy.stats().bytes_down == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.black_hole(true);
    })
    .await;
    assert!(in_time.is_err(), "the time of the batch was not over");
    let noted = results.into_noted();
    let known = noted.iter().take_while(|result| matches!(result, Some(Ok(())))).count();
    assert!(known > 0 && known < 30, "{known}");
    assert!(noted[known..].iter().all(Option::is_none), "{noted:?}");
    assert!(reader.read(known).len() == known);
}

/// Events of which some are not taken: the others are delivered, these use up their attempts.
async fn some_are_refused(mqtt: Mqtt, event: impl Fn(usize) -> EventBuilder, refused: &[usize], reason: &str) {
    let store = MemoryStore::new();
    let retry = RetryPolicy::fixed([Duration::from_millis(50); 2]);
    let listener = mqtt.topic("{topic}").retry(retry);
    let outbox = Outbox::builder(store.clone()).listen("Test", "*", listener).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((0..200).map(|n| event(n).id(format!("event-{n}")))).await.unwrap();
    tx.commit().await.unwrap();
    let dead = refused.len() as u64;
    until(&store, "all are settled", |counts| counts.done == 200 - dead && counts.dead == dead).await;
    for row in rows(&store).await {
        let is_refused = refused.iter().any(|n| row.id == *format!("event-{n}").as_str());
        assert_eq!(row.state.attempts, if is_refused { 3 } else { 0 }, "{row:?}");
        let error = row.state.last_error.unwrap_or_default();
        assert!(!is_refused || error.contains(reason), "{error}");
    }
    assert_eq!(mqtt.breaker().state(), BreakerState::Closed);
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_message_over_which_the_broker_ends_the_connection_uses_up_its_attempts_and_spares_the_others() {
    for exactly_once in [false, true] {
        let (_server, url) = Started::new("mosquitto", &["allow_anonymous true", "message_size_limit 1000"]);
        let reader = Reader::new(&url, "permit/#", &[]);
        let mqtt = Mqtt::connect(MqttOptions::new(&url).exactly_once(exactly_once)).await.unwrap();
        let body = |n| format!("\"{}\"", "x".repeat(if [70, 71, 199].contains(&n) { 2000 } else { 10 }));
        let event = |n| Event::builder("Sized").aggregate("Test", 1).topic("permit/x").json_text(body(n));
        some_are_refused(mqtt, event, &[70, 71, 199], "ends the connection over a message").await;
        let read = reader.read(197);
        assert!(read.len() == 197 && read.iter().all(|message| message["payload"] == "xxxxxxxxxx"));
    }
}

#[tokio::test]
async fn a_topic_that_is_not_permitted_uses_up_the_attempts_of_its_events_and_no_others() {
    for exactly_once in [false, true] {
        let (_server, url) = with_users();
        let options = MqttOptions::new(&url).user_and_password("some", "secret").exactly_once(exactly_once);
        let mqtt = Mqtt::connect(options).await.unwrap();
        let topic = |n: usize| if n == 42 || n == 150 { "other/x" } else { "permit/x" };
        let event = |n| Event::builder("Sent").aggregate("Test", 1).topic(topic(n)).json_text("1");
        some_are_refused(mqtt, event, &[42, 150], "").await;
    }
}

#[cfg(feature = "mqtt-tls")]
#[tokio::test]
async fn over_tls_both_have_to_prove_who_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let [server, client, stranger] =
        ["server", "client", "stranger"].map(|name| crate::certificate::certificate(directory.path(), name));
    let line = |name: &str, path: &std::path::Path| format!("{name} {}", path.display());
    let lines = [
        "allow_anonymous true".to_owned(),
        "require_certificate true".to_owned(),
        line("cafile", &client.0),
        line("certfile", &server.0),
        line("keyfile", &server.1),
    ];
    let (_server, url) = Started::new("mosquitto", &lines.each_ref().map(String::as_str));
    let files = [&server.0, &client.0, &client.1].map(|path| path.to_str().unwrap());
    let reader = Reader::new(&url, "secure/x", &["--cafile", files[0], "--cert", files[1], "--key", files[2]]);

    let secure = url.replace("mqtt://", "mqtts://");
    let options = MqttOptions::new(&secure).connect_timeout(Duration::from_secs(2));
    // Whoever is not refused at once is waited for.
    let shown = options.clone().client_certificate(&client.0, &client.1).connect_timeout(Duration::from_secs(20));
    let mqtt = Mqtt::connect(shown.clone().ca_file(&server.0)).await.unwrap();
    assert_eq!(kinds(&mqtt.publish(messages("secure/x", "m", 100)).await), [None; 100]);
    assert_eq!(bodies(&reader.read(100)), (0..100).collect::<Vec<_>>());

    for (options, said) in [
        (shown.clone(), "invalid peer certificate"),
        (shown.clone().ca_file(&stranger.0), "invalid peer certificate"),
        (options.clone().ca_file(&server.0), ""),
        (options.clone().ca_file(&server.0).client_certificate(&stranger.0, &stranger.1), ""),
        (MqttOptions::new(&url).connect_timeout(Duration::from_secs(2)), ""),
    ] {
        let error = Mqtt::connect(options.clone()).await.expect_err(&format!("{options:?}"));
        assert_eq!(error.kind(), PublishErrorKind::Outage);
        assert!(error.to_string().contains(said), "{error}");
    }
    let missing = Mqtt::connect(shown.ca_file("/nowhere.pem")).await.unwrap_err();
    assert_eq!(missing.kind(), PublishErrorKind::Permanent);
    assert!(missing.to_string().contains("/nowhere.pem"), "{missing}");
}

#[cfg(not(feature = "mqtt-tls"))]
#[tokio::test]
async fn without_tls_an_address_with_it_is_refused() {
    let error = Mqtt::connect(MqttOptions::new("mqtts://127.0.0.1:1")).await.unwrap_err();
    assert!(error.to_string().contains("mqtt-tls"), "{error}");
}

#[tokio::test]
async fn who_waited_for_a_connection_in_vain_does_not_try_it_once_more() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = MqttOptions::new(format!("mqtt://{}", silent.local_addr().unwrap())).lazy(true);
    let mqtt = Mqtt::connect(options.connect_timeout(Duration::from_secs(1))).await.unwrap();
    let begun = Instant::now();
    let batches = (0..15).map(|_| mqtt.publish(messages("x", "m", 2)));
    for results in futures_util::future::join_all(batches).await {
        assert_eq!(kinds(&results), [OUTAGE; 2]);
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "one after the other: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_broker_that_is_silent_for_longer_than_a_listener_may_take_uses_up_no_attempt() {
    let proxy = Proxy::start(url().trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let options = MqttOptions::new(format!("mqtt://{}", proxy.addr())).ack_timeout(Duration::from_secs(1));
    let mqtt = Mqtt::connect(options).await.unwrap();
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone())
        .listen("Test", "*", mqtt.topic("limit").retry(RetryPolicy::fixed([])))
        .options(Options { listener_time_limit: Duration::from_millis(300), ..Options::default() })
        .start()
        .await
        .unwrap();
    proxy.black_hole(true);
    write(&outbox, 0..20).await;
    let open = async {
        while mqtt.breaker().state() == BreakerState::Closed {
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
    let proxy = Proxy::start(url().trim_start_matches("mqtt://").parse().unwrap()).await.unwrap();
    let mqtt = connect(&format!("mqtt://{}", proxy.addr())).await;
    proxy.delay(Some(Duration::from_millis(50)));
    let mut publishing = std::pin::pin!(mqtt.publish(messages("closing", "m", 200)));
    assert!(publishing.as_mut().now_or_never().is_none());
    let (results, ()) = futures_util::future::join(publishing, mqtt.close()).await;
    assert_eq!(kinds(&results), [None; 200]);
    assert_eq!(kinds(&mqtt.publish(messages("closing", "late", 1)).await), [OUTAGE]);
}

#[tokio::test]
async fn a_subscriber_cannot_be_required_where_the_broker_does_not_tell() {
    let options = MqttOptions::new("mqtt://127.0.0.1:1").lazy(true).exactly_once(true).require_subscriber(true);
    let error = Mqtt::connect(options).await.unwrap_err();
    assert_eq!(error.kind(), PublishErrorKind::Permanent);
    assert!(error.to_string().contains("require_subscriber"), "{error}");
}
