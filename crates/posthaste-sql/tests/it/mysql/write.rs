//! Inserts, transactions and commits.

use std::time::Duration;

use posthaste_core::store::{AdminStore, CommitError, Error, Lease, NewRow, RelayStore, WriteStore};
use posthaste_core::{Event, EventId, Timestamp};
use posthaste_sql::MySqlStore;

use super::{Database, execute, pool};
use crate::support::{claim, event, ids, unleased, write};

#[tokio::test]
async fn payloads_come_back_byte_for_byte() {
    let database = Database::new().await;
    let store = database.store().await;
    let texts = [
        r#" { "b" : 1,  "a":"\u0000 \ud83d\ude00 é 😀 \" \\ ' ` ; --", "a": 1.0e0 } "#,
        "[1,\n\t2 ,3]\r\n",
        "\"\"",
        "0 ",
        "12345678901234567890123456789.10",
        "null",
    ];
    let bytes: [&[u8]; 3] = [b"", b"\0\xff\xfe ", "text".as_bytes()];
    let of_texts = texts.iter().map(|text| Event::of_json("T", *text).unwrap());
    let of_bytes = bytes.iter().map(|bytes| Event::builder("T").bytes(*bytes).build().unwrap());
    let full = Event::builder("Größe'\"")
        .aggregate("Ördër 😀", "4\"2\\")
        .tenant_id("t'1 ")
        .topic("a.b")
        .content_type("application/x+json")
        .header("k\"e'y", "välue \u{1}\n😀")
        .json_text("{}")
        .build()
        .unwrap();
    let events: Vec<Event> = of_texts.chain(of_bytes).chain([full]).collect();
    write(&store, events.clone()).await;

    let (_, claimed) = claim(&store, 100).await;
    assert!(claimed.malformed.is_empty(), "{:?}", claimed.malformed);
    let back: Vec<Event> = claimed.rows.into_iter().map(|row| row.event).collect();
    assert_eq!(back, events);
    for event in events {
        assert_eq!(store.find(event.id()).await.unwrap().unwrap().event.unwrap(), event);
    }
}

#[tokio::test]
async fn ids_that_differ_at_all_are_different() {
    let database = Database::new().await;
    let store = database.store().await;
    // By case, by a trailing space, by an accent, by how the accent is made.
    let spellings = ["a", "A", "a ", "\u{e1}", "a\u{301}", "ß", "ss"];
    write(&store, spellings.map(event)).await;
    let (_, claimed) = claim(&store, 100).await;
    assert_eq!(ids(&claimed), spellings);
    let found = store.find(&EventId::from_row("a ")).await.unwrap().unwrap();
    assert_eq!(found.id, "a ");
}

#[tokio::test]
async fn ten_thousand_rows_go_in_at_once_and_keep_their_order() {
    let database = Database::new().await;
    let store = database.store().await;
    let events: Vec<Event> = (0..10_000).map(|n| event(&format!("{n:05}"))).collect();
    write(&store, events).await;
    write(&store, []).await;
    assert_eq!(store.counts().await.unwrap().new, 10_000);
    let (_, claimed) = claim(&store, 20_000).await;
    assert_eq!(claimed.rows.len(), 10_000);
    assert!(ids(&claimed).is_sorted());
}

#[tokio::test]
async fn a_batch_larger_than_the_largest_packet_is_cut() {
    let database = Database::new().await;
    let store = database.store().await;
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    let of_size = |n: usize| Event::builder("T").id(n.to_string()).json_text(large.clone()).build().unwrap();
    write(&store, (0..40).map(of_size)).await;
    let (_, claimed) = claim(&store, 100).await;
    assert_eq!(ids(&claimed), (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(claimed.rows.iter().all(|row| row.event.payload().len() == 1_000_002));
}

#[tokio::test]
async fn a_taken_id_is_named_and_leaves_none_of_its_batch_in_a_transaction_that_goes_on() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    // From here on the transaction sees the table as it is now.
    sqlx::query("SELECT * FROM outbox_event").fetch_all(&mut *tx).await.unwrap();
    write(&store, [event("taken")]).await;

    for size in [1, 8, 100, 1_000] {
        let mut batch: Vec<Event> = (1..size).map(|n| event(&format!("{size}-{n}"))).collect();
        batch.push(event("taken"));
        let error = store.insert(&mut tx, &unleased(batch)).await.unwrap_err();
        assert!(matches!(&error, Error::DuplicateId { id } if *id == "taken"), "{error:?}");
    }
    let twice = unleased([event("a"), event("twice"), event("b"), event("twice")]);
    let error = store.insert(&mut tx, &twice).await.unwrap_err();
    assert!(matches!(&error, Error::DuplicateId { id } if *id == "twice"), "{error:?}");
    store.insert(&mut tx, &unleased([event("after")])).await.unwrap();
    store.commit(tx).await.unwrap();

    let (_, claimed) = claim(&store, 10_000).await;
    assert_eq!(ids(&claimed), ["taken", "after"]);
}

/// Three rows go in by two statements.
#[tokio::test]
async fn a_batch_that_is_refused_in_the_middle_leaves_nothing_in_a_transaction_that_goes_on() {
    let database = Database::new().await;
    let store = database.store().await;
    let trigger = "CREATE TRIGGER refusing BEFORE INSERT ON outbox_event FOR EACH ROW BEGIN \
                   IF NEW.event_id = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END";
    execute(&store, trigger).await;
    let mut tx = store.begin().await.unwrap();
    let error = store.insert(&mut tx, &unleased(["first", "second", "bad"].map(event))).await.unwrap_err();
    assert!(format!("{error:?}").contains("not this one"), "{error:?}");
    store.insert(&mut tx, &unleased([event("after")])).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["after"]);
}

#[tokio::test]
async fn a_row_born_leased_is_left_alone_until_the_lease_ends() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    let born = NewRow::leased(event("born"), Lease::new("writer", 7));
    store.insert(&mut tx, &[born]).await.unwrap();
    store.commit(tx).await.unwrap();

    let record = store.find(&EventId::from_row("born")).await.unwrap().unwrap();
    let (lease, leased_at) = record.state.lease.unwrap();
    assert_eq!((lease.as_str(), leased_at), ("writer/7", record.state.created_at));
    assert!(claim(&store, 10).await.1.rows.is_empty());
    execute(&store, "UPDATE outbox_event SET locked_at = locked_at - INTERVAL 300 SECOND").await;
    assert_eq!(ids(&claim(&store, 10).await.1), ["born"]);
}

#[tokio::test]
async fn a_foreign_transaction_can_be_written_to() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.pool().begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("1"), event("2"), event("3")])).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(store.counts().await.unwrap().total(), 0);
    let mut tx = store.pool().begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("1"), event("2"), event("3")])).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(store.counts().await.unwrap().new, 3);
}

#[tokio::test]
async fn savepoints_of_the_user_nest_in_our_transaction() {
    use sqlx::Connection;
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("outer")])).await.unwrap();
    let mut inner = tx.begin().await.unwrap();
    store.insert(&mut inner, &unleased([event("inner"), event("inner 2"), event("inner 3")])).await.unwrap();
    inner.rollback().await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["outer"]);
}

#[tokio::test]
async fn a_commit_without_an_answer_may_have_happened() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("lost")])).await.unwrap();
    let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(&mut *tx).await.unwrap();
    execute(&store, &format!("KILL {id}")).await;
    let error = store.commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    write(&store, [event("kept")]).await;
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"]);
}

#[tokio::test]
async fn a_pool_of_one_connection_is_enough() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let tasks = (0..8).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..20 {
                write(&store, [event(&format!("{task}-{n}"))]).await;
                let (lease, claimed) = claim(&store, 3).await;
                let settlements = crate::support::settle_all(&lease, &claimed, &posthaste_core::store::Action::Done);
                store.settle(&settlements).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.pending(), counts.done), (0, 160));
}

#[tokio::test]
async fn the_statements_of_the_documents_work() {
    let database = Database::new().await;
    let store = database.store().await;
    let insert = "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id,
           tenant_id, payload, headers, status, attempts, available_at, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)";
    for id in ["doc", "done", "retry", "dead"] {
        sqlx::query(insert)
            .bind(id)
            .bind("OrderPlaced")
            .bind("Order")
            .bind("42")
            .bind(None::<String>)
            .bind("{\"total\": 1}")
            .bind("{\"trace\":\"x\"}")
            .bind("2026-01-31 08:15:00.250000")
            .bind("2026-01-31 08:15:00.250000")
            .execute(store.pool())
            .await
            .unwrap();
    }
    execute(
        &store,
        "UPDATE outbox_event SET status = 1, done_at = '2026-01-31 08:16:00', locked_by = NULL, locked_at = NULL \
         WHERE event_id = 'done' AND status <> 1",
    )
    .await;
    execute(
        &store,
        "UPDATE outbox_event SET status = 2, attempts = attempts + 1, available_at = '2026-01-31 08:17:00', \
         last_error = 'x', locked_by = NULL, locked_at = NULL WHERE event_id = 'retry' AND status <> 1",
    )
    .await;
    execute(
        &store,
        "UPDATE outbox_event SET status = 3, last_error = 'x', locked_by = NULL, locked_at = NULL \
         WHERE event_id = 'dead' AND status <> 1",
    )
    .await;
    // The least that another program can say.
    execute(&store, "INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('least', 'T', '1')").await;

    let claimed = claim(&store, 10).await.1;
    assert_eq!(ids(&claimed), ["doc", "retry", "least"]);
    assert_eq!(claimed.rows[0].event.header("trace"), Some("x"));
    assert_eq!(claimed.rows[0].event.occurred_at().to_string(), "2026-01-31T08:15:00.25Z");
    assert_eq!(claimed.rows[1].attempts, 1);
    assert_eq!(claimed.rows[2].event.aggregate_type(), "__GLOBAL__");
    assert!(claimed.rows[2].lag < Duration::from_secs(60));
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.new, counts.retry, counts.done, counts.dead), (2, 1, 1, 1));
}

#[tokio::test]
async fn the_time_zone_of_a_session_does_not_matter() {
    let database = Database::new().await;
    let east =
        MySqlStore::new(pool(2).connect_with(database.options().timezone(Some("+05:00".to_owned()))).await.unwrap());
    let west =
        MySqlStore::new(pool(2).connect_with(database.options().timezone(Some("-08:00".to_owned()))).await.unwrap());
    east.migrate().await.unwrap();
    let at = Timestamp::from_micros(1_700_000_000_123_456);
    let past = Event::builder("T").id("past").json_text("{}").occurred_at(at).available_at(at).build().unwrap();
    write(&east, [event("east"), past]).await;
    execute(&east, "INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('defaults', 'T', '1')").await;

    let (_, claimed) = claim(&west, 10).await;
    assert_eq!(ids(&claimed), ["past", "east", "defaults"]);
    assert!(claimed.rows[1].lag < Duration::from_secs(60) && claimed.rows[2].lag < Duration::from_secs(60));
    assert!(claim(&east, 10).await.1.rows.is_empty());
    let state = west.find(&EventId::from_row("past")).await.unwrap().unwrap().state;
    assert_eq!(state.available_at, at);
    assert!(Timestamp::now().since(state.created_at) < Duration::from_secs(60));
}

#[tokio::test]
async fn delays_are_counted_from_the_insert() {
    let database = Database::new().await;
    let store = database.store().await;
    let delay = Duration::from_secs(3600);
    let delayed = |id: &str, delay| Event::builder("T").id(id).json_text("{}").deliver_after(delay).build().unwrap();
    write(
        &store,
        [delayed("later", delay * 2), delayed("soon", delay), event("now"), delayed("never", delay * 24 * 36_500)],
    )
    .await;
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["now"]);
    let next_in = claimed.next_in.unwrap();
    assert!(next_in <= delay && next_in > delay - Duration::from_secs(60), "{next_in:?}");
    // A full claim does not look.
    write(&store, [event("another")]).await;
    assert_eq!(claim(&store, 1).await.1.next_in, None);
}
