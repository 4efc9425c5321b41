//! Traces and metrics in the protocol of OpenTelemetry: JSON over HTTP, to a collector.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use metrics::Key;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceFlags, Tracer, TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, SpanId, Value, global};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span, SpanData, SpanProcessor};
use posthaste::opentelemetry::TraceContext;
use posthaste::publishers::Message;
use serde_json::{Value as Json, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info, warn};

use super::recorder::{Recorder, Sample};
use crate::settings::{Settings, Telemetry};

/// The name under which everything is told.
const SCOPE: &str = "posthaste";

/// How many spans wait to be sent. What comes when they are that many is left out: deliveries do not wait for a collector.
const WAITING: usize = 4096;

/// How many spans are sent at once, and how long they wait for company.
const TOGETHER: usize = 512;
const LINGER: Duration = Duration::from_secs(1);

/// How long one request may take, and the last ones together.
const PATIENCE: Duration = Duration::from_secs(5);

/// What sends, until it is told to end.
pub(super) struct Otlp {
    provider: SdkTracerProvider,
    stop: oneshot::Sender<()>,
    sending: JoinHandle<()>,
}

impl Otlp {
    /// Sends from now on. Nothing if no collector is named.
    pub(super) fn begin(settings: &Settings, recorder: Arc<Recorder>) -> Option<Self> {
        let Telemetry { otlp, service_name, interval, headers } = &settings.telemetry;
        let target = otlp.as_ref()?.parse::<Uri>().expect("it was checked");
        let (tell, spans) = mpsc::channel(WAITING);
        let left_out = Arc::new(AtomicU64::new(0));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Queue { spans: tell, left_out: Arc::clone(&left_out) })
            .build();
        global::set_tracer_provider(provider.clone());
        let systems = settings.destinations.iter().map(|to| (to.name.clone(), to.target.system())).collect();
        let sender = Sender {
            target,
            headers: headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            resource: json!({ "attributes": [
                { "key": "service.name", "value": { "stringValue": service_name } },
                { "key": "service.version", "value": { "stringValue": env!("CARGO_PKG_VERSION") } },
                { "key": "service.instance.id", "value": { "stringValue": format!("{:016x}", fastrand::u64(..)) } },
            ] }),
            systems,
            recorder,
            left_out,
            begun_at: SystemTime::now(),
            is_told: false,
        };
        info!(collector = sender.collector(), "sending traces and metrics");
        if !sender.headers.is_empty() && !is_here(&sender.target) {
            warn!(
                collector = sender.collector(),
                "telemetry.headers go to another machine without encryption, and whoever is on the way can read them; if there is a \
                 token among them, send to a collector on this machine, which passes everything on by https"
            );
        }
        let (stop, stopped) = oneshot::channel();
        Some(Self { provider, stop, sending: tokio::spawn(sender.run(spans, *interval, stopped)) })
    }

    /// What makes a span of every delivery that belongs to a trace.
    pub(super) fn trace(&self) -> TraceContext {
        TraceContext::new().with_provider(&self.provider)
    }

    /// Sends what is left, within a limit.
    pub(super) async fn end(self) {
        let Self { stop, mut sending, .. } = self;
        let _ = stop.send(());
        if timeout(PATIENCE, &mut sending).await.is_err() {
            warn!("the last traces and metrics were not sent in time");
            sending.abort();
        }
    }
}

/// Whether that is on this machine, so that nobody is on the way.
fn is_here(target: &Uri) -> bool {
    let host = target.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

/// Hands spans to the task that sends them.
#[derive(Debug)]
struct Queue {
    spans: mpsc::Sender<SpanData>,
    left_out: Arc<AtomicU64>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

struct Sender {
    target: Uri,
    headers: Vec<(String, String)>,
    resource: Json,
    /// What each destination is.
    systems: Vec<(String, &'static str)>,
    recorder: Arc<Recorder>,
    left_out: Arc<AtomicU64>,
    begun_at: SystemTime,
    /// Whether it was said that nothing arrives.
    is_told: bool,
}

impl Sender {
    async fn run(mut self, mut spans: mpsc::Receiver<SpanData>, every: Duration, mut stopped: oneshot::Receiver<()>) {
        let (mut metrics, mut flush) = (interval(every), interval(LINGER));
        metrics.set_missed_tick_behavior(MissedTickBehavior::Delay);
        flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut held = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                _ = metrics.tick() => self.send_metrics().await,
                _ = flush.tick() => self.send_spans(&mut held).await,
                received = spans.recv_many(&mut held, TOGETHER), if held.len() < TOGETHER => {
                    if received == 0 {
                        break;
                    }
                    if held.len() >= TOGETHER {
                        self.send_spans(&mut held).await;
                    }
                }
            }
        }
        while let Ok(span) = spans.try_recv() {
            held.push(span);
        }
        self.send_spans(&mut held).await;
        self.send_metrics().await;
    }

    async fn send_spans(&mut self, held: &mut Vec<SpanData>) {
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            warn!(left_out, "spans were left out: they come faster than the collector takes them");
        }
        if held.is_empty() {
            return;
        }
        let spans: Vec<Json> = held.drain(..).map(|span| span_of(&span)).collect();
        let scope = json!({ "scope": { "name": SCOPE }, "spans": spans });
        let body = json!({ "resourceSpans": [{ "resource": self.resource, "scopeSpans": [scope] }] });
        self.send("v1/traces", &body).await;
    }

    async fn send_metrics(&mut self) {
        let metrics = self.metrics(SystemTime::now());
        let scope = json!({ "scope": { "name": SCOPE }, "metrics": metrics });
        let body = json!({ "resourceMetrics": [{ "resource": self.resource, "scopeMetrics": [scope] }] });
        self.send("v1/metrics", &body).await;
    }

    async fn send(&mut self, path: &str, body: &Json) {
        let sent = match timeout(PATIENCE, self.post(path, body.to_string())).await {
            Ok(sent) => sent.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {PATIENCE:?}")),
        };
        match sent {
            Ok(()) if std::mem::take(&mut self.is_told) => info!(collector = self.collector(), "the collector is back"),
            Ok(()) => debug!(path, "sent"),
            Err(error) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    warn!(
                        collector = self.collector(),
                        error, "traces and metrics do not arrive; they are dropped until they do"
                    );
                }
            }
        }
    }

    /// What it is called in the log: where it is, without a path, in which there may be a secret.
    fn collector(&self) -> &str {
        self.target.authority().map_or("", |authority| authority.as_str())
    }

    async fn post(&self, path: &str, body: String) -> anyhow::Result<()> {
        let (host, port) = (self.target.host().unwrap_or_default(), self.target.port_u16().unwrap_or(4318));
        let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
        let (mut http, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let base = self.target.path().trim_end_matches('/');
        let mut request = Request::post(format!("{base}/{path}")).body(body)?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::try_from(format!("{host}:{port}"))?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            let mut value = HeaderValue::try_from(value)?;
            value.set_sensitive(true);
            headers.insert(HeaderName::try_from(name)?, value);
        }
        // Both run here: the connection ends with the answer, of which the body is nobody's concern.
        let answer = async move { http.send_request(request).await.map(|answer| answer.status()) };
        let (status, _) = tokio::join!(answer, async { connection.await.ok() });
        let status = status?;
        anyhow::ensure!(status.is_success(), "the collector answers {status}");
        Ok(())
    }

    /// Everything under its own name, and what the conventions for messaging have a name for under that as well.
    fn metrics(&self, now: SystemTime) -> Vec<Json> {
        let (begun, now) = (nanos(self.begun_at), nanos(now));
        let mut points: Vec<(String, &str, Kind, Json)> = Vec::new();
        self.recorder.each(|key, sample| {
            let (kind, value) = match sample {
                Sample::Counter(count) => (Kind::Sum, json!({ "asInt": count.to_string() })),
                Sample::Gauge(value) => (Kind::Gauge, json!({ "asDouble": value })),
                Sample::Histogram { bounds, counts, sum } => (
                    Kind::Histogram,
                    json!({
                        "count": counts.iter().sum::<u64>().to_string(),
                        "sum": sum,
                        "bucketCounts": counts.iter().map(u64::to_string).collect::<Vec<_>>(),
                        "explicitBounds": bounds,
                    }),
                ),
            };
            let mut named = vec![(key.name().to_owned(), unit(key.name()), plain_labels(key))];
            named.extend(self.conventional(key));
            for (name, unit, attributes) in named {
                let mut point = value.clone();
                point["attributes"] = attributes;
                point["timeUnixNano"] = now.clone().into();
                if kind != Kind::Gauge {
                    point["startTimeUnixNano"] = begun.clone().into();
                }
                points.push((name, unit, kind, point));
            }
        });
        points.sort_by(|one, other| one.0.cmp(&other.0));
        let of_one_name = points.chunk_by(|one, other| one.0 == other.0);
        of_one_name
            .map(|points| {
                let (name, unit, kind, _) = &points[0];
                let points: Vec<&Json> = points.iter().map(|(.., point)| point).collect();
                let mut metric = json!({ "name": name, "unit": unit });
                match kind {
                    Kind::Sum => {
                        metric["sum"] =
                            json!({ "dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true });
                    }
                    Kind::Gauge => metric["gauge"] = json!({ "dataPoints": points }),
                    Kind::Histogram => {
                        metric["histogram"] = json!({ "dataPoints": points, "aggregationTemporality": 2 });
                    }
                }
                metric
            })
            .collect()
    }

    /// The name, unit and attributes of the conventions, if they have one for it.
    fn conventional(&self, key: &Key) -> Option<(String, &'static str, Json)> {
        let label = |name: &str| key.labels().find(|label| label.key() == name).map(|label| label.value().to_owned());
        let text = |key: &str, value: String| json!({ "key": key, "value": { "stringValue": value } });
        let of = |destination: &str| {
            let system = self.systems.iter().find(|(name, _)| name == destination).map_or(SCOPE, |(_, system)| system);
            vec![
                text("messaging.system", system.to_owned()),
                text("messaging.operation.name", "send".to_owned()),
                text("posthaste.destination", destination.to_owned()),
            ]
        };
        Some(match key.name() {
            "posthaste_destination_events_total" => {
                let mut attributes = of(&label("destination")?);
                attributes.extend(
                    label("outcome")
                        .filter(|outcome| outcome != "acknowledged")
                        .map(|outcome| text("error.type", outcome)),
                );
                ("messaging.client.sent.messages".to_owned(), "{message}", attributes.into())
            }
            "posthaste_destination_duration_seconds" => {
                ("messaging.client.operation.duration".to_owned(), "s", of(&label("destination")?).into())
            }
            "posthaste_route_duration_seconds" => {
                let attributes = vec![
                    text("messaging.system", SCOPE.to_owned()),
                    text("messaging.operation.name", "process".to_owned()),
                    text("posthaste.route", label("route")?),
                ];
                ("messaging.process.duration".to_owned(), "s", attributes.into())
            }
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sum,
    Gauge,
    Histogram,
}

fn unit(name: &str) -> &'static str {
    match name {
        _ if name.ends_with("_seconds") => "s",
        _ if name.ends_with("_bytes") => "By",
        _ => "1",
    }
}

fn plain_labels(key: &Key) -> Json {
    let labels = key.labels().map(|label| json!({ "key": label.key(), "value": { "stringValue": label.value() } }));
    labels.collect::<Vec<_>>().into()
}

fn nanos(moment: SystemTime) -> String {
    moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn span_of(span: &SpanData) -> Json {
    let kind = match span.span_kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Producer => 4,
        SpanKind::Consumer => 5,
    };
    let status = match &span.status {
        Status::Unset => json!({}),
        Status::Ok => json!({ "code": 1 }),
        Status::Error { description } => json!({ "code": 2, "message": description }),
    };
    let mut document = json!({
        "traceId": span.span_context.trace_id().to_string(),
        "spanId": span.span_context.span_id().to_string(),
        "name": span.name,
        "kind": kind,
        "startTimeUnixNano": nanos(span.start_time),
        "endTimeUnixNano": nanos(span.end_time),
        "attributes": attributes(&span.attributes),
        "events": span.events.iter().map(|event| json!({
            "timeUnixNano": nanos(event.timestamp),
            "name": event.name,
            "attributes": attributes(&event.attributes),
        })).collect::<Vec<_>>(),
        "links": span.links.iter().map(|link| {
            let mut linked = ids(&link.span_context);
            linked["attributes"] = attributes(&link.attributes);
            linked
        }).collect::<Vec<_>>(),
        "status": status,
    });
    if span.parent_span_id != SpanId::INVALID {
        document["parentSpanId"] = span.parent_span_id.to_string().into();
    }
    let state = span.span_context.trace_state().header();
    if !state.is_empty() {
        document["traceState"] = state.into();
    }
    if span.span_context.trace_flags() == TraceFlags::SAMPLED {
        document["flags"] = 1.into();
    }
    document
}

fn ids(context: &SpanContext) -> Json {
    json!({ "traceId": context.trace_id().to_string(), "spanId": context.span_id().to_string() })
}

fn attributes(all: &[KeyValue]) -> Json {
    let one = |pair: &KeyValue| json!({ "key": pair.key.as_str(), "value": value(&pair.value) });
    all.iter().map(one).collect::<Vec<_>>().into()
}

fn value(of: &Value) -> Json {
    let integer = |number: &i64| json!({ "intValue": number.to_string() });
    let list = |values: Vec<Json>| json!({ "arrayValue": { "values": values } });
    match of {
        Value::Bool(truth) => json!({ "boolValue": truth }),
        Value::I64(number) => integer(number),
        Value::F64(number) => json!({ "doubleValue": number }),
        Value::String(text) => json!({ "stringValue": text.as_str() }),
        Value::Array(Array::Bool(all)) => list(all.iter().map(|truth| json!({ "boolValue": truth })).collect()),
        Value::Array(Array::I64(all)) => list(all.iter().map(integer).collect()),
        Value::Array(Array::F64(all)) => list(all.iter().map(|number| json!({ "doubleValue": number })).collect()),
        Value::Array(Array::String(all)) => {
            list(all.iter().map(|text| json!({ "stringValue": text.as_str() })).collect())
        }
        other => json!({ "stringValue": other.to_string() }),
    }
}

/// The span of messages that are sent, inside that of their delivery. Nothing if that has none.
pub(super) fn sending(system: &'static str, destination: &str, messages: &[Message]) -> Option<Context> {
    let current = Context::current();
    if !current.span().is_recording() {
        return None;
    }
    let mut attributes = vec![
        KeyValue::new("messaging.system", system),
        KeyValue::new("messaging.operation.type", "send"),
        KeyValue::new("messaging.operation.name", "send"),
        KeyValue::new("posthaste.destination", destination.to_owned()),
    ];
    match messages {
        [message] => attributes.push(KeyValue::new("messaging.message.id", message.id.to_string())),
        _ => {
            let count = i64::try_from(messages.len()).unwrap_or(i64::MAX);
            attributes.push(KeyValue::new("messaging.batch.message_count", count));
        }
    }
    // The address of a webhook may have a secret in it; its name has not.
    let address = messages.first().map(|message| &message.to).filter(|_| system != "http");
    let address = address.filter(|first| messages.iter().all(|message| message.to == **first));
    let name = address.map_or(destination, |address| address.as_str());
    attributes.push(KeyValue::new("messaging.destination.name", name.to_owned()));
    let builder =
        SpanBuilder::from_name(format!("send {name}")).with_kind(SpanKind::Producer).with_attributes(attributes);
    let span = global::tracer_provider().tracer(SCOPE).build_with_context(builder, &current);
    Some(current.with_span(span))
}

/// Ends it: so many of the messages were not acknowledged.
pub(super) fn sent(context: &Context, not_acknowledged: usize) {
    let span = context.span();
    if not_acknowledged > 0 {
        span.set_attribute(KeyValue::new("error.type", "_OTHER"));
        span.set_status(Status::error(format!("{not_acknowledged} of the messages were not acknowledged")));
    }
    span.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_on_this_machine_if_its_address_says_so() {
        for (address, is_there) in [
            ("http://127.0.0.1:4318", true),
            ("http://127.1.2.3", true),
            ("http://[::1]:4318/v1", true),
            ("http://[::ffff:127.0.0.1]:4318", true),
            ("http://LocalHost:4318", true),
            ("http://collector:4318", false),
            ("http://localhost.example:4318", false),
            ("http://127.0.0.1.example:4318", false),
            ("http://10.0.0.7:4318", false),
            ("http://[2001:db8::1]:4318", false),
        ] {
            assert_eq!(is_here(&address.parse().unwrap()), is_there, "{address}");
        }
    }
}
