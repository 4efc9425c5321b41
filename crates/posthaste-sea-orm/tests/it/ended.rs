//! Transactions that have ended before their time, by a statement of somebody's own, and savepoints that were not undone.

use std::slice::from_ref;

use posthaste_conformance::testing::{event, told};
use posthaste_core::CommitError;
use posthaste_core::listener::Path;
use posthaste_sea_orm::OutboxExt;
use sea_orm::{ConnectionTrait, TransactionTrait};

use crate::order::{place, placed};
use crate::support::{Sea, Shop};

crate::tests! { every:
    committed_by_a_statement,
    rolled_back_by_a_statement,
    savepoint_undone_around_an_inner_one,
}

/// What was written is stored, so it is not told that it was rolled back. What comes next is refused.
async fn committed_by_a_statement<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    for next in ["commit", "write", "savepoint"] {
        let kept = event("Kept");
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        tx.write(&kept).await.unwrap();
        tx.execute_unprepared("COMMIT").await.unwrap();
        match next {
            "write" => drop(tx.write(event("Refused")).await.unwrap_err()),
            "savepoint" => drop(tx.savepoint().await.unwrap_err()),
            _ => {}
        }
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::Unknown(_)), "{next}: {error:?}");
        assert_eq!(shop.witness.told(), [told("unknown", from_ref(&kept))], "{next}");
        let delivery = shop.inbox.next().await;
        assert_eq!((delivery.id(), delivery.path()), (kept.id(), Path::Cold), "{next}");
        shop.fixture.assert_no_open_transaction().await;
    }
    // The first one, too.
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.execute_unprepared("COMMIT").await.unwrap();
    tx.write(event("Refused")).await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert_eq!((shop.witness.told(), shop.rows().await), (vec![], 3));
    shop.close().await;
}

async fn rolled_back_by_a_statement<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let undone = event("Undone");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    tx.write(&undone).await.unwrap();
    tx.execute_unprepared("ROLLBACK").await.unwrap();
    tx.write(event("Refused")).await.unwrap_err();
    tx.commit().await.unwrap_err();
    // PostgreSQL does not say how it has ended.
    let step = if F::TELLS { "unknown" } else { "rollback" };
    assert_eq!((shop.witness.told(), shop.rows().await), (vec![told(step, from_ref(&undone))], 0));
    shop.close().await;
}

/// One that SeaORM has begun inside of a savepoint is undone in its place, and its commit keeps what the savepoint has written.
async fn savepoint_undone_around_an_inner_one<F: Sea>() {
    let shop = Shop::<F>::open().await;
    for end in ["rollback", "drop"] {
        let [before, undone] = ["Before", "Undone"].map(event);
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        tx.write(&before).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        savepoint.write(&undone).await.unwrap();
        let inner = savepoint.begin().await.unwrap();
        place(&inner, 1).await;
        match end {
            "rollback" => savepoint.rollback().await.unwrap(),
            _ => drop(savepoint),
        }
        assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))], "{end}");
        inner.commit().await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::NotCommitted(_)), "{end}: {error:?}");
        assert_eq!(shop.witness.told(), [told("rollback", from_ref(&before))], "{end}");
        assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]), "{end}");
        shop.fixture.assert_no_open_transaction().await;
    }
    shop.close().await;
}
