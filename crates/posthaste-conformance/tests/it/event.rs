//! Part A: events and their types. They concern no store.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_conformance::{Tap, no_interval, start};
use posthaste_core::event::{Availability, Error, GLOBAL, IntoEvent, JSON, Mistake, OCTETS, Payload, limit};
use posthaste_core::listener::Delivery;
use posthaste_core::retry::Jitter;
use posthaste_core::{
    AggregateType, Event, EventBuilder, EventId, EventType, MemoryStore, Registry, RetryPolicy, Timestamp,
};
use serde::{Serialize, Serializer};

fn plain() -> EventBuilder {
    Event::builder("Happened").json_text("{}")
}

#[test]
fn case_01_defaults() {
    let before = Timestamp::now();
    let event = plain().build().unwrap();
    assert_eq!(event.id().as_str().len(), 26);
    assert!(event.id().as_str().bytes().all(|c| b"0123456789ABCDEFGHJKMNPQRSTVWXYZ".contains(&c)), "{}", event.id());
    assert!(event.occurred_at() >= before && event.occurred_at() <= Timestamp::now());
    assert_eq!((event.aggregate_type(), event.aggregate_id()), (GLOBAL, None));
    assert_eq!(GLOBAL, "__GLOBAL__");
    assert_eq!((event.tenant_id(), event.topic()), (None, None));
    assert!(event.headers().is_empty());
    assert_eq!(event.content_type(), "application/json");
    assert_eq!((event.availability(), event.is_delayed()), (Availability::Now, false));
    assert_eq!(Event::builder("B").bytes(*b"x").build().unwrap().content_type(), OCTETS);
    assert_eq!(Event::of_json("J", "[]").unwrap().content_type(), JSON);
}

#[test]
fn case_01_ids_increase_even_within_a_millisecond() {
    let threads: Vec<_> =
        (0..4).map(|_| std::thread::spawn(|| (0..5_000).map(|_| EventId::generate()).collect::<Vec<_>>())).collect();
    let mut all = HashSet::new();
    for thread in threads {
        let ids = thread.join().unwrap();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "not increasing");
        all.extend(ids);
    }
    assert_eq!(all.len(), 20_000);
}

#[test]
fn case_02_exactly_one_payload() {
    assert!(matches!(Event::builder("x").build(), Err(Error { mistake: Mistake::NoPayload, .. })));
    let twice =
        [plain().bytes(*b"x"), plain().json_text("{}"), plain().json(&1), Event::builder("x").bytes(*b"").json(&1)];
    for builder in twice {
        assert!(matches!(builder.build(), Err(Error { mistake: Mistake::TwoPayloads { .. }, .. })));
    }
    let json = Event::builder("x").json_text(" {\"b\":1, \"a\":2}").build().unwrap();
    assert_eq!(json.payload().as_json(), Some(" {\"b\":1, \"a\":2}"));
    let bytes = Event::builder("x").bytes(vec![0, 255]).build().unwrap();
    assert_eq!(*bytes.payload(), Payload::Bytes([0, 255].into()));
    assert_eq!(bytes.payload().as_json(), None);
}

#[test]
fn case_02_json_is_checked_when_the_event_is_built() {
    for text in ["", " ", "{", "{}{}", "nul", "{'a':1}", "[1,]", "\"\\x\"", "\u{feff}{}", "NaN"] {
        let error = Event::builder("x").json_text(text).build().unwrap_err();
        assert!(matches!(error.mistake, Mistake::NotJson(_)), "{text:?}: {error:?}");
    }
    for text in ["null", "0", "\"\\u0000\"", " [1 , 2] ", "{\"a\":1,\"a\":2}"] {
        assert_eq!(Event::builder("x").json_text(text).build().unwrap().payload().as_json(), Some(text));
    }
    // A map whose keys are no strings cannot be JSON.
    let error = Event::builder("x").json(&HashMap::from([(vec![1], 2)])).build().unwrap_err();
    assert!(matches!(error.mistake, Mistake::NotSerialisable(_)), "{error:?}");
    let decoded: BTreeMap<String, i32> = Event::builder("x").json_text("{\"a\":1}").build().unwrap().decode().unwrap();
    assert_eq!(decoded["a"], 1);
}

#[test]
fn case_03_payload_size() {
    assert_eq!(limit::PAYLOAD, 1_048_576);
    let json = |chars: usize| format!("\"{}\"", "é".repeat(chars));
    let most = json((limit::PAYLOAD - 2) / 2);
    assert_eq!(most.len(), limit::PAYLOAD);
    assert_eq!(Event::of_json("x", most.clone()).unwrap().payload().len(), limit::PAYLOAD);
    let text = &most[1..most.len() - 1];
    assert!(Event::builder("x").json(text).build().is_ok());
    assert!(Event::builder("x").bytes(vec![7; limit::PAYLOAD]).build().is_ok());
    let too_large = [
        Event::builder("x").json_text(most.clone() + " "),
        Event::builder("x").json(&format!("{text}x")),
        Event::builder("x").bytes(vec![7; limit::PAYLOAD + 1]),
    ];
    for builder in too_large {
        let error = builder.build().unwrap_err();
        assert!(
            matches!(error.mistake, Mistake::PayloadTooLarge { len, max } if len == max + 1 && max == limit::PAYLOAD),
            "{error:?}"
        );
    }
}

type Set = fn(EventBuilder, String) -> EventBuilder;

const TEXTS: [(&str, usize, Set); 7] = [
    ("id", limit::ID, |builder, text| builder.id(text)),
    ("event_type", limit::EVENT_TYPE, |_, text| Event::builder(text).json_text("{}")),
    ("aggregate_type", limit::AGGREGATE_TYPE, |builder, text| builder.aggregate_type(text)),
    ("aggregate_id", limit::AGGREGATE_ID, |builder, text| builder.aggregate_id(text)),
    ("tenant_id", limit::TENANT_ID, |builder, text| builder.tenant_id(text)),
    ("topic", limit::TOPIC, |builder, text| builder.topic(text)),
    ("content_type", limit::CONTENT_TYPE, |builder, text| builder.content_type(text)),
];

#[test]
fn case_04_text_limits() {
    let table = [36, 128, 64, 128, 64, 255, 128];
    for ((field, max, set), expected) in TEXTS.into_iter().zip(table) {
        assert_eq!(max, expected, "{field}");
        // Characters, not bytes.
        assert!(set(plain(), "é".repeat(max)).build().is_ok(), "{field}");
        let error = set(plain(), "é".repeat(max + 1)).build().unwrap_err();
        assert!(
            matches!(error.mistake, Mistake::TooLong { field: named, len, max: most } if named == field && len == max + 1 && most == max),
            "{field}: {error:?}"
        );
        assert!(error.mistake.to_string().contains(field), "{error}");
        let error = set(plain(), "a\0b".into()).build().unwrap_err();
        assert!(matches!(error.mistake, Mistake::Nul { field: named } if named == field), "{field}: {error:?}");
    }
}

#[test]
fn case_04_empty_texts() {
    for (field, _, set) in TEXTS {
        let built = set(plain(), String::new()).build();
        if matches!(field, "id" | "event_type" | "aggregate_type" | "content_type") {
            let error = built.unwrap_err();
            assert!(matches!(error.mistake, Mistake::Empty { field: named } if named == field), "{field}: {error:?}");
            assert!(error.mistake.to_string().contains(field), "{error}");
        } else {
            assert!(built.is_ok(), "{field}");
        }
    }
}

#[test]
fn case_05_headers() {
    let unicode = "ÄÖÜ 🦀 \u{202e}\u{1}\n\"'\\ {}";
    let event = plain().header(unicode, unicode).header("empty", "").header("a", "1").header("a", "2").build().unwrap();
    assert_eq!(event.header(unicode), Some(unicode));
    assert_eq!((event.header("empty"), event.header("a"), event.header("A")), (Some(""), Some("2"), None));
    let error = plain().header("", "x").build().unwrap_err();
    assert!(matches!(error.mistake, Mistake::Empty { field: "header key" }), "{error:?}");
    assert!(
        matches!(plain().header("a\0", "x").build(), Err(Error { mistake: Mistake::NulInHeader { key }, .. }) if key == "a\0")
    );
    assert!(
        matches!(plain().header("a", "x\0").build(), Err(Error { mistake: Mistake::NulInHeader { key }, .. }) if key == "a")
    );
    let room = limit::HEADERS - r#"{"k":""}"#.len();
    assert!(plain().header("k", "v".repeat(room)).build().is_ok());
    assert!(matches!(
        plain().header("k", "v".repeat(room + 1)).build(),
        Err(Error { mistake: Mistake::HeadersTooLarge { .. }, .. })
    ));
    let many = plain().headers([("b", "2"), ("a", "1")]).build().unwrap();
    assert_eq!(many.headers().keys().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn case_06_availability() {
    let (minute, now) = (Duration::from_secs(60), Timestamp::now());
    let at = plain().available_at(now + minute).build().unwrap();
    assert_eq!((at.availability(), at.is_delayed()), (Availability::At(now + minute), true));
    let after = plain().deliver_after(minute).build().unwrap();
    assert_eq!((after.availability(), after.is_delayed()), (Availability::After(minute), true));
    assert!(matches!(
        plain().available_at(now + minute).deliver_after(minute).build(),
        Err(Error { mistake: Mistake::TwoAvailabilities, .. })
    ));
    assert!(matches!(plain().deliver_after(Duration::ZERO).build(), Err(Error { mistake: Mistake::NoDelay, .. })));
    for endless in [Duration::MAX, Duration::from_secs(101 * 365 * 24 * 3600)] {
        assert!(matches!(plain().deliver_after(endless).build(), Err(Error { mistake: Mistake::DelayTooLong(_), .. })));
    }
    let happened = |at: Timestamp| plain().occurred_at(at);
    assert!(happened(now).available_at(now).build().is_ok());
    let early = happened(now).available_at(now - Duration::from_micros(1)).build();
    assert!(matches!(early, Err(Error { mistake: Mistake::AvailableBeforeOccurred { .. }, .. })));
    let early = happened(now + minute * 2).deliver_after(minute).build();
    assert!(matches!(early, Err(Error { mistake: Mistake::AvailableBeforeOccurred { .. }, .. })));
    assert!(happened(now - minute * 2).deliver_after(minute).build().is_ok());
}

enum Orders {
    Placed,
    Cancelled,
}

impl EventType for Orders {
    fn name(&self) -> &str {
        match self {
            Self::Placed => "OrderPlaced",
            Self::Cancelled => "OrderCancelled",
        }
    }
}

struct Order;

impl AggregateType for Order {
    fn name(&self) -> &str {
        "Order"
    }
}

#[test]
fn case_07_names_are_chosen_by_the_user() {
    let of = |event: EventBuilder| event.json_text("{}").build().unwrap();
    let by_enum = of(Event::builder(Orders::Placed).aggregate(Order, 7));
    assert_eq!((by_enum.event_type(), by_enum.aggregate_type()), ("OrderPlaced", "Order"));
    assert_eq!(by_enum.aggregate_id(), Some("7"));
    let by_text = of(Event::builder("OrderPlaced").aggregate("Order", "7"));
    let by_string = of(Event::builder(String::from("OrderPlaced")).aggregate(String::from("Order"), 7_u8));

    // The name that writes is the name that routes, whichever form each of them has.
    let mut registry = Registry::new();
    registry.register(Order, Orders::Placed, |_: Delivery| async {}).unwrap();
    for event in [&by_enum, &by_text, &by_string] {
        assert!(registry.listener_for(event).is_some());
    }
    assert!(registry.register("Order", "OrderPlaced", |_: Delivery| async {}).is_err(), "it is the same pair");
    assert!(registry.listener_for(&of(Event::builder(Orders::Cancelled).aggregate(Order, 7))).is_none());
    assert!(registry.listener_for(&of(Event::builder(Orders::Placed))).is_none());
}

/// A type that knows how to become an event.
struct OrderPlaced {
    id: u32,
}

impl IntoEvent for OrderPlaced {
    fn into_event(self) -> Result<Event, Error> {
        Event::builder(Orders::Placed).aggregate(Order, self.id).json(&self.id).build()
    }
}

#[tokio::test]
async fn case_07_typed_events_are_written_and_routed() {
    let (tap, mut inbox) = Tap::new();
    let outbox =
        posthaste_core::Outbox::builder(MemoryStore::new()).listen(Order, Orders::Placed, tap).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(OrderPlaced { id: 42 }).await.unwrap();
    tx.commit().await.unwrap();
    let delivered = inbox.next().await;
    assert_eq!((delivered.event_type(), delivered.decode::<u32>().unwrap()), ("OrderPlaced", 42));
    outbox.shutdown().await;
}

/// Counts how often it is serialised.
struct Counted<'a>(&'a AtomicUsize);

impl Serialize for Counted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        serializer.serialize_str("counted")
    }
}

#[tokio::test]
async fn case_08_payload_is_serialised_once_and_shared() {
    let count = AtomicUsize::new(0);
    let event = Event::builder("Counted").json(&Counted(&count)).build().unwrap();
    let bytes = event.payload().as_bytes().as_ptr();
    assert_eq!(event.clone().payload().as_bytes().as_ptr(), bytes);
    assert_eq!(event.shared_payload().as_ptr(), bytes);

    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(MemoryStore::new(), no_interval(), tap).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&event).await.unwrap();
    tx.commit().await.unwrap();
    let delivered = inbox.next().await;
    assert_eq!(delivered.payload().as_bytes().as_ptr(), bytes, "the payload was copied on its way");
    assert_eq!(count.load(Ordering::Relaxed), 1);
    outbox.shutdown().await;
}

#[test]
fn case_08_a_changed_copy_leaves_the_original_alone() {
    let event = plain().header("a", "1").build().unwrap();
    let copy = event.to_builder().header("a", "2").header("b", "3").build().unwrap();
    assert_eq!((event.header("a"), event.header("b")), (Some("1"), None));
    assert_eq!((copy.header("a"), copy.header("b"), copy.id()), (Some("2"), Some("3"), event.id()));
    assert_eq!(event.to_builder().build().unwrap(), event);
    assert_ne!(copy, event);
}

#[test]
fn case_08_payloads_do_not_reach_logs() {
    let event = Event::builder("x").json_text("\"secret\"").build().unwrap();
    assert!(!format!("{event:?} {:?}", event.payload()).contains("secret"));
}

#[test]
fn case_42_backoff_is_bounded_and_does_not_overflow() {
    let (base, max) = (Duration::from_millis(200), Duration::from_secs(60));
    let policy = RetryPolicy::default();
    assert_eq!(policy.attempts(), 10);
    let jitter = Jitter::seeded(1);
    for failures in (1..70).chain([1_000_000, u32::MAX]) {
        let middle = base.saturating_mul(2_u32.saturating_pow(failures - 1)).min(max);
        let mut seen = HashSet::new();
        for _ in 0..200 {
            let delay = policy.delay(failures, &jitter);
            assert!(delay >= middle / 2 && delay <= (middle * 3 / 2).min(max), "{delay:?} after {failures}");
            seen.insert(delay);
        }
        assert!(seen.len() > 50, "not spread: {seen:?}");
    }
    let longest = RetryPolicy::exponential(Duration::MAX, Duration::MAX);
    assert!(longest.delay(1_000_000, &jitter) > max);
    assert_eq!(policy.next_delay(10, &jitter), None);
    assert!(policy.next_delay(9, &jitter).is_some());
    assert_eq!(policy.clone().max_attempts(1).next_delay(1, &jitter), None);
    let fixed = RetryPolicy::fixed([100, 200, 400, 800, 1600].map(Duration::from_millis));
    let delays: Vec<_> = (1..=6).map(|failures| fixed.next_delay(failures, &jitter).map(|d| d.as_millis())).collect();
    assert_eq!(delays, [Some(100), Some(200), Some(400), Some(800), Some(1600), None]);
}
