//! Creating and upgrading the table.

use posthaste_core::store::{Action, AdminStore, Error, Purge, RelayStore};
use posthaste_sql::MySqlStore;
use tokio::task::JoinSet;

use super::{Database, execute};
use crate::support::{assert_upgraded, claim, event, first_and_later, ids, rows_of_every_state, settle_all, write};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_processes_may_migrate_at_once() {
    let database = Database::new().await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = MySqlStore::new(database.pool(1).await);
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

#[tokio::test]
async fn a_migration_that_was_interrupted_is_completed() {
    let database = Database::new().await;
    let store = database.empty().await;
    // It came as far as the table, and not to its record.
    sqlx::raw_sql(sqlx::AssertSqlSafe(store.migration_sql())).execute(store.pool()).await.unwrap();
    write(&store, [event("kept")]).await;
    store.migrate().await.unwrap();
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"]);
}

#[tokio::test]
async fn the_dry_run_prints_what_is_pending_and_what_it_prints_works() {
    let database = Database::new().await;
    let store = database.empty().await.with_table("orders_outbox").unwrap();
    let sql = store.pending_migration_sql().await.unwrap();
    assert_eq!(sql, store.migration_sql());
    assert!(sql.contains("`orders_outbox`"), "{sql}");
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()";
    assert_eq!(sqlx::query_scalar::<_, i64>(tables).fetch_one(store.pool()).await.unwrap(), 0);

    store.migrate().await.unwrap();
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");

    let other = Database::new().await;
    let by_hand = other.empty().await.with_table("orders_outbox").unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(by_hand.pool()).await.unwrap();
    write(&by_hand, [event("1")]).await;
    assert_eq!(ids(&claim(&by_hand, 1).await.1), ["1"]);
}

#[tokio::test]
async fn a_table_of_the_first_version_is_upgraded_with_its_rows() {
    let database = Database::new().await;
    let store = database.empty().await;
    let script = store.migration_sql();
    let (first, later) = first_and_later(&script);
    let history = "CREATE TABLE posthaste_migration (table_name VARCHAR(64) NOT NULL, version BIGINT NOT NULL, \
                   name VARCHAR(255) NOT NULL, applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)), \
                   PRIMARY KEY (table_name, version)) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin; \
                   INSERT INTO posthaste_migration (table_name, version, name) VALUES ('outbox_event', 1, 'create the table')";
    for sql in [first, history] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(store.pool()).await.unwrap();
    }
    let before = rows_of_every_state(&store).await;
    assert!(matches!(store.pauses().await, Err(Error::Schema { .. })), "it is of the first version");
    assert_eq!(store.pending_migration_sql().await.unwrap(), later);
    store.migrate().await.unwrap();
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");
    assert_upgraded(&store, &before).await;
}

#[tokio::test]
async fn a_newer_table_and_a_table_of_somebody_else_are_refused() {
    let database = Database::new().await;
    let store = database.store().await;
    execute(&store, "INSERT INTO posthaste_migration (table_name, version, name) VALUES ('outbox_event', 99, 'later')")
        .await;
    for error in [store.migrate().await.unwrap_err(), store.pending_migration_sql().await.unwrap_err()] {
        assert!(matches!(error, Error::Schema { .. }), "{error:?}");
        assert!(error.to_string().contains("version 99, made by a newer release"), "{error}");
    }

    execute(&store, "CREATE TABLE theirs (id INTEGER)").await;
    let error = store.clone().with_table("theirs").unwrap().migrate().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { table, .. } if table == "theirs"), "{error:?}");
    assert!(error.to_string().contains("already exists"), "{error}");
}

#[tokio::test]
async fn tables_stand_side_by_side_and_in_other_databases() {
    let (database, other) = (Database::new().await, Database::new().await);
    let store = database.empty().await;
    let elsewhere = format!("{}.outbox_event", other.name);
    let stores =
        ["outbox_event", &elsewhere, "select", "Second_1"].map(|table| store.clone().with_table(table).unwrap());
    for store in &stores {
        store.migrate().await.unwrap();
        store.migrate().await.unwrap();
        write(store, [event("same id"), event("another")]).await;
    }
    for store in &stores {
        let (lease, claimed) = claim(store, 10).await;
        assert_eq!(ids(&claimed), ["same id", "another"]);
        store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
        assert_eq!(store.counts().await.unwrap().done, 2);
        let purge = Purge { done_after: Some(std::time::Duration::ZERO), ..Purge::default() };
        assert_eq!(store.purge(&purge).await.unwrap(), 2);
    }
}

#[tokio::test]
async fn hostile_names_never_reach_the_database() {
    let database = Database::new().await;
    let store = database.empty().await;
    for name in ["", "x; DROP TABLE y", "a`b", "a.b.c", &"x".repeat(100)] {
        let error = store.clone().with_table(name).unwrap_err();
        assert!(matches!(error, Error::Config { field: "table", .. }), "{error:?}");
    }
}
