//! MariaDB.

use anyhow::Context;
use posthaste_core::Event;
use posthaste_sql::MySqlStore;
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{Connection, QueryBuilder, Row};

use super::{BATCH, CONNECTIONS, Faster, Hear, Pass, Passed, Subject, Usage, guard, order, payload};
use crate::server::Served;

/// A database of its own on a server.
pub(crate) struct MariaDb {
    served: Served,
}

impl MariaDb {
    /// # Errors
    /// When there is anything in the database that no run has made.
    pub(crate) async fn new(served: Served) -> anyhow::Result<Self> {
        let mut connection = MySqlConnection::connect(served.url()).await?;
        let home: Option<String> = sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut connection).await?;
        let home = home.context("the URL names no database: mysql://…/bench")?;
        let tables: Vec<(String, String)> = sqlx::query_as(
            "SELECT CAST(table_schema AS CHAR), CAST(table_name AS CHAR) FROM information_schema.tables
             WHERE table_schema = DATABASE() ORDER BY table_name",
        )
        .fetch_all(&mut connection)
        .await?;
        guard::check(&tables, &home)?;
        if tables.is_empty() {
            sqlx::raw_sql(guard::CREATE_MARKER).execute(&mut connection).await?;
        }
        connection.close().await?;
        Ok(Self { served })
    }

    async fn pool(&self) -> anyhow::Result<MySqlPool> {
        Ok(MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect(self.served.url())
            .await?)
    }
}

impl Subject for MariaDb {
    type Store = MySqlStore;
    type Hand = MySqlConnection;

    /// There are no claims here that do not wait for the disk.
    const FASTER: Faster = Faster { name: "two loops", words: "two such loops on a connection each", loops: 2 };

    fn name(&self) -> &'static str {
        "mariadb"
    }

    async fn version(&self) -> anyhow::Result<String> {
        let mut connection = MySqlConnection::connect(self.served.url()).await?;
        let sql =
            "SELECT concat('MariaDB ', version(), ', innodb_buffer_pool_size ', @@innodb_buffer_pool_size DIV 1048576,
                   ' MB, innodb_log_file_size ', @@innodb_log_file_size DIV 1048576, ' MB, innodb_flush_log_at_trx_commit ',
                   @@innodb_flush_log_at_trx_commit, ', max_connections ', @@max_connections)";
        Ok(sqlx::query_scalar(sql).fetch_one(&mut connection).await?)
    }

    async fn fresh(&self) -> anyhow::Result<MySqlStore> {
        let pool = self.pool().await?;
        for sql in [
            "DROP TABLE IF EXISTS outbox_event, outbox_event_lane, outbox_event_relay, outbox_event_key, outbox_event_pause,
             posthaste_migration, orders",
            "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, customer VARCHAR(100), total DECIMAL(10, 2))",
        ] {
            sqlx::raw_sql(sql).execute(&pool).await?;
        }
        let store = MySqlStore::new(pool).reusing_connections();
        store.migrate().await?;
        Ok(store)
    }

    async fn another(&self, _: &MySqlStore) -> anyhow::Result<MySqlStore> {
        Ok(MySqlStore::new(self.pool().await?).reusing_connections())
    }

    async fn prepare_lanes(store: &MySqlStore) -> anyhow::Result<()> {
        Ok(store.prepare_lanes().await?)
    }

    fn deleting(store: MySqlStore) -> MySqlStore {
        store.deleting_done()
    }

    async fn fill_done(store: &MySqlStore, rows: usize) -> anyhow::Result<()> {
        // In parts, so that no transaction is larger than the log of the server.
        for from in (0..rows).step_by(100_000) {
            let count = (rows - from).min(100_000);
            sqlx::query(
                "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, status, done_at)
                 SELECT concat('done-', seq + ?), 'Tick', 'Clock', seq, ?, 1, utc_timestamp(6)
                 FROM seq_1_to_100000 WHERE seq <= ?",
            )
            .bind(i64::try_from(from)?)
            .bind(payload(200))
            .bind(i64::try_from(count)?)
            .execute(store.pool())
            .await?;
        }
        Ok(())
    }

    async fn settle_down(store: &MySqlStore) -> anyhow::Result<()> {
        // One that is not there, because nothing is in order, is passed over.
        sqlx::raw_sql("ANALYZE TABLE outbox_event, outbox_event_key, outbox_event_lane").execute(store.pool()).await?;
        Ok(())
    }

    async fn order(connection: &mut MySqlConnection) -> anyhow::Result<()> {
        sqlx::query(order!("?")).bind("customer").execute(connection).await?;
        Ok(())
    }

    async fn writers(store: &MySqlStore, count: usize) -> anyhow::Result<Vec<MySqlConnection>> {
        let mut writers = Vec::with_capacity(count);
        for _ in 0..count {
            writers.push(MySqlConnection::connect_with(&store.pool().connect_options()).await?);
        }
        Ok(writers)
    }

    /// READ COMMITTED, as claims and settlements of the outbox are.
    async fn drainer(store: &MySqlStore) -> anyhow::Result<MySqlConnection> {
        let mut drainer = MySqlConnection::connect_with(&store.pool().connect_options()).await?;
        sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").execute(&mut drainer).await?;
        Ok(drainer)
    }

    async fn write_bare(hand: &mut MySqlConnection) -> anyhow::Result<()> {
        let mut tx = hand.begin().await?;
        Self::order(&mut tx).await?;
        Ok(tx.commit().await?)
    }

    async fn write_by_hand(hand: &mut MySqlConnection, events: &[Event]) -> anyhow::Result<()> {
        let mut tx = hand.begin().await?;
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
                .push("UTC_TIMESTAMP(6)");
        });
        insert.build().execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }

    /// The least that a correct loop can do where an UPDATE returns nothing: claim a batch in a transaction, complete it. No claim can
    /// be told here not to wait for the disk.
    async fn pass_by_hand(hand: &mut MySqlConnection, pass: Pass, hear: &Hear) -> anyhow::Result<Passed> {
        let mut tx = hand.begin().await?;
        let claim = if pass.mark.is_some() { CLAIM_AFTER } else { CLAIM };
        let mut claim = sqlx::query(claim);
        if let Some(mark) = pass.mark {
            claim = claim.bind(mark);
        }
        let rows = claim.bind(i64::try_from(BATCH)?).fetch_all(&mut *tx).await?;
        if rows.is_empty() {
            tx.rollback().await?;
            return Ok(Passed::default());
        }
        let mut passed = Passed::with_capacity(rows.len());
        for row in &rows {
            passed.push((row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5)));
        }
        hear(&passed);
        let among = |start: &str| {
            let mut query = QueryBuilder::new(start);
            query.push(" WHERE seq IN (");
            let mut list = query.separated(", ");
            for seq in &passed.seqs {
                list.push_bind(*seq);
            }
            query.push(")");
            query
        };
        let claim = "UPDATE outbox_event SET locked_by = 'hand', locked_at = utc_timestamp(6)";
        among(claim).build().execute(&mut *tx).await?;
        tx.commit().await?;
        let complete = if pass.deleting {
            "DELETE FROM outbox_event"
        } else {
            "UPDATE outbox_event SET status = 1, done_at = utc_timestamp(6), locked_by = NULL, locked_at = NULL"
        };
        among(complete).push(" AND locked_by = 'hand'").build().execute(hand).await?;
        Ok(passed)
    }

    async fn pin(store: &MySqlStore) -> anyhow::Result<Box<dyn Send>> {
        let mut tx = store.pool().begin_with("START TRANSACTION WITH CONSISTENT SNAPSHOT").await?;
        sqlx::query("SELECT count(*) FROM orders").execute(&mut *tx).await?;
        Ok(Box::new(tx))
    }

    async fn leave(store: MySqlStore) {
        store.close().await;
    }

    async fn usage(&self) -> anyhow::Result<Usage> {
        let mut connection = MySqlConnection::connect(self.served.url()).await?;
        let status =
            "SELECT CAST(variable_value AS UNSIGNED) FROM information_schema.global_status WHERE variable_name = ?";
        let mut counted = Vec::new();
        for name in ["HANDLER_COMMIT", "INNODB_OS_LOG_WRITTEN"] {
            counted.push(sqlx::query_scalar::<_, u64>(status).bind(name).fetch_optional(&mut connection).await?);
        }
        Ok(Usage {
            commits: counted[0],
            wal_bytes: counted[1],
            dead_rows: None,
            cpu_seconds: self.served.cpu_seconds(),
        })
    }
}

/// Locks the first rows of those that wait.
macro_rules! claim {
    ($waiting:literal, $order:literal) => {
        concat!(
            "SELECT seq, event_id, event_type, aggregate_type, aggregate_id, payload, headers, attempts FROM outbox_event WHERE ",
            $waiting,
            " AND locked_by IS NULL ORDER BY ",
            $order,
            " LIMIT ? FOR UPDATE SKIP LOCKED"
        )
    };
}

const CLAIM: &str = claim!("stage = 0 AND stage_at <= utc_timestamp(6)", "stage_at, seq");

/// By their numbers, so that what was done before is not walked over.
const CLAIM_AFTER: &str = claim!("seq > ? AND status IN (0, 2) AND available_at <= utc_timestamp(6)", "seq");
