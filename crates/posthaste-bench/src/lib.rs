//! Measures Posthaste against what the same machine can do in the same minute.
//!
//! Every figure is a median of rounds in which all contestants take turns, and what counts is their ratio. docs/performance.md
//! says what each workload is.

/// Prints a line. Whoever reads may have seen enough: that ends no run.
macro_rules! say {
    ($($line:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($line)*)));
    }};
}

mod bench;
mod broker;
mod machine;
mod measure;
mod peer;
#[cfg(test)]
mod regression;
mod report;
mod rounds;
mod server;
mod statements;
mod subject;
mod versions;
mod workload;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use posthaste_torture::server::Kind;

use bench::{Bench, Sizes};
use broker::{Chosen, Given};
use machine::Machine;
use peer::{Directory, Peers};
use report::Report;
use rounds::Rounds;
use server::Served;
use subject::Subject;
use subject::mariadb::MariaDb;
use subject::postgres::Postgres;
use subject::sqlite::Sqlite;
#[cfg(feature = "brokers")]
use workload::brokers;
use workload::growth::Reach;
use workload::{cost, dispatcher, drain, growth, latency, options, ordered, relay, write};

/// The command line.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    plan: Plan,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Listens in a process of its own. Started by the run itself.
    #[command(hide = true)]
    Listen {
        #[arg(long)]
        url: String,
        #[arg(long, value_enum)]
        who: latency::Who,
    },
}

/// What to measure.
#[derive(clap::Args)]
struct Plan {
    /// Where to measure; everywhere, if nothing is named. Servers are started for the run, in a temporary directory.
    #[arg(long, value_enum, value_delimiter = ',')]
    database: Vec<Database>,

    /// An empty database of yours, which is filled and emptied: `postgres://…` or `mysql://…`. Instead of a private server. One
    /// with tables in it is refused, unless they are those of an earlier run.
    #[arg(long, conflicts_with = "database")]
    url: Option<String>,

    /// What to measure; everything but b, relay, growth and options, if nothing is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    workload: Vec<Workload>,

    /// Brokers to publish to in workload b; all, if none is named or given. They are started for the run.
    #[arg(long, value_enum, value_delimiter = ',')]
    brokers: Vec<broker::Kind>,

    /// A broker of yours instead of one that is started, such as `kafka=127.0.0.1:9092`. Can be given once for each kind.
    #[arg(long, value_name = "NAME=URL")]
    broker: Vec<Given>,

    /// Of growth, only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    growth: Vec<growth::Part>,

    /// Of workload relay, only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    relay: Vec<relay::Part>,

    /// The command whose relay is measured. By default this one, or `posthaste` beside this program.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,

    /// Smaller and fewer: minutes instead of an hour. Order is measured without anything beside, unless --workload names it.
    #[arg(long)]
    quick: bool,

    /// Rounds that count, of which the medians are compared. By default 5, and 3 with --quick.
    #[arg(long)]
    rounds: Option<usize>,

    /// Rounds before them that do not. What is measured once has none: growth, and the memory of a relay.
    #[arg(long, default_value_t = 1)]
    warm_up: usize,

    /// How many rows wait in a drain. By default 100,000; 40,000 with --quick, and 20,000 for a broker; 1,000,000 where the memory of a
    /// relay is measured, 200,000 with --quick.
    #[arg(long)]
    events: Option<usize>,

    /// How many seconds each contestant writes, or has its latency measured, in a round. By default 6, a second at a time, and
    /// 10; 3 of each with --quick.
    #[arg(long)]
    seconds: Option<u64>,

    /// The seed of the order in which contestants take their turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Writes all that was measured, as a list of objects.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Writes a page with a picture for each workload.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// A directory with other programs that do the same work, beside which PostgreSQL is measured: `peers` of the repository,
    /// after `peers/build`.
    #[arg(long, value_name = "DIRECTORY")]
    peers: Option<PathBuf>,

    /// Only these peers.
    #[arg(long, value_delimiter = ',', requires = "peers")]
    peer: Vec<String>,
}

/// Where to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Database {
    /// The memory store: what the outbox itself takes.
    Memory,
    /// SQLite, in a temporary file.
    Sqlite,
    /// A private PostgreSQL server.
    Postgres,
    /// A private MariaDB server.
    Mariadb,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Workload {
    /// W and H: transactions with one event, not delivered and delivered hot.
    W,
    /// W100: transactions with a hundred events.
    W100,
    /// D, D+1M and Ddel: rows that wait, until the last is DONE.
    D,
    /// Dord: rows that wait, each aggregate in its order; one aggregate alone; with much beside, and what a claim costs then.
    Dord,
    /// B: rows that wait, to a broker until acknowledged and DONE; and the publisher alone.
    B,
    /// R: a relay that is a process of its own, to a file and to standard output: rows that wait, its memory, and the time from
    /// the commit of another process to the line (PostgreSQL).
    Relay,
    /// L: from the commit to the listener.
    L,
    /// X: what an event costs.
    X,
    /// How costs grow with the table, the backlog, the payload, workers and relays, and with time.
    Growth,
    /// What the options do to the speed, each value beside the default.
    Options,
}

/// Does what the command line says. `program` is how this very command is started, without its arguments; `allocator` is what
/// it takes its memory from, for the report.
///
/// The exit status is 0 if every goal was reached, and 1 if one was missed.
///
/// # Errors
/// When something could not be measured: a server that is not installed, a file that cannot be written.
pub async fn run(args: Args, program: &[OsString], allocator: &'static str) -> anyhow::Result<ExitCode> {
    if let Some(Command::Listen { url, who }) = args.command {
        latency::listen(&url, who).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let plan = args.plan;
    let mut run = Run::new(&plan, allocator)?;
    if run.wants(Workload::Relay) {
        plan.relay_program(program)?;
        ensure!(
            plan.databases()?.contains(&Database::Postgres),
            "workload relay is measured on PostgreSQL: give --database postgres, or the --url of one"
        );
    }
    for database in plan.databases()? {
        match database {
            Database::Memory => run.memory().await?,
            Database::Sqlite => run.subject(&Sqlite::new()?, &Peers::none()).await?,
            Database::Postgres => {
                let server = Postgres::new(plan.served(Kind::Postgres).await?).await?;
                let directory = run.peers.clone();
                let peers = Peers::on(&directory, &server);
                run.subject(&server, &peers).await?;
                if run.wants(Workload::L) {
                    latency::two_processes(&mut run.bench, &server, program, &peers).await?;
                }
                if run.wants(Workload::Relay) {
                    let wants = |part| plan.relay.is_empty() || plan.relay.contains(&part);
                    relay::run(&mut run.bench, &server, &plan.relay_program(program)?, wants).await?;
                }
            }
            Database::Mariadb => {
                let server = MariaDb::new(plan.served(Kind::MariaDb).await?).await?;
                run.subject(&server, &Peers::none()).await?;
            }
        }
    }
    let reached = run.bench.reached();
    let report = run.report();
    report.print();
    if let Some(path) = &plan.json {
        report.write_json(path)?;
    }
    if let Some(path) = &plan.report {
        report.write_html(path)?;
    }
    Ok(if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Plan {
    fn databases(&self) -> anyhow::Result<Vec<Database>> {
        Ok(match &self.url {
            Some(url) if url.starts_with("postgres:") || url.starts_with("postgresql:") => vec![Database::Postgres],
            Some(url) if url.starts_with("mysql:") || url.starts_with("mariadb:") => vec![Database::Mariadb],
            Some(_) => {
                anyhow::bail!("--url must begin with postgres:// or mysql://; for a file, give --database sqlite")
            }
            // What comes from another table goes to brokers the same way, and only here anybody wakes a relay.
            None if self.database.is_empty() && self.is_of_postgres() => vec![Database::Postgres],
            None if self.database.is_empty() => <Database as clap::ValueEnum>::value_variants().to_vec(),
            None => self.database.clone(),
        })
    }

    /// Whether nothing is wanted that is not measured on PostgreSQL, unless another database is named.
    fn is_of_postgres(&self) -> bool {
        let of_postgres = |workload: &Workload| matches!(workload, Workload::B | Workload::Relay);
        !self.workload.is_empty() && self.workload.iter().all(of_postgres)
    }

    /// The command whose relay is measured.
    fn relay_program(&self, program: &[OsString]) -> anyhow::Result<PathBuf> {
        let this = program.first().context("no program")?;
        let found = self.program.clone().unwrap_or_else(|| Path::new(this).with_file_name("posthaste"));
        ensure!(
            found.is_file(),
            "there is no {}, whose relay would be measured: cargo build --release -p posthaste-cli, or give --program",
            found.display()
        );
        // It is started in another directory.
        Ok(found.canonicalize()?)
    }

    async fn served(&self, kind: Kind) -> anyhow::Result<Served> {
        match &self.url {
            Some(url) => Ok(Served::at(url)),
            None => Served::start(kind).await,
        }
    }
}

/// Fails if workload B is wanted and this program has nothing to publish with.
fn ensure_brokers(workloads: &[Workload]) -> anyhow::Result<()> {
    anyhow::ensure!(
        cfg!(feature = "brokers") || !workloads.contains(&Workload::B),
        "workload b needs the feature `brokers`: cargo run --release --features brokers -- bench --workload b"
    );
    Ok(())
}

/// How much is measured, in words.
fn settings(plan: &Plan, sizes: &Sizes, rounds: usize) -> String {
    let quick = if plan.quick { "--quick, " } else { "" };
    format!(
        "{quick}{rounds} rounds after {} of warm-up, seed {}, {} turns of {} s for writers in a round, {} s for latencies, {} rows in \
         a drain, {} done rows or {} aggregates that stand still beside, {} to a broker",
        plan.warm_up,
        plan.seed,
        sizes.turns,
        sizes.writing.as_secs(),
        sizes.latency.as_secs(),
        sizes.events,
        sizes.done_beside,
        sizes.still_beside,
        sizes.published
    )
}

/// A run, with what it has found.
struct Run {
    workloads: Vec<Workload>,
    parts: Vec<growth::Part>,
    #[cfg_attr(not(feature = "brokers"), expect(dead_code, reason = "they are only checked then"))]
    brokers: Vec<Chosen>,
    /// Whether databases were named, and not only taken because none was.
    #[cfg_attr(not(feature = "brokers"), expect(dead_code, reason = "brokers alone ask for it"))]
    named: bool,
    quick: bool,
    bench: Bench,
    machine: Machine,
    peers: Directory,
    grown: Vec<growth::Growth>,
}

impl Run {
    fn new(plan: &Plan, allocator: &'static str) -> anyhow::Result<Self> {
        let mut sizes = if plan.quick { Sizes::QUICK } else { Sizes::FULL };
        if let Some(events) = plan.events {
            anyhow::ensure!(events >= 1000, "--events must be at least 1000, or a drain is over before it is measured");
            (sizes.events, sizes.published, sizes.relayed) = (events, events, events);
        }
        if let Some(seconds) = plan.seconds {
            anyhow::ensure!(seconds > 0, "--seconds must be at least 1");
            sizes.latency = Duration::from_secs(seconds);
            (sizes.writing, sizes.turns) = (Duration::from_secs(1), usize::try_from(seconds)?);
        }
        ensure_brokers(&plan.workload)?;
        let rounds = plan.rounds.unwrap_or(if plan.quick { 3 } else { 5 });
        anyhow::ensure!(rounds > 0, "--rounds must be at least 1");
        let peers = match &plan.peers {
            Some(path) => Directory::read(path, &plan.peer)?,
            None => Directory::default(),
        };
        let settings = settings(plan, &sizes, rounds);
        let rounds = Rounds { warm_up: plan.warm_up, rounds, random: fastrand::Rng::with_seed(plan.seed) };
        let mut machine = Machine::look(settings, allocator);
        machine.peers = peers.settings();
        let bench = Bench { sizes, rounds, measurements: Vec::new() };
        let parts = match plan.growth.as_slice() {
            [] => <growth::Part as clap::ValueEnum>::value_variants().to_vec(),
            some => some.to_vec(),
        };
        let (workloads, quick) = (plan.workload.clone(), plan.quick);
        let brokers = broker::chosen(&plan.brokers, &plan.broker)?;
        let named = plan.url.is_some() || !plan.database.is_empty();
        Ok(Self { workloads, parts, brokers, named, quick, bench, machine, peers, grown: Vec::new() })
    }

    fn wants(&self, workload: Workload) -> bool {
        match self.workloads.is_empty() {
            true => !matches!(workload, Workload::B | Workload::Relay | Workload::Growth | Workload::Options),
            false => self.workloads.contains(&workload),
        }
    }

    async fn memory(&mut self) -> anyhow::Result<()> {
        if self.wants(Workload::D) {
            dispatcher::run(&mut self.bench).await?;
        }
        if self.wants(Workload::L) {
            latency::in_memory(&mut self.bench).await?;
        }
        Ok(())
    }

    async fn subject<S: Subject>(&mut self, subject: &S, peers: &Peers<'_>) -> anyhow::Result<()> {
        self.machine.databases.push(subject.version().await?);
        if self.wants(Workload::W) {
            write::single(&mut self.bench, subject, peers).await?;
        }
        if self.wants(Workload::W100) {
            write::bulk(&mut self.bench, subject, peers).await?;
        }
        if self.wants(Workload::D) {
            drain::run(&mut self.bench, subject, peers).await?;
        }
        if self.wants(Workload::Dord) {
            // What is beside takes most of the time, so whoever is in a hurry asks for it.
            let beside = !self.quick || !self.workloads.is_empty();
            ordered::run(&mut self.bench, subject, beside).await?;
        }
        #[cfg(feature = "brokers")]
        if self.wants(Workload::B) && (self.named || subject.name() == "postgres") {
            for broker in &self.brokers {
                let description = brokers::run(&mut self.bench, subject, broker).await?;
                if !self.machine.brokers.contains(&description) {
                    self.machine.brokers.push(description);
                }
            }
        }
        if self.wants(Workload::L) {
            latency::one_process(&mut self.bench, subject).await?;
        }
        if self.wants(Workload::X) {
            cost::run(&mut self.bench, subject).await?;
        }
        if self.wants(Workload::Growth) {
            let reach = if self.quick { Reach::QUICK } else { Reach::FULL };
            self.grown.extend(growth::run(&mut self.bench, subject, reach, &self.parts).await?);
        }
        if self.wants(Workload::Options) {
            options::run(&mut self.bench, subject).await?;
        }
        Ok(())
    }

    fn report(self) -> Report {
        let machine = Machine { load_after: machine::load(), ..self.machine };
        Report { machine, measurements: self.bench.measurements, grown: self.grown }
    }
}
