//! The timeline as SVG: faults and processes as lanes of bars, and below them, over the same seconds, what flowed.

use std::fmt::Write as _;

use super::html::escape;
use super::words::count;
use crate::check::{Bar, Ending, Lane, Timeline};

const WIDTH: f64 = 1120.0;
/// Where the plot begins; names are to the left of it.
const LEFT: f64 = 158.0;
const RIGHT: f64 = WIDTH - 14.0;
const LANE: f64 = 20.0;
/// From the end of a part to the beginning of the next, with the heading between them.
const GAP: f64 = 40.0;
const RATES: f64 = 150.0;
const LAG: f64 = 96.0;
/// Lanes of one kind; further ones would push the curves off the screen.
const LANES: usize = 40;
/// Letters of a name that fit beside the plot.
const LETTERS: usize = 22;
/// What happens at one moment is still drawn this wide.
const NARROWEST: f64 = 3.0;

pub(super) fn draw(timeline: &Timeline) -> String {
    let mut picture = Picture { svg: String::new(), y: 28.0, parts: Vec::new(), timeline };
    picture.lanes("faults", &timeline.faults, Picture::fault);
    picture.lanes("processes", &timeline.processes, Picture::life);
    picture.rates();
    picture.lag();
    let (axis, bottom) = (picture.axis(), picture.y + 16.0);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {bottom}\" role=\"img\" aria-label=\"what happened when\">\n{axis}{}</svg>",
        picture.svg
    )
}

struct Picture<'a> {
    svg: String,
    /// Where the next part begins.
    y: f64,
    /// Where each part begins and ends.
    parts: Vec<(f64, f64)>,
    timeline: &'a Timeline,
}

/// A curve of a chart.
struct Curve<'a> {
    class: &'a str,
    name: &'a str,
    points: &'a [f64],
}

impl Picture<'_> {
    fn lanes(&mut self, title: &str, lanes: &[Lane], bar: fn(&mut Self, &Bar)) {
        if lanes.is_empty() {
            return;
        }
        let hidden = lanes.len().saturating_sub(LANES);
        let more = if hidden > 0 { format!(" (and {hidden} more)") } else { String::new() };
        self.heading(&format!("{title}{more}"));
        let top = self.y;
        for (place, lane) in lanes.iter().take(LANES).enumerate() {
            self.lane(&lane.name, place % 2 == 1);
            for each in &lane.bars {
                bar(self, each);
            }
            self.y += LANE;
        }
        self.end_part(top);
    }

    fn heading(&mut self, title: &str) {
        let y = self.y - 10.0;
        self.put(format_args!("<text class=\"heading\" x=\"{LEFT}\" y=\"{y}\">{title}</text>"));
    }

    fn lane(&mut self, name: &str, odd: bool) {
        let (width, label, y) = (RIGHT - LEFT, LEFT - 10.0, self.y + 14.0);
        if odd {
            let top = self.y;
            self.put(format_args!(
                "<rect class=\"stripe\" x=\"{LEFT}\" y=\"{top}\" width=\"{width}\" height=\"{LANE}\"/>"
            ));
        }
        let shown = escape(&shorten(name));
        let name = escape(name);
        self.put(format_args!("<text class=\"label\" x=\"{label}\" y=\"{y}\">{shown}<title>{name}</title></text>"));
    }

    fn fault(&mut self, bar: &Bar) {
        let class = if bar.ending == Ending::Open { "fault open" } else { "fault" };
        self.bar(class, bar, 4.0);
    }

    fn life(&mut self, bar: &Bar) {
        self.bar("life", bar, 8.0);
        let (from, to, y) = (self.x(bar.from), self.x(bar.to), self.y + LANE / 2.0);
        self.put(format_args!("<circle class=\"started\" cx=\"{from:.1}\" cy=\"{y}\" r=\"3\"/>"));
        match bar.ending {
            Ending::Killed => {
                let (l, r, t, b) = (to - 4.0, to + 4.0, y - 4.0, y + 4.0);
                self.put(format_args!("<path class=\"killed\" d=\"M{l:.1} {t}L{r:.1} {b}M{l:.1} {b}L{r:.1} {t}\"/>"));
            }
            Ending::Exited => {
                self.put(format_args!("<circle class=\"exited\" cx=\"{to:.1}\" cy=\"{y}\" r=\"3.5\"/>"));
            }
            Ending::Open | Ending::Mended => {}
        }
    }

    fn bar(&mut self, class: &str, bar: &Bar, inset: f64) {
        let x = self.x(bar.from).min(RIGHT - NARROWEST);
        let (y, width) = (self.y + inset, (self.x(bar.to) - x).max(NARROWEST));
        let (height, note) = (LANE - 2.0 * inset, escape(&bar.note));
        let (from, to) = (bar.from, bar.to);
        self.put(format_args!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" rx=\"2\">\
             <title>{from:.1} s to {to:.1} s: {note}</title></rect>"
        ));
    }

    fn rates(&mut self) {
        let (written, received) = (&self.timeline.written, &self.timeline.received);
        let written = Curve { class: "written", name: "acknowledged", points: written };
        let received = Curve { class: "received", name: "received", points: received };
        self.chart("per second", RATES, &[received, written]);
    }

    fn lag(&mut self) {
        let points: Vec<_> = self.timeline.lag.iter().map(|&lag| lag as f64).collect();
        let lag = Curve { class: "lag", name: "written, but neither received nor dead", points: &points };
        self.chart("lag", LAG, &[lag]);
    }

    fn chart(&mut self, title: &str, height: f64, curves: &[Curve<'_>]) {
        self.heading(title);
        self.bands(height);
        let top = ceiling(curves.iter().flat_map(|curve| curve.points).copied().fold(0.0, f64::max));
        self.scale(height, top);
        let mut legend = LEFT + 90.0;
        for curve in curves {
            self.curve(curve, height, top);
            legend = self.legend(curve, legend);
        }
        let top = self.y;
        self.y += height;
        self.end_part(top);
    }

    fn end_part(&mut self, top: f64) {
        self.parts.push((top, self.y));
        self.y += GAP;
    }

    /// What was broken, behind what flowed meanwhile.
    fn bands(&mut self, height: f64) {
        let (y, faults) = (self.y, &self.timeline.faults);
        for bar in faults.iter().flat_map(|lane| &lane.bars) {
            let x = self.x(bar.from);
            let width = (self.x(bar.to) - x).max(1.0);
            self.put(format_args!(
                "<rect class=\"band\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\"/>"
            ));
        }
    }

    fn scale(&mut self, height: f64, top: f64) {
        for part in [0.0, 0.5, 1.0] {
            let y = self.y + height * (1.0 - part);
            let (label, base, value) = (LEFT - 10.0, y + 4.0, number(top * part));
            self.put(format_args!("<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y}\" x2=\"{RIGHT}\" y2=\"{y}\"/>"));
            self.put(format_args!("<text class=\"label\" x=\"{label}\" y=\"{base}\">{value}</text>"));
        }
    }

    fn curve(&mut self, curve: &Curve<'_>, height: f64, top: f64) {
        let bottom = self.y + height;
        let mut line = String::new();
        for (place, value) in curve.points.iter().enumerate() {
            let seconds = (place as f64 + 0.5) * self.timeline.step as f64;
            let (x, y) = (self.x(seconds), bottom - height * value / top);
            let _ = write!(line, "{}{x:.1} {y:.1}", if place == 0 { "M" } else { "L" });
        }
        let last = curve.points.len().saturating_sub(1) as f64 + 0.5;
        let (from, to) = (self.x(0.5 * self.timeline.step as f64), self.x(last * self.timeline.step as f64));
        let class = curve.class;
        self.put(format_args!("<path class=\"area {class}\" d=\"{line}L{to:.1} {bottom}L{from:.1} {bottom}Z\"/>"));
        self.put(format_args!("<path class=\"line {class}\" d=\"{line}\"/>"));
    }

    /// Returns where the next one begins.
    fn legend(&mut self, curve: &Curve<'_>, left: f64) -> f64 {
        let (end, text, y, base) = (left + 14.0, left + 20.0, self.y - 14.0, self.y - 10.0);
        let (class, name) = (curve.class, curve.name);
        self.put(format_args!("<path class=\"line {class}\" d=\"M{left:.1} {y}H{end:.1}\"/>"));
        self.put(format_args!("<text class=\"legend\" x=\"{text:.1}\" y=\"{base}\">{name}</text>"));
        text + 7.0 * name.len() as f64 + 16.0
    }

    /// The seconds, drawn behind everything in each part and told below the last.
    fn axis(&self) -> String {
        let mut axis = String::new();
        let below = self.y - GAP;
        let every = interval(self.timeline.seconds);
        let ticks = (self.timeline.seconds / every).floor() as u64;
        for tick in 0..=ticks {
            let seconds = tick as f64 * every;
            let (x, y, label) = (self.x(seconds), below + 18.0, moment(seconds, self.timeline.seconds));
            self.upright(&mut axis, "grid", x);
            let _ = writeln!(axis, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\">{label}</text>");
        }
        // They may be close to each other, so each has a line of its own.
        for (name, at, y) in [("healed", self.timeline.healed, 34.0), ("drained", self.timeline.drained, 48.0)] {
            let Some(x) = at.map(|at| self.x(at)) else { continue };
            self.upright(&mut axis, "event", x);
            let y = below + y;
            let _ = writeln!(axis, "<text class=\"event\" x=\"{x:.1}\" y=\"{y}\">{name}</text>");
        }
        axis
    }

    /// A line through every part.
    fn upright(&self, axis: &mut String, class: &str, x: f64) {
        for (top, bottom) in &self.parts {
            let _ =
                writeln!(axis, "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>");
        }
    }

    fn x(&self, seconds: f64) -> f64 {
        // A history of a single moment has a picture too.
        let whole = self.timeline.seconds.max(0.001);
        LEFT + (seconds / whole).clamp(0.0, 1.0) * (RIGHT - LEFT)
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = writeln!(self.svg, "{element}");
    }
}

fn shorten(name: &str) -> String {
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    name.chars().take(LETTERS - 1).chain(['…']).collect()
}

/// The next of 1, 2, 5, 10, 20 and so on, so that half of it is a number that one can read.
fn ceiling(value: f64) -> f64 {
    let mut ceiling = 1.0;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
        if ceiling >= value {
            break;
        }
        ceiling *= factor;
    }
    ceiling
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 { count(value as u64) } else { format!("{value:.1}") }
}

/// Seconds from tick to tick, so that there are about ten.
fn interval(seconds: f64) -> f64 {
    let intervals = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0];
    intervals.into_iter().find(|every| seconds / every <= 12.0).unwrap_or(seconds / 12.0)
}

/// A moment in the unit that suits the whole.
fn moment(seconds: f64, whole: f64) -> String {
    let at = seconds.round() as u64;
    match whole {
        whole if whole < 120.0 => format!("{at} s"),
        whole if whole < 7200.0 => format!("{}:{:02}", at / 60, at % 60),
        _ => format!("{}:{:02} h", at / 3600, at / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_a_number_that_one_can_read() {
        let ceilings = [0.0, 1.0, 1.5, 3.0, 7.0, 11.0, 49.0, 501.0, 1000.0].map(ceiling);
        assert_eq!(ceilings, [1.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 1000.0, 1000.0]);
    }

    #[test]
    fn moments_are_told_in_the_unit_of_the_whole() {
        assert_eq!(moment(30.0, 60.0), "30 s");
        assert_eq!(moment(90.0, 600.0), "1:30");
        assert_eq!(moment(5400.0, 9000.0), "1:30 h");
    }

    #[test]
    fn there_are_never_too_many_ticks() {
        for seconds in [0.1, 1.0, 59.0, 61.0, 3599.0, 86_400.0, 864_000.0] {
            assert!(seconds / interval(seconds) <= 12.0, "{seconds}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shorten("relay-1"), "relay-1");
        assert_eq!(shorten("database-connections-used-up").chars().count(), LETTERS);
    }
}
