//! Order: `posthaste relay` with it, `posthaste keys`, and why an event waits.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::Connection;

use crate::place::{Place, until};

/// What no route fits is DEAD, and parks its aggregate.
const SETTINGS: &str = "[relay]\nordered = [\"Order\"]\n[destination.out]\ntype = \"file\"\npath = \"out.ndjson\"\n\
     [[route]]\nmatch = { event_type = \"Order*\" }\nto = \"out\"\n";

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first"))
}

/// A place with a table of its own, on SQLite, PostgreSQL and MySQL.
fn places(settings: &str) -> Vec<Place> {
    let urls =
        ["sqlite:shop.db".to_owned(), variable("POSTHASTE_TEST_POSTGRES_URL"), variable("POSTHASTE_TEST_MYSQL_URL")];
    urls.iter().map(|url| place(settings, url)).collect()
}

fn place(settings: &str, url: &str) -> Place {
    let table = format!("keys_test_{:x}", fastrand::u64(..));
    let place = Place::with(settings);
    place.variable("POSTHASTE_DATABASE_URL", url).variable("POSTHASTE_DATABASE_TABLE", &table)
}

fn write(here: &Place, id: &str, event_type: &str, (aggregate, of): (&str, &str)) {
    let event = ["events", "write", "--id", id, "--type", event_type];
    here.ok(&[&event[..], &["--aggregate-type", aggregate, "--aggregate-id", of, &format!("\"{id}\"")]].concat());
}

/// What was delivered, of that aggregate.
fn delivered(here: &Place, of: &str) -> Vec<String> {
    let lines = here.read("out.ndjson");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["key"] == of).map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

fn keys(here: &Place) -> Vec<Value> {
    here.json(&["keys", "--output", "json"]).as_array().unwrap().clone()
}

/// Why an event waits: the kinds, and all words.
fn why(here: &Place, id: &str) -> (Vec<String>, String) {
    let shown = here.json(&["events", "show", id, "--output", "json"]);
    let reasons = shown["waiting"].as_array().unwrap();
    let kinds = reasons.iter().map(|reason| reason["reason"].as_str().unwrap().to_owned()).collect();
    (kinds, reasons.iter().map(|reason| reason["text"].as_str().unwrap()).collect::<Vec<_>>().join("\n"))
}

#[test]
fn a_parked_aggregate_is_listed_explained_skipped_and_released() {
    for here in places(SETTINGS) {
        here.ok(&["migrate", "up"]);
        let error = here.fails(5, &["relay", "--once"]);
        assert!(error.contains("is not prepared for order") && error.contains("migrate up --lanes"), "{error}");
        let output = here.run(&["keys"]);
        assert!(crate::stderr(&output).contains("not prepared for order"), "{}", crate::stderr(&output));
        assert!(here.ok(&["migrate", "up", "--lanes"]).contains("events can be delivered in order"));

        let order = ("Order", "42");
        for (id, event_type, of) in [
            ("e1", "OrderPlaced", order),
            ("e2", "Odd", order),
            ("e3", "OrderShipped", order),
            ("e4", "OrderPlaced", ("Order", "7")),
            ("e5", "Odd", ("Invoice", "9")),
            ("e6", "OrderPlaced", ("Invoice", "9")),
        ] {
            write(&here, id, event_type, of);
        }
        here.ok(&["relay", "--once"]);
        // Invoices are not in order, so nothing waits for what is DEAD of them.
        assert_eq!([delivered(&here, "42"), delivered(&here, "7"), delivered(&here, "9")], [["e1"], ["e4"], ["e6"]]);

        let parked = keys(&here);
        assert_eq!(parked.len(), 1, "{parked:?}");
        let fields =
            ["state", "aggregate_type", "aggregate_id", "head_id"].map(|field| parked[0][field].as_str().unwrap());
        assert_eq!((fields, &parked[0]["waiting"]), (["parked", "Order", "42", "e2"], &1.into()));
        assert!(parked[0]["reason"].as_str().unwrap().contains("no route fits"), "{parked:?}");
        let table = here.ok(&["keys"]);
        assert!(table.starts_with("STATE") && table.contains("parked") && table.contains("Order/42"), "{table}");
        assert_eq!(here.ok(&["keys", "--output", "ndjson"]).lines().count(), 1);

        let (kinds, words) = why(&here, "e3");
        assert_eq!(kinds, ["key_parked", "no_relay"], "{words}");
        assert!(words.contains("event e2 is DEAD: no route fits") && words.contains("keys skip Order/42"), "{words}");
        assert!(here.ok(&["events", "show", "e3"]).contains("Order/42 is parked"));
        let (kinds, words) = why(&here, "e2");
        assert!(kinds == ["dead"] && words.contains("Order/42 is parked for it"), "{words}");
        assert_eq!(why(&here, "e1").0, [""; 0]);

        assert!(here.fails(2, &["keys", "skip"]).contains("say which aggregates to skip"));
        let said = here.fails(1, &["keys", "skip", "Order/7", "--yes"]);
        assert!(said.contains("Order/7 does not stand still") && said.contains("nothing to skip"), "{said}");
        let preview = here.fails(1, &["keys", "skip", "Order/42"]);
        assert!(preview.contains("1 aggregate to skip, each with the event"), "{preview}");
        assert!(preview.contains("Order/42  e2 stays DEAD") && preview.contains("say --yes to go on"), "{preview}");
        assert_eq!(keys(&here)[0]["state"], "parked");
        assert_eq!(here.ok(&["keys", "skip", "Order/42", "--yes"]), "1 skipped\n");
        assert_eq!(keys(&here)[0]["state"], "released");
        assert_eq!(why(&here, "e3").0, ["key_released", "no_relay"]);
        assert!(here.fails(1, &["keys", "release", "Order/42", "--yes"]).contains("was let go on already"));
        here.ok(&["relay", "--once"]);
        assert_eq!(delivered(&here, "42"), ["e1", "e3"]);
        assert_eq!(keys(&here), [Value::Null; 0]);

        // What was mended is released, and those behind it follow.
        write(&here, "e7", "Odd", order);
        write(&here, "e8", "OrderShipped", order);
        here.ok(&["relay", "--once"]);
        assert_eq!(keys(&here)[0]["head_id"], "e7");
        here.write("posthaste.toml", &SETTINGS.replace("\"Order*\"", "[\"Order*\", \"Odd\"]"));
        assert_eq!(here.ok(&["keys", "release", "--all", "--yes"]), "1 released\n");
        here.ok(&["relay", "--once"]);
        assert_eq!(delivered(&here, "42"), ["e1", "e3", "e7", "e8"]);
    }
}

#[tokio::test]
async fn a_parked_event_can_be_edited_before_it_is_released() {
    let url = crate::relay::postgres().await;
    let here = Place::with(SETTINGS).variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up", "--lanes"]);
    for (id, event_type) in [("e1", "Odd"), ("e2", "OrderPlaced")] {
        write(&here, id, event_type, ("Order", "42"));
    }
    here.ok(&["relay", "--once"]);
    assert_eq!(keys(&here)[0]["head_id"], "e1");
    // As docs/guide/order.md says.
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let edit = "UPDATE outbox_event SET event_type = 'OrderMended', payload = '{\"mended\":true}' \
                WHERE event_id = 'e1' AND status = 3";
    assert_eq!(sqlx::query(edit).execute(&mut connection).await.unwrap().rows_affected(), 1);
    assert_eq!(here.ok(&["keys", "release", "Order/42", "--yes"]), "1 released\n");
    here.ok(&["relay", "--once"]);
    assert_eq!(delivered(&here, "42"), ["e1", "e2"]);
    assert!(here.read("out.ndjson").lines().next().unwrap().contains("{\"mended\":true}"));
}

#[test]
fn the_status_of_a_skip_says_whether_anything_was_skipped() {
    for here in places(SETTINGS) {
        here.ok(&["migrate", "up"]);
        // Without order nothing stands still.
        assert!(here.fails(1, &["keys", "skip", "Order/42", "--yes"]).contains("nothing to skip"));
        here.ok(&["migrate", "up", "--lanes"]);
        assert!(here.fails(1, &["keys", "skip", "--all", "--yes"]).contains("nothing to skip"));
        for (id, of) in [("e1", "1"), ("e2", "2"), ("e3", "3")] {
            write(&here, id, "Odd", ("Order", of));
        }
        here.ok(&["relay", "--once"]);
        // Some of those that are named: what can be done is done, and told.
        let output = here.run(&["keys", "skip", "Order/1", "Order/9", "Order/1", "--yes"]);
        assert_eq!((output.status.code(), crate::stdout(&output)), (Some(0), "1 skipped\n"));
        assert!(crate::stderr(&output).contains("Order/9 does not stand still"), "{}", crate::stderr(&output));
        assert!(here.fails(1, &["keys", "skip", "Order/1", "--yes"]).contains("was let go on already"));
        assert!(here.fails(1, &["keys", "skip", "--all"]).contains("say --yes to go on"));
        assert!(here.fails(2, &["keys", "skip", "--all", "Order/2"]).contains("cannot be used with"));
        assert_eq!(here.ok(&["keys", "skip", "--all", "--yes"]), "2 skipped\n");
        assert!(here.fails(1, &["keys", "skip", "--all", "--yes"]).contains("nothing to skip"));
    }
}

#[test]
fn what_a_dead_event_does_to_its_aggregate_is_said_for_the_relay_and_for_a_route() {
    let settings = SETTINGS.replace("[relay]\n", "[relay]\non_dead = \"skip\"\n");
    let here = place(&settings, &variable("POSTHASTE_TEST_POSTGRES_URL"));
    here.ok(&["migrate", "up", "--lanes"]);
    write(&here, "e1", "Odd", ("Order", "1"));
    write(&here, "e2", "OrderPlaced", ("Order", "1"));
    here.ok(&["relay", "--once"]);
    assert_eq!((delivered(&here, "1"), keys(&here).len()), (vec!["e2".to_owned()], 0));
    // Variables and flags say the same.
    write(&here, "e3", "Odd", ("Order", "1"));
    write(&here, "e4", "OrderPlaced", ("Order", "1"));
    here.ok(&["relay", "--once", "--ordered", "Order,Invoice", "--on-dead", "park"]);
    assert_eq!(keys(&here)[0]["head_id"], "e3");
    let printed = here.ok(&["config", "print"]);
    assert!(
        printed.contains("relay.on_dead = \"skip\"") && printed.contains("relay.ordered = [\"Order\"]"),
        "{printed}"
    );
    let here = here.variable("POSTHASTE_RELAY_ORDERED", "true").variable("POSTHASTE_RELAY_ON_DEAD", "block");
    let printed = here.ok(&["config", "print"]);
    assert!(printed.contains("relay.on_dead = \"block\"") && printed.contains("relay.ordered = \"true\""), "{printed}");
}

#[test]
fn a_relay_that_runs_hears_at_once_of_what_an_operator_decides() {
    let here = place(SETTINGS, &variable("POSTHASTE_TEST_POSTGRES_URL"));
    here.ok(&["migrate", "up", "--lanes"]);
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    let mut in_time = 0;
    for order in ["1", "2", "3", "4", "5", "6"] {
        write(&here, &format!("bad-{order}"), "Odd", ("Order", order));
        write(&here, &format!("next-{order}"), "OrderPlaced", ("Order", order));
        until("it is parked", || keys(&here).len() == 1);
        let key = format!("Order/{order}");
        if order == "4" {
            // Discarding the head lets the others go on, too.
            here.ok(&["dead", "discard", "bad-4", "--yes"]);
        } else {
            here.ok(&["keys", "skip", &key, "--yes"]);
        }
        let decided = Instant::now();
        until("it is delivered", || delivered(&here, order).len() == 1);
        // A sweep comes every 5 s: it would hardly be in time so often. On a busy machine twice may be late.
        in_time += usize::from(decided.elapsed() < Duration::from_secs(2));
        if in_time == 4 {
            break;
        }
    }
    assert_eq!(in_time, 4, "it waits for the next sweep");
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
}

#[test]
fn a_blocked_aggregate_is_listed_and_explained_and_goes_on_in_order() {
    let hook = Hook::start();
    let settings = format!(
        "[relay]\nordered = true\n[destination.hook]\ntype = \"webhook\"\nto = \"http://{}/x\"\nunsigned = true\n\
         allow_http = true\nallow_private_addresses = true\n\
         [[route]]\nto = \"hook\"\nretry = {{ base = \"200ms\", max = \"400ms\", attempts = 1 }}\non_dead = \"block\"\n",
        hook.address
    );
    for here in places(&settings) {
        hook.refuses.store(true, Ordering::SeqCst);
        hook.taken.lock().unwrap().clear();
        here.ok(&["migrate", "up", "--lanes"]);
        let mut relay = here.start(&["relay"]);
        relay.says("delivering");
        for id in ["e1", "e2", "e3"] {
            write(&here, id, "OrderPlaced", ("Order", "42"));
        }
        let blocked = || keys(&here).into_iter().find(|key| key["state"] == "blocked" && key["waiting"] == 2);
        until("it is blocked", || blocked().is_some());
        let key = blocked().unwrap();
        assert_eq!((&key["head_id"], &key["aggregate_id"]), (&"e1".into(), &"42".into()));
        assert!(key["reason"].as_str().unwrap().contains("500") && key["retry_at"].is_string(), "{key}");
        let (kinds, words) = why(&here, "e3");
        assert_eq!(kinds, ["behind", "lane"], "{words}");
        assert!(words.contains("behind event e1 of Order/42, which has failed") && words.contains("500"), "{words}");
        assert!(words.contains("is held by ") && words.contains(" until "), "{words}");
        let said = here.fails(1, &["keys", "release", "Order/42", "--yes"]);
        assert!(said.contains("Order/42 is blocked, not parked"), "{said}");
        assert!(here.fails(1, &["keys", "skip", "--all", "--yes"]).contains("nothing to skip"));

        hook.refuses.store(false, Ordering::SeqCst);
        until("they are delivered", || hook.taken.lock().unwrap().len() >= 3);
        assert_eq!(*hook.taken.lock().unwrap(), ["\"e1\"", "\"e2\"", "\"e3\""]);
        until("they are done", || here.json(&["stats", "--output", "json"])["done"] == 3);
        // With one attempt, and nothing is DEAD.
        assert_eq!((keys(&here).len(), &here.json(&["stats", "--output", "json"])["dead"]), (0, &0.into()));
        relay.terminate();
        assert_eq!(relay.end().0, Some(0));
    }
}

#[test]
fn a_blocked_aggregate_goes_on_behind_an_event_that_is_skipped() {
    let hook = Hook::start();
    // It would be tried again in an hour.
    let settings = format!(
        "[relay]\nordered = true\n[destination.hook]\ntype = \"webhook\"\nto = \"http://{}/x\"\nunsigned = true\n\
         allow_http = true\nallow_private_addresses = true\n\
         [[route]]\nto = \"hook\"\nretry = {{ base = \"1h\", max = \"1h\", attempts = 1 }}\non_dead = \"block\"\n",
        hook.address
    );
    for here in places(&settings) {
        hook.refuses.store(true, Ordering::SeqCst);
        hook.taken.lock().unwrap().clear();
        here.ok(&["migrate", "up", "--lanes"]);
        let mut relay = here.start(&["relay"]);
        relay.says("delivering");
        for id in ["e1", "e2", "e3"] {
            write(&here, id, "OrderPlaced", ("Order", "42"));
        }
        until("it is blocked", || keys(&here).iter().any(|key| key["state"] == "blocked" && key["waiting"] == 2));
        hook.refuses.store(false, Ordering::SeqCst);
        let preview = here.fails(1, &["keys", "skip", "Order/42"]);
        assert!(preview.contains("Order/42  e1 becomes DEAD"), "{preview}");
        assert_eq!(here.ok(&["keys", "skip", "Order/42", "--yes"]), "1 skipped\n");
        until("the others are delivered", || hook.taken.lock().unwrap().len() >= 2);
        assert_eq!(*hook.taken.lock().unwrap(), ["\"e2\"", "\"e3\""]);
        until("they are done", || here.json(&["stats", "--output", "json"])["done"] == 2);
        assert_eq!((keys(&here).len(), &here.json(&["stats", "--output", "json"])["dead"]), (0, &1.into()));
        assert!(why(&here, "e1").1.contains("it is DEAD"));
        relay.terminate();
        assert_eq!(relay.end().0, Some(0));
    }
}

#[test]
fn an_event_says_when_it_is_due_and_who_has_it() {
    let here = Place::new();
    here.ok(&["events", "write", "--id", "later", "--type", "Ticked", "--after", "2h", "{}"]);
    here.ok(&["events", "write", "--id", "now", "--type", "Ticked", "{}"]);
    let (kinds, words) = why(&here, "later");
    assert!(kinds == ["not_due"] && words.contains("in 1h 59m"), "{words}");
    let (kinds, words) = why(&here, "now");
    assert!(kinds == ["no_relay"] && words.contains("no relay has taken it yet"), "{words}");
    here.ok(&["relay", "--once"]);
    assert_eq!(why(&here, "now").0, [""; 0]);
    // With lanes and without an order for it.
    here.ok(&["migrate", "up", "--lanes"]);
    assert_eq!(why(&here, "later").0, ["not_due", "not_ordered", "no_relay"]);
}

/// A server that refuses what it is sent, or notes it.
struct Hook {
    address: SocketAddr,
    refuses: Arc<AtomicBool>,
    taken: Arc<Mutex<Vec<String>>>,
}

impl Hook {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hook = Self { address: listener.local_addr().unwrap(), refuses: Arc::default(), taken: Arc::default() };
        let (refuses, taken) = (Arc::clone(&hook.refuses), Arc::clone(&hook.taken));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (refuses, taken) = (Arc::clone(&refuses), Arc::clone(&taken));
                std::thread::spawn(move || {
                    let _ = answer(client, &refuses, &taken);
                });
            }
        });
        hook
    }
}

/// Answers all requests of a connection.
fn answer(client: TcpStream, refuses: &AtomicBool, taken: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut client = client;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let status = if refuses.load(Ordering::SeqCst) {
            "500 Internal Server Error"
        } else {
            taken.lock().unwrap().push(String::from_utf8(body).unwrap());
            "204 No Content"
        };
        write!(client, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")?;
    }
}

/// A database that refuses in the middle of it leaves what was done before.
#[tokio::test]
async fn what_was_let_go_on_before_the_database_refused_is_told() {
    let here = Place::with(SETTINGS);
    here.ok(&["migrate", "up", "--lanes"]);
    for of in ["1", "2", "3"] {
        write(&here, &format!("e{of}"), "Odd", ("Order", of));
    }
    here.ok(&["relay", "--once"]);
    let url = format!("sqlite:{}", here.path("posthaste.db").display());
    let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let refused = "CREATE TRIGGER no BEFORE UPDATE ON outbox_event_key WHEN old.aggregate_id = '3' BEGIN \
                   SELECT RAISE(ABORT, 'not this one'); END";
    sqlx::raw_sql(refused).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let said = here.fails(4, &["keys", "skip", "Order/1", "Order/2", "Order/3", "--yes"]);
    assert!(said.contains("2 of 3 aggregates had been skipped before this") && said.contains("not this one"), "{said}");
}

/// Relays that own lanes lease no single events.
#[test]
fn statistics_tell_who_has_how_many_lanes() {
    for here in places(SETTINGS) {
        here.ok(&["migrate", "up", "--lanes"]);
        let stats = || here.json(&["stats", "--output", "json"]);
        assert_eq!(stats()["lanes"], serde_json::json!({}));
        let mut relay = here.start(&["relay"]);
        relay.says("delivering");
        let lanes = || stats()["lanes"].as_object().unwrap().clone();
        until("it has lanes", || !lanes().is_empty());
        let (owner, count) = lanes().into_iter().next().unwrap();
        assert!(relay.is_called(&owner) && count.as_u64().unwrap() > 0, "{owner}: {count}");
        let table = here.ok(&["stats"]);
        assert!(
            table.lines().any(|line| line.starts_with("lanes ") && line.ends_with(&format!(" of {owner}"))),
            "{table}"
        );
        relay.terminate();
        assert_eq!(relay.end().0, Some(0));
        // It has given them back.
        assert_eq!(stats()["lanes"], serde_json::json!({}));
    }
}
