//! The program as a user runs it.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_posthaste-bench")).args(arguments).output().expect("the program runs")
}

#[test]
fn a_small_run_gives_ratios_and_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let (json, page) = (directory.path().join("figures.json"), directory.path().join("figures.html"));
    let small = "--database sqlite --workload w,w100,d,l,x --rounds 1 --warm-up 0 --events 1000 --seconds 1 --quick";
    let mut arguments: Vec<&str> = small.split(' ').collect();
    arguments.extend(["--json", json.to_str().unwrap(), "--report", page.to_str().unwrap()]);
    let output = bench(&arguments);
    let said = String::from_utf8_lossy(&output.stdout);
    // Goals may be missed, on a machine that does other things beside.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}{}", String::from_utf8_lossy(&output.stderr));

    let measured: Vec<Value> = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    for workload in ["W", "H", "W100", "D", "D+1M", "Ddel", "L100 p50", "L1000 p99", "X hot, statements"] {
        let of = measured.iter().find(|one| one["workload"] == workload).unwrap_or_else(|| panic!("no {workload}"));
        assert!(of["ours"].as_f64().unwrap() > 0.0 && of["ceiling"].as_f64().unwrap() > 0.0, "{of}");
        assert!(of["ratio"].as_f64().unwrap() > 0.0 && of.get("goal").is_some(), "{of}");
        assert!(of["machine"]["cores"].as_u64().unwrap() > 0, "{of}");
        assert!(said.contains(workload), "{said}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.matches("<svg").count() >= 9 && page.contains("SQLite 3."), "{page}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    for (arguments, reason) in [
        (&["--url", "oracle://x"][..], "--url must begin with postgres:// or mysql://"),
        (&["--events", "10"][..], "--events must be at least 1000"),
        (&["--rounds", "0"][..], "--rounds must be at least 1"),
        (&["--peers", "/nowhere"][..], "the peers are in the directory `peers`"),
        (&["--workload", "relay", "--program", "/nowhere"][..], "there is no /nowhere, whose relay would be measured"),
        (
            &["--workload", "relay", "--database", "sqlite", "--program", env!("CARGO_BIN_EXE_posthaste-bench")][..],
            "workload relay is measured on PostgreSQL",
        ),
        (&["--broker", "kafka"][..], "must be NAME=URL"),
        (&["--broker", "nats=x", "--broker", "nats=y"][..], "is given twice"),
        #[cfg(not(feature = "brokers"))]
        (&["--workload", "b"][..], "cargo run --release --features brokers -- bench --workload b"),
    ] {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{said}");
    }
}
