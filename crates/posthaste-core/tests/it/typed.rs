//! Typed events whose trait is written by hand. What the derive makes of types is tested with the derive.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::event::{DecodeError, Error, Kind, Mistake, TypedEvent, Upcasts, VERSION_HEADER};
use posthaste_core::listener::{FailureKind, Handle, Path, handler, typed, typed_with};
use posthaste_core::store::{AdminStore, Record, WriteStore};
use posthaste_core::{
    Delivery, Event, EventBuilder, Failure, Listener, MemoryStore, Outbox, Outcome, Registry, RetryPolicy, Status,
    Verdict,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::until;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PlacedV1 {
    id: u64,
}

impl TypedEvent for PlacedV1 {
    const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)];
    const AGGREGATE_TYPE: &'static str = "Order";
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PlacedV2 {
    id: u64,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    total: u32,
}

impl TypedEvent for PlacedV2 {
    const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 2)];
    const AGGREGATE_TYPE: &'static str = "Order";

    fn aggregate_id(&self) -> Option<String> {
        Some(self.id.to_string())
    }

    fn upcasts() -> Upcasts<Self> {
        Upcasts::new().upcast(|old: PlacedV1| Self { id: old.id, lines: Vec::new() })
    }
}

/// The third version, and a new name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Accepted {
    id: u64,
    lines: Vec<Line>,
    by: String,
}

impl TypedEvent for Accepted {
    const KINDS: &'static [Kind] = &[Kind::new("OrderAccepted", 1)];
    const AGGREGATE_TYPE: &'static str = "Sale";

    fn upcasts() -> Upcasts<Self> {
        Upcasts::new().upcast(|old: PlacedV2| Self { id: old.id, lines: old.lines, by: "2".into() })
    }
}

fn placed(version: u32, json: &str) -> EventBuilder {
    Event::builder("OrderPlaced").aggregate_type("Order").version(version).json_text(json)
}

/// Delivers one event to an outbox with these listeners, and gives what became of it.
async fn outcome_of(registry: Registry, event: EventBuilder) -> Record {
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone()).registry(registry).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event).await.unwrap();
    tx.commit().await.unwrap();
    until(&store, "it has ended", |counts| counts.done + counts.dead == 1).await;
    outbox.shutdown().await;
    store.list(&Default::default(), &Default::default()).await.unwrap().remove(0)
}

async fn reason(registry: Registry, event: EventBuilder) -> String {
    let record = outcome_of(registry, event).await;
    assert_eq!(record.state.status, Status::Dead);
    assert_eq!(record.state.attempts, 1, "it is not tried again");
    record.state.last_error.unwrap()
}

fn for_placed() -> Registry {
    let mut registry = Registry::new();
    registry.on::<PlacedV2>(|_, _| async {}).unwrap();
    registry
}

#[tokio::test(start_paused = true)]
async fn a_value_is_written_and_arrives() {
    let (sender, mut arrived) = unbounded_channel();
    let outbox = Outbox::builder(MemoryStore::new())
        .on::<PlacedV2>(move |event, order| {
            let sender = sender.clone();
            async move { sender.send((event, order)) }
        })
        .start()
        .await
        .unwrap();
    let order = PlacedV2 { id: 42, lines: vec![Line { total: 7 }] };
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order.clone()).await.unwrap();
    tx.commit().await.unwrap();

    let (event, received) = arrived.recv().await.unwrap();
    assert_eq!(received, order);
    assert_eq!((event.aggregate_type(), event.aggregate_id()), ("Order", Some("42")));
    assert_eq!(event.payload().as_json(), Some(r#"{"id":42,"lines":[{"total":7}]}"#));
    assert_eq!((event.header(VERSION_HEADER), event.version().unwrap()), (Some("2"), 2));
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn values_are_written_in_a_transaction_of_the_users() {
    let store = MemoryStore::new();
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let receipt = outbox.write(&mut tx, PlacedV1 { id: 1 }).await.unwrap();
    let receipt = receipt.and(outbox.write_all(&mut tx, [PlacedV1 { id: 2 }, PlacedV1 { id: 3 }]).await.unwrap());
    store.commit(tx).await.unwrap();
    receipt.dispatch();
    assert_eq!(store.counts().await.unwrap().pending(), 3);
}

#[test]
fn the_first_version_has_no_header() {
    let event = PlacedV1 { id: 1 }.to_builder().build().unwrap();
    assert!(event.headers().is_empty());
    assert_eq!(event.version().unwrap(), 1);
    let back = Event::builder("Any").version(2).version(1).json(&()).build().unwrap();
    assert!(back.headers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_does_not_decode_is_dead_and_the_reason_names_the_field() {
    let reason = reason(for_placed(), placed(2, r#"{"id":1,"lines":[{"total":1},{"total":"two"}]}"#)).await;
    assert_eq!(
        reason,
        "OrderPlaced version 2 does not decode: lines[1].total: invalid type: string \"two\", expected u32 at line 1 column 43; \
         mend the reader or the payload, then redrive the event"
    );
}

#[tokio::test(start_paused = true)]
async fn an_older_payload_that_does_not_decode_is_told_by_its_own_version() {
    let reason = reason(for_placed(), placed(1, r#"{"no":1}"#)).await;
    assert_eq!(
        reason,
        "OrderPlaced version 1 does not decode: missing field `id` at line 1 column 8; \
         mend the reader or the payload, then redrive the event"
    );
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_json_are_told_from_json_that_does_not_fit() {
    let bytes = |bytes: &[u8]| Event::builder("OrderPlaced").aggregate("Order", 1).version(2).bytes(bytes);
    for torn in [&b"\xff\x00"[..], b"", b"{\"id\":1"] {
        let reason = reason(for_placed(), bytes(torn)).await;
        assert!(reason.contains("does not decode: the payload is bytes, which are not JSON: "), "{reason}");
        assert!(reason.ends_with("read them with payload().as_bytes(), or write JSON, then redrive the event"));
    }
    let reason = reason(for_placed(), bytes(b"{\"id\":\"one\"}")).await;
    assert!(reason.starts_with("OrderPlaced version 2 does not decode: id: invalid type: string"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_is_dead_and_the_reason_names_those_that_are_accepted() {
    let reason = reason(for_placed(), placed(3, "{}")).await;
    assert_eq!(
        reason,
        "OrderPlaced version 3 does not decode: version 3 is not accepted, only 1 and 2; \
         it is newer than this program: update it, then redrive the event"
    );
}

/// A second version of which nobody kept the first.
#[derive(Serialize, Deserialize)]
struct Returned;

impl TypedEvent for Returned {
    const KINDS: &'static [Kind] = &[Kind::new("OrderReturned", 2)];
}

#[tokio::test(start_paused = true)]
async fn an_older_version_without_an_upcast_is_dead() {
    let mut registry = Registry::new();
    registry.on::<Returned>(|_, _| async {}).unwrap();
    let reason = reason(registry, Event::builder("OrderReturned").json_text("{}")).await;
    assert!(reason.ends_with("version 1 is not accepted, only 2; add an upcast from it, then redrive the event"));
}

#[tokio::test(start_paused = true)]
async fn versions_count_from_one() {
    assert!(matches!(placed(0, "{}").build(), Err(Error { mistake: Mistake::NoVersion, .. })));
    for written in ["00", "-1", "4294967296", ""] {
        let reason = reason(for_placed(), placed(1, "{}").header(VERSION_HEADER, written)).await;
        let expected = format!("OrderPlaced does not decode: the header event-version is {written:?}, which is not");
        assert!(reason.starts_with(&expected), "{reason}");
    }
}

#[test]
fn a_kind_that_no_event_can_have_is_refused() {
    for (event_type, version) in [("", 1), ("*", 1), ("OrderPlaced", 0)] {
        assert!(std::panic::catch_unwind(|| Kind::new(event_type, version)).is_err(), "{event_type:?} {version}");
    }
}

/// Types that are made of the next one, and the last of the first.
mod circle {
    use super::*;

    macro_rules! made_of {
        ($($name:ident of $old:ident),*) => {$(
            #[derive(Debug, PartialEq, Serialize, Deserialize)]
            pub(super) struct $name {}

            impl TypedEvent for $name {
                const KINDS: &'static [Kind] = &[Kind::new(stringify!($name), 1)];

                fn upcasts() -> Upcasts<Self> {
                    Upcasts::new().upcast(|_: $old| Self {})
                }
            }
        )*};
    }

    made_of!(Itself of Itself, Here of There, There of Here, A of B, B of C, C of A, Outside of Here);
}

#[tokio::test(start_paused = true)]
async fn types_that_are_made_of_each_other_are_refused_at_the_start() {
    async fn refused<T: TypedEvent>() -> String {
        let error = Outbox::builder(MemoryStore::new()).on::<T>(|_, _| async {}).start().await.unwrap_err();
        error.to_string().replace("it::typed::circle::", "")
    }
    let refusal = |circle: &str| format!("upcasts go round in a circle: {circle}; remove one of these steps");
    assert_eq!(refused::<circle::Itself>().await, refusal("Itself is made of itself"));
    assert_eq!(refused::<circle::Here>().await, refusal("Here is made of There, which is made of Here"));
    assert_eq!(refused::<circle::There>().await, refusal("There is made of Here, which is made of There"));
    assert_eq!(refused::<circle::B>().await, refusal("B is made of C, which is made of A, which is made of B"));
    // It has no part in the circle that it leads to.
    assert_eq!(refused::<circle::Outside>().await, refusal("Here is made of There, which is made of Here"));
    // What asks without registering gets an answer, too.
    let there = Event::of_json("There", "{}").unwrap();
    assert_eq!(there.typed::<circle::Here>().unwrap(), circle::Here {});
}

#[tokio::test]
async fn a_listener_may_accept_a_newer_type_that_is_made_of_its_own() {
    let listener = typed::<PlacedV1>(|_, _| async {}).upcast(|new: PlacedV2| PlacedV1 { id: new.id });
    for version in [1, 2] {
        let event = placed(version, r#"{"id":1,"lines":[]}"#).build().unwrap();
        assert_eq!(listener.on_event(&Delivery::new(event, 0, Path::Cold)).await.unwrap(), Outcome::Done);
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_no_number_is_dead() {
    let reason = reason(for_placed(), placed(1, "{}").header(VERSION_HEADER, "two")).await;
    assert!(reason.starts_with("OrderPlaced does not decode: the header event-version is \"two\""), "{reason}");
}

#[test]
fn upcasts_follow_each_other_and_names() {
    let oldest = placed(1, r#"{"id":1}"#).build().unwrap();
    let accepted: Accepted = oldest.typed().unwrap();
    assert_eq!(accepted, Accepted { id: 1, lines: vec![], by: "2".into() });

    let mut registry = Registry::new();
    registry.on::<Accepted>(|_, _| async {}).unwrap();
    assert!(registry.listener_for(&oldest).is_some(), "what it accepts it also gets");

    let other = Event::of_json("OrderLost", "{}").unwrap().typed::<Accepted>().unwrap_err();
    let reason = Failure::from(other);
    assert_eq!(reason.kind(), FailureKind::Undecodable);
    assert!(reason.text().contains("not accepted, only OrderAccepted and OrderPlaced"), "{reason}");
}

#[tokio::test]
async fn the_shortest_way_up_is_taken() {
    let (sender, mut arrived) = unbounded_channel();
    let listener = typed::<Accepted>(move |_, order| {
        let sender = sender.clone();
        async move { sender.send(order) }
    })
    .upcast(|old: PlacedV1| Accepted { id: old.id, lines: Vec::new(), by: "1".into() });
    let event = Delivery::new(placed(1, r#"{"id":1}"#).build().unwrap(), 0, Path::Cold);
    listener.on_event(&event).await.unwrap();
    assert_eq!(arrived.recv().await.unwrap().by, "1");
}

struct Ledger {
    entries: UnboundedSender<u64>,
    retry: RetryPolicy,
}

impl Handle<PlacedV1> for Ledger {
    async fn handle(&self, _: Delivery, order: PlacedV1) -> Verdict {
        self.entries.send(order.id)?;
        Ok(Outcome::Done)
    }

    fn time_limit(&self) -> Option<Duration> {
        Some(Duration::from_secs(7))
    }

    fn retry_policy(&self) -> Option<&RetryPolicy> {
        Some(&self.retry)
    }
}

impl Handle<Accepted> for Ledger {
    async fn handle(&self, _: Delivery, order: Accepted) -> Verdict {
        self.entries.send(order.id + 100)?;
        Ok(Outcome::Done)
    }
}

#[tokio::test(start_paused = true)]
async fn one_struct_handles_several_types() {
    let (entries, mut arrived) = unbounded_channel();
    let ledger = Arc::new(Ledger { entries, retry: RetryPolicy::never() });
    let outbox = Outbox::builder(MemoryStore::new())
        .handle::<PlacedV1>(ledger.clone())
        .listen("Sale", "OrderAccepted", handler::<Accepted>(ledger))
        .start()
        .await
        .unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(PlacedV1 { id: 1 }).await.unwrap();
    tx.write(Accepted { id: 2, lines: vec![], by: String::new() }).await.unwrap();
    tx.commit().await.unwrap();
    let mut ids = [arrived.recv().await.unwrap(), arrived.recv().await.unwrap()];
    ids.sort_unstable();
    assert_eq!(ids, [1, 102]);
    outbox.shutdown().await;
}

#[test]
fn settings_of_a_handler_and_of_its_listener_count() {
    let (entries, _arrived) = unbounded_channel();
    let ledger = Arc::new(Ledger { entries, retry: RetryPolicy::never() });
    let plain = handler::<PlacedV1>(ledger);
    assert_eq!(plain.time_limit(), Some(Duration::from_secs(7)));
    assert!(plain.retry_policy().is_some());
    assert_eq!(plain.with_time_limit(Duration::from_secs(1)).time_limit(), Some(Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn state_is_handed_to_every_call() {
    let (sender, mut arrived) = unbounded_channel();
    let outbox = Outbox::builder(MemoryStore::new())
        .on_with(sender, |sender, _event, order: PlacedV1| async move { sender.send(order.id) })
        .start()
        .await
        .unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((1..=3).map(|id| PlacedV1 { id })).await.unwrap();
    tx.commit().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(arrived.recv().await.unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3]);
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn state_and_limits_go_together() {
    let (sender, mut arrived) = unbounded_channel();
    let listener = typed_with(sender, |sender, event: Delivery, order: PlacedV1| async move {
        sender.send((order.id, event.attempt(), tokio::time::Instant::now())).unwrap();
        (event.attempt() > 1).then_some(()).ok_or("not yet")
    });
    let second = Duration::from_secs(1);
    let listener = listener.with_retry(RetryPolicy::fixed([second])).with_rate(1, second).with_concurrency(1);
    let outbox = Outbox::builder(MemoryStore::new()).listen_for::<PlacedV1>(listener).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all((1..=2).map(|id| PlacedV1 { id })).await.unwrap();
    tx.commit().await.unwrap();
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(arrived.recv().await.unwrap());
    }
    assert!(calls.windows(2).all(|two| two[1].2 - two[0].2 >= second), "{calls:?}");
    let mut attempts: Vec<_> = calls.iter().map(|(id, attempt, _)| (*id, *attempt)).collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [(1, 1), (1, 2), (2, 1), (2, 2)]);
    outbox.shutdown().await;
}

/// Answers of every shape.
mod answer {
    use super::*;

    pub(super) async fn nothing(_: Delivery, _: PlacedV1) {}

    pub(super) async fn outcome(_: Delivery, _: PlacedV1) -> Outcome {
        Outcome::Dead("no".into())
    }

    pub(super) async fn result(_: Delivery, _: PlacedV1) -> anyhow::Result<()> {
        Ok(())
    }

    pub(super) async fn verdict(_: Delivery, _: PlacedV1) -> Verdict {
        Err(Failure::permanent("never"))
    }
}

#[tokio::test(start_paused = true)]
async fn functions_answer_as_other_listeners_do() {
    async fn status(register: impl FnOnce(&mut Registry)) -> Status {
        let mut registry = Registry::new();
        register(&mut registry);
        outcome_of(registry, placed(1, r#"{"id":1}"#)).await.state.status
    }
    assert_eq!(status(|registry| registry.on::<PlacedV1>(answer::nothing).unwrap()).await, Status::Done);
    assert_eq!(status(|registry| registry.on::<PlacedV1>(answer::outcome).unwrap()).await, Status::Dead);
    assert_eq!(status(|registry| registry.on::<PlacedV1>(answer::result).unwrap()).await, Status::Done);
    assert_eq!(status(|registry| registry.on::<PlacedV1>(answer::verdict).unwrap()).await, Status::Dead);
}

/// Two kinds, one of which may be taken by somebody else.
#[derive(Serialize, Deserialize)]
struct Pair;

impl TypedEvent for Pair {
    const KINDS: &'static [Kind] = &[Kind::new("A", 1), Kind::new("B", 1)];
}

#[test]
fn a_family_is_registered_as_a_whole_or_not_at_all() {
    let mut registry = Registry::new();
    registry.register_global("B", |_: Delivery| async {}).unwrap();
    let error = registry.on::<Pair>(|_, _| async {}).unwrap_err();
    assert!(error.to_string().contains("\"B\""), "{error}");
    assert!(registry.listener_for(&Event::of_json("A", "{}").unwrap()).is_none());
}

/// Not JSON at all.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Raw(u8);

impl TypedEvent for Raw {
    const KINDS: &'static [Kind] = &[Kind::new("Raw", 1)];

    fn encode(&self, event: EventBuilder) -> EventBuilder {
        event.topic("raw").bytes([self.0])
    }

    fn decode(event: &Event) -> Result<Self, DecodeError> {
        match event.payload().as_bytes() {
            [byte] => Ok(Self(*byte)),
            bytes => Err(DecodeError::other(format!("{} bytes instead of one", bytes.len()))),
        }
    }
}

#[test]
fn a_payload_may_have_a_form_of_its_own() -> Result<(), Error> {
    let event = Raw(7).to_builder().build()?;
    assert_eq!(event.topic(), Some("raw"));
    assert_eq!(event.typed::<Raw>().unwrap(), Raw(7));
    let reason = Failure::from(Event::builder("Raw").bytes([1, 2]).build()?.typed::<Raw>().unwrap_err());
    assert_eq!(reason.kind(), FailureKind::Undecodable);
    assert_eq!(reason.text(), "Raw version 1 does not decode: 2 bytes instead of one");
    Ok(())
}
