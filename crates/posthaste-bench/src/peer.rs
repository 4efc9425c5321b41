//! Other programs that do the same work.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::process::Command;

use crate::bench::Bench;
use crate::measure::{About, ByContestant, Figures, Measurement};
use crate::rounds::number;
use crate::subject::postgres::Postgres;

/// What stands before the name of a peer among contestants.
pub(crate) const PREFIX: &str = "peer ";

/// For one measurement of a peer, with the time to make its tables.
const LIMIT: Duration = Duration::from_secs(180);

/// The database that each measurement of a peer gets, empty.
const DATABASE: &str = "posthaste_bench_peer";

/// What `peers/peers.toml` says.
#[derive(Deserialize)]
struct Manifest {
    peer: Vec<Peer>,
}

/// Another program that does the same work.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Peer {
    name: String,
    version: String,
    settings: String,
    command: Vec<String>,
    workloads: HashSet<String>,
}

/// The peers of a directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    path: PathBuf,
    peers: Vec<Peer>,
}

impl Directory {
    /// Reads the manifest, and leaves out what was not asked for.
    pub(crate) fn read(path: &Path, only: &[String]) -> anyhow::Result<Self> {
        let manifest = path.join("peers.toml");
        let text = std::fs::read_to_string(&manifest).with_context(|| {
            format!("{} cannot be read; the peers are in the directory `peers`", manifest.display())
        })?;
        let Manifest { mut peer } = toml::from_str(&text).with_context(|| manifest.display().to_string())?;
        for name in only {
            if !peer.iter().any(|peer| peer.name == *name) {
                let known: Vec<&str> = peer.iter().map(|peer| peer.name.as_str()).collect();
                bail!("there is no peer `{name}`; those in {} are {}", manifest.display(), known.join(", "));
            }
        }
        peer.retain(|peer| only.is_empty() || only.contains(&peer.name));
        Ok(Self { path: path.canonicalize()?, peers: peer })
    }

    /// What they are and how they are set, for the report.
    pub(crate) fn settings(&self) -> Vec<String> {
        self.peers.iter().map(|peer| format!("{} {}: {}", peer.name, peer.version, peer.settings)).collect()
    }
}

/// Peers on a server, if there are any for it.
pub(crate) struct Peers<'a>(Option<(&'a Directory, &'a Postgres)>);

impl<'a> Peers<'a> {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn on(directory: &'a Directory, server: &'a Postgres) -> Self {
        Self(Some((directory, server)))
    }

    fn able(&self, workload: &str) -> impl Iterator<Item = &'a Peer> {
        let peers = self.0.map_or(&[][..], |(directory, _)| &directory.peers);
        peers.iter().filter(move |peer| peer.workloads.contains(workload))
    }

    /// The contestants with the peers that can do that workload.
    pub(crate) fn beside(&self, contestants: &[&str], workload: &str) -> Vec<String> {
        let peers = self.able(workload).map(|peer| format!("{PREFIX}{}", peer.name));
        contestants.iter().map(|name| (*name).to_owned()).chain(peers).collect()
    }

    /// Has a peer do its work in an empty database.
    pub(crate) async fn measure(&self, contestant: &str, arguments: &[&str]) -> anyhow::Result<f64> {
        let said = self.run(contestant, arguments).await?;
        said.value.with_context(|| format!("{contestant} gave no value"))
    }

    /// Latencies of the peers, in turns: within one process each, so in a row of their own beside ours to another process.
    pub(crate) async fn latencies(&self, bench: &mut Bench, arguments: &[&str]) -> anyhow::Result<()> {
        let mut names: Vec<String> = self.able("L").map(|peer| peer.name.clone()).collect();
        let mut seen: BTreeMap<&str, ByContestant> = BTreeMap::new();
        for (round, counts) in bench.rounds.all() {
            bench.rounds.random.shuffle(&mut names);
            for name in &names {
                match self.run(&format!("{PREFIX}{name}"), arguments).await {
                    Ok(Said { p50_us: Some(half), p99_us: Some(most), .. }) => {
                        say!("L100 peer {name}, {round}: p50 {}, p99 {} µs", number(half), number(most));
                        for (quantile, figure) in [("p50", half), ("p99", most)].into_iter().filter(|_| counts) {
                            let figures = seen.entry(quantile).or_default();
                            figures.entry(format!("{PREFIX}{name}")).or_default().push(figure);
                        }
                    }
                    Ok(_) => say!("  peer {name} gave no latencies"),
                    Err(error) => say!("  peer {name} failed: {error:#}"),
                }
            }
        }
        for (quantile, figures) in seen {
            let least = |one: &&Figures, other: &&Figures| f64::total_cmp(&one.middle(), &other.middle());
            let Some(quickest) = figures.values().min_by(least) else { continue };
            let (workload, unit) = (format!("L100 peers {quantile}"), "µs");
            let about = About {
                workload: &workload,
                database: "postgres",
                what: "commit to listener at 100 events/s: ours in another process, peers in the same with two pools",
                against: "the quickest of the peers",
                unit,
            };
            let ours = bench.ours(&format!("L100 other {quantile}"), "postgres");
            bench.add_with_peers(about.compare_costs(&ours, quickest, None), &figures);
        }
        Ok(())
    }

    async fn run(&self, contestant: &str, arguments: &[&str]) -> anyhow::Result<Said> {
        let (directory, server) = self.0.context("no peers were asked for")?;
        let name = contestant.strip_prefix(PREFIX).unwrap_or(contestant);
        let peer = directory.peers.iter().find(|peer| peer.name == name).context("no such peer")?;
        let url = server.empty_database(DATABASE).await?;
        let (program, rest) = peer.command.split_first().context("the peer has no command")?;
        // A path is meant from the directory of the peers, a name from the search path.
        let program = if program.contains('/') { directory.path.join(program) } else { program.into() };
        let mut command = Command::new(&program);
        command.args(rest).args(["--url", &url]).args(arguments).current_dir(&directory.path);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output()).await;
        let output = output.with_context(|| format!("not done after {LIMIT:?}"))?;
        let output = output.with_context(|| format!("{}; `peers/build` builds the peers", program.display()))?;
        server.drop_database(DATABASE).await?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!("{}: {}", output.status, error.trim().lines().next_back().unwrap_or_default());
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let last = said.trim().lines().next_back().unwrap_or_default();
        serde_json::from_str(last).with_context(|| format!("its last line is {last:?}"))
    }
}

/// The last line of a peer.
#[derive(Deserialize)]
struct Said {
    value: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

/// Adds the medians of peers that were among the contestants.
pub(crate) fn add_medians(measurement: &mut Measurement, figures: &ByContestant) {
    for (contestant, figures) in figures {
        if let (Some(name), Some(median)) = (contestant.strip_prefix(PREFIX), figures.median()) {
            measurement.peers.insert(name.to_owned(), median);
        }
    }
}
