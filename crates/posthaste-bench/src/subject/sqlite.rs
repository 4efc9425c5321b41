//! SQLite, in a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste_core::Event;
use posthaste_sql::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqliteSynchronous};
use sqlx::{Connection, QueryBuilder, Row};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::{BATCH, Faster, Hear, Pass, Passed, Subject, order, payload};

/// Files in a directory of its own.
pub(crate) struct Sqlite {
    directory: TempDir,
    files: AtomicUsize,
}

impl Sqlite {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self { directory: tempfile::tempdir()?, files: AtomicUsize::new(0) })
    }

    fn next_file(&self) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.directory.path().join(format!("{number}.db"))
    }
}

impl Subject for Sqlite {
    type Store = SqliteStore;
    /// Who writes by hand takes turns: with a connection each, writers would wait for the lock of the file by sleeping.
    type Hand = Arc<Mutex<SqliteConnection>>;

    /// One writes at a time, so a second loop could only wait. A claim that is not committed by itself keeps everybody from writing
    /// while its events are delivered, which is why nobody can have it so.
    const FASTER: Faster = Faster {
        name: "one transaction",
        words: "claim and complete in one transaction, during which nobody else can write",
        loops: 1,
    };

    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn version(&self) -> anyhow::Result<String> {
        let pool = SqlitePool::connect("sqlite::memory:").await?;
        let version: String = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&pool).await?;
        Ok(format!("SQLite {version}, journal_mode WAL, synchronous FULL for writers and NORMAL for the rest"))
    }

    async fn fresh(&self) -> anyhow::Result<SqliteStore> {
        let store = SqliteStore::open(self.next_file()).await?;
        store.migrate().await?;
        let sql = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total NUMERIC)";
        sqlx::raw_sql(sql).execute(store.pool()).await?;
        Ok(store)
    }

    async fn another(&self, store: &SqliteStore) -> anyhow::Result<SqliteStore> {
        Ok(SqliteStore::open(store.pool().connect_options().get_filename()).await?)
    }

    async fn prepare_lanes(store: &SqliteStore) -> anyhow::Result<()> {
        Ok(store.prepare_lanes().await?)
    }

    fn deleting(store: SqliteStore) -> SqliteStore {
        store.deleting_done()
    }

    async fn fill_done(store: &SqliteStore, rows: usize) -> anyhow::Result<()> {
        sqlx::query(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1)
             INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, status, done_at)
             SELECT 'done-' || n, 'Tick', 'Clock', n, ?2, 1, 1 FROM numbers WHERE ?1 > 0",
        )
        .bind(i64::try_from(rows)?)
        .bind(payload(200))
        .execute(store.pool())
        .await?;
        Ok(())
    }

    /// Writes the log back into the file.
    async fn settle_down(store: &SqliteStore) -> anyhow::Result<()> {
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(store.pool()).await?;
        Ok(())
    }

    async fn order(connection: &mut SqliteConnection) -> anyhow::Result<()> {
        sqlx::query(order!("?")).bind("customer").execute(connection).await?;
        Ok(())
    }

    async fn writers(store: &SqliteStore, count: usize) -> anyhow::Result<Vec<Self::Hand>> {
        let writer = SqliteConnection::connect_with(&store.pool().connect_options()).await?;
        Ok(std::iter::repeat_n(Arc::new(Mutex::new(writer)), count).collect())
    }

    /// It waits for the disk no more than the outbox does, whose claims and settlements run with `synchronous = NORMAL`.
    async fn drainer(store: &SqliteStore) -> anyhow::Result<Self::Hand> {
        let options = SqliteConnectOptions::clone(&store.pool().connect_options());
        let drainer = SqliteConnection::connect_with(&options.synchronous(SqliteSynchronous::Normal)).await?;
        Ok(Arc::new(Mutex::new(drainer)))
    }

    async fn write_bare(hand: &mut Self::Hand) -> anyhow::Result<()> {
        let mut connection = hand.lock().await;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        Self::order(&mut tx).await?;
        Ok(tx.commit().await?)
    }

    async fn write_by_hand(hand: &mut Self::Hand, events: &[Event]) -> anyhow::Result<()> {
        let mut connection = hand.lock().await;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        Self::order(&mut tx).await?;
        let mut insert = QueryBuilder::new(
            "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, content_type, \
             occurred_at) ",
        );
        insert.push_values(events, |mut row, event| {
            row.push_bind(event.id().as_str())
                .push_bind(event.event_type())
                .push_bind(event.aggregate_type())
                .push_bind(event.aggregate_id())
                .push_bind(event.payload().as_json())
                .push("'application/json'")
                .push("CAST(unixepoch() * 1000000 AS INTEGER)");
        });
        insert.build().execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    /// The least that a correct loop can do: claim a batch, so that others see it, then complete it; or both in one transaction.
    async fn pass_by_hand(hand: &mut Self::Hand, pass: Pass, hear: &Hear) -> anyhow::Result<Passed> {
        let mut connection = hand.lock().await;
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        // Nothing is left behind in an index here that a mark would spare.
        let rows = sqlx::query(
            "UPDATE outbox_event SET locked_by = 'hand', locked_at = 1 WHERE seq IN (
                 SELECT seq FROM outbox_event
                 WHERE status IN (0, 2) AND available_at <= 9000000000000000 AND locked_by IS NULL
                 ORDER BY available_at, seq LIMIT ?)
             RETURNING seq, event_id, event_type, aggregate_type, aggregate_id, payload, headers, attempts",
        )
        .bind(i64::try_from(BATCH)?)
        .fetch_all(&mut *tx)
        .await?;
        let mut passed = Passed::with_capacity(rows.len());
        for row in &rows {
            passed.push((row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5)));
        }
        if !pass.faster {
            tx.commit().await?;
            tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        }
        hear(&passed);
        let complete = if pass.deleting {
            "DELETE FROM outbox_event WHERE seq IN (SELECT value FROM json_each(?))"
        } else {
            "UPDATE outbox_event SET status = 1, done_at = 1, locked_by = NULL, locked_at = NULL
             WHERE seq IN (SELECT value FROM json_each(?))"
        };
        sqlx::query(complete).bind(serde_json::to_string(&passed.seqs)?).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(passed)
    }

    /// A reader keeps the log from being written back.
    async fn pin(store: &SqliteStore) -> anyhow::Result<Box<dyn Send>> {
        let mut tx = store.pool().begin().await?;
        sqlx::query("SELECT count(*) FROM orders").execute(&mut *tx).await?;
        Ok(Box::new(tx))
    }

    async fn leave(store: SqliteStore) {
        store.close().await;
    }

    async fn close(store: SqliteStore) {
        store.close().await;
        let path = store.pool().connect_options().get_filename().to_owned();
        // It goes with the directory in any case.
        let _ = std::fs::remove_file(path);
    }
}
