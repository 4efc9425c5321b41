//! Futures that are dropped half-way.

use posthaste_core::Event;
use posthaste_core::store::{Action, AdminStore, CommitError, RelayStore, WriteStore};
use posthaste_sql::MySqlStore;
use sqlx::Connection;
use sqlx::pool::PoolConnection;

use super::Database;
use crate::support::{claim, claim_of, cut_short, event, settle_all, unleased, write};

/// The one connection of the pool is outside of any transaction, to sqlx and to the server, which refuses this inside of one.
async fn assert_no_transaction_is_open(store: &MySqlStore) {
    let mut connection: PoolConnection<sqlx::MySql> = store.pool().acquire().await.unwrap();
    assert!(!connection.is_in_transaction());
    sqlx::raw_sql("SET TRANSACTION READ WRITE").execute(&mut *connection).await.unwrap();
}

/// Cuts off what `make` makes after one poll, two polls and so on, until it comes to its end.
macro_rules! cut_everywhere {
    ($store:expr, |$polls:ident| $make:expr) => {{
        let mut cut = 0;
        for $polls in 1.. {
            let finished = cut_short($polls, $make).await.is_some();
            assert_no_transaction_is_open($store).await;
            if finished {
                break;
            }
            cut += 1;
        }
        assert!(cut > 2, "it was cut {cut} times only");
    }};
}

#[tokio::test]
async fn begin_insert_and_commit_leave_no_open_transaction() {
    let database = Database::new().await;
    let store = database.waiting_store_of_one().await;
    cut_everywhere!(&store, |polls| async {
        let events: Vec<Event> = (0..100).map(|n| event(&format!("{polls}-{n}"))).collect();
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut tx, &unleased(events)).await.unwrap();
        store.commit(tx).await.unwrap();
    });
    // All of a transaction or nothing.
    assert_eq!(store.counts().await.unwrap().new % 100, 0);
}

#[tokio::test]
async fn a_transaction_whose_write_was_cut_off_is_not_committed() {
    let database = Database::new().await;
    let store = database.waiting_store_of_one().await;
    for polls in 1.. {
        let mut tx = store.begin().await.unwrap();
        let rows = unleased([event(&format!("{polls}-1")), event(&format!("{polls}-2"))]);
        let finished = cut_short(polls, store.insert(&mut tx, &rows)).await.is_some();
        let committed = store.commit(tx).await;
        if finished {
            committed.unwrap();
            break;
        }
        assert!(matches!(committed, Err(CommitError::NotCommitted(_))), "{committed:?}");
        let mut tx = store.begin().await.unwrap();
        cut_short(polls, store.insert(&mut tx, &rows)).await;
        store.rollback(tx).await.unwrap();
        assert_no_transaction_is_open(&store).await;
    }
    assert_eq!(store.counts().await.unwrap().new, 2);
}

#[tokio::test]
async fn statements_of_the_user_that_were_cut_off_cost_no_connection() {
    let database = Database::new().await;
    let store = database.waiting_store_of_one().await;
    cut_everywhere!(&store, |polls| async {
        let mut tx = store.begin().await.unwrap();
        let sql = format!("SELECT ? + {polls}, ?, ? FROM outbox_event");
        sqlx::query(sqlx::AssertSqlSafe(sql)).bind(1).bind(2).bind(3).fetch_all(&mut *tx).await.unwrap();
        store.rollback(tx).await.unwrap();
    });
}

#[tokio::test]
async fn relays_operators_and_migrations_leave_no_open_transaction() {
    let database = Database::new().await;
    let store = database.waiting_store_of_one().await;
    write(&store, (0..1000).map(|n| event(&n.to_string()))).await;
    cut_everywhere!(&store, |_polls| store.claim(&claim_of(100)));
    store.release_all().await.unwrap();
    cut_everywhere!(&store, |_polls| async {
        let (lease, claimed) = claim(&store, 10).await;
        store.settle(&settle_all(&lease, &claimed, &Action::Release)).await.unwrap();
    });
    cut_everywhere!(&store, |_polls| store.counts());
    cut_everywhere!(&store, |polls| store.clone().with_table(&format!("t{polls}")).unwrap().migrate_owned());
}

/// A future that owns its store.
trait MigrateOwned {
    async fn migrate_owned(self);
}

impl MigrateOwned for MySqlStore {
    async fn migrate_owned(self) {
        self.migrate().await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back_before_the_next_begins() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    for n in 0..20 {
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut tx, &unleased([event(&n.to_string())])).await.unwrap();
        drop(tx);
    }
    assert!(claim(&store, 10).await.1.rows.is_empty());
}
