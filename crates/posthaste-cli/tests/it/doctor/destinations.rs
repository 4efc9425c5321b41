//! Destinations: whether they can be reached, and keep what they acknowledge.

use std::io::Read;
use std::net::TcpListener;
use std::process::Command;

use tempfile::TempDir;

use super::{assert_fine, bad, found, of};
use crate::place::{Place, free_port};
use crate::relay::{jetstream, redis, unique, variable};

#[test]
fn destinations_that_are_away_or_forget_are_found() {
    let subjects = unique("doctor");
    jetstream("add", &format!(r#"{{"name": "{subjects}", "subjects": ["{subjects}.>"], "storage": "memory"}}"#));
    let here = Place::with(&format!(
        "[destination.away]\ntype = \"redis\"\nurl = \"redis://127.0.0.1:1\"\nto = \"x\"\n\
         [destination.closed]\ntype = \"file\"\npath = \"no/such/directory/x\"\n\
         [destination.memory]\ntype = \"nats\"\nurl = \"{nats}\"\nto = \"{subjects}.{{event_type}}\"\n\
         [destination.nowhere]\ntype = \"nats\"\nurl = \"{nats}\"\nto = \"no-{subjects}.x\"\n\
         [destination.redis]\ntype = \"redis\"\nurl = \"{}\"\nto = \"x\"\n\
         [[route]]\nto = [\"away\", \"closed\", \"memory\", \"nowhere\", \"redis\"]\n",
        variable("POSTHASTE_TEST_REDIS_URL"),
        nats = variable("POSTHASTE_TEST_NATS_URL"),
    ));
    here.ok(&["migrate", "up"]);
    let was = redis(&["CONFIG", "GET", "appendonly"]).lines().last().unwrap().to_owned();
    redis(&["CONFIG", "SET", "appendonly", "no"]);
    let (status, findings) = found(&here, &[]);
    redis(&["CONFIG", "SET", "appendonly", "yes"]);
    let (_, with_log) = found(&here, &[]);
    redis(&["CONFIG", "SET", "appendonly", &was]);
    assert_eq!(status, 1);
    assert!(bad(&findings, "destination away").0.contains("cannot be reached"), "{findings:#?}");
    assert!(bad(&findings, "destination closed").0.contains("no/such/directory"), "{findings:#?}");
    assert!(bad(&findings, "destination memory").0.contains("kept in memory"), "{findings:#?}");
    assert!(bad(&findings, "destination nowhere").0.contains("no stream takes the subject"), "{findings:#?}");
    let (what, fix) = bad(&findings, "destination redis");
    assert!(what.contains("appendonly is off") && fix.contains("appendonly yes"), "{what} {fix}");
    assert!(
        !of(&with_log, "destination redis").iter().any(|(_, what, _)| what.contains("appendonly")),
        "{with_log:#?}"
    );
}

/// A server of its own for a test, with these settings.
struct NatsServer {
    directory: TempDir,
    port: String,
}

impl NatsServer {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/brokers/nats");

    fn start(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (home, file) = (directory.path().join("nats"), directory.path().join("nats.conf"));
        std::fs::write(&file, settings).unwrap();
        let started = Command::new(Self::SCRIPT).arg("start").arg(&home).arg("-c").arg(&file).output().unwrap();
        assert!(started.status.success(), "{}", crate::stderr(&started));
        let port = std::fs::read_to_string(home.join("port")).unwrap().trim().to_owned();
        Self { directory, port }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = Command::new(Self::SCRIPT).arg("stop").arg(self.directory.path().join("nats")).output();
    }
}

#[test]
fn a_stream_on_one_disk_is_told_of_with_the_interval_of_its_server() {
    let subjects = unique("doctor");
    jetstream("add", &format!(r#"{{"name": "{subjects}", "subjects": ["{subjects}.>"], "storage": "file"}}"#));
    let here = Place::with(&format!(
        "[destination.disk]\ntype = \"nats\"\nurl = \"{}\"\nto = \"{subjects}.{{event_type}}\"\n",
        variable("POSTHASTE_TEST_NATS_URL")
    ));
    here.ok(&["migrate", "up"]);
    let (status, findings) = found(&here, &[]);
    let [("note", what, fix)] = of(&findings, "destination disk")[..] else { panic!("{findings:#?}") };
    assert!(what.contains(&subjects) && what.contains("unless sync_interval is shorter"), "{what}");
    assert!(fix.contains("sync_interval: always") && fix.contains("3 replicas"), "{fix}");
    // Somebody may want it so.
    assert_eq!(status, 0, "{findings:#?}");
}

#[test]
fn a_stream_that_may_not_be_asked_for_is_not_one_that_is_missing() {
    let server = NatsServer::start(
        r#"authorization { users = [
            { user: all, password: all }
            { user: names, password: names, permissions: { publish: { deny: ["$JS.API.STREAM.NAMES"] } } }
            { user: info, password: info, permissions: { publish: { deny: ["$JS.API.STREAM.INFO.>"] } } }
        ] }"#,
    );
    let url = format!("nats://all:all@127.0.0.1:{}", server.port);
    crate::relay::jetstream_at(&url, "add", r#"{"name": "orders", "subjects": ["orders.>"], "storage": "memory"}"#);
    let found_by = |user: &str, to: &str| {
        let here = Place::with(&format!(
            "[destination.nats]\ntype = \"nats\"\nurl = \"nats://127.0.0.1:{}\"\nuser = \"{user}\"\npassword = \"env:NATS\"\n\
             to = \"{to}\"\n",
            server.port
        ))
        .variable("NATS", user);
        here.ok(&["migrate", "up"]);
        let (_, findings) = found(&here, &[]);
        let [(level, what, _)] = of(&findings, "destination nats")[..] else { panic!("{findings:#?}") };
        (level.to_owned(), what.to_owned())
    };
    let (level, what) = found_by("all", "orders.x");
    assert!(level == "warning" && what.contains("kept in memory"), "{level}: {what}");
    let (level, what) = found_by("all", "others.x");
    assert!(level == "warning" && what.contains("no stream takes the subject"), "{level}: {what}");
    for to in ["orders.x", "others.x"] {
        let (level, what) = found_by("names", to);
        assert!(level == "note" && what.contains("does not say how durable it is"), "{level}: {what}");
        assert!(what.contains("this user may not ask it") && !what.contains("no stream takes"), "{what}");
    }
    let (level, what) = found_by("info", "orders.x");
    assert!(level == "note" && what.contains("the stream \"orders\" does not say how it is"), "{level}: {what}");
}

#[test]
fn what_mqtt_cannot_be_asked_is_said() {
    let here = Place::with(&format!(
        "[destination.broker]\ntype = \"mqtt\"\nurl = \"{}\"\nto = \"shop\"\n",
        variable("POSTHASTE_TEST_MOSQUITTO_URL")
    ));
    here.ok(&["migrate", "up"]);
    let (_, findings) = found(&here, &[]);
    let [("ok", what, _)] = of(&findings, "destination broker")[..] else { panic!("{findings:#?}") };
    assert!(what.contains("cannot be asked by MQTT") && what.contains("persistence"), "{what}");
}

#[test]
fn files_are_looked_at_and_not_made() {
    let here = Place::with(
        "[destination.new]\ntype = \"file\"\npath = \"new.ndjson\"\n\
         [destination.old]\ntype = \"file\"\npath = \"old.ndjson\"\n\
         [destination.directory]\ntype = \"file\"\npath = \".\"\n\
         [destination.pipe]\ntype = \"file\"\npath = \"pipe\"\n\
         [destination.out]\ntype = \"stdout\"\n\
         [[route]]\nto = [\"new\", \"old\", \"directory\", \"pipe\", \"out\"]\n",
    );
    here.ok(&["migrate", "up"]);
    here.write("old.ndjson", "as it was\n");
    assert!(Command::new("mkfifo").arg(here.path("pipe")).status().unwrap().success());
    let (status, findings) = found(&here, &[]);
    assert_eq!(status, 1);
    for name in ["new", "old", "pipe", "out"] {
        assert_fine(&findings, &format!("destination {name}"));
    }
    assert!(of(&findings, "destination new")[0].1.contains("not there yet"), "{findings:#?}");
    assert!(bad(&findings, "destination directory").0.contains("directory"), "{findings:#?}");
    assert!(!here.path("new.ndjson").exists(), "whoever looks makes nothing");
    assert_eq!(here.read("old.ndjson"), "as it was\n");
}

#[test]
fn the_host_of_a_webhook_is_connected_to_and_nothing_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap();
    let nobody = format!("127.0.0.1:{}", free_port());
    // What is behind TLS does not matter for whether it can be trusted.
    let tls = crate::relay::socket(&variable("POSTHASTE_TEST_RABBITMQ_TLS_URL"));
    let hook = |name: &str, to: &str, more: &str| {
        format!("[destination.{name}]\ntype = \"webhook\"\nunsigned = true\nto = \"{to}\"\n{more}")
    };
    let (local, http) = ("allow_private_addresses = true\n", "allow_private_addresses = true\nallow_http = true\n");
    let trusted = format!("{local}ca_file = {:?}\n", variable("POSTHASTE_TEST_RABBITMQ_TLS_CA"));
    let here = Place::with(
        &[
            hook("there", &format!("http://{there}/{{event_type}}"), http),
            hook("away", &format!("http://{nobody}/x"), http),
            hook("trusted", &format!("https://{tls}/x"), &trusted),
            hook("stranger", &format!("https://{tls}/x"), local),
            hook("private", &format!("https://{tls}/x"), ""),
            hook("chosen", "{headers.callback}", ""),
            "[[route]]\nto = [\"there\", \"away\", \"trusted\", \"stranger\", \"private\", \"chosen\"]\n".to_owned(),
        ]
        .concat(),
    );
    here.ok(&["migrate", "up"]);
    let (status, findings) = found(&here, &[]);
    assert_eq!(status, 1);
    for name in ["there", "trusted"] {
        assert_fine(&findings, &format!("destination {name}"));
        let what = of(&findings, &format!("destination {name}"))[0].1;
        assert!(what.contains("nothing was sent"), "{what}");
    }
    let (mut client, _) = listener.accept().unwrap();
    assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0, "somebody came, and said nothing");
    assert!(bad(&findings, "destination away").0.contains("cannot be reached"), "{findings:#?}");
    assert!(bad(&findings, "destination stranger").0.to_lowercase().contains("certificate"), "{findings:#?}");
    assert!(bad(&findings, "destination private").0.contains("not public"), "{findings:#?}");
    assert!(
        matches!(of(&findings, "destination chosen")[..], [("note", what, _)] if what.contains("nobody was asked")),
        "{findings:#?}"
    );
}

/// Says something to RabbitMQ by Python's client, on the channel `c`.
fn rabbit(statement: &str) -> bool {
    let url = variable("POSTHASTE_TEST_RABBITMQ_URL");
    let script = format!(
        "import pika, sys\nc = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()\n{statement}\n"
    );
    Command::new(variable("POSTHASTE_TEST_RABBITMQ_PYTHON"))
        .args(["-c", &script, &url])
        .output()
        .unwrap()
        .status
        .success()
}

#[test]
fn queues_are_looked_at_and_not_declared() {
    let name = unique("doctor");
    let queue = |kind: &str| format!("{name}-{kind}");
    let destination = |kind: &str, more: &str| {
        let to = queue(kind);
        format!("[destination.{kind}]\ntype = \"rabbitmq\"\nurl = \"env:RABBIT\"\nto = \"{to}\"\n{more}")
    };
    let kinds = ["kept", "lost", "missing", "declared", "exchange"];
    let here = Place::with(
        &[
            destination("kept", ""),
            destination("lost", ""),
            destination("missing", ""),
            destination("declared", &format!("queues = [{{ name = \"{}\" }}]\n", queue("declared"))),
            destination("exchange", "exchange = \"amq.topic\"\n"),
            format!("[[route]]\nto = {kinds:?}\n"),
        ]
        .concat(),
    )
    .variable("RABBIT", &variable("POSTHASTE_TEST_RABBITMQ_URL"));
    here.ok(&["migrate", "up"]);
    assert!(rabbit(&format!("c.queue_declare('{}', durable=True)", queue("kept"))));
    assert!(rabbit(&format!("c.queue_declare('{}', durable=False)", queue("lost"))));
    // By this it is asked whether a queue is durable: it makes none in any case, not even if there is none any more.
    let impossible =
        |kind: &str| format!("c.queue_declare('{}', durable=True, arguments={{'x-expires': 0}})", queue(kind));
    for kind in ["missing", "kept", "lost"] {
        assert!(!rabbit(&impossible(kind)), "{kind}");
    }
    assert!(!rabbit(&format!("c.queue_declare('{}', passive=True)", queue("missing"))), "it was made");
    let (status, findings) = found(&here, &[]);
    assert_eq!(status, 1);
    let (what, fix) = bad(&findings, "destination lost");
    assert!(what.contains("is not durable") && fix.contains("durable = true"), "{what} {fix}");
    assert!(bad(&findings, "destination missing").0.contains("there is no queue"), "{findings:#?}");
    assert_fine(&findings, "destination kept");
    assert_fine(&findings, "destination exchange");
    assert!(of(&findings, "destination exchange")[0].1.contains("was not asked"), "{findings:#?}");
    // A relay would make it, and whoever looks does not.
    let declared = of(&findings, "destination declared");
    assert!(matches!(declared[..], [("note", what, _)] if what.contains("declares it")), "{findings:#?}");
    for kind in ["missing", "declared"] {
        assert!(!rabbit(&format!("c.queue_declare('{}', passive=True)", queue(kind))), "{kind} was made");
    }
    for kind in ["kept", "lost"] {
        assert!(rabbit(&format!("c.queue_delete('{}')", queue(kind))));
    }
}

/// A broker of MQTT ends the connection of who has the same id, so a doctor must not have that of the relay.
#[test]
fn a_relay_is_not_driven_from_its_broker() {
    let id = unique("relay");
    let here = Place::with(&format!(
        "[destination.broker]\ntype = \"mqtt\"\nurl = \"{}\"\nto = \"{id}\"\nclient_id = \"{id}\"\n[[route]]\nto = \"broker\"\n",
        variable("POSTHASTE_TEST_MOSQUITTO_URL")
    ))
    .variable("RUST_LOG", "posthaste=debug");
    here.ok(&["migrate", "up"]);
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    for _ in 0..3 {
        assert_fine(&found(&here, &[]).1, "destination broker");
    }
    here.ok(&["events", "write", "--type", "Ticked", "{}"]);
    here.until("it is delivered", |here| here.json(&["stats", "--output", "json"])["done"] == 1);
    // It tells of each connection that ends, also when it makes another at once.
    let said = relay.said();
    assert!(!said.contains("connection ended"), "{said}");
}
