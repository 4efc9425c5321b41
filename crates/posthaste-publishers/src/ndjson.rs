//! A line of JSON for each event, on standard output or in a file: for people, for tests, and for whatever collects lines.
//!
//! ```
//! use posthaste_core::{Event, MemoryStore, Outbox};
//! use posthaste_publishers::Ndjson;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("orders.ndjson");
//! let file = Ndjson::file(&path).await?;
//! let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", file.lines()).start().await?;
//! let mut tx = outbox.begin().await?;
//! tx.write(Event::builder("OrderPlaced").id("order-42").aggregate("Order", 42).json_text(r#"{"total": 1990}"#)).await?;
//! tx.commit().await?;
//! outbox.shutdown().await;
//!
//! let line = std::fs::read_to_string(&path)?;
//! assert!(line.starts_with(r#"{"id":"order-42","key":"42","content_type":"application/json","headers":{"event-id":"#));
//! assert!(line.ends_with("\"body\":{\"total\": 1990}}\n"));
//! # Ok(())
//! # }
//! ```
//!
//! # A line
//! `id`, `key` (if there is one), `content_type`, `headers` as the envelope says, and the payload: as `body` if it is JSON,
//! otherwise as `body_base64`. Line breaks inside JSON become spaces. In the envelope
//! [`CloudEventsStructured`](crate::Envelope::CloudEventsStructured) the line is the CloudEvent itself.
//!
//! # What is promised
//! - *Acknowledgement*: the whole line was handed to the operating system; with [`sync`](NdjsonOptions::sync) it is on disk.
//! - *Repeats*: nothing is de-duplicated. A line that comes twice has the same `id`.
//! - *Order*: lines are in the order in which they were sent. Several processes may write to one file: they take turns, with a lock.
//! - *Outage*: whatever the operating system says, such as a full disk or a pipe whose reader is gone, and what takes longer than
//!   ten seconds, such as a pipe whose reader reads nothing or a lock that somebody holds. No event is to blame for it. Lines that
//!   were written whole before it are acknowledged; of a line that was not, the rest is cut off, or, where nothing can be cut off,
//!   ended by a line break before the next. So no line ever has two events.
//!
//! A file that was renamed or deleted, as logs are, is made again under its name. What a full pipe holds up is one thread, which
//! writes when somebody reads again; its lines then come twice.

mod file;
mod lines;
mod options;
mod sink;
mod writer;

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::envelope::Binding;
use crate::publisher::{Message, PublishError, Publisher, Results};

use file::Appended;
use lines::Spare;
use sink::{Sink, Written};
use writer::Writer;

pub use options::NdjsonOptions;

/// How long a close waits for lines that are being written.
const LONGEST_CLOSE: Duration = Duration::from_secs(5);

/// How long opening, and a batch, may take. A slow disk is faster, and a reader that is slower than that does not read.
const LONGEST: Duration = Duration::from_secs(10);

/// Writes a line of JSON for each event. Cheap to clone; clones write to the same place, and share the breaker.
#[derive(Clone)]
pub struct Ndjson {
    writer: Writer,
    spare: Spare,
    name: Arc<str>,
    breaker: Breaker,
}

impl Ndjson {
    /// Lines on standard output.
    pub fn stdout() -> Self {
        Self::on_stdout("stdout".to_owned())
    }

    /// Lines at the end of a file, which is made if it is not there.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn file(path: impl Into<PathBuf>) -> io::Result<Self> {
        Self::connect(NdjsonOptions::file(path)).await
    }

    /// Lines where the options say.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub async fn connect(options: NdjsonOptions) -> io::Result<Self> {
        let Some(path) = options.path else {
            return Ok(Self::on_stdout(options.name.unwrap_or_else(|| "stdout".to_owned())));
        };
        let shown = path.display().to_string();
        let (tell, told) = mpsc::channel();
        let at = path.clone();
        let writer = Writer::start(move || match Appended::open(at, options.sync) {
            Ok(file) => tell.send(Ok(())).ok().map(|()| Sink::File(file)),
            Err(error) => {
                let _ = tell.send(Err(error));
                None
            }
        });
        // Opening a named pipe waits for its reader.
        let opened = match blocking(move || told.recv_timeout(LONGEST)).await? {
            Ok(opened) => opened,
            Err(_) => {
                // One that reads for a moment lets the thread go.
                let _ = blocking(move || OpenOptions::new().read(true).write(true).open(path)).await;
                Err(io::Error::new(io::ErrorKind::TimedOut, "nobody opens it at its other end"))
            }
        };
        opened.map_err(|error| io::Error::new(error.kind(), format!("{shown} cannot be opened: {error}")))?;
        Ok(Self::writing(options.name.unwrap_or(shown), writer))
    }

    fn on_stdout(name: String) -> Self {
        Self::writing(name, Writer::start(|| Some(Sink::Stdout { torn: false })))
    }

    fn writing(name: String, writer: Writer) -> Self {
        Self { breaker: Breaker::new(&*name), name: name.into(), writer, spare: Spare::default() }
    }

    /// Writes a line for each message, and says how many were written whole, and why not all of them.
    async fn write(&self, messages: &[Message]) -> (usize, Option<io::Error>) {
        let lines = self.spare.lines_of(messages);
        let write = move |sink: &mut Sink, until| (sink.append(&lines, until), lines);
        match self.writer.ask(LONGEST, write).await {
            Ok((Written { lines: whole, error, .. }, lines)) => {
                self.spare.keep(lines);
                (whole, error)
            }
            Err(error) => (0, Some(error)),
        }
    }

    /// What became of each of so many messages, of which so many were written.
    fn results(
        &self,
        sent: usize,
        (lines, error): (usize, Option<io::Error>),
    ) -> impl Iterator<Item = Result<(), PublishError>> {
        let reason = error.map(|error| format!("{} cannot be written to: {error}", self.name)).unwrap_or_default();
        (0..sent).map(move |at| if at < lines { Ok(()) } else { Err(PublishError::outage(reason.clone())) })
    }

    /// Sends events there: a line for each.
    pub fn lines(&self) -> Destination<Self> {
        Destination::new(Arc::new(self.clone()), self.breaker.clone(), "lines")
    }

    /// The breaker, which opens when nothing can be written.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }
}

impl Publisher for Ndjson {
    const BINDING: Binding = Binding::Fields;

    fn name(&self) -> &str {
        &self.name
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.results(messages.len(), self.write(&messages).await).collect()
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let written = self.write(&messages).await;
        match written.0 == messages.len() {
            true => results.acknowledge_all(),
            false => results.note_all(self.results(messages.len(), written)),
        }
    }

    /// Whether the file can still be opened. Whether the disk is full, or anybody reads, is known by writing only.
    async fn check(&self) -> Result<(), PublishError> {
        let checked = self.writer.ask(LONGEST, |sink, _| sink.check()).await.flatten();
        checked.map_err(|error| PublishError::outage(format!("{} cannot be opened: {error}", self.name)))
    }

    async fn close(&self) {
        // Nothing is kept back; only a batch that is being written is waited for.
        let _ = self.writer.ask(LONGEST_CLOSE, |_, _| ()).await;
    }
}

impl fmt::Debug for Ndjson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ndjson").field("name", &self.name).field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

/// What may block, off the threads of the runtime. It has to end by itself.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    Ok(tokio::task::spawn_blocking(call).await?)
}
