//! One file of HTML that needs nothing else: no scripts, no fonts, no links.

use super::{Report, mark, picture, ratio};
use crate::measure::Measurement;
use crate::rounds::number;

const STYLE: &str = include_str!("style.css");

/// The report as a page.
pub(super) fn page(report: &Report) -> String {
    let missed = report.measurements.iter().filter(|measurement| !measurement.reached).count();
    let goals = report.measurements.iter().filter(|measurement| measurement.goal.is_some()).count();
    let body = [
        format!("<h1>Posthaste: {} of {goals} goals reached</h1>\n", goals - missed),
        machine(report),
        table(report),
        databases(report),
        growth(report),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Posthaste benchmark</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
        body.concat()
    )
}

/// Text with nothing in it that HTML would take for itself.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let mut lines = vec![
        format!(
            "{}; {} cores of {}, {} MB, Linux {}, load {:.1} before and {:.1} after",
            machine.built(),
            machine.cores,
            machine.processor,
            machine.memory_mb,
            machine.kernel,
            machine.load_before,
            machine.load_after
        ),
        machine.settings.clone(),
    ];
    lines.extend(machine.databases.iter().chain(&machine.brokers).cloned());
    lines.extend(machine.peers.iter().map(|peer| format!("Peer {peer}")));
    lines.iter().map(|line| format!("<p class=\"quiet\">{}</p>\n", escape(line))).collect()
}

fn table(report: &Report) -> String {
    let row = |measurement: &Measurement| {
        let class = if measurement.reached { "good" } else { "bad" };
        format!(
            "<tr><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"{class}\">{}</td></tr>\n",
            escape(&measurement.database),
            escape(&measurement.workload),
            number(measurement.ours),
            number(measurement.ceiling),
            escape(&measurement.unit),
            ratio(measurement),
            measurement.goal.map_or_else(String::new, |goal| format!("{goal:.2}")),
            mark(measurement)
        )
    };
    let rows: String = report.measurements.iter().map(row).collect();
    format!(
        "<h2>Ratios</h2>\n<p class=\"quiet\">More is better: where less time or work is better, the ratio is turned \
         around.</p>\n<div class=\"wide\"><table>\n<tr><th>database</th><th>workload</th><th class=\"number\">outbox</th>\
         <th class=\"number\">against</th><th></th><th class=\"number\">ratio</th><th class=\"number\">goal</th><th></th>\
         </tr>\n{rows}</table></div>\n"
    )
}

fn databases(report: &Report) -> String {
    let mut page = String::new();
    let mut database = "";
    for measurement in &report.measurements {
        if measurement.workload.starts_with("growth") {
            continue;
        }
        if measurement.database != database {
            database = &measurement.database;
            page.push_str(&format!("<h2>{}</h2>\n", escape(database)));
        }
        page.push_str(&format!(
            "<h3>{}</h3>\n<p class=\"quiet\">{}, in {}; against {}</p>\n<div class=\"wide\">{}</div>\n",
            escape(&measurement.workload),
            escape(&measurement.what),
            escape(&measurement.unit),
            escape(&measurement.against),
            picture::bars(measurement)
        ));
    }
    page
}

fn growth(report: &Report) -> String {
    if report.grown.is_empty() {
        return String::new();
    }
    let pictures: String = report
        .grown
        .iter()
        .map(|growth| {
            format!(
                "<h3>{}: {}</h3>\n<p class=\"quiet\">{}</p>\n<div class=\"wide\">{}</div>\n",
                escape(&growth.database),
                escape(&growth.what),
                escape(&growth.unit),
                picture::lines(growth)
            )
        })
        .collect();
    format!("<h2>Growth</h2>\n{pictures}")
}
