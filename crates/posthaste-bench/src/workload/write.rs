//! W, W100 and H: transactions with a business row and events, by eight writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use posthaste_core::{Options, Outbox};
use tokio::task::JoinSet;

use super::Counter;
use crate::bench::Bench;
use crate::measure::About;
use crate::peer::Peers;
use crate::rounds::of;
use crate::subject::{Subject, check_done, event, payload};

/// Transactions at a time.
const WRITERS: usize = 8;

/// Events in a transaction of W100.
const BULK: usize = 100;

/// One event per transaction: without it, by hand, by the outbox, and delivered on the hot path.
pub(crate) async fn single<S: Subject>(bench: &mut Bench, subject: &S, peers: &Peers<'_>) -> anyhow::Result<()> {
    let contestants = peers.beside(&["bare", "by hand", "outbox", "hot"], "W");
    let writing = bench.sizes.writing;
    let title = format!("W {}", subject.name());
    let figures = bench
        .rounds
        .divided(bench.sizes.turns)
        .run(&title, "tx/s", &contestants, async |contestant| match contestant {
            "bare" => {
                let store = subject.fresh().await?;
                let writer = store.clone();
                let bare = move |_| {
                    let store = writer.clone();
                    async move { S::write_bare(&store).await }
                };
                let rate = writes(writing, bare).await?;
                S::close(store).await;
                Ok(rate)
            }
            "by hand" => by_hand(subject, writing, 1).await,
            "outbox" => by_outbox(subject, writing, 1).await,
            "hot" => hot(subject, writing).await,
            peer => peers.measure(peer, &["--workload", "W", "--seconds", &writing.as_secs().to_string()]).await,
        })
        .await?;
    let [bare, by_hand, ours, hot] = ["bare", "by hand", "outbox", "hot"].map(|name| of(&figures, name));
    let goals = bench.goals(subject.name());
    let about = About {
        workload: "W",
        database: subject.name(),
        what: "transactions with one event",
        against: "the same by hand",
        unit: "tx/s",
    };
    bench.add_with_peers(about.compare(&ours, &by_hand, goals.write), &figures);
    let about = About {
        workload: "W/bare",
        what: "transactions with one event",
        against: "the same transactions without it",
        ..about
    };
    bench.add_with_peers(about.compare(&ours, &bare, None), &figures);
    let about = About {
        workload: "H",
        what: "transactions with one event, delivered on the hot path until the last is DONE",
        against: "the same without any delivery",
        ..about
    };
    bench.add(about.compare(&hot, &ours, goals.hot));
    Ok(())
}

/// A hundred events per transaction.
pub(crate) async fn bulk<S: Subject>(bench: &mut Bench, subject: &S, peers: &Peers<'_>) -> anyhow::Result<()> {
    let contestants = peers.beside(&["by hand", "outbox"], "W100");
    let writing = bench.sizes.writing;
    let title = format!("W100 {}", subject.name());
    let figures = bench
        .rounds
        .divided(bench.sizes.turns)
        .run(&title, "events/s", &contestants, async |contestant| match contestant {
            "by hand" => by_hand(subject, writing, BULK).await,
            "outbox" => by_outbox(subject, writing, BULK).await,
            peer => peers.measure(peer, &["--workload", "W100", "--seconds", &writing.as_secs().to_string()]).await,
        })
        .await?;
    let about = About {
        workload: "W100",
        database: subject.name(),
        what: "events, a hundred per transaction",
        against: "the same by hand",
        unit: "events/s",
    };
    let goal = bench.goals(subject.name()).write;
    bench.add_with_peers(about.compare(&of(&figures, "outbox"), &of(&figures, "by hand"), goal), &figures);
    Ok(())
}

async fn by_hand<S: Subject>(subject: &S, writing: Duration, events: usize) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    let (writer, payload) = (store.clone(), payload(200));
    let write = move |number| {
        let store = writer.clone();
        let events: Vec<_> = (0..events).map(|_| event(number, &payload)).collect();
        async move { S::write_by_hand(&store, &events).await }
    };
    let rate = writes(writing, write).await? * events as f64;
    S::close(store).await;
    Ok(rate)
}

async fn by_outbox<S: Subject>(subject: &S, writing: Duration, events: usize) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    let outbox = Outbox::writer_only(store.clone()).start().await?;
    let writer = outbox.clone();
    let write = move |number| write_ours::<S>(writer.clone(), number, events);
    let rate = writes(writing, write).await? * events as f64;
    outbox.shutdown().await;
    S::close(store).await;
    Ok(rate)
}

/// Until the last row is DONE.
async fn hot<S: Subject>(subject: &S, writing: Duration) -> anyhow::Result<f64> {
    hot_with(subject, writing, Options::default()).await
}

/// The same with options.
pub(crate) async fn hot_with<S: Subject>(subject: &S, writing: Duration, options: Options) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    let (_, listener) = Counter::listener(usize::MAX);
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await?;
    let (written, started_at) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let (writer, counter) = (outbox.clone(), Arc::clone(&written));
    let write = move |number| {
        let (outbox, counter) = (writer.clone(), Arc::clone(&counter));
        async move {
            write_ours::<S>(outbox, number, 1).await?;
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    };
    writes(writing, write).await?;
    let closed = outbox.shutdown().await;
    let (written, took) = (written.load(Ordering::Relaxed), started_at.elapsed());
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    check_done(&store, written).await?;
    S::close(store).await;
    Ok(written as f64 / took.as_secs_f64())
}

async fn write_ours<S: Subject>(outbox: Outbox<S::Store>, number: usize, events: usize) -> anyhow::Result<()> {
    // Made before the transaction, as by hand.
    let payload = payload(200);
    let mut events: Vec<_> = (0..events).map(|_| event(number, &payload)).collect();
    let mut tx = outbox.begin().await?;
    S::order(&mut tx).await?;
    match events.len() {
        1 => _ = tx.write(events.remove(0)).await?,
        _ => _ = tx.write_all(events).await?,
    }
    Ok(tx.commit().await?)
}

/// Transactions per second of all writers. Each is a task, as what answers a request is in a service.
async fn writes<F>(writing: Duration, write: impl Fn(usize) -> F + Send + Sync + 'static) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let (written, write) = (Arc::new(AtomicUsize::new(0)), Arc::new(write));
    let started_at = Instant::now();
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (written, write) = (Arc::clone(&written), Arc::clone(&write));
        writers.spawn(async move {
            while started_at.elapsed() < writing {
                write(written.fetch_add(1, Ordering::Relaxed)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended??;
    }
    Ok(written.load(Ordering::Relaxed) as f64 / started_at.elapsed().as_secs_f64())
}
