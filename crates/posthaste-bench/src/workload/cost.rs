//! X: what an event costs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::Outbox;

use super::Counter;
use super::drain::{Relays, drain_filled};
use crate::bench::Bench;
use crate::measure::About;
use crate::server::own_cpu_seconds;
use crate::statements::Statements;
use crate::subject::{Filling, Subject, check_done, event, fill, payload};

/// Transactions at a time.
const WRITERS: usize = 8;

/// The most statements about the outbox for an event on the hot path: one INSERT, and a share of one UPDATE.
const MOST_STATEMENTS: f64 = 1.2;

/// What each event cost, by the name of the quantity.
type Costs = BTreeMap<&'static str, f64>;

/// On the hot path and on the cold one, beside the same work by hand.
pub(crate) async fn run<S: Subject>(bench: &mut Bench, subject: &S) -> anyhow::Result<()> {
    let events = bench.sizes.events / 5;
    let written = cost(subject, events, async |store| {
        write(events, async |number| S::write_by_hand(store, &[event(number, &payload(200))]).await).await
    })
    .await?;
    let hot = cost(subject, events, async |store| {
        let (_, listener) = Counter::listener(usize::MAX);
        let outbox = Outbox::builder(store.clone()).listen_all(listener).start().await?;
        write(events, async |number| {
            let mut tx = outbox.begin().await?;
            S::order(&mut tx).await?;
            tx.write(event(number, &payload(200))).await?;
            Ok(tx.commit().await?)
        })
        .await?;
        outbox.shutdown().await;
        check_done(store, events).await
    })
    .await?;
    report(bench, subject, "hot", "written and delivered hot", "written by hand and not delivered", &hot, &written);

    let events = bench.sizes.events;
    let filling = Filling { events, ..Filling::default() };
    let by_hand = cost_filled(subject, filling, async |store| S::drain_by_hand(store, false).await).await?;
    let cold = cost_filled(subject, filling, async |store| {
        drain_filled(subject, store, filling, Relays::default()).await.map(drop)
    })
    .await?;
    report(bench, subject, "cold", "claimed, delivered and settled", "claimed and completed by hand", &cold, &by_hand);
    Ok(())
}

fn report<S: Subject>(
    bench: &mut Bench,
    subject: &S,
    path: &str,
    what: &str,
    against: &str,
    ours: &Costs,
    by_hand: &Costs,
) {
    for (quantity, ours) in ours {
        let figures = [*ours].into_iter().collect();
        let (workload, unit) = (format!("X {path}, {quantity}"), format!("{quantity} per event"));
        let about = About { workload: &workload, database: subject.name(), what, against, unit: &unit };
        if path == "hot" && *quantity == STATEMENTS {
            bench.add(about.at_most(&figures, MOST_STATEMENTS));
        } else if let Some(by_hand) = by_hand.get(quantity) {
            bench.add(about.compare_costs(&figures, &[*by_hand].into_iter().collect(), None));
        }
    }
}

const STATEMENTS: &str = "statements";

/// How long a session takes to end after its connection was closed.
const SESSIONS_END: Duration = Duration::from_millis(500);

async fn cost_filled<S: Subject>(
    subject: &S,
    filling: Filling,
    work: impl AsyncFn(&S::Store) -> anyhow::Result<()>,
) -> anyhow::Result<Costs> {
    let store = subject.fresh().await?;
    fill::<S>(&store, filling).await?;
    // What filled it is none of the cost, and has not been told yet.
    let worker = subject.another(&store).await?;
    S::leave(store).await;
    tokio::time::sleep(SESSIONS_END).await;
    let store = worker;
    counted(subject, store, filling.events, work).await
}

async fn cost<S: Subject>(
    subject: &S,
    events: usize,
    work: impl AsyncFn(&S::Store) -> anyhow::Result<()>,
) -> anyhow::Result<Costs> {
    cost_filled(subject, Filling::default(), async |store| work(store).await).await.map(|mut costs| {
        // Counted for no events, so for the one that stands for them.
        costs.values_mut().for_each(|cost| *cost /= events as f64);
        costs
    })
}

async fn counted<S: Subject>(
    subject: &S,
    store: S::Store,
    events: usize,
    work: impl AsyncFn(&S::Store) -> anyhow::Result<()>,
) -> anyhow::Result<Costs> {
    let (before, cpu_before, statements) = (subject.usage().await?, own_cpu_seconds()?, Statements::count());
    #[cfg(feature = "allocations")]
    let allocated_before = stats_alloc::INSTRUMENTED_SYSTEM.stats();
    work(&store).await?;
    let mut costs = Costs::new();
    #[cfg(feature = "allocations")]
    {
        let allocated = stats_alloc::INSTRUMENTED_SYSTEM.stats() - allocated_before;
        costs.insert("allocations of the client", allocated.allocations as f64);
    }
    costs.insert("µs of the client's processor", (own_cpu_seconds()? - cpu_before) * 1e6);
    if let Some(statements) = &statements {
        costs.insert(STATEMENTS, statements.so_far() as f64);
    }
    drop(statements);
    // Sessions tell the server of what they did when they end.
    S::close(store).await;
    tokio::time::sleep(SESSIONS_END).await;
    let after = subject.usage().await?;
    let mut counted = |quantity, before: Option<u64>, after: Option<u64>| {
        if let (Some(before), Some(after)) = (before, after) {
            costs.insert(quantity, after.saturating_sub(before) as f64);
        }
    };
    counted("commits", before.commits, after.commits);
    counted("bytes of the log", before.wal_bytes, after.wal_bytes);
    counted("dead versions of rows", before.dead_rows, after.dead_rows);
    if let (Some(before), Some(after)) = (before.cpu_seconds, after.cpu_seconds) {
        costs.insert("µs of the server's processor", (after - before) * 1e6);
    }
    costs.values_mut().for_each(|cost| *cost /= events.max(1) as f64);
    Ok(costs)
}

/// So many transactions, by all writers together.
async fn write(transactions: usize, write: impl AsyncFn(usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let writer = async || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= transactions {
                return anyhow::Ok(());
            }
            write(number).await?;
        }
    };
    futures_util::future::try_join_all((0..WRITERS).map(|_| writer())).await.map(drop)
}
