//! The other end: a server in Python.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use posthaste_core::testing::within;
use posthaste_core::{Event, EventId, MemoryStore, Outbox};
use posthaste_publishers::{Message, Text};
use serde_json::Value;

pub(super) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A running server, and what it has got.
pub(super) struct Receiver {
    process: Child,
    pub(super) port: u16,
    scheme: &'static str,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub(super) fn start() -> Self {
        Self::start_on(0)
    }

    pub(super) fn start_on(port: u16) -> Self {
        Self::run("http", &[&port.to_string()])
    }

    /// One that speaks TLS.
    pub(super) fn start_tls(certificate: &Path, key: &Path) -> Self {
        Self::run("https", &["0", certificate.to_str().unwrap(), key.to_str().unwrap()])
    }

    fn run(scheme: &'static str, arguments: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/webhook.py");
        let mut process = Command::new("python3")
            .arg(script)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.next().expect("it starts").unwrap().parse().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&requests);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                list.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { process, port, scheme, requests }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", self.scheme, self.port)
    }

    pub(super) fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until it has got so many, and no more.
    pub(super) async fn got(&self, count: usize) -> Vec<Value> {
        until("the receiver has got them", || self.requests().len() >= count).await;
        let requests = self.requests();
        assert_eq!(requests.len(), count, "{requests:#?}");
        requests
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

pub(super) fn message(url: impl Into<Text>) -> Message {
    Message {
        id: EventId::generate(),
        to: url.into(),
        key: None,
        content_type: "text/plain".into(),
        headers: [("event-type", "Test")].into(),
        body: "hello".into(),
    }
}

pub(super) fn body(request: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(request["body"].as_str().unwrap()).unwrap()
}

pub(super) async fn write(outbox: &Outbox<MemoryStore>, events: impl IntoIterator<Item = Event>) -> Vec<EventId> {
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all(events).await.unwrap();
    tx.commit().await.unwrap();
    ids
}

pub(super) async fn all_done(outbox: &Outbox<MemoryStore>, count: u64) {
    let done = async {
        while outbox.admin().counts().await.unwrap().done < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("all events are DONE", done).await;
}

pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, waiting).await;
}
