//! Programs in other languages: the examples, with the real relay, against a real PostgreSQL.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::place::Place;
use crate::relay::{lines, postgres};
use crate::{stderr, stdout};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run scripts/test, or eval \"$(scripts/languages)\" first"))
}

/// What a program prints, which has to end well.
fn prints(command: &mut Command, url: &str) -> String {
    let output = command.env("DATABASE_URL", url).output();
    let output = output.unwrap_or_else(|error| panic!("{:?} cannot be started: {error}", command.get_program()));
    assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    stdout(&output).to_owned()
}

/// Has a shop place the orders 42 and 7, and 42 once more, while a relay waits for events, and reads what arrives.
async fn shop(command: impl Fn(&Place) -> Command) {
    let url = postgres().await;
    let here = Place::with("[database]\nurl = \"env:DATABASE_URL\"\n[relay]\npoll_interval = \"1h\"\n[destination.lines]\ntype = \"file\"\npath = \"events.ndjson\"\n")
        .variable("DATABASE_URL", &url);
    here.ok(&["migrate", "up", "--write-function"]);
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");

    let printed = prints(command(&here).args(["42", "1990", "7", "2500", "42", "1"]), &url);
    let events: Vec<(&str, &str)> = printed.lines().filter_map(|line| line.split_once(": event ")).collect();
    let [(first, first_id), (second, second_id)] = events[..] else { panic!("{printed}") };
    assert_eq!((first, second, printed.lines().nth(2)), ("order 42", "order 7", Some("order 42: placed before")));

    // It polls once in an hour, so it is the shop that has woken it.
    here.until("both have arrived", |here| here.read("events.ndjson").lines().count() == 2);
    let mut arrived = lines(&here.read("events.ndjson"));
    arrived.sort_by_key(|event| event["key"] != "42");
    let expected = [(first_id, "42", 1990), (second_id, "7", 2500)];
    for (event, (id, key, total)) in arrived.iter().zip(expected) {
        assert_eq!((&event["id"], &event["key"]), (&Value::from(id), &Value::from(key)));
        assert_eq!(event["headers"]["service"], "shop", "{event}");
        assert_eq!(event["body"], json!({ "order": key.parse::<i64>().unwrap(), "total": total }));
    }
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
    // The third order was refused, and its event with it.
    let stats = here.json(&["stats", "--output", "json"]);
    assert_eq!((&stats["done"], &stats["new"]), (&json!(2), &json!(0)), "{stats}");
}

#[tokio::test]
async fn the_example_in_python_delivers() {
    let python = variable("POSTHASTE_TEST_SHOP_PYTHON");
    shop(|_| {
        let mut command = Command::new(&python);
        command.arg(Path::new(EXAMPLES).join("python/shop.py"));
        command
    })
    .await;
}

#[tokio::test]
async fn the_example_in_node_delivers() {
    let (node, modules) = (variable("POSTHASTE_TEST_SHOP_NODE"), variable("POSTHASTE_TEST_SHOP_NODE_MODULES"));
    shop(|here| {
        // Node looks for modules beside the program.
        for file in ["shop.js", "package.json"] {
            std::fs::copy(Path::new(EXAMPLES).join("node").join(file), here.path(file)).unwrap();
        }
        std::os::unix::fs::symlink(&modules, here.path("node_modules")).unwrap();
        let mut command = Command::new(&node);
        command.arg(here.path("shop.js"));
        command
    })
    .await;
}

/// Does what the page says, but for what it installs.
#[tokio::test]
async fn the_page_on_python_works() {
    const PAGE: &str = include_str!("../../../../docs/guide/python.md");
    let block = |language: &str, text: &str| {
        text.split(&format!("```{language}\n")).nth(1).unwrap().split("```").next().unwrap().to_owned()
    };
    let steps = PAGE.split("\n## ").filter(|step| step.starts_with(['3', '4', '5']));
    let commands = steps
        .flat_map(|step| step.split("```sh\n").skip(1))
        .flat_map(|block| block.split("```").next().unwrap().lines());

    let (python, url) = (variable("POSTHASTE_TEST_SHOP_PYTHON"), postgres().await);
    let here = Place::new().variable("DATABASE_URL", &url);
    here.write("shop.py", &block("python", PAGE));
    let mut said = Vec::new();
    for command in commands {
        let words: Vec<&str> = command.split(' ').collect();
        match words[0] {
            "posthaste" => said.push((command, here.ok(&words[1..]))),
            "venv/bin/python" => {
                let mut shop = Command::new(&python);
                let output =
                    shop.args(&words[1..]).current_dir(here.path("")).env("DATABASE_URL", &url).output().unwrap();
                let outcome = if output.status.success() { "ended well" } else { stderr(&output) };
                said.push((command, outcome.lines().last().unwrap_or_default().to_owned()));
            }
            "mkdir" | "python3" | "venv/bin/pip" => {}
            _ => panic!("the page has a command that this test does not know: {command}"),
        }
    }
    let ran: Vec<&str> = said.iter().map(|(command, _)| *command).collect();
    assert_eq!(
        ran,
        [
            "posthaste init --database-url env:DATABASE_URL",
            "posthaste migrate up --write-function",
            "venv/bin/python shop.py 42 1990",
            "posthaste relay --once",
            "venv/bin/python shop.py 42 1",
            "posthaste stats",
        ]
    );
    assert_eq!(said[2].1, "ended well");
    // What it prints is what the page shows, but for what is cut there.
    let delivered: Value = serde_json::from_str(&said[3].1).unwrap();
    let shown = block("json", PAGE).replace("{…}", "null");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    for field in ["key", "content_type", "body"] {
        assert_eq!(delivered[field], shown[field], "{field}");
    }
    assert_eq!(
        delivered.as_object().unwrap().keys().collect::<Vec<_>>(),
        shown.as_object().unwrap().keys().collect::<Vec<_>>()
    );
    assert!(said[4].1.contains("Key (id)=(42) already exists"), "{}", said[4].1);
    assert_eq!(here.json(&["stats", "--output", "json"])["done"], 1);
}
