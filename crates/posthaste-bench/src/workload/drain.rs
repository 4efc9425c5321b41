//! D: rows that wait, until the last is DONE.

use std::sync::Arc;
use std::time::Instant;

use anyhow::ensure;
use posthaste_core::store::{AdminStore, Store};
use posthaste_core::{Options, Ordered, Outbox};

use super::Counter;
use crate::bench::Bench;
use crate::measure::About;
use crate::peer::Peers;
use crate::rounds::of;
use crate::subject::{self, Filling, Subject, fill};

/// D, D+1M and Ddel.
pub(crate) async fn run<S: Subject>(bench: &mut Bench, subject: &S, peers: &Peers<'_>) -> anyhow::Result<()> {
    let (events, beside) = (bench.sizes.events, bench.sizes.done_beside);
    let filling = Filling { events, ..Filling::default() };
    let contestants =
        peers.beside(&["by hand", "outbox", "done rows beside", "by hand deleting", "outbox deleting"], "D");
    let title = format!("D {}", subject.name());
    let figures = bench
        .rounds
        .run(&title, "events/s", &contestants, async |contestant| match contestant {
            "by hand" => by_hand(subject, filling, Relays::default()).await,
            "by hand deleting" => by_hand(subject, filling, Relays { deleting: true, ..Relays::default() }).await,
            "outbox" => ours(subject, filling, Relays::default()).await,
            "done rows beside" => ours(subject, Filling { done: beside, ..filling }, Relays::default()).await,
            "outbox deleting" => ours(subject, filling, Relays { deleting: true, ..Relays::default() }).await,
            peer => peers.measure(peer, &["--workload", "D", "--events", &events.to_string()]).await,
        })
        .await?;
    let goals = bench.goals(subject.name());
    let about = About {
        workload: "D",
        database: subject.name(),
        what: "drain of rows that wait",
        against: "claim and complete 500 at a time by hand",
        unit: "events/s",
    };
    let ours = of(&figures, "outbox");
    bench.add_with_peers(about.compare(&ours, &of(&figures, "by hand"), goals.drain), &figures);
    let words = format!("drain with {beside} done rows beside");
    let about = About { workload: "D+1M", what: &words, against: "the same without them", ..about };
    bench.add(about.compare(&of(&figures, "done rows beside"), &ours, goals.drain_beside_done));
    let about = About {
        workload: "Ddel",
        what: "drain of rows that wait, deleting them",
        against: "claim and delete 500 at a time by hand",
        ..about
    };
    bench.add(about.compare(&of(&figures, "outbox deleting"), &of(&figures, "by hand deleting"), goals.drain));
    Ok(())
}

/// Who drains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relays {
    /// How many, each with a pool of its own.
    pub(crate) count: usize,
    /// How many loops by hand, each with a connection, there are for one of them.
    pub(crate) loops_for_each: usize,
    pub(crate) workers: Option<usize>,
    pub(crate) deleting: bool,
    /// Whether the events of one aggregate are delivered in their order.
    pub(crate) ordered: bool,
}

impl Default for Relays {
    fn default() -> Self {
        Self { count: 1, loops_for_each: 1, workers: None, deleting: false, ordered: false }
    }
}

/// Events per second of the hand-written loop.
async fn by_hand<S: Subject>(subject: &S, filling: Filling, relays: Relays) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    fill::<S>(&store, filling).await?;
    let rate = drain_filled_by_hand::<S>(&store, filling, relays).await?;
    S::close(store).await;
    Ok(rate)
}

pub(crate) async fn drain_filled_by_hand<S: Subject>(
    store: &S::Store,
    filling: Filling,
    relays: Relays,
) -> anyhow::Result<f64> {
    let started_at = Instant::now();
    let loops = (0..relays.count * relays.loops_for_each).map(|_| S::drain_by_hand(store, relays.deleting));
    futures_util::future::try_join_all(loops).await?;
    let took = started_at.elapsed();
    check_drained(store, filling, relays.deleting).await?;
    Ok(filling.events as f64 / took.as_secs_f64())
}

/// Events per second of the outbox, with default settings but for what is given.
pub(crate) async fn ours<S: Subject>(subject: &S, filling: Filling, relays: Relays) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    fill::<S>(&store, filling).await?;
    let rate = drain_filled(subject, &store, filling, relays).await?;
    S::close(store).await;
    Ok(rate)
}

pub(crate) async fn drain_filled<S: Subject>(
    subject: &S,
    store: &S::Store,
    filling: Filling,
    relays: Relays,
) -> anyhow::Result<f64> {
    drain_filled_with(subject, store, filling, relays, Options::default()).await
}

/// The same with options.
pub(crate) async fn drain_filled_with<S: Subject>(
    subject: &S,
    store: &S::Store,
    filling: Filling,
    relays: Relays,
    mut options: Options,
) -> anyhow::Result<f64> {
    if let Some(workers) = relays.workers {
        options.workers = workers;
    }
    let mut stores = vec![store.clone()];
    for _ in 1..relays.count {
        stores.push(subject.another(store).await?);
    }
    let (counter, listener) = Counter::listener(filling.events);
    let listener = Arc::new(listener);
    let started_at = Instant::now();
    let mut outboxes = Vec::new();
    for store in stores {
        let store = if relays.deleting { S::deleting(store) } else { store };
        let listener = Arc::clone(&listener);
        let mut outbox = Outbox::builder(store).options(options.clone()).listen_all(move |event| listener(event));
        if relays.ordered {
            outbox = outbox.ordered(Ordered::all());
        }
        outboxes.push(outbox.start().await?);
    }
    counter.wait().await?;
    // The shutdown settles what the listener has seen: only then is the last row DONE.
    let closed = futures_util::future::join_all(outboxes.iter().map(Outbox::shutdown)).await;
    let took = started_at.elapsed();
    for closed in closed {
        ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    }
    check_drained(store, filling, relays.deleting).await?;
    Ok(filling.events as f64 / took.as_secs_f64())
}

async fn check_drained<S: Store>(store: &S, filling: Filling, deleting: bool) -> anyhow::Result<()> {
    if deleting {
        let left = AdminStore::counts(store).await?.total();
        ensure!(left == filling.done as u64, "{left} rows are left of {}", filling.done);
        return Ok(());
    }
    subject::check_drained(store, filling).await
}
