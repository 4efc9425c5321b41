//! The broker of the tests, and what else they share.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use posthaste_core::{Event, EventId, MemoryStore, Outbox};
use posthaste_publishers::Message;
use serde_json::Value;

/// A broker, and the Python that reads it back.
pub(super) struct Server {
    pub(super) url: String,
    python: String,
}

pub(super) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run eval \"$(scripts/brokers/rabbitmq start DIR)\", and stop it afterwards")
    })
}

/// The broker that all share.
pub(super) fn server() -> Server {
    Server { url: variable("POSTHASTE_TEST_RABBITMQ_URL"), python: variable("POSTHASTE_TEST_RABBITMQ_PYTHON") }
}

impl Server {
    /// The same broker for somebody else.
    pub(super) fn url_of(&self, user: &str, password: &str) -> String {
        self.url.replacen("guest:guest", &format!("{user}:{password}"), 1)
    }

    pub(super) fn address(&self) -> std::net::SocketAddr {
        let address = self.url.split_once('@').unwrap().1;
        address.split_once('/').unwrap().0.parse().unwrap()
    }

    pub(super) fn make(&self, what: &Value) {
        self.python("make", &what.to_string());
    }

    /// Takes everything out of a queue.
    pub(super) fn take(&self, queue: &str) -> Vec<Value> {
        self.python("take", queue).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// How many messages a queue has, which is deleted with them.
    pub(super) fn count(&self, queue: &str) -> usize {
        self.python("count", queue).trim().parse().unwrap()
    }

    fn python(&self, command: &str, argument: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/rabbitmq.py");
        run(Command::new(&self.python).arg(script).args([&self.url, command, argument]))
    }
}

/// A broker of one test alone, which may be stopped.
pub(super) struct Private {
    directory: tempfile::TempDir,
    pub(super) server: Server,
}

impl Private {
    pub(super) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = started(directory.path());
        Self { server: Server { url, python: variable("POSTHASTE_TEST_RABBITMQ_PYTHON") }, directory }
    }

    pub(super) fn stop(&self) {
        run(Command::new(script()).arg("stop").arg(self.directory.path()));
    }

    /// Starts it again, where it was.
    pub(super) fn start_again(&self) {
        assert_eq!(started(self.directory.path()), self.server.url);
    }

    pub(super) fn ctl(&self, arguments: &[&str]) {
        run(Command::new(script()).arg("ctl").arg(self.directory.path()).args(arguments));
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        self.stop();
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/brokers/rabbitmq")
}

fn started(directory: &Path) -> String {
    let said = run(Command::new(script()).arg("start").arg(directory));
    let url = said.lines().find_map(|line| line.strip_prefix("export POSTHASTE_TEST_RABBITMQ_URL="));
    url.expect("the script says where").to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// A name that nobody else has.
pub(super) fn unique() -> String {
    format!("test.{}", EventId::generate())
}

/// A message for an exchange; "" is the one without a name.
pub(super) fn message(exchange: &str, routing_key: &str) -> Message {
    Message {
        id: EventId::generate(),
        to: format!("{exchange}\0{routing_key}").into(),
        key: None,
        content_type: "text/plain".into(),
        headers: [("event-type", "Test")].into(),
        body: "hello".into(),
    }
}

/// The message ids of what was taken.
pub(super) fn ids(taken: &[Value]) -> Vec<String> {
    taken.iter().map(|message| super::text(&message["message_id"]).to_owned()).collect()
}

pub(super) fn body(message: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(super::text(&message["body"])).unwrap()
}

pub(super) async fn write(outbox: &Outbox<MemoryStore>, events: impl IntoIterator<Item = Event>) -> Vec<EventId> {
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all(events).await.unwrap();
    tx.commit().await.unwrap();
    ids
}

/// Waits for longer than a breaker does.
pub(super) async fn all_done(outbox: &Outbox<MemoryStore>, count: u64) {
    let done = async {
        while outbox.admin().counts().await.unwrap().done < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), done).await.expect("all events are DONE");
}
