//! Transactions that have ended before their time.

use posthaste_core::store::{AdminStore, CommitError, Error, WriteStore};
use posthaste_core::{EventId, Outbox};
use posthaste_sql::MySqlStore;
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};

use super::{Database, execute, pool};
use crate::support::{claim, event, ids, unleased, write};

const ENDED: &str = "the transaction has ended: the server has rolled it back";

/// A migrated store, and a table of rows to fight for.
async fn contended(database: &Database) -> MySqlStore {
    let store = database.store().await;
    execute(&store, "CREATE TABLE contended (id INT PRIMARY KEY, n INT)").await;
    let rows: Vec<_> = (1..=50).map(|id| format!("({id}, 0)")).collect();
    execute(&store, &format!("INSERT INTO contended VALUES {}", rows.join(", "))).await;
    store
}

/// Has the transaction on a connection lose a deadlock to one that changes many more rows.
async fn lose(store: &MySqlStore, connection: &mut MySqlConnection) {
    connection.execute("UPDATE contended SET n = n + 1 WHERE id = 1").await.unwrap();
    let mut other = store.pool().begin().await.unwrap();
    other.execute("UPDATE contended SET n = n + 1 WHERE id > 1").await.unwrap();
    let (won, lost) = tokio::join!(
        other.execute("UPDATE contended SET n = n + 1 WHERE id = 1"),
        connection.execute("UPDATE contended SET n = n + 1 WHERE id = 2"),
    );
    won.unwrap();
    assert!(lost.unwrap_err().to_string().contains("1213"));
    other.rollback().await.unwrap();
}

/// What a refused write says.
fn refused(error: Error) -> String {
    match error {
        Error::Refused(reason) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

/// However many statements it takes, of whatever kind, and in whoever's transaction.
#[tokio::test]
async fn nothing_is_inserted_after_a_deadlock() {
    let database = Database::new().await;
    let store = contended(&database).await;
    let some = |count: usize| unleased((0..count).map(|n| event(&n.to_string())));
    // The third time that as many come, there is a statement for them.
    for count in [1, 3, 3, 3, 100, 700] {
        let mut tx = store.begin().await.unwrap();
        lose(&store, &mut tx).await;
        for _ in 0..2 {
            let error = store.insert(&mut tx, &some(count)).await.unwrap_err();
            assert!(refused(error).starts_with(ENDED), "{count}");
        }
        store.insert(&mut tx, &[]).await.unwrap();
        store.rollback(tx).await.unwrap();

        let mut tx = store.pool().begin().await.unwrap();
        lose(&store, &mut tx).await;
        let error = store.insert(&mut tx, &some(count)).await.unwrap_err();
        assert!(refused(error).starts_with(ENDED), "{count}");
        tx.commit().await.unwrap();
        assert_eq!(store.counts().await.unwrap().total(), 0, "{count}");
    }
}

/// Without `autocommit` the next statement is in a transaction again, but not in the same.
#[tokio::test]
async fn a_transaction_that_began_by_itself_is_not_taken_for_it() {
    let database = Database::new().await;
    let store = contended(&database).await;
    let without = pool(2).after_connect(|connection, _| {
        Box::pin(async move { connection.execute("SET autocommit = 0").await.map(drop) })
    });
    let without = MySqlStore::new(without.connect_with(database.options()).await.unwrap());
    let outbox = Outbox::writer_only(without.clone()).start().await.unwrap();

    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("1")).await.unwrap();
    tx.commit().await.unwrap();
    for (before, after) in [(true, false), (false, true), (true, true)] {
        let mut tx = outbox.begin().await.unwrap();
        if before {
            tx.write(event("before")).await.unwrap();
        }
        lose(&store, &mut tx).await;
        tx.execute("UPDATE contended SET n = n + 1 WHERE id = 1").await.unwrap();
        if after {
            tx.write(event("after")).await.unwrap();
        }
        // What was written in the other one does not tell how the first has ended.
        let error = tx.commit().await.unwrap_err();
        assert_eq!(matches!(error, CommitError::NotCommitted(_)), before, "{before}, {after}: {error:?}");
    }
    assert_eq!(ids(&claim(&store, 10).await.1), ["1"]);
    without.close().await;
}

/// A statement that changes a table commits what was there, and what comes next would be on its own.
#[tokio::test]
async fn a_statement_that_commits_by_itself() {
    let database = Database::new().await;
    let store = database.store().await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("committed")).await.unwrap();
    tx.execute("CREATE TABLE another (id INT)").await.unwrap();
    let error = tx.write(event("refused")).await.unwrap_err();
    assert!(format!("{error:?}").contains(ENDED), "{error:?}");
    let error = tx.commit().await.unwrap_err();
    let CommitError::Unknown(cause) = error else { panic!("{error:?}") };
    assert!(refused(cause).starts_with("the transaction had been committed before"));

    // If there was no event before it, nobody knows what was committed.
    let mut tx = outbox.begin().await.unwrap();
    tx.execute("DROP TABLE another").await.unwrap();
    tx.write(event("refused")).await.unwrap_err();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
    assert_eq!(ids(&claim(&store, 10).await.1), ["committed"]);
}

/// That no event is there does not show that nothing was committed, unless one was written that must be.
#[tokio::test]
async fn nobody_knows_how_it_has_ended() {
    let database = Database::new().await;
    let store = database.store().await;
    execute(&store, "CREATE TABLE business (id INT PRIMARY KEY)").await;
    let deleting = store.clone().deleting_done();
    for (id, events) in ["none", "undone", "delivered and deleted"].into_iter().enumerate() {
        let used = if events == "delivered and deleted" { &deleting } else { &store };
        let outbox = Outbox::writer_only(used.clone()).start().await.unwrap();
        let mut tx = outbox.begin().await.unwrap();
        tx.execute(AssertSqlSafe(format!("INSERT INTO business VALUES ({id})"))).await.unwrap();
        match events {
            "undone" => {
                let mut savepoint = tx.savepoint().await.unwrap();
                savepoint.write(event("undone")).await.unwrap();
                savepoint.rollback().await.unwrap();
            }
            "delivered and deleted" => drop(tx.write(event("delivered")).await.unwrap()),
            _ => {}
        }
        tx.execute("COMMIT").await.unwrap();
        execute(&store, "DELETE FROM outbox_event").await;
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::Unknown(_)), "{events}: {error:?}");
        let there: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM business").fetch_one(store.pool()).await.unwrap();
        assert_eq!(there, i64::try_from(id).unwrap() + 1, "{events}");
    }
}

/// One that is begun in place of the first before the only event has that event, and is committed with it.
#[tokio::test]
async fn a_statement_that_begins_another_before_the_event() {
    let database = Database::new().await;
    let store = database.store().await;
    execute(&store, "CREATE TABLE business (id INT PRIMARY KEY)").await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.execute("INSERT INTO business VALUES (1)").await.unwrap();
    sqlx::raw_sql("ROLLBACK; BEGIN").execute(&mut *tx).await.unwrap();
    tx.execute("INSERT INTO business VALUES (2)").await.unwrap();
    tx.write(event("with 2")).await.unwrap();
    tx.commit().await.unwrap();
    let there: Vec<i32> = sqlx::query_scalar("SELECT id FROM business").fetch_all(store.pool()).await.unwrap();
    assert_eq!((there, ids(&claim(&store, 10).await.1)), (vec![2], vec!["with 2"]));
}

/// What is in another transaction, which somebody has begun in the place of the first, is not committed with it.
#[tokio::test]
async fn a_statement_that_ends_it_and_one_that_begins_another() {
    let database = Database::new().await;
    let store = database.store().await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    for (statement, committed) in [("ROLLBACK", 0), ("ROLLBACK; BEGIN", 0), ("COMMIT; BEGIN", 1), ("BEGIN", 1)] {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event(&format!("before {statement}"))).await.unwrap();
        sqlx::raw_sql(statement).execute(&mut *tx).await.unwrap();
        let written = tx.write(event(&format!("after {statement}"))).await;
        assert_eq!(written.is_ok(), statement.ends_with("BEGIN"), "{statement}");
        match tx.commit().await.unwrap_err() {
            CommitError::NotCommitted(_) => assert_eq!(committed, 0, "{statement}"),
            CommitError::Unknown(_) => assert_eq!(committed, 1, "{statement}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ids(&claim(&store, 10).await.1), ["before COMMIT; BEGIN", "before BEGIN"]);
}

/// An error of a trigger is not taken for the end of the transaction.
#[tokio::test]
async fn a_trigger_of_the_same_errors() {
    let database = Database::new().await;
    let store = database.store().await;
    // Out of range; a procedure that does not exist.
    for (body, words) in [("SET @x = ~0 + 1", "out of range"), ("CALL nowhere()", "nowhere does not exist")] {
        execute(
            &store,
            &format!(
                "CREATE TRIGGER broken BEFORE INSERT ON outbox_event FOR EACH ROW \
                 BEGIN IF NEW.event_type = 'Broken' THEN {body}; END IF; END"
            ),
        )
        .await;
        let broken = posthaste_core::Event::builder("Broken").json_text("{}").build().unwrap();
        let mut tx = store.begin().await.unwrap();
        let error = store.insert(&mut tx, &unleased([broken])).await.unwrap_err();
        assert!(refused(error).contains(words), "{body}");
        store.insert(&mut tx, &unleased([event(body)])).await.unwrap();
        store.commit(tx).await.unwrap();
        assert!(store.find(&EventId::from_row(body)).await.unwrap().is_some());
        execute(&store, "DROP TRIGGER broken").await;
    }
}

/// A commit that has asked leaves the connection as good as new, also with savepoints that somebody has forgotten.
#[tokio::test]
async fn the_connection_of_a_commit_goes_back() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let id = async || sqlx::query_scalar::<_, u64>("SELECT CONNECTION_ID()").fetch_one(store.pool()).await.unwrap();
    let first = id().await;
    for forgotten in 0..3 {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event(&forgotten.to_string())).await.unwrap();
        for _ in 0..forgotten {
            store.savepoint(&mut tx).await.unwrap();
        }
        tx.execute("DO 1").await.unwrap();
        tx.commit().await.unwrap();
        let mut connection = store.pool().acquire().await.unwrap();
        assert!(!connection.is_in_transaction());
        // Refused in a transaction.
        connection.execute("SET TRANSACTION READ WRITE").await.unwrap();
        drop(connection);
        assert_eq!(id().await, first);
    }
    write(&store, [event("last")]).await;
    assert_eq!(ids(&claim(&store, 10).await.1), ["0", "1", "2", "last"]);
}
