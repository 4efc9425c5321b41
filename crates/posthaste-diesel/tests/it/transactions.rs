//! How transactions end, and what is told and delivered then.

use std::panic::AssertUnwindSafe;

use diesel::result::Error as DieselError;
use diesel_async::{AsyncConnection, SimpleAsyncConnection, TransactionManager};
use futures_util::FutureExt;
use posthaste_conformance::testing::{cut_short, event, events, ids_of, told, watched, within};
use posthaste_core::listener::Path;
use posthaste_core::store::{Error, Filter, Page};
use posthaste_core::{CommitError, Event, TransactionError, WriteError};
use posthaste_diesel::OutboxExt;

use crate::database::Database;
use crate::observe::{refused, texts, total};

const ORDER: &str = "INSERT INTO orders (total) VALUES (1990)";

pub(crate) async fn case_09_outside_a_transaction_nothing_is_written<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let error = outbox.write_in(&mut conn, event("Outside")).await.unwrap_err();
    assert!(refused(&error).contains("no transaction is open"), "{error:?}");
    let error = outbox.write_all_in(&mut conn, events(2)).await.unwrap_err();
    assert!(refused(&error).contains("no transaction is open"), "{error:?}");
    // One that diesel-async knows nothing of is none.
    conn.batch_execute("BEGIN").await.unwrap();
    let error = outbox.write_in(&mut conn, event("Raw")).await.unwrap_err();
    assert!(refused(&error).contains("no transaction is open"), "{error:?}");
    conn.batch_execute("COMMIT").await.unwrap();
    assert_eq!(total(&outbox).await, 0);
    assert_eq!(witness.told(), []);
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_10_an_error_rolls_back<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let two = events(2);
    let error = outbox
        .transaction_on(&mut conn, async |tx| {
            tx.batch_execute(ORDER).await?;
            tx.write(&two[0]).await?;
            tx.write(&two[1]).await?;
            Err::<(), _>(anyhow::anyhow!("out of stock"))
        })
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "out of stock");
    assert_eq!(witness.told(), [told("rollback", &two)]);

    // Somebody else's transaction, and the receipt for it.
    let mut receipt = None;
    conn.transaction(async |conn| {
        receipt = Some(outbox.write_in(conn, &two[0]).await.unwrap());
        Err::<(), _>(DieselError::RollbackTransaction)
    })
    .await
    .unwrap_err();
    receipt.unwrap().rolled_back();
    assert_eq!(witness.told(), [told("rollback", &two[..1])]);
    assert_eq!(total(&outbox).await, 0);

    // What is delivered after all this is the next event, and nothing else.
    let last = event("Last");
    let write = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&last).await?));
    assert_eq!(write.await.unwrap().as_ref(), Some(last.id()));
    assert_eq!(inbox.next().await.id(), last.id());
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_10_a_panic_rolls_back<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let one = event("Panicked");
    let panics = outbox.transaction_on(&mut conn, async |tx| {
        tx.write(&one).await?;
        if tx.write(event("Second")).await?.is_some() {
            panic!("a bug");
        }
        anyhow::Ok(())
    });
    let panic = AssertUnwindSafe(panics).catch_unwind().await.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"a bug"));
    let told = witness.told();
    assert_eq!((told.len(), told[0].0, told[0].1.len()), (1, "rollback", 2), "{told:?}");
    assert_eq!(total(&outbox).await, 0);
    // The connection is as good as before.
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Last")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Last");
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_10_a_failed_commit_leaves_nothing<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let one = event("Unreferenced");
    // The statement before the event, so that the insert is the last that is done; and after it.
    for before in [true, false] {
        let error = outbox
            .transaction_on(&mut conn, async |tx| {
                let dangling = "INSERT INTO orders (total, customer) VALUES (1990, 404)";
                if before {
                    tx.batch_execute(dangling).await?;
                }
                tx.write(&one).await?;
                if !before {
                    tx.batch_execute(dangling).await?;
                }
                anyhow::Ok(())
            })
            .await
            .unwrap_err();
        let error = error.downcast::<TransactionError>().unwrap();
        assert!(matches!(error, TransactionError::Commit(CommitError::NotCommitted(_))), "{error:?}");
        assert_eq!(witness.told(), [told("rollback", std::slice::from_ref(&one))]);
        assert_eq!(total(&outbox).await, 0);
    }
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Last")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Last");
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_10_a_savepoint_that_was_left_open_rolls_back<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let one = event("Lost");
    let error = outbox
        .transaction_on(&mut conn, async |tx| {
            tx.write(&one).await?;
            <D::Conn as AsyncConnection>::TransactionManager::begin_transaction(&mut **tx).await?;
            anyhow::Ok(())
        })
        .await
        .unwrap_err();
    let error = error.downcast::<TransactionError>().unwrap();
    assert!(matches!(error, TransactionError::Commit(CommitError::NotCommitted(Error::Refused(_)))), "{error:?}");
    assert_eq!(witness.told(), [told("rollback", std::slice::from_ref(&one))]);
    assert_eq!(total(&outbox).await, 0);
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Last")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Last");
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_11_one_call_per_commit<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let five = events(5);
    let value = outbox
        .transaction_on(&mut conn, async |tx| {
            assert_eq!(tx.write(&five[0]).await?.as_ref(), Some(five[0].id()));
            tx.batch_execute(ORDER).await?;
            assert_eq!(texts(&tx.write_all(&five[1..4]).await?), ids_of(&five[1..4]));
            tx.write(&five[4]).await?;
            assert_eq!(witness.told(), [], "too early");
            anyhow::Ok(42)
        })
        .await
        .unwrap();
    assert_eq!(value, 42);
    assert_eq!(witness.told(), [told("commit", &five)]);
    for event in &five {
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (event.id(), Path::Hot));
    }
    // A transaction that wrote nothing is nobody's business.
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.batch_execute(ORDER).await?)).await.unwrap();
    assert_eq!(witness.told(), []);
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn case_11_receipts<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let three = events(3);
    let receipt = conn
        .transaction(async |conn| {
            let first = outbox.write_in(conn, &three[0]).await?;
            let rest = outbox.write_all_in(conn, &three[1..]).await?;
            anyhow::Ok(first.and(rest))
        })
        .await
        .unwrap();
    assert_eq!(texts(&receipt.ids()), ids_of(&three));
    assert_eq!(witness.told(), [], "nobody said yet that it was committed");
    receipt.dispatch();
    assert_eq!(witness.told(), [told("commit", &three)]);
    for event in &three {
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (event.id(), Path::Hot));
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Dropped at any await: nothing is half there, the connection says that it is of no use, and the next one works.
pub(crate) async fn case_19_cut_anywhere<D: Database>(database: D) {
    const MANY: usize = 1000;
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut cuts = 0;
    for polls in 1..MANY {
        let mut conn = database.connect().await;
        let three: Vec<Event> = (0..3).map(|_| event(&format!("cut after {polls}"))).collect();
        let whole = outbox.transaction_on(&mut conn, async |tx| {
            tx.write_all(&three).await?;
            tx.batch_execute(ORDER).await?;
            anyhow::Ok(())
        });
        if cut_short(polls, whole).await.is_some() {
            break;
        }
        cuts = polls;
        let again = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Again")).await?)).await;
        let error = again.unwrap_err().downcast::<TransactionError>().unwrap();
        assert!(matches!(error, TransactionError::Begin(Error::Unavailable(_))), "{error:?}");
        let error = outbox.write_in(&mut conn, event("Again")).await.unwrap_err();
        assert!(matches!(error, WriteError::Store { error: Error::Unavailable(_), .. }), "{error:?}");
        drop(conn);
        // Whatever was open is rolled back, or the next would wait for it.
        let mut conn = database.connect().await;
        let next = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Next")).await?));
        within("the next transaction gets through", next).await.unwrap();
    }
    assert!(cuts > 0 && cuts + 1 < MANY, "{cuts}");
    let told = witness.told();
    assert_eq!(told.iter().filter(|(step, _)| *step == "commit").count(), cuts + 1, "{told:?}");
    // What was committed is delivered, by now or by way of the table.
    let page = Page { limit: 10 * MANY, ..Page::default() };
    let mut rows = std::collections::HashMap::<String, usize>::new();
    let listed = outbox.admin().list(&Filter::default(), &page).await.unwrap();
    for record in &listed {
        *rows.entry(record.event.clone().unwrap().event_type().to_owned()).or_default() += 1;
    }
    assert_eq!(rows.remove("Next"), Some(cuts));
    assert!(rows.values().all(|count| *count == 3), "half a transaction: {rows:?}");
    let mut delivered = inbox.ids(listed.len()).await;
    let mut stored: Vec<String> = listed.iter().map(|record| record.id.to_string()).collect();
    delivered.sort_unstable();
    stored.sort_unstable();
    assert_eq!(delivered, stored);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Ended by a statement of somebody's own, it may have been committed or not.
pub(crate) async fn case_09_a_transaction_that_somebody_ended<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let [undone, committed] = ["Undone", "Committed"].map(event);
    for (end, event) in [("ROLLBACK", &undone), ("COMMIT", &committed)] {
        let ended = outbox.transaction_on(&mut conn, async |tx| {
            tx.write(event).await?;
            tx.batch_execute(end).await?;
            anyhow::Ok(())
        });
        let error = ended.await.unwrap_err().downcast::<TransactionError>().unwrap();
        assert!(matches!(error, TransactionError::Commit(CommitError::Unknown(_))), "{error:?}");
        assert_eq!(witness.told(), [told("unknown", std::slice::from_ref(event))], "{end}");
    }
    // The same by means of diesel, which knows that it has ended.
    let ended = outbox.transaction_on(&mut conn, async |tx| {
        tx.write(event("Ended")).await?;
        <D::Conn as AsyncConnection>::TransactionManager::commit_transaction(&mut **tx).await?;
        anyhow::Ok(())
    });
    let error = ended.await.unwrap_err().downcast::<TransactionError>().unwrap();
    assert!(matches!(error, TransactionError::Commit(CommitError::Unknown(_))), "{error:?}");
    assert_eq!(inbox.arrival().await, (committed.id().to_string(), Path::Cold));
    let ended = inbox.next().await;
    assert_eq!((ended.event_type(), ended.path()), ("Ended", Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(total(&outbox).await, 2);
}

/// An inner transaction that was cut off: the one around it is not committed, unless diesel-async still knows where it is.
pub(crate) async fn case_19_cut_inner_transaction<D: Database>(database: D) {
    const MANY: usize = 1000;
    let (outbox, witness, _inbox) = watched(database.store()).await;
    let (mut cuts, mut committed, mut polls, mut ended) = (0, 0, 0, false);
    for _ in 0..MANY {
        polls += 1;
        let mut conn = database.connect().await;
        let cut_off = outbox.transaction_on(&mut conn, async |tx| {
            tx.write(event("Outer")).await?;
            let inner = tx.transaction(async |tx| {
                tx.batch_execute(ORDER).await?;
                Err::<(), _>(anyhow::anyhow!("changed my mind"))
            });
            anyhow::Ok(cut_short(polls, inner).await.is_some())
        });
        match cut_off.await.map_err(|error| error.downcast::<TransactionError>().unwrap()) {
            Ok(finished) => {
                committed += 1;
                if finished && cuts > 0 {
                    ended = true;
                    break;
                }
                if finished {
                    // A quick one may be over before it could be cut: then once more.
                    polls = 0;
                    continue;
                }
            }
            Err(TransactionError::Commit(CommitError::NotCommitted(_))) => {}
            Err(other) => panic!("{other:?}"),
        }
        cuts += 1;
        // Whoever goes on with this connection is told if it is of no use.
        let next = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Next")).await?)).await;
        match next.map_err(|error| error.downcast::<TransactionError>().unwrap()) {
            Ok(_) => committed += 1,
            Err(TransactionError::Begin(Error::Unavailable(_))) => {
                let error = outbox.write_in(&mut conn, event("Next")).await.unwrap_err();
                assert!(matches!(error, WriteError::Store { error: Error::Unavailable(_), .. }), "{error:?}");
            }
            Err(other) => panic!("{other:?}"),
        }
        // Nothing is locked by what was not committed.
        let mut conn = database.connect().await;
        within("the next gets through", conn.batch_execute(ORDER)).await.unwrap();
    }
    assert!(ended, "cut {cuts} times");
    let told = witness.told();
    assert_eq!(told.iter().filter(|(step, _)| *step == "commit").count(), committed, "{told:?}");
    assert_eq!(total(&outbox).await, committed as u64);
    outbox.shutdown().await;
}

pub(crate) async fn it_does_not_begin_inside_of_another<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let outer = conn.transaction(async |conn| {
        let inner = outbox.transaction_on(conn, async |tx| anyhow::Ok(tx.write(event("Inner")).await?)).await;
        let error = inner.unwrap_err().downcast::<TransactionError>()?;
        assert!(matches!(error, TransactionError::Begin(Error::Refused(_))), "{error:?}");
        anyhow::Ok(())
    });
    outer.await.unwrap();
    assert_eq!((total(&outbox).await, witness.told()), (0, vec![]));
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn a_test_transaction_delivers_nothing<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    conn.begin_test_transaction().await.unwrap();
    let one = event("Tested");
    let write = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&one).await?));
    assert_eq!(write.await.unwrap().as_ref(), Some(one.id()));
    let receipt = outbox.write_in(&mut conn, event("Direct")).await.unwrap();
    receipt.dispatch();
    let told = witness.told();
    assert_eq!(told.iter().map(|(step, _)| *step).collect::<Vec<_>>(), ["unknown", "unknown"], "{told:?}");
    drop(conn);
    assert_eq!(total(&outbox).await, 0);
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn savepoint_rolled_back_is_never_delivered<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let (kept, undone) = (event("Kept"), event("Undone"));
    outbox
        .transaction_on(&mut conn, async |tx| {
            let inner = tx.transaction(async |tx| {
                tx.batch_execute(ORDER).await?;
                tx.write(&undone).await?;
                Err::<(), _>(anyhow::anyhow!("changed my mind"))
            });
            assert_eq!(inner.await.unwrap_err().to_string(), "changed my mind");
            tx.write(&kept).await?;
            anyhow::Ok(())
        })
        .await
        .unwrap();
    // On PostgreSQL what follows is still inside of the savepoint, because diesel-async does not release it.
    let told = witness.told();
    assert!(!told.iter().any(|(step, ids)| *step == "commit" && ids.contains(&undone.id().to_string())), "{told:?}");
    assert_eq!(inbox.next().await.id(), kept.id());
    outbox.shutdown().await;
    inbox.assert_empty();
    assert!(outbox.admin().find(undone.id()).await.unwrap().is_none());
    assert_eq!(total(&outbox).await, 1);
}

pub(crate) async fn savepoint_kept_is_delivered<D: Database>(database: D) {
    let (outbox, _, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let (outer, inner) = (event("Outer"), event("Inner"));
    outbox
        .transaction_on(&mut conn, async |tx| {
            tx.write(&outer).await?;
            tx.transaction(async |tx| anyhow::Ok(tx.write(&inner).await?)).await?;
            anyhow::Ok(())
        })
        .await
        .unwrap();
    let mut delivered = [inbox.next().await, inbox.next().await].map(|event| (event.id().clone(), event.path()));
    delivered.sort_unstable_by_key(|(_, path)| *path != Path::Hot);
    assert_eq!(delivered, [(outer.id().clone(), Path::Hot), (inner.id().clone(), Path::Cold)]);
    outbox.shutdown().await;
    inbox.assert_empty();
}

pub(crate) async fn savepoint_of_somebody_else<D: Database>(database: D) {
    let (outbox, _, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let (kept, undone) = (event("Kept"), event("Undone"));
    let mut receipts = Vec::new();
    conn.transaction(async |conn| {
        let inner = conn.transaction(async |conn| {
            receipts.push(outbox.write_in(conn, &undone).await.unwrap());
            Err::<(), _>(DieselError::RollbackTransaction)
        });
        inner.await.unwrap_err();
        conn.transaction(async |conn| {
            receipts.push(outbox.write_in(conn, &kept).await.unwrap());
            // It is for the poller in any case, so it is leased to nobody. No poller sees it yet.
            assert_eq!(D::unleased(conn).await, 1);
            Ok::<_, DieselError>(())
        })
        .await
    })
    .await
    .unwrap();
    receipts.into_iter().for_each(posthaste_core::Receipt::dispatch);
    let delivered = inbox.next().await;
    assert_eq!((delivered.id(), delivered.path()), (kept.id(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(total(&outbox).await, 1);
}

/// Savepoints that diesel-async does not know of.
pub(crate) async fn savepoint_by_hand<D: Database>(database: D) {
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let [undone, last, kept] = ["Undone", "Last", "Kept"].map(event);
    // Undone after the last write, and before another one.
    for again in [false, true] {
        let by_hand = outbox.transaction_on(&mut conn, async |tx| {
            tx.batch_execute("SAVEPOINT mine").await?;
            tx.write(&undone).await?;
            tx.batch_execute("ROLLBACK TO SAVEPOINT mine; RELEASE SAVEPOINT mine").await?;
            if again {
                tx.write(&last).await?;
            }
            anyhow::Ok(())
        });
        by_hand.await.unwrap();
        let told = witness.told();
        let of_undone = told.iter().filter(|(_, ids)| ids.contains(&undone.id().to_string()));
        assert_eq!(of_undone.map(|(step, _)| *step).collect::<Vec<_>>(), ["unknown"], "{told:?}");
    }
    assert_eq!(inbox.next().await.id(), last.id());
    let by_hand = outbox.transaction_on(&mut conn, async |tx| {
        tx.batch_execute("SAVEPOINT mine").await?;
        tx.write(&kept).await?;
        tx.batch_execute("RELEASE SAVEPOINT mine").await?;
        anyhow::Ok(())
    });
    by_hand.await.unwrap();
    assert_eq!(inbox.next().await.id(), kept.id());
    // More than one question can ask for.
    let many = events(600);
    let by_hand = outbox.transaction_on(&mut conn, async |tx| {
        tx.batch_execute("SAVEPOINT mine").await?;
        tx.write_all(&many[..599]).await?;
        tx.batch_execute("RELEASE SAVEPOINT mine; SAVEPOINT mine").await?;
        tx.write(&many[599]).await?;
        tx.batch_execute("ROLLBACK TO SAVEPOINT mine").await?;
        anyhow::Ok(())
    });
    by_hand.await.unwrap();
    let mut delivered = inbox.ids(599).await;
    delivered.sort_unstable();
    let mut expected = ids_of(&many[..599]);
    expected.sort_unstable();
    assert_eq!(delivered, expected);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(total(&outbox).await, 601);
}

/// What waits for it is a future that any task can have.
pub(crate) async fn it_can_be_spawned<D: Database>(database: D) {
    fn sendable<F: Future + Send>(future: F) -> F {
        future
    }

    let (outbox, _, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let total = String::from("1990");
    let place = outbox.transaction_on(&mut conn, async |tx| {
        tx.batch_execute(&format!("INSERT INTO orders (total) VALUES ({total})")).await?;
        tx.write(Event::builder("Spawned").json_text("{}")).await?;
        anyhow::Ok(())
    });
    sendable(place).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Spawned");
    outbox.shutdown().await;
}
