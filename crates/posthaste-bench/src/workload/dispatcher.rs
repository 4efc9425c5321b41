//! The dispatcher alone, on the memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::store::{NewRow, WriteStore};
use posthaste_core::{Event, MemoryStore, Options, Outbox};

use super::Counter;
use crate::bench::Bench;
use crate::measure::About;
use crate::rounds::of;
use crate::subject::{event, payload};

/// Events per second that the outbox wants to reach without any database, whatever the machine.
const GOAL: f64 = 300_000.0;

/// Drains waiting events, and then writes as fast as it can with the hot path on.
pub(crate) async fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let events = bench.sizes.dispatched;
    let most_in_hand = AtomicUsize::new(0);
    let contestants = ["drained", "written hot"].map(str::to_owned);
    let figures = bench
        .rounds
        .run("dispatcher", "events/s", &contestants, async |contestant| {
            let (rate, in_hand) = match contestant {
                "drained" => drain(events).await?,
                _ => write(events).await?,
            };
            most_in_hand.fetch_max(in_hand, Ordering::Relaxed);
            Ok(rate)
        })
        .await?;
    let about = About {
        workload: "dispatcher, cold",
        database: "memory",
        what: "waiting events through the dispatcher",
        against: "a bound",
        unit: "events/s",
    };
    bench.add(about.at_least(&of(&figures, "drained"), GOAL));
    let about = About { workload: "dispatcher, hot", what: "events written and delivered hot", ..about };
    bench.add(about.at_least(&of(&figures, "written hot"), GOAL));
    let options = Options::default();
    // In the two queues, with a worker, on the way to the settler, and being written.
    let bound = options.hot_queue + options.cold_queue + 2 * options.workers + 3 * options.settle_batch;
    let most = [most_in_hand.into_inner() as f64].into_iter().collect();
    let about = About { workload: "dispatcher, memory", what: "events in memory at most", unit: "events", ..about };
    bench.add(about.at_most(&most, bound as f64));
    Ok(())
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
    let payload = payload(200);
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
    let payload = payload(200);
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
