//! What a route says besides where to: each seen by the server at the other end, with events in PostgreSQL.

use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::place::Place;
use crate::receiver::{Receiver, body};
use crate::relay::postgres;

/// A place with a table on PostgreSQL, and the URL of the database.
async fn place(settings: &str) -> (Place, String) {
    let url = postgres().await;
    let here = Place::with(settings).variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up", "--wake-trigger"]);
    (here, url)
}

/// Inserts so many events of each type, all at once.
async fn insert(url: &str, types: &[(&str, usize)]) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let rows: Vec<String> = types
        .iter()
        .map(|(event_type, count)| {
            format!("SELECT '{event_type}-' || n, '{event_type}', '{{}}' FROM generate_series(1, {count}) AS n")
        })
        .collect();
    let insert = format!("INSERT INTO outbox_event (event_id, event_type, payload) {}", rows.join(" UNION ALL "));
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
}

fn done(here: &Place) -> Value {
    here.json(&["stats", "--output", "json"])["done"].clone()
}

#[tokio::test]
async fn a_rate_holds_back_its_own_events_and_no_others() {
    let receiver = Receiver::start();
    let settings = receiver.destination("hook", "/status/204/{event_type}")
        + "[[route]]\nname = \"limited\"\nmatch = { event_type = \"Limited\" }\nto = \"hook\"\nrate = \"2/1s\"\n\
           [[route]]\nname = \"free\"\nto = \"hook\"\n";
    let (here, url) = place(&settings).await;
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    let inserted_at = Instant::now();
    insert(&url, &[("Limited", 8), ("Free", 40)]).await;
    here.until("all are delivered", |here| done(here) == 48);
    // Two at once, and then two in each second.
    assert!(inserted_at.elapsed() >= Duration::from_secs(3), "{:?}", inserted_at.elapsed());
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
    let requests = receiver.got(48);
    assert_eq!((requests.len(), receiver.of("/status/204/Limited").len()), (48, 8), "each once");
    assert_eq!(requests.last().unwrap()["path"], "/status/204/Limited", "the others did not wait for it");
    // To wait for a turn is no failure.
    let rows = here.json(&["events", "list", "--limit", "100", "--output", "json"]);
    assert!(rows.as_array().unwrap().iter().all(|row| row["attempts"] == 0), "{rows:#}");
}

#[tokio::test]
async fn no_more_than_the_concurrency_are_with_a_destination_at_once() {
    for (limit, is_kept) in [("concurrency = 2\n", true), ("", false)] {
        let receiver = Receiver::start();
        let settings = "[relay]\nworkers = 16\n".to_owned()
            + &receiver.destination("hook", "/slow/0.3")
            + "[[route]]\nto = \"hook\"\n"
            + limit;
        let (here, url) = place(&settings).await;
        insert(&url, &[("Slow", 12)]).await;
        let relay = here.start(&["relay"]);
        here.until("all are delivered", |here| done(here) == 12);
        relay.terminate();
        assert_eq!(relay.end().0, Some(0));
        let requests = receiver.got(12);
        let most = requests.iter().map(|request| request["active"].as_u64().unwrap()).max().unwrap();
        assert_eq!((requests.len(), most <= 2), (12, is_kept), "{most} at once");
        assert!(most >= 2, "{most} at once");
    }
}

#[tokio::test]
async fn a_route_is_tried_again_by_its_own_policy() {
    let receiver = Receiver::start();
    let settings = "[relay]\nretry_base = \"1h\"\nretry_max = \"2h\"\n".to_owned()
        + &receiver.destination("mended", "/then/500,500,204")
        + &receiver.destination("broken", "/status/500")
        + &receiver.destination("other", "/status/501")
        + "[[route]]\nname = \"delays\"\nmatch = { event_type = \"Mended\" }\nto = \"mended\"\n\
           retry = { delays = [\"300ms\", \"600ms\"] }\n\
           [[route]]\nname = \"attempts\"\nmatch = { event_type = \"Broken\" }\nto = \"broken\"\n\
           retry = { base = \"10ms\", max = \"20ms\", attempts = 3 }\n\
           [[route]]\nname = \"of the relay\"\nto = \"other\"\n";
    let (here, url) = place(&settings).await;
    let relay = here.start(&["relay"]);
    insert(&url, &[("Mended", 1), ("Broken", 1), ("Other", 1)]).await;
    here.until("all are where they will be", |here| {
        let stats = here.json(&["stats", "--output", "json"]);
        [&stats["done"], &stats["dead"], &stats["retry"]] == [1, 1, 1]
    });
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
    let show = |id: &str| here.json(&["events", "show", id, "--output", "json"]);
    receiver.got(7);

    let mended = show("Mended-1");
    assert_eq!((&mended["status"], &mended["attempts"]), (&"DONE".into(), &2.into()), "{mended}");
    let times: Vec<f64> = receiver.of("/then").iter().map(|request| request["at"].as_f64().unwrap()).collect();
    assert_eq!(times.len(), 3);
    assert!(times[1] - times[0] >= 0.3 && times[2] - times[1] >= 0.6, "{times:?}");

    let broken = show("Broken-1");
    assert_eq!((&broken["status"], &broken["attempts"]), (&"DEAD".into(), &3.into()), "{broken}");
    assert!(broken["last_error"].as_str().unwrap().contains("500"), "{broken}");
    assert_eq!(receiver.of("/status/500").len(), 3);

    let other = show("Other-1");
    assert_eq!((&other["status"], &other["attempts"]), (&"RETRY".into(), &1.into()), "{other}");
    let at = |field: &str| other[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    // Half of the base at least.
    assert!(at("available_at").duration_since(at("created_at")).as_mins() >= 30, "{other}");
    assert_eq!(receiver.of("/status/501").len(), 1);
}

#[tokio::test]
async fn a_route_has_its_own_envelope() {
    let receiver = Receiver::start();
    let settings = receiver.destination("hook", "/status/204/{event_type}")
        + "envelope = \"plain\"\n\
           [[route]]\nmatch = { event_type = \"Binary\" }\nto = \"hook\"\n\
           envelope = { format = \"cloudevents-binary\", source = \"/shop/{aggregate_type}\" }\n\
           [[route]]\nmatch = { event_type = \"Structured\" }\nto = \"hook\"\nenvelope = \"cloudevents-structured\"\n\
           [[route]]\nmatch = { event_type = \"Debezium\" }\nto = \"hook\"\n\
           envelope = { format = \"debezium\", event_type_header = \"eventType\" }\n\
           [[route]]\nto = \"hook\"\n";
    let (here, _) = place(&settings).await;
    for event_type in ["Plain", "Binary", "Structured", "Debezium"] {
        let event = ["--id", event_type, "--type", event_type, "--aggregate-type", "Order", "--aggregate-id", "42"];
        here.ok(&[&["events", "write"], &event[..], &[r#"{"b": 1, "a": 2}"#]].concat());
    }
    here.ok(&["relay", "--once"]);
    assert_eq!(done(&here), 4);
    receiver.got(4);
    let got = |event_type: &str| {
        let mut got = receiver.of(&format!("/status/204/{event_type}"));
        assert_eq!(got.len(), 1, "{event_type}");
        let got = got.remove(0);
        (got["headers"].clone(), body(&got))
    };
    let payload = br#"{"b": 1, "a": 2}"#;
    let (headers, sent) = got("Plain");
    assert_eq!((&headers["event-id"], &headers["aggregate-id"], &*sent), (&"Plain".into(), &"42".into(), &payload[..]));
    assert!(headers.get("ce-id").is_none() && headers.get("id").is_none(), "{headers}");

    let (headers, sent) = got("Binary");
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "Binary"),
        ("ce-source", "/shop/Order"),
        ("ce-type", "Binary"),
        ("ce-subject", "42"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(headers[name], value, "{headers}");
    }
    assert_eq!(sent, payload);

    let (headers, sent) = got("Structured");
    assert!(headers["content-type"].as_str().unwrap().starts_with("application/cloudevents+json"), "{headers}");
    let document: Value = serde_json::from_slice(&sent).unwrap();
    assert_eq!((&document["id"], &document["source"]), (&"Structured".into(), &"/Order".into()), "{document}");
    assert_eq!(document["data"], serde_json::json!({ "b": 1, "a": 2 }), "{document}");

    let (headers, sent) = got("Debezium");
    assert_eq!((&headers["id"], &headers["eventtype"]), (&"Debezium".into(), &"Debezium".into()), "{headers}");
    assert_eq!((headers.get("aggregate-id"), &*sent), (None, &payload[..]), "{headers}");
}
