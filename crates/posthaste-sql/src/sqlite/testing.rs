//! A database for one test, and time that passes in it.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{BoxFuture, Error};
use posthaste_core::testing::PassTime;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteConnectOptions;

use super::sql::DIALECT;
use super::sql::lanes::AGE;
use super::{CONNECTIONS, SqliteStore};
use crate::pool;

/// A store in a new SQLite database with its table, in a file of its own, which is deleted when the last clone of the
/// store is dropped (feature `testing`). What cannot be opened fails the test.
///
/// A file, because a database in memory has one connection only: a test that has a transaction open would wait for
/// itself.
///
/// ```
/// use posthaste_core::Event;
/// use posthaste_core::testing::{self, Recorder, Wanted};
/// use posthaste_sql::testing::sqlite;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = sqlite().await;
/// sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").execute(store.pool()).await?;
/// let outbox = testing::outbox_on(store).listen_all(Recorder::new()).start_test().await;
///
/// let mut tx = outbox.begin().await?;
/// sqlx::query("INSERT INTO orders (total) VALUES (3)").execute(&mut *tx).await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// tx.commit().await?;
/// outbox.wait_delivered(Wanted::event("OrderPlaced")).await;
/// # Ok(())
/// # }
/// ```
pub async fn sqlite() -> SqliteStore {
    match open().await {
        Ok(store) => store,
        Err(error) => panic!("no SQLite database for this test: {error:?}"),
    }
}

async fn open() -> Result<SqliteStore, Error> {
    let directory = Directory::create().map_err(|error| Error::Unavailable(error.into()))?;
    let options = SqliteConnectOptions::new().filename(directory.0.join("test.db")).create_if_missing(true);
    // The pool keeps the directory for as long as there is a pool.
    let directory = Arc::new(directory);
    let pool = pool::unswept().max_connections(CONNECTIONS).after_connect(move |_, _| {
        let _kept = &directory;
        Box::pin(async { Ok(()) })
    });
    let store = SqliteStore::build(pool, options).await?;
    store.migrate().await?;
    Ok(store)
}

/// A new directory, which goes with this value.
struct Directory(PathBuf);

impl Directory {
    fn create() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("posthaste-{}", EventId::generate()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // What the system does not let go of, it deletes itself some day.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every row grows older; the clock of the machine stays as it is.
impl PassTime for SqliteStore {
    fn pass_time(&self, length: Duration) -> BoxFuture<'_, ()> {
        let sql = format!(
            "UPDATE {} SET available_at = available_at - ?1, created_at = created_at - ?1, locked_at = locked_at - ?1, \
             done_at = done_at - ?1",
            self.table()
        );
        let micros = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        Box::pin(async move {
            let age = async {
                let lanes = if self.has_keys().await? { &AGE[..] } else { &[] };
                let lanes = lanes.iter().map(|template| DIALECT.fill(template, self.table()));
                let _turn = self.gate.enter().await?;
                for sql in std::iter::once(sql).chain(lanes) {
                    let aged = sqlx::query(AssertSqlSafe(sql)).bind(micros).execute(self.pool()).await;
                    aged.map_err(|error| self.fault(error))?;
                }
                Ok::<_, Error>(())
            };
            if let Err(error) = age.await {
                panic!("no time could pass: {error:?}");
            }
        })
    }
}
