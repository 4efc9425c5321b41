//! Standard output as a destination: what the program prints, in every format, read by Python.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use crate::place::Place;
use crate::{stderr, stdout, tool};

/// Reads lines of JSON, and prints them again with bytes in hexadecimal digits. A name that is there twice, a line without an end
/// and a number that JSON does not have are refused.
const READER: &str = r#"
import base64, json, sys

def once(members):
    assert len({name for name, _ in members}) == len(members), members
    return dict(members)

def refused(number):
    raise ValueError(number)

for line in open(sys.argv[1], "rb"):
    assert line.endswith(b"\n"), line
    event = json.loads(line.decode(), object_pairs_hook=once, parse_constant=refused)
    for name in ("body_base64", "data_base64"):
        if name in event:
            event[name] = base64.b64decode(event[name], validate=True).hex()
    print(json.dumps(event))
"#;

const SETTINGS: &str = r#"
[destination.out]
type = "stdout"

[[route]]
match = { tenant = "plain" }
to = "out"

[[route]]
match = { tenant = "binary" }
to = "out"
envelope = { format = "cloudevents-binary", source = "https://shop.example/{aggregate_type}" }

[[route]]
match = { tenant = "structured" }
to = "out"
envelope = { format = "cloudevents-structured", source = "https://shop.example/{aggregate_type}" }

[[route]]
match = { tenant = "debezium" }
to = "out"
envelope = { format = "debezium", event_type_header = "eventType" }
"#;

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b9c7c989f97918e1-01";

const FORMATS: [&str; 4] = ["plain", "binary", "structured", "debezium"];

/// JSON, whose text has to stay as it is, and bytes that are no text.
const JSON: &str = "{ \"größe\": 1.0,  \"note\": \"Grüße\\n😀\" }";
const BYTES: [u8; 8] = [0x89, 0x50, 0x0D, 0x0A, 0x00, 0xFF, 0x22, 0x5C];

#[test]
fn every_format_is_read_back() {
    let here = Place::with(SETTINGS);
    for format in FORMATS {
        let write = |kind: &str, payload: &[u8], more: &[&str]| {
            let (id, trace) = (format!("{format}-{kind}"), format!("traceparent={TRACEPARENT}"));
            let event = ["events", "write", "--id", &id, "--type", "OrderPlaced", "--tenant", format];
            let aggregate = ["--aggregate-type", "Order", "--aggregate-id", "42 €", "--header", &trace];
            let headers = ["--header", "Shelf=of capitals", "--header", "shelf=of small letters"];
            here.fed(payload, &[&event[..], &aggregate, &headers, more].concat());
        };
        write("json", JSON.as_bytes(), &[]);
        write("bytes", &BYTES, &["--content-type", "image/png"]);
    }
    let printed = here.ok(&["relay", "--once"]);
    here.write("printed", &printed);
    for format in FORMATS {
        let line = printed.lines().find(|line| line.contains(&format!("\"{format}-json\""))).unwrap();
        assert!(line.contains(JSON), "{format}: {line}");
    }

    let printed = here.path("printed");
    let output = tool("python3", Command::new("python3").args(["-c", READER, printed.to_str().unwrap()]));
    assert!(output.status.success(), "{}", stderr(&output));
    let read: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(read.len(), 2 * FORMATS.len(), "{read:#?}");
    let mut read: BTreeMap<_, _> =
        read.into_iter().map(|event| (event["id"].as_str().unwrap().to_owned(), event)).collect();
    for format in FORMATS {
        for kind in ["json", "bytes"] {
            let id = format!("{format}-{kind}");
            let mut event = read.remove(&id).unwrap_or_else(|| panic!("no {id}"));
            // Whenever it was written, it is told in the form of RFC 3339.
            let time = match format {
                "plain" => Some(event["headers"]["occurred-at"].take()),
                "binary" => Some(event["headers"]["ce_time"].take()),
                "structured" => Some(event["time"].take()),
                _ => None,
            };
            if let Some(time) = time {
                assert!(time.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{id}: {time}");
            }
            assert_eq!(event, expected(format, kind, &id), "{id}");
        }
    }
}

/// What a line has to say, without the time.
fn expected(format: &str, kind: &str, id: &str) -> Value {
    let content_type = if kind == "json" { "application/json" } else { "image/png" };
    let mut event = match format {
        "structured" => json!({
            "specversion": "1.0", "id": id, "source": "https://shop.example/Order", "type": "OrderPlaced",
            "subject": "42 €", "time": null, "datacontenttype": content_type, "aggregatetype": "Order",
            "tenantid": format, "shelf": "of capitals", "traceparent": TRACEPARENT,
        }),
        _ => json!({ "id": id, "key": "42 €", "content_type": content_type }),
    };
    match format {
        "plain" => {
            event["headers"] = json!({
                "event-id": id, "event-type": "OrderPlaced", "aggregate-type": "Order", "aggregate-id": "42 €",
                "tenant-id": format, "occurred-at": null, "Shelf": "of capitals", "shelf": "of small letters",
                "traceparent": TRACEPARENT,
            });
        }
        "binary" => {
            event["headers"] = json!({
                "ce_specversion": "1.0", "ce_id": id, "ce_source": "https://shop.example/Order", "ce_type": "OrderPlaced",
                "ce_subject": "42 €", "ce_time": null, "ce_aggregatetype": "Order", "ce_tenantid": format,
                "ce_shelf": "of capitals", "ce_traceparent": TRACEPARENT, "traceparent": TRACEPARENT,
            });
        }
        "debezium" => event["headers"] = json!({ "id": id, "eventType": "OrderPlaced" }),
        _ => {}
    }
    let name = if format == "structured" { "data" } else { "body" };
    match kind {
        "json" => event[name] = serde_json::from_str(JSON).unwrap(),
        _ => {
            let digits: String = BYTES.iter().map(|byte| format!("{byte:02x}")).collect();
            event[format!("{name}_base64")] = json!(digits);
        }
    }
    event
}
