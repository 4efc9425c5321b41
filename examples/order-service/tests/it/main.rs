//! Runs the example as its users do, against a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

#[cfg(feature = "kafka")]
mod kafka;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

const URL: &str = "POSTHASTE_TEST_POSTGRES_URL";

/// A database of its own.
async fn database(name: &str) -> String {
    let server = std::env::var(URL).unwrap_or_else(|_| {
        panic!(
            "{URL} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first, for a server to test on"
        )
    });
    let name = format!("order_service_{name}_{}", std::process::id());
    let mut admin = PgConnection::connect(&server).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut admin).await.unwrap();
    let (before, after) = server.rsplit_once('/').unwrap();
    let query = after.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
    format!("{before}/{name}{query}")
}

fn service(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_example-order-service"));
    command.args(arguments).env("DATABASE_URL", url).env("OUTBOX_POLL_INTERVAL", "100ms");
    command
}

/// What a command prints.
fn says(url: &str, arguments: &[&str]) -> String {
    let output = service(url, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn says_until(url: &str, arguments: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let started_at = Instant::now();
    loop {
        let said = says(url, arguments);
        if wanted(&said) {
            return said;
        }
        assert!(started_at.elapsed() < Duration::from_secs(90), "{arguments:?} still says {said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends a process when the test does.
struct Publishing(Child);

impl Publishing {
    fn start(command: &mut Command) -> Self {
        Self::run(command.arg("publish"))
    }

    fn run(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        // Nothing more is written until the next order.
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_order_is_published_with_all_there_is_to_know() {
    let url = database("published").await;
    let order = says(&url, &["create", "4711", "Green tea", "2", "1250"]);
    let mut publishing = Publishing::start(&mut service(&url, &[]));
    let record = publishing.next();
    let value = &record["value"];
    assert_eq!((&record["topic"], &record["key"]), (&"order.events".into(), &order.clone().into()));
    assert_eq!((&value["orderId"], &value["customerId"]), (&order.clone().into(), &"4711".into()));
    assert_eq!((&value["totalCents"], &value["items"][0]["product"]), (&2500.into(), &"Green tea".into()));

    // Another process creates, this one publishes.
    let second = says(&url, &["create", "4712", "Teapot", "1", "4900"]);
    let record = publishing.next();
    assert_eq!(record["key"], second);
    let event = record["value"]["eventId"].as_str().unwrap().to_owned();
    let history = says_until(&url, &["history", &second], |said| said.contains("DONE"));
    assert_eq!(history, format!("{event} OrderCreated DONE after 0 failures"));

    let nothing = service(&url, &["create", "4713", "Nothing", "0", "1"]).output().unwrap();
    assert!(!nothing.status.success());
    let mut database = PgConnection::connect(&url).await.unwrap();
    let rows: (i64, i64) = sqlx::query_as("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_event)")
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(rows, (2, 2), "an order and its event are there together, or neither is");
}

#[tokio::test]
async fn what_nobody_takes_is_given_up_and_tried_again_by_an_operator() {
    let url = database("failed").await;
    let order = says(&url, &["create", "4711", "Green tea", "2", "1250"]);
    {
        let _publishing = Publishing::start(service(&url, &[]).env("TOPIC_DOWN", "order.events"));
        let failed = says_until(&url, &["failed"], |said| !said.is_empty());
        assert!(failed.ends_with("OrderCreated DEAD after 5 failures: no broker takes order.events"), "{failed}");
    }
    assert_eq!(says(&url, &["retry"]), "1 events are tried again");
    let mut publishing = Publishing::start(&mut service(&url, &[]));
    assert_eq!(publishing.next()["key"], order);
    says_until(&url, &["history", &order], |said| said.contains("DONE after 0 failures"));
    assert_eq!(says(&url, &["failed"]), "");
}
