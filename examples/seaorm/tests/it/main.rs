//! Runs the example as a user would, on both databases, and checks what it prints and what it leaves in its table.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::process::Command;

use posthaste::store::Store;
use posthaste::testing::{TestOutbox, Wanted};
use posthaste::{PgStore, SqliteStore};
use posthaste_conformance::{PgFixture, Served, Tables};

/// What it prints, sorted: there is no order between events.
fn run(url: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_example-seaorm")).env("DATABASE_URL", url).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

const PRINTS: [&str; 3] =
    ["order 1 cancelled", "order 1 of Ada placed, total 1990", "refused: order 1 is cancelled already"];

async fn assert_left<S: Store>(store: S) {
    let table = TestOutbox::over(store).await;
    for event_type in ["OrderPlaced", "OrderCancelled"] {
        let wanted = || Wanted::event(event_type).aggregate("Order", 1);
        table.assert_written_event(wanted().times(1)).await;
        table.wait_delivered(wanted()).await;
    }
}

#[tokio::test]
async fn on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    assert_eq!(run(&format!("sqlite:{}?mode=rwc", file.display())), PRINTS);
    assert_left(SqliteStore::open(file).await.unwrap()).await;
}

#[tokio::test]
async fn on_postgres() {
    let database = PgFixture::<false>::empty().await;
    assert_eq!(run(&database.url()), PRINTS);
    assert_left(PgStore::connect(&database.url()).await.unwrap()).await;
}
