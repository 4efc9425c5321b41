//! An outbox at work while its server is not as it should be.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::store::{AdminStore, Error, RelayStore, WriteStore};
use posthaste_core::{Delivery, Metrics, Options, Outbox};
use posthaste_sql::PgStore;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::{mpsc, watch};

use super::support::{Database, eventually, sql, within, write};
use crate::failover::assert_stale_connections_are_left;
use crate::support::{chain, claim_of, event, unleased};

/// An outbox whose deliveries have to be taken one by one, and whose failed polls are counted.
struct Relay {
    outbox: Outbox<PgStore>,
    delivered: mpsc::Receiver<String>,
    failed_polls: watch::Receiver<u64>,
}

struct FailedPolls(watch::Sender<u64>);

impl Metrics for FailedPolls {
    fn poll_failed(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

impl Relay {
    /// The answer to a claim may get lost, and its rows then wait for the end of their lease, which is soon.
    async fn start(store: &PgStore) -> Self {
        Self::with_lease(store, Duration::from_secs(2)).await
    }

    async fn with_lease(store: &PgStore, lease: Duration) -> Self {
        let (sender, delivered) = mpsc::channel(1);
        let listener = move |event: Delivery| {
            let sender = sender.clone();
            async move { sender.send(event.id().to_string()).await }
        };
        let failures = watch::Sender::new(0);
        let failed_polls = failures.subscribe();
        let options = Options {
            lease,
            poll_interval: Duration::from_millis(50),
            retry_max: Duration::from_millis(200),
            ..Options::default()
        };
        let outbox = Outbox::many_nodes(store.clone()).options(options).metrics(FailedPolls(failures));
        let outbox = outbox.listen_all(listener).start().await.unwrap();
        Self { outbox, delivered, failed_polls }
    }

    async fn next(&mut self) -> String {
        within("an event is delivered", self.delivered.recv()).await.unwrap()
    }

    async fn until_a_poll_fails(&mut self) {
        let before = *self.failed_polls.borrow();
        within("a poll fails", self.failed_polls.wait_for(|count| *count > before)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_all_ended_again_and_again_lose_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, (0..300).map(|n| event(&n.to_string()))).await;
    let mut relay = Relay::start(&store).await;
    let mut delivered = HashSet::new();
    for round in 1..=3 {
        while delivered.len() < round * 50 {
            delivered.insert(relay.next().await);
        }
        database.terminate("TRUE").await;
        let mut tx = relay.outbox.begin().await.unwrap();
        tx.write(event(&format!("own {round}"))).await.unwrap();
        tx.commit().await.unwrap();
    }
    while delivered.len() < 303 {
        delivered.insert(relay.next().await);
    }
    // Repeats are taken too, so that nobody waits for us.
    let taking = tokio::spawn(async move { while relay.delivered.recv().await.is_some() {} });
    eventually("all are done", async || store.counts().await.is_ok_and(|counts| counts.done == 303)).await;
    relay.outbox.shutdown().await;
    drop(relay.outbox);
    within("the listener is gone", taking).await.unwrap();
}

#[tokio::test]
async fn a_server_that_only_reads_is_left_for_one_that_writes() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, [event("before")]).await;
    let mut relay = Relay::start(&store).await;
    assert_eq!(relay.next().await, "before");
    eventually("it is done", async || store.counts().await.unwrap().done == 1).await;

    database.alter("SET default_transaction_read_only = on").await;
    database.terminate("TRUE").await;
    relay.until_a_poll_fails().await;
    let mut tx = store.begin().await.unwrap();
    let error = store.insert(&mut tx, &unleased([event("refused")])).await.unwrap_err();
    drop(tx);
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(chain(&error).contains("connect to the primary"), "{}", chain(&error));

    // Connections that were made meanwhile stay as they are; the relay has to part with them.
    database.alter("RESET default_transaction_read_only").await;
    write(&database.empty().await, [event("after")]).await;
    assert_eq!(relay.next().await, "after");
    relay.outbox.shutdown().await;
}

#[tokio::test]
async fn a_connection_to_a_server_that_only_reads_is_used_once() {
    let database = Database::new().await;
    assert_stale_connections_are_left(&database.store().await, async || {
        let made = AtomicBool::new(false);
        let pool = PgPoolOptions::new().max_connections(1).after_connect(move |connection, _| {
            let is_first = !made.swap(true, Ordering::Relaxed);
            Box::pin(async move {
                if is_first {
                    sqlx::raw_sql("SET default_transaction_read_only = on").execute(connection).await?;
                }
                Ok(())
            })
        });
        database.store_with(pool).await
    })
    .await;
}

#[tokio::test]
async fn a_server_without_a_free_connection_is_waited_for() {
    let database = Database::new().await;
    let store = database.store().await;
    let role = format!("posthaste_crowded_{}", std::process::id());
    let create = format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN CONNECTION LIMIT 0");
    sql(&store, format!("{create}; GRANT ALL ON outbox_event TO {role}")).await;
    let pool = PgPoolOptions::new().acquire_timeout(Duration::from_millis(500));
    let crowded = PgStore::new(pool.connect_lazy_with(database.options().username(&role)));
    let error = crowded.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(chain(&error).contains("enlarge the pool"), "{}", chain(&error));

    write(&store, [event("waiting")]).await;
    let mut relay = Relay::start(&crowded).await;
    relay.until_a_poll_fails().await;
    sql(&store, format!("ALTER ROLE {role} CONNECTION LIMIT -1")).await;
    assert_eq!(relay.next().await, "waiting");
    relay.outbox.shutdown().await;
    crowded.close().await;
    sql(&store, format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_table_that_is_being_altered_is_waited_for() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, [event("before")]).await;
    // No statement is waited for longer than for a lease.
    let mut relay = Relay::with_lease(&store, Duration::from_secs(60)).await;
    assert_eq!(relay.next().await, "before");

    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql("ALTER TABLE outbox_event ADD COLUMN note TEXT").execute(&mut *tx).await.unwrap();
    sqlx::raw_sql("INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('after', 'Happened', '{}')")
        .execute(&mut *tx)
        .await
        .unwrap();
    let waits = "wait_event_type = 'Lock'";
    eventually("the relay waits for the table", async || database.backends(waits).await > 0).await;
    tx.commit().await.unwrap();
    assert_eq!(relay.next().await, "after");
    eventually("both are done", async || store.counts().await.unwrap().done == 2).await;
    assert_eq!(*relay.failed_polls.borrow(), 0, "it has waited, and not failed");
    relay.outbox.shutdown().await;
}
