//! A run from its beginning to its verdict.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures_util::future::try_join_all;
use posthaste_sql::{MySqlStore, PgStore, SqliteStore};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::check;
use crate::config::{Kind, LEASE, LONGEST_BACKOFF, LONGEST_PAUSE, Policy, Workload};
use crate::database::Database;
use crate::fault::Fault;
use crate::history::{self, Entry, Recorder, Run, What};
use crate::nemesis::{Deck, Nemesis, faketime};
use crate::operator::Operator;
use crate::plan::Plan;
use crate::report;
use crate::view::View;
use crate::world::{Ground, World};

/// How many things are broken at once, at most.
const HANDS: u64 = 2;

/// Runs, checks and reports.
pub(crate) async fn run(plan: Plan, program: &[OsString]) -> anyhow::Result<ExitCode> {
    can_be_had(&plan)?;
    let directory = output(&plan)?;
    let torture = async {
        match plan.database {
            Kind::Sqlite => torture::<SqliteStore>(plan, &directory, program).await,
            Kind::Postgres => torture::<PgStore>(plan, &directory, program).await,
            Kind::Mariadb => torture::<MySqlStore>(plan, &directory, program).await,
        }
    };
    // What is dropped then ends its processes and deletes what it made.
    let mut asked_to_end = signal(SignalKind::terminate())?;
    tokio::select! {
        tortured = torture => tortured?,
        _ = ctrl_c() => bail!("interrupted"),
        _ = asked_to_end.recv() => bail!("asked to end"),
    }
    let history = directory.join(HISTORY);
    join(&directory, &history)?;
    verdict(&history)
}

/// Checks a history, prints the verdict, and draws the report beside it.
pub(crate) fn verdict(history: &Path) -> anyhow::Result<ExitCode> {
    let entries = history::read(history).with_context(|| format!("reading {}", history.display()))?;
    let report = check::check(&entries);
    say!("{}", report::text(&report, console::colors_enabled()));
    let page = history.with_extension("html");
    fs::write(&page, report::html(&report)).with_context(|| format!("writing {}", page.display()))?;
    say!("history  {}\nreport   {}", history.display(), page.display());
    Ok(ExitCode::from(report.exit_code()))
}

fn can_be_had(plan: &Plan) -> anyhow::Result<()> {
    let destination = plan.destination.name();
    ensure!(
        cfg!(feature = "brokers") || !plan.destination.is_broker(),
        "the destination {destination} was not compiled in; build with the feature brokers"
    );
    ensure!(
        plan.sabotage.is_none_or(|sabotage| sabotage.is_on_the_way_to(plan.destination)),
        "this mistake is not made on the way to {destination}"
    );
    ensure!(
        plan.sabotage.is_none_or(|sabotage| sabotage.is_for(plan.ordered)),
        "this mistake is made {} order",
        if plan.ordered { "without" } else { "with" }
    );
    ensure!(
        plan.ordered || plan.on_dead == Policy::Skip,
        "without order nothing waits for an event that is refused for good; give --ordered with --on-dead {}",
        plan.on_dead.name()
    );
    Ok(())
}

const HISTORY: &str = "history.ndjson";

fn output(plan: &Plan) -> anyhow::Result<PathBuf> {
    let Some(directory) = &plan.output else {
        let (database, destination) = (plan.database.name(), plan.destination.name());
        let prefix = format!("posthaste-torture-{database}-{destination}-{}-", plan.seed);
        return Ok(tempfile::Builder::new().prefix(&prefix).tempdir()?.keep());
    };
    fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    let used = fs::read_dir(directory)?.next().is_some();
    ensure!(!used, "{} is not empty; a history is not mixed with others", directory.display());
    Ok(directory.clone())
}

async fn torture<D: Database>(plan: Plan, directory: &Path, program: &[OsString]) -> anyhow::Result<()> {
    let (database, destination) = (plan.database.name(), plan.destination.name());
    say!("database {database}, destination {destination}, seed {}, {} s", plan.seed, plan.seconds);
    let ground = Ground::prepare(&plan).await?;
    let (faults, left_out) = choose(&plan, &ground);
    if let Some((fault, reason)) = left_out.first().filter(|_| !plan.faults.is_empty()) {
        bail!("{fault} cannot be had here: {reason}");
    }
    for (fault, reason) in &left_out {
        say!("without {fault}: {reason}");
    }
    let intention = Run {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        seed: plan.seed,
        database: database.to_owned(),
        destination: destination.to_owned(),
        seconds: plan.seconds,
        faults: faults.iter().map(|fault| fault.name()).collect(),
        left_out,
        lease_ms: i64::try_from(LEASE.as_millis())?,
        attempts: posthaste_core::Options::default().retry_attempts,
        ordered: plan.ordered,
        on_dead: plan.on_dead.name().to_owned(),
        lanes: plan.ordered,
    };
    Recorder::open(&directory.join(FIRST), "run")?.record(What::Run(intention));
    let (seed, length) = (plan.seed, Duration::from_secs(plan.seconds));
    let world = World::<D>::create(plan, ground, directory, program).await?;
    // Only now: a broker may have had to be built first.
    let until = Instant::now() + length;

    let deck = Mutex::new(Deck::new(faults, seed));
    let hands = (0..HANDS).map(|hand| Nemesis::new(&world, &deck, seed.wrapping_add(hand)).rage(until));
    let raged = async {
        // Without faults there is still something to be delivered.
        tokio::time::sleep_until(until).await;
        anyhow::Ok(())
    };
    let mut view = View::new(directory);
    let mut operator = Operator::new(&world, directory, seed)?;
    tokio::select! {
        raged = async { tokio::try_join!(try_join_all(hands), raged) } => drop(raged?),
        () = operator.decide() => {}
        watched = watch(&world, &mut view) => watched?,
    }
    // Until here somebody writes, so that everybody has something to deliver.
    // Where there is one lane, or three keys for all of them, some have nothing to deliver.
    let few = world.plan.database == Kind::Sqlite || world.plan.workload == Workload::Contended;
    if world.plan.sabotage.is_none() && !(world.plan.ordered && few) {
        tokio::select! {
            () = world.hear_everybody() => {}
            () = operator.decide() => {}
            watched = watch(&world, &mut view) => watched?,
        }
    }
    heal(&world).await?;
    operator.hurry();
    tokio::select! {
        drained = drain(&world) => drained?,
        () = operator.decide() => {}
        watched = watch(&world, &mut view) => watched?,
    }
    world.end_relays().await?;
    view.show(&[]);
    drop(view);
    world.read_back().await?;
    let dump = world.store.dump().await.context("reading the database at the end")?;
    history::write(&directory.join(LAST), &dump)?;
    Recorder::open(&directory.join(LAST), "run")?.record(What::End);
    world.close().await
}

/// What is to be broken, and what is not, with the reason.
fn choose(plan: &Plan, ground: &Ground) -> (Vec<Fault>, Vec<(String, String)>) {
    let wanted = match plan.faults.as_slice() {
        _ if plan.no_faults => &[],
        [] => Fault::all(),
        some => some,
    };
    let mut faults = Vec::new();
    let mut left_out = Vec::new();
    for &fault in wanted {
        // Which faults are for sinks and which for brokers needs to be said only to those who ask for the other.
        let elsewhere = fault.not_at(plan.destination);
        if elsewhere.is_some() && plan.faults.is_empty() {
            continue;
        }
        let reason = match fault {
            Fault::DiskFull if plan.database == Kind::Mariadb && plan.faults.is_empty() => {
                Some("MariaDB 10.11 loses committed rows by it; name the fault to see".to_owned())
            }
            Fault::DiskFull => ground.no_full_disk.clone(),
            Fault::ProducerKillPoint | Fault::RelayKillPoint if !cfg!(feature = "failpoints") => {
                Some("not compiled in; build with the feature failpoints".to_owned())
            }
            Fault::ClockAhead | Fault::ClockBehind if faketime().is_none() => {
                Some("libfaketime is not installed".to_owned())
            }
            _ => None,
        };
        match elsewhere.or(fault.out_of_place(plan.database)).map(str::to_owned).or(reason) {
            Some(reason) => left_out.push((fault.name(), reason)),
            None => faults.push(fault),
        }
    }
    (faults, left_out)
}

/// Keeps everybody alive and shows what is happening, for ever.
async fn watch<D: Database>(world: &World<D>, view: &mut View) -> anyhow::Result<()> {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        world.revive().await?;
        view.show(&world.all_broken());
    }
}

/// Nothing is broken from here on, and nothing more is written.
async fn heal<D: Database>(world: &World<D>) -> anyhow::Result<()> {
    world.end_producers().await?;
    world.recorder.record(What::Healed { patience_ms: u64::try_from(patience(&world.plan).as_millis())? });
    Ok(())
}

/// How long what is pending may take when nothing is broken any more.
fn patience(plan: &Plan) -> Duration {
    let pause = if plan.destination.is_broker() { LONGEST_PAUSE } else { Duration::ZERO };
    LEASE + LONGEST_BACKOFF + pause + Duration::from_secs(plan.margin)
}

/// Waits until nothing is pending, or patience has run out.
async fn drain<D: Database>(world: &World<D>) -> anyhow::Result<()> {
    let until = Instant::now() + patience(&world.plan);
    let pending = loop {
        match world.store.counts().await {
            Ok(counts) if counts.pending() == 0 || Instant::now() >= until => break counts.pending(),
            Err(error) if Instant::now() >= until => return Err(error).context("counting what is pending"),
            _ => sleep(Duration::from_millis(200)).await,
        }
    };
    world.recorder.record(What::Drained { pending });
    Ok(())
}

/// The files that begin and end the history. Every other is a process's own.
const FIRST: &str = "run.first";
const LAST: &str = "database.last";

/// Makes one history of all the files, in the order of time.
fn join(directory: &Path, history: &Path) -> anyhow::Result<()> {
    let mut middle: Vec<Entry> = Vec::new();
    let mut parts = Vec::new();
    for file in fs::read_dir(directory)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "ndjson") {
            middle.extend(history::read(&path)?);
            parts.push(path);
        }
    }
    middle.sort_by_key(|entry| entry.at);
    let (first, last) = (directory.join(FIRST), directory.join(LAST));
    let mut whole = history::read(&first)?;
    whole.append(&mut middle);
    whole.append(&mut history::read(&last)?);
    history::write(history, &whole)?;
    for part in parts.iter().chain([&first, &last]) {
        fs::remove_file(part)?;
    }
    Ok(())
}
