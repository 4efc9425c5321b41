//! A table in partitions that an older release has made.

use posthaste_core::store::{AdminStore, Error};
use posthaste_sql::Partitions;

use super::super::migration::FIRST_HISTORY;
use super::super::support::{Database, sql};
use super::{insert, make, name_of, names, place};
use crate::support::{assert_upgraded, first_and_later, rows_of_every_state};

#[tokio::test]
async fn one_of_the_first_version_is_upgraded_with_its_rows_and_partitions() {
    let database = Database::new().await;
    let store = database.empty().await.partitioned(Partitions::daily());
    let script = store.migration_sql();
    let (first, later) = first_and_later(&script);
    sql(&store, first).await;
    sql(&store, FIRST_HISTORY).await;
    for days_ago in [3, 0, -1] {
        make(&store, days_ago).await;
    }
    // One is in an old partition, and one in that for everything else.
    insert(&store, "old", 1, 3, Some(3)).await;
    insert(&store, "older", 1, 9, Some(9)).await;
    let before = rows_of_every_state(&store).await;
    assert!(matches!(store.pauses().await, Err(Error::Schema { .. })), "it is of the first version");
    assert_eq!(store.pending_migration_sql().await.unwrap(), later);
    let made = names(&store).await;
    assert_eq!(made.len(), 3);

    store.migrate().await.unwrap();
    assert_eq!(store.pending_migration_sql().await.unwrap(), "");
    let now = names(&store).await;
    assert!(made.iter().all(|partition| now.contains(partition)) && now.len() > made.len(), "{made:?} {now:?}");
    assert_eq!(place(&store, "old").await, name_of(&store, 3).await);
    assert_eq!(place(&store, "older").await, "outbox_event_default");
    assert_upgraded(&store, &before).await;
}
