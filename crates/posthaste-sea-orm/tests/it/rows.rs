//! What was written is what is stored.

use posthaste_core::event::limit;
use posthaste_core::listener::Path;
use posthaste_core::store::{Claim, Error, Lease};
use posthaste_core::{Event, Outbox, Status, Timestamp, WriteError};
use posthaste_sea_orm::OutboxExt;
use sea_orm::TransactionTrait;

use crate::order::{place, placed};
use crate::support::{Sea, Shop, event, event_with_id, told, with_orders};

crate::tests! { every:
    case_20_fields_round_trip,
    case_20_fields_at_their_limits,
    case_21_duplicate_id,
    case_21_duplicate_id_in_a_later_statement,
    tables_of_any_name,
}

fn assert_same(read: &Event, written: &Event) {
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
async fn case_20_fields_round_trip<F: Sea>() {
    let fixture = F::create().await;
    let db = with_orders(&fixture).await;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let nasty = "ÄÖ 🦀 \u{feff}' \" \\ ` -- %s {} ; ?1 $1 \r\n\t\u{7f}";
    let everything = Event::builder(nasty)
        .id("an id of mine; DROP TABLE \u{1F980}")
        .aggregate(nasty, nasty)
        .tenant_id(nasty)
        .topic(nasty)
        .content_type("application/json; charset=utf-8")
        .header("a'\"\\key 🦀", nasty)
        .header("empty", "")
        .occurred_at(Timestamp::from_micros(1_700_000_000_123_457))
        .json_text("{ \"z\" : 1,  \"a\":\"\\u0000 \\ud83e\\udd80 \\/\", \"a\": 1.10,\n\t\"n\": 123456789012345678901234567890 } ")
        .build()
        .unwrap();
    let nothing = Event::builder("Bare").bytes(Vec::new()).build().unwrap();
    let empty_texts = Event::builder("E").aggregate_id("").tenant_id("").topic("").json_text("null").build().unwrap();
    let bytes =
        Event::builder("Bytes").content_type("image/png").bytes((0..=255).collect::<Vec<u8>>()).build().unwrap();
    let before_1970 = Event::builder("Old").occurred_at(Timestamp::from_micros(-1)).json_text("\"x\"").build().unwrap();
    let written = [everything, nothing, empty_texts, bytes, before_1970];

    let mut tx = outbox.begin_on(&db).await.unwrap();
    tx.write_all(&written[..3]).await.unwrap();
    tx.commit().await.unwrap();
    let txn = db.begin().await.unwrap();
    let receipt = outbox.write_all_in(&txn, &written[3..]).await.unwrap();
    txn.commit().await.unwrap();
    receipt.dispatch();

    for event in &written {
        let record = outbox.admin().find(event.id()).await.unwrap().unwrap();
        assert_same(&record.event.unwrap(), event);
        assert_eq!((record.state.status, record.state.attempts), (Status::New, 0));
        assert_eq!(record.state.available_at, record.state.created_at);
        assert_eq!((record.state.done_at, record.state.last_error, record.state.lease), (None, None, None));
    }
    let claimed = claim(&outbox).await;
    assert_eq!(claimed.len(), written.len());
    for (read, event) in claimed.iter().zip(&written) {
        assert_same(read, event);
    }
}

async fn claim<S: posthaste_sea_orm::SeaOrmStore>(outbox: &Outbox<S>) -> Vec<Event> {
    let claim = Claim {
        lease: Lease::new("node", 1),
        lease_duration: std::time::Duration::from_secs(300),
        limit: 100,
        skip_recent: std::time::Duration::ZERO,
    };
    let claimed = outbox.store().claim(&claim).await.unwrap();
    assert!(claimed.malformed.is_empty(), "{:?}", claimed.malformed);
    claimed.rows.into_iter().map(|row| row.event).collect()
}

/// Every field at its limit, in characters of four bytes.
async fn case_20_fields_at_their_limits<F: Sea>() {
    let fixture = F::create().await;
    let db = with_orders(&fixture).await;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let crabs = |count: usize| "🦀".repeat(count);
    let long = Event::builder(crabs(limit::EVENT_TYPE))
        .id(crabs(limit::ID))
        .aggregate(crabs(limit::AGGREGATE_TYPE), crabs(limit::AGGREGATE_ID))
        .tenant_id(crabs(limit::TENANT_ID))
        .topic(crabs(limit::TOPIC))
        .content_type(crabs(limit::CONTENT_TYPE))
        .header("key", "v".repeat(limit::HEADERS - r#"{"key":""}"#.len()))
        .json_text(format!("\"{}\"", "x".repeat(limit::PAYLOAD - 2)))
        .build()
        .unwrap();
    let large = Event::builder("Large").bytes(vec![0xff; limit::PAYLOAD]).build().unwrap();
    let mut tx = outbox.begin_on(&db).await.unwrap();
    tx.write_all([&long, &large]).await.unwrap();
    tx.commit().await.unwrap();
    let claimed = claim(&outbox).await;
    assert_same(&claimed[0], &long);
    assert_same(&claimed[1], &large);
}

/// A taken id is a typed error that names it, whether it was taken long ago or in this slice.
async fn case_21_duplicate_id<F: Sea>() {
    let fixture = F::create().await;
    let db = with_orders(&fixture).await;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let mut tx = outbox.begin_on(&db).await.unwrap();
    tx.write(event_with_id("taken")).await.unwrap();
    tx.commit().await.unwrap();
    let slices = [
        vec![event_with_id("taken")],
        vec![event("Fresh"), event_with_id("taken"), event("Fresh")],
        vec![event("Fresh"), event_with_id("twice"), event_with_id("twice")],
    ];
    for (slice, expected) in slices.iter().zip(["taken", "taken", "twice"]) {
        let mut tx = outbox.begin_on(&db).await.unwrap();
        let error = tx.write_all(slice).await.unwrap_err();
        assert!(is_taken(&error, expected), "{error:?}");
        tx.rollback().await.unwrap();
        let txn = db.begin().await.unwrap();
        let error = outbox.write_all_in(&txn, slice).await.unwrap_err();
        assert!(is_taken(&error, expected), "{error:?}");
        txn.rollback().await.unwrap();
    }
    assert_eq!(crate::support::rows(&outbox).await, 1);
    fixture.assert_no_open_transaction().await;
}

fn is_taken(error: &WriteError, expected: &str) -> bool {
    let named = error.to_string() == format!("event Identified (id {expected}) could not be stored");
    named && matches!(error, WriteError::Store { error: Error::DuplicateId { id }, .. } if *id == expected)
}

/// So many that there are several statements, of which a later one is refused. Where the transaction goes on, none of them is
/// in it, and what came before is.
async fn case_21_duplicate_id_in_a_later_statement<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let mut many: Vec<_> = (0..3000).map(|_| event("Many")).collect();
    many.extend([event_with_id("twice"), event_with_id("twice")]);
    let (before, after) = (event("Before"), event("After"));
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&before).await.unwrap();
    let error = tx.write_all(&many).await.unwrap_err();
    assert!(is_taken(&error, "twice"), "{error:?}");
    if !F::GOES_ON_AFTER_ERROR {
        tx.commit().await.unwrap_err();
        assert_eq!(shop.rows().await, 0);
        return shop.close().await;
    }
    tx.write(&after).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(shop.witness.told(), [told("commit", &[&before, &after])]);
    for event in [&before, &after] {
        let delivery = shop.inbox.next().await;
        assert_eq!((delivery.id(), delivery.path()), (event.id(), Path::Hot));
    }
    assert_eq!(shop.rows().await, 2);

    let txn = shop.db.begin().await.unwrap();
    place(&txn, 1).await;
    let error = shop.outbox.write_all_in(&txn, &many).await.unwrap_err();
    assert!(is_taken(&error, "twice"), "{error:?}");
    txn.commit().await.unwrap();
    assert_eq!((shop.rows().await, placed(&shop.db).await), (2, vec![1]));
    assert_eq!(shop.witness.told(), []);
    shop.close().await;
}

/// A name with capital letters, in a schema.
async fn tables_of_any_name<F: Sea>() {
    let fixture = F::create().await;
    let db = with_orders(&fixture).await;
    let store = F::with_table(fixture.store(), &format!("{}.Order_Events", fixture.schema())).unwrap();
    F::migrate(&store).await.unwrap();
    let outbox = Outbox::writer_only(store).start().await.unwrap();
    let mut tx = outbox.begin_on(&db).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("Kept")).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(crate::support::rows(&outbox).await, 1);
    let twice = outbox.begin_on(&db).await.unwrap().write_all([event_with_id("a"), event_with_id("a")]).await;
    assert!(is_taken(&twice.unwrap_err(), "a"));
}
