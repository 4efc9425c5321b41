//! Inserts, transactions and commits.

use std::time::Duration;

use posthaste_core::store::{AdminStore, CommitError, Error, Lease, NewRow, RelayStore, WriteStore};
use posthaste_core::{Delivery, Event, EventId, Options, Outbox};
use sqlx::Connection;

use crate::support::{Database, claim, claim_of, event, ids, sql_of_other_languages, unleased, write};

#[tokio::test]
async fn payloads_come_back_byte_for_byte() {
    let store = Database::new();
    let store = store.store().await;
    let texts = [
        r#" { "b" : 1,  "a":"\u0000 \ud83d\ude00 é 😀 \" \\ ' ` ; --", "a": 1.0e0 } "#,
        "[1,\n\t2 ,3]\r\n",
        "\"\"",
        "0",
        "12345678901234567890123456789.10",
        "null",
    ];
    let bytes: [&[u8]; 3] = [b"", b"\0\xff\xfe", "text".as_bytes()];
    let of_texts = texts.iter().map(|text| Event::of_json("T", *text).unwrap());
    let of_bytes = bytes.iter().map(|bytes| Event::builder("T").bytes(*bytes).build().unwrap());
    let full = Event::builder("Größe'\"")
        .aggregate("Ördër", "4\"2")
        .tenant_id("t'1")
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

/// A savepoint that was dropped is rolled back to at once, and ended with the next one: they do not pile up.
#[tokio::test]
async fn dropped_savepoints_do_not_nest() {
    let database = Database::new();
    let store = database.store().await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    for _ in 0..3 {
        let mut dropped = tx.savepoint().await.unwrap();
        dropped.write(event("undone")).await.unwrap();
        // One inside of it goes with it.
        drop(dropped.savepoint().await.unwrap());
    }
    let mut kept = tx.savepoint().await.unwrap();
    kept.write(event("kept")).await.unwrap();
    kept.commit().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"]);

    let mut tx = outbox.begin().await.unwrap();
    for _ in 0..3 {
        drop(tx.savepoint().await.unwrap());
    }
    tx.savepoint().await.unwrap().commit().await.unwrap();
    let none = sqlx::raw_sql("RELEASE SAVEPOINT _sqlx_savepoint_1").execute(&mut *tx).await.unwrap_err();
    assert!(none.to_string().contains("no such savepoint"), "{none}");
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn ten_thousand_rows_go_in_at_once_and_keep_their_order() {
    let database = Database::new();
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
async fn a_taken_id_is_named_and_leaves_none_of_its_batch_in_a_transaction_that_goes_on() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, [event("taken")]).await;

    let mut tx = store.begin().await.unwrap();
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

#[tokio::test]
async fn a_row_born_leased_is_left_alone_until_the_lease_ends() {
    let database = Database::new();
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    let born = NewRow::leased(event("born"), Lease::new("writer", 7));
    store.insert(&mut tx, &[born]).await.unwrap();
    store.commit(tx).await.unwrap();

    let record = store.find(&EventId::from_row("born")).await.unwrap().unwrap();
    let (lease, leased_at) = record.state.lease.unwrap();
    assert_eq!((lease.as_str(), leased_at), ("writer/7", record.state.created_at));
    assert!(claim(&store, 10).await.1.rows.is_empty());
    sqlx::query("UPDATE outbox_event SET locked_at = locked_at - 300000000").execute(store.pool()).await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["born"]);
}

#[tokio::test]
async fn a_foreign_transaction_can_be_written_to() {
    let database = Database::new();
    let store = database.store().await;
    let mut tx = store.pool().begin_with("BEGIN IMMEDIATE").await.unwrap();
    store.insert(&mut tx, &unleased([event("1"), event("2"), event("3")])).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(store.counts().await.unwrap().total(), 0);
    let mut tx = store.pool().begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("1"), event("2"), event("3")])).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(store.counts().await.unwrap().new, 3);
}

#[tokio::test]
async fn a_failed_commit_says_what_is_certain_and_spoils_no_connection() {
    let database = Database::new();
    let store = database.store_of_one().await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("lost")])).await.unwrap();
    // SQLite ends transactions by itself after some errors, unknown to sqlx. What is written after that commits alone.
    sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
    let error = store.commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");

    write(&store, [event("kept")]).await;
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"]);

    // A deferred constraint fails in the commit itself, and leaves the transaction open.
    let mut tx = store.begin().await.unwrap();
    sqlx::raw_sql(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
         INSERT INTO child VALUES (1)",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    let error = store.commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
    write(&store, [event("also kept")]).await;
    assert!(!store.pool().acquire().await.unwrap().is_in_transaction());
}

#[tokio::test]
async fn a_pool_of_one_connection_is_enough() {
    let database = Database::new();
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
async fn the_insert_of_the_documents_works() {
    let database = Database::new();
    let store = database.store().await;
    let now = posthaste_core::Timestamp::now().as_micros();
    sqlx::query(
        "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id,
           tenant_id, payload, headers, status, attempts, available_at, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)",
    )
    .bind("doc")
    .bind("OrderPlaced")
    .bind("Order")
    .bind("42")
    .bind(None::<String>)
    .bind("{\"total\": 1}")
    .bind("{\"trace\":\"x\"}")
    .bind(now)
    .bind(now)
    .execute(store.pool())
    .await
    .unwrap();
    // The least that another program can say.
    sqlx::query("INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('least', 'T', '1')")
        .execute(store.pool())
        .await
        .unwrap();
    // Text in the place of a moment would never be due; it is refused instead.
    let dated = "INSERT INTO outbox_event (event_id, event_type, payload, available_at) \
                 VALUES ('dated', 'T', '1', '2026-01-01 00:00:00')";
    assert!(sqlx::query(dated).execute(store.pool()).await.is_err());

    let claimed = claim(&store, 10).await.1;
    assert_eq!(claimed.rows.len(), 2);
    let by_id = |id: &str| claimed.rows.iter().find(|row| *row.event.id() == id).unwrap();
    assert_eq!(by_id("doc").event.header("trace"), Some("x"));
    assert_eq!(by_id("doc").event.occurred_at().as_micros(), now);
    assert_eq!(by_id("least").event.aggregate_type(), "__GLOBAL__");
    assert!(by_id("least").lag < Duration::from_secs(60));
}

#[tokio::test]
async fn delays_are_counted_from_the_insert() {
    let database = Database::new();
    let store = database.store().await;
    let delay = Duration::from_secs(3600);
    let delayed = |id: &str, delay| Event::builder("T").id(id).json_text("{}").deliver_after(delay).build().unwrap();
    write(&store, [delayed("later", delay * 2), delayed("soon", delay), event("now")]).await;
    let claim = claim_of(10);
    let claimed = store.claim(&claim).await.unwrap();
    assert_eq!(ids(&claimed), ["now"]);
    let next_in = claimed.next_in.unwrap();
    assert!(next_in <= delay && next_in > delay - Duration::from_secs(60), "{next_in:?}");
    // A full claim does not look.
    write(&store, [event("another")]).await;
    assert_eq!(crate::support::claim(&store, 1).await.1.next_in, None);
}

#[tokio::test]
async fn a_transaction_that_sqlite_has_ended_takes_no_events() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, [event("taken")]).await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    // One statement, and several.
    for events in [1, 1000] {
        let mut tx = outbox.begin().await.unwrap();
        sqlx::query("CREATE TABLE business (id INTEGER)").execute(&mut *tx).await.unwrap();
        let insert = "INSERT OR ROLLBACK INTO outbox_event (event_id, event_type) VALUES ('taken', 'X')";
        sqlx::query(insert).execute(&mut *tx).await.unwrap_err();
        for _ in 0..2 {
            let written = tx.write_all((0..events).map(|_| Event::of_json("Lonely", "{}"))).await;
            let error = format!("{:?}", written.unwrap_err());
            assert!(error.contains("the transaction has ended"), "{error}");
        }
        assert!(tx.commit().await.is_err());
        assert_eq!(store.counts().await.unwrap().total(), 1, "{events} events");
    }
    // Not even in a savepoint.
    let mut tx = outbox.begin().await.unwrap();
    let insert = "INSERT OR ROLLBACK INTO outbox_event (event_id, event_type) VALUES ('taken', 'X')";
    sqlx::query(insert).execute(&mut *tx).await.unwrap_err();
    let refused = tx.savepoint().await.map(drop);
    assert!(format!("{refused:?}").contains("the transaction has ended"), "{refused:?}");
    assert!(tx.write(Event::of_json("Lonely", "{}")).await.is_err());
    assert!(tx.commit().await.is_err());
    assert_eq!(store.counts().await.unwrap().total(), 1);
    // In one that is somebody else's.
    let mut tx = store.begin().await.unwrap();
    let insert = "INSERT OR ROLLBACK INTO outbox_event (event_id, event_type) VALUES ('taken', 'X')";
    sqlx::query(insert).execute(&mut *tx).await.unwrap_err();
    let error = store.insert(&mut tx, &unleased([event("lonely")])).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    drop(tx);
    assert_eq!(store.counts().await.unwrap().total(), 1);
    write(&store, [event("another")]).await;
    assert_eq!(store.counts().await.unwrap().total(), 2);
}

/// Not even for a moment: whoever polls might deliver it.
#[tokio::test]
async fn an_event_is_not_stored_outside_of_somebody_elses_transaction() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, [event("taken")]).await;
    let noted = "CREATE TABLE noted (id TEXT); \
                 CREATE TRIGGER note AFTER INSERT ON outbox_event BEGIN INSERT INTO noted VALUES (NEW.event_id); END";
    sqlx::raw_sql(noted).execute(store.pool()).await.unwrap();
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    for events in [1, 3, 3, 3, 1000] {
        let mut tx = store.pool().begin().await.unwrap();
        let insert = "INSERT OR ROLLBACK INTO outbox_event (event_id, event_type) VALUES ('taken', 'X')";
        sqlx::query(insert).execute(&mut *tx).await.unwrap_err();
        let written = outbox.write_all(&mut tx, (0..events).map(|_| Event::of_json("Lonely", "{}"))).await;
        assert!(format!("{:?}", written.unwrap_err()).contains("the transaction has ended"));
        drop(tx);
        let noted: i64 = sqlx::query_scalar("SELECT count(*) FROM noted").fetch_one(store.pool()).await.unwrap();
        assert_eq!((noted, store.counts().await.unwrap().total()), (0, 1), "{events} events");
    }
}

/// In a transaction of the outbox that a statement of the user's has ended, an event is refused, and is not there.
#[tokio::test]
async fn an_event_is_refused_after_the_end_of_a_transaction() {
    let database = Database::new();
    let store = database.store().await;
    sqlx::raw_sql("CREATE TABLE business (id INTEGER)").execute(store.pool()).await.unwrap();
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    for (statement, events) in
        [("ROLLBACK", 1), ("COMMIT", 1), ("ROLLBACK", 3), ("ROLLBACK", 3), ("COMMIT", 3), ("COMMIT", 1000)]
    {
        let mut tx = outbox.begin().await.unwrap();
        sqlx::raw_sql("INSERT INTO business VALUES (1)").execute(&mut *tx).await.unwrap();
        sqlx::raw_sql(statement).execute(&mut *tx).await.unwrap();
        for _ in 0..2 {
            let written = tx.write_all((0..events).map(|_| Event::of_json("Lonely", "{}"))).await;
            assert!(format!("{:?}", written.unwrap_err()).contains("the transaction has ended"), "{statement}");
        }
        assert!(tx.commit().await.is_err(), "{statement}");
        assert_eq!(store.counts().await.unwrap().total(), 0, "{statement}, {events} events");
    }
    // Where it is open it is written, as before.
    let mut tx = outbox.begin().await.unwrap();
    for (number, events) in [1, 3, 3, 3, 1000].into_iter().enumerate() {
        sqlx::raw_sql("INSERT INTO business VALUES (2)").execute(&mut *tx).await.unwrap();
        tx.write_all((0..events).map(|n| event(&format!("{number}-{n}")))).await.unwrap();
        let taken = tx.write(event(&format!("{number}-0"))).await.unwrap_err();
        assert!(format!("{taken:?}").contains("DuplicateId"), "{taken:?}");
    }
    tx.commit().await.unwrap();
    assert_eq!(store.counts().await.unwrap().total(), 1010);
}

/// What is undone by a statement is not delivered, and what is not takes the hot path.
#[tokio::test]
async fn what_a_statement_has_not_undone_takes_the_hot_path() {
    use crate::undone::Step::{Say, Write};
    use crate::undone::{Outcome, after};
    let database = Database::new();
    let store = database.store().await;
    let say = async |connection: &mut sqlx::SqliteConnection, statement| {
        sqlx::raw_sql(statement).execute(connection).await.unwrap();
    };
    let steps = [Write(&["kept"]), Say("SAVEPOINT mine"), Write(&["u", "v"]), Say("ROLLBACK TO mine"), Write(&["w"])];
    assert_eq!(after(&store, &steps, say).await, Outcome::of(&["kept", "w"], &[]));
}

/// What was rolled back by a statement of the user's is not delivered, although what came after it is committed.
#[tokio::test]
async fn a_statement_that_undoes_an_event() {
    let database = Database::new();
    let store = database.store().await;
    for (undo, after) in [
        ("ROLLBACK; BEGIN", false),
        ("ROLLBACK; BEGIN", true),
        ("ROLLBACK TO mine", false),
        ("ROLLBACK TO mine; RELEASE mine", true),
        ("COMMIT; BEGIN", true),
    ] {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let listener = move |event: Delivery| {
            tell.send((event.id().to_string(), event.path())).unwrap();
            async {}
        };
        let options = Options { poll_interval: Duration::from_secs(3600), workers: 1, ..Options::default() };
        let builder = Outbox::builder(store.clone()).options(options).listen_all(listener);
        let outbox = builder.start().await.unwrap();
        let mut tx = outbox.begin().await.unwrap();
        sqlx::raw_sql("SAVEPOINT mine").execute(&mut *tx).await.unwrap();
        let before = tx.write(Event::of_json("Before", "{}")).await.unwrap().unwrap();
        sqlx::raw_sql(undo).execute(&mut *tx).await.unwrap();
        let mut stored = if undo.starts_with("COMMIT") { vec![before.to_string()] } else { vec![] };
        if after {
            stored.push(tx.write(Event::of_json("After", "{}")).await.unwrap().unwrap().to_string());
        }
        sqlx::raw_sql("SELECT 1").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        for id in &stored {
            assert_eq!(told.recv().await.unwrap().0, *id, "{undo}");
        }
        assert!(outbox.shutdown().await.is_clean());
        assert_eq!(told.try_recv().ok(), None, "{undo}, {after}");
    }
    assert_eq!(store.counts().await.unwrap().done, 4);
}

#[tokio::test]
async fn connections_whose_transactions_sqlite_ended_are_in_nobodys_way() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, [event("taken")]).await;
    let mut connections = Vec::new();
    for _ in 0..8 {
        connections.push(store.pool().acquire().await.unwrap());
    }
    for connection in connections.iter_mut().step_by(2) {
        // Not even the rollback at its end does away with what sqlx believes.
        let mut tx = connection.begin().await.unwrap();
        let insert = "INSERT OR ROLLBACK INTO outbox_event (event_id, event_type) VALUES ('taken', 'X')";
        sqlx::query(insert).execute(&mut *tx).await.unwrap_err();
    }
    // Back into the pool in this order, a spoilt one before each good one.
    for (returned, connection) in connections.into_iter().enumerate() {
        drop(connection);
        while store.pool().num_idle() <= returned {
            tokio::task::yield_now().await;
        }
    }
    for number in 0..16 {
        write(&store, [event(&format!("event {number}"))]).await;
    }
    assert_eq!(store.counts().await.unwrap().new, 17);
}

#[tokio::test]
async fn the_page_on_other_languages_works() {
    let database = Database::new();
    let store = database.store().await;
    sqlx::raw_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        .execute(store.pool())
        .await
        .unwrap();
    let blocks = sql_of_other_languages("SQLite");
    assert_eq!(blocks.len(), 1);
    sqlx::raw_sql(blocks[0]).execute(store.pool()).await.unwrap();
    let (_, claimed) = claim(&store, 10).await;
    assert!(claimed.malformed.is_empty(), "{:?}", claimed.malformed);
    let event = &claimed.rows[0].event;
    assert_eq!((event.aggregate_id(), event.header("region")), (Some("42"), Some("eu")));
}
