//! L: from the commit to the listener.

use std::ffi::OsString;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hdrhistogram::Histogram;
use posthaste_core::store::Store;
use posthaste_core::{Delivery, MemoryStore, Outbox};
use posthaste_sql::PgStore;
use sqlx::postgres::{PgConnection, PgListener};
use sqlx::{Connection, Row};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::bench::Bench;
use crate::measure::{About, Figures};
use crate::peer::Peers;
use crate::subject::postgres::{CLAIM_WITHOUT_THE_DISK, COMPLETE, Postgres};
use crate::subject::{Subject, event, payload};

/// How long most deliveries may take, and nearly all, in microseconds.
const SAME_PROCESS: (f64, f64) = (50.0, 1_000.0);
const OTHER_PROCESS: (f64, f64) = (800.0, 2_500.0);

/// Events per second.
const RATES: [u64; 2] = [100, 1000];

/// How long deliveries took, of several rounds: the p50 and the p99 of each, in microseconds.
#[derive(Default)]
pub(super) struct Latencies {
    p50: Figures,
    p99: Figures,
}

impl Latencies {
    /// Takes those of a round, which only counts after the warm-up.
    pub(super) fn push(&mut self, title: &str, nanos: &[u64], counts: bool) -> anyhow::Result<()> {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
        nanos.iter().for_each(|nanos| histogram.saturating_record(*nanos));
        let [p50, p99, most] = [0.5, 0.99, 1.0].map(|share| histogram.value_at_quantile(share) as f64 / 1000.0);
        say!("{title}: p50 {p50:.0}, p99 {p99:.0}, max {most:.0} µs");
        if counts {
            self.p50.push(p50);
            self.p99.push(p99);
        }
        Ok(())
    }

    pub(super) fn report(&self, bench: &mut Bench, workload: &str, database: &str, what: &str, bounds: (f64, f64)) {
        let p50 = format!("{workload} p50");
        let about = About { workload: &p50, database, what, against: "a bound", unit: "µs" };
        bench.add(about.at_most(&self.p50, bounds.0));
        bench.add(About { workload: &format!("{workload} p99"), ..about }.at_most(&self.p99, bounds.1));
    }
}

/// In one process, on the memory store: what the outbox itself takes.
pub(crate) async fn in_memory(bench: &mut Bench) -> anyhow::Result<()> {
    for rate in RATES {
        let mut latencies = Latencies::default();
        for (round, counts) in bench.rounds.all() {
            let store = MemoryStore::new();
            let nanos = same_process(&store, |_| std::future::ready(Ok(())).boxed(), rate, bench.sizes.latency).await?;
            latencies.push(&format!("L memory, {rate}/s, {round}"), &nanos, counts)?;
        }
        let what = format!("commit to listener at {rate} events/s, same process");
        latencies.report(bench, &format!("L{rate}"), "memory", &what, SAME_PROCESS);
    }
    Ok(())
}

/// In one process, on a database.
pub(crate) async fn one_process<S: Subject>(bench: &mut Bench, subject: &S) -> anyhow::Result<()> {
    for rate in RATES {
        let mut latencies = Latencies::default();
        for (round, counts) in bench.rounds.all() {
            let store = subject.fresh().await?;
            let nanos = same_process(&store, |tx| S::order(tx).boxed(), rate, bench.sizes.latency).await?;
            latencies.push(&format!("L {}, {rate}/s, {round}", subject.name()), &nanos, counts)?;
            S::close(store).await;
        }
        let what = format!("commit to listener at {rate} events/s, same process");
        latencies.report(bench, &format!("L{rate}"), subject.name(), &what, SAME_PROCESS);
    }
    Ok(())
}

/// Writes at a steady rate, and measures from the end of each commit to the start of its listener.
async fn same_process<S: Store>(
    store: &S,
    order: fn(&mut S::Connection) -> BoxFuture<'_, anyhow::Result<()>>,
    rate: u64,
    length: Duration,
) -> anyhow::Result<Vec<u64>> {
    let events = usize::try_from(rate * length.as_secs())?;
    let started_at = Instant::now();
    let committed: Arc<Vec<AtomicU64>> = Arc::new((0..events).map(|_| AtomicU64::new(0)).collect());
    let taken = Arc::new(Mutex::new(Vec::with_capacity(events)));
    let (all_done, mut done) = tokio::sync::watch::channel(0_usize);
    let outbox = Outbox::builder(store.clone())
        .listen_all({
            let (committed, taken) = (Arc::clone(&committed), Arc::clone(&taken));
            move |event: Delivery| {
                let now = nanos(started_at);
                let committed_at = committed[number(&event)].load(Ordering::Acquire);
                taken.lock().expect("no listener panics").push(now.saturating_sub(committed_at));
                all_done.send_modify(|count| *count += 1);
                std::future::ready(())
            }
        })
        .start()
        .await?;
    let mut ticks = steady(rate)?;
    let (writer, store) = (outbox.clone(), store.clone());
    // A task, as what answers a request is in a service.
    let write = tokio::spawn(async move {
        let payload = payload(200);
        for (index, committed) in committed.iter().enumerate() {
            ticks.tick().await;
            let receipt = writer.prepare([event(index, &payload)])?;
            let mut tx = store.begin().await?;
            order(&mut tx).await?;
            let rows: Vec<_> = receipt.rows().cloned().collect();
            store.insert(&mut tx, &rows).await?;
            store.commit(tx).await?;
            committed.store(nanos(started_at), Ordering::Release);
            receipt.dispatch();
        }
        anyhow::Ok(())
    });
    write.await??;
    tokio::time::timeout(Duration::from_secs(30), done.wait_for(|count| *count >= events))
        .await
        .context("not every event was delivered")??;
    outbox.shutdown().await;
    let taken = std::mem::take(&mut *taken.lock().expect("no listener panics"));
    Ok(taken)
}

/// From a commit in this process to a listener in another one, which hears of it by NOTIFY; and the same by hand.
pub(crate) async fn two_processes(
    bench: &mut Bench,
    subject: &Postgres,
    program: &[OsString],
    peers: &Peers<'_>,
) -> anyhow::Result<()> {
    for rate in RATES {
        let (mut ours, mut by_hand) = (Latencies::default(), Latencies::default());
        for (round, counts) in bench.rounds.all() {
            let mut order = [Who::Outbox, Who::ByHand];
            bench.rounds.random.shuffle(&mut order);
            for who in order {
                let nanos = between_processes(subject, program, who, rate, bench.sizes.latency).await?;
                let (latencies, name) =
                    if who == Who::Outbox { (&mut ours, "outbox") } else { (&mut by_hand, "by hand") };
                latencies.push(&format!("L between processes, {rate}/s, {round}, {name}"), &nanos, counts)?;
            }
        }
        let what = format!("commit to listener at {rate} events/s, other process");
        let workload = format!("L{rate} other");
        ours.report(bench, &workload, subject.name(), &what, OTHER_PROCESS);
        let about = About {
            workload: &format!("{workload} by hand"),
            database: subject.name(),
            what: &what,
            against: "NOTIFY, claim and complete by hand; the ratio is how much longer that takes",
            unit: "µs p50",
        };
        bench.add(about.compare_costs(&ours.p50, &by_hand.p50, None));
    }
    let seconds = bench.sizes.latency.as_secs().to_string();
    peers.latencies(bench, &["--workload", "L", "--rate", "100", "--seconds", &seconds]).await
}

/// Who writes, and who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Who {
    Outbox,
    ByHand,
}

async fn between_processes(
    subject: &Postgres,
    program: &[OsString],
    who: Who,
    rate: u64,
    length: Duration,
) -> anyhow::Result<Vec<u64>> {
    let store = subject.fresh().await?;
    let outbox = Outbox::writer_only(store.clone()).start().await?;
    let mut listener = listener(program, subject.url(), who)?;
    let output = listener.stdout.take().context("the listener has no output")?;
    let mut lines = BufReader::new(output).lines();
    let ready = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await.context("no listener")??;
    ensure!(ready.as_deref() == Some(READY), "the listener said {ready:?}");

    let events = usize::try_from(rate * length.as_secs())?;
    let heard = tokio::spawn(async move {
        let mut heard = vec![None; events];
        while heard.iter().any(Option::is_none) {
            let Some(line) = lines.next_line().await? else { break };
            let (number, at) = line.split_once(' ').with_context(|| format!("the listener said {line:?}"))?;
            heard[number.parse::<usize>()?] = Some(at.parse::<u64>()?);
        }
        anyhow::Ok(heard)
    });
    let mut ticks = steady(rate)?;
    let writer = outbox.clone();
    let mut hand = Postgres::drainer(&store).await?;
    let mut notifier = Notifier::new(Postgres::drainer(&store).await?);
    let write = tokio::spawn(async move {
        let payload = payload(200);
        let mut committed = Vec::with_capacity(events);
        for index in 0..events {
            ticks.tick().await;
            let event = event(index, &payload);
            match who {
                Who::Outbox => {
                    let mut tx = writer.begin().await?;
                    Postgres::order(&mut tx).await?;
                    tx.write(event).await?;
                    tx.commit().await?;
                    committed.push(unix_nanos());
                }
                Who::ByHand => {
                    Postgres::write_by_hand(&mut hand, &[event]).await?;
                    committed.push(unix_nanos());
                    notifier.notify();
                }
            }
        }
        notifier.end().await?;
        anyhow::Ok(committed)
    });
    let committed = write.await??;
    let heard =
        tokio::time::timeout(Duration::from_secs(30), heard).await.context("not every event was delivered")???;
    // Its input ends, and then it does.
    drop(listener.stdin.take());
    let _ = tokio::time::timeout(Duration::from_secs(10), listener.wait()).await;
    outbox.shutdown().await;
    Postgres::close(store).await;
    let taken = heard.into_iter().zip(committed).map(|(heard, committed)| {
        let heard = heard.context("the listener ended before every event was delivered")?;
        Ok(heard.saturating_sub(committed))
    });
    taken.collect()
}

const READY: &str = "ready";

fn listener(program: &[OsString], url: &str, who: Who) -> anyhow::Result<Child> {
    let (first, rest) = program.split_first().context("no program")?;
    let who = clap::ValueEnum::to_possible_value(&who).context("everybody has a name")?;
    let mut command = Command::new(first);
    command.args(rest).args(["listen", "--url", url, "--who", who.get_name()]);
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?)
}

/// Delivers until its input ends, and prints the number of each event and when its listener began.
pub(crate) async fn listen(url: &str, who: Who) -> anyhow::Result<()> {
    let ended = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    match who {
        Who::Outbox => {
            let outbox = Outbox::builder(PgStore::connect(url).await?)
                .listen_all(|event: Delivery| {
                    println!("{} {}", number(&event), unix_nanos());
                    std::future::ready(())
                })
                .start()
                .await?;
            // The first poll, and the connection that listens.
            tokio::time::sleep(Duration::from_millis(500)).await;
            println!("{READY}");
            ended.await??;
            outbox.shutdown().await;
        }
        Who::ByHand => {
            tokio::select! {
                result = listen_by_hand(url) => result?,
                ended = ended => drop(ended??),
            }
        }
    }
    Ok(())
}

/// Wakes listeners by hand, on a connection of its own: who writes does not wait for it, and what comes meanwhile goes together.
struct Notifier {
    more: Option<mpsc::UnboundedSender<()>>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Notifier {
    fn new(mut connection: PgConnection) -> Self {
        let (more, mut asked) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let notify = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('by_hand', '')";
            while asked.recv().await.is_some() {
                while asked.try_recv().is_ok() {}
                sqlx::query(notify).execute(&mut connection).await?;
            }
            Ok(())
        });
        Self { more: Some(more), task }
    }

    fn notify(&self) {
        if let Some(more) = &self.more {
            // It has only failed if the task has, whose error is told at the end.
            let _ = more.send(());
        }
    }

    async fn end(&mut self) -> anyhow::Result<()> {
        self.more = None;
        (&mut self.task).await?
    }
}

/// As the outbox does: claims do not wait for the disk, and what was claimed is completed on another connection, together with what is
/// claimed meanwhile.
async fn listen_by_hand(url: &str) -> anyhow::Result<()> {
    let mut listener = PgListener::connect(url).await?;
    listener.listen("by_hand").await?;
    let (claiming, completing) = (PgConnection::connect(url).await?, PgConnection::connect(url).await?);
    let (claimed, to_complete) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(complete_by_hand(completing, to_complete));
    tasks.spawn(claim_by_hand(listener, claiming, claimed));
    tasks.join_next().await.context("two were begun")??
}

async fn claim_by_hand(
    mut listener: PgListener,
    mut connection: PgConnection,
    claimed: mpsc::UnboundedSender<Vec<i64>>,
) -> anyhow::Result<()> {
    println!("{READY}");
    loop {
        let rows = sqlx::query(CLAIM_WITHOUT_THE_DISK).bind(100_i64).fetch_all(&mut connection).await?;
        if rows.is_empty() {
            listener.recv().await?;
            continue;
        }
        let mut seqs: Vec<i64> = Vec::with_capacity(rows.len());
        for row in &rows {
            println!("{} {}", row.get::<String, _>(4), unix_nanos());
            seqs.push(row.get(0));
        }
        claimed.send(seqs).context("nothing is completed any more")?;
    }
}

async fn complete_by_hand(
    mut connection: PgConnection,
    mut claimed: mpsc::UnboundedReceiver<Vec<i64>>,
) -> anyhow::Result<()> {
    while let Some(mut seqs) = claimed.recv().await {
        while let Ok(more) = claimed.try_recv() {
            seqs.extend(more);
        }
        sqlx::query(COMPLETE).bind(seqs).execute(&mut connection).await?;
    }
    Ok(())
}

pub(super) fn steady(rate: u64) -> anyhow::Result<tokio::time::Interval> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate)?);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    Ok(ticks)
}

fn number(event: &Delivery) -> usize {
    event.aggregate_id().and_then(|id| id.parse().ok()).unwrap_or_default()
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The clock that all processes of a machine share.
fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
