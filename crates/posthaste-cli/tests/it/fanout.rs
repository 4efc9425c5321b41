//! A route to several destinations: done when all have acknowledged, whichever of them is away, refuses, or has the relay die under
//! it. Each is read by the server at the other end.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::place::{Late, Place, Running, until};
use crate::receiver::Receiver;
use crate::relay::{postgres, redis, socket, unique, variable};

/// A place with a table on PostgreSQL that wakes relays.
async fn place(settings: &str) -> (Place, String) {
    let url = postgres().await;
    let here = Place::with(settings).variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up", "--wake-trigger"]);
    (here, url)
}

/// A stream of Redis at an address where nobody is yet.
fn stream(late: &Late, stream: &str) -> String {
    format!("[destination.stream]\ntype = \"redis\"\nurl = \"redis://{}\"\nto = \"{stream}\"\n", late.address)
}

fn late_redis() -> Late {
    Late::to(&socket(&variable("POSTHASTE_TEST_REDIS_URL")))
}

async fn insert(url: &str, event_type: &str, count: usize) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let insert = format!(
        "INSERT INTO outbox_event (event_id, event_type, payload) \
         SELECT '{event_type}-' || n, '{event_type}', '{{}}' FROM generate_series(1, {count}) AS n"
    );
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
}

fn stats(here: &Place) -> Value {
    here.json(&["stats", "--output", "json"])
}

fn show(here: &Place, id: &str) -> Value {
    here.json(&["events", "show", id, "--output", "json"])
}

/// How often each event was sent to paths that begin so.
fn sent(receiver: &Receiver, path: &str) -> BTreeMap<String, usize> {
    let mut sent = BTreeMap::new();
    for request in receiver.of(path) {
        *sent.entry(request["headers"]["event-id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    sent
}

/// So many events of a type, each this often.
fn each(event_type: &str, count: usize, times: usize) -> BTreeMap<String, usize> {
    (1..=count).map(|n| (format!("{event_type}-{n}"), times)).collect()
}

/// How often each event is in a stream, read by the client of Redis.
fn in_stream(stream: &str) -> BTreeMap<String, usize> {
    let entries: Value = serde_json::from_str(&redis(&["--json", "XRANGE", stream, "-", "+"])).unwrap();
    let mut found = BTreeMap::new();
    for entry in entries.as_array().unwrap() {
        let fields = entry[1].as_array().unwrap();
        let id = fields.chunks(2).find(|pair| pair[0] == "event-id").unwrap_or_else(|| panic!("{entry}"))[1].clone();
        *found.entry(id.as_str().unwrap().to_owned()).or_default() += 1;
    }
    found
}

#[tokio::test]
async fn events_wait_for_the_one_that_is_away_and_nobody_gets_them_twice() {
    const COUNT: usize = 20;
    let (receiver, late, name) = (Receiver::start(), late_redis(), unique("fanout:"));
    let settings = receiver.destination("hook", "/status/204/{event_type}")
        + &stream(&late, &name)
        + "lazy = true\n\
           [[route]]\nname = \"hook first\"\nmatch = { event_type = \"HookFirst\" }\nto = [\"hook\", \"stream\"]\n\
           [[route]]\nname = \"stream first\"\nmatch = { event_type = \"StreamFirst\" }\nto = [\"stream\", \"hook\"]\n";
    let (here, url) = place(&settings).await;
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    insert(&url, "HookFirst", COUNT).await;
    until("one of them was sent to the hook", || !sent(&receiver, "/status/204/HookFirst").is_empty());
    relay.says("destination is away");
    insert(&url, "StreamFirst", COUNT).await;
    let tries = |relay: &Running| relay.said().matches("destination is away").count();
    let before = tries(&relay);
    until("it was tried again and again", || tries(&relay) >= before + 2);
    // What has to go elsewhere first has not been there.
    assert_eq!(sent(&receiver, "/status/204/StreamFirst"), BTreeMap::new());
    let counted = stats(&here);
    assert_eq!((&counted["done"], &counted["new"]), (&0.into(), &(2 * COUNT).into()), "{counted}");

    late.arrive();
    until("all are delivered", || stats(&here)["done"] == 2 * COUNT);
    relay.terminate();
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    receiver.got(2 * COUNT);
    // Those that the hook had before the stream was there went on behind it.
    assert_eq!(sent(&receiver, "/status/204/HookFirst"), each("HookFirst", COUNT, 1));
    assert_eq!(sent(&receiver, "/status/204/StreamFirst"), each("StreamFirst", COUNT, 1));
    let both = [each("HookFirst", COUNT, 1), each("StreamFirst", COUNT, 1)].into_iter().flatten().collect();
    assert_eq!(in_stream(&name), both);
    let rows = here.json(&["events", "list", "--limit", "100", "--output", "json"]);
    assert!(rows.as_array().unwrap().iter().all(|row| row["attempts"] == 0), "to be away is no failure: {rows:#}");
}

#[tokio::test]
async fn nobody_gets_anything_before_all_were_there() {
    let (receiver, late, name) = (Receiver::start(), late_redis(), unique("fanout:"));
    let settings = receiver.destination("hook", "/status/204")
        + &stream(&late, &name)
        + "[[route]]\nto = [\"hook\", \"stream\"]\n";
    let (here, url) = place(&settings).await;
    insert(&url, "Early", 3).await;
    let mut relay = here.start(&["relay"]);
    relay.says("the destination stream cannot be reached; waiting for it");
    let counted = stats(&here);
    assert_eq!((&counted["leases"], &counted["new"], receiver.requests().len()), (&json!({}), &3.into(), 0));
    late.arrive();
    relay.says("the destination stream is there");
    until("all are delivered", || stats(&here)["done"] == 3);
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
    receiver.got(3);
    assert_eq!((sent(&receiver, "/"), in_stream(&name)), (each("Early", 3, 1), each("Early", 3, 1)));
}

/// The next process knows nothing of how far an event had come, and begins with the first destination.
#[tokio::test]
async fn what_was_left_is_delivered_by_the_next_to_all() {
    let (receiver, late, name) = (Receiver::start(), late_redis(), unique("fanout:"));
    let settings = receiver.destination("hook", "/status/204")
        + &stream(&late, &name)
        + "lazy = true\n[[route]]\nto = [\"hook\", \"stream\"]\n";
    let (here, url) = place(&settings).await;
    insert(&url, "Left", 1).await;
    let said = here.fails(8, &["relay", "--once", "--wait", "500ms"]);
    assert!(said.contains("left, because it is away: destination stream") && said.contains("events=1"), "{said}");
    let row = show(&here, "Left-1");
    assert_eq!((&row["status"], &row["attempts"], &row["leased_by"]), (&"NEW".into(), &0.into(), &Value::Null));
    receiver.got(1);
    assert_eq!(sent(&receiver, "/"), each("Left", 1, 1), "within one process, however often it was tried");

    late.arrive();
    until("it is put off no longer, and delivered", || {
        here.ok(&["relay", "--once"]);
        stats(&here)["done"] == 1
    });
    receiver.got(2);
    assert_eq!((sent(&receiver, "/"), in_stream(&name)), (each("Left", 1, 2), each("Left", 1, 1)));
}

#[tokio::test]
async fn one_that_refuses_has_all_before_it_get_the_event_again_and_none_behind_it_before() {
    let receiver = Receiver::start();
    let route = |event_type: &str| {
        format!(
            "[[route]]\nname = \"{event_type}\"\nmatch = {{ event_type = \"{event_type}\" }}\n\
             to = [\"first\", \"{event_type}\", \"last\"]\nretry = {{ delays = [\"100ms\", \"100ms\", \"100ms\"] }}\n"
        )
    };
    let settings = receiver.destination("first", "/status/204/first/{event_type}")
        + &receiver.destination("Mended", "/then/500,503,204/second")
        + &receiver.destination("Refused", "/then/400,204/second")
        + &receiver.destination("last", "/status/204/last/{event_type}")
        + &route("Mended")
        + &route("Refused");
    let (here, url) = place(&settings).await;
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    insert(&url, "Mended", 1).await;
    insert(&url, "Refused", 1).await;
    until("each is where it will be", || {
        let counted = stats(&here);
        [&counted["done"], &counted["dead"]] == [1, 1]
    });

    // What is refused for good is not tried again by itself, and nobody behind has it.
    let refused = show(&here, "Refused-1");
    assert_eq!((&refused["status"], &refused["attempts"]), (&"DEAD".into(), &1.into()), "{refused}");
    assert!(refused["last_error"].as_str().unwrap().contains("400"), "{refused}");
    assert_eq!(sent(&receiver, "/status/204/first/Refused"), each("Refused", 1, 1));
    assert_eq!(sent(&receiver, "/status/204/last/Refused"), BTreeMap::new());
    // An operator has it tried once more, from the beginning.
    here.ok(&["dead", "redrive", "Refused-1", "--yes"]);
    until("it is delivered", || show(&here, "Refused-1")["status"] == "DONE");
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));

    let path = |request: &Value| request["path"].as_str().unwrap().to_owned();
    receiver.got(7 + 5);
    let of = |event_type: &str| -> Vec<String> {
        let all = receiver.requests();
        let of = all.iter().filter(|request| request["headers"]["event-id"] == format!("{event_type}-1"));
        of.map(path).collect()
    };
    let both = ["/status/204/first/Refused", "/then/400,204/second"];
    assert_eq!(of("Refused"), [&both[..], &both, &["/status/204/last/Refused"]].concat());
    let both = ["/status/204/first/Mended", "/then/500,503,204/second"];
    assert_eq!(of("Mended"), [&both[..], &both, &both, &["/status/204/last/Mended"]].concat());
    let mended = show(&here, "Mended-1");
    assert_eq!((&mended["status"], &mended["attempts"]), (&"DONE".into(), &2.into()), "{mended}");
}

#[tokio::test]
async fn a_relay_that_dies_between_two_destinations_loses_nothing() {
    let receiver = Receiver::start();
    let settings = "[relay]\nlease = \"2s\"\npoll_interval = \"100ms\"\n".to_owned()
        + &receiver.destination("first", "/status/204")
        + &receiver.destination("second", "/slow/1.5")
        + "[[route]]\nto = [\"first\", \"second\"]\n";
    let (here, url) = place(&settings).await;
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    insert(&url, "Held", 1).await;
    until("the second has it", || receiver.of("/slow").len() == 1);
    relay.signal("-KILL");
    assert_eq!(relay.end().0, None);
    assert_eq!(show(&here, "Held-1")["status"], "NEW", "that one has acknowledged it is not enough");

    let relay = here.start(&["relay"]);
    until("another has delivered it", || stats(&here)["done"] == 1);
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
    receiver.got(4);
    assert_eq!((sent(&receiver, "/status"), sent(&receiver, "/slow")), (each("Held", 1, 2), each("Held", 1, 2)));
}
