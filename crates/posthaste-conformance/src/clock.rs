//! Part F: nodes whose clocks are wrong. The server's clock is the only one that counts.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use posthaste_core::store::{Action, Settled, Store};
use posthaste_core::{EventId, Options, Outcome, Status, Timestamp};
use posthaste_sql::{MySqlStore, PgStore, Scheme, detect};

use crate::fixture::Served;
use crate::outboxes::{no_interval, start, write};
use crate::rows::{assert_at, claim, event_with_id, insert, settle, state};
use crate::tap::Tap;

/// By how much they are wrong.
const OFF: Duration = Duration::from_secs(3600);

/// A delay that one of these clocks has over.
const HALF: Duration = Duration::from_secs(1800);

/// How far the clocks of this machine and of the server may be apart.
const TOLERANCE: Duration = Duration::from_secs(600);

/// Where the node finds its database.
const URL: &str = "POSTHASTE_NODE_URL";

/// A moment by the server's clock, in microseconds after 1970, for the node to have something delivered at.
const MOMENT: &str = "POSTHASTE_NODE_MOMENT";

/// What a line of the node begins with, among those of the test harness.
const SAYS: &str = "node: ";

/// A node an hour ahead delivers nothing early and takes no live lease.
pub async fn case_77_an_hour_ahead<F: Served>(fixture: F) {
    delivers_in_time(fixture, '+').await;
}

/// A node an hour behind delivers nothing late.
pub async fn case_77_an_hour_behind<F: Served>(fixture: F) {
    delivers_in_time(fixture, '-').await;
}

async fn delivers_in_time<F: Served>(fixture: F, sign: char) {
    let store = fixture.store();
    let id = |id: &str| EventId::new(id).unwrap();
    insert(&store, &[event_with_id("leased")]).await;
    let (lease, _) = claim(&store, 1).await;
    let delayed = event_with_id("delayed").to_builder().deliver_after(HALF).build().unwrap();
    insert(&store, &[event_with_id("due"), delayed]).await;

    let moment = state(&store, &id("due")).await.created_at + Duration::from_millis(500);
    let url = fixture.url();
    let said = tokio::task::spawn_blocking(move || run_node(&url, sign, moment)).await.unwrap();
    let (clock, delivered) = said.split_first().expect("it says its clock first");
    let clock = Timestamp::from_micros(clock.parse().unwrap());
    let off = if sign == '+' { clock.since(Timestamp::now()) } else { Timestamp::now().since(clock) };
    assert!(off > OFF - TOLERANCE, "the node's clock is only {off:?} off: libfaketime had no effect");

    assert_eq!(delivered, ["due", "own", "own", "at a moment"], "what the node delivered");
    for id in ["due", "own", "at a moment"].map(id) {
        assert_eq!(state(&store, &id).await.status, Status::Done);
    }
    let now = Timestamp::now();
    for id in ["delayed", "own, delayed"].map(id) {
        let available_at = assert_at(&store, &id, Status::New, 0).await.available_at;
        let in_time = now + HALF - TOLERANCE..now + HALF + TOLERANCE;
        assert!(in_time.contains(&available_at), "{id} is available at {available_at}");
    }
    assert_eq!(settle(&store, &id("leased"), &lease, Action::Done).await, Settled::Applied, "it is still ours");
}

/// Runs [`node`] in a process of this very program, with another clock, and returns what it said.
fn run_node(url: &str, sign: char, moment: Timestamp) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", "node", "--ignored", "--nocapture"])
        .env(URL, url)
        .env(MOMENT, moment.as_micros().to_string())
        .env("LD_PRELOAD", libfaketime())
        .env("FAKETIME", format!("{sign}{}s", OFF.as_secs()))
        // What measures lengths of time is right on a machine whose clock is wrong.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .output()
        .unwrap();
    let Output { status, stdout, stderr } = &output;
    let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    assert!(status.success(), "the node failed\n{stdout}\n{stderr}");
    stdout.lines().filter_map(|line| Some(line.split_once(SAYS)?.1.to_owned())).collect()
}

/// Where Debian's package has it.
fn libfaketime() -> PathBuf {
    let directories = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut files = directories.map(|directory| directory.path().join("faketime/libfaketime.so.1"));
    files.find(|file| file.exists()).expect(
        "libfaketime is not installed: run scripts/test as root, which installs it, or install Debian's package of \
         that name",
    )
}

/// The node: delivers what is due, and writes something for later. Not a case by itself.
pub async fn node() {
    let Ok(url) = std::env::var(URL) else {
        // Somebody runs all tests that are ignored.
        return;
    };
    println!("{SAYS}{}", Timestamp::now().as_micros());
    match detect(&url).unwrap() {
        Scheme::Postgres => deliver(PgStore::connect(&url).await.unwrap()).await,
        Scheme::MySql => deliver(MySqlStore::connect(&url).await.unwrap()).await,
        other => panic!("{other} has no clock of its own"),
    }
}

/// Polls for nothing: what is delivered late is not delivered at all.
async fn deliver<S: Store>(store: S) {
    let (tap, mut inbox) = Tap::new();
    let fails_once = tap.answering(|event| match (event.id().as_str(), event.attempt()) {
        ("own", 1) => Err("not yet".into()),
        _ => Ok(Outcome::Done),
    });
    let soon = Duration::from_millis(10);
    let options = Options { retry_base: soon, retry_max: soon, ..no_interval() };
    let (outbox, _) = start(store, options, fails_once).await;
    let mut delivered = inbox.ids(1).await;
    let own = |id, delay| event_with_id(id).to_builder().deliver_after(delay);
    write(&outbox, own("own, delayed", HALF)).await;
    write(&outbox, own("own", soon)).await;
    delivered.extend(inbox.ids(2).await);
    let moment = Timestamp::from_micros(std::env::var(MOMENT).unwrap().parse().unwrap());
    let at_a_moment = event_with_id("at a moment").to_builder().occurred_at(moment).available_at(moment);
    write(&outbox, at_a_moment).await;
    delivered.extend(inbox.ids(1).await);
    assert!(outbox.shutdown().await.is_clean());
    delivered.extend(inbox.rest().iter().map(|event| event.id().to_string()));
    for id in delivered {
        println!("{SAYS}{id}");
    }
}
