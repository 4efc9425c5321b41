//! Creating and upgrading the table.

use posthaste_core::store::{AdminStore, Error};
use posthaste_sql::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use tokio::task::JoinSet;

use crate::support::{Database, assert_upgraded, claim, event, first_and_later, ids, rows_of_every_state, write};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pools_may_open_and_migrate_a_new_file_at_once() {
    let database = Database::new();
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let path = database.path();
        tasks.spawn(async move {
            let store = SqliteStore::open(path).await.unwrap();
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
async fn the_dry_run_prints_what_is_pending_and_what_it_prints_works() {
    let database = Database::new();
    let store = SqliteStore::open(database.path()).await.unwrap().with_table("orders_outbox").unwrap();
    let sql = store.pending_migration_sql().await.unwrap();
    assert_eq!(sql, store.migration_sql());
    assert!(sql.contains("CREATE TABLE \"orders_outbox\""), "{sql}");
    let tables = "SELECT count(*) FROM sqlite_master";
    assert_eq!(sqlx::query_scalar::<_, i64>(tables).fetch_one(store.pool()).await.unwrap(), 0);

    store.migrate().await.unwrap();
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");

    let other = Database::new();
    let by_hand = SqliteStore::open(other.path()).await.unwrap().with_table("orders_outbox").unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(by_hand.pool()).await.unwrap();
    write(&by_hand, [event("1")]).await;
    assert_eq!(ids(&claim(&by_hand, 1).await.1), ["1"]);
}

#[tokio::test]
async fn a_table_of_the_first_version_is_upgraded_with_its_rows() {
    let database = Database::new();
    let store = SqliteStore::open(database.path()).await.unwrap();
    let script = store.migration_sql();
    let (first, later) = first_and_later(&script);
    let history = "CREATE TABLE posthaste_migration (table_name TEXT NOT NULL COLLATE NOCASE, version INTEGER NOT NULL, \
                   name TEXT NOT NULL, applied_at INTEGER NOT NULL, PRIMARY KEY (table_name, version)); \
                   INSERT INTO posthaste_migration VALUES ('outbox_event', 1, 'create the table', 1800000000000000)";
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
async fn what_is_up_to_date_is_migrated_by_who_may_only_read() {
    let database = Database::new();
    database.store().await.pool().close().await;
    let options = SqliteConnectOptions::new().filename(database.path()).read_only(true);
    let store = SqliteStore::new(SqlitePoolOptions::new().connect_with(options).await.unwrap());
    store.migrate().await.unwrap();
    let error = store.with_table("another").unwrap().migrate().await.unwrap_err();
    assert!(!matches!(error, Error::Schema { .. }), "it cannot be made by who only reads: {error:?}");
}

#[tokio::test]
async fn a_newer_table_and_a_table_of_somebody_else_are_refused() {
    let database = Database::new();
    let store = database.store().await;
    sqlx::query("INSERT INTO posthaste_migration VALUES ('outbox_event', 99, 'later', 0)")
        .execute(store.pool())
        .await
        .unwrap();
    for error in [store.migrate().await.unwrap_err(), store.pending_migration_sql().await.unwrap_err()] {
        assert!(matches!(error, Error::Schema { .. }), "{error:?}");
        assert!(error.to_string().contains("version 99, made by a newer release"), "{error}");
    }

    sqlx::query("CREATE TABLE theirs (id INTEGER)").execute(store.pool()).await.unwrap();
    let error = store.clone().with_table("theirs").unwrap().migrate().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { table, .. } if table == "theirs"), "{error:?}");
    assert!(error.to_string().contains("already exists"), "{error}");
}

#[tokio::test]
async fn tables_stand_side_by_side_and_in_attached_schemas() {
    let database = Database::new();
    let attached = database.path().with_extension("attached");
    let options = SqliteConnectOptions::new().filename(database.path()).create_if_missing(true);
    let pool = SqlitePoolOptions::new()
        .after_connect(move |connection, _| {
            let path = attached.to_string_lossy().into_owned();
            Box::pin(async move {
                sqlx::query("ATTACH DATABASE ? AS audit").bind(path).execute(connection).await.map(|_| ())
            })
        })
        .connect_with(options)
        .await
        .unwrap();
    let store = SqliteStore::new(pool);
    let stores = ["outbox_event", "audit.outbox_event", "main.select", "Second_1"]
        .map(|table| store.clone().with_table(table).unwrap());
    for store in &stores {
        store.migrate().await.unwrap();
        store.migrate().await.unwrap();
        write(store, [event("same id"), event(&store.table().to_string())]).await;
    }
    for store in &stores {
        let (lease, claimed) = claim(store, 10).await;
        assert_eq!(ids(&claimed), ["same id".to_owned(), store.table().to_string()]);
        let settlements = crate::support::settle_all(&lease, &claimed, &posthaste_core::store::Action::Done);
        posthaste_core::store::RelayStore::settle(store, &settlements).await.unwrap();
        assert_eq!(store.counts().await.unwrap().done, 2);
        let purge = posthaste_core::store::Purge { done_after: Some(std::time::Duration::ZERO), ..Default::default() };
        assert_eq!(store.purge(&purge).await.unwrap(), 2);
    }
}

#[tokio::test]
async fn hostile_names_never_reach_the_database() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    for name in ["", "x; DROP TABLE y", "a\"b", "a.b.c", "sqlite_sequence", &"x".repeat(100)] {
        let error = store.clone().with_table(name).unwrap_err();
        assert!(matches!(error, Error::Config { field: "table", .. }), "{error:?}");
    }
}

#[tokio::test]
async fn stores_are_opened_by_url_in_any_case() {
    let database = Database::new();
    for scheme in ["sqlite:", "SQLite://"] {
        let store = SqliteStore::connect(&format!("{scheme}{}", database.path().display())).await.unwrap();
        store.migrate().await.unwrap();
        let (journal, synchronous, timeout): (String, i64, i64) = sqlx::query_as(
            "SELECT journal_mode, synchronous, timeout \
             FROM pragma_journal_mode, pragma_synchronous, pragma_busy_timeout",
        )
        .fetch_one(store.pool())
        .await
        .unwrap();
        assert_eq!((journal.as_str(), synchronous, timeout), ("wal", 2, 5000));
    }
    let missing = format!("sqlite:{}?mode=rw", database.path().with_extension("missing").display());
    assert!(SqliteStore::connect(&missing).await.is_err());
    let error = SqliteStore::connect("postgres://u:secret@host/db").await.unwrap_err().to_string();
    assert!(error.contains("PostgreSQL") && !error.contains("secret"), "{error}");
}
