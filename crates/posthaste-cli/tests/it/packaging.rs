//! What is in `packaging/`: read by a parser of its format, and compared with what the command and the library know.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::operations::{address, ask, metrics as metrics_of};
use crate::place::{Place, until};
use crate::{stderr, stdout, tool};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(file: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    assert_eq!(documents.len(), 1, "{file}");
    documents.remove(0)
}

fn keys(yaml: &Yaml) -> Vec<&str> {
    yaml.as_hash().unwrap().keys().map(|key| key.as_str().unwrap()).collect()
}

fn texts(yaml: &Yaml) -> Vec<&str> {
    yaml.as_vec().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

/// Asks whoever knows the schema of the Compose specification.
fn compose_check(file: &Path) -> std::process::Output {
    let how = "run scripts/test, or eval \"$(scripts/languages)\" first";
    let program = std::env::var("POSTHASTE_TEST_CHECK_JSONSCHEMA")
        .unwrap_or_else(|_| panic!("POSTHASTE_TEST_CHECK_JSONSCHEMA is not set: {how}"));
    Command::new(program).args(["--builtin-schema", "vendor.compose-spec"]).arg(file).output().unwrap()
}

#[test]
fn the_compose_file_is_one_by_the_specification() {
    let here = Place::new();
    let text = read("packaging/compose/compose.yaml");
    let check = |text: &str| {
        here.write("compose.yaml", text);
        compose_check(&here.path("compose.yaml"))
    };
    let checked = check(&text);
    assert!(checked.status.success(), "{}{}", stdout(&checked), stderr(&checked));
    // It is looked at what is in it.
    for (right, wrong, words) in [
        ("depends_on:", "depend_on:", "depend_on"),
        ("    content: |", "    text: |", "'text' does not match"),
        ("retries: 30", "retries: [30]", "retries"),
        ("restart: on-failure", "restart: { on: failure }", "restart"),
    ] {
        assert!(text.contains(right), "{right}");
        let checked = check(&text.replace(right, wrong));
        assert!(!checked.status.success() && stdout(&checked).contains(words), "{wrong}: {}", stdout(&checked));
    }
}

#[test]
#[cfg_attr(not(feature = "kafka"), ignore = "needs a build with the feature kafka")]
fn the_compose_file_has_settings_and_commands_that_the_command_accepts() {
    let compose = yaml("packaging/compose/compose.yaml");
    assert_eq!(keys(&compose["services"]), ["postgres", "kafka", "migrate", "relay"]);
    for (name, service) in compose["services"].as_hash().unwrap() {
        if let Some(services) = service["depends_on"].as_hash() {
            for depended in services.keys() {
                let depended = depended.as_str().unwrap();
                assert!(!compose["services"][depended].is_badvalue(), "{name:?} depends on {depended}");
            }
        }
        for volume in service["volumes"].as_vec().into_iter().flatten() {
            let volume = volume.as_str().unwrap().split(':').next().unwrap();
            assert!(keys(&compose["volumes"]).contains(&volume), "{name:?} has the volume {volume}");
        }
        assert!(service["image"].as_str().is_some_and(|image| !image.ends_with(":latest")), "{name:?}");
    }

    // The settings go through Compose, which has a meaning for a dollar.
    let settings = compose["configs"]["posthaste"]["content"].as_str().unwrap();
    assert!(!settings.contains('$'), "{settings}");
    let database = compose["services"]["relay"]["environment"]["DATABASE_URL"].as_str().unwrap();
    let here = Place::with(settings)
        .variable("DATABASE_URL", &database.replace("${POSTGRES_PASSWORD}", "secret"))
        .variable("METRICS_TOKEN", "secret-of-16-and-more");
    here.ok(&["config", "check"]);
    let printed = here.ok(&["config", "print"]);
    assert!(printed.contains("kafka:9092") && !printed.contains("secret"), "{printed}");
    here.write("posthaste.toml", &settings.replace("brokers", "broker"));
    here.fails(3, &["config", "check"]);

    // What the containers run is in the place where the settings are, and is known to the command.
    for service in ["migrate", "relay"] {
        let service = &compose["services"][service];
        let command = texts(&service["command"]);
        let config = command.iter().position(|word| *word == "--config").unwrap();
        assert_eq!(service["configs"][0]["source"].as_str(), Some("posthaste"));
        assert_eq!(service["configs"][0]["target"].as_str(), Some(command[config + 1]));
        here.ok(&[&command[..], &["--help"]].concat());
        let file = service["build"]["dockerfile"].as_str().unwrap();
        assert!(read(file).contains("ENTRYPOINT [\"/usr/local/bin/posthaste\"]"));
    }
    // What Kafka writes is in its volume, and not in the container, which goes with the next `down`.
    let kafka = &compose["services"]["kafka"];
    let directory = kafka["environment"]["KAFKA_LOG_DIRS"].as_str().unwrap();
    assert_eq!(texts(&kafka["volumes"]), [format!("kafka:{directory}")]);
    // While PostgreSQL is being set up it listens at its socket alone, and is not there yet.
    let check = texts(&compose["services"]["postgres"]["healthcheck"]["test"]);
    assert!(check.windows(2).any(|words| words[0] == "--host" && words[1] != "/"), "{check:?}");
    // Every command of the comments finds the file, from the root of the repository, and none forgets the password.
    let text = read("packaging/compose/compose.yaml");
    let commands: Vec<&str> =
        text.lines().filter(|line| line.starts_with('#') && line.contains("docker compose ")).collect();
    assert!(commands.len() > 4 && text.contains("export POSTGRES_PASSWORD="), "{commands:?}");
    assert!(text.contains("export METRICS_TOKEN="), "{commands:?}");
    for command in commands {
        assert!(command.contains("docker compose --file packaging/compose/compose.yaml "), "{command}");
    }
    // Kafka says of itself what the relay looks for.
    let advertised = compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].as_str().unwrap();
    assert!(settings.contains(advertised.strip_prefix("PLAINTEXT://").unwrap()), "{advertised}");
}

/// By its health check, and from outside of its container.
#[test]
fn the_relay_of_the_compose_file_can_be_asked() {
    const TOKEN: &str = "0123456789abcdef";
    let compose = yaml("packaging/compose/compose.yaml");
    let relay = &compose["services"]["relay"];
    let environment = &relay["environment"];
    assert!(environment["METRICS_TOKEN"].as_str().unwrap().starts_with("${METRICS_TOKEN:?"), "it is nobody else's");
    let settings = compose["configs"]["posthaste"]["content"].as_str().unwrap();
    let http = settings.split("\n\n").find(|part| part.starts_with("[http]")).unwrap();
    assert!(http.contains("listen = \"0.0.0.0:9797\""), "{http}");
    // On this machine alone, and at another port for each relay.
    assert_eq!(texts(&relay["ports"]), ["127.0.0.1::9797"]);
    assert!(read("packaging/container/Containerfile").contains("\nEXPOSE 9797\n"));

    let here = Place::with(&http.replace("0.0.0.0:9797", "0.0.0.0:0")).variable("METRICS_TOKEN", TOKEN);
    let mut running = here.start(&["relay"]);
    let port = address(&mut running).port();
    running.says("delivering");
    let words = texts(&relay["healthcheck"]["test"]);
    assert_eq!((words[0], words.len()), ("CMD", 4), "{words:?}");
    // Two dollars are one to Compose.
    let script = words[3].replace("$$", "$").replace("/9797", &format!("/{port}"));
    let is_healthy = |token: &str| {
        let mut check = Command::new(words[1]);
        tool("bash", check.args([words[2], &script]).env("METRICS_TOKEN", token)).status.success()
    };
    until("it is ready", || is_healthy(TOKEN));
    assert!(!is_healthy("another-token-of-another"), "it looks at the answer");
    running.terminate();
    assert_eq!(running.end().0, Some(0));
    assert!(!is_healthy(TOKEN), "nobody is there");

    // The same port and job as in the example of how Prometheus asks.
    let readme = read("packaging/README.md");
    let example = readme.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let example = &YamlLoader::load_from_str(example).unwrap()[0]["scrape_configs"][0];
    assert!(example["authorization"]["credentials_file"].as_str().is_some());
    let found = &example["dns_sd_configs"][0];
    assert_eq!((texts(&found["names"]), found["port"].as_i64()), (vec!["relay"], Some(9797)));
    let job = format!("job=\"{}\"", example["job_name"].as_str().unwrap());
    assert!(alerts().iter().any(|query| query.contains(&job)), "{job}");
}

#[test]
fn the_image_is_built_with_what_the_workspace_needs() {
    let file = read("packaging/container/Containerfile");
    let version = read("Cargo.toml").lines().find_map(|line| line.strip_prefix("rust-version = ").map(str::to_owned));
    let image = format!("/rust:{}-", version.unwrap().trim_matches('"'));
    assert!(file.contains(&image), "no {image} in:\n{file}");
    let features = file.split("--features ").nth(1).unwrap().split_whitespace().next().unwrap();
    for feature in features.split(',') {
        assert!(read("crates/posthaste-cli/Cargo.toml").contains(&format!("\n{feature} = [")), "{feature}");
    }
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = read("packaging/systemd/posthaste-relay.service");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/posthaste ")).unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    let here = Place::new();
    here.ok(&[&words[..], &["--help"]].concat());
    let given_up = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus=")).unwrap();
    for status in given_up.split(' ') {
        assert!(read("docs/relay.md").contains(&format!("\n| {status} | ")), "{status} is not documented");
    }
    // To reload is to check the settings, and to end by a signal after which the relay is started anew.
    let reload: Vec<&str> = unit.lines().filter_map(|line| line.strip_prefix("ExecReload=")).collect();
    let [check, signal] = reload[..] else { panic!("{reload:?}") };
    let check: Vec<&str> = check.strip_prefix("/usr/local/bin/posthaste ").unwrap().split(' ').collect();
    assert_eq!(
        (&check[..2], &check[2..]),
        (&["config", "check"][..], &words[1..]),
        "the settings that it is started with"
    );
    assert_eq!(signal, "/bin/kill -HUP $MAINPID");
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    relay.signal("-HUP");
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    assert!(unit.contains("\nRestart=always\n") && !given_up.split(' ').any(|status| status == "0"), "{unit}");

    here.write("posthaste-relay.service", &unit.replace("/usr/local/bin/posthaste", env!("CARGO_BIN_EXE_posthaste")));
    let file = here.path("posthaste-relay.service");
    let verify = || tool("systemd", Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file));
    let output = verify();
    let said = format!("{}{}", stdout(&output), stderr(&output));
    let about_us: Vec<_> = said.lines().filter(|line| line.contains("posthaste-relay")).collect();
    assert!(output.status.success() && about_us.is_empty(), "{said}");
    // It does look: a word that is none is told.
    here.write("posthaste-relay.service", &unit.replace("Restart=always", "Restart=sometimes"));
    let output = verify();
    assert!(stderr(&output).contains("sometimes"), "{}", stderr(&output));
}

/// The names of metrics in a query, without what histograms add to theirs.
fn metrics(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let names = words.filter(|word| word.starts_with("posthaste_"));
    let plain = |name: &str| {
        let suffix = ["_bucket", "_sum", "_count"].into_iter().find_map(|suffix| name.strip_suffix(suffix));
        suffix.unwrap_or(name).to_owned()
    };
    names.map(plain).collect()
}

/// The queries of the dashboard.
fn dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("packaging/grafana/posthaste.json")).unwrap();
    let mut ids = BTreeSet::new();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_i64().unwrap()), "two panels are {}", panel["id"]);
        let place = &panel["gridPos"];
        assert!(place["x"].as_i64().unwrap() + place["w"].as_i64().unwrap() <= 24, "{}", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            queries.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(variables.iter().map(|v| v["name"].as_str().unwrap()).collect::<Vec<_>>(), ["datasource", "job"]);
    queries.push(variables[1]["query"]["query"].as_str().unwrap().to_owned());
    queries
}

/// The queries of the alerts.
fn alerts() -> Vec<String> {
    let rules = yaml("packaging/prometheus/alerts.yaml");
    let mut names = BTreeSet::new();
    let mut queries = Vec::new();
    for rule in rules["groups"][0]["rules"].as_vec().unwrap() {
        let name = rule["alert"].as_str().unwrap();
        assert!(names.insert(name.to_owned()), "{name} is there twice");
        for annotation in ["summary", "description"] {
            assert!(rule["annotations"][annotation].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        }
        assert!(["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
        assert!(read("packaging/README.md").contains(&format!("| `{name}` |")), "{name} is not in the README");
        queries.push(rule["expr"].as_str().unwrap().to_owned());
    }
    queries
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_that_there_are() {
    let queries = [dashboard(), alerts()].concat();
    let used: BTreeSet<String> = queries.iter().flat_map(|query| metrics(query)).collect();
    let readme = read("packaging/README.md");
    let listed: BTreeSet<String> =
        readme.lines().filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`').map(str::to_owned)).collect();
    assert_eq!(used, listed, "the list in packaging/README.md");

    // The tables of the page are checked against what a relay reports.
    let page = read("docs/metrics.md");
    let known: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for name in &listed {
        assert!(known.contains(&**name), "nobody reports {name}");
    }
    // How long events wait is asked of the table: what is not claimed, as when all is paused or away, has no lag.
    let alerts = alerts().join("\n");
    assert!(
        alerts.contains("posthaste_oldest_pending_seconds") && !alerts.contains("posthaste_oldest_lag_seconds"),
        "{alerts}"
    );
    // The labels, too.
    for query in &queries {
        for status in query.split("status=~\"").skip(1).chain(query.split("status=\"").skip(1)) {
            for status in status.split('"').next().unwrap().split('|') {
                assert!(["NEW", "RETRY", "DONE", "DEAD"].contains(&status), "{status} in {query}");
            }
        }
        let (open, close) = (query.matches(['(', '{', '[']).count(), query.matches([')', '}', ']']).count());
        assert_eq!(open, close, "{query}");
    }
}

#[test]
fn prometheus_accepts_the_alerts() {
    let check = |file: &Path| tool("prometheus", Command::new("promtool").args(["check", "rules"]).arg(file));
    let output = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/alerts.yaml"));
    let alerts = alerts().len();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert!(stdout(&output).contains(&format!("{alerts} rules found")), "{}", stdout(&output));
    // It does look: a query that is none is told.
    let here = Place::new();
    here.write("wrong.yaml", &read("packaging/prometheus/alerts.yaml").replacen("expr: ", "expr: 5 5 ", 1));
    let output = check(&here.path("wrong.yaml"));
    assert!(!output.status.success(), "{}", stdout(&output));
}

/// Each of them fires for the series that it should fire for, and for no others.
#[test]
fn alerts_fire_when_they_should_and_not_otherwise() {
    let rules = read("packaging/prometheus/alerts.yaml");
    let here = Place::new();
    here.write("alerts.test.yaml", &read("packaging/prometheus/alerts.test.yaml"));
    let test = |rules: &str| {
        here.write("alerts.yaml", rules);
        tool("prometheus", Command::new("promtool").args(["test", "rules"]).arg(here.path("alerts.test.yaml")))
    };
    let output = test(&rules);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    // It does look: an alert that never fires is missed, one that always does is too many, and one that is in a hurry is early.
    let parts: Vec<&str> = rules.split("      - alert: ").collect();
    assert_eq!(parts.len(), alerts().len() + 1);
    let name = |part: &str| part.lines().next().unwrap().to_owned();
    let in_a_hurry = |part: &str| {
        let (before, after) = part.split_once("        for: ")?;
        Some(format!("{before}{}", after.split_once('\n').unwrap().1))
    };
    type Wrong<'a> = &'a dyn Fn(&str) -> Option<String>;
    let wrongs: [Wrong<'_>; 3] = [
        &|part| Some(format!("{}\n        expr: vector(0) > 1\n", name(part))),
        &|part| Some(format!("{}\n        expr: vector(1)\n", name(part))),
        &in_a_hurry,
    ];
    for wrong in wrongs {
        let rules: Vec<String> =
            parts[1..].iter().map(|part| wrong(part).unwrap_or_else(|| (*part).to_owned())).collect();
        let output = test(&[&[parts[0].to_owned()], &rules[..]].concat().join("      - alert: "));
        assert!(!output.status.success() && stderr(&output).contains("FAILED"), "{}", stdout(&output));
        for part in parts[1..].iter().filter(|part| wrong(part).is_some()) {
            assert!(stderr(&output).contains(&name(part)), "{}: {}", name(part), stderr(&output));
        }
    }
}

#[test]
fn prometheus_accepts_the_metrics_of_a_relay() {
    let here = Place::with("[http]\nlisten = \"127.0.0.1:0\"\nsample_interval = \"100ms\"\n");
    let mut relay = here.start(&["relay"]);
    let address = address(&mut relay);
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    until("all is counted", || metrics_of(address).get("posthaste_rows{status=\"DONE\"}") == Some(&1.0));
    here.write("metrics", &ask(address, "/metrics", "").1);
    let check = || {
        let file = std::fs::File::open(here.path("metrics")).unwrap();
        tool("prometheus", Command::new("promtool").args(["check", "metrics"]).stdin(file))
    };
    let output = check();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    // It does look: a line that is none is told.
    here.write("metrics", &(here.read("metrics") + "posthaste_rows{status=\"DONE} 1\n"));
    assert!(!check().status.success());
}
