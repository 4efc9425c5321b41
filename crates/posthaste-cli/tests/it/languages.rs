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
