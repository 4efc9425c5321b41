//! Measures Posthaste against what the same machine can do in the same minute.

mod drain;
mod latency;
mod postgres;
mod report;
mod throughput;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use report::Report;

/// Benchmarks of Posthaste. Every figure is measured in this run; goals are ratios or bounds.
#[derive(Parser)]
#[command(name = "posthaste-bench", version)]
struct Arguments {
    #[command(subcommand)]
    workload: Option<Workload>,
}

#[derive(Clone, Subcommand)]
enum Workload {
    /// Commit to listener in one process, on the memory store, at 1,000 events/s.
    Latency {
        /// How long to measure, in seconds.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Events per second.
        #[arg(long, default_value_t = 1000)]
        rate: u64,
    },
    /// Events per second through the dispatcher with a listener that does nothing, on the memory store.
    Throughput {
        /// How many events.
        #[arg(long, default_value_t = 1_000_000)]
        events: usize,
        /// How many rounds; the median counts.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
    /// Waiting rows in a SQLite file until the last is DONE, with default settings, and by hand beside it.
    Drain {
        /// How many rows wait.
        #[arg(long, default_value_t = 100_000)]
        events: usize,
        /// How many rounds of each; the medians count.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Which side to run: one alone is for profilers, and reports nothing.
        #[arg(long, value_enum, default_value_t = drain::Side::Both)]
        side: drain::Side,
    },
    /// Writes by eight writers, and waiting rows until the last is DONE, in PostgreSQL, and by hand beside it.
    Postgres {
        /// A server with `fsync` on, on which a database is made and dropped.
        #[arg(long)]
        url: String,
        /// How many rows wait.
        #[arg(long, default_value_t = 100_000)]
        events: usize,
        /// How many rounds of each; the medians count.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
    },
}

const ALL: [Workload; 3] = [
    Workload::Latency { seconds: 10, rate: 1000 },
    Workload::Throughput { events: 1_000_000, rounds: 3 },
    Workload::Drain { events: 100_000, rounds: 5, side: drain::Side::Both },
];

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let workloads = arguments.workload.map_or(ALL.to_vec(), |workload| vec![workload]);
    let mut report = Report::default();
    for workload in workloads {
        match workload {
            Workload::Latency { seconds, rate } => latency::run(&mut report, rate, seconds).await?,
            Workload::Throughput { events, rounds } => throughput::run(&mut report, events, rounds).await?,
            Workload::Drain { events, rounds, side } => drain::run(&mut report, events, rounds, side).await?,
            Workload::Postgres { url, events, rounds } => postgres::run(&mut report, &url, events, rounds).await?,
        }
    }
    report.print();
    Ok(if report.reached() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
