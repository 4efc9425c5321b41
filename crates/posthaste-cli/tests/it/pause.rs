//! `posthaste pause` and `resume`: heeded by every relay, kept by the database.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{Connection, PgConnection};

use crate::operations::{address, metrics};
use crate::place::{Late, Place, until};
use crate::relay::{lines, postgres, redis, socket, unique, variable};

const ROUTES: &str = "[relay]\npoll_interval = \"50ms\"\n\
    [destination.a]\ntype = \"file\"\npath = \"a.ndjson\"\n[destination.b]\ntype = \"file\"\npath = \"b.ndjson\"\n\
    [[route]]\nname = \"one\"\nmatch = { event_type = \"One\" }\nto = \"a\"\n\
    [[route]]\nname = \"two\"\nmatch = { event_type = \"Two\" }\nto = \"b\"\n\
    [[route]]\nname = \"both\"\nmatch = { event_type = \"Both\" }\nto = [\"a\", \"b\"]\n";

fn write(here: &Place, id: &str, kind: &str) {
    here.ok(&["events", "write", "--id", id, "--type", kind, "{}"]);
}

fn ids(here: &Place, file: &str) -> BTreeSet<String> {
    lines(&here.read(file)).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

fn done(here: &Place) -> Value {
    here.json(&["stats", "--output", "json"])["done"].clone()
}

/// Two relays heed it, also one that is started later, and what was held is delivered in the end, each once.
fn pauses_are_heeded(here: &Place) {
    here.ok(&["migrate", "up"]);
    let mut relays = [here.start(&["relay"]), here.start(&["relay"])];
    let addresses = relays.each_mut().map(address);
    for relay in &mut relays {
        relay.says("delivering");
    }
    assert_eq!(here.ok(&["pause", "route", "one", "--reason", "maintenance"]), "route one is paused\n");
    assert_eq!(here.ok(&["pause", "route", "one"]), "route one was paused already\n");
    for relay in &mut relays {
        relay.says("paused: route one; its events wait");
    }
    for n in 0..6 {
        write(here, &format!("one-{n}"), "One");
        write(here, &format!("two-{n}"), "Two");
    }
    here.until("the others are delivered", |here| done(here) == 6);
    let two: BTreeSet<String> = (0..6).map(|n| format!("two-{n}")).collect();
    assert_eq!((ids(here, "b.ndjson"), ids(here, "a.ndjson")), (two, BTreeSet::new()));

    let stats = here.json(&["stats", "--output", "json"]);
    assert_eq!(stats["paused"][0]["name"], "one");
    assert_eq!((&stats["paused"][0]["kind"], &stats["paused"][0]["reason"]), (&"route".into(), &"maintenance".into()));
    assert_eq!((&stats["destinations"]["a"]["new"], &stats["destinations"]["b"]["new"]), (&6.into(), &0.into()));
    assert!(here.ok(&["stats"]).contains("route one since "));
    let shown = here.json(&["events", "show", "one-3", "--output", "json"]);
    assert_eq!(
        (&shown["status"], &shown["attempts"], &shown["paused"]),
        (&"NEW".into(), &0.into(), &"route one".into()),
        "{shown}"
    );
    assert_eq!((&shown["route"], &shown["destinations"]), (&"one".into(), &serde_json::json!(["a"])), "{shown}");
    for address in addresses {
        assert_eq!(metrics(address)["posthaste_paused{kind=\"route\",name=\"one\"}"], 1.0);
    }

    // It survives that all relays are started anew.
    for relay in relays {
        relay.terminate();
        let (status, _, said) = relay.end();
        assert_eq!(status, Some(0), "{said}");
    }
    let mut relays = [here.start(&["relay"]), here.start(&["relay"])];
    for relay in &mut relays {
        relay.says("paused: route one; its events wait");
    }
    write(here, "two-late", "Two");
    here.until("another is delivered", |here| done(here) == 7);
    assert_eq!(ids(here, "a.ndjson"), BTreeSet::new());

    assert_eq!(here.ok(&["resume", "route", "one"]), "route one is resumed\n");
    here.until("what was held is delivered", |here| done(here) == 13);
    assert_eq!(lines(&here.read("a.ndjson")).len(), 6, "each once");
    assert!(here.fails(1, &["resume", "route", "one"]).contains("route one was not paused"));
    for relay in &mut relays {
        relay.says("resumed: route one");
    }
}

#[test]
fn pauses_are_heeded_on_sqlite() {
    pauses_are_heeded(&Place::with(ROUTES));
}

#[tokio::test]
async fn pauses_are_heeded_on_postgres() {
    pauses_are_heeded(&Place::with(ROUTES).variable("POSTHASTE_DATABASE_URL", &postgres().await));
}

#[test]
fn pauses_are_heeded_on_mysql() {
    let table = format!("pause_test_{:x}", fastrand::u64(..));
    let here = Place::with(ROUTES).variable("POSTHASTE_DATABASE_URL", &variable("POSTHASTE_TEST_MYSQL_URL"));
    pauses_are_heeded(&here.variable("POSTHASTE_DATABASE_TABLE", &table));
}

#[test]
fn a_paused_destination_holds_every_route_that_leads_there() {
    let here = Place::with(ROUTES);
    here.ok(&["migrate", "up"]);
    here.ok(&["pause", "destination", "b"]);
    for (id, kind) in [("1", "One"), ("2", "Two"), ("3", "Both")] {
        write(&here, id, kind);
    }
    // It counts for whoever drains and ends, too, who says what is left.
    let said = here.fails(8, &["relay", "--once"]);
    assert!(said.contains("left, because it is paused: destination b") && said.contains("events=2"), "{said}");
    assert_eq!(ids(&here, "a.ndjson"), BTreeSet::from(["1".to_owned()]), "what goes to both goes to none");
    assert_eq!(ids(&here, "b.ndjson"), BTreeSet::new());
    for id in ["2", "3"] {
        let shown = here.json(&["events", "show", id, "--output", "json"]);
        assert_eq!((&shown["attempts"], &shown["paused"]), (&0.into(), &"destination b".into()), "{shown}");
    }
    let listed = here.json(&["pause", "list", "--output", "json"]);
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"b".into()));
    here.ok(&["resume", "destination", "b"]);
    until("all are delivered", || {
        here.ok(&["relay", "--once"]);
        done(&here) == 3
    });
}

/// Runs a relay that drains, which has to end by itself: its status, and what it says.
fn drained(here: &Place, more: &[&str]) -> (Option<i32>, String) {
    let (status, _, said) = here.start(&[&["relay", "--once"], more].concat()).end();
    (status, said)
}

#[test]
fn whoever_drains_ends_also_where_everything_is_paused() {
    for order in ["", "[relay]\nordered = true\n"] {
        let here = Place::with(&ROUTES.replacen("[relay]\n", if order.is_empty() { "[relay]\n" } else { order }, 1));
        write(&here, "1", "One");
        // No route fits it, so it would be DEAD.
        write(&here, "2", "Stray");
        for destination in ["a", "b"] {
            here.ok(&["pause", "destination", destination]);
        }
        let (status, said) = drained(&here, &[]);
        assert_eq!(status, Some(8), "{said}");
        assert!(said.contains("left, because it is paused: destination a") && said.contains("events=1"), "{said}");
        assert_eq!(here.json(&["stats", "--output", "json"])["dead"], 0);
        assert_eq!((done(&here), ids(&here, "a.ndjson").len()), (0.into(), 0));
        here.ok(&["resume", "destination", "a"]);
        // Nothing is left of what is still paused, so it is no matter.
        let (status, said) = drained(&here, &[]);
        assert_eq!((status, done(&here)), (Some(0), 1.into()), "{said}");
        // Without anything to deliver it ends as well.
        here.ok(&["pause", "destination", "a"]);
        let (status, said) = drained(&here, &[]);
        assert_eq!(status, Some(0), "{said}");
    }
}

#[tokio::test]
async fn whoever_drains_ends_also_where_many_events_are_put_off_again_and_again() {
    let url = postgres().await;
    let here = Place::with(ROUTES).variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    here.ok(&["pause", "route", "one"]);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let insert = "INSERT INTO outbox_event (event_id, event_type, payload) \
                  SELECT 'id-' || n, CASE n WHEN 15000 THEN 'Two' ELSE 'One' END, '{}' FROM generate_series(1, 20000) AS n";
    sqlx::raw_sql(insert).execute(&mut connection).await.unwrap();
    let (status, said) = drained(&here, &[]);
    assert_eq!(status, Some(8), "{said}");
    assert!(said.contains("left, because it is paused: route one") && said.contains("or_more=true"), "{said}");
    assert_eq!(ids(&here, "b.ndjson"), BTreeSet::from(["id-15000".to_owned()]));
}

#[test]
fn whoever_drains_waits_for_a_destination_that_is_away_but_not_for_ever() {
    for order in ["", "[relay]\nordered = true\n"] {
        let late = Late::to(&socket(&variable("POSTHASTE_TEST_REDIS_URL")));
        let stream = unique("drained:");
        let here = Place::with(&format!(
            "{order}[destination.stream]\ntype = \"redis\"\nurl = \"redis://{}\"\nto = \"{stream}\"\nlazy = true\n",
            late.address
        ));
        write(&here, "1", "One");
        let started = Instant::now();
        let (status, said) = drained(&here, &["--wait", "2s"]);
        assert_eq!(status, Some(8), "{said}");
        assert!(said.contains("left, because it is away: destination stream") && said.contains("events=1"), "{said}");
        assert!(started.elapsed() >= Duration::from_secs(2), "{said}");
        assert_eq!(here.json(&["events", "show", "1", "--output", "json"])["attempts"], 0);

        // It is back before the end. The first may be put off by then, and is left to the next.
        write(&here, "2", "One");
        let mut relay = here.start(&["relay", "--once", "--wait", "1m"]);
        relay.says("destination is away");
        late.arrive();
        let (status, _, said) = relay.end();
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(here.json(&["events", "show", "2", "--output", "json"])["status"], "DONE", "{said}");
        assert!(["1", "2"].contains(&&*redis(&["XLEN", &stream])), "{said}");
    }
}

#[tokio::test]
async fn a_table_of_pauses_that_is_not_ours_is_named() {
    let url = postgres().await;
    let here = Place::with(ROUTES).variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let foreign = "DROP TABLE outbox_event_pause; CREATE TABLE outbox_event_pause (minutes INTEGER)";
    sqlx::raw_sql(foreign).execute(&mut connection).await.unwrap();
    let error = here.fails(5, &["relay", "--once"]);
    assert!(error.contains("there is a table outbox_event_pause that is not ours"), "{error}");
    assert!(error.contains("rename it") && !error.contains("migrate"), "{error}");
}

#[test]
fn nothing_is_paused_that_the_settings_do_not_have() {
    let here = Place::with(ROUTES);
    here.ok(&["migrate", "up"]);
    let error = here.fails(1, &["pause", "route", "three"]);
    assert!(error.contains("there is no route three in these settings, but [\"one\", \"two\", \"both\"]"), "{error}");
    assert!(here.fails(1, &["pause", "destination", "one"]).contains("[\"a\", \"b\"]"));
    assert!(here.fails(2, &["pause", "route", ""]).contains("between 1 and 128"));
    assert_eq!(here.ok(&["pause", "route", "three", "--anyway"]), "route three is paused\n");
    // A relay that has no such route is not bothered.
    write(&here, "1", "One");
    here.ok(&["relay", "--once"]);
    assert_eq!(done(&here), 1);
}
