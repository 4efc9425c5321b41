//! What was measured, as a table, as JSON and as a page.

mod html;
mod picture;

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::machine::Machine;
use crate::measure::Measurement;
use crate::rounds::number;
use crate::workload::growth::Growth;

/// All that a run found.
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) measurements: Vec<Measurement>,
    pub(crate) grown: Vec<Growth>,
}

/// A measurement with where it was made, because lists of them get torn apart.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    measurement: &'a Measurement,
    machine: &'a Machine,
}

impl Report {
    /// The table at the end.
    pub(crate) fn print(&self) {
        let machine = &self.machine;
        say!(
            "\n{} cores of {}, {} MB, load {:.1} before and {:.1} after",
            machine.cores,
            machine.processor,
            machine.memory_mb,
            machine.load_before,
            machine.load_after
        );
        say!("{}", machine.built());
        for line in machine.databases.iter().chain(&machine.brokers).chain([&machine.settings]) {
            say!("{line}");
        }
        say!(
            "\n{:<9} {:<42} {:>10} {:>10} {:>7} {:>6} {:>7}",
            "database",
            "workload",
            "outbox",
            "against",
            "ratio",
            "goal",
            "spread"
        );
        for measurement in &self.measurements {
            let Measurement { database, workload, ours, ceiling, .. } = measurement;
            let goal = measurement.goal.map_or_else(|| "-".to_owned(), |goal| format!("{goal:.2}"));
            let spread = measurement
                .spread
                .filter(|spread| spread.is_finite())
                .map_or_else(|| "-".to_owned(), |spread| format!("{:.0} %", spread * 100.0));
            say!(
                "{database:<9} {workload:<42} {:>10} {:>10} {:>7} {goal:>6} {spread:>7}  {}",
                number(*ours),
                number(*ceiling),
                ratio(measurement),
                mark(measurement)
            );
            for (peer, median) in &measurement.peers {
                say!("{:<9}   {peer:<40} {:>10}", "", number(*median));
            }
        }
    }

    /// A list of objects.
    pub(crate) fn write_json(&self, path: &Path) -> anyhow::Result<()> {
        let machine = &self.machine;
        let entries: Vec<_> = self.measurements.iter().map(|measurement| Entry { measurement, machine }).collect();
        write(path, serde_json::to_string_pretty(&entries)?)
    }

    /// One page that needs nothing else.
    pub(crate) fn write_html(&self, path: &Path) -> anyhow::Result<()> {
        write(path, html::page(self))
    }
}

fn write(path: &Path, text: String) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// The ratio, if both sides did anything at all.
fn ratio(measurement: &Measurement) -> String {
    if measurement.ratio.is_finite() { format!("{:.2}", measurement.ratio) } else { "-".to_owned() }
}

/// Whether a goal was reached, in a word.
fn mark(measurement: &Measurement) -> &'static str {
    match measurement.goal {
        None => "",
        Some(_) if measurement.reached => "reached",
        Some(_) => "MISSED",
    }
}
