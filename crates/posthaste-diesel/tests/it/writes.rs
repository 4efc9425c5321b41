//! What is written, and how much of it.

use std::time::Duration;

use diesel::result::Error as DieselError;
use diesel_async::{AsyncConnection, SimpleAsyncConnection};
use posthaste_conformance::testing::{event, events, ids_of, watched};
use posthaste_conformance::{Gate, Tap, no_interval};
use posthaste_core::event::Availability;
use posthaste_core::listener::Path;
use posthaste_core::store::{Error, Filter, Page};
use posthaste_core::{Event, Options, Outbox, Status, Timestamp, WriteError};
use posthaste_diesel::OutboxExt;

use crate::database::Database;
use crate::observe::total;

pub(crate) async fn case_14_large_batch<D: Database>(database: D) {
    const EVENTS: usize = 10_000;
    let outbox = Outbox::writer_only(database.store()).start().await.unwrap();
    let mut conn = database.connect().await;
    let many = events(EVENTS);
    let ids = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write_all(&many).await?)).await.unwrap();
    assert_eq!(ids.len(), EVENTS);
    let page = Page { limit: EVENTS + 1, ..Page::default() };
    let stored = outbox.admin().list(&Filter::default(), &page).await.unwrap();
    let stored: Vec<String> = stored.iter().map(|record| record.id.to_string()).collect();
    assert_eq!(stored, ids_of(&many));
}

pub(crate) async fn case_14_empty_batch<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    outbox
        .transaction_on(&mut conn, async |tx| {
            assert!(tx.write_all(events(0)).await?.is_empty());
            outbox.write_all_in(tx, events(0)).await?.dispatch();
            anyhow::Ok(())
        })
        .await
        .unwrap();
    assert_eq!((total(&outbox).await, witness.told()), (0, vec![]));
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// One bad event in a batch, or one whose id is taken, in its last statement: none of them is written.
pub(crate) async fn case_14_all_or_none<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let taken = event("Taken");
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&taken).await?)).await.unwrap();
    assert_eq!(inbox.next().await.id(), taken.id());
    let mut many = events(3000);
    many.push(taken.clone());
    let good = || Event::builder("Good").json_text("{}");
    outbox
        .transaction_on(&mut conn, async |tx| {
            let error = tx.write_all([good(), Event::builder("").json_text("{}"), good()]).await.unwrap_err();
            assert!(matches!(error, WriteError::Event(_)), "{error:?}");
            if D::GOES_ON_AFTER_ERROR {
                let error = tx.write_all(&many).await.unwrap_err();
                assert!(matches!(error, WriteError::Store { error: Error::DuplicateId { .. }, .. }), "{error:?}");
            }
            tx.write(good()).await?;
            anyhow::Ok(())
        })
        .await
        .unwrap();
    assert_eq!(inbox.next().await.event_type(), "Good");
    assert_eq!(total(&outbox).await, 2);
    assert!(witness.told().iter().all(|(step, ids)| *step == "commit" && ids.len() == 1));
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// What the hot queue has no room for is written all the same, free for any poller.
pub(crate) async fn case_15_full_hot_queue<D: Database>(database: D) {
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let options = Options { hot_queue: 2, workers: 1, ..no_interval() };
    let (outbox, meter) = posthaste_conformance::start(database.store(), options, tap.behind(&gate)).await;
    let mut conn = database.connect().await;
    let many = events(5);
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write_all(&many).await?)).await.unwrap();
    assert_eq!(meter.tally().hot_dropped, 3);
    gate.open();
    let mut paths = Vec::new();
    for _ in 0..5 {
        paths.push(inbox.next().await.path());
    }
    assert_eq!(paths.iter().filter(|path| **path == Path::Hot).count(), 2);
    meter.until("all are delivered", |tally| tally.delivered == 5).await;
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Places that were reserved in the hot queue are given back, however the transaction ended.
pub(crate) async fn case_10_places_are_given_back<D: Database>(database: D) {
    let (tap, mut inbox) = Tap::new();
    let options = Options { hot_queue: 1, ..no_interval() };
    let (outbox, meter) = posthaste_conformance::start(database.store(), options, tap).await;
    let mut conn = database.connect().await;
    let taken = event("Taken");
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&taken).await?)).await.unwrap();
    assert_eq!(inbox.next().await.path(), Path::Hot);
    for ending in ["error", "failed commit", "refused", "outside", "cut off", "receipt", "dropped receipt"] {
        match ending {
            "outside" => drop(outbox.write_in(&mut conn, event(ending)).await.unwrap_err()),
            "cut off" => {
                let mut conn = database.connect().await;
                let (written, told) = tokio::sync::oneshot::channel();
                let endless = outbox.transaction_on(&mut conn, async |tx| {
                    tx.write(event(ending)).await?;
                    let _ = written.send(());
                    std::future::pending::<anyhow::Result<()>>().await
                });
                tokio::select! {
                    ended = endless => panic!("{ended:?}"),
                    told = told => told.unwrap(),
                }
            }
            "receipt" | "dropped receipt" => {
                let mut receipt = None;
                let undone = conn.transaction(async |conn| {
                    receipt = Some(outbox.write_in(conn, event(ending)).await.unwrap());
                    Err::<(), _>(DieselError::RollbackTransaction)
                });
                undone.await.unwrap_err();
                if ending == "receipt" {
                    receipt.unwrap().rolled_back();
                }
            }
            _ => {
                let undone = outbox.transaction_on(&mut conn, async |tx| {
                    match ending {
                        "refused" => drop(tx.write(&taken).await?),
                        "failed commit" => {
                            tx.batch_execute("INSERT INTO orders (total, customer) VALUES (1, 404)").await?;
                            tx.write(event(ending)).await?;
                        }
                        _ => {
                            tx.write(event(ending)).await?;
                            anyhow::bail!("undone");
                        }
                    }
                    anyhow::Ok(())
                });
                undone.await.unwrap_err();
            }
        }
        let next = event("Next");
        outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&next).await?)).await.unwrap();
        assert_eq!(inbox.arrival().await, (next.id().to_string(), Path::Hot), "after {ending}");
    }
    assert_eq!(meter.tally().hot_dropped, 0);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// An event that waits never enters the hot queue; the poller has it when it is due.
pub(crate) async fn case_16_delayed_events<D: Database>(database: D) {
    const LATER: Duration = Duration::from_secs(300);
    let (tap, mut inbox) = Tap::new();
    let (outbox, meter) = posthaste_conformance::start(database.store(), no_interval(), tap).await;
    let mut conn = database.connect().await;
    let after = Event::builder("After").deliver_after(LATER).json_text("{}").build().unwrap();
    let at = Event::builder("At").available_at(Timestamp::now() + LATER).json_text("{}").build().unwrap();
    let late = [after, at];
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write_all(&late).await?)).await.unwrap();
    for event in &late {
        let state = outbox.admin().find(event.id()).await.unwrap().unwrap().state;
        assert_eq!((state.status, state.lease), (Status::New, None));
        let waits = state.available_at.since(state.created_at);
        assert!(waits > LATER - Duration::from_secs(60) && waits <= LATER, "{waits:?}");
    }
    let next = event("Next");
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&next).await?)).await.unwrap();
    assert_eq!(inbox.next().await.id(), next.id());
    assert_eq!((meter.tally().hot_enqueued, meter.tally().hot_dropped), (1, 0));
    meter.until("it is settled", |tally| tally.delivered == 1).await;
    database.advance(LATER).await;
    outbox.wake();
    for _ in &late {
        assert_eq!(inbox.next().await.path(), Path::Cold);
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_20_fields_round_trip<D: Database>(database: D) {
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
    let outbox = Outbox::writer_only(database.store()).start().await.unwrap();
    let mut conn = database.connect().await;
    outbox
        .transaction_on(&mut conn, async |tx| {
            // The first alone, the others together.
            tx.write(&written[0]).await?;
            tx.write_all(&written[1..]).await?;
            anyhow::Ok(())
        })
        .await
        .unwrap();
    for event in &written {
        let record = outbox.admin().find(event.id()).await.unwrap().unwrap();
        assert_eq!((record.state.status, record.state.attempts), (Status::New, 0));
        assert_eq!(record.state.available_at, record.state.created_at);
        assert_eq!((record.state.done_at, record.state.last_error, record.state.lease), (None, None, None));
        let read = record.event.unwrap();
        assert_eq!(read.availability(), Availability::Now);
        assert_eq!(read.payload(), event.payload());
        assert_eq!(read.headers(), event.headers());
        assert_eq!(read.event_type(), event.event_type());
        assert_eq!((read.aggregate_type(), read.aggregate_id()), (event.aggregate_type(), event.aggregate_id()));
        assert_eq!((read.tenant_id(), read.topic()), (event.tenant_id(), event.topic()));
        assert_eq!((read.content_type(), read.occurred_at()), (event.content_type(), event.occurred_at()));
    }
}

pub(crate) async fn case_21_duplicate_id<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let one = event("First");
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&one).await?)).await.unwrap();
    let again = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&one).await?)).await;
    let error = again.unwrap_err().downcast::<WriteError>().unwrap();
    assert!(
        matches!(&error, WriteError::Store { error: Error::DuplicateId { id }, .. } if id == one.id()),
        "{error:?}"
    );
    // Twice in one statement.
    let two = event("Twice");
    let twice = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write_all([&two, &two]).await?)).await;
    let error = twice.unwrap_err().downcast::<WriteError>().unwrap();
    assert!(
        matches!(&error, WriteError::Store { error: Error::DuplicateId { id }, .. } if id == two.id()),
        "{error:?}"
    );
    assert_eq!(witness.told().len(), 1, "nobody is told of what was never written");
    assert_eq!(inbox.next().await.id(), one.id());
    assert_eq!(total(&outbox).await, 1);
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn a_missing_table_says_what_to_do<D: Database>(database: D) {
    let store = D::with_table(database.store(), "not_there").unwrap();
    let outbox = Outbox::writer_only(store).start().await.unwrap();
    let mut conn = database.connect().await;
    let missing = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Lost")).await?)).await;
    let error = missing.unwrap_err().downcast::<WriteError>().unwrap();
    let WriteError::Store { error: Error::Schema { table, reason }, .. } = &error else { panic!("{error:?}") };
    assert!(table == "not_there" && reason.ends_with("call migrate() first"), "{error:?}");
}
