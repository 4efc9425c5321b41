//! Tables in partitions.

mod ahead;
mod meanwhile;
mod mismatch;
mod number;
mod obstacle;
mod old;
mod plan;
mod role;
mod upgrade;

use std::time::Duration;

use posthaste_sql::{Partitions, PgStore};
use sqlx::AssertSqlSafe;

use super::support::{Database, sql};

const DAY: Duration = Duration::from_secs(86_400);

/// A migrated store with daily partitions.
async fn daily(database: &Database) -> PgStore {
    let store = database.empty().await.partitioned(Partitions::daily());
    store.migrate().await.unwrap();
    store
}

/// The partitions but the one for everything else, in the order of their time: name, and from when to when.
async fn partitions(store: &PgStore) -> Vec<(String, String, String)> {
    let table = store.table().name();
    let query = "SELECT c.relname::text, b[1], b[2] FROM pg_inherits JOIN pg_class AS c ON c.oid = inhrelid \
                 JOIN pg_class AS p ON p.oid = inhparent, \
                 regexp_match(pg_get_expr(c.relpartbound, c.oid), '''(.*)''.*''(.*)''') AS b \
                 WHERE p.relname = $1 AND b IS NOT NULL ORDER BY b[1]::timestamptz";
    sqlx::query_as(query).bind(table).fetch_all(store.pool()).await.unwrap()
}

async fn names(store: &PgStore) -> Vec<String> {
    partitions(store).await.into_iter().map(|(name, ..)| name).collect()
}

/// The name of the partition of so many days ago.
async fn name_of(store: &PgStore, days_ago: i32) -> String {
    let query = "SELECT 'outbox_event_p' || to_char(now() AT TIME ZONE 'UTC' - $1 * INTERVAL '1 day', 'YYYYMMDD')";
    sqlx::query_scalar(query).bind(days_ago).fetch_one(store.pool()).await.unwrap()
}

/// In which partition a row is.
async fn place(store: &PgStore, id: &str) -> String {
    let query =
        "SELECT relname::text FROM outbox_event AS e JOIN pg_class AS c ON c.oid = e.tableoid WHERE event_id = $1";
    sqlx::query_scalar(query).bind(id).fetch_one(store.pool()).await.unwrap()
}

/// How many rows are in the partition for everything else.
async fn fallen(store: &PgStore) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM outbox_event_default").fetch_one(store.pool()).await.unwrap()
}

/// Makes the partition of a day as if it had been made in its time.
async fn make(store: &PgStore, days_ago: i32) {
    let make = format!(
        "DO $do$ DECLARE day TIMESTAMP := date_trunc('day', now() AT TIME ZONE 'UTC') - {days_ago} * INTERVAL '1 day'; \
         BEGIN EXECUTE format('CREATE TABLE %I PARTITION OF outbox_event (PRIMARY KEY (event_id)) \
         FOR VALUES FROM (%L) TO (%L)', 'outbox_event_p' || to_char(day, 'YYYYMMDD'), \
         day AT TIME ZONE 'UTC', (day + INTERVAL '1 day') AT TIME ZONE 'UTC'); \
         EXECUTE format('CREATE UNIQUE INDEX ON %I (seq)', 'outbox_event_p' || to_char(day, 'YYYYMMDD')); END $do$"
    );
    sql(store, make).await;
}

/// Drops the partitions that were made ahead, and the current one.
async fn forget(store: &PgStore) {
    for name in names(store).await {
        sql(store, format!("DROP TABLE {name}")).await;
    }
}

/// Inserts a row of some days ago, which ended some days ago if it has.
async fn insert(store: &PgStore, id: &str, status: i16, days_ago: i32, ended_days_ago: Option<i32>) {
    let noon =
        |ago: &str| format!("date_trunc('day', now(), 'UTC') - {ago} * INTERVAL '24 hours' + INTERVAL '12 hours'");
    let insert = format!(
        "INSERT INTO outbox_event (event_id, event_type, payload, status, created_at, available_at, done_at) \
         VALUES ($1, 'Happened', '{{}}', $2, {created}, {created}, {ended})",
        created = noon("$3"),
        ended = noon("$4")
    );
    let query = sqlx::query(AssertSqlSafe(insert)).bind(id).bind(status).bind(days_ago).bind(ended_days_ago);
    query.execute(store.pool()).await.unwrap();
}
