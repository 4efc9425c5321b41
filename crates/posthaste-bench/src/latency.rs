//! Commit to listener, in one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use posthaste_core::{Delivery, Event, MemoryStore, Outbox};

use crate::report::Report;

/// Writes at a steady rate and measures from before each commit to the start of its listener.
pub(crate) async fn run(report: &mut Report, rate: u64, seconds: u64) -> anyhow::Result<()> {
    let events = usize::try_from(rate * seconds)?;
    let started_at = Instant::now();
    let committing: Arc<Vec<AtomicU64>> = Arc::new((0..events).map(|_| AtomicU64::new(0)).collect());
    let histogram = Arc::new(Mutex::new(Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?));
    let (all_done, mut done) = tokio::sync::watch::channel(0_usize);

    let outbox = Outbox::builder(MemoryStore::new())
        .listen_all({
            let (committing, histogram) = (Arc::clone(&committing), Arc::clone(&histogram));
            move |event: Delivery| {
                let now = nanos(started_at);
                let index: usize = event.aggregate_id().and_then(|id| id.parse().ok()).unwrap_or_default();
                let latency = now.saturating_sub(committing[index].load(Ordering::Acquire));
                histogram.lock().expect("no listener panics").saturating_record(latency);
                all_done.send_modify(|count| *count += 1);
                std::future::ready(())
            }
        })
        .start()
        .await?;

    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate)?);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    for index in 0..events {
        ticks.tick().await;
        let mut tx = outbox.begin().await?;
        tx.write(Event::builder("Tick").aggregate("Clock", index).json_text(payload())).await?;
        committing[index].store(nanos(started_at), Ordering::Release);
        tx.commit().await?;
    }
    tokio::time::timeout(Duration::from_secs(30), done.wait_for(|count| *count >= events))
        .await
        .context("not every event was delivered")??;
    outbox.shutdown().await;

    let histogram = histogram.lock().expect("no listener panics");
    let micros = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "latency: {rate} events/s for {seconds} s: p50 {:.1} µs, p99 {:.1} µs, max {:.1} µs",
        micros(0.5),
        micros(0.99),
        micros(1.0)
    );
    report.at_most("L memory, commit to listener, p50", micros(0.5), 50.0, "µs");
    report.at_most("L memory, commit to listener, p99", micros(0.99), 1000.0, "µs");
    Ok(())
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// About 200 bytes of JSON.
pub(crate) fn payload() -> String {
    format!(r#"{{"order":"{}","customer":"{}","total":"19.90"}}"#, "o".repeat(80), "c".repeat(80))
}
