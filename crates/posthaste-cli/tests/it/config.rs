//! `posthaste config`, `posthaste init`, and what is said of wrong settings.

use crate::place::Place;
use crate::{stderr, stdout};

/// What is wrong with a file, and what is said of it: where, which field, and some words.
pub(crate) const WRONG: &[(&str, &str, &[&str])] = &[
    ("[relay]\nworker = 4\n", "posthaste.toml:2:1: relay.worker: ", &["unknown field `worker`", "`workers`"]),
    (
        "[relay]\nworkers = \"many\"\n",
        "posthaste.toml:2:11: relay.workers: ",
        &["invalid type: a text, expected a whole number"],
    ),
    ("[relay]\nworkers = 0\n", "posthaste.toml:2:11: relay.workers: ", &["must be from 1 to"]),
    ("[relay]\n\nlease = \"5 parsecs\"\n", "posthaste.toml:3:9: relay.lease: ", &["unit designator"]),
    ("[relay]\nordered = 7\n", "posthaste.toml:2:11: relay.ordered: ", &["true, false, or a list of aggregate types"]),
    ("[relay]\nordered = []\n", "posthaste.toml:2:11: relay.ordered: ", &["the list is empty", "say true for all"]),
    (
        "[relay]\nordered = true\non_dead = \"stop\"\n",
        "posthaste.toml:3:11: relay.on_dead: ",
        &["unknown variant", "`block`"],
    ),
    ("[relay]\non_dead = \"park\"\n", "posthaste.toml:2:11: relay.on_dead: ", &["say with relay.ordered"]),
    (
        "[destination.x]\ntype = \"stdout\"\n[[route]]\nto = \"x\"\non_dead = \"skip\"\n",
        "posthaste.toml:5:11: route[1].on_dead: ",
        &["say with relay.ordered"],
    ),
    ("relay = 4\n", "posthaste.toml:1:9: relay: ", &["invalid type: integer `4`"]),
    ("[relays]\nworkers = 4\n", "posthaste.toml:1:2: relays: ", &["there is no such table", "destination"]),
    ("[relay\n", "posthaste.toml:1:", &["this is no TOML"]),
    (
        "[database]\nurl = \"oracle://db\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["the scheme is unknown", "sqlite:"],
    ),
    ("[database]\ntable = \"a b\"\n", "posthaste.toml:2:9: database.table: ", &["A-Z, a-z, 0-9 and _"]),
    (
        "[database]\nurl = \"postgres://shop:hunter2@db/shop\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["a secret does not stand here", "env:NAME"],
    ),
    (
        "[database]\nurl = \"postgres://shop@db/shop?password=hunter2\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["a secret does not stand here", "env:NAME"],
    ),
    (
        "[destination.x]\ntype = \"nats\"\nurl = \"nats://hunter2@a\"\nto = \"a\"\n",
        "posthaste.toml:3:7: destination.x.url: ",
        &["a secret does not stand here", "env:NAME"],
    ),
    (
        "[database]\nurl = \"env:NOBODY_SET_THIS\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["NOBODY_SET_THIS is not set"],
    ),
    (
        "[database]\nurl = \"file:no-such-file\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["no-such-file cannot be read"],
    ),
    (
        "[database]\nurl = \"postgres://shop@db/shop?sslmode=bogus\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["unknown value", "ssl_mode"],
    ),
    (
        "[database]\nurl = \"postgres://shop@db/shop?port=x\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["invalid digit", "a URL looks like postgres://"],
    ),
    (
        "[database]\nurl = \"mysql://shop@db/shop?statement-cache-capacity=x\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["invalid digit", "a URL looks like mysql://"],
    ),
    (
        "[database]\nurl = \"postgres://shop@db/shop?sslmode=verify-full&sslrootcert=no-such.pem\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["sslrootcert", "cannot be read"],
    ),
    (
        "[database]\nurl = \"sqlite:x.db?foo=1\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["its parameter in place 1 is not known", "mode"],
    ),
    (
        "[database]\nurl = \"sqlite:no/such/x.db\"\n",
        "posthaste.toml:2:7: database.url: ",
        &["there is no directory no/such"],
    ),
    ("[log]\nformat = \"xml\"\n", "posthaste.toml:2:10: log.format: ", &["unknown variant `xml`", "`json`"]),
    ("[log]\nfilter = \"a=b=c\"\n", "posthaste.toml:2:10: log.filter: ", &["warn,posthaste=debug"]),
    (
        "[destination.x]\nto = \"x\"\n",
        "posthaste.toml:1:14: destination.x: ",
        &["the type is missing", "stdout, webhook"],
    ),
    ("[destination.x]\ntype = \"pigeon\"\n", "posthaste.toml:2:8: destination.x.type: ", &["there is no such type"]),
    ("[destination.x]\ntype = \"file\"\n", "posthaste.toml:1:14: destination.x: ", &["the path is missing"]),
    (
        "[destination.x]\ntype = \"stdout\"\nto = \"x\"\n",
        "posthaste.toml:3:6: destination.x.to: ",
        &["have no address"],
    ),
    (
        "[destination.x]\ntype = \"stdout\"\npath = \"x\"\n",
        "posthaste.toml:3:1: destination.x.path: ",
        &["no such setting"],
    ),
    (
        "[destination.x]\ntype = \"nats\"\nto = \"a\"\nurls = \"nats://a\"\n",
        "posthaste.toml:4:1: destination.x.urls: ",
        &["unknown field `urls`", "`url`"],
    ),
    (
        "[destination.x]\ntype = \"nats\"\nto = \"a\"\n",
        "posthaste.toml:1:14: destination.x: ",
        &["missing field `url`"],
    ),
    (
        "[destination.x]\ntype = \"nats\"\nurl = \"nats://a\"\n",
        "posthaste.toml:1:14: destination.x: ",
        &["`to` is missing", "subject"],
    ),
    (
        "[destination.x]\ntype = \"nats\"\nurl = \"nats://a\"\nto = \"a.{color}\"\n",
        "posthaste.toml:4:6: destination.x.to: ",
        &["{color}", "{event_type}"],
    ),
    (
        "[destination.x]\ntype = \"nats\"\nurl = \"nats://a\"\nto = \"a.>\"\n",
        "posthaste.toml:1:14: destination.x: ",
        &["is no subject of NATS", "for the route \"everything\""],
    ),
    (
        "[destination.x]\ntype = \"nats\"\nurl = \"nats://a\"\nto = \"a\"\ntoken = \"hunter2\"\n",
        "posthaste.toml:5:9: destination.x.token: ",
        &["a secret does not stand here"],
    ),
    (
        "[destination.x]\ntype = \"webhook\"\nto = \"https://a\"\nsecrets = [\"env:HOME\", \"hunter2\"]\n",
        "posthaste.toml:4:24: destination.x.secrets[2]: ",
        &["a secret does not stand here"],
    ),
    (
        "[destination.x]\ntype = \"webhook\"\nto = \"https://a\"\nsecrets_for = { \"https://a\" = [\"hunter2\"] }\n",
        "posthaste.toml:4:32: destination.x.secrets_for.https://a[1]: ",
        &["a secret does not stand here"],
    ),
    (
        "[destination.x]\ntype = \"webhook\"\nto = \"https://a\"\n",
        "posthaste.toml:1:14: destination.x: ",
        &["webhooks have no secret", "unsigned = true"],
    ),
    (
        "[destination.x]\ntype = \"redis\"\nurl = \"http://a\"\nto = \"a\"\n",
        "posthaste.toml:1:14: destination.x: ",
        &["is no address of Redis"],
    ),
    (
        "[destination.x]\ntype = \"stdout\"\nenvelope = { format = \"letter\" }\n",
        "posthaste.toml:3:23: destination.x.envelope.format: ",
        &["there is no such format", "debezium"],
    ),
    (
        "[destination.x]\ntype = \"stdout\"\nenvelope = { format = \"cloudevents-binary\", source = \"\" }\n",
        "posthaste.toml:3:1: destination.x.envelope: ",
        &["source"],
    ),
    (
        "[destination.x]\ntype = \"stdout\"\nmax_batch = 0\n",
        "posthaste.toml:3:13: destination.x.max_batch: ",
        &["at least 1"],
    ),
    (
        "[destination.a]\ntype = \"stdout\"\n[destination.b]\ntype = \"stdout\"\n",
        "posthaste.toml:3:14: route: ",
        &["several destinations and no route"],
    ),
    (
        "[[route]]\nto = \"nowhere\"\n",
        "posthaste.toml:2:6: route[1].to: ",
        &["there is no destination \"nowhere\"", "stdout"],
    ),
    ("[[route]]\nname = \"a\"\n", "posthaste.toml:1:1: route[1]: ", &["missing field `to`"]),
    ("[[route]]\nto = []\n", "posthaste.toml:2:6: route[1].to: ", &["the list is empty"]),
    ("[[route]]\nto = 4\n", "posthaste.toml:2:6: route[1].to: ", &["expected a text, or a list of texts"]),
    (
        "[[route]]\nto = \"stdout\"\nmatch = { colour = \"red\" }\n",
        "posthaste.toml:3:11: route[1].match.colour: ",
        &["unknown field `colour`", "`tenant`"],
    ),
    ("[[route]]\nto = \"stdout\"\nrate = \"often\"\n", "posthaste.toml:3:8: route[1].rate: ", &["is no rate", "100/s"]),
    ("[[route]]\nto = \"stdout\"\nconcurrency = 0\n", "posthaste.toml:3:15: route[1].concurrency: ", &["at least 1"]),
    (
        "[[route]]\nto = \"stdout\"\nretry = { base = \"1m\", max = \"1s\" }\n",
        "posthaste.toml:3:1: route[1].retry: ",
        &["max must not be shorter than base"],
    ),
    (
        "[[route]]\nto = \"stdout\"\n[[route]]\nname = \"route 1\"\nto = \"stdout\"\n",
        "posthaste.toml:3:1: route[2].name: ",
        &["another route"],
    ),
    ("route = 1\n", "posthaste.toml:1:9: route: ", &["[[route]]"]),
];

#[test]
fn what_is_wrong_is_said_with_line_and_field_before_anything_is_touched() {
    let mut mistakes = Vec::new();
    for (settings, place, words) in WRONG {
        let here = Place::with(settings);
        for command in [&["config", "check"][..], &["relay", "--once"]] {
            let output = here.run(command);
            let error = stderr(&output);
            let is_right = output.status.code() == Some(3)
                && error.starts_with(&format!("error: {place}"))
                && words.iter().all(|word| error.contains(word))
                && !error.contains("hunter2")
                && error.lines().count() == 1;
            if !is_right {
                mistakes.push(format!("{command:?} with\n{settings}expected {place}{words:?}, not\n{error}"));
            }
        }
        if here.path("posthaste.db").exists() {
            mistakes.push(format!("there is a database with\n{settings}"));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let here = Place::with("[relay]\nworker = 4\n[log]\nformat = \"xml\"\n[destination.x]\ntype = \"pigeon\"\n");
    let error = here.fails(3, &["config", "check"]);
    assert_eq!(error.lines().count(), 3, "{error}");
    let error = here.fails(3, &["relay"]);
    assert!(error.contains("(and 2 more: see posthaste config check)"), "{error}");
}

#[test]
fn all_that_is_wrong_with_one_table_is_said_and_nothing_that_is_not() {
    let here = Place::with(
        "[relay]\nworker = 4\nworkers = \"many\"\nlease = \"5 parsecs\"\n[http]\nlisten = \"0.0.0.0:80\"\ntoken = \"env:NOBODY\"\n\
         port = 80\n[destination.x]\ntype = \"nats\"\nurl = 4\nto = \"a.{color}\"\nmax_batch = 0\nenvelope = \"letter\"\n\
         password = \"hunter2\"\n[destination.y]\ntype = \"pigeon\"\n[[route]]\nto = [\"x\", \"z\"]\nconcurrency = 0\n\
         rate = \"often\"\nmatch = { colour = \"red\", event_type = 7 }\n[[route]]\nto = \"x\"\n",
    );
    let error = here.fails(3, &["config", "check"]);
    let mut said: Vec<&str> = error
        .lines()
        .map(|line| line.strip_prefix("error: posthaste.toml:").unwrap_or_else(|| panic!("{error}")))
        .collect();
    said.sort_by_key(|line| line.split(':').next().unwrap().parse::<u32>().unwrap());
    let fields: Vec<&str> = said.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(
        fields,
        [
            "relay.worker",
            "relay.workers",
            "relay.lease",
            "http.token",
            "http.port",
            "destination.x.url",
            "destination.x.to",
            "destination.x.max_batch",
            "destination.x.envelope.format",
            "destination.x.password",
            "destination.y.type",
            "route[1].to",
            "route[1].concurrency",
            "route[1].rate",
            "route[1].match.colour",
            "route[1].match.event_type",
        ],
        "{error}"
    );
    // What only those find who would connect.
    let here = Place::with(
        "[destination.x]\ntype = \"redis\"\nurl = \"http://a\"\nto = \"a\"\n[destination.y]\ntype = \"webhook\"\nto = \"https://a\"\n\
         [destination.z]\ntype = \"nats\"\nurl = \"nats://a\"\nto = \"a.>\"\n[[route]]\nto = [\"x\", \"y\", \"z\"]\n",
    );
    let error = here.fails(3, &["config", "check"]);
    for line in [1, 5, 8] {
        assert!(error.contains(&format!("error: posthaste.toml:{line}:14: destination.")), "{error}");
    }
}

#[test]
fn whoever_connects_to_no_destination_needs_none_of_their_secrets() {
    let here = Place::with(
        "[http]\ntoken = \"env:NOBODY_SET_THIS\"\n[destination.stream]\ntype = \"redis\"\nurl = \"env:NOBODY_SET_THIS\"\nto = \"x\"\n\
         [destination.hook]\ntype = \"webhook\"\nto = \"https://a\"\nsecrets = [\"file:no-such-file\"]\n\
         [[route]]\nname = \"all\"\nto = [\"stream\", \"hook\"]\n",
    );
    here.ok(&["migrate", "up"]);
    here.ok(&["events", "write", "--id", "1", "--type", "T", "{}"]);
    for command in [
        &["events", "list"][..],
        &["dead", "list"],
        &["migrate", "status"],
        &["pause", "route", "all"],
        &["pause", "destination", "hook"],
        &["pause", "list"],
        &["resume", "route", "all"],
        &["purge", "--done-after", "1h", "--yes"],
    ] {
        here.ok(command);
    }
    // These know which way it goes all the same.
    let stats = here.json(&["stats", "--output", "json"]);
    assert_eq!(
        (&stats["destinations"]["stream"]["new"], &stats["destinations"]["hook"]["new"]),
        (&1.into(), &1.into())
    );
    let shown = here.json(&["events", "show", "1", "--output", "json"]);
    assert_eq!((&shown["route"], &shown["paused"]), (&"all".into(), &"destination hook".into()), "{shown}");
    assert!(here.fails(1, &["pause", "route", "other"]).contains("[\"all\"]"));
    for command in [&["config", "check"][..], &["relay", "--once"], &["doctor"]] {
        assert!(here.fails(3, command).contains("NOBODY_SET_THIS is not set"), "{command:?}");
    }
    // What they need themselves they do miss.
    let here = Place::with("[database]\nurl = \"env:NOBODY_SET_THIS\"\n");
    assert!(here.fails(3, &["dead", "list"]).contains("NOBODY_SET_THIS is not set"));
}

#[cfg(feature = "kafka")]
#[test]
fn keys_and_passwords_among_the_properties_of_a_client_are_not_shown() {
    let settings = |key: &str| {
        format!(
            "[destination.x]\ntype = \"kafka\"\nbrokers = \"a\"\nto = \"a\"\n\
             properties = {{ \"ssl.key.pem\" = \"{key}\", \"linger.ms\" = \"5\" }}\n"
        )
    };
    let here = Place::with(&settings("-----BEGIN PRIVATE KEY-----hunter2"));
    for command in [&["config", "print"][..], &["config", "check"], &["relay"]] {
        let error = here.fails(3, command);
        assert!(error.contains("destination.x.properties.ssl.key.pem: a secret does not stand here"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let here = Place::with(&settings("env:KEY")).variable("KEY", "-----BEGIN PRIVATE KEY-----hunter2");
    let printed = here.ok(&["config", "print"]);
    assert!(printed.contains("ssl.key.pem = \"env:KEY\"") && printed.contains("linger.ms = \"5\""), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn who_may_be_waited_for_may_also_not_be() {
    let lazy = |settings: &str| Place::with(&format!("[destination.x]\nlazy = true\n{settings}"));
    lazy("type = \"nats\"\nurl = \"nats://a\"\nto = \"a\"\n").ok(&["config", "check"]);
    lazy("type = \"webhook\"\nto = \"https://a\"\nunsigned = true\n").ok(&["config", "check"]);
    // A file is opened at once.
    let error = lazy("type = \"file\"\npath = \"a\"\n").fails(3, &["config", "check"]);
    assert!(error.contains("posthaste.toml:2:1: destination.x.lazy: "), "{error}");
}

#[test]
fn wrong_variables_and_flags_are_named() {
    let here = Place::new().variable("POSTHASTE_RELAY_WORKERS", "many");
    let error = here.fails(3, &["config", "check"]);
    assert_eq!(error, "error: variable POSTHASTE_RELAY_WORKERS: relay.workers: must be a whole number, such as 8\n");
    let here = Place::new().variable("POSTHASTE_RELAY_WORKER", "4");
    assert!(
        here.fails(3, &["config", "check"]).contains("variable POSTHASTE_RELAY_WORKER: relay.worker: unknown field")
    );
    let here = Place::new().variable("POSTHASTE_DESTINATION_ORDERS_URL", "nats://a");
    assert!(here.fails(3, &["config", "check"]).contains("no destination of the file is called so"));
    let here = Place::new();
    let error = here.fails(3, &["config", "check", "--database-url", "postgres://shop:hunter2@db/shop"]);
    assert!(error.contains("flag --database-url: database.url: a secret does not stand here"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    assert!(here.fails(3, &["config", "check", "--config", "no.toml"]).contains("no.toml cannot be read"));
    let error = Place::new().variable("POSTHASTE_CONFIG", "no.toml").fails(3, &["config", "check"]);
    assert!(error.contains("variable POSTHASTE_CONFIG: no.toml cannot be read"), "{error}");
    // What belongs to others is left alone.
    Place::new().variable("POSTHASTE_TEST_SERVERS", "/x").ok(&["config", "check"]);
}

/// Otherwise a relay would make a database of its own, and deliver nothing from it.
#[test]
fn a_misspelt_variable_is_refused_with_the_one_that_is_meant() {
    let here = Place::new().variable("POSTHASTE_DATABSE_URL", "postgres://shop:hunter2@db/shop");
    for command in
        [&["relay", "--once"][..], &["relay"], &["config", "check"], &["events", "write", "--type", "A", "{}"]]
    {
        let error = here.fails(3, command);
        assert!(error.contains("variable POSTHASTE_DATABSE_URL: "), "{command:?}: {error}");
        assert!(error.contains("POSTHASTE_DATABASE_URL") && !error.contains("hunter2"), "{command:?}: {error}");
    }
    assert!(!here.path("posthaste.db").exists());
    let here = Place::new().variable("POSTHASTE_RELY_WORKERS", "8");
    assert!(here.fails(3, &["relay", "--once"]).contains("POSTHASTE_RELAY_WORKERS"));
    // Whoever looks after events does not need the settings of relays.
    here.ok(&["events", "write", "--type", "A", "{}"]);
    // What the file refers to may be called as one likes.
    let here =
        Place::with("[database]\nurl = \"env:POSTHASTE_DB_URL\"\n").variable("POSTHASTE_DB_URL", "sqlite:shop.db");
    here.ok(&["config", "check"]);
}

#[test]
fn what_is_in_a_table_has_a_variable_where_the_table_is_in_the_file() {
    let settings = "[telemetry]\notlp = \"http://127.0.0.1:4318\"\nheaders = { X-Api-Key = \"env:NO_SUCH_KEY\" }\n";
    let here = Place::with(settings).variable("POSTHASTE_TELEMETRY_HEADERS_X_API_KEY", "hunter2");
    if cfg!(feature = "otlp") {
        let printed = here.ok(&["config", "print"]);
        assert!(printed.contains("X-Api-Key") && !printed.contains("hunter2"), "{printed}");
    }
}

#[cfg(feature = "kafka")]
#[test]
fn the_password_of_a_login_has_a_variable_where_the_login_is_in_the_file() {
    let kafka = "[destination.bus]\ntype = \"kafka\"\nbrokers = \"a\"\nto = \"a\"\n";
    let login = format!("{kafka}sasl = {{ mechanism = \"PLAIN\", username = \"shop\" }}\n");
    let set = |place: Place| place.variable("POSTHASTE_DESTINATION_BUS_SASL_PASSWORD", "hunter2");
    let printed = set(Place::with(&login)).ok(&["config", "print"]);
    assert!(printed.contains("password = \"…\"") && !printed.contains("hunter2"), "{printed}");
    let error = set(Place::with(kafka)).fails(3, &["config", "check"]);
    assert!(error.contains("a variable for what is in `sasl` needs that table in the file"), "{error}");
}

#[cfg(feature = "kafka")]
#[test]
fn a_secret_where_one_of_a_few_names_belongs_is_not_told() {
    let here = Place::with(
        "[destination.bus]\ntype = \"kafka\"\nbrokers = \"a\"\nto = \"a\"\n\
         sasl = { mechanism = \"env:KAFKA_PASSWORD\", username = \"shop\", password = \"env:KAFKA_PASSWORD\" }\n",
    )
    .variable("KAFKA_PASSWORD", "hunter2");
    for command in [&["config", "check"][..], &["relay", "--once"], &["doctor"]] {
        let error = here.fails(3, command);
        assert!(error.contains("sasl.mechanism: unknown variant") && !error.contains("hunter2"), "{error}");
    }
}

/// Of a program that others start with whatever is in their environment.
#[cfg(unix)]
#[test]
fn variables_that_are_no_text_are_told_where_they_are_ours_and_otherwise_let_be() {
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"caf\xe9");
    let here = Place::new();
    for command in
        [&["events", "write", "--type", "A", "{}"][..], &["stats"], &["config", "check"], &["relay", "--once"]]
    {
        let output = here.run_with("LATIN_1", bytes, command);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", stderr(&output));
        let output = here.run_with("POSTHASTE_DATABASE_TABLE", bytes, command);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{command:?}: {said}");
        assert!(said.contains("variable POSTHASTE_DATABASE_TABLE: database.table: its value is no text"), "{said}");
    }
}

/// What a relay would be refused for is told before.
#[test]
fn a_file_that_cannot_be_written_to_is_found_without_making_it() {
    let here = Place::with("[destination.x]\ntype = \"file\"\npath = \"no/such/directory/x\"\n");
    let error = here.fails(3, &["config", "check"]);
    assert!(
        error.contains("posthaste.toml:1:14: destination.x: ") && error.contains("cannot be written to"),
        "{error}"
    );
    let here = Place::with("[destination.x]\ntype = \"file\"\npath = \"x\"\n");
    here.ok(&["config", "check"]);
    assert!(!here.path("x").exists());
}

/// Whoever reads the log by a program finds the reason for the end in it.
#[test]
fn the_error_that_ends_a_relay_is_a_line_of_its_log() {
    for (here, arguments, status) in [
        (Place::with("[relay]\nworker = 4\n"), &["relay", "--log-format", "json"][..], 3),
        (Place::with("[relay]\nworker = 4\n[log]\nformat = \"json\"\n"), &["relay"], 3),
        (Place::with("no TOML").variable("POSTHASTE_LOG_FORMAT", "json"), &["relay"], 3),
        (Place::new(), &["relay", "--once", "--log-format", "json", "--database-url", "sqlite:shop.db"], 5),
    ] {
        let said = here.fails(status, arguments);
        let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert_eq!((&last["level"], &last["exit_status"]), (&"ERROR".into(), &status.into()), "{said}");
        assert!(last["message"].as_str().is_some_and(|message| !message.is_empty()), "{said}");
        assert!(said.lines().all(|line| line.starts_with('{')), "{said}");
    }
}

#[test]
fn what_counts_is_printed_with_where_it_comes_from() {
    let here = Place::with(
        "[database]\nurl = \"env:SHOP_DATABASE\"\n[relay]\nworkers = 2\nlease = \"1m\"\n[destination.orders-eu]\n\
         type = \"nats\"\nurl = \"nats://a\"\nto = \"orders.{event_type}\"\ntoken = \"env:NATS_TOKEN\"\n",
    )
    .variable("SHOP_DATABASE", "postgres://shop:hunter2@db/shop")
    .variable("NATS_TOKEN", "hunter3")
    .variable("POSTHASTE_RELAY_WORKERS", "8")
    .variable("POSTHASTE_DESTINATION_ORDERS_EU_URL", "nats://b");
    let printed = here.ok(&["config", "print", "--table", "events"]);
    for (value, origin) in [
        ("database.url = \"env:SHOP_DATABASE\"", "posthaste.toml:2:7"),
        ("database.table = \"events\"", "flag --table"),
        ("relay.workers = \"8\"", "variable POSTHASTE_RELAY_WORKERS"),
        ("relay.lease = \"1m\"", "posthaste.toml:5:9"),
        ("relay.poll_interval = \"5s\"", "default"),
        ("destination.orders-eu.token = \"env:NATS_TOKEN\"", "posthaste.toml:10:9"),
        ("destination.orders-eu.url = \"nats://b\"", "variable POSTHASTE_DESTINATION_ORDERS_EU_URL"),
    ] {
        let found =
            printed.lines().find(|line| line.starts_with(value)).unwrap_or_else(|| panic!("{value}: {printed}"));
        assert!(found.ends_with(&format!("# {origin}")), "{found}");
    }
    assert!(!printed.contains("hunter"), "{printed}");
    for line in [
        "telemetry.interval = \"15s\"",
        "telemetry.service_name = \"posthaste\"",
        "destination.orders-eu.envelope = \"plain\"",
        "destination.orders-eu.ack_timeout = \"5s\"",
        "destination.orders-eu.lazy = false",
        "destination.orders-eu.max_in_flight = ",
        "destination.orders-eu.name = \"orders-eu\"",
        "route[1] = { name = \"everything\", match = {}, to = [\"orders-eu\"]",
    ] {
        let found = printed.lines().find(|printed| printed.starts_with(line));
        assert!(found.is_some_and(|found| found.ends_with("# default")), "{line}: {printed}");
    }
    // What stands for itself is not told of a second time, and nothing is told of that cannot be set.
    assert_eq!(printed.matches("destination.orders-eu.url = ").count(), 1, "{printed}");
    let printed = Place::new().ok(&["config", "print"]);
    let stdout: Vec<_> = printed.lines().filter(|line| line.starts_with("destination.")).collect();
    let words = |line: &&str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        stdout.iter().map(words).collect::<Vec<_>>(),
        ["destination.stdout.envelope = \"plain\" # default", "destination.stdout.type = \"stdout\" # default"]
    );
    let here = Place::with(
        "[[route]]\nto = \"stdout\"\nmatch = { event_type = [\"Order*\", \"Bill\"], headers = { region = \"eu\" } }\n\
         envelope = { format = \"cloudevents-binary\", source = \"/shop\" }\n",
    );
    let printed = here.ok(&["config", "print"]);
    for words in [
        "match = { event_type = [\"Order*\", \"Bill\"], headers = { region = \"eu\" } }, to = [\"stdout\"]",
        "envelope = { format = \"cloudevents-binary\", source = \"/shop\" }",
    ] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    // A variable may hold the secret itself, and is not shown either.
    let here = Place::with(
        "[destination.hook]\ntype = \"webhook\"\nunsigned = true\n[destination.bus]\ntype = \"nats\"\nto = \"x\"\n\
         [[route]]\nto = [\"hook\", \"bus\"]\n",
    )
    .variable("POSTHASTE_DATABASE_URL", "postgres://shop:hunter2@db/shop?application_name=hunter3")
    .variable("POSTHASTE_DESTINATION_HOOK_TO", "https://hooks.example/T0/hunter4?key=hunter5")
    .variable("POSTHASTE_DESTINATION_BUS_URL", "nats://hunter6@bus");
    let printed = here.ok(&["config", "print"]);
    for line in [
        "database.url = \"postgres://shop:…@db/shop\"",
        "destination.hook.to = \"https://hooks.example/…\"",
        "destination.bus.url = \"nats://…@bus\"",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    assert!(!printed.contains("hunter"), "{printed}");
}

#[test]
fn an_address_that_is_a_secret_is_not_shown_when_it_is_wrong() {
    for address in ["hunter2.{color}", "hunter2.>"] {
        let here = Place::with("[destination.x]\ntype = \"nats\"\nurl = \"nats://a\"\nto = \"env:SUBJECT\"\n")
            .variable("SUBJECT", address);
        let error = here.fails(3, &["config", "check"]);
        assert!(error.contains("destination.x") && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_secret_that_stands_where_a_list_or_a_table_belongs_is_not_shown() {
    let hook = "[destination.hook]\ntype = \"webhook\"\nto = \"https://a\"\n";
    let variables =
        [("POSTHASTE_DESTINATION_HOOK_SECRETS", "whsec_hunter2"), ("POSTHASTE_TELEMETRY_HEADERS", "hunter2")];
    for (name, value) in variables {
        let error = Place::with(hook).variable(name, value).fails(3, &["config", "check"]);
        assert!(error.contains(name) && !error.contains("hunter2"), "{error}");
    }
    let error = Place::with("[telemetry]\nheaders = \"Bearer hunter2\"\n").fails(3, &["config", "check"]);
    assert!(error.contains("telemetry.headers") && !error.contains("hunter2"), "{error}");
    // Nor in the form in which it is shown.
    let file = Place::with(&format!("{hook}secrets = \"file:secret\"\n"));
    file.write("secret", "hunter\"2\\3");
    let error = file.fails(3, &["config", "check"]);
    assert!(error.contains("destination.hook.secrets") && !error.contains("hunter"), "{error}");
}

#[cfg(not(feature = "kafka"))]
#[test]
fn a_destination_that_is_not_built_in_names_its_feature() {
    let here = Place::with("[destination.x]\ntype = \"kafka\"\nbrokers = \"a\"\nto = \"a\"\n");
    assert!(
        here.fails(3, &["config", "check"])
            .contains("this build has no kafka; build posthaste-cli with the feature `kafka`")
    );
}

#[test]
fn a_new_file_is_right_and_not_written_over() {
    let here = Place::new();
    assert!(here.ok(&["init"]).contains("wrote posthaste.toml"));
    assert_eq!(here.ok(&["config", "check"]), "posthaste.toml: nothing is wrong; 1 destination, 1 route\n");
    assert!(!here.path("posthaste.db").exists());
    let error = here.fails(2, &["init"]);
    assert!(error.contains("posthaste.toml is there already"), "{error}");

    // What is commented out is right, too.
    let all: Vec<String> = here
        .read("posthaste.toml")
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.contains(" = ") || rest.starts_with('[') => rest.to_owned(),
            _ => line.to_owned(),
        })
        .filter(|line| cfg!(feature = "kafka-tls") || !line.contains("kafka"))
        .filter(|line| cfg!(feature = "otlp") || !line.contains("otlp"))
        .collect();
    let text = all.join("\n");
    let here = Place::with(&text)
        .variable("KAFKA_PASSWORD", "x")
        .variable("METRICS_TOKEN", "0123456789abcdef")
        .variable("WEBHOOK_SECRET", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0");
    if cfg!(feature = "kafka-tls") {
        let output = here.run(&["config", "check"]);
        assert_eq!(output.status.code(), Some(0), "{}{}\n{text}", stdout(&output), stderr(&output));
    }
}

#[test]
fn init_creates_the_table_where_it_is_told_to() {
    let here = Place::new();
    let said = here.ok(&["init", "--database-url", "sqlite:shop.db"]);
    assert!(said.contains("outbox_event in sqlite:shop.db is up to date"), "{said}");
    assert!(here.read("posthaste.toml").contains("url = \"sqlite:shop.db\""));
    here.ok(&["migrate", "status"]);
    let error = Place::new().fails(3, &["init", "--database-url", "postgres://shop:hunter2@db/shop"]);
    assert!(error.contains("a secret does not stand here") && !error.contains("hunter2"), "{error}");
}

#[test]
fn init_writes_down_which_table_it_made() {
    let here = Place::new();
    here.ok(&["init", "--database-url", "sqlite:shop.db", "--table", "shop_event"]);
    here.ok(&["events", "write", "--type", "Placed", "{}"]);
    let stats = here.ok(&["stats", "--database-url", "sqlite:shop.db", "--table", "shop_event"]);
    assert!(stats.contains('1'), "{stats}");
    assert!(here.ok(&["config", "print"]).contains("shop_event"));
}

/// Also where something else in the file is called so.
#[test]
fn init_writes_down_any_table_but_that_of_the_default() {
    for table in ["orders", "archive", "lines", "json"] {
        let here = Place::new();
        here.ok(&["init", "--database-url", "sqlite:shop.db", "--table", table]);
        assert!(here.read("posthaste.toml").contains(&format!("\ntable = \"{table}\"\n")), "{table}");
        here.ok(&["migrate", "status"]);
    }
    let here = Place::new();
    here.ok(&["init", "--database-url", "sqlite:shop.db", "--table", "outbox_event"]);
    assert!(here.read("posthaste.toml").contains("\n# table = \"outbox_event\"\n"));
}

#[test]
fn init_heeds_what_it_is_told_without_a_database() {
    let here = Place::new();
    here.ok(&["init", "--table", "orders"]);
    assert!(here.read("posthaste.toml").contains("\ntable = \"orders\"\n"));
    assert!(!here.path("posthaste.db").exists(), "it creates nothing");
    let error = Place::new().fails(3, &["init", "--table", "no such"]);
    assert!(error.contains("flag --table: database.table: "), "{error}");

    // The file is where those who are told the same look for it.
    let said = here.ok(&["init", "--config", "other.toml"]);
    assert!(said.contains("wrote other.toml") && said.contains("posthaste relay --config other.toml"), "{said}");
    here.ok(&["config", "check", "--config", "other.toml"]);
    let error = here.fails(2, &["init", "one.toml", "--config", "two.toml"]);
    assert!(
        error.contains("--config") && !here.path("one.toml").exists() && !here.path("two.toml").exists(),
        "{error}"
    );
}

/// Then the file is there, so that a second init would be refused.
#[test]
fn init_says_how_to_go_on_when_the_database_is_away() {
    let here = Place::new();
    let away = ["--database-url", "postgres://shop@127.0.0.1:1/shop"];
    let error = here.fails(4, &[&["init"], &away[..]].concat());
    assert!(error.contains("posthaste.toml is written") && error.contains("posthaste migrate up"), "{error}");
    assert!(here.path("posthaste.toml").exists());
    let error = here.fails(4, &[&["init", "other.toml"], &away[..]].concat());
    assert!(error.contains("posthaste migrate up --config other.toml"), "{error}");
}

#[test]
fn init_writes_nothing_for_a_database_that_cannot_be() {
    let here = Place::new();
    for (url, words) in [
        ("sqlite:no/such/shop.db", "there is no directory no/such"),
        ("sqlite:shop.db?foo=1", "its parameter in place 1 is not known"),
        ("postgres://shop@127.0.0.1:1/shop?sslmode=bogus", "unknown value"),
    ] {
        let error = here.fails(3, &["init", "--database-url", url]);
        assert!(error.contains("flag --database-url: database.url: ") && error.contains(words), "{error}");
        assert!(!here.path("posthaste.toml").exists() && !here.path("shop.db").exists(), "{url}");
    }
    // So that the next try is none too many.
    here.ok(&["init", "--database-url", "sqlite:shop.db"]);
}

#[test]
fn a_database_url_that_is_a_secret_and_wrong_is_not_shown() {
    for (url, words) in [
        ("postgres://shop:hunter2@db/shop?sslmode=bogus", "unknown value"),
        ("postgres://shop:hunter2@db/shop?port=x", "invalid digit"),
        ("postgres://shop:hunter2@db/shop?sslmode=verify-full&sslrootcert=no-such.pem", "cannot be read"),
        ("mysql://shop:hunter2@db/shop?statement-cache-capacity=x", "invalid digit"),
        ("sqlite:shop.db?key=abc&hunter2", "its parameter in place 1 is not known"),
        ("postgres://shop:12?hunter2=x@db/shop", "its parameter in place 1 is not known"),
        ("postgres://db/shop?password=abc&hunter2", "its parameter in place 2 is not known"),
        ("postgres://db/shop?password=abc&hunter2=x", "its parameter in place 2 is not known"),
    ] {
        for secret in ["env:SHOP_DATABASE", "file:secret"] {
            let here = Place::with(&format!("[database]\nurl = \"{secret}\"\n")).variable("SHOP_DATABASE", url);
            here.write("secret", url);
            for command in [&["config", "check"][..], &["relay"], &["relay", "--once"]] {
                let error = here.fails(3, command);
                assert!(error.starts_with("error: posthaste.toml:2:7: database.url: "), "{command:?}: {error}");
                assert!(error.contains(words) && !error.contains("hunter2"), "{command:?}: {error}");
            }
        }
    }
}

/// They would be no help to whoever looks for what is wrong.
#[test]
fn whoever_shows_the_settings_needs_no_database_that_can_be_connected_to() {
    for url in [
        "sqlite:no/such/shop.db",
        "postgres://shop@127.0.0.1:1/shop?sslmode=bogus",
        "postgres://shop@127.0.0.1:1/shop?sslmode=verify-full&sslrootcert=no-such.pem",
    ] {
        let here = Place::with(&format!("[database]\nurl = \"{url}\"\n"));
        here.fails(3, &["config", "check"]);
        assert!(here.ok(&["config", "print"]).contains("database.url = "), "{url}");
        let found = here.run(&["doctor", "--no-destinations"]);
        assert_eq!(found.status.code(), Some(1), "{url}: {}{}", stdout(&found), stderr(&found));
    }
}

#[test]
fn urls_are_right_as_hosters_and_other_drivers_have_them() {
    for url in [
        "postgres://shop:hunter2@127.0.0.1:1/shop?sslmode=require&channel_binding=require",
        "postgres://shop:hunter2@127.0.0.1:1/shop?schema=public&pgbouncer=true&connection_limit=1&connect_timeout=10",
        "mysql://shop:hunter2@127.0.0.1:1/shop?useSSL=false&allowPublicKeyRetrieval=true&serverTimezone=UTC",
    ] {
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", url);
        here.ok(&["config", "check"]);
        // The server itself is another matter.
        let error = here.fails(4, &["stats"]);
        assert!(!error.contains("hunter2"), "{error}");
    }
}

/// The driver would write them into the log, with what they say.
#[test]
fn of_a_parameter_of_a_url_that_is_not_known_the_place_is_said_and_nothing_of_it_shown() {
    for (url, place) in [
        ("postgres://shop@127.0.0.1:1/shop?apikey=hunter2", 1),
        ("postgres://shop@127.0.0.1:1/shop?dbname=shop&sslpassword=hunter2", 2),
        ("postgres://shop@127.0.0.1:1/shop?password=abc&hunter2=x", 2),
        ("mysql://shop@127.0.0.1:1/shop?token=hunter2", 1),
    ] {
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", url).variable("RUST_LOG", "trace");
        for command in
            [&["config", "check"][..], &["relay"], &["relay", "--once"], &["stats"], &["migrate", "up"], &["doctor"]]
        {
            let output = here.run(command);
            let said = format!("{}{}", stdout(&output), stderr(&output));
            assert_eq!(output.status.code(), Some(3), "{command:?}: {said}");
            assert!(said.contains(&format!("its parameter in place {place} is not known")), "{command:?}: {said}");
            assert!(said.contains("POSTHASTE_DATABASE_URL") && !said.contains("hunter2"), "{command:?}: {said}");
        }
    }
}
