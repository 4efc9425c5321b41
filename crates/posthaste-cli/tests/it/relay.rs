//! `posthaste relay`: the real program against real servers.

use std::process::Command;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::place::{Late, Place, silent, until};
use crate::{stderr, stdout};

pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run scripts/test, or eval \"$(scripts/servers start --brokers=nats,redis)\" first")
    })
}

/// A database of its own on the server of the tests: its URL.
pub(crate) async fn postgres() -> String {
    let server = variable("POSTHASTE_TEST_POSTGRES_URL");
    let mut connection = PgConnection::connect(&server).await.unwrap();
    let name = format!("posthaste_test_{}_{:x}", std::process::id(), fastrand::u64(..));
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    server.replace("/postgres?", &format!("/{name}?"))
}

/// What stands between `//` and the path of a URL, without a user.
pub(crate) fn socket(url: &str) -> String {
    let rest = url.split_once("://").unwrap().1.split(['/', '?']).next().unwrap();
    rest.rsplit('@').next().unwrap().to_owned()
}

pub(crate) fn redis(arguments: &[&str]) -> String {
    redis_at(&variable("POSTHASTE_TEST_REDIS_URL"), arguments)
}

/// The same at another server.
pub(crate) fn redis_at(url: &str, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-u", url]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).trim_end().to_owned()
}

pub(crate) fn jetstream(command: &str, argument: &str) -> String {
    jetstream_at(&variable("POSTHASTE_TEST_NATS_URL"), command, argument)
}

/// The same at another server.
pub(crate) fn jetstream_at(url: &str, command: &str, argument: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../posthaste-publishers/tests/it/jetstream.py");
    let output = Command::new(variable("POSTHASTE_TEST_NATS_PYTHON")).args([script, url, command, argument]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).to_owned()
}

pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A name that no other run has.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}{:x}", fastrand::u64(..))
}

#[test]
fn without_any_settings_events_of_this_directory_are_printed() {
    let here = Place::new();
    let id = here.ok(&[
        "events",
        "write",
        "--type",
        "OrderPlaced",
        "--aggregate-type",
        "Order",
        "--aggregate-id",
        "42",
        r#"{"total":1990}"#,
    ]);
    let printed = lines(&here.ok(&["relay", "--once"]));
    assert_eq!(printed.len(), 1);
    assert_eq!((printed[0]["id"].as_str().unwrap(), &printed[0]["key"]), (id.trim(), &Value::from("42")));
    assert_eq!(printed[0]["body"], serde_json::json!({ "total": 1990 }));
    // It is done, and does not come again.
    assert_eq!(here.ok(&["relay", "--once"]), "");
    assert_eq!(here.json(&["stats", "--output", "json"])["done"], 1);
}

#[test]
fn the_first_route_that_fits_takes_an_event() {
    let here = Place::with(
        r#"
[destination.eu]
type = "file"
path = "eu.ndjson"
[destination.orders]
type = "file"
path = "orders.ndjson"
envelope = { format = "cloudevents-structured", source = "/shop/{aggregate_type}" }
[destination.audit]
type = "file"
path = "audit.ndjson"

[[route]]
name = "europe"
match = { headers = { region = "eu-*" } }
to = "eu"

[[route]]
name = "paid"
match = { event_type = ["OrderPaid", "Order*Refunded"], tenant = "shop" }
to = ["orders", "audit"]

[[route]]
name = "orders"
match = { aggregate_type = "Order", event_type = "Order*" }
to = "orders"
envelope = "plain"
rate = "1000/s"
concurrency = 2
"#,
    );
    let write = |id: &str, event_type: &str, more: &[&str]| {
        let arguments = [&["events", "write", "--id", id, "--type", event_type, "{}"], more].concat();
        here.ok(&arguments);
    };
    write("1", "OrderPlaced", &["--aggregate-type", "Order", "--header", "region=eu-west"]);
    write("2", "OrderPlaced", &["--aggregate-type", "Order", "--header", "region=us"]);
    write("3", "OrderPaid", &["--tenant", "shop"]);
    write("4", "OrderHalfRefunded", &["--tenant", "shop"]);
    write("5", "OrderPaid", &["--tenant", "other"]);
    write("6", "BillPaid", &["--aggregate-type", "Order"]);
    here.ok(&["relay", "--once"]);
    let ids = |file: &str| {
        let mut ids: Vec<String> =
            lines(&here.read(file)).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids("eu.ndjson"), ["1"]);
    assert_eq!(ids("orders.ndjson"), ["2", "3", "4"]);
    assert_eq!(ids("audit.ndjson"), ["3", "4"]);
    // The envelope of a route is taken before that of the destination.
    for line in lines(&here.read("orders.ndjson")) {
        assert_eq!(line.get("specversion").is_some(), line["id"] != "2", "{line}");
    }
    let dead = here.json(&["dead", "list", "--each", "--output", "json"]);
    let errors: Vec<_> =
        dead.as_array().unwrap().iter().map(|row| (&row["id"], row["last_error"].as_str().unwrap())).collect();
    assert_eq!(errors.len(), 2, "{dead}");
    for (id, error) in errors {
        assert!(id == "5" || id == "6", "{dead}");
        assert!(error.contains("no route fits") && error.contains("add a route"), "{error}");
    }
}

#[test]
fn once_leaves_what_is_put_off_and_waits_for_what_is_almost_due() {
    let here = Place::new();
    here.ok(&["events", "write", "--type", "Soon", "--after", "300ms", "{}"]);
    here.ok(&["events", "write", "--type", "Tomorrow", "--after", "24h", "{}"]);
    let printed = lines(&here.ok(&["relay", "--once"]));
    assert_eq!(printed.len(), 1, "{printed:?}");
    assert_eq!(printed[0]["headers"]["event-type"], "Soon");
    assert_eq!(here.json(&["stats", "--output", "json"])["new"], 1);
}

#[test]
fn a_table_that_is_not_ready_and_a_destination_that_cannot_be_opened_have_their_own_status() {
    let here = Place::new();
    let error = here.fails(5, &["relay", "--once", "--database-url", "sqlite:shop.db"]);
    assert!(error.contains("posthaste migrate up"), "{error}");
    let here = Place::with("[destination.x]\ntype = \"file\"\npath = \"no/such/directory/x\"\n");
    let error = here.fails(6, &["relay", "--once"]);
    assert!(error.contains("posthaste.toml:1:14: destination.x: ") && error.contains("cannot be opened"), "{error}");
}

/// What was given back at the end has arrived. The database gets half a second for that, and on a busy machine may need longer; a test
/// then tries it once more, from the beginning.
pub(crate) fn was_in_time(ended: &Value, tries_left: u32) -> bool {
    tries_left == 0 || ended["abandoned"] == 0
}

#[test]
fn sigterm_gives_back_what_the_deadline_cuts_off_and_says_so() {
    let mut tries_left = 4;
    while !gives_back_what_the_deadline_cuts_off(tries_left) {
        tries_left -= 1;
    }
}

fn gives_back_what_the_deadline_cuts_off(tries_left: u32) -> bool {
    let here = Place::with(&format!(
        "[relay]\nshutdown_deadline = \"300ms\"\n[destination.hook]\ntype = \"webhook\"\nto = \"http://{}/x\"\n\
         unsigned = true\nallow_http = true\nallow_private_addresses = true\n",
        silent()
    ));
    here.ok(&["events", "write", "--id", "1", "--type", "OrderPlaced", "{}"]);
    let mut relay = here.start(&["relay", "--log-format", "json"]);
    here.until("it is leased", |here| {
        here.json(&["stats", "--output", "json"])["leases"].as_object().is_some_and(|leases| !leases.is_empty())
    });
    relay.says("\"delivering\"");
    relay.terminate();
    let (status, printed, said) = relay.end();
    let told = lines(&said);
    let ended = told.last().unwrap();
    if !was_in_time(ended, tries_left) {
        return false;
    }
    assert_eq!((status, &*printed), (Some(0), ""), "{said}");
    let ending = told.iter().find(|line| line["message"] == "ending").unwrap_or_else(|| panic!("{said}"));
    assert_eq!((&ending["signal"], &ending["in_hand"]), (&Value::from("SIGTERM"), &Value::from(1)), "{said}");
    assert_eq!((&ended["released"], &ended["abandoned"]), (&Value::from(1), &Value::from(0)), "{said}");
    let row = here.json(&["events", "show", "1", "--output", "json"]);
    assert_eq!(
        (&row["status"], &row["attempts"], &row["leased_by"]),
        (&"NEW".into(), &0.into(), &Value::Null),
        "{row}"
    );
    true
}

#[test]
fn a_destination_that_is_away_at_the_start_is_waited_for() {
    let (stream, late) = (unique("late:"), Late::to(&socket(&variable("POSTHASTE_TEST_REDIS_URL"))));
    let here = Place::with(&format!(
        "[destination.stream]\ntype = \"redis\"\nurl = \"redis://{}\"\nto = \"{stream}\"\n",
        late.address
    ));
    here.ok(&["events", "write", "--type", "OrderPlaced", r#"{"n":1}"#]);
    let mut relay = here.start(&["relay"]);
    relay.says("the destination stream cannot be reached; waiting for it");
    assert_eq!(here.json(&["stats", "--output", "json"])["leases"], serde_json::json!({}), "nothing is claimed");
    late.arrive();
    relay.says("the destination stream is there");
    until("it has arrived", || redis(&["XLEN", &stream]) == "1");
    relay.terminate();
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(here.json(&["stats", "--output", "json"])["done"], 1);
}

#[tokio::test]
async fn a_database_that_is_away_at_the_start_is_waited_for() {
    waits_for_database(&postgres().await, "outbox_event");
}

#[test]
fn a_mysql_that_is_away_at_the_start_is_waited_for() {
    waits_for_database(&variable("POSTHASTE_TEST_MYSQL_URL"), &unique("late_"));
}

fn waits_for_database(url: &str, table: &str) {
    let late = Late::to(&socket(url));
    let place =
        |url: &str| Place::new().variable("POSTHASTE_DATABASE_URL", url).variable("POSTHASTE_DATABASE_TABLE", table);
    let here = place(&url.replace(&socket(url), &late.address.to_string()));
    let mut relay = here.start(&["relay"]);
    relay.says("cannot be reached; waiting for it");
    relay.terminate();
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("ended before anything was claimed"), "{said}");

    let there = place(url);
    there.ok(&["migrate", "up"]);
    there.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    let mut relay = here.start(&["relay"]);
    relay.says("cannot be reached; waiting for it");
    // It says which, and nothing that could be a secret.
    let said = relay.said();
    assert!(said.contains(&format!("the database {}://", url.split(':').next().unwrap())), "{said}");
    assert!(said.contains(&late.address.to_string()) && !said.contains('?'), "{said}");
    assert_eq!(there.json(&["stats", "--output", "json"])["new"], 1, "nothing is claimed");
    late.arrive();
    relay.says("delivering");
    assert!(relay.said().contains(" is there"), "{}", relay.said());
    there.ok(&["events", "write", "--type", "OrderPaid", "{}"]);
    there.until("both are delivered", |there| there.json(&["stats", "--output", "json"])["done"] == 2);
    relay.terminate();
    let (status, printed, said) = relay.end();
    assert_eq!((status, lines(&printed).len()), (Some(0), 2), "{said}");
}

#[tokio::test]
async fn rows_that_anybody_inserts_reach_brokers_and_are_done_when_all_have_acknowledged() {
    let (url, stream, subjects) = (postgres().await, unique("orders:"), unique("relay"));
    jetstream("add", &format!(r#"{{"name": "{subjects}", "subjects": ["{subjects}.>"]}}"#));
    let here = Place::with(&format!(
        "[database]\nurl = \"env:SHOP\"\n[destination.nats]\ntype = \"nats\"\nurl = \"{}\"\n\
         to = \"{subjects}.{{event_type}}\"\n[destination.redis]\ntype = \"redis\"\nurl = \"{}\"\nto = \"{stream}\"\n\
         [[route]]\nto = [\"nats\", \"redis\"]\nmatch = {{ aggregate_type = \"Order\" }}\n",
        variable("POSTHASTE_TEST_NATS_URL"),
        variable("POSTHASTE_TEST_REDIS_URL"),
    ))
    .variable("SHOP", &url);
    here.ok(&["migrate", "up", "--wake-trigger"]);
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    // As a program in another language would.
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let insert = "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload, headers) \
                  SELECT 'id-' || n, 'OrderPlaced', 'Order', n::text, json_build_object('n', n)::text, '{}' \
                  FROM generate_series(1, 100) AS n";
    sqlx::raw_sql(insert).execute(&mut connection).await.unwrap();
    here.until("all are delivered", |here| here.json(&["stats", "--output", "json"])["done"] == 100);
    relay.terminate();
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    let messages = lines(&jetstream("read", &subjects));
    assert_eq!(messages.len(), 100);
    assert_eq!(messages[0]["subject"], format!("{subjects}.OrderPlaced"));
    assert_eq!(redis(&["XLEN", &stream]), "100");
}

#[test]
fn two_relays_of_one_name_share_a_table() {
    let here = Place::with(
        "[relay]\nowner = \"relay\"\npoll_interval = \"50ms\"\n[destination.out]\ntype = \"file\"\npath = \"out.ndjson\"\n",
    );
    here.ok(&["migrate", "up"]);
    let mut relays = [here.start(&["relay"]), here.start(&["relay"])];
    for relay in &mut relays {
        relay.says("delivering");
    }
    for n in 0..8 {
        here.ok(&["events", "write", "--type", "Counted", &n.to_string()]);
    }
    here.until("all are delivered", |here| here.json(&["stats", "--output", "json"])["done"] == 8);
    for relay in relays {
        relay.terminate();
        let (status, _, said) = relay.end();
        assert_eq!(status, Some(0), "{said}");
    }
    let mut bodies: Vec<i64> =
        lines(&here.read("out.ndjson")).iter().map(|line| line["body"].as_i64().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..8).collect::<Vec<_>>(), "each once");
}

/// Whoever drains by the clock, such as a cron job, is not there for ever.
#[test]
fn whoever_drains_does_not_wait_for_ever_at_the_start_either() {
    let nobody = Late::to("").address;
    let here = Place::with(&format!(
        "[destination.stream]\ntype = \"redis\"\nurl = \"redis://{nobody}\"\nto = \"orders\"\n\
         [destination.out]\ntype = \"stdout\"\n[[route]]\nmatch = {{ event_type = \"Streamed\" }}\nto = \"stream\"\n\
         [[route]]\nto = \"out\"\n"
    ));
    here.ok(&["events", "write", "--id", "1", "--type", "Streamed", "{}"]);
    here.ok(&["events", "write", "--id", "2", "--type", "Printed", "{}"]);
    let output = here.run(&["relay", "--once", "--wait", "500ms"]);
    assert_eq!((output.status.code(), stdout(&output).lines().count()), (Some(8), 1), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("the destination stream cannot be reached; not waiting for it any longer"), "{said}");
    assert!(said.contains("left, because it is away: destination stream"), "{said}");
    let row = here.json(&["events", "show", "1", "--output", "json"]);
    assert_eq!((&row["attempts"], &row["leased_by"]), (&0.into(), &Value::Null), "{row}");
    let there = Place::new().variable("POSTHASTE_DATABASE_URL", &format!("postgres://shop@{nobody}/shop"));
    let said = there.fails(4, &["relay", "--once", "--wait", "500ms"]);
    assert!(said.contains("not waiting for it any longer"), "{said}");
}

#[tokio::test]
async fn whoever_prints_the_events_of_a_server_without_having_said_so_is_warned() {
    const WARNING: &str = "no destination is configured";
    let url = postgres().await;
    let with = |settings| Place::with(settings).variable("POSTHASTE_DATABASE_URL", &url);
    with("").ok(&["migrate", "up"]);
    for (settings, is_warned) in [("", true), ("[destination.stdout]\ntype = \"stdout\"\n", false)] {
        let output = with(settings).run(&["relay", "--once"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains(WARNING), is_warned, "{settings:?}: {}", stderr(&output));
    }
    // Whoever tries it out has a file.
    let output = Place::new().run(&["relay", "--once"]);
    assert!(output.status.success() && !stderr(&output).contains(WARNING), "{}", stderr(&output));
}
