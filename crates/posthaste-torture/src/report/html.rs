//! One file of HTML that needs nothing else: no scripts, no fonts, no links.

use super::picture;
use super::words::{self, count, counted, describe, since};
use crate::check::{Conclusion, Example, Outcome, Report, Verdict};

const STYLE: &str = include_str!("style.css");

/// The report as a page of HTML.
pub fn html(report: &Report) -> String {
    let (word, meaning) = words::conclusion(report.conclusion);
    let run = &report.run;
    let body = [
        header(report, word, meaning),
        doubts(report),
        tiles(report),
        section("Timeline", &format!("<div class=\"wide\">{}</div>", picture::draw(&report.timeline))),
        section("Verdicts", &verdicts(report)),
        section("Faults", &faults(report)),
        section("Settings", &settings(report)),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{word}: {} with seed {}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{}</main>\n</body>\n</html>\n",
        escape(&run.route()),
        run.seed,
        body.concat()
    )
}

/// Text with nothing in it that HTML would take for itself.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

fn header(report: &Report, word: &str, meaning: &str) -> String {
    let run = &report.run;
    let facts = [escape(&run.route()), format!("seed {}", run.seed), counted(run.seconds, "second")];
    let (class, facts) = (class(report.conclusion), facts.join(" · "));
    format!(
        "<header>\n<p class=\"name\">posthaste-torture {}</p>\n\
         <h1><span class=\"badge {class}\">{word}</span> {meaning}</h1>\n<p class=\"facts\">{facts}</p>\n</header>\n",
        escape(&run.version)
    )
}

fn class(conclusion: Conclusion) -> &'static str {
    match conclusion {
        Conclusion::Valid => "good",
        Conclusion::Invalid => "bad",
        Conclusion::Unknown => "doubt",
    }
}

fn doubts(report: &Report) -> String {
    if report.doubts.is_empty() {
        return String::new();
    }
    let items: String = report.doubts.iter().map(|doubt| format!("<li>{}</li>\n", escape(doubt))).collect();
    format!("<ul class=\"doubts\">\n{items}</ul>\n")
}

fn tiles(report: &Report) -> String {
    let totals = &report.totals;
    let tiles = [
        ("written", totals.written, format!("{} acknowledged, {} unknown", count(totals.acked), count(totals.unknown))),
        ("received", totals.received, format!("{} refused", count(totals.refused))),
        ("repeated", totals.duplicates, format!("{} explained", count(totals.allowed))),
        ("dead", totals.dead, format!("{} malformed", count(totals.malformed))),
        ("pending", totals.pending, "at the end".to_owned()),
        ("kills", totals.crashes, counted(totals.lost_leases, "lost lease")),
    ];
    let tile = |(name, number, note): (&str, u64, String)| {
        format!("<div><p>{name}</p><strong>{}</strong><small>{note}</small></div>\n", count(number))
    };
    format!("<section class=\"tiles\">\n{}</section>\n", tiles.map(tile).concat())
}

fn section(title: &str, content: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n{content}\n</section>\n")
}

fn verdicts(report: &Report) -> String {
    let row = |verdict: &Verdict| {
        let (class, mark) = match verdict.outcome {
            Outcome::Held => ("good", "held"),
            Outcome::Broken => ("bad", "broken"),
            Outcome::NotPromised => ("none", "not promised"),
            Outcome::NotJudged => ("doubt", "not judged"),
        };
        let (name, found) = (verdict.rule.name(), words::found(verdict));
        let meaning = escape(&words::meaning(verdict, &report.totals));
        format!(
            "<tr><td>{name}</td><td><span class=\"mark {class}\">{mark}</span></td>\
             <td class=\"number\">{found}</td><td>{meaning}</td></tr>\n"
        )
    };
    let rows: String = report.verdicts.iter().map(row).collect();
    let stories: String = report.broken().map(|verdict| examples(verdict, report)).collect();
    let head = "<tr><th>verdict</th><th></th><th class=\"number\">found</th><th>of what</th></tr>";
    format!("<div class=\"wide\"><table>\n{head}\n{rows}</table></div>\n{stories}")
}

fn examples(verdict: &Verdict, report: &Report) -> String {
    let examples: String = verdict.examples.iter().map(|example| story(example, report)).collect();
    format!("<h3>{}</h3>\n{examples}", verdict.rule.name())
}

fn story(example: &Example, report: &Report) -> String {
    let line = |entry: &crate::history::Entry| {
        let (at, who) = (since(entry.at, report.timeline.started_at), escape(&entry.who));
        let what = escape(&describe(&entry.what));
        format!("<tr><td class=\"number\">{at}</td><td>{who}</td><td>{what}</td></tr>\n")
    };
    let lines: String = example.story.iter().map(line).collect();
    let (id, why) = (escape(&example.id), escape(&example.why));
    format!(
        "<details>\n<summary><code>{id}</code> {why}</summary>\n\
         <div class=\"wide\"><table class=\"story\">\n{lines}</table></div>\n</details>\n"
    )
}

fn faults(report: &Report) -> String {
    let happened = report.faults.iter().map(|fault| {
        let (name, note) = (escape(&fault.name), words::fault_note(fault));
        let (times, effects) = (count(fault.times), count(fault.effects));
        format!(
            "<tr><td>{name}</td><td class=\"number\">{times}</td><td class=\"number\">{effects}</td><td>{note}</td></tr>\n"
        )
    });
    let left_out = report.run.left_out.iter().map(|(name, reason)| {
        let (name, reason) = (escape(name), escape(reason));
        format!("<tr class=\"out\"><td>{name}</td><td class=\"number\">-</td><td class=\"number\">-</td><td>left out: {reason}</td></tr>\n")
    });
    let rows: String = happened.chain(left_out).collect();
    if rows.is_empty() {
        return "<p>None.</p>".to_owned();
    }
    let head =
        "<tr><th>fault</th><th class=\"number\">times</th><th class=\"number\">effects</th><th></th></tr>".to_owned();
    format!("<div class=\"wide\"><table>\n{head}\n{rows}</table></div>")
}

/// A setting of which 0 says that it is not known.
fn known(number: u64, noun: &str) -> String {
    if number == 0 { "not known".to_owned() } else { counted(number, noun) }
}

fn settings(report: &Report) -> String {
    let run = &report.run;
    let settings = [
        ("release", escape(&run.version)),
        ("database", escape(&run.database)),
        ("destination", escape(if run.reads_back() { &run.destination } else { "sink" })),
        ("seed", run.seed.to_string()),
        ("broken for", counted(run.seconds, "second")),
        ("a lease runs out after", known(run.lease_ms.unsigned_abs(), "millisecond")),
        ("DEAD after", known(run.attempts.into(), "failure")),
        ("order within a key", if run.ordered { "promised" } else { "not promised" }.to_owned()),
        (
            "behind what is refused for good",
            if run.waits() { "others wait for an operator" } else { "others go on" }.to_owned(),
        ),
    ];
    let rows = settings.map(|(name, value)| format!("<dt>{name}</dt><dd>{value}</dd>\n"));
    format!("<dl>\n{}</dl>", rows.concat())
}
