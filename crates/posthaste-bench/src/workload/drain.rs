//! D: rows that wait, until the last is DONE.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use posthaste_core::store::{AdminStore, Store};
use posthaste_core::{Options, Ordered, Outbox};
use tokio::task::JoinSet;

use super::Counter;
use crate::bench::{Bench, goal};
use crate::measure::About;
use crate::peer::Peers;
use crate::rounds::of;
use crate::subject::{self, Filling, Pass, Subject, fill};

/// D, D+1M and Ddel.
pub(crate) async fn run<S: Subject>(bench: &mut Bench, subject: &S, peers: &Peers<'_>) -> anyhow::Result<()> {
    let (events, beside) = (bench.sizes.events, bench.sizes.done_beside);
    let filling = Filling { events, ..Filling::default() };
    let contestants = [
        "by hand",
        "faster by hand",
        "outbox",
        "done rows beside",
        "by hand deleting",
        "faster by hand deleting",
        "outbox deleting",
    ];
    let contestants = peers.beside(&contestants, "D");
    let title = format!("D {}", subject.name());
    let (keeping, deleting) = (Relays::default(), Relays { deleting: true, ..Relays::default() });
    let figures = bench
        .rounds
        .run(&title, "events/s", &contestants, async |contestant| match contestant {
            "by hand" => by_hand(subject, filling, keeping).await,
            "by hand deleting" => by_hand(subject, filling, deleting).await,
            "faster by hand" => by_hand(subject, filling, keeping.by_hand_faster::<S>()).await,
            "faster by hand deleting" => by_hand(subject, filling, deleting.by_hand_faster::<S>()).await,
            "outbox" => ours(subject, filling, keeping).await,
            "done rows beside" => ours(subject, Filling { done: beside, ..filling }, keeping).await,
            "outbox deleting" => ours(subject, filling, deleting).await,
            peer => peers.measure(peer, &["--workload", "D", "--events", &events.to_string()]).await,
        })
        .await?;
    let about = About {
        workload: "D",
        database: subject.name(),
        what: "drain of rows that wait",
        against: "claim and complete 500 at a time by hand, on one connection",
        unit: "events/s",
    };
    let workload = format!("D/{}", S::FASTER.name);
    let faster = About { workload: &workload, against: S::FASTER.words, ..about };
    let ours = of(&figures, "outbox");
    bench.add_with_peers(about.compare(&ours, &of(&figures, "by hand"), Some(goal::DRAIN)), &figures);
    bench.add(faster.compare(&ours, &of(&figures, "faster by hand"), None));
    let words = format!("drain with {beside} done rows beside");
    let about = About { workload: "D+1M", what: &words, against: "the same without them", ..about };
    bench.add(about.compare(&of(&figures, "done rows beside"), &ours, Some(goal::DRAIN_BESIDE_DONE)));
    let about = About {
        workload: "Ddel",
        what: "drain of rows that wait, deleting them",
        against: "claim and delete 500 at a time by hand, on one connection",
        ..about
    };
    let ours = of(&figures, "outbox deleting");
    bench.add(about.compare(&ours, &of(&figures, "by hand deleting"), Some(goal::DRAIN)));
    let workload = format!("Ddel/{}", S::FASTER.name);
    let faster = About { workload: &workload, what: about.what, ..faster };
    bench.add(faster.compare(&ours, &of(&figures, "faster by hand deleting"), None));
    Ok(())
}

/// Who drains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relays {
    /// How many, each with a pool of its own.
    pub(crate) count: usize,
    /// How many loops by hand, each with a connection, there are for one of them.
    pub(crate) loops_for_each: usize,
    /// Whether these loops do it in the way that is faster by hand.
    pub(crate) faster: bool,
    pub(crate) workers: Option<usize>,
    pub(crate) deleting: bool,
    /// Whether the events of one aggregate are delivered in their order.
    pub(crate) ordered: bool,
}

impl Default for Relays {
    fn default() -> Self {
        Self { count: 1, loops_for_each: 1, faster: false, workers: None, deleting: false, ordered: false }
    }
}

impl Relays {
    /// With what is faster by hand than one careful loop for each.
    pub(crate) fn by_hand_faster<S: Subject>(self) -> Self {
        Self { loops_for_each: S::FASTER.loops, faster: true, ..self }
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
    let mut hands = Vec::new();
    for _ in 0..relays.count * relays.loops_for_each {
        hands.push(S::drainer(store).await?);
    }
    let started_at = Instant::now();
    pass_all::<S>(hands, relays).await?;
    let took = started_at.elapsed();
    check_drained(store, filling, relays.deleting).await?;
    Ok(filling.events as f64 / took.as_secs_f64())
}

/// Claims and completes until nothing is left: a loop on each connection, and each a task, as those of the outbox are.
pub(crate) async fn pass_all<S: Subject>(hands: Vec<S::Hand>, relays: Relays) -> anyhow::Result<()> {
    let pass = Pass { deleting: relays.deleting, faster: relays.faster, mark: None };
    let mut loops = JoinSet::new();
    for mut hand in hands {
        loops.spawn(async move {
            while !S::pass_by_hand(&mut hand, pass, &|_| ()).await?.seqs.is_empty() {}
            anyhow::Ok(())
        });
    }
    while let Some(ended) = loops.join_next().await {
        ended??;
    }
    Ok(())
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
    options: Options,
) -> anyhow::Result<f64> {
    let took = drain(subject, store, filling.events, relays, options).await?;
    check_drained(store, filling, relays.deleting).await?;
    Ok(filling.events as f64 / took.as_secs_f64())
}

/// How long the outbox takes until so many are DONE. Nobody has looked yet whether they are.
pub(crate) async fn drain<S: Subject>(
    subject: &S,
    store: &S::Store,
    events: usize,
    relays: Relays,
    mut options: Options,
) -> anyhow::Result<Duration> {
    if let Some(workers) = relays.workers {
        options.workers = workers;
    }
    let mut stores = vec![store.clone()];
    for _ in 1..relays.count {
        stores.push(subject.another(store).await?);
    }
    let (counter, listener) = Counter::listener(events);
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
    Ok(took)
}

pub(crate) async fn check_drained<S: Store>(store: &S, filling: Filling, deleting: bool) -> anyhow::Result<()> {
    if deleting {
        let left = AdminStore::counts(store).await?.total();
        ensure!(left == filling.done as u64, "{left} rows are left of {}", filling.done);
        return Ok(());
    }
    subject::check_drained(store, filling).await
}
