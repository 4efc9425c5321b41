//! Brokers that a test starts for itself, and what tests of brokers have in common.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use posthaste_core::store::{AdminStore, Counts, Filter, Page, Record};
use posthaste_core::{Event, EventId, MemoryStore, Outbox};
use posthaste_publishers::{Message, PublishError, PublishErrorKind};
#[cfg(any(feature = "mqtt", feature = "redis"))]
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// What a variable says that `scripts/brokers/NAME start` prints.
pub(crate) fn variable(name: &str, broker: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set; start a server with: eval \"$(scripts/brokers/{broker} start DIR)\"")
    })
}

/// A broker of one test, which can be stopped and started again.
pub(crate) struct Started {
    broker: &'static str,
    arguments: Vec<String>,
    pub(crate) directory: TempDir,
}

impl Started {
    /// Starts one, with arguments of its own. Its URL is the other thing.
    pub(crate) fn new(broker: &'static str, arguments: &[&str]) -> (Self, String) {
        Self::with_files(broker, arguments, &[])
    }

    /// The same with files in its directory; `{dir}` in an argument or a file is that directory.
    pub(crate) fn with_files(broker: &'static str, arguments: &[&str], files: &[(&str, &str)]) -> (Self, String) {
        let directory = tempfile::tempdir().unwrap();
        let filled = |text: &str| text.replace("{dir}", directory.path().to_str().unwrap());
        for (name, text) in files {
            std::fs::write(directory.path().join(name), filled(text)).unwrap();
        }
        let arguments = arguments.iter().map(|argument| filled(argument)).collect();
        let started = Self { broker, arguments, directory };
        let url = started.start();
        (started, url)
    }

    pub(crate) fn start(&self) -> String {
        let name = format!("POSTHASTE_TEST_{}_URL=", self.broker.to_uppercase());
        let directory = self.directory.path().join("server");
        let mut command = Command::new(script(self.broker));
        let output =
            command.arg("start").arg(directory).args(&self.arguments).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "scripts/brokers/{} start failed", self.broker);
        let printed = String::from_utf8(output.stdout).unwrap();
        let url = printed.lines().find_map(|line| line.strip_prefix("export ")?.strip_prefix(&name));
        url.unwrap_or_else(|| panic!("no {name} in {printed}")).to_owned()
    }

    pub(crate) fn stop(&self) {
        run(script(self.broker), [OsStr::new("stop"), self.directory.path().join("server").as_os_str()]);
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let directory = self.directory.path().join("server");
        Command::new(script(self.broker)).arg("stop").arg(directory).status().ok();
    }
}

fn script(broker: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/brokers").join(broker)
}

/// What a program prints, which has to end well.
pub(crate) fn run(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    String::from_utf8(run_for_bytes(program, arguments)).unwrap()
}

/// The same where not all that it prints is text.
pub(crate) fn run_for_bytes(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Vec<u8> {
    let mut command = Command::new(program);
    let Output { status, stdout, stderr } = command.args(arguments).output().unwrap();
    assert!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    stdout
}

/// JSON in whose strings there may be any bytes: each of them is a character of its own here.
#[cfg(any(feature = "mqtt", feature = "redis"))]
pub(crate) fn json_of_bytes<T: DeserializeOwned>(printed: &[u8]) -> T {
    let text: String = printed.iter().copied().map(char::from).collect();
    serde_json::from_str(&text).unwrap()
}

/// The bytes of such a string.
#[cfg(any(feature = "mqtt", feature = "redis"))]
pub(crate) fn bytes_of(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
}

/// The text that such a string is.
#[cfg(any(feature = "mqtt", feature = "redis"))]
pub(crate) fn text_of(text: &str) -> String {
    String::from_utf8(bytes_of(text)).unwrap()
}

/// A message with that id and body.
pub(crate) fn message(to: &str, id: &str, body: impl Into<Vec<u8>>) -> Message {
    Message {
        id: EventId::new(id).unwrap(),
        to: to.into(),
        key: None,
        content_type: "application/json".into(),
        headers: [("event-id", id), ("event-type", "Test")].into(),
        body: body.into().into(),
    }
}

/// So many of them, with numbers as ids and bodies.
pub(crate) fn messages(to: &str, prefix: &str, how_many: usize) -> Vec<Message> {
    (0..how_many).map(|n| message(to, &format!("{prefix}-{n}"), n.to_string())).collect()
}

/// The kinds of the failures, with `None` for what was acknowledged.
pub(crate) fn kinds(results: &[Result<(), PublishError>]) -> Vec<Option<PublishErrorKind>> {
    results.iter().map(|result| result.as_ref().err().map(PublishError::kind)).collect()
}

/// Writes so many events to an outbox, for one aggregate.
pub(crate) async fn write(outbox: &Outbox<MemoryStore>, numbers: std::ops::Range<usize>) {
    let event =
        |n: usize| Event::builder("Counted").id(format!("event-{n}")).aggregate("Test", 1).json_text(n.to_string());
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all(numbers.map(event)).await.unwrap();
    tx.commit().await.unwrap();
}

/// Waits until the table is like that.
pub(crate) async fn until(store: &MemoryStore, what: &str, wanted: impl Fn(Counts) -> bool) {
    for _ in 0..9_000 {
        if wanted(store.counts().await.unwrap()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let failed = rows(store).await.into_iter().find_map(|row| row.state.last_error);
    panic!("waited in vain until {what}: {:?}, {failed:?}", store.counts().await.unwrap());
}

/// All rows.
pub(crate) async fn rows(store: &MemoryStore) -> Vec<Record> {
    store.list(&Filter::default(), &Page { limit: 10_000, ..Page::default() }).await.unwrap()
}
