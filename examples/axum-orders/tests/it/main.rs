//! Runs the service as a user would, on SQLite and on PostgreSQL, and talks HTTP to it.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use posthaste::store::Store;
use posthaste::testing::{TestOutbox, Wanted};
use posthaste::{PgStore, SqliteStore};
use posthaste_conformance::{Fixture, PgFixture, Served};
use serde_json::{Value, json};

#[tokio::test]
async fn on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    // The file that it uses when it is not told otherwise.
    let service = Service::start(None, directory.path());
    let file = directory.path().join("orders.db");
    use_it(service, || async { SqliteStore::open(&file).await.unwrap() }).await;
}

#[tokio::test]
async fn on_postgres() {
    let database = PgFixture::<false>::create().await;
    let directory = tempfile::tempdir().unwrap();
    let service = Service::start(Some(&database.url()), directory.path());
    use_it(service, || async { PgStore::connect(&database.url()).await.unwrap() }).await;
}

async fn use_it<S: Store>(service: Service, open: impl AsyncFn() -> S) {
    let table = TestOutbox::over(open().await).await;

    let placed = service.post("/orders", &json!({ "customer": "Ada", "total": 1990 }).to_string());
    let order = |status| json!({ "id": 1, "customer": "Ada", "total": 1990, "status": status });
    assert_eq!((placed.status, placed.json()), (201, order("placed")));
    let event = || Wanted::event("OrderPlaced").aggregate("Order", 1).json(|order| order["total"] == 1990);
    table.assert_written_event(event().times(1)).await;
    table.wait_delivered(event()).await;
    assert_eq!(service.get("/orders"), json!([order("placed")]));
    assert_eq!(service.get("/notifications"), json!(["Ada: order 1 over 1990 cents is placed"]));

    // What is refused leaves nothing behind.
    for (path, body, status) in [
        ("/orders", r#"{ "customer": "Ada", "total": 0 }"#, 422),
        ("/orders", r#"{ "customer": " ", "total": 1 }"#, 422),
        ("/orders", r#"{ "customer": "Ada" }"#, 422),
        ("/orders", "no JSON", 400),
        ("/orders/2/cancel", "", 404),
    ] {
        assert_eq!(service.post(path, body).status, status, "{path} {body}");
    }
    assert_eq!(service.get("/orders"), json!([order("placed")]));
    table.assert_not_written(Wanted::event("OrderCancelled")).await;

    let cancelled = || Wanted::event("OrderCancelled").aggregate("Order", 1);
    assert_eq!(service.post("/orders/1/cancel", "").status, 204);
    table.wait_delivered(cancelled()).await;
    let again = service.post("/orders/1/cancel", "");
    assert_eq!((again.status, again.json()), (409, json!({ "error": "the order is cancelled already" })));
    assert_eq!(service.get("/orders"), json!([order("cancelled")]));
    table.assert_written_event(cancelled().times(1)).await;
    let told = service.get("/notifications");
    assert_eq!(told, json!(["Ada: order 1 over 1990 cents is placed", "order 1 is cancelled"]));

    // An order that is placed right before the end is delivered before the end.
    assert_eq!(service.post("/orders", r#"{ "customer": "Bob", "total": 5 }"#).status, 201);
    assert_eq!(service.end(), "ended with nothing in hand\n");
    let counts = table.admin().counts().await.unwrap();
    assert_eq!((counts.done, counts.total()), (3, 3));
}

/// The program, until it is told to end or dropped.
struct Service {
    process: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

impl Service {
    /// Starts it on a free port, and waits until it says which.
    fn start(url: Option<&str>, directory: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_example-axum-orders"));
        command.env("ADDRESS", "127.0.0.1:0").current_dir(directory).stdout(Stdio::piped());
        match url {
            Some(url) => command.env("DATABASE_URL", url),
            None => command.env_remove("DATABASE_URL"),
        };
        let mut process = command.spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect("it says where it listens").to_owned();
        Self { process, output, address }
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.send("GET", path, "");
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, body)
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let fields =
            format!("host: shop\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close");
        write!(stream, "{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("it answers");
        Answer { status: head.split(' ').nth(1).unwrap().parse().unwrap(), body: body.to_owned() }
    }

    /// Tells it to end, as whatever supervises it would, and gives what it says then.
    fn end(mut self) -> String {
        let process = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(self.process.wait().unwrap().success());
        said
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It has ended, unless the test has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
