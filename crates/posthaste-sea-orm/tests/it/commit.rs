//! Commits that are refused.

use std::slice::from_ref;

use posthaste_conformance::testing::{event, event_with_id, told};
use posthaste_conformance::{PgFixture, SqliteFixture};
use posthaste_core::CommitError;
use posthaste_core::store::Error;
use posthaste_sea_orm::OutboxExt;
use sea_orm::ConnectionTrait;

use crate::order::{place, placed};
use crate::support::{Sea, Shop};

/// MariaDB has no constraints that are checked in the end.
mod postgres {
    crate::tests!(posthaste_conformance::PgFixture: case_10_failed_commit);
}
mod sqlite {
    crate::tests!(posthaste_conformance::SqliteFixture: case_10_failed_commit);
}

/// A commit that is refused leaves nothing, delivers nothing, and says that nothing was committed.
async fn case_10_failed_commit<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let lines = "CREATE TABLE lines (order_id BIGINT REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)";
    shop.db.execute_unprepared(lines).await.unwrap();
    let undone = event("Undone");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    place(&tx, 1).await;
    tx.execute_unprepared("INSERT INTO lines VALUES (2)").await.unwrap();
    tx.write(&undone).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(Error::Refused(_))), "{error:?}");
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]));
    shop.close().await;
}

/// PostgreSQL answers the commit of a transaction in which a statement had failed with success. The error is not ours to
/// swallow, but it may have been swallowed, and then nothing is delivered.
#[tokio::test]
async fn case_10_failed_statement() {
    let shop = Shop::<PgFixture>::open().await;
    for writes in [1, 2] {
        let undone = [event("Undone"), event("Undone")];
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        place(&tx, 1).await;
        tx.write_all(&undone[..writes]).await.unwrap();
        tx.execute_unprepared("INSERT INTO nowhere VALUES (1)").await.unwrap_err();
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::NotCommitted(Error::Refused(_))), "{error:?}");
        assert_eq!(shop.witness.told(), [told("rollback", &undone[..writes])]);
        assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]));
    }
    shop.close().await;
}

/// A refused write is such a statement on PostgreSQL. Elsewhere the transaction goes on.
#[tokio::test]
async fn after_a_refused_write() {
    let shop = Shop::<PgFixture>::open().await;
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(event("Before")).await.unwrap();
    tx.write_all([event_with_id("twice"), event_with_id("twice")]).await.unwrap_err();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
    assert_eq!(shop.rows().await, 0);
    shop.close().await;

    let mut shop = Shop::<SqliteFixture>::open().await;
    let before = event("Before");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&before).await.unwrap();
    tx.write_all([event_with_id("twice"), event_with_id("twice")]).await.unwrap_err();
    tx.commit().await.unwrap();
    assert_eq!(shop.inbox.next().await.id(), before.id());
    assert_eq!(shop.rows().await, 1);
    shop.close().await;
}
