//! `posthaste demo`.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::{posthaste, stderr, stdout};

/// What is promised, as the verdict names it.
const PROMISES: [&str; 6] = ["together", "nothing lost", "no phantom", "DONE is true", "DEAD is earned", "all settled"];

/// Checks that a run ended well, and says so.
fn assert_kept(output: &Output) {
    let (page, progress) = (stdout(output), stderr(output));
    assert_eq!(output.status.code(), Some(0), "{page}\n{progress}");
    for promise in PROMISES {
        assert!(page.contains(&format!("  ✓ {promise} ")), "no {promise} in:\n{page}");
    }
    assert!(!page.contains('✗'), "{page}");
    assert!(page.contains("Every promise was kept."), "{page}");
    assert!(progress.contains("dispatcher killed with"), "{progress}");
    assert!(progress.contains("new dispatcher took over"), "{progress}");
    for line in page.lines().chain(progress.lines()) {
        assert!(!line.contains('\u{1b}'), "an escape code without a terminal: {line:?}");
        assert!(line.chars().count() <= 80 || line.contains("database is kept"), "too wide: {line:?}");
    }
}

/// Checks that the command line was refused with words that name the cause and the way out.
fn assert_refused(output: &Output, words: &[&str]) {
    let error = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for word in words {
        assert!(error.contains(word), "no {word:?} in:\n{error}");
    }
    assert!(stdout(output).is_empty(), "{}", stdout(output));
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

#[test]
fn small_demo_keeps_every_promise() {
    let output = posthaste(&["demo", "--events", "300", "--rate", "0", "--seed", "1"]);
    assert_kept(&output);
    assert!(stdout(&output).contains("283 of 283 events delivered or dead"), "{}", stdout(&output));
    assert!(stdout(&output).contains("none of 17 rolled-back orders"), "{}", stdout(&output));
}

#[test]
fn smallest_demo_has_its_poison_event() {
    let output = posthaste(&["demo", "--events", "1", "--workers", "1", "--seed", "1"]);
    assert_kept(&output);
    assert!(stdout(&output).contains("1 of 1 events delivered or dead"), "{}", stdout(&output));
}

#[test]
fn seed_that_was_chosen_at_random_is_shown() {
    let output = posthaste(&["demo", "--events", "20", "--rate", "0"]);
    assert_kept(&output);
    assert!(stdout(&output).contains("Run it again with --seed "), "{}", stdout(&output));
}

#[test]
fn kept_database_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("demo.db");
    for _ in 0..2 {
        let output = posthaste(&["demo", "--events", "60", "--rate", "0", "--seed", "1", "--database", text(&path)]);
        assert_kept(&output);
        assert!(stdout(&output).contains(text(&path)), "{}", stdout(&output));
        assert!(path.is_file());
    }
}

#[test]
fn what_is_no_database_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("letter.txt");
    let letter = "Dear reader, this is not a database. ".repeat(200);
    fs::write(&path, &letter).unwrap();
    let output = posthaste(&["demo", "--database", text(&path)]);
    assert_refused(&output, &["--database", "letter.txt", "is no SQLite database", "choose another path"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), letter);
}

#[tokio::test]
async fn database_of_something_else_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shop.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(&pool).await.unwrap();
    pool.close().await;
    let before = fs::read(&path).unwrap();
    let output = posthaste(&["demo", "--database", text(&path)]);
    assert_refused(&output, &["--database", "something else", "choose another path"]);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn place_where_no_file_can_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = posthaste(&["demo", "--database", text(directory.path())]);
    assert_refused(&output, &["--database", "is a directory", "demo.db"]);
    let output = posthaste(&["demo", "--database", text(&directory.path().join("no/such/demo.db"))]);
    assert_refused(&output, &["--database", "there is no directory", "create it"]);
    assert_refused(&posthaste(&["demo", "--database", ""]), &["--database"]);
    if cfg!(unix) {
        assert_refused(&posthaste(&["demo", "--database", "/dev/null"]), &["--database", "not a file"]);
    }
}

#[test]
fn absurd_values_are_refused_with_the_flag_and_the_limit() {
    assert_refused(&posthaste(&["demo", "--events", "0"]), &["--events", "1..=1000000"]);
    assert_refused(&posthaste(&["demo", "--events", "10000000000000000000000"]), &["--events"]);
    assert_refused(&posthaste(&["demo", "--events", "many"]), &["--events", "invalid digit"]);
    assert_refused(&posthaste(&["demo", "--rate", "-1"]), &["--rate"]);
    assert_refused(&posthaste(&["demo", "--rate", "1000001"]), &["--rate", "0..=1000000"]);
    assert_refused(&posthaste(&["demo", "--workers", "0"]), &["--workers", "1..=256"]);
    assert_refused(&posthaste(&["demo", "--seed", "x"]), &["--seed"]);
    let slow = posthaste(&["demo", "--events", "1000000", "--rate", "1"]);
    assert_refused(&slow, &["--events 1000000", "--rate 1", "minutes", "--rate 0"]);
}
