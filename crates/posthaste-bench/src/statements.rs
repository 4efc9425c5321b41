//! Counts the statements about the outbox that go through the driver, by what the driver logs.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

static COUNTING: AtomicBool = AtomicBool::new(false);
static STATEMENTS: AtomicU64 = AtomicU64::new(0);

/// Statements while this lives. There can be one at a time.
pub(crate) struct Statements {
    before: u64,
}

impl Statements {
    /// Begins to count. Nothing if something else listens to what is logged.
    pub(crate) fn count() -> Option<Self> {
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        let installed = INSTALLED.get_or_init(|| tracing_subscriber::registry().with(Counting).try_init().is_ok());
        installed.then(|| {
            COUNTING.store(true, Ordering::Release);
            Self { before: STATEMENTS.load(Ordering::Acquire) }
        })
    }

    /// How many there were about the table of the outbox.
    pub(crate) fn so_far(&self) -> u64 {
        STATEMENTS.load(Ordering::Acquire) - self.before
    }
}

impl Drop for Statements {
    fn drop(&mut self) {
        COUNTING.store(false, Ordering::Release);
    }
}

struct Counting;

impl<S: Subscriber> Layer<S> for Counting {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // Asked each time, because counting begins and ends.
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        COUNTING.load(Ordering::Relaxed) && metadata.target() == "sqlx::query"
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut about = AboutOutbox(false);
        event.record(&mut about);
        if about.0 {
            STATEMENTS.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Whether a statement names the table.
struct AboutOutbox(bool);

impl AboutOutbox {
    fn look(&mut self, field: &Field, text: &str) {
        if matches!(field.name(), "summary" | "db.statement") {
            self.0 |= text.contains("outbox_event");
        }
    }
}

impl Visit for AboutOutbox {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.look(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.look(field, &format!("{value:?}"));
    }
}
