//! The `posthaste` command.

mod demo;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// A transactional outbox: events written with your business change, delivered at least once.
#[derive(Parser)]
#[command(name = "posthaste", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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

/// The exit status when a command could not do its work; the same as that of clap for a wrong command line.
const COULD_NOT_RUN: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    log_if_asked();
    let ended = match cli.command {
        Command::Demo(args) => demo::run(args).await,
        Command::Bench(args) => bench(*args).await,
        Command::Torture(args) => torture(args).await,
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {}", text(&error));
        ExitCode::from(COULD_NOT_RUN)
    })
}

async fn bench(args: posthaste_bench::Args) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    posthaste_bench::run(args, &[program.into_os_string(), "bench".into()]).await
}

async fn torture(args: posthaste_torture::Args) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    posthaste_torture::run(args, &[program.into_os_string(), "torture".into()]).await
}

/// An error and its causes in one line. Some print their cause themselves; saying it twice helps nobody.
fn text(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.ends_with(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

/// Logs go to stderr, and only where `RUST_LOG` asks for them: a command says what it has to say by itself.
fn log_if_asked() {
    if let Ok(filter) = EnvFilter::try_from_default_env() {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
            .init();
    }
}
