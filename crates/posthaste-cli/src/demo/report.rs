//! The last page: what happened, whether the promises were kept, and where to go from here. It goes to stdout.

use std::fmt;
use std::io::Write as _;

use console::{StyledObject, style};

use super::database::Database;
use super::figures::Figures;
use super::plan::Plan;
use super::units::{count, length, rate};
use super::verdict::{History, Promise, Verdict};

/// Orders named for a promise that was broken; more would hide the rest of the page.
const NAMED: usize = 5;

/// Everything the last page tells.
pub(super) struct Report<'a> {
    pub(super) plan: &'a Plan,
    pub(super) figures: &'a Figures,
    pub(super) history: &'a History,
    pub(super) verdict: &'a Verdict,
    pub(super) database: &'a Database,
}

impl Report<'_> {
    pub(super) fn print(&self) {
        // Whoever reads may have seen enough; that changes nothing about the exit status.
        let _ = std::io::stdout().write_all(self.to_string().as_bytes());
    }

    fn what_happened(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.figures;
        let took = figures.elapsed();
        writeln!(f, "{}", style("What happened").bold())?;
        fact(f, "orders", &count(figures.written.get()), "committed, each in one transaction with its event")?;
        fact(f, "", &count(figures.rolled_back.get()), "rolled back on purpose, and their events with them")?;
        let delivered = figures.delivered.get();
        fact(f, "events", &count(delivered), &format!("delivered in {}, {}", length(took), rate(delivered, took)))?;
        if self.history.earlier > 0 {
            fact(f, "", &count(self.history.earlier), "of them left behind by an earlier run")?;
        }
        fact(f, "", &count(figures.retried.get()), "failed deliveries, tried again")?;
        fact(f, "", &count(figures.dead.get()), "dead, kept for an operator to look at")?;
        if let (Some(p50), Some(p99)) = (figures.hot_latency(0.5), figures.hot_latency(0.99)) {
            fact(f, "hot path", &length(p50), &format!("from commit to listener, the median; p99 {}", length(p99)))?;
        }
        fact(
            f,
            "kill",
            &count(self.history.in_hand.len() as u64),
            "in hand at the kill, taken over by the next dispatcher",
        )
    }

    fn promises(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", style("What was promised, checked against both tables and the listener").bold())?;
        for promise in self.verdict.promises() {
            let mark = if promise.kept { style("✓").green() } else { style("✗").red() };
            line(f, &mark.bold(), promise.name, &promise.text)?;
            if !promise.broken_by.is_empty() {
                line(f, &style(" "), "", &style(broken_by(promise)).red().to_string())?;
            }
        }
        let repeats = self.verdict.repeats();
        let why = match repeats.by_the_kill {
            0 => String::new(),
            by_the_kill if by_the_kill == repeats.orders => ": the kill came before DONE".to_owned(),
            by_the_kill => format!(", {} of them for the kill", count(by_the_kill)),
        };
        let repeated = format!("{} came again, as is allowed{why}", count(repeats.orders));
        line(f, &style("·").dim(), "at least once", &repeated)
    }

    fn end(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.plan.seed();
        if self.verdict.holds() {
            writeln!(f, "{} Run it again with --seed {seed}.", style("Every promise was kept.").green().bold())?;
        } else {
            writeln!(f, "{} Please report it, with --seed {seed}.", style("A promise was broken.").red().bold())?;
        }
        if let Some(path) = self.database.kept() {
            writeln!(f, "The verdict is about this run alone. The database is kept: {}", path.display())?;
        }
        writeln!(f, "Next, for a service of your own: \"Five minutes\" in README.md, then docs/guide.")
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        self.what_happened(f)?;
        writeln!(f)?;
        self.promises(f)?;
        writeln!(f)?;
        self.end(f)
    }
}

fn fact(f: &mut fmt::Formatter<'_>, subject: &str, figure: &str, text: &str) -> fmt::Result {
    writeln!(f, "  {} {}  {text}", style(format!("{subject:<9}")).dim(), style(format!("{figure:>9}")).bold())
}

fn line(f: &mut fmt::Formatter<'_>, mark: &StyledObject<&str>, name: &str, text: &str) -> fmt::Result {
    // As wide as subject and figure of a fact, so that all texts begin in one column.
    writeln!(f, "  {mark} {name:<17}  {text}")
}

fn broken_by(promise: &Promise) -> String {
    let named: Vec<_> = promise.broken_by.iter().take(NAMED).map(ToString::to_string).collect();
    let more = promise.broken_by.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {} more", count(more as u64)) };
    format!("broken by order {}{more}", named.join(", "))
}
