//! What is seen while the demo runs: a live picture on a terminal, plain lines elsewhere. All of it goes to stderr.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use console::style;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::figures::Figures;
use super::plan::Plan;
use super::service::Service;
use super::units::{clock, count, counted, length, rate};

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(80);

/// Between two plain lines.
const LINE: Duration = Duration::from_secs(1);

/// The stretch of time over which the rate is taken.
const RATE_OVER: Duration = Duration::from_secs(1);

/// What is seen while the demo runs. Cheap to clone.
#[derive(Clone)]
pub(super) struct View {
    figures: Arc<Figures>,
    /// Nothing where there is no terminal to draw on.
    bar: Option<ProgressBar>,
}

impl View {
    pub(super) fn new(figures: Arc<Figures>, events: u64) -> Self {
        Self { figures, bar: can_draw().then(|| bar(events)) }
    }

    /// Says what is going to happen.
    pub(super) fn title(&self, plan: &Plan, workers: u16) {
        let (name, rest) = ("Posthaste demo", "an order service, tripped up on purpose, that loses nothing");
        let orders = counted(plan.events(), "order");
        self.print(&format!("{}: {rest}", style(name).for_stderr().bold()));
        self.print("");
        self.print(&format!("  {orders}, each stored in one transaction with its event, on SQLite;"));
        self.print("  1 in 20 is rolled back, 1 delivery in 50 fails, and 1 event is poison.");
        let listeners = counted(workers.into(), "listener");
        self.print(&format!("  {listeners} at once; half-way the dispatcher is killed. Seed {}.", plan.seed()));
        self.print("");
        if self.bar.is_none() {
            self.print(&header());
        }
    }

    /// Says that something happened.
    pub(super) fn note(&self, text: &str) {
        self.happened(text);
    }

    /// Says that something bad happened.
    pub(super) fn alarm(&self, text: &str) {
        self.happened(&style(text).for_stderr().yellow().to_string());
    }

    /// Says that something bad is over.
    pub(super) fn relief(&self, text: &str) {
        self.happened(&style(text).for_stderr().green().to_string());
    }

    /// Keeps the picture current until it is dropped.
    pub(super) async fn keep_current(&self, service: &Service, plan: &Plan) -> Infallible {
        let mut ticks = tokio::time::interval(FRAME);
        let mut line_at = Instant::now() + LINE;
        let mut deliveries = Deliveries::new();
        let mut poison_is_dead = false;
        // The first tick comes at once, when there is nothing to tell.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let rate = deliveries.rate(self.figures.delivered.get());
            if self.figures.dead.get() > 0 && !poison_is_dead {
                poison_is_dead = true;
                self.alarm(&format!("the event of order {} is poison, and DEAD now", plan.poison()));
            }
            match &self.bar {
                Some(bar) => self.draw(bar, &rate, service.in_hand()),
                None if Instant::now() >= line_at => {
                    line_at += LINE;
                    self.print(&self.line(rate));
                }
                None => {}
            }
        }
    }

    /// Takes the picture away; the notes stay.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn draw(&self, bar: &ProgressBar, rate: &str, in_hand: usize) {
        let figures = &self.figures;
        let latency = |share| figures.hot_latency(share).map_or_else(|| "–".to_owned(), length);
        let grid = [
            [("written", count(figures.written.get())), ("delivered", count(figures.delivered.get()))],
            [("rolled back", count(figures.rolled_back.get())), ("retried", count(figures.retried.get()))],
            [("rate", rate.to_owned()), ("hot p50", latency(0.5))],
        ];
        let last =
            [("in hand", count(in_hand as u64)), ("dead", count(figures.dead.get())), ("hot p99", latency(0.99))];
        let mut picture = format!("{} of {} orders\n", count(figures.placed()), count(bar.length().unwrap_or(0)));
        for (row, end) in grid.iter().zip(&last) {
            picture.push_str("\n ");
            for (label, value) in row.iter().chain([end]) {
                // Padded before it is coloured: the escape codes have no width.
                let (label, value) = (format!("{label:<11}"), format!("{value:>9}"));
                picture.push_str(&format!(
                    " {} {}  ",
                    style(label).for_stderr().dim(),
                    style(value).for_stderr().bold()
                ));
            }
        }
        bar.set_position(figures.placed());
        bar.set_message(picture);
        bar.tick();
    }

    fn line(&self, rate: String) -> String {
        let figures = &self.figures;
        let latency = |share| figures.hot_latency(share).map_or_else(|| "-".to_owned(), length);
        line(&[
            clock(figures.elapsed()),
            count(figures.written.get()),
            count(figures.delivered.get()),
            count(figures.retried.get()),
            count(figures.dead.get()),
            count(figures.rolled_back.get()),
            rate,
            latency(0.5),
            latency(0.99),
        ])
    }

    fn happened(&self, text: &str) {
        let at = format!("{:>7}", clock(self.figures.elapsed()));
        self.print(&format!("{}  {text}", style(at).for_stderr().dim()));
    }

    fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }
}

/// Says something on stderr. Whoever reads may have gone, which is no reason to stop.
pub(super) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether there is a terminal that a picture can be drawn on. Logs between its lines would spoil it.
fn can_draw() -> bool {
    std::io::stdout().is_terminal()
        && console::user_attended_stderr()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        && std::env::var_os("RUST_LOG").is_none()
}

fn bar(events: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(events), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("\n  {bar:46.cyan/black.bright}  {msg}\n").expect("the template is valid");
    bar.set_style(style.progress_chars("━╸─"));
    bar
}

/// The deliveries of the last moments.
struct Deliveries(VecDeque<(Instant, u64)>);

impl Deliveries {
    fn new() -> Self {
        Self(VecDeque::from([(Instant::now(), 0)]))
    }

    /// Takes the new count, and gives the rate.
    fn rate(&mut self, delivered: u64) -> String {
        let now = Instant::now();
        self.0.push_back((now, delivered));
        while self.0.len() > 2 && self.0.get(1).is_some_and(|(at, _)| now - *at >= RATE_OVER) {
            self.0.pop_front();
        }
        let (since, before) = self.0.front().copied().unwrap_or((now, delivered));
        rate(delivered.saturating_sub(before), now - since)
    }
}

/// The columns of a plain line.
const COLUMNS: [(&str, usize); 9] = [
    ("time", 7),
    ("written", 9),
    ("delivered", 10),
    ("retried", 8),
    ("dead", 5),
    ("rolled back", 12),
    ("rate", 9),
    ("hot p50", 9),
    ("hot p99", 9),
];

fn header() -> String {
    line(&COLUMNS.map(|(name, _)| name.to_owned()))
}

fn line(cells: &[String; 9]) -> String {
    cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}")).collect()
}
