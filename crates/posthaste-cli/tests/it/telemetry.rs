//! Traces and metrics that a relay sends, taken by a receiver of our own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::place::{Place, until};

/// What a receiver got: path, headers in small letters, body.
type Got = Arc<Mutex<Vec<(String, String, Value)>>>;

/// A receiver that answers every request with this status.
fn receiver(status: &'static str) -> (SocketAddr, Got) {
    let (listener, got) = (TcpListener::bind("127.0.0.1:0").unwrap(), Got::default());
    let (address, heard) = (listener.local_addr().unwrap(), Arc::clone(&got));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let heard = Arc::clone(&heard);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if reader.read_line(&mut head).unwrap() == 0 {
                        return;
                    }
                }
                let lower = head.to_lowercase();
                let length = lower.split_once("content-length: ").unwrap().1.split("\r\n").next().unwrap();
                let mut body = vec![0; length.parse().unwrap()];
                reader.read_exact(&mut body).unwrap();
                let path = head.split(' ').nth(1).unwrap().to_owned();
                heard.lock().unwrap().push((path, lower, serde_json::from_slice(&body).unwrap()));
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{{}}")
                    .unwrap();
            });
        }
    });
    (address, got)
}

fn spans(got: &Got) -> Vec<Value> {
    let got = got.lock().unwrap();
    let traces = got.iter().filter(|(path, ..)| path == "/v1/traces");
    traces
        .flat_map(|(.., body)| body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone())
        .collect()
}

/// The last word on a metric.
fn metric(got: &Got, name: &str) -> Option<Value> {
    let got = got.lock().unwrap();
    let last = got.iter().rev().find(|(path, ..)| path == "/v1/metrics")?;
    let metrics = last.2["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
    metrics.iter().find(|metric| metric["name"] == name).cloned()
}

fn attribute<'a>(of: &'a Value, key: &str) -> Option<&'a str> {
    let found = of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    found["value"]["stringValue"].as_str().or_else(|| found["value"]["intValue"].as_str())
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

#[test]
fn traces_go_on_and_metrics_are_sent() {
    let (address, got) = receiver("200 OK");
    let here = Place::with(&format!(
        "[relay]\npoll_interval = \"50ms\"\n[http]\nlisten = \"off\"\n\
         [telemetry]\notlp = \"http://{address}\"\nservice_name = \"shop-relay\"\ninterval = \"200ms\"\n\
         headers = {{ x-api-key = \"env:COLLECTOR_KEY\" }}\n\
         [destination.good]\ntype = \"file\"\npath = \"out.ndjson\"\n\
         [destination.away]\ntype = \"webhook\"\nto = \"http://127.0.0.1:1/secret-path\"\nunsigned = true\nallow_http = true\nallow_private_addresses = true\n\
         [[route]]\nname = \"orders\"\nmatch = {{ event_type = \"Order*\" }}\nto = \"good\"\n\
         [[route]]\nname = \"hooks\"\nto = \"away\"\n"
    ))
    .variable("COLLECTOR_KEY", "not to be told");
    let printed = here.ok(&["config", "print"]);
    assert!(printed.contains("env:COLLECTOR_KEY") && !printed.contains("not to be told"), "{printed}");
    let mut relay = here.start(&["relay"]);
    relay.says("sending traces and metrics");
    relay.says("delivering");
    let parent = format!("traceparent=00-{TRACE}-{PARENT}-01");
    here.ok(&[
        "events",
        "write",
        "--id",
        "1",
        "--type",
        "OrderPlaced",
        "--aggregate-type",
        "Order",
        "--aggregate-id",
        "42",
        "--header",
        &parent,
        "{}",
    ]);
    let is_first = |span: &Value| attribute(span, "messaging.message.id") == Some("1") && span["kind"] == 5;
    // Those that are sent together have a span together.
    until("the first is sent", || spans(&got).iter().any(is_first));
    here.ok(&["events", "write", "--id", "2", "--type", "OrderPaid", "{}"]);
    here.ok(&["events", "write", "--id", "3", "--type", "HookSent", "--header", &parent, "{}"]);
    let failed = |span: &Value| span["kind"] == 4 && attribute(span, "messaging.system") == Some("http");
    until("all spans are there", || spans(&got).iter().any(failed));
    let all = spans(&got);
    let process = all.iter().find(|span| is_first(span)).unwrap();
    assert_eq!((&process["traceId"], &process["parentSpanId"]), (&TRACE.into(), &PARENT.into()), "{process:#}");
    assert_eq!(process["name"], "process Order/OrderPlaced");
    assert_eq!(
        (&process["status"]["code"], attribute(process, "posthaste.outcome")),
        (&1.into(), Some("done")),
        "{process:#}"
    );
    let send = all.iter().find(|span| span["kind"] == 4 && span["parentSpanId"] == process["spanId"]).unwrap();
    assert_eq!((&send["traceId"], attribute(send, "messaging.system")), (&TRACE.into(), Some("ndjson")), "{send:#}");
    assert_eq!(attribute(send, "messaging.operation.type"), Some("send"));
    assert!(send["startTimeUnixNano"].as_str().unwrap() <= send["endTimeUnixNano"].as_str().unwrap());
    let failed = all.iter().find(|span| failed(span)).unwrap();
    assert_eq!((&failed["status"]["code"], &failed["name"]), (&2.into(), &"send away".into()), "{failed:#}");
    assert!(!all.iter().any(|span| span.to_string().contains("secret-path")), "{all:#?}");
    assert!(!all.iter().any(|span| attribute(span, "messaging.message.id") == Some("2")), "it belongs to no trace");

    let sent = |outcome: Option<&str>, destination: &str| {
        let metric = metric(&got, "messaging.client.sent.messages")?;
        let points = metric["sum"]["dataPoints"].as_array().unwrap().clone();
        let point = points.into_iter().find(|point| {
            attribute(point, "posthaste.destination") == Some(destination) && attribute(point, "error.type") == outcome
        })?;
        Some(point["asInt"].as_str().unwrap().to_owned())
    };
    until("metrics have told of it", || sent(None, "good").as_deref() == Some("2"));
    // They are settled a moment later.
    let delivered =
        || metric(&got, "posthaste_delivered_total").is_some_and(|told| told["sum"]["dataPoints"][0]["asInt"] == "2");
    until("they are counted as delivered", delivered);
    let duration = metric(&got, "messaging.process.duration").unwrap();
    assert_eq!((&duration["unit"], &duration["histogram"]["aggregationTemporality"]), (&"s".into(), &2.into()));
    let point = &duration["histogram"]["dataPoints"][0];
    assert_eq!(point["bucketCounts"].as_array().unwrap().len(), point["explicitBounds"].as_array().unwrap().len() + 1);
    assert!(metric(&got, "posthaste_build_info").is_some());
    relay.signal("-HUP");
    let (status, _, said) = relay.end();
    assert!(status == Some(0) && said.contains("SIGHUP") && !said.contains("not to be told"), "{said}");
    let got = got.lock().unwrap();
    for (path, headers, body) in &*got {
        assert!(
            headers.contains("x-api-key: not to be told") && headers.contains("content-type: application/json"),
            "{path}"
        );
        let resource = &body[if path == "/v1/traces" { "resourceSpans" } else { "resourceMetrics" }][0]["resource"];
        assert_eq!(attribute(resource, "service.name"), Some("shop-relay"));
    }
}

#[test]
fn a_collector_that_is_away_holds_nothing_up() {
    let (refusing, _) = receiver("503 Service Unavailable");
    for collector in [refusing, SocketAddr::from(([127, 0, 0, 1], 1))] {
        let here = Place::with(&format!(
            "[relay]\npoll_interval = \"50ms\"\n[http]\nlisten = \"off\"\n[telemetry]\notlp = \"http://{collector}\"\ninterval = \"100ms\"\n"
        ));
        let mut relay = here.start(&["relay"]);
        relay.says("traces and metrics do not arrive");
        here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
        here.until("it is delivered", |here| here.json(&["stats", "--output", "json"])["done"] == 1);
        relay.terminate();
        let (status, _, said) = relay.end();
        assert_eq!((status, said.matches("do not arrive").count()), (Some(0), 1), "{said}");
    }
}

#[test]
fn headers_that_somebody_on_the_way_could_read_are_warned_of() {
    const KEY: &str = "{ x-api-key = \"env:COLLECTOR_KEY\" }";
    // Nobody is at the first of these, ever.
    for (collector, headers, is_warned) in
        [("192.0.2.1:4318", KEY, true), ("192.0.2.1:4318", "{}", false), ("127.0.0.1:1", KEY, false)]
    {
        let here = Place::with(&format!(
            "[http]\nlisten = \"off\"\n[telemetry]\notlp = \"http://{collector}\"\nheaders = {headers}\n"
        ))
        .variable("COLLECTOR_KEY", "not to be told");
        let mut relay = here.start(&["relay"]);
        relay.says("delivering");
        assert_eq!(relay.said().contains("without encryption"), is_warned, "{collector} {headers}: {}", relay.said());
        assert!(!relay.said().contains("not to be told"), "{}", relay.said());
    }
}

#[test]
fn what_is_wrong_with_it_is_said() {
    for (settings, wrong) in [
        ("otlp = \"localhost:4318\"", "telemetry.otlp: this is no address such as"),
        ("otlp = \"https://collector.example\"", "for https, send to a collector of your own"),
        (
            "otlp = \"http://x\"\nheaders = { authorization = \"Bearer me\" }",
            "telemetry.headers.authorization: a secret does not stand here",
        ),
        ("endpoint = \"http://x\"", "telemetry.endpoint"),
        ("otlp = \"http://shop:hunter2@collector\"", "telemetry.otlp: a secret does not stand here"),
        ("otlp = \"env:COLLECTOR\"", "give what the collector wants to know as telemetry.headers"),
        ("otlp = \"env:HTTPS_COLLECTOR\"", "telemetry.otlp: this is no address such as"),
    ] {
        let here = Place::with(&format!("[telemetry]\n{settings}\n"))
            .variable("COLLECTOR", "http://shop:hunter2@collector")
            .variable("HTTPS_COLLECTOR", "https://hunter2@collector");
        let error = here.fails(3, &["relay"]);
        assert!(error.contains(wrong) && !error.contains("hunter2"), "{settings}: {error}");
    }
}
