//! Breaks everything around Posthaste, and checks that nothing was lost.
//!
//! Producers write business rows and events in one transaction, relays deliver them to a sink or to a broker, a nemesis
//! breaks what it can reach. All of them are processes of their own, and each writes down what it did. At the end everything is healed
//! and drained, and a checker reads the [history].

/// Prints a line. Whoever reads may have seen enough: that ends no run.
macro_rules! say {
    ($($line:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($line)*)));
    }};
}

mod broker;
pub mod check;
mod config;
mod database;
mod fault;
pub mod history;
mod member;
mod nemesis;
mod operator;
mod plan;
pub mod proxy;
pub mod report;
mod role;
mod run;
pub mod server;
mod view;
mod watched;
mod wire;
mod world;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

pub use config::{Destination, Kind, Policy, Sabotage, Workload};
pub use fault::Fault;
pub use plan::Plan;

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
    /// Checks the history of an earlier run again.
    Check {
        /// The history.
        history: PathBuf,
    },
    /// Plays a role in a run. Started by the run itself.
    #[command(hide = true)]
    Role {
        /// What to do, as JSON.
        config: String,
    },
}

/// Does what the command line says. `program` is how this very command is started, without its arguments.
///
/// The exit status is 0 for a valid run, 1 for an invalid one, and 2 if nobody can say.
///
/// # Errors
/// When the run could not be carried out, which says nothing about what was to be tested.
pub async fn run(args: Args, program: &[OsString]) -> anyhow::Result<ExitCode> {
    match args.command {
        None => {
            let role = [program, &[OsString::from("role")]].concat();
            run::run(args.plan, &role).await
        }
        Some(Command::Check { history }) => run::verdict(&history),
        Some(Command::Role { config }) => role::play(&config).await,
    }
}
