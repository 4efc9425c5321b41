//! Runs the example as a user would, on each database.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::process::Command;

use posthaste_conformance::{Fixture, MariaDbFixture, PgFixture, Served};

fn run(url: Option<&str>, seconds: &str) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_example-ordered-relays"));
    command.arg(seconds).current_dir(&directory);
    match url {
        Some(url) => command.env("DATABASE_URL", url),
        None => command.env_remove("DATABASE_URL"),
    };
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let number = |word: &str| {
        let words: Vec<&str> = said.split_whitespace().collect();
        let at = words.iter().position(|said| *said == word).unwrap_or_else(|| panic!("no {word} in {said}"));
        words[at - 1].parse::<u64>().unwrap()
    };
    // Otherwise it shows nothing.
    assert!(number("events") > 200 && number("relays") >= 2, "{said}");
    assert!(said.contains("each account in order, nothing lost"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_are_killed_and_the_order_is_kept_on_postgres() {
    let database = PgFixture::<false>::create().await;
    let url = database.url();
    tokio::task::spawn_blocking(move || run(Some(&url), "20")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_are_killed_and_the_order_is_kept_on_mysql() {
    let database = MariaDbFixture::create().await;
    let url = database.url();
    tokio::task::spawn_blocking(move || run(Some(&url), "12")).await.unwrap();
}

#[test]
fn relays_are_killed_and_the_order_is_kept_on_sqlite() {
    run(None, "8");
}
