//! Whoever only asks changes nothing: no file of SQLite is made, and none becomes another.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use crate::place::Place;
use crate::{stderr, stdout};

/// Commands that only ask, and how they end where nothing is wrong.
const QUESTIONS: &[(&[&str], i32)] = &[
    (&["migrate", "status"], 0),
    (&["migrate", "sql"], 0),
    (&["stats"], 0),
    (&["stats", "--rate", "10ms"], 0),
    (&["events", "list"], 0),
    (&["events", "show", "e1"], 0),
    (&["dead", "list"], 0),
    (&["dead", "redrive", "--all"], 1),
    (&["keys"], 0),
    (&["pause", "list"], 0),
    (&["purge", "--done-after", "1h"], 1),
    // That it is not WAL is what the doctor finds.
    (&["doctor", "--no-destinations"], 1),
];

async fn journal(file: &Path, mode: Option<&str>) -> String {
    let mut connection = SqliteConnectOptions::new().filename(file).connect().await.unwrap();
    let pragma = mode.map_or("PRAGMA journal_mode".to_owned(), |mode| format!("PRAGMA journal_mode = {mode}"));
    let is: String = sqlx::query_scalar(sqlx::AssertSqlSafe(pragma)).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    is
}

fn files(here: &Place) -> Vec<String> {
    let entries = std::fs::read_dir(here.path("")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn whoever_asks_for_a_file_that_is_not_there_makes_none() {
    for url in ["sqlite:shop.db", "sqlite:shop.db?mode=rwc", "sqlite:posthaste.db"] {
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", url);
        let status = here.run(&["migrate", "status"]);
        assert_eq!(status.status.code(), Some(1), "{}", stderr(&status));
        let said = stdout(&status);
        assert!(said.contains("is not there yet: there is no ") && said.contains("; this is left to do:"), "{said}");
        assert!(said.contains("  outbox_event, version 1: ") && said.contains("  outbox_event, version 2: "), "{said}");
        // All of it, as for a new file.
        let sql = here.ok(&["migrate", "sql"]);
        assert!(sql.contains("CREATE TABLE \"outbox_event\"") && sql.contains("outbox_event_pause"), "{sql}");
        for (command, _) in QUESTIONS.iter().filter(|(command, _)| !["migrate", "doctor"].contains(&command[0])) {
            let error = here.fails(5, command);
            assert!(error.contains("there is no ") && error.contains("posthaste migrate up"), "{command:?}: {error}");
        }
        assert_eq!(here.run(&["doctor"]).status.code(), Some(1));
        assert_eq!(files(&here), [""; 0], "{url}");
        // What is shown is what is done.
        here.ok(&["migrate", "up"]);
        assert_eq!(here.ok(&["migrate", "sql"]), "");
        assert!(here.ok(&["migrate", "sql", "--lanes"]).contains("outbox_event_lane"));
        here.ok(&["migrate", "up", "--lanes"]);
        assert_eq!(here.ok(&["migrate", "sql", "--lanes"]), "");
    }
}

#[tokio::test]
async fn a_file_that_is_asked_stays_byte_for_byte_what_it_was() {
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", "sqlite:shop.db");
    here.ok(&["migrate", "up", "--lanes"]);
    here.ok(&["events", "write", "--id", "e1", "--type", "Odd", "--aggregate-type", "Order", "{}"]);
    here.write("posthaste.toml", "[[route]]\nmatch = { event_type = \"Nothing\" }\nto = \"stdout\"\n");
    here.ok(&["relay", "--once"]);
    let file = here.path("shop.db");
    assert_eq!(journal(&file, None).await, "wal", "a relay has it so");
    assert_eq!(journal(&file, Some("DELETE")).await, "delete");
    let before = std::fs::read(&file).unwrap();
    for (command, status) in QUESTIONS {
        let output = here.run(command);
        assert_eq!(output.status.code(), Some(*status), "{command:?}: {}{}", stdout(&output), stderr(&output));
        assert!(std::fs::read(&file).unwrap() == before, "{command:?} has changed it");
        assert_eq!(files(&here), ["posthaste.toml", "shop.db"], "{command:?}");
    }
    // Whoever changes rows leaves the journal as it is, too.
    for command in [
        &["pause", "route", "route-1", "--anyway"][..],
        &["resume", "route", "route-1"],
        &["dead", "redrive", "--all", "--yes"],
        &["events", "write", "--type", "Odd", "{}"],
        &["purge", "--done-after", "0s", "--yes"],
    ] {
        here.ok(command);
        assert_eq!(journal(&file, None).await, "delete", "{command:?}");
    }
    assert_eq!(here.json(&["stats", "--output", "json"])["new"], 2);
}

#[tokio::test]
async fn a_file_in_wal_mode_is_asked_and_leaves_nothing_beside_it() {
    let here = Place::new();
    here.ok(&["events", "write", "--id", "e1", "--type", "Odd", "{}"]);
    for (command, _) in QUESTIONS.iter().filter(|(command, status)| *status == 0 && command[0] != "doctor") {
        here.ok(command);
        assert_eq!(files(&here), ["posthaste.db"], "{command:?}");
    }
    assert_eq!(journal(&here.path("posthaste.db"), None).await, "wal");
}

#[test]
fn a_file_in_a_directory_that_is_not_there_is_a_wrong_setting_and_not_waited_for() {
    let here = Place::new().variable("POSTHASTE_HTTP_LISTEN", "127.0.0.1:0");
    here.write("plain", "");
    std::fs::create_dir(here.path("directory")).unwrap();
    for (url, words) in [
        ("sqlite:no/such/shop.db", "there is no directory no/such; make it, or correct the path"),
        ("sqlite:plain/shop.db", "there is no directory plain;"),
        ("sqlite:directory", "directory is a directory; name a file in it"),
    ] {
        let there = |command: &[&str]| here.fails(3, &[command, &["--database-url", url]].concat());
        for command in [
            &["relay"][..],
            &["relay", "--once"],
            &["migrate", "up"],
            &["migrate", "status"],
            &["migrate", "sql"],
            &["stats"],
            &["events", "write", "--type", "Odd", "{}"],
        ] {
            let error = there(command);
            assert!(error.contains(words) && error.contains("database.url"), "{command:?}: {error}");
            assert_eq!(error.matches("error: ").count(), 1, "{error}");
        }
        let found = here.run(&["doctor", "--database-url", url]);
        assert!(found.status.code() == Some(1) && stdout(&found).contains(words), "{}", stdout(&found));
    }
    assert_eq!(files(&here), ["directory", "plain"]);
}
