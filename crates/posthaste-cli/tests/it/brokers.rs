//! `posthaste relay` to each kind of destination, with the settings that a user would write, read back by clients that are not
//! ours. NATS and Redis are in `relay`, Kafka in `kafka`.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;

use crate::operations::{address, metrics};
use crate::place::{Late, Place, until};
use crate::receiver::{Receiver, SECRET, body};
use crate::relay::{jetstream, jetstream_at, lines, postgres, redis, redis_at, socket, unique, variable};
use crate::{stderr, stdout};

/// How many orders are placed.
pub(crate) const ORDERS: usize = 100;

/// With a relay of these settings at work, places orders on PostgreSQL as a program in another language does, and waits until
/// all are delivered.
pub(crate) async fn relayed(settings: &str, variables: &[(&str, &str)]) {
    let url = postgres().await;
    let mut here = Place::with(settings).variable("SHOP_DATABASE", &url);
    for (name, value) in variables {
        here = here.variable(name, value);
    }
    assert!(here.ok(&["config", "check"]).contains("nothing is wrong"));
    here.ok(&["migrate", "up", "--wake-trigger"]);
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let insert = format!(
        "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, tenant_id, payload, headers) \
         SELECT 'id-' || n, 'OrderPlaced', 'Order', n::text, 'shop', json_build_object('order', n)::text, \
         '{{\"region\": \"eu\"}}' FROM generate_series(1, {ORDERS}) AS n"
    );
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
    here.until("all are delivered", |here| here.json(&["stats", "--output", "json"])["done"] == ORDERS);
    relay.terminate();
    let (status, printed, said) = relay.end();
    assert_eq!((status, &*printed), (Some(0), ""), "{said}");
    let attempts = here.json(&["events", "list", "--limit", "1000", "--output", "json"]);
    assert!(attempts.as_array().unwrap().iter().all(|row| row["attempts"] == 0), "{attempts:#}");
    for (_, secret) in variables {
        assert!(!said.contains(secret), "{said}");
    }
}

/// Each order is there once, with its own body: what came, by id.
pub(crate) fn assert_each_once(came: &[(String, Vec<u8>)]) {
    assert_eq!(came.len(), ORDERS);
    let ids: BTreeSet<&str> = came.iter().map(|(id, _)| &**id).collect();
    assert_eq!(ids.len(), ORDERS);
    for (id, body) in came {
        let order: usize = id.strip_prefix("id-").unwrap().parse().unwrap();
        assert_eq!(serde_json::from_slice::<Value>(body).unwrap(), json!({ "order": order }));
    }
}

/// Makes and empties queues of RabbitMQ, with pika.
fn rabbitmq(command: &str, argument: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../posthaste-publishers/tests/it/rabbitmq.py");
    let (python, url) = (variable("POSTHASTE_TEST_RABBITMQ_PYTHON"), variable("POSTHASTE_TEST_RABBITMQ_URL"));
    let output = Command::new(python).args([script, &url, command, argument]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).to_owned()
}

#[tokio::test]
async fn rabbitmq_gets_every_order_through_an_exchange() {
    let name = unique("shop");
    let wanted = json!({
        "exchanges": { &name: "topic" }, "queues": { &name: { "x-queue-type": "quorum" } },
        "bindings": [[&name, &name, "Order.#"]],
    });
    rabbitmq("make", &wanted.to_string());
    let settings = format!(
        r#"
[database]
url = "env:SHOP_DATABASE"

[destination.orders]
type = "rabbitmq"
url = "env:RABBITMQ_URL"
exchange = "{name}"
to = "{{aggregate_type}}.{{event_type}}"
app_id = "shop"

[[route]]
name = "orders"
match = {{ aggregate_type = "Order" }}
to = "orders"
"#
    );
    relayed(&settings, &[("RABBITMQ_URL", &variable("POSTHASTE_TEST_RABBITMQ_URL"))]).await;
    let taken = lines(&rabbitmq("take", &name));
    let came: Vec<_> =
        taken.iter().map(|message| (message["message_id"].as_str().unwrap().to_owned(), body(message))).collect();
    assert_each_once(&came);
    for message in &taken {
        assert_eq!((&message["routing_key"], &message["delivery_mode"]), (&"Order.OrderPlaced".into(), &2.into()));
        assert_eq!((&message["headers"]["tenant-id"], &message["headers"]["region"]), (&"shop".into(), &"eu".into()));
        assert_eq!((&message["app_id"], &message["content_type"]), (&"shop".into(), &"application/json".into()));
    }
}

/// Reads what the broker has kept for a session of this name, with `mosquitto_sub`.
fn mosquitto(session: &str, filter: &str, more: &[&str]) -> String {
    let url = variable("POSTHASTE_TEST_MOSQUITTO_URL");
    let port = url.rsplit_once(':').unwrap().1;
    let output = Command::new("mosquitto_sub")
        .args(["-h", "127.0.0.1", "-p", port, "-V", "5", "-i", session, "-c", "-x", "600", "-q", "1", "-t", filter])
        .args(more)
        .output()
        .expect("mosquitto_sub is there: scripts/brokers/mosquitto installs it");
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).to_owned()
}

#[tokio::test]
async fn mqtt_gets_every_order_in_a_topic_of_its_type() {
    let name = unique("shop");
    let filter = format!("{name}/#");
    mosquitto(&name, &filter, &["-E"]);
    let settings = format!(
        r#"
[database]
url = "env:SHOP_DATABASE"

[destination.orders]
type = "mqtt"
url = "{}"
to = "{name}/{{aggregate_type}}/{{event_type}}"

[[route]]
name = "orders"
match = {{ aggregate_type = "Order" }}
to = "orders"
"#,
        variable("POSTHASTE_TEST_MOSQUITTO_URL")
    );
    relayed(&settings, &[]).await;
    let printed = mosquitto(&name, &filter, &["-C", &ORDERS.to_string(), "-W", "60", "-F", "%J"]);
    let messages = lines(&printed);
    let property = |message: &Value, name: &str| {
        message["properties"]["user-properties"][name].as_str().unwrap_or_else(|| panic!("{message}")).to_owned()
    };
    let came: Vec<_> = messages
        .iter()
        .map(|message| (property(message, "event-id"), message["payload"].to_string().into_bytes()))
        .collect();
    assert_each_once(&came);
    for message in &messages {
        assert_eq!(message["topic"], format!("{name}/Order/OrderPlaced"));
        assert_eq!((&*property(message, "tenant-id"), &*property(message, "region")), ("shop", "eu"));
        assert_eq!(message["properties"]["content-type"], "application/json");
    }
}

#[tokio::test]
async fn a_webhook_gets_every_order_signed() {
    let receiver = Receiver::start();
    let settings = format!(
        r#"
[database]
url = "env:SHOP_DATABASE"

[destination.partner]
type = "webhook"
to = "{}/status/204/{{tenant_id}}/{{aggregate_id}}"
secrets = ["env:WEBHOOK_SECRET"]
# The receiver of the tests is on this machine.
allow_http = true
allow_private_addresses = true

[[route]]
name = "orders"
match = {{ aggregate_type = "Order" }}
to = "partner"
"#,
        receiver.url
    );
    relayed(&settings, &[("WEBHOOK_SECRET", SECRET)]).await;
    let requests = receiver.got(ORDERS);
    let came: Vec<_> = requests
        .iter()
        .map(|request| (request["headers"]["webhook-id"].as_str().unwrap().to_owned(), body(request)))
        .collect();
    assert_each_once(&came);
    for request in &requests {
        let headers = &request["headers"];
        assert_eq!(request["genuine"], true, "{request}");
        assert_eq!(request["path"], format!("/status/204/shop/{}", headers["aggregate-id"].as_str().unwrap()));
        assert_eq!((&headers["event-type"], &headers["region"]), (&"OrderPlaced".into(), &"eu".into()));
    }
}

/// The same for every broker: it is said, nothing is claimed, and all is delivered when it is there.
#[test]
fn whichever_broker_is_away_at_the_start_is_waited_for() {
    let name = unique("late");
    rabbitmq("make", &json!({ "queues": { &name: {} } }).to_string());
    jetstream("add", &format!(r#"{{"name": "{name}", "subjects": ["{name}.>"]}}"#));
    mosquitto(&name, &name, &["-E"]);
    let brokers: [(&str, &str, String, &dyn Fn() -> usize); 4] = [
        ("nats", "POSTHASTE_TEST_NATS_URL", format!("{name}.x"), &|| lines(&jetstream("read", &name)).len()),
        ("rabbitmq", "POSTHASTE_TEST_RABBITMQ_URL", name.clone(), &|| lines(&rabbitmq("take", &name)).len()),
        ("redis", "POSTHASTE_TEST_REDIS_URL", name.clone(), &|| redis(&["XLEN", &name]).parse().unwrap()),
        ("mqtt", "POSTHASTE_TEST_MOSQUITTO_URL", name.clone(), &|| {
            mosquitto(&name, &name, &["-C", "1", "-W", "60"]).lines().count()
        }),
    ];
    for (kind, url, to, arrived) in brokers {
        let url = variable(url);
        let late = Late::to(&socket(&url));
        let here =
            Place::with(&format!("[destination.orders]\ntype = \"{kind}\"\nurl = \"env:BROKER\"\nto = \"{to}\"\n"))
                .variable("BROKER", &url.replace(&socket(&url), &late.address.to_string()));
        here.ok(&["events", "write", "--type", "OrderPlaced", r#"{"n":1}"#]);
        let mut relay = here.start(&["relay"]);
        relay.says("the destination orders cannot be reached; waiting for it");
        let stats = here.json(&["stats", "--output", "json"]);
        assert_eq!((&stats["leases"], &stats["new"]), (&json!({}), &1.into()), "{kind}: nothing is claimed");
        late.arrive();
        relay.says("the destination orders is there");
        until("it is delivered", || here.json(&["stats", "--output", "json"])["done"] == 1);
        relay.terminate();
        let (status, _, said) = relay.end();
        assert_eq!((status, arrived()), (Some(0), 1), "{kind}: {said}");
    }
}

/// A broker of one test, which can be stopped and started again where it was.
struct Own {
    name: &'static str,
    options: &'static [&'static str],
    directory: TempDir,
    url: String,
}

impl Own {
    fn start(name: &'static str) -> Self {
        Self::start_with(name, &[])
    }

    /// Starts one with options of its own.
    fn start_with(name: &'static str, options: &'static [&'static str]) -> Self {
        let mut own = Self { name, options, directory: tempfile::tempdir().unwrap(), url: String::new() };
        own.url = own.started();
        own
    }

    fn start_again(&self) {
        assert_eq!(self.started(), self.url);
    }

    fn stop(&self) {
        self.script("stop", &[]);
    }

    fn started(&self) -> String {
        let printed = self.script("start", self.options);
        let variable = format!("export POSTHASTE_TEST_{}_URL=", self.name.to_uppercase());
        let url = printed.lines().find_map(|line| line.strip_prefix(&variable));
        url.unwrap_or_else(|| panic!("no {variable} in {printed}")).to_owned()
    }

    fn script(&self, command: &str, options: &[&str]) -> String {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/brokers").join(self.name);
        let server = self.directory.path().join("server");
        let output = Command::new(script).arg(command).arg(server).args(options).output().unwrap();
        assert!(output.status.success(), "{} {command}: {}", self.name, stderr(&output));
        stdout(&output).to_owned()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn through_a_restart_of_its_broker_the_state_of_a_breaker_is_in_the_metrics() {
    const STATE: &str = "posthaste_breaker_state{destination=\"orders\"}";
    const OPENED: &str = "posthaste_breaker_opened_total{destination=\"orders\"}";
    let [closed, trying, open] = [0.0, 1.0, 2.0];
    for name in ["redis", "nats"] {
        let broker = Own::start(name);
        if name == "nats" {
            jetstream_at(&broker.url, "add", r#"{"name": "orders", "subjects": ["orders.>"], "storage": "file"}"#);
        }
        let here = Place::with(&format!(
            "[http]\nlisten = \"127.0.0.1:0\"\n[relay]\npoll_interval = \"50ms\"\n\
             [destination.orders]\ntype = \"{name}\"\nurl = \"{}\"\nto = \"orders.placed\"\n\
             connect_timeout = \"1s\"\n",
            broker.url
        ));
        let mut relay = here.start(&["relay"]);
        let address = address(&mut relay);
        relay.says("delivering");
        let of = |name: &str| metrics(address).get(name).copied().unwrap_or_default();
        let place = |orders: std::ops::Range<usize>| {
            for order in orders {
                here.ok(&["events", "write", "--type", "OrderPlaced", "--id", &format!("id-{order}"), "{}"]);
            }
        };
        let done = || here.json(&["stats", "--output", "json"])["done"].clone();
        place(0..5);
        until("the first are delivered", || done() == 5);
        assert_eq!((metrics(address).get(STATE).copied(), of(OPENED)), (Some(closed), 0.0), "{name}");

        broker.stop();
        place(5..10);
        until("the breaker is open", || of(STATE) == open);
        assert!(of(OPENED) >= 1.0, "{name}");
        // Somebody in its place who says nothing: now it takes a second to try whether the broker is back.
        let silent = TcpListener::bind(socket(&broker.url)).unwrap();
        until("it is tried whether the broker is back", || of(STATE) == trying);
        until("it is not", || of(STATE) == open);
        assert_eq!(done(), 5, "{name}");
        drop(silent);

        broker.start_again();
        until("the breaker is closed", || of(STATE) == closed);
        until("all are delivered", || done() == 10);
        let opened = of(OPENED);
        place(10..15);
        until("it goes on", || done() == 15);
        assert_eq!((of(STATE), of(OPENED), of("posthaste_failed_total")), (closed, opened, 0.0), "{name}");
        relay.terminate();
        let (status, _, said) = relay.end();
        assert_eq!(status, Some(0), "{said}");
        let ids: BTreeSet<String> = match name {
            "nats" => lines(&jetstream_at(&broker.url, "read", "orders"))
                .iter()
                .map(|message| message["headers"]["event-id"].as_str().unwrap().to_owned())
                .collect(),
            _ => {
                let entries = redis_at(&broker.url, &["--json", "XRANGE", "orders.placed", "-", "+"]);
                let entries: Vec<(String, Vec<String>)> = serde_json::from_str(&entries).unwrap();
                let id = |fields: Vec<String>| {
                    fields[fields.iter().position(|name| name == "event-id").unwrap() + 1].clone()
                };
                entries.into_iter().map(|(_, fields)| id(fields)).collect()
            }
        };
        assert_eq!(ids, (0..15).map(|order| format!("id-{order}")).collect(), "{name}");
    }
}

/// What clients log in with is in their own logs, for whoever asks for everything.
#[test]
fn no_log_has_the_password_of_a_broker() {
    const PASSWORD: &str = "hunter2-and-a-half";
    let bytes: Vec<String> = PASSWORD.bytes().map(|byte| byte.to_string()).collect();
    let beside = "user = \"guest\"\npassword = \"env:PASSWORD\"\n";
    let brokers = [
        ("rabbitmq", "POSTHASTE_TEST_RABBITMQ_URL", format!("guest:{PASSWORD}@"), ""),
        ("nats", "POSTHASTE_TEST_NATS_URL", String::new(), beside),
        ("redis", "POSTHASTE_TEST_REDIS_URL", format!(":{PASSWORD}@"), ""),
        ("mqtt", "POSTHASTE_TEST_MOSQUITTO_URL", String::new(), beside),
    ];
    for (kind, url, user, more) in brokers {
        let url = variable(url);
        let (scheme, rest) = url.split_once("://").unwrap();
        let host = rest.rsplit('@').next().unwrap();
        let here = Place::with(&format!(
            "[destination.bus]\ntype = \"{kind}\"\nurl = \"env:BROKER\"\nto = \"no-such-place\"\nconnect_timeout = \"5s\"\n{more}"
        ))
        .variable("BROKER", &format!("{scheme}://{user}{host}"))
        .variable("PASSWORD", PASSWORD)
        // Also for whoever asks for the very module.
        .variable("RUST_LOG", "trace,lapin::io_loop=trace,async_nats::connection=trace");
        here.ok(&["migrate", "up"]);
        // Some refuse it, and some do not ask for one.
        for command in [&["relay", "--once", "--wait", "0s"][..], &["doctor"]] {
            let output = here.run(command);
            let said = format!("{}{}", stdout(&output), stderr(&output));
            assert!(said.contains("DEBUG"), "{kind} {command:?}: {said}");
            assert!(!said.contains(PASSWORD), "{kind} {command:?}: {said}");
            assert!(!said.contains(&bytes[..6].join(", ")), "{kind} {command:?}: {said}");
        }
    }
}

/// Waiting would not help: a password does not become the right one.
#[test]
fn a_login_that_a_broker_refuses_ends_the_relay_before_anything_is_claimed() {
    let url = variable("POSTHASTE_TEST_RABBITMQ_URL");
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.rsplit('@').next().unwrap();
    let rabbitmq = format!("{scheme}://guest:not-{}@{host}", std::process::id());
    let nats = Own::start_with("nats", &["--user", "shop", "--pass", "secret"]);
    let beside = "user = \"shop\"\npassword = \"env:PASSWORD\"\n";
    for (kind, url, more, refusal) in
        [("rabbitmq", &rabbitmq, "", "ACCESS_REFUSED"), ("nats", &nats.url, beside, "authorization violation")]
    {
        let destination =
            format!("[destination.bus]\ntype = \"{kind}\"\nurl = \"env:BROKER\"\nto = \"orders\"\n{more}");
        let here = Place::with(&destination).variable("BROKER", url).variable("PASSWORD", "not-it");
        here.ok(&["migrate", "up"]);
        here.ok(&["events", "write", "--id", "waits", "--type", "OrderPlaced", "{}"]);
        for command in [&["relay"][..], &["relay", "--once"]] {
            let said = here.fails(6, command);
            assert!(said.contains("bus") && said.contains(refusal), "{command:?}: {said}");
        }
        let waits = here.json(&["events", "show", "waits", "--output", "json"]);
        assert_eq!((&waits["status"], &waits["attempts"]), (&"NEW".into(), &0.into()), "{waits}");
    }
}
