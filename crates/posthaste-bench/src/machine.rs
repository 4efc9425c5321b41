//! Where and with what a run was made.

use serde::Serialize;

use crate::versions;

/// Where and with what a run was made.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) version: String,
    /// `release`, or `debug`, whose figures say nothing.
    pub(crate) profile: &'static str,
    /// What all contestants in this process take their memory from.
    pub(crate) allocator: &'static str,
    pub(crate) driver: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mb: u64,
    pub(crate) kernel: String,
    /// Over the last minute, before the first measurement and after the last.
    pub(crate) load_before: f64,
    pub(crate) load_after: f64,
    pub(crate) databases: Vec<String>,
    pub(crate) brokers: Vec<String>,
    pub(crate) peers: Vec<String>,
    pub(crate) settings: String,
}

impl Machine {
    pub(crate) fn look(settings: String, allocator: &'static str) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
            allocator,
            driver: versions::of("sqlx"),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_mb: field("/proc/meminfo", "MemTotal")
                .and_then(|total| total.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kilobytes| kilobytes / 1024),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            load_before: load(),
            settings,
            ..Self::default()
        }
    }
}

impl Machine {
    /// What was built, and how.
    pub(crate) fn built(&self) -> String {
        let warning = if self.profile == "debug" { ", whose figures say nothing" } else { "" };
        format!(
            "Posthaste {}, {}, {} build{warning}, memory by {}",
            self.version, self.driver, self.profile, self.allocator
        )
    }
}

/// How many processes wanted to run, on average over the last minute.
pub(crate) fn load() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
