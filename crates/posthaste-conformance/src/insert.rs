//! Part C: what was written is what is stored.

use posthaste_core::event::{Availability, limit};
use posthaste_core::store::{Error, NewRow, Status, WriteStore};
use posthaste_core::{Event, Timestamp};

use crate::fixture::Fixture;
use crate::rows::{assert_at, claim, counts, event, event_with_id, insert, insert_rows, lease, leased, record, state};

fn assert_same(read: &Event, written: &Event) {
    // What a row says of its availability is in another column, so a read event is simply available.
    assert_eq!(read.availability(), Availability::Now);
    assert_eq!(read.payload(), written.payload(), "payloads differ");
    assert_eq!(read.headers(), written.headers());
    assert_eq!(read.id(), written.id());
    assert_eq!(read.event_type(), written.event_type());
    assert_eq!(read.aggregate_type(), written.aggregate_type());
    assert_eq!(read.aggregate_id(), written.aggregate_id());
    assert_eq!(read.tenant_id(), written.tenant_id());
    assert_eq!(read.topic(), written.topic());
    assert_eq!(read.content_type(), written.content_type());
    assert_eq!(read.occurred_at(), written.occurred_at());
}

/// Every field comes back byte for byte, from a look and from a claim alike.
pub async fn case_20_fields_round_trip<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let nasty = "ÄÖ 🦀 \u{feff}' \" \\ ` -- %s {} ; ?1 $1 \r\n\t\u{7f}";
    let everything = Event::builder(nasty)
        .id("an id of mine; DROP TABLE \u{1F980}")
        .aggregate(nasty, nasty)
        .tenant_id(nasty)
        .topic(nasty)
        .content_type("application/json; charset=utf-8")
        .header("a'\"\\key 🦀", nasty)
        .header("empty", "")
        .header("B", "after a in no order of ours")
        .occurred_at(Timestamp::from_micros(1_700_000_000_123_457))
        .json_text("{ \"z\" : 1,  \"a\":\"\\u0000 \\ud83e\\udd80 \\/\", \"a\": 1.10,\n\t\"n\": 123456789012345678901234567890 } ")
        .build()
        .unwrap();
    let nothing = Event::builder("Bare").bytes(Vec::new()).build().unwrap();
    let empty_texts = Event::builder("E").aggregate_id("").tenant_id("").topic("").json_text("null").build().unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    let bytes = Event::builder("Bytes").content_type("image/png").bytes(bytes).build().unwrap();
    let before_1970 = Event::builder("Old").occurred_at(Timestamp::from_micros(-1)).json_text("\"x\"").build().unwrap();
    let written = [everything, nothing, empty_texts, bytes, before_1970];
    insert(&store, &written).await;

    for event in &written {
        let record = record(&store, event.id()).await;
        assert_same(&record.event.unwrap(), event);
        assert_eq!(record.id, *event.id());
        assert_eq!((record.state.status, record.state.attempts), (Status::New, 0));
        assert_eq!(record.state.available_at, record.state.created_at);
        assert_eq!((record.state.done_at, record.state.last_error, record.state.lease), (None, None, None));
    }
    let (_, claimed) = claim(&store, 100).await;
    assert_eq!(claimed.len(), written.len());
    for (row, event) in claimed.iter().zip(&written) {
        assert_same(&row.event, event);
        assert_eq!(row.attempts, 0);
    }
}

/// Every field comes back whatever the batch is like: of usual events or others, with leases or without, of any size, and of
/// the same size again.
pub async fn case_20_batches_of_every_kind<F: Fixture>(fixture: F) {
    const SHAPES: [fn() -> Event; 5] = [
        || Event::builder("Usual").aggregate("Order", 7).json_text("{\"usual\":1}").build().unwrap(),
        || Event::builder("Global").json_text("null").build().unwrap(),
        || Event::builder("Typed").content_type("application/cloudevents+json").json_text("{}").build().unwrap(),
        || Event::builder("Full").tenant_id("t").topic("o").header("a", "b").json_text("[]").build().unwrap(),
        || Event::builder("Bytes").aggregate("Image", 1).bytes(vec![0, 159]).build().unwrap(),
    ];
    let (store, lease) = (fixture.store(), lease());
    for size in [1, 3, 3, 3, 40, 40, 3] {
        for shapes in [&SHAPES[..1], &SHAPES[..2], &SHAPES[1..3], &SHAPES[..]] {
            // None of them has a lease, all have, every second has.
            for leases in [0, 1, 2] {
                let row = |number: usize| match shapes[number % shapes.len()]() {
                    event if leases > 0 && number.is_multiple_of(leases) => leased(&event, &lease),
                    event => NewRow::new(event),
                };
                let rows: Vec<_> = (0..size).map(row).collect();
                insert_rows(&store, &rows).await;
                for row in &rows {
                    let record = record(&store, row.event.id()).await;
                    assert_same(&record.event.unwrap(), &row.event);
                    assert_eq!((record.state.status, record.state.attempts), (Status::New, 0));
                    assert_eq!(record.state.available_at, record.state.created_at);
                    let held = record.state.lease.map(|(lease, since)| {
                        assert_eq!(since, record.state.created_at);
                        lease
                    });
                    assert_eq!(held.as_deref(), row.lease.as_ref().map(posthaste_core::store::Lease::as_str));
                }
            }
        }
    }
}

/// What was built can be stored: every field at its limit, in characters of four bytes.
pub async fn case_20_fields_at_their_limits<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let crabs = |count: usize| "🦀".repeat(count);
    let json = format!("\"{}\"", "x".repeat(limit::PAYLOAD - 2));
    let long = Event::builder(crabs(limit::EVENT_TYPE))
        .id(crabs(limit::ID))
        .aggregate(crabs(limit::AGGREGATE_TYPE), crabs(limit::AGGREGATE_ID))
        .tenant_id(crabs(limit::TENANT_ID))
        .topic(crabs(limit::TOPIC))
        .content_type(crabs(limit::CONTENT_TYPE))
        .header("key", "v".repeat(limit::HEADERS - r#"{"key":""}"#.len()))
        .json_text(json)
        .build()
        .unwrap();
    let large = Event::builder("Large").bytes(vec![0xff; limit::PAYLOAD]).build().unwrap();
    insert(&store, &[long.clone(), large.clone()]).await;
    let (_, claimed) = claim(&store, 2).await;
    assert_same(&claimed[0].event, &long);
    assert_same(&claimed[1].event, &large);
}

/// A row may be born with a lease, and is then not for others.
pub async fn case_20_rows_are_born_leased<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (held, free) = (event("Held"), event("Free"));
    let lease = lease();
    insert_rows(&store, &[leased(&held, &lease), NewRow::new(free.clone())]).await;
    let born = state(&store, held.id()).await;
    assert_eq!(born.lease, Some((lease.as_str().to_owned(), born.created_at)));
    assert_eq!(born.status, Status::New);
    assert_at(&store, free.id(), Status::New, 0).await;
}

/// A taken id is a typed error that names it, whether it was taken long ago, in this transaction, or in this slice.
pub async fn case_21_duplicate_id<F: Fixture>(fixture: F) {
    let store = fixture.store();
    insert(&store, &[event_with_id("taken")]).await;
    let fresh = || NewRow::new(event("Fresh"));
    let slices: [Vec<NewRow>; 3] = [
        vec![NewRow::new(event_with_id("taken"))],
        vec![fresh(), NewRow::new(event_with_id("taken")), fresh()],
        vec![fresh(), NewRow::new(event_with_id("twice")), NewRow::new(event_with_id("twice"))],
    ];
    for (slice, expected) in slices.iter().zip(["taken", "taken", "twice"]) {
        let mut tx = store.begin().await.unwrap();
        let error = store.insert(&mut *tx, slice).await.unwrap_err();
        assert!(matches!(&error, Error::DuplicateId { id } if *id == expected), "{error:?}");
        assert!(error.to_string().contains(expected) && !error.is_transient(), "{error}");
        store.rollback(tx).await.unwrap();
    }
    assert_eq!(counts(&store).await.total(), 1);
}

/// What becomes of the transaction is its owner's decision: it may be rolled back and, where the database allows it,
/// go on with what it had before, but never with half of the refused slice.
pub async fn case_21_owner_decides<F: Fixture>(fixture: F) {
    let store = fixture.store();
    insert(&store, &[event_with_id("taken")]).await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut *tx, &[NewRow::new(event_with_id("before"))]).await.unwrap();
    let refused = [NewRow::new(event_with_id("half")), NewRow::new(event_with_id("before"))];
    let error = store.insert(&mut *tx, &refused).await.unwrap_err();
    assert!(matches!(&error, Error::DuplicateId { id } if *id == "before"), "{error:?}");
    if F::GOES_ON_AFTER_ERROR {
        store.insert(&mut *tx, &[NewRow::new(event_with_id("after"))]).await.unwrap();
        store.commit(tx).await.unwrap();
        assert_eq!(crate::rows::claim_ids(&store, 10).await, ["taken", "before", "after"]);
    } else {
        store.rollback(tx).await.unwrap();
        assert_eq!(crate::rows::claim_ids(&store, 10).await, ["taken"]);
    }
}
