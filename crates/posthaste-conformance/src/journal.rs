//! What was logged.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// What this thread logs as long as it is kept. For cases on a runtime of one thread.
pub struct Journal {
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    _guard: DefaultGuard,
}

impl Journal {
    /// Begins to keep what is logged.
    pub fn keep() -> Self {
        let lines = Arc::default();
        let guard = set_default(Scribe(Arc::clone(&lines)));
        Self { lines, _guard: guard }
    }

    /// Whether something was logged at that level that contains the text.
    pub(crate) fn has(&self, level: Level, text: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|(at, line)| *at == level && line.contains(text))
    }

    /// Fails unless something was.
    pub fn assert_has(&self, level: Level, text: &str) {
        assert!(self.has(level, text), "{level} {text} is not in the journal: {:#?}", self.lines.lock().unwrap());
    }
}

struct Scribe(Arc<Mutex<Vec<(Level, String)>>>);

impl Subscriber for Scribe {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("posthaste")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push((*event.metadata().level(), line.0));
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
