//! What was found, and how it is told.

use std::io;

use serde_json::json;

use crate::output::Output;

/// How bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// It was looked at, and nothing is wrong.
    #[default]
    Fine,
    /// It may be wanted so, or could not be looked at.
    Note,
    /// It will do harm sooner or later.
    Warning,
    /// It keeps events from being delivered, or loses them.
    Problem,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

struct Finding {
    level: Level,
    check: String,
    what: String,
    fix: Option<String>,
}

/// What was found, in the order in which it was looked at.
#[derive(Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn fine(&mut self, check: impl Into<String>, what: impl Into<String>) {
        self.0.push(Finding { level: Level::Fine, check: check.into(), what: what.into(), fix: None });
    }

    pub(super) fn note(&mut self, check: impl Into<String>, what: impl Into<String>, fix: impl Into<String>) {
        self.push(Level::Note, check.into(), what.into(), fix.into());
    }

    pub(super) fn warning(&mut self, check: impl Into<String>, what: impl Into<String>, fix: impl Into<String>) {
        self.push(Level::Warning, check.into(), what.into(), fix.into());
    }

    pub(super) fn problem(&mut self, check: impl Into<String>, what: impl Into<String>, fix: impl Into<String>) {
        self.push(Level::Problem, check.into(), what.into(), fix.into());
    }

    fn push(&mut self, level: Level, check: String, what: String, fix: String) {
        self.0.push(Finding { level, check, what, fix: Some(fix) });
    }

    /// Says that nothing is wrong, unless something was found in this check.
    pub(super) fn fine_unless_found(&mut self, check: &str, what: impl Into<String>) {
        if !self.has(check) {
            self.fine(check, what);
        }
    }

    /// Whether something was found in this check already that is not fine.
    pub(super) fn has(&self, check: &str) -> bool {
        self.0.iter().any(|finding| finding.check == check && finding.level > Level::Fine)
    }

    pub(super) fn worst(&self) -> Level {
        self.0.iter().map(|finding| finding.level).max().unwrap_or_default()
    }

    pub(super) fn print(&self, output: Output) -> io::Result<()> {
        let mut rows = output.rows(&["LEVEL", "CHECK", "FINDING", "FIX"]);
        for Finding { level, check, what, fix } in &self.0 {
            let cells = vec![
                level.name().to_owned(),
                check.clone(),
                what.clone(),
                fix.clone().unwrap_or_else(|| "-".to_owned()),
            ];
            rows.push(cells, json!({ "level": level.name(), "check": check, "finding": what, "fix": fix }))?;
        }
        rows.print()
    }
}
