//! The tables of the shop, on PostgreSQL and on SQLite.

use posthaste::store::{Store, WriteStore};
use posthaste::{PgStore, SqliteStore};

use crate::orders::{NewOrder, Order};

/// A database with the tables of the shop beside that of the outbox. What changes something takes a connection, which is inside
/// the transaction of the request.
pub(crate) trait Database: Store {
    /// Creates the tables, if they are not there.
    fn migrate(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Stores an order, and gives its number.
    fn insert_order(
        connection: &mut <Self as WriteStore>::Connection,
        order: &NewOrder,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// Cancels an order, if there is such a one and it is not cancelled already.
    fn cancel_order(
        connection: &mut <Self as WriteStore>::Connection,
        id: i64,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send;

    /// What an order stands at, if there is such a one.
    fn status(
        connection: &mut <Self as WriteStore>::Connection,
        id: i64,
    ) -> impl Future<Output = sqlx::Result<Option<String>>> + Send;

    /// All orders.
    fn orders(&self) -> impl Future<Output = sqlx::Result<Vec<Order>>> + Send;

    /// Stores a notification, unless it was stored for the same event before.
    fn insert_notification(&self, event_id: &str, text: &str) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// All notifications.
    fn notifications(&self) -> impl Future<Output = sqlx::Result<Vec<String>>> + Send;
}

/// Both understand the same SQL, but for how rows get their numbers.
macro_rules! database {
    ($store:ty, $number:literal) => {
        impl Database for $store {
            async fn migrate(&self) -> anyhow::Result<()> {
                self.migrate().await?;
                let tables = concat!(
                    "CREATE TABLE IF NOT EXISTS orders (id ",
                    $number,
                    ", customer TEXT NOT NULL, total BIGINT NOT NULL, status TEXT NOT NULL);
                    CREATE TABLE IF NOT EXISTS notifications (event_id TEXT PRIMARY KEY, text TEXT NOT NULL)"
                );
                sqlx::raw_sql(tables).execute(self.pool()).await?;
                Ok(())
            }

            async fn insert_order(connection: &mut Self::Connection, order: &NewOrder) -> sqlx::Result<i64> {
                let sql = "INSERT INTO orders (customer, total, status) VALUES ($1, $2, 'placed') RETURNING id";
                sqlx::query_scalar(sql).bind(&order.customer).bind(order.total).fetch_one(connection).await
            }

            async fn cancel_order(connection: &mut Self::Connection, id: i64) -> sqlx::Result<bool> {
                let sql = "UPDATE orders SET status = 'cancelled' WHERE id = $1 AND status = 'placed'";
                Ok(sqlx::query(sql).bind(id).execute(connection).await?.rows_affected() == 1)
            }

            async fn status(connection: &mut Self::Connection, id: i64) -> sqlx::Result<Option<String>> {
                sqlx::query_scalar("SELECT status FROM orders WHERE id = $1").bind(id).fetch_optional(connection).await
            }

            async fn orders(&self) -> sqlx::Result<Vec<Order>> {
                let sql = "SELECT id, customer, total, status FROM orders ORDER BY id";
                let rows = sqlx::query_as(sql).fetch_all(self.pool()).await?;
                Ok(rows
                    .into_iter()
                    .map(|(id, customer, total, status)| Order { id, customer, total, status })
                    .collect())
            }

            async fn insert_notification(&self, event_id: &str, text: &str) -> sqlx::Result<()> {
                let sql = "INSERT INTO notifications (event_id, text) VALUES ($1, $2) ON CONFLICT DO NOTHING";
                sqlx::query(sql).bind(event_id).bind(text).execute(self.pool()).await.map(drop)
            }

            async fn notifications(&self) -> sqlx::Result<Vec<String>> {
                sqlx::query_scalar("SELECT text FROM notifications ORDER BY event_id").fetch_all(self.pool()).await
            }
        }
    };
}

database!(PgStore, "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY");
database!(SqliteStore, "INTEGER PRIMARY KEY AUTOINCREMENT");
