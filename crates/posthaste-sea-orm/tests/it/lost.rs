//! Connections that are lost in the commit.

use std::slice::from_ref;

use posthaste_conformance::testing::{event, told};
use posthaste_conformance::{MariaDbFixture, PgFixture, Served};
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_core::{CommitError, Event};
use posthaste_sea_orm::OutboxExt;

use crate::between::{Cut, through};
use crate::order::{place, placed};
use crate::support::{Sea, Shop};

mod postgres {
    use super::PgFixture;
    crate::tests!(PgFixture: case_18_lost_answer_of_a_commit, case_18_lost_commit);
}
mod mariadb {
    use super::MariaDbFixture;
    crate::tests!(MariaDbFixture: case_18_lost_answer_of_a_commit, case_18_lost_commit);
}

/// Places an order and loses the connection in the commit: a typed error, and the hook hears that nobody knows.
async fn lose<F: Sea + Served>(shop: &Shop<F>, cut: Cut) -> Event {
    let (db, _tasks) = through(&shop.fixture.url(), cut).await;
    let lost = event("Lost");
    let mut tx = shop.outbox.begin_on(&db).await.unwrap();
    place(&tx, 1).await;
    tx.write(&lost).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert_eq!(shop.witness.told(), [told("unknown", from_ref(&lost))]);
    lost
}

/// The answer to the commit was lost: no hot dispatch; it was committed, so the poller delivers, soon.
async fn case_18_lost_answer_of_a_commit<F: Sea + Served>() {
    let mut shop = Shop::<F>::open().await;
    let lost = lose(&shop, Cut::After).await;
    let delivery = shop.inbox.next().await;
    assert_eq!((delivery.id(), delivery.path()), (lost.id(), Path::Cold));
    assert_eq!(placed(&shop.db).await, [1]);
    shop.close().await;
}

/// The connection was lost before the commit: nothing is ever delivered.
async fn case_18_lost_commit<F: Sea + Served>() {
    let shop = Shop::<F>::open().await;
    lose(&shop, Cut::Before).await;
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]));
    shop.close().await;
}
