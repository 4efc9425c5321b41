//! What a run needs of a database beside the outbox: business rows, a trigger that sees every change, and ways to be in
//! the way.

mod sql;

use std::time::Duration;

use posthaste_core::store::{Settlement, Store};
use posthaste_sql::{MySqlStore, PgStore, SqliteStore};
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::sqlite::{SqliteConnection, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Connection, Row};
use tokio::time::sleep;

use crate::history::{self, Entry, Message, What};
use sql::{MARIADB, POSTGRES, SQLITE, status};

/// What a run needs of a database.
pub(crate) trait Database: Store {
    /// Opens the store as users do, or with a pool of so many connections.
    fn open(url: &str, connections: Option<u32>) -> impl Future<Output = anyhow::Result<Self>> + Send;

    /// One more connection to the server, if it lets one in now.
    fn occupy(url: &str) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;

    /// How many pending rows a process has leased.
    fn leased_by(&self, name: &str) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// How many leases of a process were taken over.
    fn taken_from(&self, name: &str) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Creates the tables, and the trigger, and prepares the outbox for order if there is to be any.
    fn set_up(&self, keys: u64, ordered: bool) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// The next number of a key. Other transactions with this key wait for this one.
    fn next_number(
        connection: &mut Self::Connection,
        key: &str,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// The business row of a message.
    fn insert_ledger(
        connection: &mut Self::Connection,
        message: &Message,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Makes rows DONE, whoever holds their leases.
    fn settle_unfenced(
        &self,
        settlements: &[Settlement],
    ) -> impl Future<Output = Result<(), posthaste_core::store::Error>> + Send;

    /// Puts a row that is no event into the table.
    fn insert_malformed(&self, id: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Locks the table against everybody else for that long.
    fn lock_table(&self, duration: Duration) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Mends what a full disk has damaged, as the server's log tells its operator to.
    fn repair(&self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Ends every other connection, and says how many. Nothing where a database has no connections.
    fn terminate_others(&self) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// What stands in the database, with the moment of each change.
    fn dump(&self) -> impl Future<Output = Result<Vec<Entry>, sqlx::Error>> + Send;
}

macro_rules! database {
    ($store:ty, $connection:ty, $sql:ident, $open:expr) => {
        impl Database for $store {
            async fn open(url: &str, connections: Option<u32>) -> anyhow::Result<Self> {
                match connections {
                    None => Ok(Self::connect(url).await?),
                    Some(connections) => $open(url, connections).await,
                }
            }

            async fn occupy(url: &str) -> Result<$connection, sqlx::Error> {
                <$connection>::connect(url).await
            }

            async fn leased_by(&self, name: &str) -> Result<i64, sqlx::Error> {
                sqlx::query_scalar($sql.leased).bind(name).fetch_one(self.pool()).await
            }

            async fn taken_from(&self, name: &str) -> Result<i64, sqlx::Error> {
                sqlx::query_scalar($sql.taken_over).bind(name).fetch_one(self.pool()).await
            }

            async fn set_up(&self, keys: u64, ordered: bool) -> anyhow::Result<()> {
                self.migrate().await?;
                if ordered {
                    self.prepare_lanes().await?;
                }
                for statement in $sql.create {
                    sqlx::raw_sql(*statement).execute(self.pool()).await?;
                }
                for key in 0..keys {
                    sqlx::query($sql.insert_key).bind(format!("key-{key}")).execute(self.pool()).await?;
                }
                Ok(())
            }

            async fn next_number(connection: &mut $connection, key: &str) -> Result<u64, sqlx::Error> {
                sqlx::query($sql.raise_number).bind(key).execute(&mut *connection).await?;
                let number: i64 = sqlx::query_scalar($sql.number).bind(key).fetch_one(connection).await?;
                Ok(number.unsigned_abs())
            }

            async fn insert_ledger(connection: &mut $connection, message: &Message) -> Result<(), sqlx::Error> {
                sqlx::query($sql.insert_ledger)
                    .bind(&message.id)
                    .bind(&message.event_type)
                    .bind(&message.key)
                    .bind(message.number.cast_signed())
                    .bind(message.hash.cast_signed())
                    .bind(i16::from(message.poison))
                    .execute(connection)
                    .await
                    .map(drop)
            }

            async fn settle_unfenced(&self, settlements: &[Settlement]) -> Result<(), posthaste_core::store::Error> {
                use posthaste_core::store::{Action, Error};
                for settlement in settlements.iter().filter(|settlement| settlement.action == Action::Done) {
                    let query = sqlx::query($sql.settle_unfenced).bind(settlement.id.as_str());
                    query.execute(self.pool()).await.map_err(|error| Error::Busy(error.into()))?;
                }
                // The rest goes the honest way: the mistake is in what is DONE.
                let others = settlements.iter().filter(|settlement| settlement.action != Action::Done);
                posthaste_core::store::RelayStore::settle(self, &others.cloned().collect::<Vec<_>>()).await.map(drop)
            }

            async fn insert_malformed(&self, id: &str) -> Result<(), sqlx::Error> {
                sqlx::query($sql.insert_malformed).bind(id).execute(self.pool()).await.map(drop)
            }

            async fn lock_table(&self, duration: Duration) -> Result<(), sqlx::Error> {
                // A connection of its own, which the locks end with, come what may.
                let mut connection = self.pool().acquire().await?.detach();
                for statement in $sql.lock {
                    sqlx::raw_sql(*statement).execute(&mut connection).await?;
                }
                sleep(duration).await;
                for statement in $sql.unlock {
                    sqlx::raw_sql(*statement).execute(&mut connection).await?;
                }
                connection.close().await
            }

            async fn repair(&self) -> Result<(), sqlx::Error> {
                for (check, repair) in $sql.repair {
                    let found = sqlx::query(*check).fetch_all(self.pool()).await?;
                    let last = found.last().and_then(|row| row.try_get::<String, _>(3).ok());
                    if last.is_none_or(|message| message != "OK") {
                        tracing::warn!(check, "repairing");
                        sqlx::query(*repair).execute(self.pool()).await?;
                    }
                }
                Ok(())
            }

            async fn terminate_others(&self) -> Result<u64, sqlx::Error> {
                let mut connection = self.pool().acquire().await?;
                let others: Vec<i64> = sqlx::query_scalar($sql.others).fetch_all(&mut *connection).await?;
                let mut ended = 0;
                for other in others {
                    let terminate = AssertSqlSafe(format!("{} {other}{}", $sql.terminate.0, $sql.terminate.1));
                    // One that has ended by itself meanwhile is no matter.
                    ended += u64::from(sqlx::raw_sql(terminate).execute(&mut *connection).await.is_ok());
                }
                Ok(ended)
            }

            async fn dump(&self) -> Result<Vec<Entry>, sqlx::Error> {
                let entry = |at, what| Entry { at, who: "database".to_owned(), what };
                let now = history::now();
                let mut dump = Vec::new();
                for row in sqlx::query($sql.ledger).fetch_all(self.pool()).await? {
                    dump.push(entry(
                        now,
                        What::Ledger(Message {
                            id: row.try_get(0)?,
                            event_type: row.try_get(1)?,
                            key: row.try_get(2)?,
                            number: row.try_get::<i64, _>(3)?.cast_unsigned(),
                            hash: row.try_get::<i64, _>(4)?.cast_unsigned(),
                            poison: row.try_get::<i16, _>(5)? != 0,
                        }),
                    ));
                }
                for row in sqlx::query($sql.rows).fetch_all(self.pool()).await? {
                    dump.push(entry(
                        now,
                        What::Row {
                            id: row.try_get(0)?,
                            status: status(row.try_get(1)?),
                            attempts: row.try_get::<i32, _>(2)?.unsigned_abs(),
                            error: row.try_get(3)?,
                        },
                    ));
                }
                for row in sqlx::query($sql.changes).fetch_all(self.pool()).await? {
                    dump.push(entry(
                        row.try_get(5)?,
                        What::Changed {
                            id: row.try_get(0)?,
                            status: [status(row.try_get(1)?), status(row.try_get(2)?)],
                            lease: [row.try_get(3)?, row.try_get(4)?],
                            held_ms: row.try_get(6)?,
                        },
                    ));
                }
                Ok(dump)
            }
        }
    };
}

database!(SqliteStore, SqliteConnection, SQLITE, async |url: &str, connections| {
    // The options of the store's own pool: a file is set up in more ways than a URL can say.
    let store = SqliteStore::connect(url).await?;
    let options = sqlx::sqlite::SqliteConnectOptions::clone(&store.pool().connect_options());
    store.close().await;
    let pool = SqlitePoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
    anyhow::Ok(SqliteStore::new(pool.connect_with(options).await?))
});
database!(PgStore, PgConnection, POSTGRES, async |url: &str, connections| {
    anyhow::Ok(PgStore::new(
        PgPoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None).connect(url).await?,
    ))
});
database!(MySqlStore, MySqlConnection, MARIADB, async |url: &str, connections| {
    anyhow::Ok(MySqlStore::new(
        MySqlPoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None).connect(url).await?,
    ))
});
