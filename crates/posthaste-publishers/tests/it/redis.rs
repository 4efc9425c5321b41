use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use posthaste_core::{Event, MemoryStore, Options, Outbox, RetryPolicy};
use posthaste_publishers::redis::{Redis, RedisOptions};
use posthaste_publishers::{BreakerState, PublishErrorKind, Publisher};
use posthaste_torture::proxy::Proxy;

use crate::backlog::{self, EVENTS};
use crate::formats::{self, CARRIER, Carrier, Seen};
use crate::started::{
    Started, bytes_of, json_of_bytes, kinds, message, messages, rows, run, run_for_bytes, text_of, until, variable,
    write,
};

const OUTAGE: Option<PublishErrorKind> = Some(PublishErrorKind::Outage);
const RETRYABLE: Option<PublishErrorKind> = Some(PublishErrorKind::Retryable);
const PERMANENT: Option<PublishErrorKind> = Some(PublishErrorKind::Permanent);

fn url() -> String {
    variable("POSTHASTE_TEST_REDIS_URL", "redis")
}

fn cli(url: &str, arguments: &[&str]) -> String {
    run("redis-cli", ["-u", url, "--no-auth-warning"].iter().chain(arguments)).trim_end().to_owned()
}

/// The shared server, without what an earlier run left in these keys.
fn without(keys: &[&str]) -> String {
    cli(&url(), &[&["DEL"], keys].concat());
    url()
}

/// The fields of the entries of a stream.
fn read(url: &str, stream: &str) -> Vec<BTreeMap<String, String>> {
    let entries: Vec<(String, Vec<String>)> =
        serde_json::from_str(&cli(url, &["--json", "XRANGE", stream, "-", "+"])).unwrap();
    let fields = |flat: Vec<String>| flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
    entries.into_iter().map(|(_, flat)| fields(flat)).collect()
}

fn bodies(read: &[BTreeMap<String, String>]) -> Vec<&str> {
    read.iter().map(|entry| entry["payload"].as_str()).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

async fn connect(url: &str) -> Redis {
    Redis::connect(RedisOptions::new(url)).await.unwrap()
}

fn socket(url: &str) -> std::net::SocketAddr {
    url.trim_start_matches("redis://").parse().unwrap()
}

#[tokio::test]
async fn events_arrive_as_fields() {
    let store = MemoryStore::new();
    let redis = connect(&without(&["arrive:Order:Placed"])).await;
    let listener = redis.stream("arrive:{aggregate_type}:{event_type}");
    let outbox = Outbox::builder(store.clone()).listen("Order", "*", listener).start().await.unwrap();
    let event = |n: usize| {
        let event = Event::builder("Placed").id(format!("id-{n}")).aggregate("Order", 42).tenant_id("acme");
        // A header of that name does not pass for the payload.
        event.header("trace", "äöü €").header("payload", "no").json_text(format!("{{\"n\":{n}}}"))
    };
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((0..2000).map(event)).await.unwrap();
    tx.commit().await.unwrap();
    until(&store, "all are delivered", |counts| counts.done == 2000).await;

    let entries = read(&url(), "arrive:Order:Placed");
    assert_eq!(entries.len(), 2000);
    let first = entries.iter().find(|entry| entry["event-id"] == "id-7").unwrap();
    let occurred = first["occurred-at"].clone();
    let wanted = [
        ("event-id", "id-7"),
        ("event-type", "Placed"),
        ("aggregate-type", "Order"),
        ("aggregate-id", "42"),
        ("tenant-id", "acme"),
        ("occurred-at", &occurred),
        ("trace", "äöü €"),
        ("content-type", "application/json"),
        ("payload", "{\"n\":7}"),
    ];
    assert_eq!(*first, wanted.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
    let ids: std::collections::BTreeSet<_> = entries.iter().map(|entry| entry["event-id"].as_str()).collect();
    assert_eq!(ids.len(), 2000);
    outbox.shutdown().await;
    redis.close().await;
    assert_eq!(kinds(&redis.publish(vec![message("arrive:x", "late", "")]).await), [OUTAGE]);
}

#[tokio::test]
async fn every_format_is_read_back() {
    let redis = connect(&without(&["formats:OrderPlaced"])).await;
    // There is no binding for Redis: what is beside the body is fields, as on Kafka, and the id is always found by its name.
    let carrier = Carrier { always_event_id: true, ..CARRIER };
    let read = async |_| {
        let printed = run_for_bytes("redis-cli", ["-u", &url(), "--json", "XRANGE", "formats:OrderPlaced", "-", "+"]);
        let entries: Vec<(String, Vec<String>)> = json_of_bytes(&printed);
        let seen = |(_, flat): (String, Vec<String>)| {
            let field = |pair: &[String]| (text_of(&pair[0]), pair[1].clone());
            let mut fields: BTreeMap<String, String> = flat.chunks(2).map(field).collect();
            assert_eq!(fields.len() * 2, flat.len(), "a field twice: {fields:?}");
            let body = bytes_of(&fields.remove("payload").unwrap());
            let mut headers: BTreeMap<_, _> = fields.into_iter().map(|(name, value)| (name, text_of(&value))).collect();
            let content_type = headers.remove("content-type");
            Seen { to: "formats:OrderPlaced".to_owned(), key: None, content_type, headers, body }
        };
        entries.into_iter().map(seen).collect()
    };
    formats::are_read_back(carrier, "formats:OrderPlaced", || redis.stream("formats:{event_type}"), read).await;
}

#[tokio::test]
async fn a_backlog_goes_in_batches() {
    let proxy = Proxy::start(socket(&without(&["backlog", "one-by-one"]))).await.unwrap();
    let redis = connect(&format!("redis://{}", proxy.addr())).await;
    backlog::delivered(EVENTS, redis.stream("backlog"), Some(&proxy)).await.is_in_batches();
    assert_eq!(cli(&url(), &["XLEN", "backlog"]), EVENTS.to_string());
    let alone = backlog::delivered(500, redis.stream("one-by-one").max_batch(1), Some(&proxy)).await;
    alone.is_one_by_one(500);
    cli(&url(), &["DEL", "backlog", "one-by-one"]);
}

#[tokio::test]
async fn a_batch_is_added_in_its_order_in_one_request_or_several() {
    let redis = connect(&without(&["order:small", "order:large"])).await;
    assert_eq!(kinds(&redis.publish(messages("order:small", "m", 500)).await), [None; 500]);
    assert_eq!(bodies(&read(&url(), "order:small")), numbers(0..500));

    let large = |n: usize| message("order:large", &format!("m-{n}"), format!("{n:060000}"));
    assert_eq!(kinds(&redis.publish((0..50).map(large).collect()).await), [None; 50]);
    let entries = read(&url(), "order:large");
    assert_eq!(bodies(&entries), (0..50).map(|n| format!("{n:060000}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_stream_is_trimmed_if_that_is_asked_for() {
    let redis = Redis::connect(RedisOptions::new(without(&["trimmed"])).max_len(200)).await.unwrap();
    for batch in 0..4 {
        assert_eq!(kinds(&redis.publish(messages("trimmed", &format!("b{batch}"), 500)).await), [None; 500]);
    }
    let left: usize = cli(&url(), &["XLEN", "trimmed"]).parse().unwrap();
    assert!((200..=400).contains(&left), "{left}");
}

#[tokio::test]
async fn no_stream_is_made_if_that_is_asked_for() {
    let redis = Redis::connect(RedisOptions::new(without(&["made:there"])).create_streams(false)).await.unwrap();
    cli(&url(), &["XADD", "made:there", "*", "payload", "first"]);
    let batch = vec![message("made:there", "1", "a"), message("made:not", "2", "b"), message("made:there", "3", "c")];
    let results = redis.publish(batch).await;
    assert_eq!(kinds(&results), [None, RETRYABLE, None]);
    assert!(results[1].as_ref().unwrap_err().to_string().contains("there is no stream \"made:not\""), "{results:?}");
    assert_eq!(bodies(&read(&url(), "made:there")), ["first", "a", "c"]);
    assert_eq!(cli(&url(), &["EXISTS", "made:not"]), "0");
}

#[tokio::test]
async fn a_key_of_another_type_and_a_body_too_large_are_permanent_and_spare_the_others() {
    let redis =
        Redis::connect(RedisOptions::new(without(&["wrong:ok", "wrong:type"])).max_payload(1000)).await.unwrap();
    cli(&url(), &["SET", "wrong:type", "x"]);
    let batch = vec![
        message("wrong:ok", "1", "a"),
        message("wrong:type", "2", "b"),
        message("wrong:ok", "3", vec![b'x'; 1001]),
        message("wrong:ok", "4", "d"),
    ];
    let results = redis.publish(batch).await;
    assert_eq!(kinds(&results), [None, PERMANENT, PERMANENT, None]);
    assert!(results[1].as_ref().unwrap_err().to_string().contains("WRONGTYPE"), "{results:?}");
    assert!(results[2].as_ref().unwrap_err().to_string().contains("proto-max-bulk-len"), "{results:?}");
    assert_eq!(bodies(&read(&url(), "wrong:ok")), ["a", "d"]);
}

#[tokio::test]
async fn a_body_that_makes_the_server_hang_up_is_tried_as_often_as_others_and_spares_them() {
    let (_server, url) = Started::new("redis", &["--proto-max-bulk-len", "1mb"]);
    let redis = connect(&url).await;
    let large = |id: &str| message("cut", id, vec![b'x'; 2 << 20]);
    let batch =
        vec![message("cut", "1", "a"), large("2"), message("cut", "3", "c"), large("4"), message("cut", "5", "e")];
    let results = redis.publish(batch).await;
    assert_eq!(kinds(&results), [None, RETRYABLE, None, RETRYABLE, None], "{results:?}");
    assert!(results[1].as_ref().unwrap_err().to_string().contains("proto-max-bulk-len"), "{results:?}");
    assert_eq!(bodies(&read(&url, "cut")), ["a", "c", "e"], "each once");
    cli(&url, &["CONFIG", "SET", "proto-max-bulk-len", "10mb"]);
    assert_eq!(kinds(&redis.publish(vec![large("2")]).await), [None]);
}

#[tokio::test]
async fn a_body_that_does_not_get_through_in_time_uses_up_its_own_attempts_while_others_do() {
    let proxy = Proxy::start(socket(&without(&["slow"]))).await.unwrap();
    let options = RedisOptions::new(format!("redis://{}", proxy.addr())).ack_timeout(Duration::from_secs(1));
    let redis = Redis::connect(options).await.unwrap();
    // About three megabytes in a second.
    proxy.delay(Some(Duration::from_millis(20)));
    let large = || message("slow", "large", vec![b'x'; 8 << 20]);
    let results = redis.publish(vec![message("slow", "1", "a"), large(), message("slow", "2", "b")]).await;
    assert_eq!(kinds(&results), [None, RETRYABLE, None], "{results:?}");
    assert!(results[1].as_ref().unwrap_err().to_string().contains("raise ack_timeout"), "{results:?}");
    // Alone it shows nothing: the server may be away.
    assert_eq!(kinds(&redis.publish(vec![large()]).await), [OUTAGE]);
    // Behind it nobody waits any more, not even where it came first.
    let begun = Instant::now();
    let results = redis.publish(vec![large(), message("slow", "3", "c")]).await;
    assert_eq!(kinds(&results), [RETRYABLE, None], "{results:?}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    assert_eq!(bodies(&read(&url(), "slow")), ["a", "b", "c"]);

    proxy.black_hole(true);
    assert_eq!(kinds(&redis.publish(vec![message("slow", "4", "d"), large()]).await), [OUTAGE; 2]);
    proxy.black_hole(false);
    proxy.delay(None);
    assert_eq!(kinds(&redis.publish(vec![large(), message("slow", "4", "d")]).await), [None; 2]);
}

#[tokio::test]
async fn several_that_do_not_get_through_together_go_alone_next_time() {
    let proxy = Proxy::start(socket(&without(&["apart"]))).await.unwrap();
    let options = RedisOptions::new(format!("redis://{}", proxy.addr())).ack_timeout(Duration::from_secs(1));
    let redis = Redis::connect(options).await.unwrap();
    proxy.delay(Some(Duration::from_millis(100)));
    // A megabyte takes longer than the time, a tenth of it does not.
    let batch = || (0..8).map(|n| message("apart", &format!("m-{n}"), vec![b'x'; 110_000])).collect::<Vec<_>>();
    assert_eq!(kinds(&redis.publish(batch()).await), [OUTAGE; 8]);
    // Together they never get through. Alone they have half of the time left, and on a busy machine none once in a while.
    let mut said = kinds(&redis.publish(batch()).await);
    for _ in 0..3 {
        if said != [None; 8] {
            said = kinds(&redis.publish(batch()).await);
        }
    }
    assert_eq!(said, [None; 8]);
    let ids: std::collections::BTreeSet<_> =
        read(&url(), "apart").into_iter().map(|entry| entry["event-id"].clone()).collect();
    assert_eq!(ids, (0..8).map(|n| format!("m-{n}")).collect());
}

#[tokio::test]
async fn a_server_out_of_memory_is_an_outage_and_gets_everything_later() {
    let (_server, url) = Started::new("redis", &["--maxmemory-policy", "noeviction"]);
    let redis = connect(&url).await;
    assert_eq!(kinds(&redis.publish(messages("full", "m", 2)).await), [None; 2]);
    cli(&url, &["CONFIG", "SET", "maxmemory", "1"]);
    let refused = redis.publish(messages("full", "m", 2)).await;
    assert_eq!(kinds(&refused), [OUTAGE; 2]);
    assert!(refused[0].as_ref().unwrap_err().to_string().contains("OOM"), "{refused:?}");

    let store = MemoryStore::new();
    let listener = redis.stream("memory").retry(RetryPolicy::fixed([]));
    let outbox = Outbox::builder(store.clone()).listen("Test", "*", listener).start().await.unwrap();
    write(&outbox, 0..100).await;
    while redis.breaker().state() == BreakerState::Closed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cli(&url, &["CONFIG", "SET", "maxmemory", "0"]);
    until(&store, "all are delivered", |counts| counts.done == 100).await;
    assert!(rows(&store).await.iter().all(|row| row.state.attempts == 0), "an attempt was used up");
    assert_eq!(read(&url, "memory").len(), 100);
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_replica_is_an_outage_until_it_leads() {
    let (_server, url) = Started::new("redis", &[]);
    let redis = connect(&url).await;
    cli(&url, &["REPLICAOF", "127.0.0.1", "1"]);
    let results = redis.publish(messages("led", "m", 3)).await;
    assert_eq!(kinds(&results), [OUTAGE; 3]);
    assert!(results[0].as_ref().unwrap_err().to_string().contains("READONLY"), "{results:?}");
    cli(&url, &["REPLICAOF", "NO", "ONE"]);
    assert_eq!(kinds(&redis.publish(messages("led", "m", 3)).await), [None; 3]);
    assert_eq!(bodies(&read(&url, "led")), numbers(0..3));
}

#[tokio::test]
async fn a_stranger_is_refused_and_a_key_that_is_not_permitted_is_retryable() {
    let (_server, url) = Started::new("redis", &["--requirepass", "secret"]);
    for (options, said) in
        [(RedisOptions::new(&url), "NOAUTH"), (RedisOptions::new(&url).password("wrong"), "uthentication")]
    {
        let error = Redis::connect(options.clone()).await.unwrap_err();
        assert_eq!(error.kind(), PublishErrorKind::Permanent);
        assert!(error.to_string().contains(said) && !error.to_string().contains("wrong"), "{error}");
        // Once events are on their way it is an outage: somebody may change the password back.
        let lazy = Redis::connect(options.lazy(true)).await.unwrap();
        assert_eq!(kinds(&lazy.publish(vec![message("permit:a", "0", "x")]).await), [OUTAGE]);
        assert_eq!(lazy.check().await.unwrap_err().kind(), PublishErrorKind::Permanent);
    }
    let as_all = url.replace("://", "://default:secret@");
    cli(&as_all, &["ACL", "SETUSER", "some", "on", ">pass", "~permit:*", "+xadd", "+ping"]);
    let redis = Redis::connect(RedisOptions::new(&url).user("some").password("pass")).await.unwrap();
    let batch = vec![message("permit:a", "1", "a"), message("other:b", "2", "b"), message("permit:a", "3", "c")];
    let results = redis.publish(batch).await;
    assert_eq!(kinds(&results), [None, RETRYABLE, None]);
    assert!(results[1].as_ref().unwrap_err().to_string().contains("NOPERM"), "{results:?}");
    assert_eq!(bodies(&read(&as_all, "permit:a")), ["a", "c"]);
}

#[tokio::test]
async fn a_cluster_that_is_down_is_an_outage_and_a_stream_on_another_node_is_retryable() {
    let (_one, one) = Started::new("redis", &["--cluster-enabled", "yes"]);
    let (_two, two) = Started::new("redis", &["--cluster-enabled", "yes"]);
    let redis = connect(&one).await;
    let results = redis.publish(messages("bar", "m", 2)).await;
    assert_eq!(kinds(&results), [OUTAGE; 2]);
    assert!(results[0].as_ref().unwrap_err().to_string().contains("CLUSTERDOWN"), "{results:?}");

    cli(&one, &["CLUSTER", "SET-CONFIG-EPOCH", "1"]);
    cli(&two, &["CLUSTER", "SET-CONFIG-EPOCH", "2"]);
    cli(&one, &["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    cli(&two, &["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    cli(&one, &["CLUSTER", "MEET", "127.0.0.1", &socket(&two).port().to_string()]);
    for _ in 0..3000 {
        if cli(&one, &["CLUSTER", "INFO"]).contains("cluster_state:ok") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The first key is in slot 5061, the second in 12182.
    let results = redis.publish(vec![message("bar", "1", "a"), message("foo", "2", "b")]).await;
    assert_eq!(kinds(&results), [None, RETRYABLE]);
    let said = results[1].as_ref().unwrap_err().to_string();
    assert!(said.contains("MOVED") && said.contains("clusters are not followed"), "{said}");
    assert_eq!(bodies(&read(&one, "bar")), ["a"]);
}

#[tokio::test]
async fn a_server_that_is_away_is_said_at_the_start() {
    let error = Redis::connect(RedisOptions::new("redis://127.0.0.1:1")).await.unwrap_err();
    assert_eq!(error.kind(), PublishErrorKind::Outage);
    assert!(error.to_string().contains("cannot connect to redis://127.0.0.1:1"), "{error}");
    let lazy = Redis::connect(RedisOptions::new("redis://127.0.0.1:1").lazy(true)).await.unwrap();
    assert_eq!(kinds(&lazy.publish(messages("x", "m", 2)).await), [OUTAGE, OUTAGE]);

    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("redis://{}", silent.local_addr().unwrap());
    let options =
        RedisOptions::new(address).connect_timeout(Duration::from_millis(200)).ack_timeout(Duration::from_millis(200));
    let begun = Instant::now();
    assert_eq!(Redis::connect(options).await.unwrap_err().kind(), PublishErrorKind::Outage);
    // Less than it would be without these options.
    assert!(begun.elapsed() < Duration::from_millis(4800), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_goes_and_comes_back_gets_everything_and_no_attempt_is_used_up() {
    let (server, url) = Started::new("redis", &["--appendfsync", "always"]);
    let store = MemoryStore::new();
    let redis = connect(&url).await;
    let listener = redis.stream("back").retry(RetryPolicy::fixed([]));
    let outbox = Outbox::builder(store.clone()).listen("Test", "*", listener).start().await.unwrap();
    write(&outbox, 0..100).await;
    until(&store, "the first are delivered", |counts| counts.done == 100).await;

    server.stop();
    write(&outbox, 100..300).await;
    while redis.breaker().state() == BreakerState::Closed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(redis.check().await.is_err());
    server.start();
    until(&store, "all are delivered", |counts| counts.done == 300).await;
    assert_eq!(redis.breaker().state(), BreakerState::Closed);
    assert!(rows(&store).await.iter().all(|row| row.state.attempts == 0), "an attempt was used up");
    assert_eq!(read(&url, "back").len(), 300);
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_lost_acknowledgement_is_an_outage_and_repeats_are_told_by_the_event_id() {
    let proxy = Proxy::start(socket(&without(&["lost"]))).await.unwrap();
    let redis = connect(&format!("redis://{}", proxy.addr())).await;
    proxy.lose_reply_to(b"XADD", 1);
    assert_eq!(kinds(&redis.publish(messages("lost", "m", 20)).await), [OUTAGE; 20]);
    assert_eq!(read(&url(), "lost").len(), 20, "they were added");
    assert_eq!(kinds(&redis.publish(messages("lost", "m", 20)).await), [None; 20]);
    let mut times = BTreeMap::new();
    for entry in read(&url(), "lost") {
        *times.entry(entry["event-id"].clone()).or_insert(0) += 1;
    }
    assert_eq!(times, (0..20).map(|n| (format!("m-{n}"), 2)).collect());
}

#[tokio::test]
async fn a_pulled_cable_is_an_outage_and_another_connection_follows() {
    let proxy = Proxy::start(socket(&without(&["cable"]))).await.unwrap();
    let options = RedisOptions::new(format!("redis://{}", proxy.addr())).ack_timeout(Duration::from_millis(1500));
    let redis = Redis::connect(options).await.unwrap();
    assert_eq!(kinds(&redis.publish(messages("cable", "a", 5)).await), [None; 5]);
    proxy.black_hole(true);
    assert_eq!(kinds(&redis.publish(messages("cable", "b", 10)).await), [OUTAGE; 10]);
    proxy.black_hole(false);
    assert_eq!(kinds(&redis.publish(messages("cable", "b", 10)).await), [None; 10]);
    assert_eq!(read(&url(), "cable").len(), 15);
}

#[tokio::test]
async fn who_waited_for_a_connection_in_vain_does_not_try_it_once_more() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = RedisOptions::new(format!("redis://{}", silent.local_addr().unwrap()));
    let redis = Redis::connect(options.connect_timeout(Duration::from_secs(1)).lazy(true)).await.unwrap();
    let begun = Instant::now();
    let batches = (0..15).map(|_| redis.publish(messages("x", "m", 2)));
    for results in futures_util::future::join_all(batches).await {
        assert_eq!(kinds(&results), [OUTAGE; 2]);
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "one after the other: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_is_silent_for_longer_than_a_listener_may_take_uses_up_no_attempt() {
    let proxy = Proxy::start(socket(&without(&["limit"]))).await.unwrap();
    let options = RedisOptions::new(format!("redis://{}", proxy.addr())).ack_timeout(Duration::from_secs(1));
    let redis = Redis::connect(options).await.unwrap();
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone())
        .listen("Test", "*", redis.stream("limit").retry(RetryPolicy::fixed([])))
        .options(Options { listener_time_limit: Duration::from_millis(300), ..Options::default() })
        .start()
        .await
        .unwrap();
    proxy.black_hole(true);
    write(&outbox, 0..20).await;
    let open = async {
        while redis.breaker().state() == BreakerState::Closed {
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
    let proxy = Proxy::start(socket(&without(&["closing"]))).await.unwrap();
    let redis = connect(&format!("redis://{}", proxy.addr())).await;
    proxy.delay(Some(Duration::from_millis(50)));
    // Several requests, so that some are not written yet.
    let large = |n: usize| message("closing", &format!("m-{n}"), vec![b'x'; 600_000]);
    let mut publishing = std::pin::pin!(redis.publish((0..6).map(large).collect()));
    assert!(publishing.as_mut().now_or_never().is_none());
    let (results, ()) = futures_util::future::join(publishing, redis.close()).await;
    assert_eq!(kinds(&results), [None; 6]);
    assert_eq!(kinds(&redis.publish(messages("closing", "late", 1)).await), [OUTAGE]);
    assert_eq!(read(&url(), "closing").len(), 6);
}

#[cfg(feature = "redis-tls")]
#[tokio::test]
async fn authorities_without_tls_are_refused() {
    let options = RedisOptions::new("redis://127.0.0.1:1").ca_file("/ca.pem").lazy(true);
    let error = Redis::connect(options).await.unwrap_err();
    assert!(error.to_string().contains("rediss://"), "{error}");
}

#[cfg(feature = "redis-tls")]
#[tokio::test]
async fn over_tls_a_server_of_a_stranger_is_refused() {
    without(&["secure"]);
    let secure = variable("POSTHASTE_TEST_REDIS_TLS_URL", "redis");
    let options = RedisOptions::new(&secure);
    let error = Redis::connect(options.clone()).await.unwrap_err();
    assert!(error.to_string().contains("ertificate") || error.to_string().contains("UnknownIssuer"), "{error}");
    let redis = Redis::connect(options.ca_file(variable("POSTHASTE_TEST_REDIS_TLS_CA", "redis"))).await.unwrap();
    assert_eq!(kinds(&redis.publish(messages("secure", "m", 10)).await), [None; 10]);
    assert_eq!(bodies(&read(&url(), "secure")), numbers(0..10));
}

#[cfg(not(feature = "redis-tls"))]
#[tokio::test]
async fn without_tls_an_address_with_it_is_refused() {
    let error = Redis::connect(RedisOptions::new("rediss://127.0.0.1:1")).await.unwrap_err();
    assert!(error.to_string().contains("redis-tls"), "{error}");
}
