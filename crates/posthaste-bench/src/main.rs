//! The benchmark as a program of its own, which compiles faster than the whole command.

use std::process::ExitCode;

use clap::Parser;

#[cfg(feature = "allocations")]
#[global_allocator]
static ALLOCATOR: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// Benchmarks of Posthaste. Every figure is measured in this run; goals are ratios or bounds.
#[derive(Parser)]
#[command(name = "posthaste-bench", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: posthaste_bench::Args,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    let allocator = if cfg!(feature = "allocations") { "the system, counted" } else { "the system" };
    posthaste_bench::run(Cli::parse().args, &[program.into_os_string()], allocator).await
}
