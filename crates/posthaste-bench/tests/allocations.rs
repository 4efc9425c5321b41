//! How often the dispatcher allocates for an event. Alone in its program, because the whole program is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::{Delivery, Event, MemoryStore, Outbox};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const EVENTS: usize = 10_000;

/// Allocations per event that is written, and then settled if anybody delivers.
async fn allocations(outbox: Outbox<MemoryStore>) -> anyhow::Result<f64> {
    let event = |number: usize| Event::builder("Tick").aggregate("Clock", number).json_text("{}").build();
    let events: Vec<Event> = (0..EVENTS).map(event).collect::<Result<_, _>>()?;
    let region = Region::new(ALLOCATOR);
    for chunk in events.chunks(100) {
        let mut tx = outbox.begin().await?;
        tx.write_all(chunk).await?;
        tx.commit().await?;
        // So that there is always room for all of them on the hot path.
        while outbox.in_flight() > 500 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }
    outbox.shutdown().await;
    Ok(region.change().allocations as f64 / EVENTS as f64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dispatcher_allocates_little_for_an_event() {
    let written = allocations(Outbox::writer_only(MemoryStore::new()).start().await.unwrap()).await.unwrap();
    let delivered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&delivered);
    let outbox = Outbox::builder(MemoryStore::new())
        .listen_all(move |_: Delivery| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(())
        })
        .start()
        .await
        .unwrap();
    let all = allocations(outbox).await.unwrap();
    assert_eq!(delivered.load(Ordering::Relaxed), EVENTS);
    println!("{written:.2} allocations to write an event, {:.2} more to deliver and settle it", all - written);
    assert!(all - written <= 2.0, "{written:.2} to write an event, {all:.2} to write and deliver it");
}
