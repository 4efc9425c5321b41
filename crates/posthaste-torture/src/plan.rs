//! What a run is asked to do.

use std::path::PathBuf;

use crate::config::{Destination, Kind, Policy, Sabotage, Workload};
use crate::fault::Fault;

/// What a run is asked to do.
#[derive(Clone, Debug, clap::Args)]
pub struct Plan {
    /// The database. Servers are started for the run, in a temporary directory.
    #[arg(long, value_enum, default_value = "sqlite")]
    pub database: Kind,
    /// Where events are delivered to. A broker is started for the run, in a temporary directory, by `scripts/brokers` of the
    /// repository, and is broken like everything else; at the end all that it has is read by a client that is not ours.
    #[arg(long, value_enum, default_value = "sink")]
    pub destination: Destination,
    /// For how long things are broken; longer if some fault had no turn until then.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub seconds: u64,
    /// The seed of all that is random. Two runs of one seed break the same things in the same order, but not at the very
    /// same moments.
    #[arg(long, default_value_t = fastrand::u64(..1_000_000), hide_default_value = true)]
    pub seed: u64,
    /// How many processes write.
    #[arg(long, default_value_t = 2, value_parser = at_least_one)]
    pub producers: usize,
    /// How many processes deliver. The last of several makes do with one connection to the database.
    #[arg(long, default_value_t = 3, value_parser = at_least_one)]
    pub relays: usize,
    /// How many transactions are begun in a second, by all producers together. Each writes one to three events.
    #[arg(long, default_value_t = 150.0, value_parser = rate)]
    pub rate: f64,
    /// What the producers write.
    #[arg(long, value_enum, default_value = "mixed")]
    pub workload: Workload,
    /// Events of one key are delivered in order, by lanes, and the checker sees whether they are.
    #[arg(long)]
    pub ordered: bool,
    /// With order: what an event that is refused for good does to its key. Unless the others skip it, an operator decides now and
    /// then, and the checker sees whether they waited for that.
    #[arg(long, value_enum, default_value = "skip")]
    pub on_dead: Policy,
    /// The faults; all that are possible, if none is named.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub faults: Vec<Fault>,
    /// Nothing is broken.
    #[arg(long, conflicts_with = "faults")]
    pub no_faults: bool,
    /// Where the history and the report go. By default a new directory among the temporary ones.
    #[arg(long, value_name = "DIRECTORY")]
    pub output: Option<PathBuf>,
    /// How many seconds are granted to a slow machine at the end, on top of the lease and the longest backoff.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub margin: u64,
    /// A mistake to build in, which the checker has to find.
    #[arg(long, value_enum, hide = true)]
    pub sabotage: Option<Sabotage>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least one is needed".to_owned()),
        Ok(number @ 1..=100) => Ok(number),
        Ok(_) => Err("at most 100".to_owned()),
        Err(error) => Err(format!("{error}")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.1..=100_000.0).contains(&rate) => Ok(rate),
        _ => Err("a number from 0.1 to 100000 is needed".to_owned()),
    }
}
