//! The other end of webhooks: a server in Python, which says what it got.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use crate::place::until;

/// What it checks signatures with.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A running server. What it answers stands in the path: see `webhook.py`.
pub(crate) struct Receiver {
    process: Child,
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub(crate) fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../posthaste-publishers/tests/it/webhook.py");
        let mut process = Command::new("python3")
            .args([script, "0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there: scripts/test installs it");
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let url = format!("http://127.0.0.1:{}", lines.next().expect("it starts").unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&requests);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                list.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { process, url, requests }
    }

    /// A destination of this name that leads to a path of it.
    pub(crate) fn destination(&self, name: &str, path: &str) -> String {
        format!(
            "[destination.{name}]\ntype = \"webhook\"\nto = \"{}{path}\"\nunsigned = true\nallow_http = true\n\
             allow_private_addresses = true\n",
            self.url
        )
    }

    /// What it got, in the order in which it came.
    pub(crate) fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }

    /// The same when it has told of so many: whoever had its answer may be ahead of what is heard of it here.
    pub(crate) fn got(&self, count: usize) -> Vec<Value> {
        until("the receiver has told of them", || self.requests().len() >= count);
        self.requests()
    }

    /// What it got on paths that begin so.
    pub(crate) fn of(&self, path: &str) -> Vec<Value> {
        let of = |request: &Value| request["path"].as_str().unwrap().starts_with(path);
        self.requests().into_iter().filter(of).collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The bytes that came, of a request or of a message of RabbitMQ.
pub(crate) fn body(message: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(message["body"].as_str().unwrap()).unwrap()
}
