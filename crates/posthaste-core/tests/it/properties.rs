//! What must hold for any input: nothing panics, limits are kept, and what was written comes back as it was.
//!
//! A few cases each, so that they take seconds; `PROPTEST_CASES=…` raises that. What they have found is kept below as tests of
//! its own.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use posthaste_core::event::{self, Mistake, Payload, limit};
use posthaste_core::retry::Jitter;
use posthaste_core::store::{Lease, RawRow, Status, cut_error};
use posthaste_core::{Event, EventBuilder, EventId, Options, RetryPolicy, Timestamp};
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;

/// 64 cases unless the environment says otherwise, and no files beside the tests.
fn few() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Texts of all sorts: odd characters, NULs, and lengths around every limit.
fn text() -> BoxedStrategy<String> {
    let around = prop_oneof![Just(36), Just(64), Just(128), Just(255), Just(65_536)];
    let long = (around, -1_isize..=1, prop_oneof![Just('a'), Just('ä'), Just('\u{10ffff}'), Just('"'), Just('\u{1}')]);
    prop_oneof![
        4 => any::<String>(),
        4 => "[a-zA-Z0-9_.]{0,20}",
        1 => "[\\x00-\\x1f\"\\\\ä]{0,40}",
        2 => long.prop_map(|(length, more, c): (usize, isize, char)| {
            std::iter::repeat_n(c, length.saturating_add_signed(more)).collect()
        }),
    ]
    .boxed()
}

fn json() -> BoxedStrategy<String> {
    prop_oneof![
        3 => text(),
        1 => text().prop_map(|text| serde_json::to_string(&text).unwrap()),
        1 => any::<i64>().prop_map(|number| format!(" {{\"n\" : {number} }} ")),
        1 => Just("[".repeat(200)),
        1 => Just(format!("{}1{}", "[".repeat(120), "]".repeat(120))),
    ]
    .boxed()
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        any::<u32>().prop_map(|nanos| Duration::from_nanos(nanos.into())),
        any::<u32>().prop_map(|millis| Duration::from_millis(millis.into())),
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
        Just(Duration::ZERO),
        Just(Duration::MAX),
    ]
}

fn moment() -> impl Strategy<Value = Timestamp> {
    let extremes = prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(0), any::<i64>()];
    extremes.prop_map(Timestamp::from_micros)
}

fn row() -> impl Strategy<Value = RawRow> {
    let names = (text(), text(), of(text()), of(text()), of(text()), of(text()), of(text()));
    let rest = (of(json()), of(vec(any::<u8>(), 0..50)), of(headers_text()), of(any::<i64>()), any::<i64>());
    (names, rest).prop_map(|(names, rest)| {
        let (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type) = names;
        let (payload, payload_bytes, headers, occurred_at, created_at) = rest;
        RawRow {
            event_id: EventId::from_row(event_id),
            event_type,
            aggregate_type,
            aggregate_id,
            tenant_id,
            topic,
            content_type: content_type.map(Into::into),
            payload,
            payload_bytes,
            headers,
            occurred_at,
            created_at,
        }
    })
}

fn headers_text() -> impl Strategy<Value = String> {
    prop_oneof![
        json(),
        btree_map(text(), text(), 0..4).prop_map(|headers| serde_json::to_string(&headers).unwrap()),
        Just("null".to_owned()),
        Just(r#"{"a":1}"#.to_owned()),
        Just(r#"{"a":"1","a":"2"}"#.to_owned()),
    ]
}

/// Id, event type, aggregate type, aggregate id, tenant, topic, content type.
type Names = (Option<String>, String, Option<String>, Option<String>, Option<String>, Option<String>, Option<String>);

#[derive(Clone, Debug)]
struct Wish {
    names: Names,
    headers: BTreeMap<String, String>,
    json: Option<String>,
    bytes: Option<Vec<u8>>,
    occurred_at: Option<Timestamp>,
    available_at: Option<Timestamp>,
    deliver_after: Option<Duration>,
}

fn wish() -> impl Strategy<Value = Wish> {
    let names = (of(text()), text(), of(text()), of(text()), of(text()), of(text()), of(text()));
    let plain = of("[a-z]{1,9}".prop_map(String::from));
    let plain_names =
        ("[a-z]{1,9}".prop_map(Some), "[a-z]{1,9}", plain.clone(), plain.clone(), plain.clone(), plain.clone(), plain);
    let headers = prop_oneof![Just(BTreeMap::new()), btree_map(text(), text(), 0..3)];
    let payload = (of(json()), of(vec(any::<u8>(), 0..50)));
    let times = (of(moment()), of(moment()), of(duration()));
    let no_times = Just((None, None, None));
    // Half of them plain, so that what comes after the names is reached as well.
    (prop_oneof![names, plain_names], headers, payload, prop_oneof![times, no_times]).prop_map(
        |(names, headers, (json, bytes), (occurred_at, available_at, deliver_after))| Wish {
            names,
            headers,
            json,
            bytes,
            occurred_at,
            available_at,
            deliver_after,
        },
    )
}

impl Wish {
    fn builder(self) -> EventBuilder {
        let (id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type) = self.names;
        let given = Event::builder(event_type.as_str()).headers(self.headers);
        let given = id.into_iter().fold(given, EventBuilder::id);
        let given = aggregate_type.iter().fold(given, |given, name| given.aggregate_type(name.as_str()));
        let given = aggregate_id.into_iter().fold(given, EventBuilder::aggregate_id);
        let given = tenant_id.into_iter().fold(given, EventBuilder::tenant_id);
        let given = topic.into_iter().fold(given, EventBuilder::topic);
        let given = content_type.into_iter().fold(given, EventBuilder::content_type);
        let given = self.json.into_iter().fold(given, EventBuilder::json_text);
        let given = self.bytes.into_iter().fold(given, EventBuilder::bytes);
        let given = self.occurred_at.into_iter().fold(given, EventBuilder::occurred_at);
        let given = self.available_at.into_iter().fold(given, EventBuilder::available_at);
        self.deliver_after.into_iter().fold(given, EventBuilder::deliver_after)
    }
}

/// A row as every store writes it.
fn stored(event: &Event) -> RawRow {
    let (payload, payload_bytes) = match event.payload() {
        Payload::Json(text) => (Some(text.to_string()), None),
        other => (None, Some(other.as_bytes().to_vec())),
    };
    let owned = |text: Option<&str>| text.map(str::to_owned);
    RawRow {
        event_id: event.id().clone(),
        event_type: event.event_type().to_owned(),
        aggregate_type: Some(event.aggregate_type().to_owned()),
        aggregate_id: owned(event.aggregate_id()),
        tenant_id: owned(event.tenant_id()),
        topic: owned(event.topic()),
        content_type: Some(RawRow::content_type(event.content_type())),
        payload,
        payload_bytes,
        headers: (!event.headers().is_empty()).then(|| serde_json::to_string(event.headers()).unwrap()),
        occurred_at: Some(event.occurred_at().as_micros()),
        created_at: 0,
    }
}

fn fits(text: &str, max: usize) -> bool {
    !text.contains('\0') && text.chars().count() <= max
}

fn check_limits(event: &Event) {
    let (id, kind) = (event.id().as_str(), event.event_type());
    assert!(!id.is_empty() && fits(id, limit::ID));
    assert!(!kind.is_empty() && fits(kind, limit::EVENT_TYPE));
    assert!(!event.aggregate_type().is_empty() && fits(event.aggregate_type(), limit::AGGREGATE_TYPE));
    assert!(!event.content_type().is_empty() && fits(event.content_type(), limit::CONTENT_TYPE));
    assert!(event.aggregate_id().is_none_or(|text| fits(text, limit::AGGREGATE_ID)));
    assert!(event.tenant_id().is_none_or(|text| fits(text, limit::TENANT_ID)));
    assert!(event.topic().is_none_or(|text| fits(text, limit::TOPIC)));
    assert!(event.payload().len() <= limit::PAYLOAD);
    assert!(serde_json::to_string(event.headers()).unwrap().len() <= limit::HEADERS);
}

/// The words of which each message about an event has one.
const FIELDS: &[&str] = &[
    "id",
    "event_type",
    "aggregate_type",
    "aggregate_id",
    "tenant_id",
    "topic",
    "content_type",
    "payload",
    "header",
    "available_at",
    "deliver_after",
];

fn check_refusal(error: &event::Error) {
    // A key is cut, and each of its characters may take ten to be shown.
    assert!(error.to_string().len() < 700, "{error}");
    let message = error.mistake.to_string();
    assert!(FIELDS.iter().any(|field| message.starts_with(field)), "{message}");
    assert!(message.len() < 600, "{message}");
    match &error.mistake {
        Mistake::TooLong { len, max, .. } => assert!(len > max),
        Mistake::PayloadTooLarge { len, max } | Mistake::HeadersTooLarge { len, max } => assert!(len > max),
        _ => {}
    }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn any_row_is_decoded_or_refused_with_a_reason(row in row()) {
        let (payload, bytes) = (row.payload.clone(), row.payload_bytes.clone());
        match row.decode() {
            Ok(event) => {
                let written = payload.map(String::into_bytes).or(bytes).unwrap();
                prop_assert_eq!(event.payload().as_bytes(), &written);
                let again = stored(&event).decode();
                prop_assert_eq!(again.as_ref(), Ok(&event));
            }
            Err(reason) => prop_assert!(!reason.is_empty()),
        }
    }

    #[test]
    fn any_event_is_refused_by_name_or_fits_its_table_and_comes_back_as_it_was(wish in wish()) {
        match wish.builder().build() {
            Err(error) => check_refusal(&error),
            Ok(event) => {
                check_limits(&event);
                let decoded = stored(&event).decode().unwrap();
                // When it may be delivered is a matter of the row, not of the event that comes out of it.
                prop_assert_eq!(format!("{:?}", stored(&decoded)), format!("{:?}", stored(&event)));
                prop_assert!(event.is_delayed() || decoded == event);
                let copy = event.to_builder().build().unwrap();
                prop_assert_eq!(&copy, &event);
            }
        }
    }

    #[test]
    fn any_variable_is_taken_or_named(option in option_name(), text in text()) {
        let name = format!("PH_{}", option.to_ascii_uppercase());
        match Options::default().with_env("PH_", [(name.clone(), text)]) {
            Ok(options) => {
                if let Err(error) = options.check() {
                    prop_assert!(names().contains(&error.option().to_owned()), "{}", error);
                }
            }
            Err(error) => prop_assert_eq!(error.option(), name),
        }
    }

    #[test]
    fn any_file_is_taken_or_refused_and_a_wrong_value_is_named(option in option_name(), value in toml_value()) {
        let line = format!("{option} = {value}");
        match toml::from_str::<Options>(&line) {
            Ok(options) => {
                if let Err(error) = options.check() {
                    prop_assert!(names().contains(&error.option().to_owned()), "{}", error);
                }
                let again: Options = toml::from_str(&toml::to_string(&options).unwrap()).unwrap();
                prop_assert_eq!(again, options);
            }
            Err(error) => prop_assert!(error.to_string().contains(&option), "{}", error),
        }
    }

    #[test]
    fn any_text_at_all_may_stand_in_a_file(text in text()) {
        let _ = toml::from_str::<Options>(&text);
    }

    #[test]
    fn moments_never_overflow(at in moment(), other in moment(), length in duration()) {
        prop_assert!(at + length >= at);
        prop_assert!(at - length <= at);
        prop_assert!((at + length).since(at) <= length);
        if at >= other {
            prop_assert!(other + at.since(other) <= at);
        } else {
            prop_assert_eq!(at.since(other), Duration::ZERO);
        }
        let _ = (at.to_string(), format!("{at:?}"));
        for time in [SystemTime::UNIX_EPOCH.checked_add(length), SystemTime::UNIX_EPOCH.checked_sub(length)] {
            let _ = time.map(Timestamp::from);
        }
    }

    #[test]
    fn delays_stay_in_their_bounds(
        base in duration(),
        max in duration(),
        failures in prop_oneof![0..100_u32, any::<u32>()],
        attempts in prop_oneof![0..20_u32, any::<u32>()],
        seed in any::<u64>(),
    ) {
        let (policy, jitter) = (RetryPolicy::exponential(base, max).max_attempts(attempts), Jitter::seeded(seed));
        let delay = policy.delay(failures, &jitter);
        prop_assert!(delay <= max);
        // A microsecond for what rounding takes.
        let least = base.min(max).min(Duration::from_micros(u64::MAX)).mul_f64(0.49);
        prop_assert!(delay + Duration::from_micros(1) >= least, "{delay:?}");
        prop_assert_eq!(policy.next_delay(failures, &jitter).is_none(), failures >= attempts.max(1));
        let fixed = RetryPolicy::fixed([base, max]);
        prop_assert!([base, max].contains(&fixed.delay(failures, &jitter)));
    }

    #[test]
    fn errors_fit_their_column(text in text(), repeat in 1..200_usize) {
        let text = text.chars().take(200).collect::<String>().repeat(repeat);
        let cut = cut_error(&text);
        prop_assert!(fits(&cut, 4000));
        prop_assert_eq!(cut.chars().count(), text.chars().count().min(4000));
    }

    #[test]
    fn ids_leases_and_statuses_bear_anything(text in text(), number in any::<u64>(), code in any::<i64>()) {
        prop_assert_eq!(EventId::new(&text).is_ok(), !text.is_empty() && fits(&text, limit::ID));
        let lease = Lease::new(&text, number);
        prop_assert_eq!(Lease::owner_of(lease.as_str()), &text);
        let _ = Lease::owner_of(&text);
        prop_assert_eq!(Status::from_code(code).map(|status| i64::from(status.code())), (0..4).contains(&code).then_some(code));
    }
}

fn names() -> Vec<String> {
    let all = serde_json::to_value(Options::default()).unwrap();
    all.as_object().unwrap().keys().cloned().collect()
}

fn option_name() -> impl Strategy<Value = String> {
    prop_oneof![8 => proptest::sample::select(names()), 1 => Just("nonsense".to_owned())]
}

fn toml_value() -> impl Strategy<Value = String> {
    let length =
        (any::<u64>(), proptest::sample::select(vec!["ns", "us", "ms", "s", "m", "h", "d", "w", "y", "", "x"]));
    prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        (0..2_000_000_i64).prop_map(|number| number.to_string()),
        any::<f64>()
            .prop_filter("TOML has other names for these", |float| float.is_finite())
            .prop_map(|f| format!("{f:?}")),
        any::<bool>().prop_map(|b| b.to_string()),
        length.prop_map(|(number, unit)| format!("'{number}{unit}'")),
        (0..1000_u64, proptest::sample::select(vec!["ms", "s", "m", "h", "d"]))
            .prop_map(|(n, unit)| format!("'{n}{unit}'")),
        "[a-z0-9 ]{0,12}".prop_map(|text| format!("'{text}'")),
        Just("[1, 2]".to_owned()),
        Just("{ a = 1 }".to_owned()),
    ]
}
