//! What only SQLite does.

use diesel_async::SimpleAsyncConnection;
use posthaste_conformance::testing::{event, watched};
use posthaste_conformance::{Fixture, SqliteFixture};
use posthaste_core::TransactionError;
use posthaste_core::store::Error;
use posthaste_diesel::OutboxExt;

use crate::database::{Database, create};
use crate::observe::total;

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
