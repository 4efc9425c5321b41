//! Traces across an outbox, with the SDK of OpenTelemetry and its exporter in memory.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod api;
mod headers;
#[cfg(feature = "tracing")]
mod in_tracing;

use std::time::Duration;

use opentelemetry::trace::{FutureExt, SpanContext, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use posthaste_core::listener::AnyListener;
use posthaste_core::store::{AdminStore, Counts};
use posthaste_core::{Event, EventBuilder, IntoEvent, MemoryStore, Options, Outbox};
use posthaste_opentelemetry::TraceContext;

/// Makes spans, and has those that have ended.
struct Spans {
    provider: SdkTracerProvider,
    exporter: InMemorySpanExporter,
}

impl Spans {
    fn new() -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        Self { provider, exporter }
    }

    /// A trace context that makes its spans here.
    fn context(&self) -> TraceContext {
        TraceContext::new().with_provider(&self.provider)
    }

    /// The context of a new trace, in its first span.
    fn request(&self, name: &'static str) -> Context {
        Context::new().with_span(self.provider.tracer("shop").start_with_context(name, &Context::new()))
    }

    fn named(&self, name: &str) -> Vec<SpanData> {
        let spans = self.exporter.get_finished_spans().unwrap();
        spans.into_iter().filter(|span| span.name == name).collect()
    }

    /// The only span of that name.
    fn one(&self, name: &str) -> SpanData {
        let mut spans = self.named(name);
        assert_eq!(spans.len(), 1, "{name}: {:?}", self.exporter.get_finished_spans().unwrap());
        spans.remove(0)
    }

    /// The spans of deliveries of orders that were placed.
    fn deliveries(&self) -> Vec<SpanData> {
        self.named("process Order/OrderPlaced")
    }
}

fn attribute(span: &SpanData, key: &str) -> Option<Value> {
    span.attributes.iter().find(|attribute| attribute.key.as_str() == key).map(|attribute| attribute.value.clone())
}

fn text(span: &SpanData, key: &str) -> String {
    attribute(span, key).map(|value| value.to_string()).unwrap_or_default()
}

/// Asserts that a span belongs to the trace of another, and has it as its parent.
#[track_caller]
fn assert_child(span: &SpanData, parent: &SpanContext) {
    assert_eq!(span.span_context.trace_id(), parent.trace_id(), "not one trace: {span:?}");
    assert_eq!(span.parent_span_id, parent.span_id(), "another parent: {span:?}");
}

fn span_of(context: &Context) -> SpanContext {
    context.span().span_context().clone()
}

fn placed() -> EventBuilder {
    Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")
}

async fn write(outbox: &Outbox<MemoryStore>, event: impl IntoEvent + Send) {
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event).await.unwrap();
    tx.commit().await.unwrap();
}

/// Writes an event in a context.
async fn write_in(context: &Context, outbox: &Outbox<MemoryStore>, event: impl IntoEvent + Send) {
    write(outbox, event).with_context(context.clone()).await;
}

/// An outbox that writes only, so that another one has to claim what it wrote.
async fn writer(store: &MemoryStore, trace: &TraceContext) -> Outbox<MemoryStore> {
    Outbox::writer_only(store.clone()).hook(trace.clone()).start().await.unwrap()
}

/// An outbox that writes and delivers.
async fn outbox(store: &MemoryStore, trace: &TraceContext, listener: impl Into<AnyListener>) -> Outbox<MemoryStore> {
    let builder = Outbox::builder(store.clone()).hook(trace.clone()).instrument(trace.clone());
    let options = Options { workers: 2, ..Options::default() };
    builder.options(options).listen_all(listener).start().await.unwrap()
}

/// Waits until the table is as it should be. Time is paused in these tests, so waiting costs nothing.
async fn until(store: &MemoryStore, what: &str, wanted: impl Fn(Counts) -> bool) {
    for _ in 0..100_000 {
        if wanted(store.counts().await.unwrap()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain until {what}: {:?}", store.counts().await.unwrap());
}
