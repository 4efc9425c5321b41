//! A backlog in a SQLite file, drained by the outbox and by hand-written SQL.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use posthaste_core::store::{AdminStore, NewRow, WriteStore};
use posthaste_core::{Event, Outbox};
use posthaste_sql::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{Row, SqlitePool};

use crate::latency::payload;
use crate::report::{Report, median};
use crate::throughput::Counter;

/// Rows that the hand-written loop claims and completes in one transaction.
const BATCH: usize = 500;

/// Who drains.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Side {
    Outbox,
    ByHand,
    Both,
}

/// Drains copies of one file, by the outbox and by hand in turn.
pub(crate) async fn run(report: &mut Report, events: usize, rounds: usize, side: Side) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let template = directory.path().join("template.db");
    fill(&template, events).await?;
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let copy = |name: &str| -> anyhow::Result<_> {
            let path = directory.path().join(format!("{name}-{round}.db"));
            std::fs::copy(&template, &path)?;
            Ok(path)
        };
        if side != Side::Outbox {
            by_hand.push(drain_by_hand(&copy("by-hand")?, events).await?);
        }
        if side != Side::ByHand {
            ours.push(drain(&copy("ours")?, events).await?);
        }
        let rate =
            |rates: &[f64]| rates.last().map_or_else(|| "not run".to_owned(), |rate| format!("{rate:.0} events/s"));
        println!("drain of {events} rows in SQLite, round {round}: by hand {}, outbox {}", rate(&by_hand), rate(&ours));
    }
    if side != Side::Both {
        return Ok(());
    }
    let ratio = median(&mut ours) / median(&mut by_hand);
    report.at_least("D SQLite, outbox to hand-written SQL", ratio, 0.7, "");
    Ok(())
}

async fn fill(path: &Path, events: usize) -> anyhow::Result<()> {
    let store = SqliteStore::open(path).await?;
    store.migrate().await?;
    let payload = payload();
    let mut tx = store.begin().await?;
    for chunk in (0..events).collect::<Vec<_>>().chunks(10_000) {
        let rows: anyhow::Result<Vec<_>> = chunk
            .iter()
            .map(|index| {
                let event = Event::builder("Tick").aggregate("Clock", index).json_text(&payload);
                Ok(NewRow::new(event.build()?))
            })
            .collect();
        store.insert(&mut tx, &rows?).await?;
    }
    store.commit(tx).await?;
    // Closing writes the log back into the file, so that the file alone can be copied.
    store.close().await;
    Ok(())
}

async fn drain(path: &Path, events: usize) -> anyhow::Result<f64> {
    let store = SqliteStore::open(path).await?;
    let (counter, listener) = Counter::listener(events);
    let started_at = Instant::now();
    let outbox = Outbox::builder(store.clone()).listen_all(listener).start().await?;
    counter.wait().await?;
    // The shutdown settles what the listener has seen: only then is the last row DONE.
    let closed = outbox.shutdown().await;
    let took = started_at.elapsed();
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    check_done(&store, events).await?;
    Ok(events as f64 / took.as_secs_f64())
}

/// The least that a correct loop can do: claim a batch, complete it, commit. It waits for the disk no more than the
/// outbox does, whose claims and settlements run with `synchronous = NORMAL`.
async fn drain_by_hand(path: &Path, events: usize) -> anyhow::Result<f64> {
    let store = SqliteStore::open(path).await?;
    let options = SqliteConnectOptions::clone(&store.pool().connect_options());
    let pool = store.pool().options().clone().max_connections(1);
    let pool = pool.connect_with(options.synchronous(SqliteSynchronous::Normal)).await?;
    let started_at = Instant::now();
    while complete_batch(&pool).await? > 0 {}
    let took = started_at.elapsed();
    pool.close().await;
    check_done(&store, events).await?;
    Ok(events as f64 / took.as_secs_f64())
}

async fn complete_batch(pool: &SqlitePool) -> anyhow::Result<usize> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
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
    let mut seqs = Vec::with_capacity(rows.len());
    for row in &rows {
        let event: (i64, String, String, Option<String>, Option<String>, Option<String>) =
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5));
        std::hint::black_box(&event);
        seqs.push(event.0);
    }
    sqlx::query(
        "UPDATE outbox_event SET status = 1, done_at = 1, locked_by = NULL, locked_at = NULL
         WHERE seq IN (SELECT value FROM json_each(?))",
    )
    .bind(serde_json::to_string(&seqs)?)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(rows.len())
}

async fn check_done(store: &SqliteStore, events: usize) -> anyhow::Result<()> {
    let counts = store.counts().await?;
    ensure!(counts.done == events as u64 && counts.total() == counts.done, "not every row is DONE: {counts:?}");
    store.close().await;
    Ok(())
}
