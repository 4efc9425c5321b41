//! Commit to listener.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use posthaste_core::store::Store;
use posthaste_core::{Delivery, Event, MemoryStore, Outbox};

use crate::report::Report;

/// Commit to listener through one outbox on the memory store.
pub(crate) async fn run(report: &mut Report, rate: u64, seconds: u64) -> anyhow::Result<()> {
    let latencies = measure(MemoryStore::new(), None, rate, seconds).await?;
    println!("latency: {rate} events/s for {seconds} s: {latencies}");
    report.at_most("L memory, commit to listener, p50", latencies.micros(0.5), 50.0, "µs");
    report.at_most("L memory, commit to listener, p99", latencies.micros(0.99), 1000.0, "µs");
    Ok(())
}

/// How long events took from their commit to their listener.
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, most] = [0.5, 0.99, 1.0].map(|quantile| self.micros(quantile));
        write!(f, "p50 {p50:.1} µs, p99 {p99:.1} µs, max {most:.1} µs")
    }
}

/// Writes at a steady rate, through an outbox that delivers or through another one, and measures from before each commit to
/// the start of its listener.
pub(crate) async fn measure<S: Store>(
    store: S,
    writer: Option<Outbox<S>>,
    rate: u64,
    seconds: u64,
) -> anyhow::Result<Latencies> {
    let events = usize::try_from(rate * seconds)?;
    let started_at = Instant::now();
    let committing: Arc<Vec<AtomicU64>> = Arc::new((0..events).map(|_| AtomicU64::new(0)).collect());
    let histogram = Arc::new(Mutex::new(Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?));
    let (all_done, mut done) = tokio::sync::watch::channel(0_usize);

    let outbox = Outbox::builder(store)
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
    let writer = writer.unwrap_or_else(|| outbox.clone());

    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate)?);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    for index in 0..events {
        ticks.tick().await;
        let mut tx = writer.begin().await?;
        tx.write(Event::builder("Tick").aggregate("Clock", index).json_text(payload())).await?;
        committing[index].store(nanos(started_at), Ordering::Release);
        tx.commit().await?;
    }
    tokio::time::timeout(Duration::from_secs(30), done.wait_for(|count| *count >= events))
        .await
        .context("not every event was delivered")??;
    outbox.shutdown().await;

    let histogram = histogram.lock().expect("no listener panics").clone();
    Ok(Latencies(histogram))
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// About 200 bytes of JSON.
pub(crate) fn payload() -> String {
    format!(r#"{{"order":"{}","customer":"{}","total":"19.90"}}"#, "o".repeat(80), "c".repeat(80))
}
