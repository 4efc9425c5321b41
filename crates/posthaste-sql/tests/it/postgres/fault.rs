//! What goes wrong, and what it is called.

use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{Action, AdminStore, Error, Purge, RelayStore, WriteStore};
use posthaste_sql::PgStore;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::support::{Database, claim, sql, within, write};
use crate::support::{chain, claim_of, event, settle_all, unleased};

#[tokio::test]
async fn a_table_that_is_missing_or_another_one_says_what_to_do() {
    let database = Database::new().await;
    let store = database.empty().await;
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Schema { table, .. } if table == "outbox_event"), "{error:?}");
    assert!(error.to_string().contains("call migrate() first"), "{error}");

    store.migrate().await.unwrap();
    sql(&store, "ALTER TABLE outbox_event DROP COLUMN topic").await;
    let error = store.find(&EventId::from_row("x")).await.unwrap_err();
    assert!(matches!(error, Error::Schema { .. }), "{error:?}");
    sql(
        &store,
        "ALTER TABLE outbox_event ADD COLUMN topic INTEGER; \
         INSERT INTO outbox_event (event_id, event_type, topic) VALUES ('x', 'T', 7)",
    )
    .await;
    let error = store.find(&EventId::from_row("x")).await.unwrap_err();
    assert!(matches!(error, Error::Schema { .. }), "{error:?}");
    assert!(error.to_string().contains("choose another name"), "{error}");
}

#[tokio::test]
async fn a_pooler_that_loses_prepared_statements_is_told_of() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    claim(&store, 1).await;
    // As when the connection of the server is another one.
    sql(&store, "DEALLOCATE ALL").await;
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)) && chain(&error).contains("session mode"), "{}", chain(&error));
}

#[tokio::test]
async fn what_somebody_can_mend_says_how() {
    let database = Database::new().await;
    let url = |change: fn(PgConnectOptions) -> PgConnectOptions| change(database.options()).to_url_lossy().to_string();
    for (url, advice) in [
        (url(|options| options.username("posthaste_nobody")), "check the user and the password"),
        (url(|options| options.database("posthaste_no_such_database")), "create the database first"),
    ] {
        let error = PgStore::connect(&url).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)) && chain(&error).contains(advice), "{}", chain(&error));
    }

    let store = database.store().await;
    // As the server answers when it cannot write.
    sql(
        &store,
        "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END $$; \
         CREATE TRIGGER no_room BEFORE INSERT ON outbox_event FOR EACH STATEMENT EXECUTE FUNCTION no_room()",
    )
    .await;
    let mut tx = store.begin().await.unwrap();
    let error = store.insert(&mut tx, &unleased([event("x")])).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)) && chain(&error).contains("make room"), "{}", chain(&error));
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_unavailable() {
    let database = Database::new().await;
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(2));
    let store = database.store_with(pool).await;
    let held = store.pool().acquire().await.unwrap();
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)) && error.is_transient(), "{error:?}");
    drop(held);
    store.close().await;
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");

    let error = PgStore::connect("postgres://postgres:secret@127.0.0.1:1/nowhere").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(!format!("{error:?}").contains("secret"), "{error:?}");
}

#[tokio::test]
async fn too_many_connections_and_a_read_only_server_are_unavailable() {
    let database = Database::new().await;
    let store = database.store().await;
    let role = format!("posthaste_limited_{}", std::process::id());
    sql(
        &store,
        format!(
            "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN CONNECTION LIMIT 0; \
             GRANT ALL ON outbox_event TO {role}"
        ),
    )
    .await;
    let limited = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy_with(database.options().username(&role));
    let error = PgStore::new(limited).begin().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    sql(&store, format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;

    let options = database.options().options([("default_transaction_read_only", "on")]);
    let standby = PgStore::new(PgPoolOptions::new().connect_with(options).await.unwrap());
    let error = standby.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let mut tx = standby.begin().await.unwrap();
    let error = standby.insert(&mut tx, &unleased([event("x")])).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_lock_that_is_held_for_too_long_is_busy_and_tried_again() {
    let database = Database::new().await;
    let options = database.options().options([("lock_timeout", "100ms")]);
    let store = PgStore::new(PgPoolOptions::new().connect_with(options).await.unwrap());
    store.migrate().await.unwrap();
    write(&store, [event("a")]).await;
    let (lease, claimed) = claim(&store, 1).await;
    let settlements = settle_all(&lease, &claimed, &Action::Done);

    let mut tx = store.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE outbox_event IN EXCLUSIVE MODE").execute(&mut *tx).await.unwrap();
    let error = store.settle(&settlements).await.unwrap_err();
    assert!(matches!(error, Error::Busy(_)) && error.is_transient(), "{error:?}");

    // Let go while it tries again, it gets through.
    let settling = tokio::spawn({
        let store = store.clone();
        async move { store.settle(&settlements).await }
    });
    let waits = "wait_event_type = 'Lock'";
    super::support::eventually("it waits for the lock", async || database.backends(waits).await > 0).await;
    tx.rollback().await.unwrap();
    within("it gets through", settling).await.unwrap().unwrap();
    assert_eq!(store.counts().await.unwrap().done, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serializable_transactions_by_default_do_not_stop_relays() {
    let database = Database::new().await;
    let options = database.options().options([("default_transaction_isolation", "serializable")]);
    let store = PgStore::new(PgPoolOptions::new().max_connections(8).connect_with(options).await.unwrap());
    store.migrate().await.unwrap();
    write(&store, (0..200).map(|n| event(&n.to_string()))).await;
    let relays: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while done < 40 {
                    match store.claim(&claim_of(5)).await {
                        Ok(claimed) if claimed.rows.is_empty() => break,
                        Ok(_) => done += 5,
                        // Six conflicts in a row are one too many.
                        Err(error) => assert!(matches!(error, Error::Busy(_)), "{error:?}"),
                    }
                }
            })
        })
        .collect();
    for relay in relays {
        relay.await.unwrap();
    }
}

#[tokio::test]
async fn rows_that_others_hold_are_purged_later() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["a", "b"].map(event)).await;
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::query("SELECT 1 FROM outbox_event WHERE event_id = 'a' FOR UPDATE").execute(&mut *tx).await.unwrap();
    let purge = Purge { any_after: Some(Duration::ZERO), ..Purge::default() };
    assert_eq!(store.purge(&purge).await.unwrap(), 1);
    tx.rollback().await.unwrap();
    assert_eq!(store.purge(&purge).await.unwrap(), 1);
}
