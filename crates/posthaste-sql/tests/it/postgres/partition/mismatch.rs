//! A table that is not what the store was told.

use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{Action, AdminStore, Error, Filter, Page, Purge, Redrive, RelayStore, Settled};
use posthaste_sql::Partitions;

use super::super::support::{Database, claim, write};
use super::{daily, names};
use crate::support::{event, ids, settle_all};

#[tokio::test]
async fn a_plain_table_is_not_taken_for_one_in_partitions() {
    let database = Database::new().await;
    let plain = database.store().await;
    write(&plain, [event("kept")]).await;
    let store = plain.clone().partitioned(Partitions::daily());
    for error in [
        store.migrate().await.unwrap_err(),
        store.pending_migration_sql().await.unwrap_err(),
        store.maintain_partitions().await.unwrap_err(),
        store.maintain(&Purge::default()).await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Schema { .. }), "{error:?}");
        assert!(error.to_string().contains("it is a plain table"), "{error}");
    }
    assert_eq!(ids(&claim(&store, 10).await.1), ["kept"], "what is in it is delivered all the same");

    let error = plain.maintain_partitions().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { .. }), "{error:?}");
    assert!(error.to_string().contains("with PgStore::partitioned"), "{error}");
    let missing = store.with_table("nowhere").unwrap();
    let error = missing.maintain_partitions().await.unwrap_err();
    assert!(error.to_string().contains("call migrate() first"), "{error}");
}

#[tokio::test]
async fn a_store_without_the_option_works_with_a_table_in_partitions() {
    let database = Database::new().await;
    let partitioned = daily(&database).await;
    let store = database.store().await;
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");
    assert_eq!(names(&store).await, names(&partitioned).await);

    write(&store, ["a", "b", "c", "d"].map(event)).await;
    let (lease, claimed) = claim(&store, 3).await;
    assert_eq!(ids(&claimed), ["a", "b", "c"]);
    let leases: Vec<_> = claimed.rows.iter().map(|row| (row.event.id().clone(), lease.clone())).collect();
    assert_eq!(store.renew(&leases).await.unwrap(), [true; 3]);
    let mut settlements = settle_all(&lease, &claimed, &Action::Done);
    settlements[1].action = Action::Dead { error: "no use".into(), counts: true };
    assert_eq!(store.settle(&settlements[..2]).await.unwrap(), [Settled::Applied; 2]);
    settlements[2].action = Action::Retry { delay: Duration::ZERO, error: "later".into() };
    assert_eq!(store.settle(&settlements).await.unwrap(), [Settled::Lost, Settled::Lost, Settled::Applied]);
    assert!(store.find(&EventId::from_row("b")).await.unwrap().is_some());
    assert_eq!(store.list(&Filter::default(), &Page::default()).await.unwrap().len(), 4);
    let done = Purge { done_after: Some(Duration::ZERO), ..Purge::default() };
    assert_eq!(store.purge(&done).await.unwrap(), 1);
    assert_eq!(store.redrive(&Redrive::matching(Filter::default())).await.unwrap(), 1);
    assert_eq!(store.counts().await.unwrap().pending(), 3);
    assert_eq!(store.release_all().await.unwrap(), 0);
    assert_eq!(claim(&store, 10).await.1.rows.len(), 3);
    let any = Purge { any_after: Some(Duration::ZERO), ..Purge::default() };
    assert_eq!(store.purge(&any).await.unwrap(), 3);
}
