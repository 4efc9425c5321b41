//! R: `posthaste relay`, a process of its own, to a file and to standard output.

mod arrival;
mod process;

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use posthaste_core::{Delivery, Outbox};
use posthaste_publishers::Ndjson;

use super::Done;
use super::latency::Latencies;
use crate::bench::Bench;
use crate::measure::{About, ByContestant};
use crate::rounds::of;
use crate::subject::postgres::Postgres;
use crate::subject::{Filling, Subject, check_done, fill};

use process::{How, Relay, To};

/// The least of the library's speed that a relay must have.
const GOAL: f64 = 0.95;

/// How much memory a relay may have at most, in MiB.
const MOST_MEMORY: f64 = 64.0;

/// Rows per second that another process inserts.
const RATE: u64 = 100;

/// How long most lines may take, and nearly all, in microseconds.
const WOKEN: (f64, f64) = (1_000.0, 5_000.0);

/// How often a relay looks that nobody wakes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What is measured of a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// A backlog, beside the library's drain.
    Drain,
    /// The most memory while a large backlog is drained.
    Memory,
    /// From the commit of another process to the line.
    Latency,
}

/// All parts that are wanted of the relay that this program is.
pub(crate) async fn run(
    bench: &mut Bench,
    subject: &Postgres,
    program: &Path,
    wants: impl Fn(Part) -> bool,
) -> anyhow::Result<()> {
    if wants(Part::Drain) {
        drains(bench, subject, program).await?;
    }
    if wants(Part::Memory) {
        memory(bench, subject, program).await?;
    }
    if wants(Part::Latency) {
        latencies(bench, subject, program).await?;
    }
    Ok(())
}

async fn drains(bench: &mut Bench, subject: &Postgres, program: &Path) -> anyhow::Result<()> {
    let filling = Filling { events: bench.sizes.events, ..Filling::default() };
    let contestants = ["library", "library to a file", "file", "stdout", "once"];
    // With what a relay takes from its start until it delivers.
    let with_start = RefCell::new(ByContestant::new());
    let title = format!("R {}", subject.name());
    let mut figures = bench
        .rounds
        .run(&title, "events/s", &contestants.map(str::to_owned), async |contestant| {
            let (to, once) = match contestant {
                "library" => return library(subject, filling, false).await,
                "library to a file" => return library(subject, filling, true).await,
                "stdout" => (To::Stdout, false),
                other => (To::File, other == "once"),
            };
            let drained = drained(subject, program, filling, How { to, once, ..How::default() }).await?;
            let rate = |took: Duration| filling.events as f64 / took.as_secs_f64();
            let whole = rate(drained.started + drained.took);
            with_start.borrow_mut().entry(contestant.to_owned()).or_default().push(whole);
            Ok(rate(drained.took))
        })
        .await?;
    for (contestant, whole) in with_start.into_inner() {
        let counted = whole.rounds().iter().skip(bench.rounds.warm_up).copied().collect();
        figures.insert(format!("{contestant} with its start"), counted);
    }

    let (library, to_file) = (of(&figures, "library"), of(&figures, "library to a file"));
    let about = About {
        workload: "",
        database: subject.name(),
        what: "drain by a relay that is a process of its own",
        against: "the library's drain, with a listener that does nothing",
        unit: "events/s",
    };
    for contestant in ["file", "stdout", "once"] {
        let workload = format!("R {contestant}");
        bench.add(About { workload: &workload, ..about }.compare(&of(&figures, contestant), &library, Some(GOAL)));
    }
    let workload = "R file with its start";
    bench.add(About { workload, ..about }.compare(&of(&figures, "file with its start"), &library, None));
    let against = "the library's drain to such a file";
    let workload = "R file/library to a file";
    bench.add(About { workload, against, ..about }.compare(&of(&figures, "file"), &to_file, None));
    let (workload, what) = ("R library to a file", "drain by the library to a file");
    bench.add(About { workload, what, ..about }.compare(&to_file, &library, None));
    Ok(())
}

/// Events per second of the library, to nobody or through the publisher that the relay has. It is over when a relay says so: when
/// everything is DONE.
async fn library(subject: &Postgres, filling: Filling, to_file: bool) -> anyhow::Result<f64> {
    let (store, directory) = (subject.fresh().await?, tempfile::tempdir()?);
    fill::<Postgres>(&store, filling).await?;
    let (done, path) = (Done::default(), directory.path().join(process::LINES));
    let file = if to_file { Some(Ndjson::file(&path).await?) } else { None };
    let started_at = Instant::now();
    let outbox = Outbox::builder(store.clone()).metrics(done.clone());
    let outbox = match &file {
        Some(file) => outbox.listen("*", "*", file.lines()),
        None => outbox.listen_all(|_: Delivery| std::future::ready(())),
    };
    let outbox = outbox.start().await?;
    done.wait(filling.events as u64).await?;
    let closed = outbox.shutdown().await;
    let took = started_at.elapsed();
    Postgres::leave(store.clone()).await;
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    let looking = subject.another(&store).await?;
    check_done(&looking, filling.events).await?;
    Postgres::close(looking).await;
    ensure!(!to_file || arrival::count(&path)? >= filling.events, "lines are missing in the file");
    Ok(filling.events as f64 / took.as_secs_f64())
}

/// What a relay took.
struct Drained {
    /// From its start until it said that it delivers.
    started: Duration,
    /// From there until it said that it has ended: everything is DONE then.
    took: Duration,
    /// The most memory that it had, in MiB, unless it ended by itself.
    memory: Option<f64>,
}

async fn drained(subject: &Postgres, program: &Path, filling: Filling, how: How) -> anyhow::Result<Drained> {
    let store = subject.fresh().await?;
    fill::<Postgres>(&store, filling).await?;
    let (begun_at, mut memory) = (Instant::now(), None);
    let mut relay = Relay::start(program, subject.url(), how)?;
    let delivering_at = relay.delivering().await?;
    if !how.once {
        let all = arrival::wait_for_lines(relay.lines(), filling.events);
        relay.unless_it_ends(all).await?;
        memory = Some(relay.most_memory()?);
    }
    // What is in hand is settled before it ends.
    let ended_at = if how.once { relay.ended().await? } else { relay.end().await? };
    check_done(&store, filling.events).await?;
    Postgres::close(store).await;
    ensure!(arrival::count(&relay.lines())? >= filling.events, "lines are missing in the file");
    let (started, took) = (delivering_at.duration_since(begun_at), ended_at.duration_since(delivering_at));
    Ok(Drained { started, took, memory })
}

async fn memory(bench: &mut Bench, subject: &Postgres, program: &Path) -> anyhow::Result<()> {
    let filling = Filling { events: bench.sizes.relayed, ..Filling::default() };
    let drained = drained(subject, program, filling, How::default()).await?;
    let memory = drained.memory.context("the relay ended by itself")?;
    let rate = filling.events as f64 / drained.took.as_secs_f64();
    say!("R memory: {memory:.1} MiB at most, {} events at {rate:.0} events/s", filling.events);
    let what = format!("the most resident memory of a relay while it drains {} events", filling.events);
    let about = About { workload: "R memory", database: subject.name(), what: &what, against: "a bound", unit: "MiB" };
    bench.add(about.at_most(&[memory].into_iter().collect(), MOST_MEMORY));
    Ok(())
}

/// How a relay learns of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// A trigger tells it, with the commit.
    Trigger,
    /// The writer tells it after the commit.
    Notice,
    /// Nobody does.
    Not,
}

async fn latencies(bench: &mut Bench, subject: &Postgres, program: &Path) -> anyhow::Result<()> {
    let interval = POLL_INTERVAL.as_micros() as f64;
    let ways = [
        ("R latency file", "woken by a trigger, to a file", To::File, Told::Trigger, WOKEN),
        ("R latency stdout", "woken by a trigger, to a pipe", To::Pipe, Told::Trigger, WOKEN),
        ("R latency notice", "woken by a NOTIFY after the commit, to a file", To::File, Told::Notice, WOKEN),
        ("R latency polling", "polling every 500 ms, to a file", To::File, Told::Not, (interval, interval)),
    ];
    let mut seen = ways.map(|_| Latencies::default());
    for (round, counts) in bench.rounds.all() {
        let mut order: Vec<_> = ways.iter().zip(&mut seen).collect();
        bench.rounds.random.shuffle(&mut order);
        for ((workload, _, to, told, _), latencies) in order {
            let nanos = latency(subject, program, *to, *told, bench.sizes.latency).await?;
            latencies.push(&format!("{workload}, {round}"), &nanos, counts)?;
        }
    }
    for ((workload, words, _, _, bounds), latencies) in ways.iter().zip(&seen) {
        let what = format!("commit of another process to the line at {RATE} events/s, {words}");
        latencies.report(bench, workload, subject.name(), &what, *bounds);
    }
    Ok(())
}

/// How long each line took, in nanoseconds, from the moment at which its writer knew that it has committed.
async fn latency(subject: &Postgres, program: &Path, to: To, told: Told, length: Duration) -> anyhow::Result<Vec<u64>> {
    let store = subject.fresh().await?;
    if told == Told::Trigger {
        store.create_wake_trigger().await?;
    }
    let poll_interval = (told == Told::Not).then_some(POLL_INTERVAL);
    let how = How { to, poll_interval, wake_ups: told != Told::Not, ..How::default() };
    let mut relay = Relay::start(program, subject.url(), how)?;
    relay.delivering().await?;
    let events = usize::try_from(RATE * length.as_secs())?;
    let lines = arrival::hear(relay.output()?, events);
    // The first poll, and the connection that listens.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let committed = arrival::insert(subject.url(), RATE, events, told == Told::Notice);
    let committed = relay.unless_it_ends(committed).await?;
    let heard = relay.unless_it_ends(lines).await?;
    relay.end().await?;
    check_done(&store, events).await?;
    Postgres::close(store).await;
    let taken = heard.into_iter().zip(committed).map(|(heard, committed)| heard.saturating_duration_since(committed));
    taken.map(|taken| Ok(u64::try_from(taken.as_nanos())?)).collect()
}
