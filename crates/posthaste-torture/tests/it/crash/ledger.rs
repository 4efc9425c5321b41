//! The business change that an event belongs to.

use std::collections::BTreeSet;

use posthaste_core::store::{Store, WriteStore};
use posthaste_sql::{MySqlStore, PgStore, SqliteStore};
use sqlx::{AssertSqlSafe, ConnectOptions};

/// The same in every database.
pub(crate) const CREATE: &str = "CREATE TABLE ledger (event_id VARCHAR(36) NOT NULL PRIMARY KEY)";

/// A store whose database has a ledger beside the outbox.
pub(crate) trait Ledger: Store {
    /// As another process opens it.
    async fn open(url: &str) -> Self;

    /// Makes its table.
    async fn create(&self);

    /// Where it is.
    fn url(&self) -> String;

    /// Writes in the ledger.
    async fn book(connection: &mut Self::Connection, ids: &[String]);

    /// What is committed in the ledger.
    async fn booked(&self) -> BTreeSet<String>;

    /// Begins a transaction of which the store knows nothing.
    async fn begin_foreign(&self) -> <Self as WriteStore>::Tx<'static>;

    /// Locks every row of the outbox until the end of the transaction.
    async fn lock(connection: &mut Self::Connection);

    /// Commits it.
    async fn commit_foreign(tx: <Self as WriteStore>::Tx<'static>);
}

macro_rules! ledger {
    ($store:ty) => {
        impl Ledger for $store {
            async fn open(url: &str) -> Self {
                Self::connect(url).await.unwrap()
            }

            async fn create(&self) {
                self.migrate().await.unwrap();
            }

            fn url(&self) -> String {
                self.pool().connect_options().to_url_lossy().into()
            }

            async fn book(connection: &mut Self::Connection, ids: &[String]) {
                let rows: Vec<_> = ids.iter().map(|id| format!("('{id}')")).collect();
                let insert = format!("INSERT INTO ledger VALUES {}", rows.join(", "));
                sqlx::raw_sql(AssertSqlSafe(insert)).execute(connection).await.unwrap();
            }

            async fn booked(&self) -> BTreeSet<String> {
                let ids = sqlx::query_scalar("SELECT event_id FROM ledger").fetch_all(self.pool()).await.unwrap();
                ids.into_iter().collect()
            }

            async fn begin_foreign(&self) -> <Self as WriteStore>::Tx<'static> {
                self.pool().begin().await.unwrap()
            }

            async fn lock(connection: &mut Self::Connection) {
                let touch = "UPDATE outbox_event SET tenant_id = tenant_id";
                sqlx::raw_sql(touch).execute(connection).await.unwrap();
            }

            async fn commit_foreign(tx: <Self as WriteStore>::Tx<'static>) {
                tx.commit().await.unwrap();
            }
        }
    };
}

ledger!(MySqlStore);
ledger!(PgStore);
ledger!(SqliteStore);
