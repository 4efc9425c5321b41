//! What is kept with an event, and what is made of it.

use std::io::Write;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use opentelemetry::baggage::{Baggage, BaggageExt};
use opentelemetry::trace::{SpanContext, TraceContextExt, TraceFlags, TraceState};
use opentelemetry::{Context, SpanId, TraceId};
use posthaste_core::event::limit;
use posthaste_core::store::{AdminStore, Record};
use posthaste_core::{Delivery, MemoryStore};
use posthaste_opentelemetry::TraceContext;
use tracing::Level;

use crate::{Spans, assert_child, outbox, placed, span_of, until, write, write_in, writer};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A context as it may come from elsewhere.
fn remote(state: &str) -> Context {
    let (trace_id, span_id) = (TraceId::from_hex(TRACE).unwrap(), SpanId::from_hex(SPAN).unwrap());
    let state = TraceState::from_str(state).unwrap();
    Context::new().with_remote_span_context(SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, true, state))
}

async fn only_row(store: &MemoryStore) -> Record {
    let mut rows = store.list(&Default::default(), &Default::default()).await.unwrap();
    assert_eq!(rows.len(), 1);
    rows.remove(0)
}

fn header(row: &Record, key: &str) -> Option<String> {
    let event = row.event.as_ref().expect("it can be decoded");
    event.header(key).map(str::to_owned)
}

#[tokio::test]
async fn the_context_of_the_write_is_kept() {
    let (store, trace) = (MemoryStore::new(), TraceContext::new());
    write_in(&remote("vendor=1"), &writer(&store, &trace).await, placed().header("region", "eu-1")).await;
    let row = only_row(&store).await;
    assert_eq!(header(&row, "traceparent"), Some(format!("00-{TRACE}-{SPAN}-01")));
    assert_eq!(header(&row, "tracestate"), Some("vendor=1".into()));
    assert_eq!(header(&row, "region"), Some("eu-1".into()));
}

#[tokio::test]
async fn without_a_context_nothing_is_added_and_no_span_made() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context(), |_: Delivery| async {
        assert!(!Context::current().has_active_span());
    })
    .await;
    write(&outbox, placed()).await;
    outbox.shutdown().await;
    let row = only_row(&store).await;
    assert_eq!(row.event.as_ref().unwrap().headers().len(), 0);
    assert_eq!(store.counts().await.unwrap().done, 1);
    assert!(spans.exporter.get_finished_spans().unwrap().is_empty());
}

#[tokio::test]
async fn an_event_keeps_the_traceparent_that_it_has() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context(), |_: Delivery| async {}).await;
    let given = format!("00-{TRACE}-{SPAN}-01");
    write_in(&spans.request("POST /orders"), &outbox, placed().header("traceparent", &given)).await;
    outbox.shutdown().await;
    let row = only_row(&store).await;
    assert_eq!((header(&row, "traceparent"), header(&row, "tracestate")), (Some(given), None));
    assert_child(&spans.deliveries()[0], &span_of(&remote("")));
}

#[tokio::test(start_paused = true)]
async fn a_malformed_traceparent_is_ignored_and_logged_once() {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let log = Log::default();
    let writer = {
        let log = log.clone();
        move || log.clone()
    };
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(writer).finish();
    let _logging = tracing::subscriber::set_default(subscriber);

    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context(), |_: Delivery| async {}).await;
    for malformed in ["nonsense", "00-0-0-0", ""] {
        write(&outbox, placed().header("traceparent", malformed)).await;
    }
    until(&store, "all are done", |counts| counts.done == 3).await;
    outbox.shutdown().await;
    assert!(spans.exporter.get_finished_spans().unwrap().is_empty());
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("traceparent cannot be read")).collect();
    assert!(matches!(lines[..], [line] if line.contains("DEBUG") && line.contains("nonsense")), "{log}");
}

#[tokio::test]
async fn a_tracestate_that_is_too_long_is_left_out() {
    let (store, trace) = (MemoryStore::new(), TraceContext::new());
    let state: Vec<String> = (0..20).map(|n| format!("vendor{n}={}", "x".repeat(50))).collect();
    write_in(&remote(&state.join(",")), &writer(&store, &trace).await, placed()).await;
    let row = only_row(&store).await;
    assert_eq!(header(&row, "traceparent"), Some(format!("00-{TRACE}-{SPAN}-01")));
    assert_eq!(header(&row, "tracestate"), None);
}

#[tokio::test]
async fn a_write_whose_headers_are_full_succeeds() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context(), |_: Delivery| async {}).await;
    let full = "x".repeat(limit::HEADERS - r#"{"note":""}"#.len());
    write_in(&remote("vendor=1"), &outbox, placed().header("note", &full)).await;
    outbox.shutdown().await;
    let row = only_row(&store).await;
    assert_eq!((header(&row, "note"), header(&row, "traceparent")), (Some(full), None));
    assert_eq!(store.counts().await.unwrap().done, 1);
}

#[tokio::test]
async fn baggage_goes_along_if_asked_to() {
    let mut baggage = Baggage::new();
    baggage.insert("plan", "gold & silver");
    let context = remote("").with_baggage(baggage);
    for (trace, expected) in [
        (TraceContext::new(), None),
        (TraceContext::new().with_baggage(), Some("gold & silver")),
        (TraceContext::new().with_baggage().with_links(), Some("gold & silver")),
    ] {
        let (store, spans) = (MemoryStore::new(), Spans::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let listener = {
            let seen = seen.clone();
            move |_: Delivery| {
                let plan = Context::current().baggage().get("plan").map(|plan| plan.as_str().to_owned());
                seen.lock().unwrap().push(plan);
                async {}
            }
        };
        let outbox = outbox(&store, &trace.with_provider(&spans.provider), listener).await;
        write_in(&context, &outbox, placed()).await;
        outbox.shutdown().await;
        assert_eq!(*seen.lock().unwrap(), [expected.map(str::to_owned)]);
        assert_eq!(header(&only_row(&store).await, "baggage").is_some(), expected.is_some());
    }
}

#[tokio::test]
async fn what_is_not_sampled_at_the_write_is_not_sampled_at_the_delivery() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context(), |_: Delivery| async {
        // The trace goes on all the same, for whoever asks.
        assert_eq!(Context::current().span().span_context().trace_id().to_string(), TRACE);
    })
    .await;
    write(&outbox, placed().header("traceparent", format!("00-{TRACE}-{SPAN}-00"))).await;
    outbox.shutdown().await;
    assert_eq!(store.counts().await.unwrap().done, 1);
    assert!(spans.exporter.get_finished_spans().unwrap().is_empty());
}
