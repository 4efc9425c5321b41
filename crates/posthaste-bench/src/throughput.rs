//! Events per second through the dispatcher.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use posthaste_core::store::{NewRow, WriteStore};
use posthaste_core::{Delivery, Event, MemoryStore, Options, Outbox};

use crate::latency::payload;
use crate::report::{Report, median};

/// Drains waiting events, and then writes as fast as it can with the hot path on.
pub(crate) async fn run(report: &mut Report, events: usize, rounds: usize) -> anyhow::Result<()> {
    let (mut cold, mut hot) = (Vec::new(), Vec::new());
    let mut most_in_hand = 0;
    for round in 1..=rounds {
        let (rate, in_hand) = drain(events).await?;
        most_in_hand = most_in_hand.max(in_hand);
        cold.push(rate);
        let (rate, in_hand) = write(events).await?;
        most_in_hand = most_in_hand.max(in_hand);
        hot.push(rate);
        println!(
            "throughput, round {round}: drain {:.0} events/s, written and delivered {rate:.0} events/s",
            cold[round - 1]
        );
    }
    report.at_least("dispatcher, drain of waiting events", median(&mut cold), 300_000.0, "events/s");
    report.at_least("dispatcher, written hot and delivered", median(&mut hot), 300_000.0, "events/s");
    let options = Options::default();
    // In the two queues, with a worker, on the way to the settler, and being written.
    let bound = options.hot_queue + options.cold_queue + 2 * options.workers + 3 * options.settle_batch;
    report.at_most("events in memory at most", most_in_hand as f64, bound as f64, "events");
    Ok(())
}

fn event(index: usize, payload: &str) -> Event {
    Event::builder("Tick").aggregate("Clock", index).json_text(payload).build().expect("a valid event")
}

pub(crate) struct Counter {
    delivered: Arc<AtomicUsize>,
    all: Arc<tokio::sync::Notify>,
}

impl Counter {
    pub(crate) fn listener(
        events: usize,
    ) -> (Self, impl Fn(Delivery) -> std::future::Ready<()> + Send + Sync + 'static) {
        let counter = Self { delivered: Arc::default(), all: Arc::default() };
        let (delivered, all) = (Arc::clone(&counter.delivered), Arc::clone(&counter.all));
        let listener = move |_: Delivery| {
            if delivered.fetch_add(1, Ordering::Relaxed) + 1 == events {
                all.notify_one();
            }
            std::future::ready(())
        };
        (counter, listener)
    }

    pub(crate) async fn wait(&self) -> anyhow::Result<()> {
        let all = tokio::time::timeout(Duration::from_secs(60), self.all.notified()).await;
        all.with_context(|| format!("only {} events were delivered", self.delivered.load(Ordering::Relaxed)))
    }
}

/// How many events the outbox had in hand, at most.
async fn watch(outbox: Outbox<MemoryStore>, stop: Arc<tokio::sync::Notify>) -> usize {
    let mut most = 0;
    loop {
        most = most.max(outbox.in_flight());
        if tokio::time::timeout(Duration::from_millis(1), stop.notified()).await.is_ok() {
            return most;
        }
    }
}

async fn drain(events: usize) -> anyhow::Result<(f64, usize)> {
    let store = MemoryStore::new();
    let payload = payload();
    let mut tx = store.begin().await?;
    for chunk in (0..events).collect::<Vec<_>>().chunks(10_000) {
        let rows: Vec<_> = chunk.iter().map(|index| NewRow::new(event(*index, &payload))).collect();
        store.insert(&mut tx, &rows).await?;
    }
    store.commit(tx).await?;

    let (counter, listener) = Counter::listener(events);
    let started_at = Instant::now();
    let outbox = Outbox::builder(store).listen_all(listener).start().await?;
    let stop = Arc::new(tokio::sync::Notify::new());
    let watcher = tokio::spawn(watch(outbox.clone(), Arc::clone(&stop)));
    counter.wait().await?;
    outbox.shutdown().await;
    let took = started_at.elapsed();
    stop.notify_one();
    Ok((events as f64 / took.as_secs_f64(), watcher.await?))
}

/// Two writers, a hundred events in a transaction, built beforehand.
async fn write(events: usize) -> anyhow::Result<(f64, usize)> {
    let payload = payload();
    let all: Vec<Event> = (0..events).map(|index| event(index, &payload)).collect();
    let (counter, listener) = Counter::listener(events);
    let outbox = Outbox::builder(MemoryStore::new()).listen_all(listener).start().await?;
    let stop = Arc::new(tokio::sync::Notify::new());
    let watcher = tokio::spawn(watch(outbox.clone(), Arc::clone(&stop)));
    let started_at = Instant::now();
    let writers: Vec<_> = all
        .chunks(events.div_ceil(2))
        .map(|half| {
            let (outbox, half) = (outbox.clone(), half.to_vec());
            tokio::spawn(async move {
                for chunk in half.chunks(100) {
                    let mut tx = outbox.begin().await?;
                    tx.write_all(chunk).await?;
                    tx.commit().await?;
                    tokio::task::yield_now().await;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for writer in writers {
        writer.await??;
    }
    counter.wait().await?;
    outbox.shutdown().await;
    let took = started_at.elapsed();
    stop.notify_one();
    Ok((events as f64 / took.as_secs_f64(), watcher.await?))
}
