//! The `posthaste-torture` command: what `posthaste torture` is, by itself.

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Breaks everything around an outbox, and checks that nothing was lost.
#[derive(Parser)]
#[command(name = "posthaste-torture", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: posthaste_torture::Args,
}

/// The exit status when nobody can say whether the run was valid.
const UNKNOWN: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Ok(filter) = EnvFilter::try_from_default_env() {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    }
    run(cli).await.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(UNKNOWN)
    })
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    posthaste_torture::run(cli.args, &[program.into_os_string()]).await
}
