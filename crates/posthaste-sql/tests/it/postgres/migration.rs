//! Creating and upgrading the table.

use posthaste_core::store::{AdminStore, Error};
use posthaste_sql::PgStore;
use tokio::task::JoinSet;

use super::support::{Database, claim, sql, write};
use crate::support::{assert_upgraded, event, first_and_later, ids, rows_of_every_state};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_migrate_at_once() {
    let database = Database::new().await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = database.empty().await;
        tasks.spawn(async move {
            store.migrate().await.unwrap();
            store.migrate().await.unwrap();
        });
    }
    tasks.join_all().await;
    let store = database.store().await;
    let history: Vec<(String, i64)> =
        sqlx::query_as("SELECT table_name, version FROM posthaste_migration ORDER BY version")
            .fetch_all(store.pool())
            .await
            .unwrap();
    assert_eq!(history, [("outbox_event".to_owned(), 1), ("outbox_event".to_owned(), 2)]);
}

/// What the first release kept of its migrations.
pub(super) const FIRST_HISTORY: &str = "CREATE TABLE posthaste_migration (table_name TEXT NOT NULL, version BIGINT NOT NULL, \
    name TEXT NOT NULL, applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (table_name, version)); \
    INSERT INTO posthaste_migration VALUES ('outbox_event', 1, 'create the table')";

#[tokio::test]
async fn a_table_of_the_first_version_is_upgraded_with_its_rows() {
    let database = Database::new().await;
    let store = database.empty().await;
    let script = store.migration_sql();
    let (first, later) = first_and_later(&script);
    sql(&store, first).await;
    sql(&store, FIRST_HISTORY).await;
    let before = rows_of_every_state(&store).await;
    assert!(matches!(store.pauses().await, Err(Error::Schema { .. })), "it is of the first version");
    assert_eq!(store.pending_migration_sql().await.unwrap(), later);
    store.migrate().await.unwrap();
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");
    assert_upgraded(&store, &before).await;
}

#[tokio::test]
async fn what_is_up_to_date_is_migrated_by_who_may_only_read() {
    let database = Database::new().await;
    let store = database.store().await;
    let role = format!("reader_{:x}", fastrand::u64(..));
    let make = format!(
        "CREATE ROLE {role} LOGIN; GRANT SELECT ON posthaste_migration TO {role}; REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    );
    sql(&store, make).await;
    let pool = sqlx::postgres::PgPoolOptions::new().connect_with(database.options().username(&role)).await.unwrap();
    let theirs = PgStore::new(pool);
    let migrated = theirs.migrate().await;
    let elsewhere = theirs.clone().with_table("another").unwrap().migrate().await;
    theirs.close().await;
    sql(&store, format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    migrated.unwrap();
    assert!(matches!(elsewhere, Err(Error::Refused(_))), "{elsewhere:?}");
}

#[tokio::test]
async fn a_newer_table_a_foreign_table_and_a_missing_schema_are_refused() {
    let database = Database::new().await;
    let store = database.store().await;
    sql(&store, "INSERT INTO posthaste_migration VALUES ('outbox_event', 99, 'later')").await;
    for error in [store.migrate().await.unwrap_err(), store.pending_migration_sql().await.unwrap_err()] {
        assert!(matches!(error, Error::Schema { .. }), "{error:?}");
        assert!(error.to_string().contains("version 99, made by a newer release"), "{error}");
    }
    sql(&store, "CREATE TABLE theirs (id INTEGER)").await;
    let error = store.clone().with_table("theirs").unwrap().migrate().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { table, .. } if table == "theirs"), "{error:?}");
    assert!(error.to_string().contains("choose another name"), "{error}");
    let error = store.clone().with_table("nowhere.outbox_event").unwrap().migrate().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[tokio::test]
async fn tables_stand_side_by_side_in_schemas() {
    let database = Database::new().await;
    let store = database.empty().await;
    sql(&store, "CREATE SCHEMA audit; CREATE SCHEMA \"Mixed\"").await;
    let stores = ["outbox_event", "audit.outbox_event", "public.select", "Mixed.Second_1"]
        .map(|table| store.clone().with_table(table).unwrap());
    for store in &stores {
        store.migrate().await.unwrap();
        store.create_wake_trigger().await.unwrap();
        store.create_wake_trigger().await.unwrap();
        assert_eq!(store.pending_migration_sql().await.unwrap(), "");
        write(store, [event("same id"), event(&store.table().to_string())]).await;
    }
    for store in &stores {
        assert_eq!(ids(&claim(store, 10).await.1), ["same id".to_owned(), store.table().to_string()]);
        assert_eq!(store.counts().await.unwrap().new, 2);
    }
}

#[tokio::test]
async fn stores_are_opened_by_url_and_secrets_are_not_repeated() {
    let url = std::env::var("POSTHASTE_TEST_POSTGRES_URL").unwrap();
    let store = PgStore::connect(&url.replacen("postgres", "PostgreSQL", 1)).await.unwrap();
    let name: String = sqlx::query_scalar("SHOW application_name").fetch_one(store.pool()).await.unwrap();
    assert_eq!(name, "posthaste");
    for url in ["sqlite:secret", "oracle://u:secret@host/db", "postgres://u:secret@host:port/db"] {
        let error = PgStore::connect(url).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}
