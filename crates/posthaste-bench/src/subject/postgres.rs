//! PostgreSQL.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use posthaste_core::Event;
use posthaste_sql::PgStore;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::{BATCH, CONNECTIONS, Faster, Hear, Pass, Passed, Subject, Usage, guard, order, payload, pgbench};
use crate::server::Served;

/// A database of its own on a server.
pub(crate) struct Postgres {
    served: Served,
    pgbench: Option<PathBuf>,
}

const ORDER: &str = order!("$1");

/// What a database that a peer gets says of itself, so that no other is dropped.
const PEERS_DATABASE: &str = "made anew by posthaste bench for each peer";

impl Postgres {
    /// # Errors
    /// When there is anything in the database that no run has made.
    pub(crate) async fn new(served: Served) -> anyhow::Result<Self> {
        let mut connection = PgConnection::connect(served.url()).await?;
        // Views, too. What belongs to an extension is nobody's.
        let tables: Vec<(String, String)> = sqlx::query_as(
            "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
             AND NOT EXISTS (SELECT FROM pg_depend d
                             WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
             ORDER BY 1, 2",
        )
        .fetch_all(&mut connection)
        .await?;
        let home: Option<String> =
            sqlx::query_scalar("SELECT current_schema()::text").fetch_one(&mut connection).await?;
        let home = home.context("no schema of the search path exists in the database: new tables would be nowhere")?;
        guard::check(&tables, &home)?;
        if !tables.iter().any(|(_, table)| table == guard::MARKER) {
            sqlx::raw_sql(guard::CREATE_MARKER).execute(&mut connection).await?;
        }
        connection.close().await?;
        Ok(Self { served, pgbench: pgbench::find() })
    }

    pub(crate) fn url(&self) -> &str {
        self.served.url()
    }

    async fn pool(&self) -> anyhow::Result<PgPool> {
        Ok(PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect(self.url())
            .await?)
    }

    /// The URL of an empty database on the same server.
    pub(crate) async fn empty_database(&self, name: &str) -> anyhow::Result<String> {
        self.drop_database(name).await?;
        let mut connection = PgConnection::connect(self.url()).await?;
        let create = format!("CREATE DATABASE {name}");
        for sql in [create, format!("COMMENT ON DATABASE {name} IS '{PEERS_DATABASE}'")] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        }
        let (before, parameters) = self.url().split_once('?').unwrap_or((self.url(), ""));
        let (server, _) = before.rsplit_once('/').unwrap_or((before, ""));
        let parameters = if parameters.is_empty() { String::new() } else { format!("?{parameters}") };
        Ok(format!("{server}/{name}{parameters}"))
    }

    /// Drops a database that was made by [`empty_database`](Self::empty_database), if it is there.
    pub(crate) async fn drop_database(&self, name: &str) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(self.url()).await?;
        let about = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = $1";
        let about: Option<Option<String>> =
            sqlx::query_scalar(about).bind(name).fetch_optional(&mut connection).await?;
        if let Some(about) = about {
            ensure!(
                about.as_deref() == Some(PEERS_DATABASE),
                "there is a database {name} that no run has made, and peers get one of that name: drop it, if nobody needs it"
            );
            let sql = format!("DROP DATABASE {name} WITH (FORCE)");
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        }
        Ok(())
    }
}

impl Subject for Postgres {
    type Store = PgStore;
    type Hand = PgConnection;

    const FASTER: Faster = Faster {
        name: "two loops",
        words: "two such loops on a connection each, whose claims do not wait for the disk",
        loops: 2,
    };

    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn version(&self) -> anyhow::Result<String> {
        let mut connection = PgConnection::connect(self.url()).await?;
        let sql = "SELECT format('PostgreSQL %s, ', current_setting('server_version')) ||
                   (SELECT string_agg(name || ' ' || current_setting(name), ', ' ORDER BY place)
                    FROM unnest(ARRAY['shared_buffers', 'fsync', 'synchronous_commit', 'max_wal_size', 'checkpoint_timeout',
                                      'max_connections', 'autovacuum', 'wal_level']) WITH ORDINALITY AS s (name, place))";
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
        // Those of lanes are there once they are asked for. Keys come to theirs one by one, long before what is measured.
        let there = "SELECT relname::text FROM pg_class WHERE oid IN \
                     (to_regclass('outbox_event'), to_regclass('outbox_event_key'), to_regclass('outbox_event_lane'))";
        let tables: Vec<String> = sqlx::query_scalar(there).fetch_all(store.pool()).await?;
        for table in tables {
            sqlx::raw_sql(AssertSqlSafe(format!("VACUUM ANALYZE {table}"))).execute(store.pool()).await?;
        }
        sqlx::raw_sql("CHECKPOINT").execute(store.pool()).await?;
        Ok(())
    }

    async fn order(connection: &mut PgConnection) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind("customer").execute(connection).await?;
        Ok(())
    }

    async fn writers(store: &PgStore, count: usize) -> anyhow::Result<Vec<PgConnection>> {
        let mut writers = Vec::with_capacity(count);
        for _ in 0..count {
            writers.push(PgConnection::connect_with(&store.pool().connect_options()).await?);
        }
        Ok(writers)
    }

    async fn drainer(store: &PgStore) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect_with(&store.pool().connect_options()).await?)
    }

    /// A plan that was made while the table was small would be kept.
    async fn expect_growth(hand: &mut PgConnection) -> anyhow::Result<()> {
        sqlx::raw_sql("SET plan_cache_mode = force_custom_plan").execute(hand).await?;
        Ok(())
    }

    async fn write_bare(hand: &mut PgConnection) -> anyhow::Result<()> {
        let mut tx = hand.begin().await?;
        Self::order(&mut tx).await?;
        Ok(tx.commit().await?)
    }

    async fn write_by_hand(hand: &mut PgConnection, events: &[Event]) -> anyhow::Result<()> {
        let mut tx = hand.begin().await?;
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
                 occurred_at) SELECT id, $2::text, $3::text, aggregate_id, payload, 'application/json', now() \
                 FROM unnest($1::text[], $4::text[], $5::text[]) AS event (id, aggregate_id, payload)",
            )
            .bind(events.iter().map(|event| event.id().as_str()).collect::<Vec<_>>())
            // All of them are alike.
            .bind(events.first().map(Event::event_type))
            .bind(events.first().map(Event::aggregate_type))
            .bind(events.iter().map(Event::aggregate_id).collect::<Vec<_>>())
            .bind(events.iter().map(|event| event.payload().as_json()).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await?;
        }
        Ok(tx.commit().await?)
    }

    /// The least that a correct loop can do: claim a batch, complete it.
    async fn pass_by_hand(hand: &mut PgConnection, pass: Pass, hear: &Hear) -> anyhow::Result<Passed> {
        let claim = match (pass.mark, pass.faster) {
            (Some(_), _) => CLAIM_AFTER,
            (None, true) => CLAIM_WITHOUT_THE_DISK,
            (None, false) => CLAIM,
        };
        let mut claim = sqlx::query(claim).bind(i64::try_from(BATCH)?);
        if let Some(mark) = pass.mark {
            claim = claim.bind(mark);
        }
        let rows = claim.fetch_all(&mut *hand).await?;
        let mut passed = Passed::with_capacity(rows.len());
        for row in &rows {
            passed.push((row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5)));
        }
        hear(&passed);
        if !rows.is_empty() {
            let complete = if pass.deleting { DELETE } else { COMPLETE };
            sqlx::query(complete).bind(&passed.seqs).execute(hand).await?;
        }
        Ok(passed)
    }

    fn own_program(&self) -> Option<&'static str> {
        self.pgbench.as_ref().map(|_| "pgbench")
    }

    async fn write_by_own_program(&self, writers: usize, writing: Duration) -> anyhow::Result<f64> {
        let program = self.pgbench.as_ref().context("pgbench is not installed")?;
        pgbench::write(program, self.url(), writers, writing).await
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

/// Claims the first rows of those that wait.
macro_rules! claim {
    ($waiting:literal, $order:literal, $more:literal) => {
        concat!(
            "UPDATE outbox_event SET locked_by = 'hand', locked_at = clock_timestamp() WHERE seq = ANY (ARRAY(
                 SELECT seq FROM outbox_event WHERE ",
            $waiting,
            " AND available_at <= now() AND locked_by IS NULL ORDER BY ",
            $order,
            " LIMIT $1 FOR UPDATE SKIP LOCKED)) ",
            $more,
            " RETURNING seq, event_id, event_type, aggregate_type, aggregate_id, payload, headers, attempts"
        )
    };
}

const CLAIM: &str = claim!("status IN (0, 2)", "available_at, seq", "");

/// A lease that a crash takes back was held for nothing.
pub(crate) const CLAIM_WITHOUT_THE_DISK: &str = claim!(
    "status IN (0, 2)",
    "available_at, seq",
    "AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'"
);

/// From the index on numbers, and not from the one on what waits, in which everything that was claimed before stands for as long as
/// a transaction may want to see it. A range with two ends looks narrow to a planner that knows nothing of the table yet.
const CLAIM_AFTER: &str = claim!(
    "seq > $2 AND seq < $2 + 1000000000 AND status + 0 IN (0, 2)",
    "seq",
    "AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'"
);

pub(crate) const COMPLETE: &str =
    "UPDATE outbox_event SET status = 1, done_at = clock_timestamp(), locked_by = NULL, locked_at = NULL
     WHERE seq = ANY ($1) AND locked_by = 'hand'";

const DELETE: &str = "DELETE FROM outbox_event WHERE seq = ANY ($1) AND locked_by = 'hand'";
