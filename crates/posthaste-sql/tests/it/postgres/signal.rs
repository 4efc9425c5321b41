//! Wake-ups between processes.

use std::time::Duration;

use posthaste_core::signal::Signal;
use posthaste_core::store::{AdminStore, RelayStore};
use posthaste_core::wake::Wake;
use posthaste_core::{Delivery, Options, Outbox};
use posthaste_sql::PgStore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::support::{Database, eventually, sql, within};
use crate::support::event;

/// A relay that never polls by itself, and what it delivers.
async fn relay(database: &Database) -> (Outbox<PgStore>, UnboundedReceiver<String>) {
    let (sender, delivered) = unbounded_channel();
    let outbox = Outbox::builder(database.store().await)
        .options(Options { poll_interval: Duration::from_secs(3600), ..Options::default() })
        .listen_all(move |event: Delivery| {
            let sent = sender.send(event.id().to_string());
            async move { sent.unwrap() }
        })
        .start()
        .await
        .unwrap();
    eventually("it listens", async || database.backends(LISTENING).await == 1).await;
    (outbox, delivered)
}

const LISTENING: &str = "query LIKE 'LISTEN %' AND state = 'idle'";

async fn write_elsewhere(outbox: &Outbox<PgStore>, id: &str) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event(id)).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_relay_is_woken_by_another_process_and_again_after_its_connection_was_cut() {
    let database = Database::new().await;
    let (relay, mut delivered) = relay(&database).await;
    let writer = Outbox::writer_only(database.store().await).start().await.unwrap();
    for n in 0..20 {
        write_elsewhere(&writer, &n.to_string()).await;
        assert_eq!(within("it is woken", delivered.recv()).await.unwrap(), n.to_string());
    }
    for n in 20..22 {
        database.terminate(LISTENING).await;
        // This signal may find nobody; whoever listens again looks for itself.
        write_elsewhere(&writer, &n.to_string()).await;
        assert_eq!(within("it listens again", delivered.recv()).await.unwrap(), n.to_string());
    }
    writer.shutdown().await;
    relay.shutdown().await;
    eventually("nobody listens any more", async || database.backends(LISTENING).await == 0).await;
    assert_eq!(relay.store().counts().await.unwrap().done, 22);
}

#[tokio::test]
async fn receipts_send_signals_too() {
    let database = Database::new().await;
    let (relay, mut delivered) = relay(&database).await;
    let writer = Outbox::writer_only(database.store().await).start().await.unwrap();
    let mut tx = writer.store().pool().begin().await.unwrap();
    let receipt = writer.write(&mut tx, event("x")).await.unwrap();
    tx.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!(within("it is woken", delivered.recv()).await.unwrap(), "x");
    relay.shutdown().await;
}

#[tokio::test]
async fn the_trigger_wakes_relays_for_programs_without_posthaste() {
    let database = Database::new().await;
    let (relay, mut delivered) = relay(&database).await;
    relay.store().create_wake_trigger().await.unwrap();
    assert!(relay.store().wake_trigger_sql().contains("CREATE TRIGGER"));
    let mut connection = database.connection().await;
    sqlx::query("INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('least', 'T', '1')")
        .execute(&mut connection)
        .await
        .unwrap();
    assert_eq!(within("it is woken", delivered.recv()).await.unwrap(), "least");
    relay.shutdown().await;
}

#[tokio::test]
async fn nothing_is_sent_inside_the_writers_transaction() {
    let database = Database::new().await;
    let (relay, mut delivered) = relay(&database).await;
    let writer = Outbox::writer_only(database.store().await).start().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    tx.write(event("x")).await.unwrap();
    // A transaction that has notified cannot be prepared; this one can, unless the server prepares none at all.
    match sqlx::query("PREPARE TRANSACTION 'no signal'").execute(&mut *tx).await {
        Ok(_) => {
            let _ = tx.rollback().await;
            sql(writer.store(), "ROLLBACK PREPARED 'no signal'").await;
        }
        Err(error) => {
            assert!(error.to_string().contains("max_prepared_transactions"), "{error}");
            tx.rollback().await.unwrap();
        }
    }
    write_elsewhere(&writer, "y").await;
    assert_eq!(within("it is woken", delivered.recv()).await.unwrap(), "y");
    relay.shutdown().await;
}

#[tokio::test]
async fn a_store_without_wake_ups_neither_sends_nor_listens() {
    let database = Database::new().await;
    let store = database.store().await;
    assert!(store.clone().without_wake_ups().signal().is_none());
    assert!(store.signal().is_some());
}

#[tokio::test]
async fn listening_ends_with_the_pool() {
    let database = Database::new().await;
    let store = database.store().await;
    let listening = tokio::spawn({
        let store = store.clone();
        async move { store.listen(&Wake::new()).await }
    });
    eventually("it listens", async || database.backends(LISTENING).await == 1).await;
    store.send().await.unwrap();
    store.close().await;
    let error = within("it ends", listening).await.unwrap();
    assert!(matches!(error, posthaste_core::store::Error::Unavailable(_)), "{error:?}");
    sql(&database.store().await, "SELECT 1").await;
}
