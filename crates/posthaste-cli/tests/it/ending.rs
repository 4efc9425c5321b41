//! How a relay ends: with what it has in hand, and beside others of its name.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::place::{Place, silent, until};
use crate::receiver::Receiver;
use crate::relay::{lines, postgres, was_in_time};
use sqlx::{Connection, PgConnection};

fn write(here: &Place, id: &str, event_type: &str) {
    here.ok(&["events", "write", "--id", id, "--type", event_type, "{}"]);
}

fn show(here: &Place, id: &str) -> Value {
    here.json(&["events", "show", id, "--output", "json"])
}

/// The last line of a log in JSON, and the one with this message.
fn told(said: &str, message: &str) -> (Value, Value) {
    let mut told = lines(said);
    let found = told.iter().find(|line| line["message"] == message).unwrap_or_else(|| panic!("{said}")).clone();
    (found, told.pop().unwrap())
}

#[tokio::test]
async fn sigterm_delivers_what_is_in_hand_and_takes_no_more() {
    let receiver = Receiver::start();
    let settings = "[relay]\nshutdown_deadline = \"60s\"\n".to_owned() + &receiver.destination("hook", "/slow/3");
    let here = Place::with(&settings).variable("POSTHASTE_DATABASE_URL", &postgres().await);
    here.ok(&["migrate", "up", "--wake-trigger"]);
    let mut relay = here.start(&["relay", "--log-format", "json"]);
    relay.says("\"delivering\"");
    write(&here, "held", "OrderPlaced");
    until("it is with the receiver", || receiver.requests().len() == 1);
    relay.terminate();
    relay.says("\"ending\"");
    write(&here, "late", "OrderPlaced");
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    let (ending, ended) = told(&said, "ending");
    assert_eq!((&ending["signal"], &ending["in_hand"]), (&"SIGTERM".into(), &1.into()), "{said}");
    assert_eq!(
        (&ended["message"], &ended["released"]),
        (&"ended, with everything in hand delivered".into(), &0.into())
    );
    assert_eq!((&show(&here, "held")["status"], &show(&here, "late")["status"]), (&"DONE".into(), &"NEW".into()));
    assert_eq!(receiver.requests().len(), 1, "nothing more was taken");
}

#[tokio::test]
async fn sigterm_tells_how_many_the_deadline_cut_off() {
    let mut tries_left = 4;
    while !tells_how_many_the_deadline_cut_off(tries_left).await {
        tries_left -= 1;
    }
}

async fn tells_how_many_the_deadline_cut_off(tries_left: u32) -> bool {
    let settings = format!(
        "[relay]\nshutdown_deadline = \"500ms\"\nworkers = 8\n[destination.hook]\ntype = \"webhook\"\n\
         to = \"http://{}/x\"\nunsigned = true\nallow_http = true\nallow_private_addresses = true\n\
         [[route]]\nto = \"hook\"\nconcurrency = 8\n",
        silent()
    );
    let here = Place::with(&settings).variable("POSTHASTE_DATABASE_URL", &postgres().await);
    here.ok(&["migrate", "up", "--wake-trigger"]);
    let mut relay = here.start(&["relay", "--log-format", "json"]);
    relay.says("\"delivering\"");
    let ids = ["e1", "e2", "e3"];
    for id in ids {
        write(&here, id, "OrderPlaced");
    }
    until("all are in hand", || {
        let leases = here.json(&["stats", "--output", "json"])["leases"].clone();
        leases.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum::<u64>() == 3
    });
    relay.terminate();
    let asked_at = Instant::now();
    let (status, _, said) = relay.end();
    // The receiver would keep it for a minute and more.
    assert!(asked_at.elapsed() < Duration::from_secs(20), "{said}");
    let (_, ended) = told(&said, "ending");
    if !was_in_time(&ended, tries_left) {
        return false;
    }
    assert_eq!((status, &ended["released"], &ended["abandoned"]), (Some(0), &3.into(), &0.into()), "{said}");
    for id in ids {
        let row = show(&here, id);
        assert_eq!((&row["status"], &row["attempts"]), (&"NEW".into(), &0.into()), "{row}");
        assert_eq!(row["leased_by"], Value::Null, "others take it at once: {row}");
    }
    true
}

#[tokio::test]
async fn the_end_of_a_relay_leaves_what_another_of_its_name_has_alone() {
    let receiver = Receiver::start();
    let settings = "[relay]\nowner = \"relay\"\n".to_owned()
        + &receiver.destination("slow", "/slow/3")
        + &receiver.destination("quick", "/status/204")
        + "[[route]]\nmatch = { event_type = \"Slow\" }\nto = \"slow\"\n[[route]]\nto = \"quick\"\n";
    let here = Place::with(&settings).variable("POSTHASTE_DATABASE_URL", &postgres().await);
    here.ok(&["migrate", "up", "--wake-trigger"]);
    let mut first = here.start(&["relay"]);
    first.says("delivering");
    write(&here, "held", "Slow");
    until("the first has it", || receiver.of("/slow").len() == 1);
    let lease = || show(&here, "held");
    assert!(lease()["leased_by"].as_str().unwrap().starts_with("relay-"), "{}", lease());

    // The second starts, works and ends while the first delivers; it gives back what is its own, which is nothing.
    let mut second = here.start(&["relay", "--log-format", "json"]);
    second.says("\"delivering\"");
    write(&here, "another", "Quick");
    until("it is delivered by one of them", || show(&here, "another")["status"] == "DONE");
    second.terminate();
    let (status, _, said) = second.end();
    let (_, ended) = told(&said, "ending");
    assert_eq!((status, &ended["released"]), (Some(0), &0.into()), "{said}");

    until("it is delivered by the first", || lease()["status"] == "DONE");
    assert_eq!((lease()["attempts"].clone(), receiver.of("/slow").len()), (0.into(), 1), "once");
    first.terminate();
    assert_eq!(first.end().0, Some(0));
}

/// Somebody who keeps others from changing the table, as an operator at work might. Reading goes on.
struct Lock(PgConnection);

impl Lock {
    async fn take(url: &str) -> Self {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql("BEGIN; LOCK TABLE outbox_event IN SHARE MODE").execute(&mut connection).await.unwrap();
        Self(connection)
    }

    /// Waits until a claim waits for him.
    async fn is_waited_for(&mut self) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'outbox_event'::regclass AND NOT granted";
        let started = Instant::now();
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut self.0).await.unwrap() == 0 {
            assert!(started.elapsed() < Duration::from_secs(60), "nobody claims");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn release(mut self) {
        sqlx::raw_sql("COMMIT").execute(&mut self.0).await.unwrap();
    }
}

async fn with_three_events(settings: &str) -> (Place, String) {
    let url = postgres().await;
    let here = Place::with(settings).variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    for id in ["e1", "e2", "e3"] {
        write(&here, id, "OrderPlaced");
    }
    (here, url)
}

#[tokio::test]
async fn once_gives_back_what_a_claim_takes_that_was_under_way_at_the_signal() {
    let (here, url) = with_three_events("[relay]\nshutdown_deadline = \"60s\"\n").await;
    let mut lock = Lock::take(&url).await;
    let mut relay = here.start(&["relay", "--once", "--log-format", "json"]);
    lock.is_waited_for().await;
    relay.terminate();
    relay.says("\"ending\"");
    lock.release().await;
    let (status, printed, said) = relay.end();
    assert_eq!((status, &*printed), (Some(0), ""), "{said}");
    let (_, ended) = told(&said, "ending");
    assert_eq!((&ended["released"], &ended["abandoned"]), (&3.into(), &0.into()), "{said}");
    for id in ["e1", "e2", "e3"] {
        let row = show(&here, id);
        assert_eq!((&row["status"], &row["leased_by"]), (&"NEW".into(), &Value::Null), "{row}: {said}");
    }
}

#[tokio::test]
async fn once_says_that_a_claim_is_left_behind_and_does_not_wait_for_it_for_ever() {
    let (here, url) = with_three_events("[relay]\nshutdown_deadline = \"300ms\"\n").await;
    let mut lock = Lock::take(&url).await;
    let mut relay = here.start(&["relay", "--once", "--log-format", "json"]);
    lock.is_waited_for().await;
    relay.terminate();
    relay.says("\"ending\"");
    // The lock is still there.
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("a claim is still under way"), "{said}");
    assert!(!said.contains("everything in hand delivered"), "{said}");
    lock.release().await;
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_database_that_does_not_answer() {
    let settings = "[relay]\nshutdown_deadline = \"300ms\"\npoll_interval = \"50ms\"\n";
    let (here, url) = with_three_events(settings).await;
    let mut lock = Lock::take(&url).await;
    let relay = here.start(&["relay", "--log-format", "json"]);
    lock.is_waited_for().await;
    relay.terminate();
    let (_, _, said) = relay.end();
    // What became of events is told before connections are closed, which may take its time.
    let told: Vec<String> = lines(&said).iter().map(|line| line["message"].as_str().unwrap().to_owned()).collect();
    let ended = told.iter().position(|message| message.starts_with("ended")).unwrap_or_else(|| panic!("{said}"));
    let closed = told.iter().position(|message| message.starts_with("not everything could be closed"));
    assert!(closed.is_none_or(|closed| closed > ended), "{said}");
    lock.release().await;
}
