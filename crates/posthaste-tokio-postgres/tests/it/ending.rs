//! Part B: how transactions end.

use posthaste_conformance::testing::{Wire, event_with_id as event, eventually, within};
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_core::{CommitError, Outbox};
use posthaste_sql::PgStore;
use posthaste_tokio_postgres::OutboxExt;
use tokio_postgres::Client;

use crate::support::{Database, assert_outside, connect, told};

/// A constraint that is looked at in the commit, and refuses everything.
const DEFERRED: &str = "CREATE TABLE parent (id INTEGER PRIMARY KEY); \
                        CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)";

/// A trigger that has the commit take its time.
const SLOW: &str = "CREATE TABLE slow (id INTEGER); \
                    CREATE FUNCTION dawdle() RETURNS TRIGGER LANGUAGE plpgsql AS \
                    $$ BEGIN PERFORM pg_sleep(600); RETURN NULL; END $$; \
                    CREATE CONSTRAINT TRIGGER dawdles AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED \
                    FOR EACH ROW EXECUTE FUNCTION dawdle()";

#[tokio::test]
async fn case_10_nothing_survives() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    client.batch_execute(DEFERRED).await.unwrap();
    for ending in ["rollback", "drop", "unpolled rollback", "unpolled commit", "failed statement", "refused commit"] {
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event("first")).await.unwrap();
        tx.write(event("second")).await.unwrap();
        assert_eq!(witness.told(), [], "{ending}: too early");
        match ending {
            "rollback" => tx.rollback().await.unwrap(),
            "drop" => drop(tx),
            "unpolled rollback" => drop(tx.rollback()),
            "unpolled commit" => drop(tx.commit()),
            _ => {
                // PostgreSQL answers the first of these commits with success, and rolls back.
                if ending == "failed statement" {
                    tx.query_one("SELECT 1 / 0", &[]).await.unwrap_err();
                } else {
                    tx.execute("INSERT INTO child VALUES (1)", &[]).await.unwrap();
                }
                let error = tx.commit().await.unwrap_err();
                assert!(matches!(error, CommitError::NotCommitted(Error::Refused(_))), "{ending}: {error:?}");
            }
        }
        assert_eq!(witness.told(), [told("rollback", &["first", "second"])], "{ending}");
        assert_outside(&client).await;
        assert_eq!(database.rows().await, 0, "{ending}");
    }
    // What is delivered after all this is the next event, and nothing else.
    write(&outbox, &mut client, "last").await;
    assert_eq!(inbox.arrival().await, ("last".to_owned(), Path::Hot));
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A statement of the user's has begun another one in its place. That one is committed; what was rolled back is not delivered.
#[tokio::test]
async fn replaced_by_a_statement() {
    let database = Database::new().await;
    let (outbox, _witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    for (round, (statement, next)) in [
        ("ROLLBACK; BEGIN", "commit"),
        ("ROLLBACK; BEGIN", "write"),
        ("ROLLBACK; BEGIN", "write, statement"),
        ("ROLLBACK AND CHAIN", "statement"),
        ("COMMIT; BEGIN", "write, statement"),
    ]
    .into_iter()
    .enumerate()
    {
        let [before, after] = ["before", "after"].map(|when| format!("{when} {round}"));
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event(&before)).await.unwrap();
        tx.batch_execute(statement).await.unwrap();
        if next.starts_with("write") {
            tx.write(event(&after)).await.unwrap();
        }
        if next.ends_with("statement") {
            tx.batch_execute("CREATE TEMPORARY TABLE scratch (id INTEGER) ON COMMIT DROP").await.unwrap();
        }
        tx.commit().await.unwrap();
        let (committed, written) = (statement.starts_with("COMMIT"), next.starts_with("write"));
        let expected = [(committed, before), (written, after)].into_iter().filter(|(it, _)| *it).map(|(_, id)| id);
        let mut expected: Vec<_> = expected.collect();
        for _ in 0..expected.len() {
            let (arrived, _) = inbox.arrival().await;
            expected.retain(|id| *id != arrived);
        }
        assert_eq!(expected, [""; 0], "{statement}, {next}");
        assert_outside(&client).await;
    }
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 4);
}

/// A connection that was known to be lost before the commit: the commit was not even sent.
#[tokio::test]
async fn case_10_commit_on_a_closed_connection() {
    let database = Database::new().await;
    let (outbox, witness, _inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("lost")).await.unwrap();
    database.terminate("state = 'idle in transaction'").await;
    eventually("the client knows", async || tx.client().is_closed()).await;
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(Error::Unavailable(_))), "{error:?}");
    assert_eq!(witness.told(), [told("rollback", &["lost"])]);
    outbox.shutdown().await;
}

/// The answer to the commit was lost: a typed error and no hot dispatch; it was committed, so the poller delivers, soon.
#[tokio::test]
async fn case_18_lost_answer_of_a_commit() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let wire = Wire::losing_the_answer(&database.url(), "COMMIT").await;
    let mut client = connect(wire.url()).await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("lost")).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert_eq!(witness.told(), [told("unknown", &["lost"])]);
    assert_eq!(inbox.arrival().await, ("lost".to_owned(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(outbox.admin().counts().await.unwrap().done, 1);
}

/// The connection was lost in the commit, which did not happen: the same error, and nothing is ever delivered.
#[tokio::test]
async fn case_18_lost_commit() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    client.batch_execute(SLOW).await.unwrap();
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.execute("INSERT INTO slow VALUES (1)", &[]).await.unwrap();
    tx.write(event("lost")).await.unwrap();
    let cut = database.in_the_commit("pg_terminate_backend(pid, 10000)");
    let (committed, ()) = within("the commit has failed", async { tokio::join!(tx.commit(), cut) }).await;
    let error = committed.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert_eq!(witness.told(), [told("unknown", &["lost"])]);

    let mut client = database.client().await;
    write(&outbox, &mut client, "next").await;
    assert_eq!(inbox.arrival().await, ("next".to_owned(), Path::Hot));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 1);
}

/// A commit that somebody cancels is refused, and the connection goes on.
#[tokio::test]
async fn case_18_cancelled_commit() {
    let database = Database::new().await;
    let (outbox, witness, _inbox) = database.outbox().await;
    let mut client = database.client().await;
    client.batch_execute(SLOW).await.unwrap();
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.batch_execute("INSERT INTO slow VALUES (1)").await.unwrap();
    tx.write(event("late")).await.unwrap();
    let cancel = database.in_the_commit("pg_cancel_backend(pid)");
    let (committed, ()) = within("the commit has failed", async { tokio::join!(tx.commit(), cancel) }).await;
    let error = committed.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(Error::Busy(_))), "{error:?}");
    assert_eq!(witness.told(), [told("rollback", &["late"])]);
    assert_outside(&client).await;
    assert_eq!(database.rows().await, 0);
    outbox.shutdown().await;
}

impl Database {
    /// Does this to the connection whose commit takes its time, once it does.
    async fn in_the_commit(&self, function: &str) {
        let sleeps = "wait_event = 'PgSleep'";
        eventually("the commit is under way", async || self.backends(sleeps).await == 1).await;
        self.call(function, sleeps).await;
    }
}

async fn write(outbox: &Outbox<PgStore>, client: &mut Client, id: &str) {
    let mut tx = outbox.begin_on(client).await.unwrap();
    tx.write(event(id)).await.unwrap();
    tx.commit().await.unwrap();
}
