//! Brokers of the tests, and the client in Python that reads them.

use std::path::Path;
use std::process::{Command, Output};

use serde::Deserialize;
use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/brokers/kafka");
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kafka/client.py");

/// The broker that all tests share.
pub(super) fn shared() -> String {
    variable("POSTHASTE_TEST_KAFKA_URL")
}

fn variable(name: &str) -> String {
    let how = "start a broker first: eval \"$(scripts/brokers/kafka start \"$(mktemp -d)\")\"";
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; {how}"))
}

/// A message as the client in Python saw it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Seen {
    pub(super) partition: i32,
    pub(super) offset: i64,
    pub(super) key: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Makes a topic whose name nobody else has.
pub(super) async fn new_topic(brokers: &str, partitions: u32) -> String {
    let topic = unused_topic();
    create_topic(brokers, &topic, partitions).await;
    topic
}

pub(super) fn unused_topic() -> String {
    format!("t{}", posthaste_core::EventId::generate())
}

pub(super) async fn create_topic(brokers: &str, topic: &str, partitions: u32) {
    client(&["create", brokers, topic, &partitions.to_string()]).await;
}

/// All that is in a topic, partition by partition, each in its order.
pub(super) async fn read(brokers: &str, topic: &str) -> Vec<Seen> {
    let lines = client(&["read", brokers, topic]).await;
    let mut seen: Vec<Seen> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    seen.sort_by_key(|message| (message.partition, message.offset));
    seen
}

/// Runs the client. Where it takes brokers, it also takes properties of librdkafka as JSON.
pub(super) async fn client(arguments: &[&str]) -> String {
    let mut command = python();
    command.args(arguments);
    succeeded(&tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap())
}

/// The client in Python, without its arguments.
pub(super) fn python() -> Command {
    let mut command = Command::new(variable("POSTHASTE_TEST_KAFKA_PYTHON"));
    command.arg(CLIENT);
    command
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A broker that only one test has.
pub(super) struct Private {
    directory: TempDir,
    url: String,
}

impl Private {
    /// Starts one, with these options of the script.
    pub(super) async fn start(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = start(directory.path(), options).await;
        Self { directory, url }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Ends it as a power cut would.
    pub(super) fn kill(&self) {
        let pid = std::fs::read_to_string(self.directory.path().join("pid")).unwrap();
        succeeded(&Command::new("kill").args(["-KILL", pid.trim()]).output().unwrap());
    }

    /// Starts it again, with what it had, at the same address.
    pub(super) async fn restart(&self, options: &[&str]) {
        assert_eq!(start(self.directory.path(), options).await, self.url);
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = Command::new(SCRIPT).arg("stop").arg(self.directory.path()).output();
    }
}

async fn start(directory: &Path, options: &[&str]) -> String {
    let mut command = Command::new(SCRIPT);
    command.arg("start").arg(directory).args(options);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let exports = succeeded(&output);
    let url = exports.lines().find_map(|line| line.strip_prefix("export POSTHASTE_TEST_KAFKA_URL="));
    url.expect("the script prints the address").to_owned()
}
