//! `posthaste bench` where it measures the command itself.

use serde_json::Value;

use crate::place::Place;
use crate::relay::postgres;

#[tokio::test]
async fn workload_relay_measures_drain_memory_and_latency_of_this_very_command() {
    let (here, url) = (Place::new(), postgres().await);
    let small = "bench --workload relay --rounds 1 --warm-up 0 --events 2000 --seconds 1 --json figures.json --url";
    let arguments: Vec<&str> = small.split(' ').chain([&*url]).collect();
    let output = here.run(&arguments);
    // Goals may be missed, on a machine that does other things beside.
    let said = format!("{}{}", crate::stdout(&output), crate::stderr(&output));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");

    let measured: Vec<Value> = serde_json::from_str(&here.read("figures.json")).unwrap();
    let of = |workload: &str| {
        measured.iter().find(|one| one["workload"] == workload).unwrap_or_else(|| panic!("no {workload}: {said}"))
    };
    for (workload, goal) in [
        ("R file", Some(0.95)),
        ("R stdout", Some(0.95)),
        ("R once", Some(0.95)),
        ("R file with its start", None),
        ("R file/library to a file", None),
        ("R library to a file", None),
        ("R memory", Some(1.0)),
        ("R latency file p50", Some(1.0)),
        ("R latency stdout p99", Some(1.0)),
        ("R latency notice p99", Some(1.0)),
        ("R latency polling p99", Some(1.0)),
    ] {
        let one = of(workload);
        assert!(one["ours"].as_f64().unwrap() > 0.0 && one["ratio"].as_f64().unwrap() > 0.0, "{one}");
        assert_eq!(one["goal"].as_f64(), goal, "{one}");
    }
    let [drain, whole] = ["R file", "R file with its start"].map(|workload| of(workload)["ours"].as_f64().unwrap());
    assert!(whole < drain, "{said}");
    // A relay has some memory, and none takes a gigabyte for two thousand events.
    let memory = of("R memory")["ours"].as_f64().unwrap();
    assert!((1.0..1000.0).contains(&memory), "{memory} MiB");
    // Who is woken does not wait for the next poll.
    let [woken, polling] =
        ["R latency file p50", "R latency polling p50"].map(|workload| of(workload)["ours"].as_f64().unwrap());
    assert!(woken < polling, "{said}");
}
