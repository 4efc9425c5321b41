//! Runs the example as a user would, and checks that what both processes print is one trace.

use std::collections::HashMap;
use std::process::Command;

/// A line of the exporter, as fields.
fn fields(line: &str) -> HashMap<&str, &str> {
    let (ids, name) = line.split_once(" name=").expect("a line of the exporter");
    let mut fields: HashMap<&str, &str> = ids.split(' ').filter_map(|field| field.split_once('=')).collect();
    fields.insert("name", name.trim_matches('"'));
    fields
}

#[test]
fn one_trace_spans_both_processes() {
    let output = Command::new(env!("CARGO_BIN_EXE_example-one-trace")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("the first process died"), "{printed}");
    assert_eq!(printed.matches("order 1 confirmed, total 1990").count(), 1, "{printed}");

    let spans: Vec<_> = printed.lines().filter(|line| line.starts_with("process=")).map(fields).collect();
    let [request, mail, delivery] = &spans[..] else { panic!("three spans: {printed}") };
    assert_eq!(
        [request, mail, delivery].map(|span| span["name"]),
        ["POST /orders", "send mail", "process Order/OrderPlaced"]
    );
    assert_ne!(request["process"], delivery["process"], "{printed}");
    assert_eq!(mail["process"], delivery["process"], "{printed}");
    for span in [mail, delivery] {
        assert_eq!(span["trace"], request["trace"], "{printed}");
    }
    assert_eq!(request["parent"], "none", "{printed}");
    assert_eq!(delivery["parent"], request["span"], "{printed}");
    assert_eq!(mail["parent"], delivery["span"], "{printed}");
}
