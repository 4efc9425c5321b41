//! What is printed, word for word, kept in `tests/it/golden`. To accept a change:
//!
//! ```sh
//! POSTHASTE_GOLDEN=overwrite cargo test -p posthaste-cli --all-features --test it golden::
//! ```

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use crate::config::WRONG;
use crate::place::Place;
use crate::relay::{postgres, socket};
use crate::{stderr, stdout};

/// Compares a text with the one that is kept in a file of this name.
pub(crate) fn assert_kept(file: &str, text: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(file);
    if std::env::var_os("POSTHASTE_GOLDEN").is_some_and(|wish| wish == "overwrite") {
        std::fs::write(&golden, text).unwrap();
    }
    let kept = std::fs::read_to_string(&golden).unwrap_or_default();
    let differs = kept.lines().zip(text.lines()).find(|(kept, now)| kept != now);
    assert!(kept == text, "{file} is another, first at {differs:#?}; POSTHASTE_GOLDEN=overwrite accepts it:\n{text}");
}

/// What commands print, then what they say, and their exit statuses. What differs each time is named instead.
struct Transcript {
    text: String,
    names: Vec<(String, String)>,
}

impl Transcript {
    fn new() -> Self {
        Self { text: String::new(), names: Vec::new() }
    }

    /// From now on this is called so.
    fn name(&mut self, what: &str, name: &str) {
        self.names.push((what.to_owned(), name.to_owned()));
    }

    fn note(&mut self, text: &str) {
        self.text += &format!("\n# {text}\n");
    }

    fn run(&mut self, here: &Place, arguments: &[&str]) {
        let output = here.run(arguments);
        let quoted: Vec<String> = arguments
            .iter()
            .map(|word| match word.contains([' ', '{', '*']) {
                true => format!("'{word}'"),
                false => (*word).to_owned(),
            })
            .collect();
        let mut shown = format!("$ posthaste {}\n", quoted.join(" "));
        for line in stdout(&output).lines().chain(stderr(&output).lines()) {
            // PostgreSQL says on which line of its own source it is, which is another in each version.
            let line = match line.rsplit_once(" at line ") {
                Some((before, number)) if number.parse::<u32>().is_ok() => before,
                _ => line,
            };
            shown += &format!("{line}\n");
        }
        for (what, name) in &self.names {
            shown = shown.replace(what, name);
        }
        self.text += &shown;
        match output.status.code() {
            Some(0) => {}
            status => self.text += &format!("[exit status {}]\n", status.unwrap()),
        }
    }

    fn assert_kept(&self, file: &str) {
        assert_kept(file, self.text.trim_start());
    }
}

/// Besides those that `config` looks at more closely.
const WRONG_TOO: &[&str] = &[
    "[relay]\nworkers = 4\n[relay]\nlease = \"1m\"\n",
    "[relay]\nworkers = 2.5\n",
    "[relay]\nworkers = -1\n",
    "[database]\nurl = 5432\n",
    "[database]\nmigrate = \"yes\"\n",
    "destination = \"stdout\"\n",
    "[destination.x]\ntype = 4\n",
    "[destination.x]\ntype = \"kafka\"\nto = \"orders\"\n",
    "[destination.x]\ntype = \"rabbitmq\"\nurl = \"amqp://broker\"\nexchange = \"{color}\"\nto = \"x\"\n",
    "[destination.x]\ntype = \"mqtt\"\nurl = \"mqtt://broker\"\nto = \"shop/#\"\n",
    "[destination.x]\ntype = \"nats\"\nurl = \"nats://broker\"\nto = \"orders.{event_type\"\n",
    "[destination.x]\ntype = \"redis\"\nurl = \"env:NO_SUCH_VARIABLE\"\nto = \"orders\"\n",
    "[destination.x]\ntype = \"webhook\"\nto = \"http://partner.example/hooks\"\nunsigned = true\n",
    "[destination.x]\ntype = \"stdout\"\nkey = \"{headers.}\"\n",
    "[destination.x]\ntype = \"stdout\"\nenvelope = { source = \"/shop\" }\n",
    "[[route]]\nto = [\"stdout\", \"stdout\"]\n",
    "[[route]]\nto = \"stdout\"\nmatch = { event_type = [] }\n",
    "[[route]]\nto = \"stdout\"\nmatch = \"Order*\"\n",
    "[[route]]\nto = \"stdout\"\nretry = { delays = [\"1s\"], base = \"1s\" }\n",
    "[[route]]\nto = \"stdout\"\nretry = { attempts = 0 }\n",
    "[[route]]\nname = \"orders\"\nto = \"stdout\"\n[[route]]\nname = \"orders\"\nto = \"stdout\"\n",
    "[http]\nlisten = \"0.0.0.0:9797\"\n",
    "[http]\nlisten = \"localhost\"\n",
    "[http]\ntoken = \"hunter2hunter2hunter2\"\n",
    "[telemetry]\notlp = \"collector:4318\"\n",
    "[relay]\nworker = 4\n[log]\nformat = \"xml\"\n[destination.x]\ntype = \"pigeon\"\n",
];

#[test]
#[cfg_attr(not(all(feature = "kafka", feature = "otlp")), ignore = "other words without the features kafka and otlp")]
fn wrong_settings_are_told_as_they_were() {
    let mut told = Transcript::new();
    for settings in WRONG.iter().map(|(settings, ..)| settings).chain(WRONG_TOO) {
        told.text += &format!("\n{settings}");
        told.run(&Place::with(settings), &["config", "check"]);
        assert!(told.text.ends_with("[exit status 3]\n"), "{settings}\n{}", told.text);
    }
    told.note("With a variable, POSTHASTE_RELAY_WORKERS=many");
    told.run(&Place::new().variable("POSTHASTE_RELAY_WORKERS", "many"), &["relay"]);
    told.note("With a variable, POSTHASTE_RELAY_WORKER=4");
    told.run(&Place::new().variable("POSTHASTE_RELAY_WORKER", "4"), &["relay"]);
    told.note("Without anything");
    let here = Place::new();
    told.run(&here, &["relay", "--config", "no.toml"]);
    told.run(&here, &["relay", "--database-url", "postgres://shop:hunter2@db/shop"]);
    told.run(&here, &["relay", "--workers", "none"]);
    // None of it is a secret that was told.
    let printed = told.text.lines().filter(|line| line.starts_with("error"));
    assert!(!printed.clone().any(|line| line.contains("hunter2")), "{:#?}", printed.collect::<Vec<_>>());
    told.assert_kept("settings.txt");
}

#[tokio::test]
async fn what_cannot_be_reached_or_refuses_is_told_as_it_was() {
    let (url, taken) = (postgres().await, TcpListener::bind("127.0.0.1:0").unwrap());
    let mut told = Transcript::new();
    let here = Place::new();
    told.note("A database where nobody answers; a relay would wait for it");
    told.run(&here, &["stats", "--database-url", "postgres://shop@127.0.0.1:1/shop"]);
    told.run(&here, &["stats", "--database-url", "mysql://shop@127.0.0.1:1/shop"]);
    told.note("One that refuses");
    told.name(&socket(&url), "HOST:PORT");
    told.name(&here.path("").display().to_string(), "HERE/");
    let database = url.rsplit('/').next().unwrap().split('?').next().unwrap();
    let refused = url.replace(database, "nobody_made_this");
    told.name(&refused, "postgres://postgres@HOST:PORT/nobody_made_this");
    told.run(&here, &["relay", "--once", "--database-url", &refused]);
    told.name(database, "DATABASE");
    told.note("One without the table");
    told.run(&here, &["relay", "--once", "--database-url", &url]);
    told.run(&here, &["relay", "--once", "--database-url", "sqlite:shop.db"]);
    told.run(&here, &["stats", "--database-url", "sqlite:no-such.db"]);
    told.run(&here, &["events", "list"]);
    here.ok(&["migrate", "up", "--database-url", &url]);
    told.run(&here, &["relay", "--once", "--ordered", "true", "--database-url", &url]);
    told.note("A destination that cannot be opened");
    let file = Place::with("[destination.x]\ntype = \"file\"\npath = \"no/such/directory/x\"\n");
    told.name(&file.path("").display().to_string(), "HERE/");
    told.run(&file, &["relay", "--once"]);
    told.note("A port that is taken");
    let address = taken.local_addr().unwrap().to_string();
    told.name(&address, "127.0.0.1:PORT");
    told.run(&Place::new().variable("POSTHASTE_HTTP_LISTEN", &address), &["relay"]);
    told.note("A command that there is not, or that says too little");
    for arguments in [
        &["relais"][..],
        &["relay", "--onec"],
        &["events", "write", "{}"],
        &["events", "write", "--type", "OrderPlaced", "{"],
        &["events", "list", "--status", "gone"],
        &["events", "list", "--since", "yesterday"],
        &["dead", "redrive"],
        &["purge"],
        &["pause", "route", "nowhere"],
    ] {
        told.run(&here, arguments);
    }
    told.assert_kept("refusals.txt");
}

/// Microseconds since 1970, as SQLite keeps times.
fn micros(time: &str) -> i64 {
    time.parse::<jiff::Timestamp>().unwrap().as_microsecond()
}

async fn execute(here: &Place, sql: String) {
    let url = format!("sqlite:{}", here.path("posthaste.db").display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut connection).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    connection.close().await.unwrap();
}

#[tokio::test]
async fn tables_are_printed_as_they_were() {
    let here = Place::with(
        "[destination.orders]\ntype = \"file\"\npath = \"orders.ndjson\"\n\
         [destination.audit]\ntype = \"file\"\npath = \"audit.ndjson\"\n\
         [[route]]\nname = \"orders\"\nmatch = { aggregate_type = \"Order\" }\nto = [\"orders\", \"audit\"]\n\
         [[route]]\nname = \"rest\"\nto = \"audit\"\n",
    );
    let mut told = Transcript::new();
    told.run(&here, &["config", "check"]);
    told.run(&here, &["migrate", "status"]);
    told.run(&here, &["migrate", "up"]);
    told.run(&here, &["migrate", "status"]);
    told.note("Nothing is there");
    for empty in [&["events", "list"][..], &["dead", "list"], &["pause", "list"], &["keys"], &["stats"]] {
        told.run(&here, empty);
    }

    let base = micros("2026-01-31T08:15:00Z");
    let refused = "the endpoint answered 500 Internal Server Error";
    // The id, its type, its aggregate, its tenant, its status, and what went wrong.
    let events = [
        ("order-1", "OrderPlaced", "Order/1", Some("acme"), 1, 0, None),
        ("order-2", "OrderPlaced", "Order/2", None, 2, 3, Some(refused.to_owned())),
        ("order-3", "OrderPaid", "Order/3", Some("acme"), 3, 10, Some(format!("{refused} after 17 ms"))),
        ("order-4", "OrderPlaced", "Order/4", Some("größe"), 3, 10, Some(format!("{refused} after 4 ms"))),
        ("bill-1", "BillSent", "Bill/2026\u{7}01", None, 3, 1, Some("longer than what is taken there\nby far".into())),
        ("01K0000000000000000000000A", "Ticked", "", None, 0, 0, None),
        ("order-5", "OrderPlaced", "Order/5", None, 0, 0, None),
    ];
    for ((id, event_type, aggregate, tenant, status, attempts, error), n) in events.into_iter().zip(0..) {
        let mut arguments = vec!["events", "write", "--id", id, "--type", event_type];
        if let Some((aggregate_type, aggregate_id)) = aggregate.split_once('/') {
            arguments.extend(["--aggregate-type", aggregate_type, "--aggregate-id", aggregate_id]);
        }
        arguments.extend(tenant.into_iter().flat_map(|tenant| ["--tenant", tenant]));
        arguments.push(r#"{"total": 1990}"#);
        here.ok(&arguments);
        let created_at = base + n * 61_000_000;
        let done_at = if status % 2 == 1 { (created_at + 1_500_000).to_string() } else { "NULL".to_owned() };
        let error = error.map_or("NULL".to_owned(), |error| format!("'{error}'"));
        execute(
            &here,
            format!(
                "UPDATE outbox_event SET status = {status}, attempts = {attempts}, created_at = {created_at}, \
                 available_at = {created_at}, occurred_at = {created_at}, done_at = {done_at}, last_error = {error} \
                 WHERE event_id = '{id}'"
            ),
        )
        .await;
    }
    let leased_at = base + 600_000_000;
    execute(
        &here,
        format!("UPDATE outbox_event SET locked_by = 'relay-7/x1', locked_at = {leased_at} WHERE event_id = 'order-5'"),
    )
    .await;
    here.ok(&["pause", "route", "orders", "--reason", "the warehouse moves"]);
    here.ok(&["pause", "destination", "audit"]);
    execute(&here, format!("UPDATE outbox_event_pause SET since = {base}")).await;

    told.note("Seven events");
    told.run(&here, &["events", "list"]);
    told.run(&here, &["events", "list", "--status", "dead", "--newest", "--limit", "2"]);
    told.run(&here, &["events", "list", "--type", "OrderPaid", "--output", "json"]);
    told.run(&here, &["events", "list", "--type", "OrderPaid", "--output", "ndjson"]);
    told.run(&here, &["events", "show", "order-4"]);
    told.run(&here, &["events", "show", "nobody"]);
    told.run(&here, &["dead", "list"]);
    told.run(&here, &["dead", "list", "--each"]);
    told.run(&here, &["dead", "list", "--output", "json"]);
    told.run(&here, &["dead", "redrive", "--error", "500"]);
    told.run(&here, &["dead", "discard", "bill-1", "order-1", "nobody"]);
    told.run(&here, &["purge", "--done-after", "1h", "--dead-after", "1h"]);
    told.run(&here, &["pause", "list"]);
    told.run(&here, &["pause", "list", "--output", "ndjson"]);
    // How long the oldest waits is another number each time.
    let stats = here.ok(&["stats"]);
    let waits = stats.lines().find_map(|line| line.strip_prefix("oldest pending  ")).unwrap().to_owned();
    let seconds: f64 = waits.strip_suffix(" s").unwrap().parse().unwrap();
    assert!(seconds > 3600.0, "{waits}");
    told.text += "$ posthaste stats\n";
    told.text += &stats.replace(&waits, "… s");
    told.assert_kept("tables.txt");
}

#[tokio::test]
async fn stalled_aggregates_are_printed_as_they_were() {
    let here = Place::with(
        "[relay]\nordered = true\n[destination.out]\ntype = \"file\"\npath = \"out.ndjson\"\n\
         [[route]]\nmatch = { event_type = \"Order*\" }\nto = \"out\"\n",
    );
    here.ok(&["migrate", "up", "--lanes"]);
    for (id, event_type, order) in [
        ("e1", "OrderPlaced", "42"),
        ("e2", "Odd", "42"),
        ("e3", "OrderShipped", "42"),
        ("e4", "OrderPaid", "42"),
        ("e5", "Odd", "größe 7"),
    ] {
        let aggregate = ["--aggregate-type", "Order", "--aggregate-id", order];
        here.ok(&[&["events", "write", "--id", id, "--type", event_type][..], &aggregate, &["{}"]].concat());
    }
    here.ok(&["relay", "--once"]);
    // Not so near to a full minute that it could be another while this runs.
    let since = jiff::Timestamp::now() - jiff::SignedDuration::try_from(Duration::from_secs(90 * 60 + 5)).unwrap();
    execute(&here, format!("UPDATE outbox_event_key SET since = {}", since.as_microsecond())).await;
    let mut told = Transcript::new();
    told.run(&here, &["keys"]);
    told.run(&here, &["keys", "--limit", "1"]);
    told.run(&here, &["keys", "skip", "Order/42"]);
    told.run(&here, &["keys", "release", "Order/43", "--yes"]);
    told.run(&here, &["keys", "skip", "--all", "--yes"]);
    told.run(&here, &["keys"]);
    told.assert_kept("keys.txt");
}
