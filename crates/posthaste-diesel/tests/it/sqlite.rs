//! What only SQLite does.

use diesel::result::Error as DieselError;
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use posthaste_conformance::testing::{event, events, told, watched};
use posthaste_conformance::{Fixture, SqliteFixture};
use posthaste_core::store::Error;
use posthaste_core::{CommitError, TransactionError};
use posthaste_diesel::OutboxExt;

use crate::database::{Database, create};
use crate::observe::{refused, total};

/// A transaction that reads first has its turn to write already; the other is told to try again.
#[tokio::test]
async fn a_transaction_is_a_writer_from_the_start() {
    let database = create::<SqliteFixture>().await;
    let (outbox, _, mut inbox) = watched(database.store()).await;
    let (mut conn, mut other) = (database.connect().await, database.connect().await);
    other.batch_execute("PRAGMA busy_timeout = 0").await.unwrap();
    outbox
        .transaction_on(&mut conn, async |tx| {
            tx.batch_execute("SELECT * FROM orders").await?;
            let overtaking = outbox.transaction_on(&mut other, async |tx| anyhow::Ok(tx.write(event("Other")).await?));
            let error = overtaking.await.unwrap_err().downcast::<TransactionError>()?;
            assert!(matches!(error, TransactionError::Begin(Error::Busy(_))), "{error:?}");
            tx.write(event("First")).await?;
            anyhow::Ok(())
        })
        .await
        .unwrap();
    assert_eq!(inbox.next().await.event_type(), "First");
    // It was not begun, so its connection is as good as before.
    other.batch_execute("PRAGMA busy_timeout = 5000").await.unwrap();
    outbox.transaction_on(&mut other, async |tx| anyhow::Ok(tx.write(event("Other")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Other");
    assert_eq!(total(&outbox).await, 2);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// SQLite has rolled back by itself, and whoever was told of it keeps it to himself: an event would be stored on its own.
#[tokio::test]
async fn case_09_a_transaction_that_sqlite_has_ended() {
    const ENDS: &str = "INSERT OR ROLLBACK INTO customers (id) VALUES (1)";
    let database = create::<SqliteFixture>().await;
    let (outbox, witness, mut inbox) = watched(database.store()).await;
    let mut conn = database.connect().await;
    conn.batch_execute("INSERT INTO customers (id) VALUES (1)").await.unwrap();
    // diesel notices it where the statement is a text, and not where it is prepared.
    for prepared in [true, false] {
        let before = event("Before");
        let swallowed = outbox.transaction_on(&mut conn, async |tx| {
            tx.write(&before).await?;
            if prepared {
                diesel::sql_query(ENDS).execute(tx).await.unwrap_err();
            } else {
                tx.batch_execute(ENDS).await.unwrap_err();
            }
            let error = tx.write(event("Alone")).await.unwrap_err();
            assert!(refused(&error).starts_with("the transaction has ended"), "{error:?}");
            let error = tx.write_all(events(3000)).await.unwrap_err();
            assert!(refused(&error).starts_with("the transaction has ended"), "{error:?}");
            let error = outbox.write_in(tx, event("Alone")).await.unwrap_err();
            assert!(refused(&error).contains("transaction"), "{error:?}");
            anyhow::Ok(())
        });
        let error = swallowed.await.unwrap_err().downcast::<TransactionError>().unwrap();
        assert!(matches!(error, TransactionError::Commit(CommitError::Unknown(_))), "{error:?}");
        assert_eq!(witness.told(), [told("unknown", std::slice::from_ref(&before))]);
        assert_eq!(total(&outbox).await, 0);
        // Refused where something was left open.
        conn.batch_execute("BEGIN IMMEDIATE; ROLLBACK").await.unwrap();
    }
    // The same in a transaction of somebody else.
    let swallowed = conn.transaction(async |conn| {
        diesel::sql_query(ENDS).execute(conn).await.unwrap_err();
        let error = outbox.write_in(conn, event("Alone")).await.unwrap_err();
        assert!(refused(&error).starts_with("the transaction has ended"), "{error:?}");
        Err::<(), _>(DieselError::RollbackTransaction)
    });
    swallowed.await.unwrap_err();
    assert_eq!((total(&outbox).await, witness.told()), (0, vec![]));
    conn.batch_execute("BEGIN IMMEDIATE; ROLLBACK").await.unwrap();

    outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Last")).await?)).await.unwrap();
    assert_eq!(inbox.next().await.event_type(), "Last");
    outbox.shutdown().await;
    inbox.assert_empty();
}
