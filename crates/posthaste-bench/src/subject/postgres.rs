//! PostgreSQL.

use posthaste_core::Event;
use posthaste_sql::PgStore;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::{BATCH, CONNECTIONS, Subject, Usage, order, payload};
use crate::server::Served;

/// A database of its own on a server.
pub(crate) struct Postgres {
    served: Served,
}

const ORDER: &str = order!("$1");

impl Postgres {
    pub(crate) fn new(served: Served) -> Self {
        Self { served }
    }

    pub(crate) fn url(&self) -> &str {
        self.served.url()
    }

    async fn pool(&self) -> anyhow::Result<PgPool> {
        Ok(PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false).connect(self.url()).await?)
    }

    /// The URL of an empty database on the same server.
    pub(crate) async fn empty_database(&self, name: &str) -> anyhow::Result<String> {
        let mut connection = PgConnection::connect(self.url()).await?;
        for sql in [format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"), format!("CREATE DATABASE {name}")] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        }
        let (server, _) = self.url().rsplit_once('/').unwrap_or((self.url(), ""));
        Ok(format!("{server}/{name}"))
    }

    pub(crate) async fn drop_database(&self, name: &str) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(self.url()).await?;
        let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        Ok(())
    }
}

impl Subject for Postgres {
    type Store = PgStore;

    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn version(&self) -> anyhow::Result<String> {
        let mut connection = PgConnection::connect(self.url()).await?;
        let sql = "SELECT format('PostgreSQL %s, shared_buffers %s, fsync %s, synchronous_commit %s',
                   current_setting('server_version'), current_setting('shared_buffers'), current_setting('fsync'),
                   current_setting('synchronous_commit'))";
        Ok(sqlx::query_scalar(sql).fetch_one(&mut connection).await?)
    }

    async fn fresh(&self) -> anyhow::Result<PgStore> {
        let pool = self.pool().await?;
        let sql = "DROP TABLE IF EXISTS outbox_event, outbox_event_lane, outbox_event_relay, outbox_event_key, outbox_event_pause, \
                   posthaste_migration, orders; \
                   CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer TEXT, total NUMERIC)";
        sqlx::raw_sql(sql).execute(&pool).await?;
        let store = PgStore::new(pool).reusing_connections();
        store.migrate().await?;
        Self::settle_down(&store).await?;
        Ok(store)
    }

    async fn another(&self, _: &PgStore) -> anyhow::Result<PgStore> {
        Ok(PgStore::new(self.pool().await?).reusing_connections())
    }

    async fn prepare_lanes(store: &PgStore) -> anyhow::Result<()> {
        Ok(store.prepare_lanes().await?)
    }

    fn deleting(store: PgStore) -> PgStore {
        store.deleting_done()
    }

    async fn fill_done(store: &PgStore, rows: usize) -> anyhow::Result<()> {
        sqlx::query(
            "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, status, done_at)
             SELECT 'done-' || n, 'Tick', 'Clock', n::text, $2, 1, clock_timestamp() FROM generate_series(1, $1) AS n",
        )
        .bind(i64::try_from(rows)?)
        .bind(payload(200))
        .execute(store.pool())
        .await?;
        Ok(())
    }

    async fn settle_down(store: &PgStore) -> anyhow::Result<()> {
        sqlx::raw_sql("VACUUM ANALYZE outbox_event").execute(store.pool()).await?;
        sqlx::raw_sql("CHECKPOINT").execute(store.pool()).await?;
        Ok(())
    }

    async fn order(connection: &mut PgConnection) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind("customer").execute(connection).await?;
        Ok(())
    }

    async fn write_bare(store: &PgStore) -> anyhow::Result<()> {
        let mut tx = store.pool().begin().await?;
        Self::order(&mut tx).await?;
        Ok(tx.commit().await?)
    }

    async fn write_by_hand(store: &PgStore, events: &[Event]) -> anyhow::Result<()> {
        let mut tx = store.pool().begin().await?;
        Self::order(&mut tx).await?;
        if let [event] = events {
            sqlx::query(
                "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, content_type, \
                 occurred_at) VALUES ($1, $2, $3, $4, $5, 'application/json', now())",
            )
            .bind(event.id().as_str())
            .bind(event.event_type())
            .bind(event.aggregate_type())
            .bind(event.aggregate_id())
            .bind(event.payload().as_json())
            .execute(&mut *tx)
            .await?;
        } else {
            sqlx::query(
                "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, content_type, \
                 occurred_at) SELECT *, 'application/json', now() \
                 FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])",
            )
            .bind(events.iter().map(|event| event.id().as_str()).collect::<Vec<_>>())
            .bind(events.iter().map(Event::event_type).collect::<Vec<_>>())
            .bind(events.iter().map(Event::aggregate_type).collect::<Vec<_>>())
            .bind(events.iter().map(Event::aggregate_id).collect::<Vec<_>>())
            .bind(events.iter().map(|event| event.payload().as_json()).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await?;
        }
        Ok(tx.commit().await?)
    }

    async fn drain_by_hand(store: &PgStore, deleting: bool) -> anyhow::Result<()> {
        let mut connection = store.pool().acquire().await?;
        while !complete_batch(&mut connection, deleting).await?.is_empty() {}
        Ok(())
    }

    async fn complete_by_hand(store: &PgStore) -> anyhow::Result<Vec<Option<String>>> {
        complete_batch(&mut *store.pool().acquire().await?, false).await
    }

    async fn pin(store: &PgStore) -> anyhow::Result<Box<dyn Send>> {
        let mut tx = store.pool().begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        sqlx::query("SELECT txid_current()").execute(&mut *tx).await?;
        Ok(Box::new(tx))
    }

    async fn leave(store: PgStore) {
        store.close().await;
    }

    async fn usage(&self) -> anyhow::Result<Usage> {
        let mut connection = PgConnection::connect(self.url()).await?;
        let (commits, wal_bytes, dead_rows): (i64, i64, i64) = sqlx::query_as(
            "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
                    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
                    (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables)",
        )
        .fetch_one(&mut connection)
        .await?;
        Ok(Usage {
            commits: u64::try_from(commits).ok(),
            wal_bytes: u64::try_from(wal_bytes).ok(),
            dead_rows: u64::try_from(dead_rows).ok(),
            cpu_seconds: self.served.cpu_seconds(),
        })
    }
}

/// The least that a correct loop can do: claim a batch, complete it.
async fn complete_batch(connection: &mut PgConnection, deleting: bool) -> anyhow::Result<Vec<Option<String>>> {
    let rows = sqlx::query(
        "UPDATE outbox_event SET locked_by = 'hand', locked_at = clock_timestamp() WHERE seq = ANY (ARRAY(
             SELECT seq FROM outbox_event WHERE status IN (0, 2) AND available_at <= now() AND locked_by IS NULL
             ORDER BY available_at, seq LIMIT $1 FOR UPDATE SKIP LOCKED))
         RETURNING seq, event_id, event_type, aggregate_type, aggregate_id, payload, headers, attempts",
    )
    .bind(i64::try_from(BATCH)?)
    .fetch_all(&mut *connection)
    .await?;
    let (mut seqs, mut keys) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in &rows {
        let event: (i64, String, String, Option<String>, Option<String>, Option<String>) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5));
        seqs.push(event.0);
        keys.push(event.4);
    }
    let complete = if deleting {
        "DELETE FROM outbox_event WHERE seq = ANY ($1) AND locked_by = 'hand'"
    } else {
        "UPDATE outbox_event SET status = 1, done_at = clock_timestamp(), locked_by = NULL, locked_at = NULL
         WHERE seq = ANY ($1) AND locked_by = 'hand'"
    };
    sqlx::query(complete).bind(seqs).execute(connection).await?;
    Ok(keys)
}
