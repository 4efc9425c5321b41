//! Errors and their kinds.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use posthaste_core::Event;
use posthaste_core::store::{Action, AdminStore, CommitError, Error, RelayStore, Settled, WriteStore};
use posthaste_sql::MySqlStore;
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlSslMode};

use super::{Database, execute, execute_in_a_destructor, pool, until_waiting};
use crate::failover::assert_stale_connections_are_left;
use crate::support::{chain, claim, claim_of, event, ids, settle_all, unleased, write};

#[tokio::test]
async fn errors_have_kinds() {
    let database = Database::new().await;
    let store = database.empty().await;
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(&error, Error::Schema { table, .. } if table == "outbox_event"), "{error:?}");
    assert!(error.to_string().contains("call migrate() first"), "{error}");

    store.migrate().await.unwrap();
    execute(&store, "ALTER TABLE outbox_event DROP COLUMN topic").await;
    let with_topic = Event::builder("T").topic("orders").json_text("1").build().unwrap();
    for error in [
        store.claim(&claim_of(1)).await.unwrap_err(),
        store.insert(&mut store.begin().await.unwrap(), &unleased([with_topic])).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Schema { reason, .. } if reason.contains("topic")), "{error:?}");
    }

    let elsewhere = store.clone().with_table("no_such_database.outbox_event").unwrap();
    let error = elsewhere.migrate().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { reason, .. } if reason.contains("create the database")), "{error:?}");

    store.close().await;
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let error = store.begin().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn urls_are_taken_in_every_spelling_and_never_shown() {
    let error = MySqlStore::connect("mysql://root:secret@127.0.0.1:1/x").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    let error = MySqlStore::connect("MariaDB://root:secret@:port/x").await.unwrap_err();
    assert!(matches!(error, Error::Config { field: "url", .. }), "{error:?}");
    assert!(!error.to_string().contains("secret"), "{error}");
    let error = MySqlStore::connect("oracle:x").await.unwrap_err();
    assert!(matches!(error, Error::Config { field: "url", .. }), "{error:?}");

    let url = std::env::var("POSTHASTE_TEST_MYSQL_URL").unwrap();
    let (_, rest) = url.split_once(':').unwrap();
    for scheme in ["mysql", "MariaDB"] {
        let store = MySqlStore::connect(&format!("{scheme}:{rest}")).await.unwrap();
        store.close().await;
    }
}

#[tokio::test]
async fn a_server_that_is_full_cannot_be_reached() {
    let database = Database::new().await;
    let options = encrypted(database.user("WITH MAX_USER_CONNECTIONS 1").await);
    let first = pool(1).connect_with(options.clone()).await.unwrap();
    let second = MySqlStore::new(pool(1).connect_lazy_with(options));
    let error = second.counts().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(chain(&error).contains("make the pools smaller"), "{}", chain(&error));
    first.close().await;
}

/// Passwords are sent to MySQL encrypted or not at all.
pub(super) fn encrypted(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options.ssl_mode(MySqlSslMode::Preferred)
}

#[tokio::test]
async fn what_somebody_can_mend_says_how() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, [event("1")]).await;
    let user = encrypted(database.user("").await);
    let error = MySqlStore::connect(user.clone().password("y").to_url_lossy().as_str()).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(chain(&error).contains("check the user and the password"), "{}", chain(&error));

    let name = database.user_name();
    execute(&store, &format!("REVOKE UPDATE ON {}.* FROM {name}", database.name)).await;
    let viewer = MySqlStore::new(pool(1).connect_with(user).await.unwrap());
    let error = viewer.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(chain(&error).contains("grant this user what it needs"), "{}", chain(&error));

    // As the server answers, made to.
    for (number, advice) in [(1114, "make room"), (1021, "make room"), (1290, "connect to the primary")] {
        execute(&store, "DROP TRIGGER IF EXISTS fault").await;
        execute(
            &store,
            &format!(
                "CREATE TRIGGER fault BEFORE INSERT ON outbox_event FOR EACH ROW \
                 SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}"
            ),
        )
        .await;
        let mut tx = store.begin().await.unwrap();
        let error = store.insert(&mut tx, &unleased([event("x")])).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(chain(&error).contains(advice), "{}", chain(&error));
    }
}

#[tokio::test]
async fn a_connection_to_a_server_that_only_reads_is_used_once() {
    let database = Database::new().await;
    assert_stale_connections_are_left(&database.store().await, async || {
        let made = AtomicBool::new(false);
        let pool = pool(1).after_connect(move |connection, _| {
            let is_first = !made.swap(true, Ordering::Relaxed);
            Box::pin(async move {
                if is_first {
                    sqlx::raw_sql("SET SESSION TRANSACTION READ ONLY").execute(connection).await?;
                }
                Ok(())
            })
        });
        MySqlStore::new(pool.connect_with(database.options()).await.unwrap())
    })
    .await;
}

#[tokio::test]
async fn what_may_not_write_is_not_the_server_to_write_to() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, [event("1")]).await;
    let pool = pool(1)
        .after_connect(|connection, _| {
            Box::pin(
                async move { sqlx::query("SET SESSION TRANSACTION READ ONLY").execute(connection).await.map(|_| ()) },
            )
        })
        .connect_with(database.options())
        .await
        .unwrap();
    let error = MySqlStore::new(pool).claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}

/// A server that takes no writes but from those who may do everything, as other tests do.
struct ReadOnly;

impl ReadOnly {
    async fn new(connection: &mut MySqlConnection) -> Self {
        // It waits for statements that wait for others, which would wait for it. So it is not to wait long.
        sqlx::raw_sql("SET lock_wait_timeout = 1").execute(&mut *connection).await.unwrap();
        while let Err(error) = sqlx::raw_sql("SET GLOBAL read_only = 1").execute(&mut *connection).await {
            let number = error.as_database_error().unwrap().downcast_ref::<MySqlDatabaseError>().number();
            assert_eq!(number, 1205, "{error}");
        }
        Self
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        execute_in_a_destructor("SET GLOBAL read_only = 0".to_owned());
    }
}

#[tokio::test]
async fn a_server_that_was_set_to_read_only_is_left_with_all_connections() {
    let database = Database::new().await;
    database.store().await;
    let store = MySqlStore::new(pool(3).connect_with(encrypted(database.user("").await)).await.unwrap());
    let connections = async || {
        let mut held = Vec::new();
        let mut ids = HashSet::new();
        for _ in 0..3 {
            let mut connection = store.pool().acquire().await.unwrap();
            ids.insert(
                sqlx::query_scalar::<_, u64>("SELECT CONNECTION_ID()").fetch_one(&mut *connection).await.unwrap(),
            );
            held.push(connection);
        }
        ids
    };
    let before = connections().await;
    write(&store, [event("1")]).await;
    let mut open = store.begin().await.unwrap();
    store.insert(&mut open, &unleased([event("open")])).await.unwrap();

    let read_only = ReadOnly::new(&mut database.connection().await).await;
    let error = store.claim(&claim_of(1)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(chain(&error).contains("connect to the primary"), "{}", chain(&error));
    let error = store.commit(open).await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(Error::Unavailable(_))), "{error:?}");
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("refused")])).await.unwrap_err();
    drop(tx);
    drop(read_only);

    write(&store, [event("2")]).await;
    let (lease, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["1", "2"]);
    store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
    assert!(connections().await.is_disjoint(&before));
}

#[tokio::test]
async fn a_killed_connection_is_replaced() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let id: u64 = sqlx::query_scalar("SELECT CONNECTION_ID()").fetch_one(store.pool()).await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let other = database.empty().await;
    execute(&other, &format!("KILL {id}")).await;
    let error = store.insert(&mut tx, &unleased([event("1")])).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)) && error.is_transient(), "{error:?}");
    drop(tx);
    write(&store, [event("2")]).await;
}

#[tokio::test]
async fn a_settlement_that_loses_a_deadlock_is_tried_again() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["1", "2"].map(event)).await;
    write(&store, (10..200).map(|n| event(&n.to_string()))).await;
    let (lease, claimed) = claim(&store, 2).await;

    // Somebody who has written more, so that the server spares them.
    let mut tx = store.begin().await.unwrap();
    let theirs = "UPDATE outbox_event SET topic = 'theirs' WHERE seq > 2";
    sqlx::query(theirs).execute(&mut *tx).await.unwrap();
    let lock = sqlx::query("UPDATE outbox_event SET topic = 'theirs' WHERE seq = ?").bind(claimed.rows[1].seq);
    lock.execute(&mut *tx).await.unwrap();

    let settlements = settle_all(&lease, &claimed, &Action::Done);
    let settling = tokio::spawn({
        let store = store.clone();
        async move { store.settle(&settlements).await }
    });
    until_waiting(&database, 1).await;
    let lock = sqlx::query("UPDATE outbox_event SET topic = 'theirs' WHERE seq = ?").bind(claimed.rows[0].seq);
    lock.execute(&mut *tx).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(settling.await.unwrap().unwrap(), [Settled::Applied; 2]);
    assert_eq!(store.counts().await.unwrap().done, 2);
}

#[tokio::test]
async fn a_lock_that_is_held_too_long_is_busy() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("same")])).await.unwrap();
    let mut second = store.begin().await.unwrap();
    sqlx::query("SET innodb_lock_wait_timeout = 0").execute(&mut *second).await.unwrap();
    let error = store.insert(&mut second, &unleased([event("same")])).await.unwrap_err();
    assert!(matches!(error, Error::Busy(_)) && error.is_transient(), "{error:?}");
    store.rollback(second).await.unwrap();
    store.rollback(tx).await.unwrap();
}
