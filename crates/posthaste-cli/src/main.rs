//! The `posthaste` command.

mod completions;
mod config;
mod database;
mod dead;
mod demo;
mod doctor;
mod events;
mod exit;
mod init;
mod keys;
mod log;
mod man;
mod migrate;
mod output;
mod pause;
mod purge;
mod relay;
mod rows;
mod settings;
mod stats;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use exit::Failed;
use settings::LogFormat;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A transactional outbox: events written with your business change, delivered at least once.
#[derive(Parser)]
#[command(name = "posthaste", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Relay(relay::Args),
    Init(init::Args),
    Migrate(migrate::Args),
    Config(config::Args),
    Events(events::Args),
    Dead(dead::Args),
    Keys(keys::Args),
    Stats(stats::Args),
    Pause(pause::Args),
    Resume(pause::ResumeArgs),
    Purge(purge::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
    Man(man::Args),
    Demo(demo::Args),
    /// Measures the outbox beside the same work written by hand, in the same minute on the same machine.
    ///
    /// Each contestant has its turn in every round, and the medians are compared. Servers are started for the run. The exit
    /// status is 0 if every goal was reached, 1 if one was missed, and 2 if something could not be measured.
    Bench(Box<posthaste_bench::Args>),
    /// Breaks everything around an outbox for a while, and checks that nothing was lost.
    ///
    /// Producers, relays and a sink run as processes of their own; the database is a private one. The exit status is 0 for
    /// a valid run, 1 for an invalid one, and 2 if nobody can say.
    Torture(posthaste_torture::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    choose_colours();
    // A relay says by its settings how it logs.
    if !matches!(cli.command, Command::Relay(_)) {
        // Only where `RUST_LOG` asks for it: a command says what it has to say by itself.
        log::begin(LogFormat::Text, None);
    }
    // Of a run that measures or breaks something, the status is the answer.
    let prints_data = !matches!(cli.command, Command::Bench(_) | Command::Torture(_));
    let ended = match cli.command {
        Command::Relay(args) => relay::run(args).await,
        Command::Init(args) => init::run(args).await,
        Command::Migrate(args) => migrate::run(args).await,
        Command::Config(args) => config::run(args).await,
        Command::Events(args) => events::run(args).await,
        Command::Dead(args) => dead::run(args).await,
        Command::Keys(args) => keys::run(args).await,
        Command::Stats(args) => stats::run(args).await,
        Command::Pause(args) => pause::run(args).await,
        Command::Resume(args) => pause::resume(args).await,
        Command::Purge(args) => purge::run(args).await,
        Command::Doctor(args) => doctor::run(args).await,
        Command::Completions(args) => completions::run(&args, Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Demo(args) => demo::run(args).await.map_err(Failed::from),
        Command::Bench(args) => bench(*args).await.map_err(Failed::from),
        Command::Torture(args) => torture(args).await.map_err(Failed::from),
    };
    ended.unwrap_or_else(|Failed { status, error }| {
        // Whoever read what we print has seen enough.
        if prints_data
            && error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
        {
            return ExitCode::SUCCESS;
        }
        log::tell_of_failure(&text(&error), status as u8);
        status.into()
    })
}

async fn bench(args: posthaste_bench::Args) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    let allocator = if cfg!(feature = "jemalloc") { "jemalloc" } else { "the system" };
    posthaste_bench::run(args, &[program.into_os_string(), "bench".into()], allocator).await
}

async fn torture(args: posthaste_torture::Args) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    posthaste_torture::run(args, &[program.into_os_string(), "torture".into()]).await
}

/// Heeds `NO_COLOR`. An empty one counts as none, which `console` does not know: then it is decided here as it would decide.
fn choose_colours() {
    let Some(no_colour) = std::env::var_os("NO_COLOR") else { return };
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    let is_dumb = if cfg!(windows) { false } else { std::env::var_os("TERM").is_none() || is("TERM", "dumb") };
    let is_forced = std::env::var("CLICOLOR_FORCE").is_ok_and(|forced| forced != "0");
    let is_wanted = |stream: &console::Term| {
        no_colour.is_empty() && (is_forced || stream.is_term() && !is_dumb && !is("CLICOLOR", "0"))
    };
    console::set_colors_enabled(is_wanted(&console::Term::stdout()));
    console::set_colors_enabled_stderr(is_wanted(&console::Term::stderr()));
}

/// An error and its causes in one line. Some print their cause themselves; saying it twice helps nobody.
fn text(error: &anyhow::Error) -> String {
    text_of(error.as_ref())
}

fn text_of(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.ends_with(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}
