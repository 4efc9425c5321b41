//! The `posthaste-torture` command: what `posthaste torture` is, by itself.

use std::process::ExitCode;

use clap::Parser;

/// Breaks everything around an outbox, and checks that nothing was lost.
#[derive(Parser)]
#[command(name = "posthaste-torture", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: posthaste_torture::Args,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    posthaste_torture::run(Cli::parse().args, &[program.into_os_string()]).await
}
