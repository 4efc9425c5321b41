//! With `tracing` and a layer of tracing-opentelemetry.

use std::sync::Arc;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TracerProvider};
use opentelemetry::{Context, Value};
use posthaste_core::listener::{batch, blocking};
use posthaste_core::{Delivery, Failure, MemoryStore, Outcome};
use posthaste_opentelemetry::TraceContext;
use tokio::sync::Barrier;
use tracing::subscriber::DefaultGuard;
use tracing::{Instrument, Level, Span, info, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;

use crate::{Spans, assert_child, attribute, outbox, placed, span_of, text, until, write, writer};

/// Has spans of `tracing` end up here, on this thread.
fn subscribed(spans: &Spans, activation: bool, filter: Targets) -> DefaultGuard {
    let layer = tracing_opentelemetry::layer().with_tracer(spans.provider.tracer("shop"));
    let layer = layer.with_context_activation(activation).with_filter(filter);
    tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
}

fn all() -> Targets {
    Targets::new().with_default(Level::INFO)
}

/// Writes in a span of `tracing`, and gives its context.
async fn write_spanned(
    outbox: &posthaste_core::Outbox<MemoryStore>,
    event: posthaste_core::EventBuilder,
) -> SpanContext {
    let request = info_span!("POST /orders");
    write(outbox, event).instrument(request.clone()).await;
    span_of(&request.context())
}

#[tokio::test(start_paused = true)]
async fn the_trace_of_the_write_goes_on_hot_and_cold() {
    for (path, activation) in [("hot", true), ("cold", true), ("hot", false), ("cold", false)] {
        let (store, spans, trace) = (MemoryStore::new(), Spans::new(), TraceContext::new());
        let _subscribed = subscribed(&spans, activation, all());
        let mut request = None;
        if path == "cold" {
            request = Some(write_spanned(&writer(&store, &trace).await, placed().id("e-1")).await);
        }
        let outbox = outbox(&store, &trace, |_: Delivery| async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            info!("sending");
            info_span!("mail").in_scope(|| ());
            // For whoever uses the API.
            assert_eq!(span_of(&Context::current()), span_of(&Span::current().context()));
        })
        .await;
        if path == "hot" {
            request = Some(write_spanned(&outbox, placed().id("e-1")).await);
        }
        until(&store, "it is done", |counts| counts.done == 1).await;
        outbox.shutdown().await;

        let delivery = spans.one("process Order/OrderPlaced");
        assert_child(&delivery, &request.unwrap());
        assert_eq!((&delivery.span_kind, &delivery.status), (&SpanKind::Consumer, &Status::Ok));
        for (key, value) in [
            ("messaging.system", "posthaste"),
            ("messaging.operation.type", "process"),
            ("messaging.operation.name", "process"),
            ("messaging.destination.name", "Order/OrderPlaced"),
            ("messaging.message.id", "e-1"),
            ("posthaste.path", path),
            ("posthaste.outcome", "done"),
        ] {
            assert_eq!(text(&delivery, key), value, "{key}");
        }
        assert_eq!(attribute(&delivery, "posthaste.attempt"), Some(Value::I64(1)));
        assert_eq!(attribute(&delivery, "messaging.batch.message_count"), None);
        assert_child(&spans.one("mail"), &delivery.span_context);
        // What is logged in the listener is in the span.
        assert!(delivery.events.iter().any(|event| event.name == "sending"), "{:?}", delivery.events);
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_a_span_with_what_became_of_it() {
    let (store, spans, trace) = (MemoryStore::new(), Spans::new(), TraceContext::new());
    let _subscribed = subscribed(&spans, true, all());
    let listener = |event: Delivery| async move {
        if event.attempt() == 1 {
            Err::<(), _>(Failure::from("busy"))
        } else {
            Err(Failure::permanent("no such address"))
        }
    };
    let outbox = outbox(&store, &trace, listener).await;
    let request = write_spanned(&outbox, placed()).await;
    until(&store, "it is dead", |counts| counts.dead == 1).await;
    outbox.shutdown().await;
    let [retry, dead] = &spans.deliveries()[..] else { panic!("two deliveries") };
    assert_eq!((text(retry, "posthaste.outcome"), &retry.status), ("retry".into(), &Status::error("busy")));
    assert_eq!((text(dead, "posthaste.outcome"), &dead.status), ("dead".into(), &Status::error("no such address")));
    assert_eq!(attribute(dead, "posthaste.attempt"), Some(Value::I64(2)));
    for (span, logged) in [(retry, "delivery failed"), (dead, "event is dead")] {
        assert_child(span, &request);
        assert!(span.events.iter().any(|event| event.name == logged), "{:?}", span.events);
    }
}

#[tokio::test(start_paused = true)]
async fn links_and_batches() {
    let (store, spans, trace) = (MemoryStore::new(), Spans::new(), TraceContext::new().with_links());
    let _subscribed = subscribed(&spans, true, all());
    let writer = writer(&store, &trace).await;
    let requests = [write_spanned(&writer, placed()).await, write_spanned(&writer, placed()).await];
    let listener = batch(|events: Vec<Delivery>| async move { events.iter().map(|_| Ok(Outcome::Done)).collect() });
    let outbox = outbox(&store, &trace, listener).await;
    until(&store, "both are done", |counts| counts.done == 2).await;
    let single = write_spanned(&outbox, placed()).await;
    until(&store, "the third is done", |counts| counts.done == 3).await;
    outbox.shutdown().await;

    let [both, one] = &spans.deliveries()[..] else { panic!("two deliveries") };
    let linked = |span: &opentelemetry_sdk::trace::SpanData| -> Vec<SpanId> {
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        span.links.iter().map(|link| link.span_context.span_id()).collect()
    };
    assert_eq!(linked(both), requests.map(|request| request.span_id()));
    assert_eq!(attribute(both, "messaging.batch.message_count"), Some(Value::I64(2)));
    assert_eq!(linked(one), [single.span_id()]);
}

#[tokio::test(start_paused = true)]
async fn traces_that_take_turns_on_a_thread_do_not_mix() {
    let (store, spans, trace) = (MemoryStore::new(), Spans::new(), TraceContext::new());
    let _subscribed = subscribed(&spans, true, all());
    let together = Arc::new(Barrier::new(2));
    let listener = move |event: Delivery| {
        let together = together.clone();
        async move {
            for _ in 0..50 {
                together.wait().await;
                info_span!("step", event = %event.id()).in_scope(|| ());
            }
        }
    };
    let outbox = outbox(&store, &trace, listener).await;
    let (first, second) = (placed().id("first"), placed().id("second"));
    let requests = [write_spanned(&outbox, first).await, write_spanned(&outbox, second).await];
    until(&store, "both are done", |counts| counts.done == 2).await;
    outbox.shutdown().await;
    let (steps, deliveries) = (spans.named("step"), spans.deliveries());
    assert_eq!((steps.len(), deliveries.len()), (100, 2));
    for (id, request) in ["first", "second"].into_iter().zip(&requests) {
        let delivery = deliveries.iter().find(|span| text(span, "messaging.message.id") == id).unwrap();
        assert_child(delivery, request);
        let own: Vec<_> = steps.iter().filter(|step| text(step, "event") == id).collect();
        assert_eq!(own.len(), 50);
        for step in own {
            assert_child(step, &delivery.span_context);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_span_is_filtered_out_the_trace_goes_on_below_it() {
    let (store, spans, trace) = (MemoryStore::new(), Spans::new(), TraceContext::new());
    let filter = all().with_target("posthaste_opentelemetry", LevelFilter::WARN);
    let _subscribed = subscribed(&spans, true, filter);
    let outbox = outbox(&store, &trace, |_: Delivery| async { info_span!("mail").in_scope(|| ()) }).await;
    let request = write_spanned(&outbox, placed()).await;
    until(&store, "it is done", |counts| counts.done == 1).await;
    outbox.shutdown().await;
    assert!(spans.deliveries().is_empty());
    assert_child(&spans.one("mail"), &request);
}

#[tokio::test(start_paused = true)]
async fn a_provider_of_its_own_comes_before_the_layer() {
    let (store, spans, elsewhere) = (MemoryStore::new(), Spans::new(), Spans::new());
    let _subscribed = subscribed(&spans, true, all());
    let outbox = outbox(&store, &elsewhere.context(), |_: Delivery| async { info_span!("mail").in_scope(|| ()) }).await;
    let request = write_spanned(&outbox, placed()).await;
    until(&store, "it is done", |counts| counts.done == 1).await;
    outbox.shutdown().await;
    let delivery = elsewhere.one("process Order/OrderPlaced");
    assert_child(&delivery, &request);
    assert!(spans.deliveries().is_empty());
    assert_child(&spans.one("mail"), &delivery.span_context);
}

#[tokio::test]
async fn a_blocking_listener_is_inside_too() {
    let (store, spans, trace) = (MemoryStore::new(), Spans::new(), TraceContext::new());
    let _subscribed = subscribed(&spans, true, all());
    let (tell, told) = std::sync::mpsc::channel();
    let listener =
        blocking(move |_: &Delivery| tell.send(span_of(&Context::current())).is_ok().then_some(()).ok_or("gone"));
    let outbox = outbox(&store, &trace, listener).await;
    write_spanned(&outbox, placed()).await;
    outbox.shutdown().await;
    assert_eq!(told.recv().unwrap(), spans.one("process Order/OrderPlaced").span_context);
}

#[tokio::test]
async fn the_span_ends_with_the_delivery_whoever_still_holds_it() {
    let (store, spans, trace) = (MemoryStore::new(), Spans::new(), TraceContext::new());
    let _subscribed = subscribed(&spans, true, all());
    let (tell, told) = std::sync::mpsc::channel();
    let listener = move |_: Delivery| {
        tell.send(Span::current()).unwrap();
        async {}
    };
    let outbox = outbox(&store, &trace, listener).await;
    let request = write_spanned(&outbox, placed()).await;
    outbox.shutdown().await;
    let held = told.recv().unwrap();
    assert_child(&spans.one("process Order/OrderPlaced"), &request);
    drop(held);
    assert_eq!(spans.deliveries().len(), 1);
}
