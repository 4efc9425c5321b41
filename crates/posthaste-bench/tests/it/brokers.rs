//! Redis and Mosquitto, which are the quickest to start.

use std::process::Command;

use serde_json::Value;

#[test]
fn workload_b_gives_the_ratios_of_the_publisher_and_of_the_outbox() {
    let (broker, page) = ratios_of("redis", "POSTHASTE_TEST_REDIS_URL");
    assert!(broker.starts_with("Redis ") && broker.contains("appendonly ") && broker.contains("redis 1."), "{broker}");
    assert!(page.contains("appendonly "), "{page}");
}

#[test]
fn what_has_no_count_of_its_messages_is_read_back() {
    let (broker, page) = ratios_of("mqtt", "POSTHASTE_TEST_MOSQUITTO_URL");
    assert!(broker.starts_with("mosquitto version ") && broker.contains("rumqttc-v5-next 0."), "{broker}");
    assert!(page.contains("quality of service 1"), "{page}");
}

/// Measures with the broker of a variable: what it says of the broker, and its page.
fn ratios_of(kind: &str, variable: &str) -> (String, String) {
    let url = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; run scripts/test, or start it with its script in scripts/brokers")
    });
    let directory = tempfile::tempdir().expect("a directory");
    let (json, page) = (directory.path().join("figures.json"), directory.path().join("figures.html"));
    let output = Command::new(env!("CARGO_BIN_EXE_posthaste-bench"))
        .args("--workload b --rounds 1 --warm-up 0 --events 2000 --broker".split(' '))
        .arg(format!("{kind}={url}"))
        .arg("--json")
        .arg(&json)
        .arg("--report")
        .arg(&page)
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout);
    // Goals may be missed, on a machine that does other things beside.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}{}", String::from_utf8_lossy(&output.stderr));

    let measured = std::fs::read(json).expect("figures");
    let measured: Vec<Value> = serde_json::from_slice(&measured).expect("a list");
    let of = |workload: &str| {
        measured.iter().find(|one| one["workload"] == workload).unwrap_or_else(|| panic!("no {workload}: {said}"))
    };
    let (publisher, outbox) = (of(&format!("B publish {kind}")), of(&format!("B {kind}")));
    let (own, in_turn) = (of(&format!("B {kind}/own drain")), of(&format!("B {kind} in turn")));
    assert_eq!(measured.len(), 4, "{said}");
    for one in [publisher, outbox, own, in_turn] {
        let is_more = |field: &str| one[field].as_f64() > Some(0.0);
        assert!(is_more("ours") && is_more("ceiling") && is_more("ratio") && one["database"] == "postgres", "{one}");
    }
    assert_eq!([publisher, outbox, own].map(|one| one["goal"].as_f64()), [Some(0.8), Some(0.8), Some(0.7)]);
    assert_eq!(in_turn["goal"], Value::Null);
    assert_eq!(outbox["ours"], own["ours"]);
    // One after the other takes longer than the slower of the two.
    assert!(in_turn["ceiling"].as_f64() < own["ceiling"].as_f64(), "{in_turn} {own}");
    assert!(said.contains("all processors of this machine would be busy at "), "{said}");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.matches("<svg").count() >= 4, "{page}");
    (outbox["machine"]["brokers"][0].as_str().expect("what it was").to_owned(), page)
}
