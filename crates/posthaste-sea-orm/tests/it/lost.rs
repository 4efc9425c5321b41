//! Connections that are lost in the commit.

use posthaste_conformance::{MariaDbFixture, PgFixture, Served};
use posthaste_core::CommitError;
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_sea_orm::OutboxExt;

use crate::between::{Cut, through};
use crate::order::{place, placed};
use crate::support::{Sea, Shop, event, told};

mod postgres {
    use super::PgFixture;
    crate::tests!(PgFixture: case_18_lost_answer_of_a_commit, case_18_lost_commit);
}
mod mariadb {
    use super::MariaDbFixture;
    crate::tests!(MariaDbFixture: case_18_lost_answer_of_a_commit, case_18_lost_commit);
}

/// The answer to the commit was lost: a typed error and no hot dispatch; it was committed, so the poller delivers, soon.
async fn case_18_lost_answer_of_a_commit<F: Sea + Served>() {
    let mut shop = Shop::<F>::open().await;
    let (db, _tasks) = through(&shop.fixture.url(), Cut::After).await;
    let lost = event("Lost");
    let mut tx = shop.outbox.begin_on(&db).await.unwrap();
    place(&*tx, 1).await;
    tx.write(&lost).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert_eq!(shop.witness.told(), [told("unknown", &[&lost])]);
    let delivery = shop.inbox.next().await;
    assert_eq!((delivery.id(), delivery.path()), (lost.id(), Path::Cold));
    assert_eq!(placed(&shop.db).await, [1]);
    shop.close().await;
}

/// The connection was lost before the commit: the same error, and nothing is ever delivered.
async fn case_18_lost_commit<F: Sea + Served>() {
    let shop = Shop::<F>::open().await;
    let (db, _tasks) = through(&shop.fixture.url(), Cut::Before).await;
    let lost = event("Lost");
    let mut tx = shop.outbox.begin_on(&db).await.unwrap();
    place(&*tx, 1).await;
    tx.write(&lost).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert_eq!(shop.witness.told(), [told("unknown", &[&lost])]);
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]));
    shop.close().await;
}
