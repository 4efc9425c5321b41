//! Accounts, on PostgreSQL, MySQL and SQLite, and what happens to them.

use std::collections::BTreeMap;

use posthaste::store::{Store, WriteStore};
use posthaste::{Event, MySqlStore, PgStore, SqliteStore};
use serde::{Deserialize, Serialize};

/// How many there are.
pub(crate) const ACCOUNTS: i64 = 200;

/// An account was changed for the so-manieth time.
#[derive(Serialize, Deserialize, Event)]
#[event(type = "AccountChanged", aggregate = "Account", key = "account")]
pub(crate) struct Changed {
    pub(crate) account: i64,
    pub(crate) number: i64,
}

/// A database with accounts beside the table of the outbox.
pub(crate) trait Bank: Store {
    /// Creates the tables, and prepares that of the outbox for order.
    fn set_up(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Changes an account, and says how many times it was by now. Others who change it wait until this transaction has ended.
    fn change(
        connection: &mut <Self as WriteStore>::Connection,
        account: i64,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;

    /// How many times each account was changed.
    fn numbers(&self) -> impl Future<Output = sqlx::Result<BTreeMap<i64, i64>>> + Send;
}

macro_rules! bank {
    ($store:ty, $insert:literal, |$connection:ident, $account:ident| $change:block) => {
        impl Bank for $store {
            async fn set_up(&self) -> anyhow::Result<()> {
                self.migrate().await?;
                self.prepare_lanes().await?;
                let table = "CREATE TABLE IF NOT EXISTS account (id BIGINT PRIMARY KEY, number BIGINT NOT NULL)";
                sqlx::raw_sql(table).execute(self.pool()).await?;
                for account in 0..ACCOUNTS {
                    sqlx::query($insert).bind(account).execute(self.pool()).await?;
                }
                Ok(())
            }

            async fn change($connection: &mut Self::Connection, $account: i64) -> sqlx::Result<i64> {
                $change
            }

            async fn numbers(&self) -> sqlx::Result<BTreeMap<i64, i64>> {
                let rows: Vec<(i64, i64)> =
                    sqlx::query_as("SELECT id, number FROM account").fetch_all(self.pool()).await?;
                Ok(rows.into_iter().collect())
            }
        }
    };
    ($store:ty) => {
        bank!($store, "INSERT INTO account (id, number) VALUES ($1, 0)", |connection, account| {
            let sql = "UPDATE account SET number = number + 1 WHERE id = $1 RETURNING number";
            sqlx::query_scalar(sql).bind(account).fetch_one(connection).await
        });
    };
}

bank!(PgStore);
bank!(SqliteStore);
// MySQL has no RETURNING; the account is locked by the first statement.
bank!(MySqlStore, "INSERT INTO account (id, number) VALUES (?, 0)", |connection, account| {
    let sql = "UPDATE account SET number = number + 1 WHERE id = ?";
    sqlx::query(sql).bind(account).execute(&mut *connection).await?;
    sqlx::query_scalar("SELECT number FROM account WHERE id = ?").bind(account).fetch_one(connection).await
});
