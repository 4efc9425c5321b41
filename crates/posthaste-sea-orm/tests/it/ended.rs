//! Transactions that have ended before their time, by a statement of somebody's own, and savepoints that were not undone.

use std::slice::from_ref;

use posthaste_conformance::testing::{event, told};
use posthaste_conformance::{Fixture, PgFixture};
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

/// On PostgreSQL the other one is committed. What was written in it is delivered, and nothing else.
#[tokio::test]
async fn replaced_by_a_statement_on_postgres() {
    let mut shop = Shop::<PgFixture>::open().await;
    for (statement, next) in [
        ("ROLLBACK; BEGIN", "commit"),
        ("ROLLBACK; BEGIN", "write"),
        ("ROLLBACK; BEGIN", "write, place"),
        ("ROLLBACK AND CHAIN", "place"),
        ("COMMIT; BEGIN", "write, place"),
    ] {
        let [before, after] = ["Before", "After"].map(event);
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        tx.write(&before).await.unwrap();
        tx.execute_unprepared(statement).await.unwrap();
        if next.starts_with("write") {
            tx.write(&after).await.unwrap();
        }
        if next.ends_with("place") {
            tx.execute_unprepared("UPDATE orders SET total = 0").await.unwrap();
        }
        tx.commit().await.unwrap();
        let (committed, written) = (statement.starts_with("COMMIT"), next.starts_with("write"));
        let mut expected: Vec<_> = [(committed, before), (written, after)].into_iter().filter(|(it, _)| *it).collect();
        for _ in 0..expected.len() {
            let delivered = shop.inbox.next().await;
            expected.retain(|(_, event)| event.id() != delivered.id());
        }
        assert!(expected.is_empty(), "{statement}, {next}: {expected:?}");
        shop.fixture.assert_no_open_transaction().await;
    }
    assert_eq!(shop.rows().await, 4);
    shop.close().await;
}

/// The others refuse it.
mod unlike_postgres {
    use super::{ended_without_an_event, replaced_by_a_statement};

    mod sqlite {
        crate::tests!(posthaste_conformance::SqliteFixture: replaced_by_a_statement, ended_without_an_event);
    }
    mod mariadb {
        crate::tests!(posthaste_conformance::MariaDbFixture: replaced_by_a_statement, ended_without_an_event);
    }
}

/// What was written in one that is gone is not delivered, and what is in the one that a statement has begun in its place is not
/// committed.
async fn replaced_by_a_statement<F: Sea>() {
    let shop = Shop::<F>::open().await;
    for next in ["commit", "write", "place"] {
        let undone = event("Undone");
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        tx.write(&undone).await.unwrap();
        tx.execute_unprepared("ROLLBACK; BEGIN").await.unwrap();
        match next {
            "write" => drop(tx.write(event("After")).await),
            "place" => place(&tx, 1).await,
            _ => {}
        }
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::NotCommitted(_)), "{next}: {error:?}");
        assert_eq!(shop.witness.told()[0].0, "rollback", "{next}");
        assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]), "{next}");
        shop.fixture.assert_no_open_transaction().await;
    }
    shop.close().await;
}

/// Without an event that is there, or is not, nobody knows whether a statement has committed it.
async fn ended_without_an_event<F: Sea>() {
    let shop = Shop::<F>::open().await;
    for (id, next) in ["commit", "write"].into_iter().enumerate() {
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        place(&tx, id as i64).await;
        tx.execute_unprepared("COMMIT").await.unwrap();
        if next == "write" {
            tx.write(event("Refused")).await.unwrap_err();
        }
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::Unknown(_)), "{next}: {error:?}");
        assert_eq!(placed(&shop.db).await.len(), id + 1, "{next}");
    }
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
