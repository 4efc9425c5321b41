//! Servers to measure on.

use anyhow::Context;
use posthaste_torture::server::{Kind, Server, ServerOptions};

/// A database on a server: on a private one, which ends with this, or on one of the user's.
pub(crate) struct Served {
    server: Option<Server>,
    url: String,
}

impl Served {
    /// Starts a private server, which keeps what it commits as in production.
    pub(crate) async fn start(kind: Kind) -> anyhow::Result<Self> {
        let options = match kind {
            Kind::Postgres => ServerOptions::default()
                .setting("shared_buffers", "512MB")
                .setting("max_wal_size", "4GB")
                .setting("checkpoint_timeout", "5min"),
            Kind::MariaDb => ServerOptions::default()
                .setting("innodb-buffer-pool-size", "512M")
                .setting("innodb-log-file-size", "512M"),
        };
        let server = Server::start(kind, &options).await?;
        let url = server.url().to_owned();
        Ok(Self { server: Some(server), url })
    }

    /// An empty database of the user's.
    pub(crate) fn at(url: &str) -> Self {
        Self { server: None, url: url.to_owned() }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How long the processor worked for a private server.
    pub(crate) fn cpu_seconds(&self) -> Option<f64> {
        let pid = self.server.as_ref()?.pid()?;
        let (own, ended) = cpu_seconds(pid).ok()?;
        Some(
            own + ended
                + children(pid).into_iter().filter_map(|pid| cpu_seconds(pid).ok()).map(|(own, _)| own).sum::<f64>(),
        )
    }
}

/// How long the processor worked for this process.
pub(crate) fn own_cpu_seconds() -> anyhow::Result<f64> {
    Ok(cpu_seconds(std::process::id())?.0)
}

/// How long the processors of this machine worked, for whomever.
#[cfg(feature = "brokers")]
pub(crate) fn machine_cpu_seconds() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let ticks =
        stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("/proc has another form here")?;
    let ticks: Vec<f64> = ticks.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [user, nice, system, _idle, _waiting, irq, softirq, ..] = ticks[..] else {
        anyhow::bail!("/proc has another form here")
    };
    Ok((user + nice + system + irq + softirq) / TICKS_PER_SECOND)
}

/// Of the kernel's clock, which has been the same on every machine for decades.
const TICKS_PER_SECOND: f64 = 100.0;

/// How long the processor worked for a process, and for children of it that have ended.
fn cpu_seconds(pid: u32) -> anyhow::Result<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(')').context("/proc has another form here")?;
    let ticks: Vec<f64> = fields.split_whitespace().skip(11).take(4).map(str::parse).collect::<Result<_, _>>()?;
    let [user, system, children_user, children_system] = ticks[..] else {
        anyhow::bail!("/proc has another form here")
    };
    Ok(((user + system) / TICKS_PER_SECOND, (children_user + children_system) / TICKS_PER_SECOND))
}

fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
