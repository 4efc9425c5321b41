//! Operators' changes.

use posthaste_core::store::{Action, AdminStore, Filter, Redrive, RelayStore};
use posthaste_sql::{Partitions, PgStore};
use sqlx::Connection;

use super::support::{Database, claim, write};
use crate::admin::{chunks_of_a_redrive_go_by_number, redrive_at_once};
use crate::support::{event, settle_all};

#[tokio::test]
async fn chunks_go_by_number_whatever_happens_in_between() {
    let database = Database::new().await;
    chunks_of_a_redrive_go_by_number(&database.store().await).await;
    let parts = database.empty().await.with_table("parts").unwrap().partitioned(Partitions::daily());
    parts.migrate().await.unwrap();
    chunks_of_a_redrive_go_by_number(&parts).await;
}

#[tokio::test]
async fn two_who_redrive_at_once_leave_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    redrive_at_once(&store, &PgStore::new(store.pool().clone())).await;
}

#[tokio::test]
async fn what_somebody_held_is_redriven_in_the_end() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, (0..5).map(|n| event(&n.to_string()))).await;
    let (lease, claimed) = claim(&store, 10).await;
    let died = Action::Dead { error: "down".to_owned(), counts: true };
    store.settle(&settle_all(&lease, &claimed, &died)).await.unwrap();
    let mut another = database.connection().await;
    let mut tx = another.begin().await.unwrap();
    let hold = "SELECT seq FROM outbox_event WHERE event_id IN ('0', '1', '2') FOR UPDATE";
    sqlx::query(hold).execute(&mut *tx).await.unwrap();
    let redrive = Redrive { chunk: 2, ..Redrive::matching(Filter::default()) };
    // Nothing can be changed in the first chunk, which is not to say that it is over.
    assert_eq!(store.redrive(&redrive).await.unwrap(), 1);
    tx.rollback().await.unwrap();
    for changed in [1, 2, 1, 0] {
        assert_eq!(store.redrive(&redrive).await.unwrap(), changed);
    }
}
