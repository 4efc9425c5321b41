//! The table at the end: what was measured, and whether it reaches its goal.

/// What was measured, and whether it reaches its goal.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<Line>,
}

struct Line {
    what: String,
    measured: String,
    goal: String,
    reached: bool,
}

impl Report {
    /// A figure that must not be above its goal.
    pub(crate) fn at_most(&mut self, what: &str, measured: f64, goal: f64, unit: &str) {
        self.line(what, measured, "≤", goal, unit, measured <= goal);
    }

    /// A figure that must not be below its goal.
    pub(crate) fn at_least(&mut self, what: &str, measured: f64, goal: f64, unit: &str) {
        self.line(what, measured, "≥", goal, unit, measured >= goal);
    }

    fn line(&mut self, what: &str, measured: f64, sign: &str, goal: f64, unit: &str, reached: bool) {
        let digits = if goal < 10.0 { 2 } else { 0 };
        self.lines.push(Line {
            what: what.to_owned(),
            measured: format!("{measured:.digits$} {unit}"),
            goal: format!("{sign} {goal:.digits$} {unit}"),
            reached,
        });
    }

    pub(crate) fn reached(&self) -> bool {
        self.lines.iter().all(|line| line.reached)
    }

    pub(crate) fn print(&self) {
        println!("\n{:<44} {:>18} {:>18}", "workload", "measured", "goal");
        for line in &self.lines {
            let mark = if line.reached { "reached" } else { "MISSED" };
            println!("{:<44} {:>18} {:>18}  {mark}", line.what, line.measured, line.goal);
        }
    }
}

/// The middle of several measurements.
pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
