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

use std::borrow::Cow;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::oneshot;

use crate::breaker::Breaker;
use crate::destination::Destination;
use crate::envelope::{Binding, STRUCTURED, TRACE, base64, is_json};
use crate::publisher::{Message, PublishError, Publisher, Results};

/// How long a close waits for lines that are being written.
const LONGEST_CLOSE: Duration = Duration::from_secs(5);

/// How long opening, and a batch, may take. A slow disk is faster, and a reader that is slower than that does not read.
const LONGEST: Duration = Duration::from_secs(10);

/// How much longer an answer is waited for than for a lock, so that it is known that it was the lock.
const LATER: Duration = Duration::from_millis(500);

/// How often it is looked whether a lock is free.
const LOOK: Duration = Duration::from_millis(1);

/// Where lines go, and when they count as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NdjsonOptions {
    name: Option<String>,
    path: Option<PathBuf>,
    sync: bool,
}

impl NdjsonOptions {
    /// Lines on standard output.
    pub fn stdout() -> Self {
        Self::default()
    }

    /// Lines at the end of a file, which is made if it is not there.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Sets what it is called in logs and metrics. Default: the path, or `stdout`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The file that lines go to; nothing for standard output.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Sets whether a line counts as written only when it is on disk. Costs a write to the disk for each batch. Default: no,
    /// since what is for people need not survive a power cut. Standard output cannot be synced; there it means nothing.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }
}

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

/// Something to do with the sink.
type Job = Box<dyn FnOnce(&mut Sink) + Send>;

/// The thread that writes. One that waits for a reader for ever holds up nobody else, not even the end of the program.
#[derive(Clone)]
struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Opens the sink on the new thread, and writes there until nobody asks any more.
    fn start(open: impl FnOnce() -> Option<Sink> + Send + 'static) -> Self {
        let (jobs, next) = mpsc::channel::<Job>();
        let write = move || {
            let Some(mut sink) = open() else { return };
            for job in next {
                job(&mut sink);
            }
        };
        // Without a thread there is nobody to ask, which is said to who does.
        let _ = std::thread::Builder::new().name("posthaste-lines".to_owned()).spawn(write);
        Self { jobs }
    }

    /// Has something done with the sink, if its turn comes in time.
    async fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        job: impl FnOnce(&mut Sink, Instant) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (answer, answered) = oneshot::channel();
        let until = Instant::now() + limit;
        let job = move |sink: &mut Sink| {
            // Nobody waits for it any more.
            if Instant::now() < until {
                let _ = answer.send(job(sink, until));
            }
        };
        self.jobs.send(Box::new(job)).map_err(|_| io::Error::other("its thread has ended"))?;
        match tokio::time::timeout(limit + LATER, answered).await {
            Ok(answer) => answer.map_err(|_| io::Error::other("its turn came too late, or its thread has ended")),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nobody has taken what was written, for {limit:?}"),
            )),
        }
    }
}

/// Lines of a batch, one behind the other, each with its end.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    /// How many bytes it takes to the end of each.
    ends: Vec<usize>,
}

/// What a line of usual length has beside the body.
const BESIDE_BODY: usize = 512;

impl Lines {
    fn add(&mut self, messages: &[Message]) {
        self.text.reserve(messages.iter().map(|message| message.body.len() + BESIDE_BODY).sum());
        self.ends.reserve(messages.len());
        for message in messages {
            push_line(&mut self.text, message);
            self.end();
        }
    }

    fn end(&mut self) {
        self.text.push(b'\n');
        self.ends.push(self.text.len());
    }
}

/// How many batches are kept for others to come, and how large those are at most.
const SPARE: (usize, usize) = (8, 4 << 20);

/// Room of lines that were written, for those of batches to come.
#[derive(Clone, Default)]
struct Spare(Arc<Mutex<Vec<Lines>>>);

impl Spare {
    fn lines_of(&self, messages: &[Message]) -> Lines {
        let mut lines = self.all().pop().unwrap_or_default();
        lines.add(messages);
        lines
    }

    fn keep(&self, mut lines: Lines) {
        let (most, largest) = SPARE;
        let mut all = self.all();
        if all.len() < most && lines.text.capacity() + lines.ends.capacity() * size_of::<usize>() <= largest {
            lines.text.clear();
            lines.ends.clear();
            all.push(lines);
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Lines>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the line of a message, without its end.
fn push_line(line: &mut Vec<u8>, message: &Message) {
    let json = Some(&*message.body).filter(|_| is_json(&message.content_type) && has_json(message));
    if let Some(event) = json.filter(|_| is_structured(message)) {
        return push_on_one_line(line, event);
    }
    push(line, b"{\"id\":", message.id.as_str());
    if let Some(key) = &message.key {
        push(line, b",\"key\":", key);
    }
    push(line, b",\"content_type\":", &message.content_type);
    line.extend_from_slice(b",\"headers\":{");
    for (at, (name, value)) in message.headers.iter().enumerate() {
        push(line, if at == 0 { b"" } else { b"," }, name);
        push(line, b":", value);
    }
    match json {
        Some(body) => {
            line.extend_from_slice(b"},\"body\":");
            push_on_one_line(line, body);
        }
        None => push(line, b"},\"body_base64\":", &base64(&message.body)),
    }
    line.push(b'}');
}

/// Whether the body is JSON, which is known of nearly every event.
fn has_json(message: &Message) -> bool {
    let is_read = |text| serde_json::from_str::<IgnoredAny>(text).is_ok();
    message.body.is_known_as_json() || std::str::from_utf8(&message.body).is_ok_and(is_read)
}

/// Whether the message is in the envelope whose body has everything. An event may be called so, too, but has headers then.
fn is_structured(message: &Message) -> bool {
    message.content_type == STRUCTURED && message.headers.iter().all(|(name, _)| TRACE.contains(&name))
}

fn push(line: &mut Vec<u8>, before: &[u8], text: &str) {
    line.extend_from_slice(before);
    // All of it is looked at, which is quicker than to ask each time whether to go on.
    let is_odd = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    if text.bytes().fold(false, |odd, byte| odd | is_odd(byte)) {
        return serde_json::to_writer(line, text).expect("text can be written to memory as JSON");
    }
    line.push(b'"');
    line.extend_from_slice(text.as_bytes());
    line.push(b'"');
}

/// Adds JSON on one line. Between its tokens a line break is as good as a space, and inside of strings there is none.
fn push_on_one_line(line: &mut Vec<u8>, json: &[u8]) {
    let (start, is_break) = (line.len(), |byte: u8| (byte == b'\n') | (byte == b'\r'));
    line.extend_from_slice(json);
    if json.iter().fold(false, |found, byte| found | is_break(*byte)) {
        line[start..].iter_mut().filter(|byte| is_break(**byte)).for_each(|byte| *byte = b' ');
    }
}

/// What became of lines.
#[derive(Default)]
struct Written {
    /// How many of them were written whole.
    lines: usize,
    /// How many bytes it takes to the end of the last of these.
    whole: usize,
    /// How many bytes were written.
    bytes: usize,
    /// Why not all of them.
    error: Option<io::Error>,
}

impl From<io::Error> for Written {
    fn from(error: io::Error) -> Self {
        Self { error: Some(error), ..Self::default() }
    }
}

/// Where lines are written to.
enum Sink {
    Stdout {
        /// The last line was not written whole.
        torn: bool,
    },
    File(Appended),
}

impl Sink {
    fn append(&mut self, lines: &Lines, until: Instant) -> Written {
        match self {
            Self::Stdout { torn } => {
                // Held against what others print; written to directly, since a buffer would not say what of it arrived.
                let mut held = io::stdout().lock();
                match held.flush().and_then(|()| direct(&held)) {
                    Ok(mut out) => append(&mut out, torn, lines),
                    Err(error) => error.into(),
                }
            }
            Self::File(file) => file.append(lines, until),
        }
    }

    fn check(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout { .. } => Ok(()),
            Self::File(file) => file.follow(),
        }
    }
}

/// Standard output without its buffer.
#[cfg(unix)]
fn direct(stdout: &io::StdoutLock<'_>) -> io::Result<File> {
    use std::os::fd::AsFd;
    stdout.as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(windows)]
fn direct(stdout: &io::StdoutLock<'_>) -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    stdout.as_handle().try_clone_to_owned().map(File::from)
}

/// Writes the lines. If the last line there is torn they begin on a line of their own.
fn append(out: &mut impl Write, torn: &mut bool, lines: &Lines) -> Written {
    // By one call all the same: another process may write between two.
    let text = if *torn { Cow::Owned([b"\n", &*lines.text].concat()) } else { Cow::Borrowed(&lines.text) };
    let before = text.len() - lines.text.len();
    let mut bytes = 0;
    let error = loop {
        if bytes == text.len() {
            break None;
        }
        match out.write(&text[bytes..]) {
            Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
            Ok(more) => bytes += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error),
        }
    };
    if let Some(last) = text[..bytes].last() {
        *torn = *last != b'\n';
    }
    let whole_lines = lines.ends.partition_point(|end| before + end <= bytes);
    let whole = whole_lines.checked_sub(1).map_or(0, |last| before + lines.ends[last]);
    Written { lines: whole_lines, whole, bytes, error }
}

/// A file at whose end lines are written.
struct Appended {
    path: PathBuf,
    file: File,
    /// Whether it can be cut and synced, which pipes and devices cannot.
    regular: bool,
    sync: bool,
    /// The last line was not written whole, as far as is known without reading it.
    torn: bool,
}

impl Appended {
    fn open(path: PathBuf, sync: bool) -> io::Result<Self> {
        let (file, regular) = open(&path)?;
        if sync && regular {
            sync_directory_of(&path)?;
        }
        Ok(Self { path, file, regular, sync, torn: false })
    }

    /// Opens it again if its name is no longer its own.
    fn follow(&mut self) -> io::Result<()> {
        if self.regular && !is_at(&self.file, &self.path) {
            *self = Self::open(self.path.clone(), self.sync)?;
        }
        Ok(())
    }

    fn append(&mut self, lines: &Lines, until: Instant) -> Written {
        match self.follow() {
            Ok(()) if self.regular => self.append_in_turn(lines, until).unwrap_or_else(Written::from),
            Ok(()) => append(&mut self.file, &mut self.torn, lines),
            Err(error) => error.into(),
        }
    }

    fn append_in_turn(&mut self, lines: &Lines, until: Instant) -> io::Result<Written> {
        let _turn = Turn::take(&self.file, until)?;
        let start = self.file.metadata()?.len();
        let was_torn = self.ends_torn(start);
        self.torn = was_torn;
        let written = append(&mut &self.file, &mut self.torn, lines);
        // What somebody else wrote behind it, out of turn, is not cut off.
        if self.torn && self.file.metadata()?.len() == start + written.bytes as u64 {
            self.file.set_len(start + written.whole as u64)?;
            self.torn = was_torn && written.whole == 0;
        }
        if self.sync && written.lines > 0 {
            self.file.sync_data()?;
        }
        Ok(written)
    }

    /// Whether its last line has no end, because whoever wrote it was stopped.
    fn ends_torn(&self, len: u64) -> bool {
        let mut last = [0];
        let mut file = &self.file;
        if len == 0 {
            return false;
        }
        match file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last)) {
            Ok(()) => last != *b"\n",
            // It may be written and not read.
            Err(_) => self.torn,
        }
    }
}

/// The right to write to a file, among those who ask for it.
struct Turn<'a>(&'a File);

impl<'a> Turn<'a> {
    fn take(file: &'a File, until: Instant) -> io::Result<Self> {
        loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "another process holds the lock of the file"));
                }
                Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self(file)),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Opens a file for lines at its end, and says whether it is one, and not a pipe or a device.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let regular = std::fs::metadata(path).map_or(true, |found| found.is_file());
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // Its last byte is read. A pipe must not be: who reads it would not notice that everybody else is gone.
    let opened = match options.read(regular).open(path) {
        Err(error) if regular && error.kind() == io::ErrorKind::PermissionDenied => options.read(false).open(path),
        opened => opened,
    };
    Ok((opened?, regular))
}

/// A new file is on disk when its name is, too.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// Whether a file is still the one of that name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().is_ok_and(|open| std::fs::metadata(path).is_ok_and(|named| identity(named) == identity(open)))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, and no more until there is room again.
    struct Full {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let some = bytes.len().min(self.room).min(5);
            if some == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.taken.extend_from_slice(&bytes[..some]);
            self.room -= some;
            Ok(some)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(lines: &[Vec<u8>]) -> Lines {
        let mut all = Lines::default();
        for line in lines {
            all.text.extend_from_slice(line);
            all.end();
        }
        all
    }

    #[test]
    fn wherever_a_line_is_torn_the_next_begins_on_its_own() {
        let texts = [b"{\"a\":1}".to_vec(), b"{}".to_vec(), b"{\"b\":[2]}".to_vec()];
        let all: usize = texts.iter().map(|line| line.len() + 1).sum();
        for room in 0..=all {
            for second_room in 0..=3 {
                let (mut out, mut torn) = (Full { taken: Vec::new(), room }, false);
                let first = append(&mut out, &mut torn, &lines(&texts));
                assert_eq!((first.bytes, first.error.is_none()), (room, room == all));
                assert_eq!(torn, out.taken.last().is_some_and(|last| *last != b'\n'), "{room}");
                out.room = second_room;
                let second = append(&mut out, &mut torn, &lines(&texts[first.lines..]));
                out.room = usize::MAX;
                let third = append(&mut out, &mut torn, &lines(&texts[first.lines + second.lines..]));
                assert!(third.error.is_none() && first.lines + second.lines + third.lines == texts.len());
                let text = String::from_utf8(out.taken).unwrap();
                let mut whole: Vec<&str> = text.lines().filter(|line| line.ends_with('}')).collect();
                // A line of which only the end was missing comes again.
                whole.dedup();
                assert_eq!(whole, texts.iter().map(|line| std::str::from_utf8(line).unwrap()).collect::<Vec<_>>());
                assert!(text.ends_with('\n') && !text.contains("}{"), "{room}, then {second_room}: {text}");
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_remembered_to_be_torn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        std::fs::write(&path, "{\"torn").unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut appended = Appended { path: path.clone(), file, regular: true, sync: true, torn: true };
        let until = Instant::now() + LONGEST;
        assert_eq!(appended.append(&lines(&[b"{}".to_vec()]), until).lines, 1);
        assert_eq!(appended.append(&lines(&[b"{}".to_vec()]), until).lines, 1);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "{\"torn\n{}\n{}\n");
    }
}
