//! Where events are published to: a file that outlives the publisher.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste_core::listener::{AnyListener, Verdict, batch};
use posthaste_core::{Delivery, Failure, Outcome};

/// A directory with a file that has a line for each event that was published.
#[derive(Clone)]
pub(crate) struct Destination(PathBuf);

/// What a listener does when it has published.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Says that all went well.
    Done,
    /// Says that the last event of the batch failed.
    LastFailed,
    /// Waits until it may go on.
    Wait,
}

impl Destination {
    pub(crate) fn new(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    fn lines(&self) -> PathBuf {
        self.0.join("published")
    }

    /// The ids of what was published, in order, with repeats.
    pub(crate) fn received(&self) -> Vec<String> {
        let lines = std::fs::read_to_string(self.lines()).unwrap_or_default();
        lines.lines().map(str::to_owned).collect()
    }

    /// One write, which nothing can cut in two and nobody has to flush.
    fn publish(&self, events: &[Delivery]) {
        let lines: String = events.iter().map(|event| format!("{}\n", event.id())).collect();
        let mut file = File::options().create(true).append(true).open(self.lines()).unwrap();
        file.write_all(lines.as_bytes()).unwrap();
    }

    /// A listener that publishes up to that many events at once.
    pub(crate) fn listener(&self, at_once: usize, then: Then) -> AnyListener {
        let destination = self.clone();
        let publish = batch(move |events: Vec<Delivery>| {
            let destination = destination.clone();
            async move {
                destination.publish(&events);
                if then == Then::Wait {
                    destination.until(Mark::GoOn).await;
                }
                let mut verdicts: Vec<Verdict> = events.iter().map(|_| Ok(Outcome::Done)).collect();
                if then == Then::LastFailed {
                    *verdicts.last_mut().unwrap() = Err(Failure::retryable("refused"));
                }
                verdicts
            }
        });
        publish.with_max_batch(at_once).into()
    }

    /// Sets a mark for the other process.
    pub(crate) fn set(&self, mark: Mark) {
        File::create(self.0.join(mark.name())).unwrap();
    }

    /// Waits for a mark of the other process.
    pub(crate) async fn until(&self, mark: Mark) {
        let file = self.0.join(mark.name());
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// What a process tells another.
#[derive(Clone, Copy)]
pub(crate) enum Mark {
    /// Listeners need not wait any more.
    GoOn,
    /// The end that the first signal asks for is under way.
    Ending,
}

impl Mark {
    fn name(self) -> &'static str {
        match self {
            Self::GoOn => "go-on",
            Self::Ending => "ending",
        }
    }
}
