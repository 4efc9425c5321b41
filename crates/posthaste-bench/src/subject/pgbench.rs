//! pgbench, which comes with PostgreSQL: W without any driver of Rust.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::payload;

/// The transaction by hand, in its language. Ids only have to differ.
const SCRIPT: &str = "\\set number random(1, 9000000000000000000)
BEGIN;
INSERT INTO orders (customer, total) VALUES (:customer, 19.90);
INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, content_type, occurred_at) \
VALUES (:client_id::text || '-' || :number::text, 'Tick', 'Clock', :number::text, :payload, 'application/json', now());
COMMIT;
";

/// For one measurement, beyond the time that it is to take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The newest one beside a server, or the one in the search path.
pub(super) fn find() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten().flatten();
    let beside_a_server = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let program = entry.path().join("bin/pgbench");
        program.is_file().then_some((version, program))
    });
    let in_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|directory| directory.join("pgbench")).find(|program| program.is_file())
    };
    beside_a_server.max().map(|(_, program)| program).or_else(in_path)
}

/// Transactions per second, without the time to connect.
pub(super) async fn write(program: &Path, url: &str, writers: usize, writing: Duration) -> anyhow::Result<f64> {
    let directory = tempfile::tempdir()?;
    let script = directory.path().join("write.sql");
    std::fs::write(&script, SCRIPT)?;
    let mut command = Command::new(program);
    command.args(["--no-vacuum", "--protocol", "prepared", "--jobs", "2", "--client", &writers.to_string()]);
    command.args(["--time", &writing.as_secs().max(1).to_string(), "--define", "customer=customer"]);
    command.arg("--define").arg(format!("payload={}", payload(200))).arg("--file").arg(&script).arg(url);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output =
        tokio::time::timeout(writing + PATIENCE, command.output()).await.context("pgbench takes too long")??;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    rate(&said).with_context(|| format!("pgbench said {said:?}"))
}

fn rate(said: &str) -> Option<f64> {
    said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_in_its_last_line() {
        let said = "number of failed transactions: 0 (0.000%)\ntps = 5712.031548 (without initial connection time)\n";
        assert_eq!(rate(said), Some(5712.031548));
        assert_eq!(rate("pgbench: error"), None);
    }
}
