//! The span of a delivery.

use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::baggage::BaggageExt;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{Link, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use posthaste_core::Delivery;
use posthaste_core::event::GLOBAL;
use posthaste_core::instrument::Running;
use posthaste_core::listener::Path;
use posthaste_core::store::Action;

use crate::SCOPE;

const SYSTEM: &str = "messaging.system";
const OPERATION_TYPE: &str = "messaging.operation.type";
const OPERATION_NAME: &str = "messaging.operation.name";
const DESTINATION: &str = "messaging.destination.name";
const MESSAGE_ID: &str = "messaging.message.id";
const BATCH: &str = "messaging.batch.message_count";
const ERROR_TYPE: &str = "error.type";
const ATTEMPT: &str = "posthaste.attempt";
const PATH: &str = "posthaste.path";
const OUTCOME: &str = "posthaste.outcome";
const ERROR: &str = "posthaste.error";

/// Characters of an error's text: some have the whole answer of a server in them.
const LONGEST_ERROR: usize = 1000;

/// The span of a delivery that is under way.
pub(crate) struct DeliverySpan {
    /// The context in which the listener runs. It holds the span.
    context: Context,
    /// The same span, if it is one of `tracing`.
    in_tracing: tracing::Span,
    events: Vec<Delivery>,
    ended: AtomicBool,
}

/// What a span is made of.
struct Plan {
    name: String,
    destination: Option<String>,
    parent: Context,
    links: Vec<Link>,
}

impl DeliverySpan {
    /// Starts the span, as a child of the context of a single event, or with links to the contexts of all.
    pub(crate) fn start(
        tracer: Option<&BoxedTracer>,
        events: &[Delivery],
        contexts: &[Option<Context>],
        links: bool,
    ) -> Self {
        let plan = Plan::new(events, contexts, links);
        let (in_tracing, context) = match tracer {
            Some(tracer) => (tracing::Span::none(), plan.start(tracer, events)),
            None => plan
                .start_in_tracing(events)
                .unwrap_or_else(|| (tracing::Span::none(), plan.start(&global::tracer(SCOPE), events))),
        };
        Self { context, in_tracing, events: events.to_vec(), ended: AtomicBool::new(false) }
    }

    fn conclude(&self, outcome: &'static str, error: Option<String>) {
        self.ended.store(true, Ordering::Relaxed);
        let span = self.context.span();
        span.set_attribute(KeyValue::new(OUTCOME, outcome));
        match (outcome, error) {
            (_, Some(error)) => {
                // Of what kind it is, only its text says; this is what the conventions want then.
                span.set_attribute(KeyValue::new(ERROR_TYPE, "_OTHER"));
                span.set_status(Status::error(error));
            }
            ("done", None) => span.set_status(Status::Ok),
            _ => {}
        }
        // One of `tracing` would be ended by its layer, but only when nobody holds it any more: a connection on a thread of its
        // own may hold it until its next statement, and the process be gone by then.
        span.end();
    }

    /// Tells of each event of a batch that was not done, and sums up: with the worst of the outcomes.
    fn conclude_batch(&self, actions: &[Action]) {
        let span = self.context.span();
        let (mut worst, mut failed, mut first) = ("done", 0, None);
        for (event, action) in self.events.iter().zip(actions) {
            let (outcome, error) = outcome(action);
            if outcome == "done" {
                continue;
            }
            let mut attributes =
                vec![KeyValue::new(MESSAGE_ID, event.id().to_string()), KeyValue::new(OUTCOME, outcome)];
            if let Some(error) = error {
                attributes.push(KeyValue::new(ERROR, error.clone()));
                failed += 1;
                first.get_or_insert(error);
            }
            span.add_event(OUTCOME, attributes);
            let rank = |outcome| ["done", "later", "retry", "dead"].iter().position(|other| *other == outcome);
            if rank(outcome) > rank(worst) {
                worst = outcome;
            }
        }
        self.conclude(worst, first.map(|first| format!("{failed} of {} events failed: {first}", actions.len())));
    }
}

impl Running for DeliverySpan {
    fn enter(&self, run: &mut dyn FnMut()) {
        let _current = self.context.clone().attach();
        self.in_tracing.in_scope(run);
    }

    fn end(&self, actions: &[Action]) {
        match actions {
            [action] => {
                let (outcome, error) = outcome(action);
                self.conclude(outcome, error);
            }
            _ => self.conclude_batch(actions),
        }
    }
}

impl Drop for DeliverySpan {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Relaxed) {
            self.conclude("cut short", Some("the outbox was shut down before the delivery had ended".to_owned()));
        }
    }
}

/// The outcome in a word, and the error that led to it.
fn outcome(action: &Action) -> (&'static str, Option<String>) {
    let text = |error: &str| Some(error.chars().take(LONGEST_ERROR).collect());
    match action {
        Action::Done => ("done", None),
        Action::Defer { .. } | Action::Release => ("later", None),
        Action::Retry { error, .. } => ("retry", text(error)),
        Action::Dead { error, .. } => ("dead", text(error)),
    }
}

impl Plan {
    fn new(events: &[Delivery], contexts: &[Option<Context>], links: bool) -> Self {
        let mut destinations = events.iter().map(destination);
        // Several in one batch have no name in common.
        let destination = destinations.next().filter(|first| destinations.all(|other| other == *first));
        let name = destination.as_ref().map_or_else(|| "process".to_owned(), |name| format!("process {name}"));
        let link = |(event, context): (&Delivery, &Option<Context>)| {
            let attributes = vec![KeyValue::new(MESSAGE_ID, event.id().to_string()), attempt(event)];
            context.as_ref().map(|context| Link::new(context.span().span_context().clone(), attributes, 0))
        };
        match contexts {
            [Some(context)] if !links => Self { name, destination, parent: context.clone(), links: Vec::new() },
            [Some(context)] => {
                let root = Context::new();
                let baggage = context.baggage();
                let parent = if baggage.is_empty() { root } else { root.with_baggage(copied(baggage)) };
                Self { name, destination, parent, links: events.iter().zip(contexts).filter_map(link).collect() }
            }
            _ => {
                let links = events.iter().zip(contexts).filter_map(link).collect();
                Self { name, destination, parent: Context::new(), links }
            }
        }
    }

    /// Starts it as a span of OpenTelemetry.
    fn start(&self, tracer: &impl Tracer<Span: Send + Sync + 'static>, events: &[Delivery]) -> Context {
        let mut attributes = vec![
            KeyValue::new(SYSTEM, SCOPE),
            KeyValue::new(OPERATION_TYPE, "process"),
            KeyValue::new(OPERATION_NAME, "process"),
        ];
        attributes.extend(self.destination.clone().map(|name| KeyValue::new(DESTINATION, name)));
        match events {
            [event] => attributes.extend([
                KeyValue::new(MESSAGE_ID, event.id().to_string()),
                attempt(event),
                KeyValue::new(PATH, path(event)),
            ]),
            _ => attributes.push(KeyValue::new(BATCH, count(events))),
        }
        let builder = SpanBuilder::from_name(self.name.clone())
            .with_kind(SpanKind::Consumer)
            .with_attributes(attributes)
            .with_links(self.links.clone());
        self.parent.with_span(tracer.build_with_context(builder, &self.parent))
    }

    /// Starts it as a span of `tracing`, if a layer makes one of OpenTelemetry of it.
    #[cfg(feature = "tracing")]
    fn start_in_tracing(&self, events: &[Delivery]) -> Option<(tracing::Span, Context)> {
        use tracing_opentelemetry::OpenTelemetrySpanExt;

        let single = match events {
            [event] => Some(event),
            _ => None,
        };
        let span = tracing::info_span!(
            target: "posthaste_opentelemetry",
            parent: None,
            "delivery",
            otel.name = self.name,
            otel.kind = "consumer",
            messaging.system = SCOPE,
            "messaging.operation.type" = "process",
            messaging.operation.name = "process",
            messaging.destination.name = self.destination,
            messaging.message.id = single.map(|event| event.id().as_str()),
            messaging.batch.message_count = single.is_none().then(|| count(events)),
            posthaste.attempt = single.map(|event| i64::from(event.attempt())),
            posthaste.path = single.map(path),
        );
        // Refused where there is no layer; then there is no context either.
        let _ = span.set_parent(self.parent.clone());
        for link in &self.links {
            span.add_link_with_attributes(link.span_context.clone(), link.attributes.clone());
        }
        let context = span.context();
        context.has_active_span().then_some((span, context))
    }

    #[cfg(not(feature = "tracing"))]
    fn start_in_tracing(&self, _: &[Delivery]) -> Option<(tracing::Span, Context)> {
        None
    }
}

/// The context of the current span of `tracing`, if a layer has one for it.
pub(crate) fn of_tracing() -> Option<Context> {
    #[cfg(feature = "tracing")]
    {
        use tracing_opentelemetry::OpenTelemetrySpanExt;
        Some(tracing::Span::current().context())
    }
    #[cfg(not(feature = "tracing"))]
    None
}

/// Where an event goes to, as a name of which there are few.
fn destination(event: &Delivery) -> String {
    match event.aggregate_type() {
        GLOBAL => event.event_type().to_owned(),
        aggregate_type => format!("{aggregate_type}/{}", event.event_type()),
    }
}

fn attempt(event: &Delivery) -> KeyValue {
    KeyValue::new(ATTEMPT, i64::from(event.attempt()))
}

fn path(event: &Delivery) -> &'static str {
    match event.path() {
        Path::Hot => "hot",
        _ => "cold",
    }
}

fn count(events: &[Delivery]) -> i64 {
    i64::try_from(events.len()).unwrap_or(i64::MAX)
}

fn copied(baggage: &opentelemetry::baggage::Baggage) -> opentelemetry::baggage::Baggage {
    baggage.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}
