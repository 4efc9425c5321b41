//! What only PostgreSQL does.

use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use posthaste_conformance::testing::{Wire, Witness, event, told, watched};
use posthaste_conformance::{Fixture, PgFixture};
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_core::{CommitError, Outbox, TransactionError, WriteError};
use posthaste_diesel::OutboxExt;
use posthaste_sql::PgStore;

use crate::database::{Database, create};
use crate::observe::total;

/// A statement failed and its error was swallowed: the server would answer the COMMIT with success, and roll back.
#[tokio::test]
async fn case_10_a_swallowed_error_is_no_commit() {
    let database = create::<PgFixture>().await;
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    // This is what diesel-async says by itself.
    let by_itself = conn.transaction(async |conn| {
        conn.batch_execute("INSERT INTO orders (total) VALUES (1)").await?;
        assert!(conn.batch_execute("SELECT 1 / 0").await.is_err());
        Ok::<_, diesel::result::Error>(())
    });
    by_itself.await.expect("diesel-async takes it for a commit");

    let one = event("Phantom");
    let swallowed = outbox.transaction_on(&mut conn, async |tx| {
        tx.write(&one).await?;
        assert!(tx.batch_execute("SELECT 1 / 0").await.is_err());
        anyhow::Ok(())
    });
    let error = swallowed.await.unwrap_err().downcast::<TransactionError>().unwrap();
    assert!(matches!(error, TransactionError::Commit(CommitError::NotCommitted(_))), "{error:?}");
    assert_eq!(witness.told(), [told("rollback", std::slice::from_ref(&one))]);

    // The same through a shared connection, as for pipelines.
    let shared = outbox.transaction_on(&mut conn, async |tx| {
        tx.write(&one).await?;
        assert!(diesel::sql_query("SELECT 1 / 0").execute(&mut &**tx).await.is_err());
        anyhow::Ok(())
    });
    let error = shared.await.unwrap_err().downcast::<TransactionError>().unwrap();
    assert!(matches!(error, TransactionError::Commit(CommitError::NotCommitted(_))), "{error:?}");
    assert_eq!(witness.told(), [told("rollback", std::slice::from_ref(&one))]);

    // The same with the error of an event.
    let duplicate = outbox.transaction_on(&mut conn, async |tx| {
        tx.write(&one).await?;
        tx.write(&one).await.unwrap_err();
        anyhow::Ok(())
    });
    let error = duplicate.await.unwrap_err().downcast::<TransactionError>().unwrap();
    assert!(matches!(error, TransactionError::Commit(CommitError::NotCommitted(_))), "{error:?}");
    assert_eq!(witness.told(), [told("rollback", std::slice::from_ref(&one))]);
    assert_eq!(total(&outbox).await, 0);

    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Last")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Last");
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Ends the connection when the constraints are checked, which is in the commit.
const DIES_IN_COMMIT: &str = "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ \
     BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END $$; \
     CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()";

async fn dies(database: &PgFixture, outbox: &Outbox<PgStore>, last: &'static str) -> CommitError {
    let mut conn = database.connect().await;
    let cut_off = outbox.transaction_on(&mut conn, async |tx| {
        tx.batch_execute("INSERT INTO orders (total) VALUES (1)").await?;
        tx.write(event("Unknown")).await?;
        tx.batch_execute(last).await?;
        anyhow::Ok(())
    });
    let error = match cut_off.await.unwrap_err().downcast::<TransactionError>().unwrap() {
        TransactionError::Commit(error) => error,
        other => panic!("{other:?}"),
    };
    // The connection is of no use any more, and says so.
    let after = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("After")).await?)).await;
    let after = after.unwrap_err().downcast::<TransactionError>().unwrap();
    assert!(matches!(after, TransactionError::Begin(Error::Unavailable(_))), "{after:?}");
    error
}

fn steps(witness: &Witness) -> Vec<&'static str> {
    witness.told().into_iter().map(|(step, _)| step).collect()
}

/// The connection is lost in the COMMIT: nobody knows, and nothing is dispatched.
#[tokio::test]
async fn case_18_commit_unknown() {
    let database = create::<PgFixture>().await;
    database.connect().await.batch_execute(DIES_IN_COMMIT).await.unwrap();
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let cut_off = outbox.transaction_on(&mut conn, async |tx| {
        tx.batch_execute("INSERT INTO orders (total) VALUES (1)").await?;
        tx.write(event("Unknown")).await?;
        anyhow::Ok(())
    });
    let error = cut_off.await.unwrap_err().downcast::<TransactionError>().unwrap();
    let unknown = matches!(error, TransactionError::Commit(CommitError::Unknown(Error::Unavailable(_))));
    assert!(unknown, "{error:?}");
    assert_eq!(steps(&witness), ["unknown"]);
    // Lost before the COMMIT was sent: that is known.
    let error = dies(&database, &outbox, "SELECT 1").await;
    assert!(matches!(error, CommitError::NotCommitted(Error::Unavailable(_))), "{error:?}");
    assert_eq!(steps(&witness), ["rollback"]);
    assert_eq!(total(&outbox).await, 0);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// The answer to the commit was lost: a typed error and no hot dispatch; it was committed, so the poller delivers, soon.
#[tokio::test]
async fn case_18_lost_answer_of_a_commit() {
    let database = create::<PgFixture>().await;
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let wire = Wire::losing_the_answer(&database.address(), "COMMIT").await;
    let mut conn = PgFixture::open(wire.url()).await.unwrap();
    let lost = event("Lost");
    let cut_off = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(&lost).await?)).await;
    let error = cut_off.unwrap_err().downcast::<TransactionError>().unwrap();
    let unknown = matches!(error, TransactionError::Commit(CommitError::Unknown(Error::Unavailable(_))));
    assert!(unknown, "{error:?}");
    assert_eq!(witness.told(), [told("unknown", std::slice::from_ref(&lost))]);
    assert_eq!(inbox.arrival().await, (lost.id().to_string(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(total(&outbox).await, 1);
}

/// The server never heard of the commit: the same error, and nothing is ever delivered.
#[tokio::test]
async fn case_18_lost_commit() {
    let database = create::<PgFixture>().await;
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let wire = Wire::cut_before(&database.address(), "COMMIT").await;
    let mut conn = PgFixture::open(wire.url()).await.unwrap();
    let cut_off = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Lost")).await?)).await;
    let error = cut_off.unwrap_err().downcast::<TransactionError>().unwrap();
    let unknown = matches!(error, TransactionError::Commit(CommitError::Unknown(Error::Unavailable(_))));
    assert!(unknown, "{error:?}");
    assert_eq!(steps(&witness), ["unknown"]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(total(&outbox).await, 0);
}

/// The server goes on talking, but does not know itself whether it has committed (SQLSTATE 40003, in the words of CockroachDB).
#[tokio::test]
async fn case_18_a_commit_of_which_the_server_does_not_know() {
    const AMBIGUOUS: &str = "CREATE FUNCTION shrug() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN RAISE EXCEPTION 'result is ambiguous: sending failed' USING ERRCODE = '40003'; END $$; \
         CREATE CONSTRAINT TRIGGER shrugs AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION shrug()";
    let database = create::<PgFixture>().await;
    database.connect().await.batch_execute(AMBIGUOUS).await.unwrap();
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let ambiguous = outbox.transaction_on(&mut conn, async |tx| {
        tx.batch_execute("INSERT INTO orders (total) VALUES (1)").await?;
        tx.write(event("Unknown")).await?;
        anyhow::Ok(())
    });
    let error = ambiguous.await.unwrap_err().downcast::<TransactionError>().unwrap();
    assert!(matches!(error, TransactionError::Commit(CommitError::Unknown(_))), "{error:?}");
    assert_eq!(steps(&witness), ["unknown"]);
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Last")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Last");
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// The COMMIT is refused with an error that diesel has no name for, and the connection lives on: that is known.
#[tokio::test]
async fn case_10_a_commit_that_a_trigger_refuses() {
    const REFUSES: &str = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ \
         BEGIN RAISE EXCEPTION 'not today'; END $$; \
         CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION refuse()";
    let database = create::<PgFixture>().await;
    database.connect().await.batch_execute(REFUSES).await.unwrap();
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let refused = outbox.transaction_on(&mut conn, async |tx| {
        tx.batch_execute("INSERT INTO orders (total) VALUES (1)").await?;
        tx.write(event("Refused")).await?;
        anyhow::Ok(())
    });
    let error = refused.await.unwrap_err().downcast::<TransactionError>().unwrap();
    assert!(matches!(error, TransactionError::Commit(CommitError::NotCommitted(Error::Refused(_)))), "{error:?}");
    assert_eq!(steps(&witness), ["rollback"]);
    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Last")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Last");
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A server that only reads cannot take an event, and the error says that it is worth trying again elsewhere.
#[tokio::test]
async fn a_read_only_transaction_is_unavailable() {
    let database = create::<PgFixture>().await;
    let (outbox, _, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    let mut read_only = conn.build_transaction().read_only();
    let reading = read_only.run(async |conn| {
        let error = outbox.write_in(conn, event("Unwritten")).await.unwrap_err();
        assert!(matches!(error, WriteError::Store { error: Error::Unavailable(_), .. }), "{error:?}");
        Err::<(), _>(diesel::result::Error::RollbackTransaction)
    });
    reading.await.unwrap_err();
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// What a statement of the user's has rolled back is not delivered, although another transaction was committed in its place.
#[tokio::test]
async fn a_statement_that_rolls_back_and_begins_another() {
    let database = create::<PgFixture>().await;
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    for (statement, after) in [("ROLLBACK; BEGIN", false), ("ROLLBACK; BEGIN", true), ("ROLLBACK AND CHAIN", true)] {
        let (undone, kept) = (event("Undone"), event("Kept"));
        let transaction = outbox.transaction_on(&mut conn, async |tx| {
            tx.write(&undone).await?;
            tx.batch_execute(statement).await?;
            tx.batch_execute("INSERT INTO orders (total) VALUES (1)").await?;
            if after {
                tx.write(&kept).await?;
                tx.batch_execute("SELECT 1").await?;
            }
            anyhow::Ok(())
        });
        transaction.await.unwrap();
        let unknown = told("unknown", std::slice::from_ref(&undone));
        if after {
            assert_eq!(inbox.arrival().await, (kept.id().to_string(), Path::Hot), "{statement}");
            assert_eq!(witness.told(), [told("commit", std::slice::from_ref(&kept)), unknown], "{statement}");
        } else {
            assert_eq!(witness.told(), [unknown], "{statement}");
        }
        inbox.assert_empty();
    }
    // The transactions that were begun in its place were committed.
    conn.batch_execute("SELECT 1 / (count(*) = 3)::int FROM orders").await.unwrap();

    // One that was committed is in the table, and the poller sees it.
    let undone = event("Undone");
    let committed = outbox.transaction_on(&mut conn, async |tx| {
        tx.write(&undone).await?;
        tx.batch_execute("COMMIT; BEGIN").await?;
        anyhow::Ok(())
    });
    committed.await.unwrap();
    assert_eq!(inbox.arrival().await, (undone.id().to_string(), Path::Cold));

    // And the transaction that is still the same goes hot, whatever was said in it.
    let same = event("Same");
    outbox
        .transaction_on(&mut conn, async |tx| {
            tx.write(&same).await?;
            tx.batch_execute("SAVEPOINT a; SELECT 1; ROLLBACK TO a").await?;
            anyhow::Ok(())
        })
        .await
        .unwrap();
    assert_eq!(inbox.arrival().await, (same.id().to_string(), Path::Hot));
    outbox.shutdown().await;
    inbox.assert_empty();
}
