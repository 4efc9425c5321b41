//! SQL stores of the Posthaste transactional outbox, on [`sqlx`].
//!
//! One feature per database: `sqlite` brings `SqliteStore`, `postgres` brings `PgStore`, `mysql` brings `MySqlStore`. A store
//! is made from a pool, creates and upgrades its own table, and is handed to the outbox:
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # async fn example() -> Result<(), posthaste_core::store::Error> {
//! let store = posthaste_sql::SqliteStore::open("orders.db").await?;
//! store.migrate().await?;
//! # Ok(())
//! # }
//! ```

// First, since the stores use its macro.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
#[macro_use]
mod kill_point;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod admin;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod advice;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod ahead;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod dialect;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod driver;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod failover;
#[cfg(feature = "mysql")]
mod finish;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod lanes;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod look;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod many;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod plain;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod pool;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod savepoint;
#[cfg(feature = "sqlite")]
mod sqlite;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod tls;
mod url;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod warm;

#[cfg(feature = "mysql")]
pub use mysql::{MySqlStore, MySqlTx};
#[cfg(feature = "postgres")]
pub use postgres::{Partitions, PgStore, PgTx};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStore, SqliteTx};
pub use table::TableName;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use url::check_url;
pub use url::{Scheme, detect};
