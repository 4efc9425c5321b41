//! Writes and backlogs in PostgreSQL, by the outbox and by hand-written SQL, in turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use posthaste_core::store::{AdminStore, NewRow, WriteStore};
use posthaste_core::{Event, Outbox};
use posthaste_sql::PgStore;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::latency::{measure, payload};
use crate::report::{Report, median};
use crate::throughput::Counter;

/// Rows that the hand-written loop claims and completes at a time.
const BATCH: i64 = 500;

/// Rows that are done already, beside those that wait.
const DONE_BESIDE: usize = 1_000_000;

/// Transactions at a time.
const WRITERS: usize = 8;

/// How long each kind of write is measured in a round.
const WRITING: Duration = Duration::from_secs(3);

/// Writes and drains in a database of its own on that server.
pub(crate) async fn run(report: &mut Report, url: &str, events: usize, rounds: usize) -> anyhow::Result<()> {
    let server: PgConnectOptions = url.parse()?;
    let name = format!("posthaste_bench_{}", std::process::id());
    let mut connection = PgConnection::connect_with(&server).await?;
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await?;
    let pool = PgPoolOptions::new().max_connections(10).connect_with(server.database(&name)).await?;
    let measured = async {
        write(report, &pool, rounds).await?;
        drain(report, &pool, events, rounds).await?;
        latency(report, &pool).await
    };
    let measured = measured.await;
    pool.close().await;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).execute(&mut connection).await?;
    measured
}

/// An empty table, and a table of orders.
async fn fresh(pool: &PgPool) -> anyhow::Result<PgStore> {
    let sql = "DROP TABLE IF EXISTS outbox_event, posthaste_migration, orders; \
               CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer TEXT, total NUMERIC)";
    sqlx::raw_sql(sql).execute(pool).await?;
    let store = PgStore::new(pool.clone());
    store.migrate().await?;
    sqlx::raw_sql("CHECKPOINT").execute(pool).await?;
    Ok(store)
}

const ORDER: &str = "INSERT INTO orders (customer, total) VALUES ($1, 19.90)";

async fn write(report: &mut Report, pool: &PgPool, rounds: usize) -> anyhow::Result<()> {
    let (mut bare, mut by_hand, mut ours, mut hot) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        fresh(pool).await?;
        bare.push(writes(async || write_bare(pool).await).await?);
        fresh(pool).await?;
        by_hand.push(writes(async || write_by_hand(pool).await).await?);

        let outbox = Outbox::writer_only(fresh(pool).await?).start().await?;
        ours.push(writes(async || write_ours(&outbox).await).await?);
        outbox.shutdown().await;

        let (_, listener) = Counter::listener(usize::MAX);
        let outbox = Outbox::builder(fresh(pool).await?).listen_all(listener).start().await?;
        hot.push(writes(async || write_ours(&outbox).await).await?);
        outbox.shutdown().await;
        println!(
            "writes in PostgreSQL, round {round}: bare {:.0}, by hand {:.0}, outbox {:.0}, delivered hot {:.0} tx/s",
            bare[round - 1],
            by_hand[round - 1],
            ours[round - 1],
            hot[round - 1]
        );
    }
    let (bare, by_hand, ours, hot) = (median(&mut bare), median(&mut by_hand), median(&mut ours), median(&mut hot));
    println!("the hand-written event costs {:.2} of the bare transactions", by_hand / bare);
    report.at_least("W PostgreSQL, outbox to hand-written SQL", ours / by_hand, 0.9, "");
    report.at_least("H PostgreSQL, delivered hot to not at all", hot / ours, 0.85, "");
    Ok(())
}

/// Transactions per second of so many writers.
async fn writes(write: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let written = AtomicUsize::new(0);
    let started_at = Instant::now();
    let writer = async || {
        while started_at.elapsed() < WRITING {
            write().await?;
            written.fetch_add(1, Ordering::Relaxed);
        }
        anyhow::Ok(())
    };
    futures_util::future::try_join_all((0..WRITERS).map(|_| writer())).await?;
    Ok(written.into_inner() as f64 / started_at.elapsed().as_secs_f64())
}

async fn write_bare(pool: &PgPool) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query(ORDER).bind("customer").execute(&mut *tx).await?;
    Ok(tx.commit().await?)
}

async fn write_by_hand(pool: &PgPool) -> anyhow::Result<()> {
    let event = tick(1);
    let mut tx = pool.begin().await?;
    sqlx::query(ORDER).bind("customer").execute(&mut *tx).await?;
    sqlx::query(
        "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload) \
         VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(event.id().as_str())
    .bind(event.event_type())
    .bind(event.aggregate_type())
    .bind(event.aggregate_id())
    .bind(event.payload().as_json())
    .execute(&mut *tx)
    .await?;
    Ok(tx.commit().await?)
}

async fn write_ours(outbox: &Outbox<PgStore>) -> anyhow::Result<()> {
    let mut tx = outbox.begin().await?;
    sqlx::query(ORDER).bind("customer").execute(&mut *tx).await?;
    tx.write(tick(1)).await?;
    Ok(tx.commit().await?)
}

fn tick(index: usize) -> Event {
    Event::builder("Tick").aggregate("Clock", index).json_text(payload()).build().expect("a valid event")
}

async fn drain(report: &mut Report, pool: &PgPool, events: usize, rounds: usize) -> anyhow::Result<()> {
    let (mut by_hand, mut ours, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        let store = fill(pool, events, 0).await?;
        let started_at = Instant::now();
        let mut connection = pool.acquire().await?;
        while complete_batch(&mut connection).await? > 0 {}
        drop(connection);
        by_hand.push(events as f64 / started_at.elapsed().as_secs_f64());
        check_done(&store, events).await?;

        ours.push(drain_ours(pool, events, 0).await?);
        beside.push(drain_ours(pool, events, DONE_BESIDE).await?);
        println!(
            "drain of {events} rows in PostgreSQL, round {round}: by hand {:.0} events/s, outbox {:.0} events/s, \
             with {DONE_BESIDE} done rows beside {:.0} events/s",
            by_hand[round - 1],
            ours[round - 1],
            beside[round - 1]
        );
    }
    let ours = median(&mut ours);
    report.at_least("D PostgreSQL, outbox to hand-written SQL", ours / median(&mut by_hand), 0.8, "");
    report.at_least("D+1M PostgreSQL, to D without done rows", median(&mut beside) / ours, 0.9, "");
    Ok(())
}

async fn drain_ours(pool: &PgPool, events: usize, done: usize) -> anyhow::Result<f64> {
    let store = fill(pool, events, done).await?;
    let (counter, listener) = Counter::listener(events);
    let started_at = Instant::now();
    let outbox = Outbox::builder(store.clone()).listen_all(listener).start().await?;
    counter.wait().await?;
    // The shutdown settles what the listener has seen: only then is the last row DONE.
    let closed = outbox.shutdown().await;
    let rate = events as f64 / started_at.elapsed().as_secs_f64();
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    check_done(&store, events + done).await?;
    Ok(rate)
}

/// Commit in one process to listener in another, which shares nothing with it but the database.
async fn latency(report: &mut Report, pool: &PgPool) -> anyhow::Result<()> {
    for rate in [100, 1000] {
        let relay = fresh(pool).await?;
        let pool = pool.options().clone().connect_with((*pool.connect_options()).clone()).await?;
        let writer = Outbox::writer_only(PgStore::new(pool)).start().await?;
        let latencies = measure(relay, Some(writer), rate, 5).await?;
        println!("from process to process in PostgreSQL at {rate} events/s: {latencies}");
        report.at_most(&format!("L PostgreSQL, other process, {rate}/s, p50"), latencies.micros(0.5), 800.0, "µs");
        report.at_most(&format!("L PostgreSQL, other process, {rate}/s, p99"), latencies.micros(0.99), 2500.0, "µs");
    }
    Ok(())
}

/// A table with rows that wait, behind others that are done.
async fn fill(pool: &PgPool, events: usize, done: usize) -> anyhow::Result<PgStore> {
    let store = fresh(pool).await?;
    sqlx::query(
        "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, status, done_at)
         SELECT 'done-' || n, 'Tick', 'Clock', n::text, $2, 1, clock_timestamp() FROM generate_series(1, $1) AS n",
    )
    .bind(i64::try_from(done)?)
    .bind(payload())
    .execute(pool)
    .await?;
    let mut tx = store.begin().await?;
    for chunk in (0..events).collect::<Vec<_>>().chunks(10_000) {
        let rows: Vec<_> = chunk.iter().map(|index| NewRow::new(tick(*index))).collect();
        store.insert(&mut tx, &rows).await?;
    }
    store.commit(tx).await?;
    // What autovacuum would do a minute later, in one of the two.
    sqlx::raw_sql("VACUUM ANALYZE outbox_event").execute(pool).await?;
    sqlx::raw_sql("CHECKPOINT").execute(pool).await?;
    Ok(store)
}

/// The least that a correct loop can do: claim a batch, complete it.
async fn complete_batch(connection: &mut PgConnection) -> anyhow::Result<usize> {
    let rows = sqlx::query(
        "UPDATE outbox_event SET locked_by = 'hand', locked_at = clock_timestamp() WHERE seq = ANY (ARRAY(
             SELECT seq FROM outbox_event WHERE status IN (0, 2) AND available_at <= now() AND locked_by IS NULL
             ORDER BY available_at, seq LIMIT $1 FOR UPDATE SKIP LOCKED))
         RETURNING seq, event_id, event_type, aggregate_type, aggregate_id, payload, headers, attempts",
    )
    .bind(BATCH)
    .fetch_all(&mut *connection)
    .await?;
    let mut seqs = Vec::with_capacity(rows.len());
    for row in &rows {
        let event: (i64, String, String, Option<String>, Option<String>, Option<String>) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5));
        std::hint::black_box(&event);
        seqs.push(event.0);
    }
    sqlx::query(
        "UPDATE outbox_event SET status = 1, done_at = clock_timestamp(), locked_by = NULL, locked_at = NULL
         WHERE seq = ANY ($1) AND locked_by = 'hand'",
    )
    .bind(seqs)
    .execute(connection)
    .await?;
    Ok(rows.len())
}

async fn check_done(store: &PgStore, events: usize) -> anyhow::Result<()> {
    let counts = store.counts().await?;
    ensure!(counts.done == events as u64 && counts.total() == counts.done, "not every row is DONE: {counts:?}");
    Ok(())
}
