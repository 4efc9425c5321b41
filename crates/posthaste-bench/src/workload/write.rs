//! W, W100 and H: transactions with a business row and events, by eight writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use posthaste_core::{Options, Outbox};
use tokio::task::JoinSet;

use super::Counter;
use crate::bench::{Bench, goal};
use crate::measure::About;
use crate::peer::{self, Peers};
use crate::rounds::of;
use crate::subject::{Subject, check_done, event, payload};

/// Transactions at a time.
pub(crate) const WRITERS: usize = 8;

/// Events in a transaction of W100.
const BULK: usize = 100;

/// How long everybody writes before it counts: connections are opened and statements prepared. Peers do the same.
const LEAD_IN: Duration = Duration::from_millis(200);

/// One event per transaction: without it, by hand, by the outbox, and delivered on the hot path.
pub(crate) async fn single<S: Subject>(bench: &mut Bench, subject: &S, peers: &Peers<'_>) -> anyhow::Result<()> {
    let mut contestants = peers.beside(&["bare", "by hand", "outbox", "hot"], "W");
    // It is none of the peers, but may fail as they may.
    let program = subject.own_program().map(|program| format!("{}{program}", peer::PREFIX));
    contestants.extend(program.clone());
    let writing = bench.sizes.writing;
    let title = format!("W {}", subject.name());
    let figures = bench
        .rounds
        .divided(bench.sizes.turns)
        .run(&title, "tx/s", &contestants, async |contestant| match contestant {
            "bare" => bare(subject, writing).await,
            "by hand" => by_hand(subject, writing, 1).await,
            "outbox" => by_outbox(subject, writing, 1).await,
            "hot" => hot(subject, writing).await,
            own if program.as_deref() == Some(own) => by_own_program(subject, writing).await,
            peer => peers.measure(peer, &["--workload", "W", "--seconds", &writing.as_secs().to_string()]).await,
        })
        .await?;
    let [bare, by_hand, ours, hot] = ["bare", "by hand", "outbox", "hot"].map(|name| of(&figures, name));
    let about = About {
        workload: "W",
        database: subject.name(),
        what: "transactions with one event",
        against: "the same by hand",
        unit: "tx/s",
    };
    bench.add_with_peers(about.compare(&ours, &by_hand, Some(goal::WRITE)), &figures);
    let about = About {
        workload: "W/bare",
        what: "transactions with one event",
        against: "the same transactions without it",
        ..about
    };
    bench.add_with_peers(about.compare(&ours, &bare, None), &figures);
    if let Some(program) = program.filter(|program| figures.contains_key(program)) {
        let name = program.trim_start_matches(peer::PREFIX);
        let (workload, against) = (format!("W/{name}"), format!("the same transactions by {name}"));
        let about = About { workload: &workload, against: &against, ..about };
        bench.add(about.compare(&ours, &of(&figures, &program), None));
    }
    let about = About {
        workload: "H",
        what: "transactions with one event, delivered on the hot path until the last is DONE",
        against: "the same without any delivery",
        ..about
    };
    bench.add(about.compare(&hot, &ours, Some(goal::HOT)));
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
    let measured = about.compare(&of(&figures, "outbox"), &of(&figures, "by hand"), Some(goal::WRITE));
    bench.add_with_peers(measured, &figures);
    Ok(())
}

async fn bare<S: Subject>(subject: &S, writing: Duration) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    let writers = S::writers(&store, WRITERS).await?.into_iter().map(Bare::<S>).collect();
    let rate = writes(writing, writers).await?.rate();
    S::close(store).await;
    Ok(rate)
}

async fn by_hand<S: Subject>(subject: &S, writing: Duration, events: usize) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    let rate = writes(writing, ByHand::<S>::all(&store, events).await?).await?.rate() * events as f64;
    S::close(store).await;
    Ok(rate)
}

async fn by_outbox<S: Subject>(subject: &S, writing: Duration, events: usize) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    let outbox = Outbox::writer_only(store.clone()).start().await?;
    let rate = writes(writing, Ours::<S>::all(&outbox, events)).await?.rate() * events as f64;
    outbox.shutdown().await;
    S::close(store).await;
    Ok(rate)
}

async fn by_own_program<S: Subject>(subject: &S, writing: Duration) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    let rate = subject.write_by_own_program(WRITERS, writing).await;
    S::close(store).await;
    rate
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
    let written = writes(writing, Ours::<S>::all(&outbox, 1)).await?;
    let closed = outbox.shutdown().await;
    let took = written.since.elapsed();
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    check_done(&store, written.all).await?;
    S::close(store).await;
    Ok(written.counted as f64 / took.as_secs_f64())
}

/// One of those who write at the same time.
pub(crate) trait Writer: Send + 'static {
    /// A transaction, which has a number.
    fn write(&mut self, number: usize) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Writes a business row.
struct Bare<S: Subject>(S::Hand);

impl<S: Subject> Writer for Bare<S> {
    async fn write(&mut self, _: usize) -> anyhow::Result<()> {
        S::write_bare(&mut self.0).await
    }
}

/// Writes a business row and events on a connection of its own, which it keeps.
pub(crate) struct ByHand<S: Subject> {
    hand: S::Hand,
    events: usize,
    payload: String,
}

impl<S: Subject> ByHand<S> {
    pub(crate) async fn all(store: &S::Store, events: usize) -> anyhow::Result<Vec<Self>> {
        let hands = S::writers(store, WRITERS).await?;
        Ok(hands.into_iter().map(|hand| Self { hand, events, payload: payload(200) }).collect())
    }
}

impl<S: Subject> Writer for ByHand<S> {
    async fn write(&mut self, number: usize) -> anyhow::Result<()> {
        let events: Vec<_> = (0..self.events).map(|_| event(number, &self.payload)).collect();
        S::write_by_hand(&mut self.hand, &events).await
    }
}

/// Writes the same with the outbox.
pub(crate) struct Ours<S: Subject> {
    outbox: Outbox<S::Store>,
    events: usize,
    payload: String,
}

impl<S: Subject> Ours<S> {
    pub(crate) fn all(outbox: &Outbox<S::Store>, events: usize) -> Vec<Self> {
        (0..WRITERS).map(|_| Self { outbox: outbox.clone(), events, payload: payload(200) }).collect()
    }
}

impl<S: Subject> Writer for Ours<S> {
    async fn write(&mut self, number: usize) -> anyhow::Result<()> {
        // Made before the transaction, as by hand.
        let mut events: Vec<_> = (0..self.events).map(|_| event(number, &self.payload)).collect();
        let mut tx = self.outbox.begin().await?;
        S::order(&mut tx).await?;
        match events.len() {
            1 => _ = tx.write(events.remove(0)).await?,
            _ => _ = tx.write_all(events).await?,
        }
        Ok(tx.commit().await?)
    }
}

/// How many transactions all writers have made.
struct Written {
    /// With those of the lead-in.
    all: usize,
    /// Those that ended after it.
    counted: usize,
    /// When it was over.
    since: Instant,
    /// How long they wrote after it.
    took: Duration,
}

impl Written {
    fn rate(&self) -> f64 {
        self.counted as f64 / self.took.as_secs_f64()
    }
}

/// Lets all of them write for so long. Each is a task, as what answers a request is in a service.
async fn writes<W: Writer>(writing: Duration, writers: Vec<W>) -> anyhow::Result<Written> {
    let (all, counted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let since = Instant::now() + LEAD_IN;
    let mut tasks = JoinSet::new();
    for mut writer in writers {
        let (all, counted) = (Arc::clone(&all), Arc::clone(&counted));
        tasks.spawn(async move {
            while since.elapsed() < writing {
                writer.write(all.fetch_add(1, Ordering::Relaxed)).await?;
                counted.fetch_add(usize::from(Instant::now() >= since), Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let [all, counted] = [all, counted].map(|count| count.load(Ordering::Relaxed));
    Ok(Written { all, counted, since, took: since.elapsed() })
}

/// So many transactions, by all writers together.
pub(crate) async fn write_all<W: Writer>(transactions: usize, writers: Vec<W>) -> anyhow::Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for mut writer in writers {
        let next = Arc::clone(&next);
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= transactions {
                    return anyhow::Ok(());
                }
                writer.write(number).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
