//! The last page: what happened, whether the promises were kept, and where to go from here. It goes to stdout.

use console::style;

use super::database::Database;
use super::figures::Figures;
use super::plan::Plan;
use super::units::{count, counted, length, rate};
use super::verdict::{Promise, Verdict};

/// Orders named for a promise that was broken; more would hide the rest of the page.
const NAMED: usize = 5;

/// Everything the last page tells.
pub(super) struct Report<'a> {
    pub(super) plan: &'a Plan,
    pub(super) figures: &'a Figures,
    pub(super) verdict: &'a Verdict,
    pub(super) database: &'a Database,
}

impl Report<'_> {
    pub(super) fn print(&self) {
        println!();
        self.what_happened();
        println!();
        self.promises();
        println!();
        self.end();
    }

    fn what_happened(&self) {
        let figures = self.figures;
        let took = figures.elapsed();
        heading("What happened");
        fact("orders", &count(figures.written.get()), "committed, each in one transaction with its event");
        fact("", &count(figures.rolled_back.get()), "rolled back on purpose, and their events with them");
        let per_second = rate(figures.delivered.get(), took);
        fact("events", &count(figures.delivered.get()), &format!("delivered in {}, {per_second}", length(took)));
        fact("", &count(figures.retried.get()), "failed deliveries, tried again");
        fact("", &count(figures.dead.get()), "dead");
        if let (Some(p50), Some(p99)) = (figures.hot_latency(0.5), figures.hot_latency(0.99)) {
            fact("hot path", &length(p50), "from commit to listener, for half of the events");
            fact("", &length(p99), "for 99 of 100");
        }
        fact("kill", &count(self.verdict.in_hand()), "events in hand when the dispatcher was killed");
        let repeats = self.verdict.repeats();
        let why = match repeats.by_the_kill {
            0 => String::new(),
            by_the_kill if by_the_kill == repeats.orders => ": the kill came before DONE was stored".to_owned(),
            by_the_kill => format!(", {} of them because of the kill", count(by_the_kill)),
        };
        fact("", &count(repeats.orders), &format!("delivered twice{why}"));
    }

    fn promises(&self) {
        heading("What was promised, checked against both tables and the listener");
        for promise in self.verdict.promises() {
            let mark = if promise.kept() { style("✓").green() } else { style("✗").red() };
            println!("  {} {:<15} {}", mark.bold(), promise.name, promise.text);
            if !promise.kept() {
                println!("    {:<15} {}", "", style(broken_by(promise)).red());
            }
        }
    }

    fn end(&self) {
        if self.verdict.holds() {
            let committed = counted(self.verdict.committed(), "event");
            println!("{} {committed}, none lost.", style("Every promise was kept.").green().bold());
        } else {
            println!(
                "{} Please report it with the seed, {}.",
                style("A promise was broken.").red().bold(),
                self.plan.seed()
            );
        }
        if let Some(path) = self.database.kept() {
            println!("The database is kept, and the verdict is about this run: {}", path.display());
        }
        println!("Next: put it into your own service with the quick start in the README of posthaste.");
    }
}

fn heading(text: &str) {
    println!("{}", style(text).bold());
}

fn fact(subject: &str, figure: &str, text: &str) {
    println!("  {subject:<9} {figure:>8}  {text}");
}

fn broken_by(promise: &Promise) -> String {
    let named: Vec<_> = promise.broken_by.iter().take(NAMED).map(ToString::to_string).collect();
    let more = promise.broken_by.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {} more", count(more as u64)) };
    format!("broken by order {}{more}", named.join(", "))
}
