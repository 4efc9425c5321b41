//! A machine whose clock is an hour off: events are due by the clock of the database.

use crate::place::Place;
use crate::relay::{lines, postgres};

/// In seconds.
const OFF: i64 = 3600;

async fn place(off: i64, settings: &str) -> Place {
    Place::with(settings).variable("POSTHASTE_DATABASE_URL", &postgres().await).with_clock(off)
}

#[tokio::test]
async fn what_is_due_by_the_clock_of_the_database_is_delivered_once_and_what_is_not_is_left() {
    for ordered in ["", "[relay]\nordered = true\n"] {
        for off in [-OFF, OFF] {
            let here = place(off, ordered).await;
            here.ok(&["migrate", "up", "--lanes"]);
            let write = |id: &str, more: &[&str]| {
                let event = ["events", "write", "--id", id, "--type", "Ticked", "--aggregate-type", "Order"];
                here.ok(&[&event[..], &["--aggregate-id", id, "{}"], more].concat());
            };
            write("due", &[]);
            // Half of what the clock is off.
            write("later", &["--after", "30m"]);
            let relay = here.start(&["relay", "--once"]);
            let (status, printed, said) = relay.end();
            assert_eq!(status, Some(0), "{off} {ordered}: {said}");
            let ids: Vec<_> = lines(&printed).iter().map(|line| line["id"].clone()).collect();
            assert_eq!(ids, ["due"], "{off} {ordered}: {said}");
        }
    }
}

#[tokio::test]
async fn what_is_left_is_told_by_the_clock_of_the_database() {
    for (off, after, status) in [(-OFF, "1m", 8), (OFF, "30m", 0)] {
        let here = place(off, "[[route]]\nname = \"all\"\nto = \"stdout\"\n").await;
        here.ok(&["migrate", "up"]);
        here.ok(&["pause", "route", "all"]);
        here.ok(&["events", "write", "--type", "Ticked", "--after", after, "{}"]);
        let output = here.run(&["relay", "--once"]);
        assert_eq!(output.status.code(), Some(status), "{off}: {}", crate::stderr(&output));
    }
}

#[tokio::test]
async fn ages_are_those_of_the_database() {
    let here = place(-OFF, "").await;
    here.ok(&["migrate", "up"]);
    here.ok(&["events", "write", "--type", "Ticked", "{}"]);
    let waits = here.json(&["stats", "--output", "json"])["oldest_pending_seconds"].as_f64().unwrap();
    assert!(waits > 0.0 && waits < 600.0, "{waits}");
}

#[tokio::test]
async fn how_long_ago_is_by_the_clock_of_the_database() {
    for off in [-OFF, OFF] {
        let here = place(off, "").await;
        here.ok(&["migrate", "up"]);
        here.ok(&["events", "write", "--type", "Ticked", "{}"]);
        let count = |wanted: &[&str]| {
            here.json(&[&["events", "list", "--output", "json"], wanted].concat()).as_array().unwrap().len()
        };
        // Half of what the clock is off.
        assert_eq!((count(&["--since", "30m"]), count(&["--until", "30m"])), (1, 0), "{off}");
    }
}

#[tokio::test]
async fn why_an_event_waits_is_by_the_clock_of_the_database() {
    for off in [-OFF, OFF] {
        let here = place(off, "").await;
        here.ok(&["migrate", "up"]);
        for (id, after, reason) in [("due", &[][..], "no_relay"), ("later", &["--after", "30m"], "not_due")] {
            here.ok(&[&["events", "write", "--id", id, "--type", "Ticked", "{}"], after].concat());
            let shown = here.json(&["events", "show", id, "--output", "json"]);
            assert_eq!(shown["waiting"][0]["reason"], reason, "{off}: {shown:#}");
        }
    }
}
