//! A [report](crate::check::Report) for people: a page of text, and a page of HTML with a picture.

mod html;
mod picture;
#[cfg(test)]
mod tests;
mod words;

pub use html::html;

use std::fmt::{self, Write as _};

use console::Style;

use crate::check::{Conclusion, Example, Outcome, Report, Rule, Totals, Verdict};
use crate::history::Entry;
use words::{count, counted, describe, since};

/// Examples of a broken rule that the text tells of; the HTML has them all.
const EXAMPLES: usize = 3;
/// Lines told of an example from each end of its story, if it is longer than both.
const LINES: usize = 8;

/// The report as plain text, with colours if so asked. Whether a terminal wants them, `console::colors_enabled` knows.
pub fn text(report: &Report, colours: bool) -> String {
    let mut page = Page { text: String::new(), colours };
    // Writing to a String does not fail.
    let _ = page.write(report);
    page.text
}

struct Page {
    text: String,
    colours: bool,
}

impl Page {
    fn write(&mut self, report: &Report) -> fmt::Result {
        self.title(report)?;
        self.figures(report)?;
        self.faults(report)?;
        self.verdicts(report)?;
        self.examples(report)?;
        self.conclusion(report)
    }

    fn title(&mut self, report: &Report) -> fmt::Result {
        let run = &report.run;
        let title = self.paint("posthaste-torture", Style::new().bold());
        let (version, route, seed) = (&run.version, run.route(), run.seed);
        writeln!(self.text, "{title} {version}, {route}, seed {seed}, {}", counted(run.seconds, "second"))?;
        writeln!(self.text)
    }

    fn figures(&mut self, report: &Report) -> fmt::Result {
        let totals = &report.totals;
        let written = format!(
            "{} acknowledged, {} failed, {} unknown",
            count(totals.acked),
            count(totals.failed),
            count(totals.unknown)
        );
        self.figure("written", totals.written, &written)?;
        self.figure("received", totals.received, &format!("{} refused", count(totals.refused)))?;
        self.figure("repeated", totals.duplicates, &explanation(totals))?;
        self.figure("dead", totals.dead, &format!("{} put in by hand", counted(totals.malformed, "malformed row")))?;
        self.figure("pending", totals.pending, "")?;
        writeln!(self.text)
    }

    fn figure(&mut self, name: &str, number: u64, note: &str) -> fmt::Result {
        let name = self.paint(&format!("{name:<12}"), Style::new().dim());
        let number = self.paint(&format!("{:>11}", count(number)), Style::new().bold());
        writeln!(self.text, "{}", format!("  {name}{number}  {note}").trim_end())
    }

    fn faults(&mut self, report: &Report) -> fmt::Result {
        let left_out = &report.run.left_out;
        if report.faults.is_empty() && left_out.is_empty() {
            return Ok(());
        }
        let names = report.faults.iter().map(|fault| &fault.name).chain(left_out.iter().map(|(name, _)| name));
        let width = names.map(|name| name.chars().count()).max().unwrap_or(0).max("fault".len());
        let head = format!("  {:<width$}  {:>7}  {:>7}", "fault", "times", "effects");
        let head = self.paint(&head, Style::new().dim());
        writeln!(self.text, "{head}")?;
        for fault in &report.faults {
            let note = words::fault_note(fault);
            let note = self.paint(note, Style::new().yellow());
            let (name, times, effects) = (&fault.name, count(fault.times), count(fault.effects));
            let line = format!("  {name:<width$}  {times:>7}  {effects:>7}  {note}");
            writeln!(self.text, "{}", line.trim_end())?;
        }
        for (name, reason) in left_out {
            writeln!(self.text, "  {name:<width$}  {:>7}  {:>7}  left out: {reason}", "-", "-")?;
        }
        writeln!(self.text)
    }

    fn verdicts(&mut self, report: &Report) -> fmt::Result {
        let head = self.paint(&format!("    {:<12}  {:>7}  of what", "verdict", "found"), Style::new().dim());
        writeln!(self.text, "{head}")?;
        for verdict in &report.verdicts {
            self.verdict(verdict, &report.totals)?;
        }
        writeln!(self.text)
    }

    fn verdict(&mut self, verdict: &Verdict, totals: &Totals) -> fmt::Result {
        let (mark, style) = match verdict.outcome {
            Outcome::Held => ("✓", Style::new().green()),
            Outcome::Broken => ("✗", Style::new().red().bold()),
            Outcome::NotPromised => ("·", Style::new().dim()),
            Outcome::NotJudged => ("?", Style::new().yellow()),
        };
        let mark = self.paint(mark, style);
        let (name, found) = (verdict.rule.name(), words::found(verdict));
        writeln!(self.text, "  {mark} {name:<12}  {found:>7}  {}", words::meaning(verdict, totals))
    }

    fn examples(&mut self, report: &Report) -> fmt::Result {
        for verdict in report.broken() {
            for example in verdict.examples.iter().take(EXAMPLES) {
                self.example(verdict.rule, example, report)?;
            }
        }
        Ok(())
    }

    fn example(&mut self, rule: Rule, example: &Example, report: &Report) -> fmt::Result {
        let name = self.paint(rule.name(), Style::new().red().bold());
        writeln!(self.text, "{name}: {}: {}", example.id, example.why)?;
        let story = &example.story;
        let left_out = story.len().saturating_sub(2 * LINES);
        for (place, entry) in story.iter().enumerate() {
            if left_out > 0 && place == LINES {
                writeln!(self.text, "  {:>12}  {left_out} lines left out", "…")?;
            }
            if left_out == 0 || place < LINES || place >= LINES + left_out {
                self.line(entry, report)?;
            }
        }
        writeln!(self.text)
    }

    fn line(&mut self, entry: &Entry, report: &Report) -> fmt::Result {
        let at = since(entry.at, report.timeline.started_at);
        let at = self.paint(&format!("{at:>12}"), Style::new().dim());
        writeln!(self.text, "  {at}  {:<12}  {}", entry.who, describe(&entry.what))
    }

    fn conclusion(&mut self, report: &Report) -> fmt::Result {
        for doubt in &report.doubts {
            let mark = self.paint("?", Style::new().yellow());
            writeln!(self.text, "{mark} {doubt}")?;
        }
        let style = match report.conclusion {
            Conclusion::Valid => Style::new().green().bold(),
            Conclusion::Invalid => Style::new().red().bold(),
            Conclusion::Unknown => Style::new().yellow().bold(),
        };
        let (word, meaning) = words::conclusion(report.conclusion);
        let word = self.paint(word, style);
        writeln!(self.text, "{word}: {meaning}.")
    }

    fn paint(&self, text: &str, style: Style) -> String {
        if text.is_empty() {
            return String::new();
        }
        style.force_styling(self.colours).apply_to(text).to_string()
    }
}

/// Whether the repeats are explained, and how many things happened that may explain one.
fn explanation(totals: &Totals) -> String {
    let reasons =
        format!("{}, {}", counted(totals.lost_leases, "lost lease"), counted(totals.unanswered, "unanswered message"));
    match totals.duplicates.saturating_sub(totals.allowed) {
        0 if totals.duplicates == 0 => reasons,
        0 => format!("each explained: {reasons}"),
        unexplained => format!("{} not explained: {reasons}", count(unexplained)),
    }
}
