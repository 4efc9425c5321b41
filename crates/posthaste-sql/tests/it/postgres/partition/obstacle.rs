//! One partition that cannot be made or dropped, and the others.

use posthaste_core::store::{AdminStore, Error, Purge};
use sqlx::AssertSqlSafe;

use super::super::support::{Database, sql};
use super::{DAY, daily, forget, insert, make, name_of, names};

const DONE: i16 = 1;

#[tokio::test]
async fn a_partition_that_cannot_be_dropped_keeps_no_other_from_it() {
    let database = Database::new().await;
    let store = daily(&database).await;
    let mut expected = names(&store).await;
    for days_ago in [9, 8, 7] {
        make(&store, days_ago).await;
        insert(&store, &days_ago.to_string(), DONE, days_ago, Some(days_ago)).await;
    }
    let old = name_of(&store, 9).await;
    sql(&store, format!("CREATE VIEW seen AS SELECT * FROM {old}")).await;
    let purge = Purge { done_after: Some(DAY), ..Purge::default() };
    for _ in 0..2 {
        let error = store.maintain(&purge).await.unwrap_err();
        let Error::Refused(reason) = &error else { panic!("{error:?}") };
        assert!(reason.to_string().contains(&old), "{reason}");
        expected.insert(0, old.clone());
        assert_eq!(names(&store).await, expected);
        expected.remove(0);
    }
    sql(&store, "DROP VIEW seen").await;
    assert_eq!(store.maintain(&purge).await.unwrap().dropped, 1);
}

#[tokio::test]
async fn a_partition_that_cannot_be_made_keeps_no_other_from_it() {
    let database = Database::new().await;
    let store = daily(&database).await;
    let expected = names(&store).await;
    for taken in [0, 2] {
        forget(&store).await;
        sql(&store, format!("CREATE TABLE {} (id INTEGER)", expected[taken])).await;
        let error = store.maintain_partitions().await.unwrap_err();
        assert!(matches!(&error, Error::Schema { .. }) && error.to_string().contains(&expected[taken]), "{error:?}");
        let mut others = expected.clone();
        others.remove(taken);
        assert_eq!(names(&store).await, others);
        sqlx::raw_sql(AssertSqlSafe(format!("DROP TABLE {}", expected[taken]))).execute(store.pool()).await.unwrap();
        store.maintain_partitions().await.unwrap();
        assert_eq!(names(&store).await, expected);
    }
}
