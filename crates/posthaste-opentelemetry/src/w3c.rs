//! The headers of the W3C's recommendations Trace Context and Baggage, as they are kept with an event.

use opentelemetry::Context;
use opentelemetry::baggage::{Baggage, BaggageExt};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use posthaste_core::event::{Availability, Payload};
use posthaste_core::{Event, EventBuilder};

pub(crate) const TRACEPARENT: &str = "traceparent";
pub(crate) const TRACESTATE: &str = "tracestate";
pub(crate) const BAGGAGE: &str = "baggage";

/// What every receiver has to bear. A longer one may be left out, and is: it is stored with every event.
pub(crate) const LONGEST_TRACESTATE: usize = 512;
/// What the recommendation asks to bear.
pub(crate) const LONGEST_BAGGAGE: usize = 8192;

/// A context as headers.
#[derive(Debug)]
pub(crate) struct Headers {
    traceparent: String,
    tracestate: Option<String>,
    baggage: Option<String>,
}

impl Headers {
    /// The headers of a context, if it is within a trace.
    pub(crate) fn of(context: &Context, with_baggage: bool) -> Option<Self> {
        let span = context.span();
        let span = span.span_context();
        if !span.is_valid() {
            return None;
        }
        let flags = span.trace_flags() & TraceFlags::SAMPLED;
        let some = |text: String, max| Some(text).filter(|text| !text.is_empty() && text.len() <= max);
        Some(Self {
            traceparent: format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()),
            tracestate: some(span.trace_state().header(), LONGEST_TRACESTATE),
            baggage: with_baggage.then(|| some(context.baggage().to_string(), LONGEST_BAGGAGE)).flatten(),
        })
    }

    /// The event with these headers, or with as many of them as there is room for; nothing if there is for none.
    pub(crate) fn added_to(&self, event: &Event) -> Option<Event> {
        let baggage = self.baggage.as_ref().filter(|_| header(event, BAGGAGE).is_none());
        let with = |tracestate: Option<&String>, baggage: Option<&String>| {
            let mut builder = without_tracestate(event)?.header(TRACEPARENT, &self.traceparent);
            for (key, value) in [(TRACESTATE, tracestate), (BAGGAGE, baggage)] {
                if let Some(value) = value {
                    builder = builder.header(key, value);
                }
            }
            builder.build().ok()
        };
        let tracestate = self.tracestate.as_ref();
        with(tracestate, baggage).or_else(|| with(tracestate, None)).or_else(|| with(None, None))
    }
}

/// The event without a tracestate, however its name is written: it belongs to a traceparent that is not there. Nothing for an
/// event of a kind that is new, which stays as it is.
fn without_tracestate(event: &Event) -> Option<EventBuilder> {
    if header(event, TRACESTATE).is_none() {
        return Some(event.to_builder());
    }
    // A builder takes no header back, so it is made of the rest.
    let kept = event.headers().iter().filter(|(key, _)| !key.eq_ignore_ascii_case(TRACESTATE));
    let mut builder = Event::builder(event.event_type())
        .id(event.id())
        .aggregate_type(event.aggregate_type())
        .content_type(event.content_type())
        .occurred_at(event.occurred_at())
        .headers(kept);
    if let Some(aggregate_id) = event.aggregate_id() {
        builder = builder.aggregate_id(aggregate_id);
    }
    if let Some(tenant_id) = event.tenant_id() {
        builder = builder.tenant_id(tenant_id);
    }
    if let Some(topic) = event.topic() {
        builder = builder.topic(topic);
    }
    builder = match event.availability() {
        Availability::Now => builder,
        Availability::At(moment) => builder.available_at(moment),
        Availability::After(delay) => builder.deliver_after(delay),
    };
    match event.payload() {
        Payload::Json(json) => Some(builder.json_text(&**json)),
        Payload::Bytes(bytes) => Some(builder.bytes(&**bytes)),
        _ => None,
    }
}

/// The context that is kept with an event: nothing if there is none, an error if it is none.
pub(crate) fn stored(event: &Event, with_baggage: bool) -> Result<Option<Context>, &str> {
    let Some(traceparent) = header(event, TRACEPARENT) else {
        return Ok(None);
    };
    let (trace_id, span_id, flags) = parent(traceparent).ok_or(traceparent)?;
    // One that cannot be read does not spoil the other, as the recommendation has it.
    let state = header(event, TRACESTATE).and_then(|text| text.parse::<TraceState>().ok()).unwrap_or_default();
    let mut context = Context::new().with_remote_span_context(SpanContext::new(trace_id, span_id, flags, true, state));
    if let Some(text) = header(event, BAGGAGE).filter(|text| with_baggage && text.len() <= LONGEST_BAGGAGE) {
        context = context.with_baggage(baggage(text));
    }
    Ok(Some(context))
}

/// The value of a header, however its name is written: programs in other languages write events, too.
pub(crate) fn header<'a>(event: &'a Event, name: &str) -> Option<&'a str> {
    event.header(name).or_else(|| {
        event.headers().iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    })
}

/// Reads a traceparent, also of a later version, which begins like this one.
fn parent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let hex = |digits: &str| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = text.trim().splitn(5, '-');
    let mut part = |len| parts.next().filter(|part| part.len() == len && hex(part));
    let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let trace_id = TraceId::from_hex(trace_id).ok().filter(|id| *id != TraceId::INVALID)?;
    let span_id = SpanId::from_hex(span_id).ok().filter(|id| *id != SpanId::INVALID)?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    Some((trace_id, span_id, flags))
}

/// Reads a baggage; entries that cannot be read are left out.
fn baggage(text: &str) -> Baggage {
    let mut baggage = Baggage::new();
    for entry in text.split(',') {
        let (pair, metadata) = entry.split_once(';').unwrap_or((entry, ""));
        let Some((key, value)) = pair.split_once('=') else { continue };
        if let Some(value) = percent_decoded(value.trim()) {
            baggage.insert_with_metadata(key.trim().to_owned(), value, metadata.trim());
        }
    }
    baggage
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry::StringValue;
    use posthaste_core::Timestamp;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn event(headers: &[(&str, &str)]) -> Event {
        let builder = Event::builder("OrderPlaced").json_text("{}");
        builder.headers(headers.iter().copied()).build().expect("within the limits")
    }

    fn span_context(state: &str) -> SpanContext {
        let state = state.parse().expect("a tracestate");
        let trace_id = TraceId::from_hex(TRACE).expect("a trace id");
        SpanContext::new(trace_id, SpanId::from_hex(SPAN).expect("a span id"), TraceFlags::SAMPLED, false, state)
    }

    #[test]
    fn what_was_written_is_read() {
        let mut baggage = Baggage::new();
        baggage.insert("tenant", "Müller & Söhne, 50 %");
        baggage.insert_with_metadata("plan", "gold", "ttl=5;shared");
        let context = Context::new().with_remote_span_context(span_context("a=1,b=2")).with_baggage(baggage);
        let written = Headers::of(&context, true).and_then(|headers| headers.added_to(&event(&[])));
        let written = written.expect("it has a context");
        assert_eq!(written.header(TRACEPARENT), Some(format!("00-{TRACE}-{SPAN}-01").as_str()));
        assert_eq!(written.header(TRACESTATE), Some("a=1,b=2"));

        let read = stored(&written, true).expect("it is well formed").expect("there is one");
        let span = read.span().span_context().clone();
        assert_eq!((span.trace_id(), span.span_id()), (span_context("").trace_id(), span_context("").span_id()));
        assert!(span.is_sampled() && span.is_remote());
        assert_eq!(span.trace_state().header(), "a=1,b=2");
        assert_eq!(read.baggage().get("tenant").map(StringValue::as_str), Some("Müller & Söhne, 50 %"));
        let (plan, metadata) = read.baggage().get_with_metadata("plan").expect("it is there");
        assert_eq!((plan.as_str(), metadata.as_str()), ("gold", "ttl=5;shared"));
        assert!(stored(&written, false).expect("well formed").expect("there").baggage().is_empty());
    }

    #[test]
    fn what_is_not_sampled_stays_so() {
        let span = SpanContext::new(1.into(), 2.into(), TraceFlags::NOT_SAMPLED, false, TraceState::NONE);
        let headers = Headers::of(&Context::new().with_remote_span_context(span), true).expect("a context");
        assert!(headers.traceparent.ends_with("-00") && headers.tracestate.is_none() && headers.baggage.is_none());
        assert!(Headers::of(&Context::new(), true).is_none());
    }

    #[test]
    fn later_versions_and_other_spellings_are_read() {
        for (name, value) in [
            ("traceparent", format!("00-{TRACE}-{SPAN}-01")),
            ("traceparent", format!(" 00-{TRACE}-{SPAN}-ff ")),
            ("Traceparent", format!("cc-{TRACE}-{SPAN}-01")),
            ("TRACEPARENT", format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings")),
        ] {
            let event = event(&[(name, &value), ("tracestate", "no state")]);
            let context = stored(&event, false).expect("well formed").expect("there");
            assert_eq!(context.span().span_context().trace_id().to_string(), TRACE, "{name}: {value}");
            assert!(context.span().span_context().is_sampled(), "{name}: {value}");
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let none = "0".repeat(32);
        for value in [
            String::new(),
            "00".into(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{none}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &none[..16]),
            format!("00-+{}-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}é-{SPAN}-01"),
            "a".repeat(10_000),
        ] {
            assert_eq!(stored(&event(&[("traceparent", &value)]), true).err(), Some(value.as_str()));
        }
        assert!(stored(&event(&[("tracestate", "a=1")]), true).is_ok_and(|context| context.is_none()));
    }

    #[test]
    fn a_baggage_that_is_partly_malformed_is_partly_read() {
        let read = baggage("a=1, b = 2 ;x , c=%zz, d, =5, e=%f, f=a=b, g=%C3%BC");
        let value = |key| read.get(key).map(|value| value.as_str().to_owned());
        assert_eq!(
            [value("a"), value("b"), value("f"), value("g")].map(Option::unwrap_or_default),
            ["1", "2", "a=b", "ü"]
        );
        assert_eq!(read.len(), 4);
    }

    #[test]
    fn what_is_too_long_is_left_out() {
        let long = |len: usize| format!("a={}", "x".repeat(len));
        let tracestate =
            |text: &str| Headers::of(&Context::new().with_remote_span_context(span_context(text)), false)?.tracestate;
        let members = |count| (0..count).map(|n| format!("k{n}={}", "x".repeat(60))).collect::<Vec<_>>().join(",");
        assert_eq!(tracestate(&members(8)), Some(members(8)));
        assert!(members(8).len() == LONGEST_TRACESTATE - 1 && members(9).len() > LONGEST_TRACESTATE);
        assert_eq!(tracestate(&members(9)), None);

        let mut baggage = Baggage::new();
        // As it is it may be twice as long; written, every one of its characters is three.
        baggage.insert("a", "%".repeat(4000));
        let context = Context::new().with_remote_span_context(span_context("")).with_baggage(baggage);
        assert!(context.baggage().len() == 1 && Headers::of(&context, true).is_some_and(|all| all.baggage.is_none()));
        assert!(
            stored(&event(&[("traceparent", &format!("00-{TRACE}-{SPAN}-01")), ("baggage", &long(9000))]), true)
                .is_ok_and(|context| context.is_some_and(|context| context.baggage().is_empty()))
        );
    }

    #[test]
    fn an_event_with_no_room_left_is_written_as_it_is() {
        let mut baggage = Baggage::new();
        baggage.insert("plan", "gold");
        let context = Context::new().with_remote_span_context(span_context("a=1")).with_baggage(baggage);
        let headers = Headers::of(&context, true).expect("a context");
        // What the JSON of a header more needs: two pairs of quotes, a colon, a comma.
        let needed = |key: &str, value: &str| key.len() + value.len() + 6;
        let parent = needed(TRACEPARENT, &headers.traceparent);
        let (state, plan) = (needed(TRACESTATE, "a=1"), needed(BAGGAGE, "plan=gold"));
        let full = posthaste_core::event::limit::HEADERS - r#"{"x":""}"#.len();
        for (room, expected) in [
            (parent + state + plan, vec![TRACEPARENT, TRACESTATE, BAGGAGE]),
            (parent + state + plan - 1, vec![TRACEPARENT, TRACESTATE]),
            (parent + state, vec![TRACEPARENT, TRACESTATE]),
            (parent + state - 1, vec![TRACEPARENT]),
            (parent, vec![TRACEPARENT]),
        ] {
            let added = headers.added_to(&event(&[("x", &"x".repeat(full - room))])).expect("there is room");
            let mut keys: Vec<&str> = added.headers().keys().map(String::as_str).filter(|key| *key != "x").collect();
            keys.sort_by_key(|key| expected.iter().position(|other| other == key));
            assert_eq!(keys, expected, "{room}");
        }
        assert!(headers.added_to(&event(&[("x", &"x".repeat(full - parent + 1))])).is_none());
    }

    #[test]
    fn a_tracestate_of_another_trace_is_dropped() {
        let foreign =
            [("tracestate", "theirs=1"), ("Tracestate", "theirs=2"), ("TRACESTATE", "theirs=3"), ("x", "kept")];
        for ours in ["a=1", ""] {
            let headers = Headers::of(&Context::new().with_remote_span_context(span_context(ours)), false);
            let added = headers.and_then(|headers| headers.added_to(&event(&foreign))).expect("there is room");
            assert_eq!(added.header(TRACESTATE), Some(ours).filter(|state| !state.is_empty()));
            let of_traces = added.headers().keys().filter(|key| key.to_lowercase().starts_with("trace")).count();
            assert_eq!((of_traces, added.header("x")), (if ours.is_empty() { 1 } else { 2 }, Some("kept")));
            let read = stored(&added, false).expect("it is well formed").expect("there is one");
            assert_eq!(read.span().span_context().trace_state().header(), ours);
        }
    }

    #[test]
    fn nothing_but_the_tracestate_is_dropped() {
        let every = || {
            let event = Event::builder("OrderPlaced").id("an id").aggregate("Order", 7).tenant_id("").topic("orders");
            let event = event.content_type("application/vnd.order+json").occurred_at(Timestamp::from_micros(-1));
            event.version(3).header("x", "kept")
        };
        let soon = Duration::from_secs(5);
        let shapes = [
            every().json_text("{ \"a\" : 1.10 }").available_at(Timestamp::from_micros(9)),
            every().bytes([0, 255]).deliver_after(soon),
            Event::builder("Bare").id("another").occurred_at(Timestamp::from_micros(1)).json_text("null"),
        ];
        for shape in shapes {
            let plain = shape.clone().build().expect("within the limits");
            let foreign = shape.header("TraceState", "theirs=1").build().expect("within the limits");
            let rest = without_tracestate(&foreign).expect("it is of a known kind").build();
            assert_eq!(rest.expect("within the limits"), plain);
        }
    }

    #[test]
    fn a_baggage_of_the_event_itself_is_kept() {
        let mut baggage = Baggage::new();
        baggage.insert("plan", "gold");
        let context = Context::new().with_remote_span_context(span_context("")).with_baggage(baggage);
        let headers = Headers::of(&context, true).expect("a context");
        let added = headers.added_to(&event(&[("baggage", "plan=free")])).expect("there is room");
        assert_eq!(added.header(BAGGAGE), Some("plan=free"));
    }
}
