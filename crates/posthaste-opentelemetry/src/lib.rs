//! One trace from the request that wrote an event to its delivery, also when the process dies in between and another machine
//! delivers: the context of the trace is kept with the event.
//!
//! ```
//! use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
//! use opentelemetry::{Context, global};
//! use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
//! use posthaste_core::{Delivery, Event, MemoryStore, Outbox};
//! use posthaste_opentelemetry::TraceContext;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! // As every program that makes spans does. With an exporter to a collector, in the place of this one.
//! let exporter = InMemorySpanExporter::default();
//! let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
//! global::set_tracer_provider(provider.clone());
//!
//! let trace = TraceContext::new();
//! let outbox = Outbox::builder(MemoryStore::new())
//!     .hook(trace.clone()) // keeps the context with what is written
//!     .instrument(trace) // and goes on from it around every listener
//!     .listen("Order", "OrderPlaced", |_: Delivery| async { /* spans made here, and requests sent, belong to the trace */ })
//!     .start()
//!     .await?;
//!
//! let request = Context::current_with_span(provider.tracer("shop").start("POST /orders"));
//! let place = async {
//!     let mut tx = outbox.begin().await?;
//!     tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")).await?;
//!     tx.commit().await?;
//!     anyhow::Ok(())
//! };
//! place.with_context(request.clone()).await?;
//! outbox.shutdown().await;
//!
//! let spans = exporter.get_finished_spans()?;
//! let delivery = spans.iter().find(|span| span.name == "process Order/OrderPlaced").expect("it was delivered");
//! assert_eq!(delivery.span_context.trace_id(), request.span().span_context().trace_id());
//! assert_eq!(delivery.parent_span_id, request.span().span_context().span_id());
//! # Ok(())
//! # }
//! ```
//!
//! # What is kept
//!
//! The headers `traceparent` and `tracestate` of the W3C's recommendation, and [if asked to](TraceContext::with_baggage)
//! `baggage`. An event that has a `traceparent` already keeps it, with all its other headers: so an event that is passed on
//! from elsewhere can stay in its trace. A `tracestate` without one belongs to no trace, and is dropped when a `traceparent` is
//! added. What would be over a limit is left out; a write never fails because of it. Where no trace is under way, nothing is
//! added.
//!
//! # Which context, and which spans
//!
//! At the write it is [`Context::current`], or that of the current span of `tracing`.
//!
//! A delivery is a span of `tracing` where there is a subscriber with a layer of tracing-opentelemetry that wants it (level
//! INFO, target `posthaste_opentelemetry`), so that what is logged inside is in it; elsewhere it is a span of the global
//! tracer provider, or of [one of your own](TraceContext::with_provider). The layer needs the feature `tracing`, which is on by
//! default. Inside a listener, both [`Context::current`] and the current span of `tracing` lead on.
//!
//! The span is of the kind *consumer*, follows the conventions for messaging, and is called `process Order/OrderPlaced`, or
//! `process OrderPlaced` for an event without an aggregate. Each attempt is a span of its own, with the same parent:
//!
//! | attribute | |
//! |---|---|
//! | `messaging.system` | `posthaste` |
//! | `messaging.operation.type`, `messaging.operation.name` | `process` |
//! | `messaging.destination.name` | `Order/OrderPlaced` |
//! | `messaging.message.id` | the id of the event |
//! | `messaging.batch.message_count` | how many events a batch listener got at once, if more than one |
//! | `posthaste.attempt` | which attempt this is; the first is 1 |
//! | `posthaste.path` | `hot` or `cold` |
//! | `posthaste.outcome` | `done`, `later` (given back, or wanted later), `retry`, `dead`, or `cut short` by a shutdown |
//!
//! The status of the span is OK for what is done, and an error with its text for what is tried again or dead. Payloads, keys and
//! tenants are not in it.
//!
//! A batch listener that gets several events at once has one span for all of them, the root of a trace of its own, with a link to
//! the context of each; an event of the span tells of each one that was not done. [`TraceContext::context_of`] gives the
//! context of a single one, for spans of your own.
//!
//! A delivery without a context, or with one that cannot be read, has no span at all, and goes on as ever.

mod span;
mod w3c;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::Context;
use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{Span, TraceContextExt, Tracer, TracerProvider};
use posthaste_core::hook::HookError;
use posthaste_core::instrument::{Instrument, Running};
use posthaste_core::store::NewRow;
use posthaste_core::{Delivery, Event, WriteHook};
use tracing::debug;

use span::DeliverySpan;
use w3c::Headers;

/// The name under which spans are made.
const SCOPE: &str = "posthaste";

/// Keeps the context of a trace with every event that is written, and goes on from it when the event is delivered.
///
/// A [`WriteHook`] where events are written, and an [`Instrument`] where they are delivered; a process that does only one of
/// both needs only that one. Cheap to clone. See the [crate](self) for an example and for what spans look like.
#[derive(Clone, Default)]
pub struct TraceContext {
    links: bool,
    baggage: bool,
    tracer: Option<Arc<BoxedTracer>>,
    /// Whether a header that cannot be read was logged.
    told: Arc<AtomicBool>,
}

impl TraceContext {
    /// With the span of the write as the parent of every delivery, and without baggage.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes each delivery the root of a trace of its own, with a link to the span of the write. Default: one trace, since it
    /// shows the whole way at one glance. For events that are delivered long after the request, or whose deliveries set off
    /// much more than the request did.
    #[must_use]
    pub fn with_links(mut self) -> Self {
        self.links = true;
        self
    }

    /// Also keeps the baggage, up to 8192 bytes of it, and has it in the context of the listener. Default: not, since it is made
    /// for the wire, and may hold what should not be in a table.
    #[must_use]
    pub fn with_baggage(mut self) -> Self {
        self.baggage = true;
        self
    }

    /// Makes spans with this provider. Default: a layer of tracing-opentelemetry if there is one, else the global provider.
    #[must_use]
    pub fn with_provider<P>(mut self, provider: &P) -> Self
    where
        P: TracerProvider<Tracer: Tracer<Span: Span + Send + Sync + 'static> + Send + Sync + 'static>,
    {
        self.tracer = Some(Arc::new(BoxedTracer::new(Box::new(provider.tracer(SCOPE)))));
        self
    }

    /// The context that is kept with an event, as a remote one: for spans of your own, such as one for each event of a batch.
    /// Nothing if there is none, or none that can be read.
    ///
    /// ```
    /// use opentelemetry::trace::TraceContextExt;
    /// use posthaste_core::Event;
    /// use posthaste_opentelemetry::TraceContext;
    ///
    /// let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let event = Event::builder("OrderPlaced").header("traceparent", parent).json_text("{}").build()?;
    /// let context = TraceContext::new().context_of(&event).expect("it has one");
    /// assert_eq!(context.span().span_context().trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
    /// # Ok::<(), posthaste_core::event::Error>(())
    /// ```
    pub fn context_of(&self, event: &Event) -> Option<Context> {
        w3c::stored(event, self.baggage).unwrap_or_else(|malformed| {
            if !self.told.swap(true, Ordering::Relaxed) {
                let traceparent: String = malformed.chars().take(64).collect();
                debug!(event_id = %event.id(), ?traceparent, "traceparent cannot be read; it, and others like it, are ignored");
            }
            None
        })
    }
}

impl WriteHook for TraceContext {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        let Some(headers) = Headers::of(&current(), self.baggage) else {
            return Ok(());
        };
        for row in rows {
            if w3c::header(&row.event, w3c::TRACEPARENT).is_some() {
                continue;
            }
            match headers.added_to(&row.event) {
                Some(event) => row.event = event,
                None => {
                    debug!(event_id = %row.event.id(), "headers are full; the event is written without a trace context");
                }
            }
        }
        Ok(())
    }
}

impl Instrument for TraceContext {
    fn begin(&self, events: &[Delivery]) -> Option<Arc<dyn Running>> {
        let contexts: Vec<Option<Context>> = events.iter().map(|event| self.context_of(event)).collect();
        if contexts.iter().all(Option::is_none) {
            return None;
        }
        Some(Arc::new(DeliverySpan::start(self.tracer.as_deref(), events, &contexts, self.links)))
    }
}

/// The context that events are written in. A layer of tracing-opentelemetry makes that of its span the current one, unless it
/// is told not to.
fn current() -> Context {
    let context = Context::current();
    if context.has_active_span() { context } else { span::of_tracing().unwrap_or(context) }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceContext")
            .field("links", &self.links)
            .field("baggage", &self.baggage)
            .field("own_provider", &self.tracer.is_some())
            .finish_non_exhaustive()
    }
}
