//! Inserts, transactions and commits.

use posthaste_core::store::{AdminStore, CommitError, Error, NewRow, Status, WriteStore};
use posthaste_core::{Delivery, Event, EventId, Outbox, Timestamp, WriteError};
use sqlx::Connection;
use tokio::sync::mpsc;

use super::support::{Database, claim, eventually, sql, within, write};
use crate::support::{event, ids, unleased};

#[tokio::test]
async fn a_taken_id_is_named_whatever_the_size_of_the_batch() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, [event("taken")]).await;
    for size in [1, 2, 100, 10_000, 10_001, 10_002] {
        let mut tx = store.begin().await.unwrap();
        let mut batch: Vec<Event> = (1..size).map(|n| event(&format!("{size}-{n}"))).collect();
        batch.push(event("taken"));
        let error = store.insert(&mut tx, &unleased(batch)).await.unwrap_err();
        assert!(matches!(&error, Error::DuplicateId { id } if *id == "taken"), "{error:?}");
        store.rollback(tx).await.unwrap();
    }
    let mut tx = store.begin().await.unwrap();
    let twice = unleased([event("a"), event("twice"), event("b"), event("twice")]);
    let error = store.insert(&mut tx, &twice).await.unwrap_err();
    assert!(matches!(&error, Error::DuplicateId { id } if *id == "twice"), "{error:?}");
    drop(tx);
    assert_eq!(store.counts().await.unwrap().total(), 1);
}

#[tokio::test]
async fn another_unique_index_is_no_duplicate_id() {
    let database = Database::new().await;
    let store = database.store().await;
    sql(&store, "CREATE UNIQUE INDEX one_per_type ON outbox_event (event_type)").await;
    write(&store, [event("a")]).await;
    let mut tx = store.begin().await.unwrap();
    let error = store.insert(&mut tx, &unleased([event("b")])).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
}

#[tokio::test]
async fn a_savepoint_saves_a_transaction_from_a_refused_insert() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, [event("taken")]).await;
    let mut tx = store.begin().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    store.insert(&mut savepoint, &unleased([event("taken")])).await.unwrap_err();
    savepoint.rollback().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    store.insert(&mut savepoint, &unleased([event("inner")])).await.unwrap();
    savepoint.commit().await.unwrap();
    store.insert(&mut tx, &unleased([event("outer")])).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["taken", "inner", "outer"]);
}

/// A savepoint that was dropped is rolled back to at once, and ended with the next one: they do not pile up.
#[tokio::test]
async fn dropped_savepoints_do_not_nest() {
    let database = Database::new().await;
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
    assert!(none.to_string().contains("does not exist"), "{none}");
    tx.rollback().await.unwrap();
}

/// PostgreSQL answers such a commit with success, and rolls back.
#[tokio::test]
async fn a_commit_after_a_failed_statement_is_none_and_delivers_nothing() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let (sender, mut delivered) = mpsc::unbounded_channel();
    let outbox = Outbox::builder(store.clone())
        .listen_all(move |event: Delivery| {
            let sent = sender.send(event.id().to_string());
            async move { sent.unwrap() }
        })
        .start()
        .await
        .unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("never")).await.unwrap();
    sqlx::query("SELECT 1 / 0").execute(&mut *tx).await.unwrap_err();
    // Nothing to write, so nothing is asked of the server.
    tx.write_all(Vec::<Event>::new()).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");

    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("real")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(within("the event is delivered", delivered.recv()).await.unwrap(), "real");
    outbox.shutdown().await;
    assert!(delivered.try_recv().is_err());
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.done, counts.total()), (1, 1));
}

#[tokio::test]
async fn a_commit_that_is_refused_did_not_happen_and_spoils_no_connection() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    sql(
        &store,
        "CREATE TABLE parent (id INTEGER PRIMARY KEY); \
         CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    )
    .await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("lost")])).await.unwrap();
    sqlx::query("INSERT INTO child VALUES (1)").execute(&mut *tx).await.unwrap();
    let error = store.commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
    write(&store, [event("kept")]).await;
    assert!(!store.pool().acquire().await.unwrap().is_in_transaction());
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"]);
}

#[tokio::test]
async fn a_commit_on_a_lost_connection_is_open() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("?")])).await.unwrap();
    database.terminate("state = 'idle in transaction'").await;
    let error = store.commit(tx).await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    // The pool has other connections.
    write(&store, [event("kept")]).await;
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"]);
}

/// Nothing has failed before an event that was written last, and the commit does not ask; what fails is the commit itself.
#[tokio::test]
async fn a_commit_right_after_a_write_says_the_same_of_what_happened() {
    let database = Database::new().await;
    let store = database.store().await;
    sql(
        &store,
        "CREATE TABLE parent (id INTEGER PRIMARY KEY); \
         CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    )
    .await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();

    let mut tx = outbox.begin().await.unwrap();
    sqlx::query("INSERT INTO child VALUES (1)").execute(&mut *tx).await.unwrap();
    tx.write(event("refused")).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");

    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("?")).await.unwrap();
    database.terminate("state = 'idle in transaction'").await;
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");

    // Rolled back by somebody's own statement, between two events.
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("undone")).await.unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut *tx).await.unwrap();
    tx.write(event("alone")).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
    sql(&store, "DELETE FROM outbox_event WHERE event_id = 'alone'").await;

    // A savepoint that is refused, since a statement had failed, takes the whole transaction along.
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("gone")).await.unwrap();
    sqlx::query("SELECT 1 / 0").execute(&mut *tx).await.unwrap_err();
    tx.begin().await.map(drop).unwrap_err();
    let error = tx.write(event("late")).await.unwrap_err();
    assert!(format!("{error:?}").contains("the transaction has ended"), "{error:?}");
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");

    // A savepoint that somebody forgot ends with the transaction.
    let mut tx = outbox.begin().await.unwrap();
    std::mem::forget(tx.begin().await.unwrap());
    tx.write(event("kept")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"]);
    assert!(!store.pool().acquire().await.unwrap().is_in_transaction());
}

#[tokio::test]
async fn moments_are_the_servers_own_even_in_a_long_transaction() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    let began_at: i64 =
        sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000000)::bigint").fetch_one(&mut *tx).await.unwrap();
    let rows = [NewRow::new(event("one"))];
    store.insert(&mut tx, &rows).await.unwrap();
    store.insert(&mut tx, &unleased([event("two"), event("three")])).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut before = Timestamp::from_micros(began_at);
    for id in ["one", "two"] {
        let state = store.find(&EventId::from_row(id)).await.unwrap().unwrap().state;
        assert!(state.created_at > before, "{state:?}");
        assert_eq!(state.available_at, state.created_at);
        before = state.created_at;
    }
}

/// The statements of documents that describe this table for other programs.
#[tokio::test]
async fn statements_of_other_programs_work() {
    let database = Database::new().await;
    let store = database.store().await;
    for id in ["doc", "done", "retry", "dead"] {
        sqlx::query(
            "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, \
             tenant_id, payload, headers, status, attempts, available_at, created_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0, now(), now())",
        )
        .bind(id)
        .bind("OrderPlaced")
        .bind("Order")
        .bind("42")
        .bind(None::<String>)
        .bind("{\"total\": 1}")
        .bind("{\"trace\":\"x\"}")
        .execute(store.pool())
        .await
        .unwrap();
    }
    let updates = [
        "UPDATE outbox_event SET status = 1, done_at = now(), locked_by = NULL, locked_at = NULL \
         WHERE event_id = 'done' AND status <> 1",
        "UPDATE outbox_event SET status = 2, attempts = attempts + 1, available_at = now(), last_error = 'no', \
         locked_by = NULL, locked_at = NULL WHERE event_id = 'retry' AND status <> 1",
        "UPDATE outbox_event SET status = 3, last_error = 'no', locked_by = NULL, locked_at = NULL \
         WHERE event_id = 'dead' AND status <> 1",
    ];
    for update in updates {
        assert_eq!(sql(&store, update).await, 1);
    }
    // The least that another program can say.
    sql(&store, "INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('least', 'T', '1')").await;

    let pending = "SELECT event_id FROM outbox_event WHERE status IN (0, 2) AND available_at <= now() \
                   AND created_at <= now() ORDER BY created_at LIMIT 10";
    let pending: Vec<String> = sqlx::query_scalar(pending).fetch_all(store.pool()).await.unwrap();
    assert_eq!(pending, ["doc", "retry", "least"]);
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!(claimed.rows.len(), 3);
    let by_id = |id: &str| claimed.rows.iter().find(|row| *row.event.id() == id).unwrap();
    assert_eq!(by_id("doc").event.header("trace"), Some("x"));
    assert_eq!(by_id("doc").event.payload().as_json(), Some("{\"total\": 1}"));
    assert_eq!((by_id("retry").attempts, by_id("least").event.aggregate_type()), (1, "__GLOBAL__"));
    assert_eq!(store.find(&EventId::from_row("dead")).await.unwrap().unwrap().state.status, Status::Dead);
}

#[tokio::test]
async fn dead_connections_in_the_pool_are_passed_by() {
    let database = Database::new().await;
    let store = database.store().await;
    let outbox = Outbox::writer_only(store.clone().without_wake_ups()).start().await.unwrap();
    for n in 0..3 {
        let held = [store.pool().acquire().await.unwrap(), store.pool().acquire().await.unwrap()];
        drop(held);
        eventually("they are back", async || store.pool().num_idle() >= 2).await;
        database.terminate("pid <> pg_backend_pid()").await;
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event(&n.to_string())).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::query("SET TRANSACTION READ ONLY").execute(&mut *tx).await.unwrap();
    let error = outbox.write(&mut tx, event("x")).await.map(drop).unwrap_err();
    assert!(matches!(error, WriteError::Store { error: Error::Unavailable(_), .. }), "{error:?}");
}
