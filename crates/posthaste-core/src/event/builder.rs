//! The builder of an event, where every limit is checked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::IgnoredAny;

use super::{
    AggregateType, Availability, Carried, Error, Event, EventId, EventType, Fields, GLOBAL, JSON, Mistake, OCTETS,
    Payload, VERSION_HEADER, limit,
};
use crate::time::Timestamp;

/// How long ago "now" may have been when an event is built.
const JUST_NOW: Duration = Duration::from_secs(1);

/// As much of the key of a header as a message shows.
const SHOWN_KEY: usize = 64;

/// A hundred years: longer than any delay that is meant.
const LONGEST_DELAY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Builds an [`Event`]. Mistakes are kept until [`build`](Self::build) names the first of them.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::Event;
/// use posthaste::event::Mistake;
///
/// let error = Event::builder("").aggregate("Order", 42).json_text("{}").build().unwrap_err();
/// assert!(matches!(error.mistake, Mistake::Empty { field: "event_type" }));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built or written"]
pub struct EventBuilder {
    id: Option<Result<EventId, String>>,
    event_type: String,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    tenant_id: Option<String>,
    topic: Option<String>,
    content_type: Option<Cow<'static, str>>,
    headers: BTreeMap<String, String>,
    payloads: Vec<Given>,
    occurred_at: Option<Timestamp>,
    available_at: Option<Timestamp>,
    deliver_after: Option<Duration>,
}

/// A payload as it was handed in.
#[derive(Clone, Debug)]
enum Given {
    Serialised(Result<String, String>),
    Text(String),
    Bytes(Box<[u8]>),
    /// That of an event, which is not copied.
    Of(Event),
}

impl Given {
    fn form(&self) -> &'static str {
        match self {
            Self::Serialised(_) | Self::Text(_) => "JSON",
            Self::Bytes(_) => "bytes",
            Self::Of(event) if event.payload().as_json().is_some() => "JSON",
            Self::Of(_) => "bytes",
        }
    }
}

impl EventBuilder {
    pub(super) fn new(event_type: impl EventType) -> Self {
        Self {
            id: None,
            event_type: event_type.name().to_owned(),
            aggregate_type: None,
            aggregate_id: None,
            tenant_id: None,
            topic: None,
            content_type: None,
            headers: BTreeMap::new(),
            payloads: Vec::new(),
            occurred_at: None,
            available_at: None,
            deliver_after: None,
        }
    }

    pub(super) fn from_event(event: &Event) -> Self {
        let fields = &*event.0;
        let (available_at, deliver_after) = match fields.availability {
            Availability::Now => (None, None),
            Availability::At(at) => (Some(at), None),
            Availability::After(delay) => (None, Some(delay)),
        };
        Self {
            id: Some(Ok(fields.id.clone())),
            event_type: fields.event_type.to_string(),
            aggregate_type: Some(fields.aggregate_type.to_string()),
            aggregate_id: fields.aggregate_id.as_deref().map(str::to_owned),
            tenant_id: fields.tenant_id.as_deref().map(str::to_owned),
            topic: fields.topic.as_deref().map(str::to_owned),
            content_type: Some(fields.content_type.clone()),
            headers: fields.headers.clone(),
            payloads: vec![Given::Of(fields.payload.owner().unwrap_or(event).clone())],
            occurred_at: Some(fields.occurred_at),
            available_at,
            deliver_after,
        }
    }

    /// Sets the id. Default: a new ULID. Any text of up to 36 characters that is unique in the table will do.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::Event;
    ///
    /// // From the request, so that a request that is repeated cannot write its event twice.
    /// let event = Event::builder("OrderPlaced").id("request-8812").json_text("{}").build()?;
    /// # let _ = event;
    /// # Ok::<(), posthaste::event::Error>(())
    /// ```
    pub fn id(mut self, id: impl AsRef<str>) -> Self {
        self.id = Some(EventId::new(&id).map_err(|_| id.as_ref().to_owned()));
        self
    }

    /// Sets the aggregate that changed: its type and its id. Together they are the key of the event.
    pub fn aggregate(self, aggregate_type: impl AggregateType, aggregate_id: impl ToString) -> Self {
        self.aggregate_type(aggregate_type).aggregate_id(aggregate_id)
    }

    /// Sets the aggregate type alone. Default: [`GLOBAL`].
    pub fn aggregate_type(mut self, aggregate_type: impl AggregateType) -> Self {
        self.aggregate_type = Some(aggregate_type.name().to_owned());
        self
    }

    /// Sets the aggregate id alone.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and ids by value")]
    pub fn aggregate_id(mut self, aggregate_id: impl ToString) -> Self {
        self.aggregate_id = Some(aggregate_id.to_string());
        self
    }

    /// Sets the tenant, which is stored and handed to listeners and never interpreted.
    pub fn tenant_id(mut self, tenant_id: impl Into<String>) -> Self {
        self.tenant_id = Some(tenant_id.into());
        self
    }

    /// Sets where a relay sends this event, instead of where its routes say.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Sets the media type of the payload. Default: JSON for JSON, octets for bytes.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(Cow::Owned(content_type.into()));
        self
    }

    /// Sets one header. The last value given for a key counts.
    pub fn header(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(key.into(), value.into());
        self
    }

    /// Sets several headers.
    pub fn headers<K: Into<String>, V: Into<String>>(mut self, headers: impl IntoIterator<Item = (K, V)>) -> Self {
        self.headers.extend(headers.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Sets the version of the payload, from 1 on. Default: 1. It is kept in the header [`VERSION_HEADER`], unless it is 1.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::Event;
    ///
    /// let event = Event::builder("OrderPlaced").version(2).json_text("{}").build()?;
    /// assert_eq!((event.version()?, event.header("event-version")), (2, Some("2")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn version(mut self, version: u32) -> Self {
        match version {
            1 => self.headers.remove(VERSION_HEADER),
            _ => self.headers.insert(VERSION_HEADER.to_owned(), version.to_string()),
        };
        self
    }

    /// Sets the payload to a value, serialised to JSON here and nowhere else.
    pub fn json(mut self, payload: &(impl Serialize + ?Sized)) -> Self {
        self.payloads.push(Given::Serialised(serde_json::to_string(payload).map_err(|error| error.to_string())));
        self
    }

    /// Sets the payload to a JSON text, which is checked by [`build`](Self::build) and kept as it is.
    pub fn json_text(mut self, payload: impl Into<String>) -> Self {
        self.payloads.push(Given::Text(payload.into()));
        self
    }

    /// Sets the payload to bytes.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::Event;
    ///
    /// let event = Event::builder("ImageTaken").bytes([0x89, 0x50]).content_type("image/png").build()?;
    /// assert_eq!(event.payload().as_bytes(), [0x89, 0x50]);
    /// # Ok::<(), posthaste::event::Error>(())
    /// ```
    pub fn bytes(mut self, payload: impl Into<Vec<u8>>) -> Self {
        self.payloads.push(Given::Bytes(payload.into().into_boxed_slice()));
        self
    }

    /// Sets when it happened. Default: now.
    pub fn occurred_at(mut self, occurred_at: impl Into<Timestamp>) -> Self {
        self.occurred_at = Some(occurred_at.into());
        self
    }

    /// Delivers it not before this moment, by the database's clock.
    pub fn available_at(mut self, available_at: impl Into<Timestamp>) -> Self {
        self.available_at = Some(available_at.into());
        self
    }

    /// Delivers it not before this long after it was written, by the database's clock.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::time::Duration;
    ///
    /// use posthaste::Event;
    ///
    /// let tomorrow = Duration::from_secs(24 * 3600);
    /// let reminder = Event::builder("CartAbandoned").json_text("{}").deliver_after(tomorrow).build()?;
    /// assert!(reminder.is_delayed());
    /// # Ok::<(), posthaste::event::Error>(())
    /// ```
    pub fn deliver_after(mut self, delay: Duration) -> Self {
        self.deliver_after = Some(delay);
        self
    }

    /// Checks every field and makes the event.
    ///
    /// # Errors
    /// Names the first field that is missing, empty or over its limit. See [`limit`].
    pub fn build(mut self) -> Result<Event, Error> {
        match self.checked() {
            Ok(fields) => Ok(Event::from_fields(fields)),
            Err(mistake) => {
                let id = self.id.as_ref().map(|id| id.as_ref().map_or_else(String::as_str, EventId::as_str));
                Err(mistake.of(&self.event_type, id))
            }
        }
    }

    /// The fields, taken out once all of them are in order.
    fn checked(&mut self) -> Result<Fields, Mistake> {
        if let Some(Err(refused)) = &self.id {
            EventId::new(refused)?;
        }
        required("event_type", &self.event_type, limit::EVENT_TYPE)?;
        let aggregate_type = self.aggregate_type.take().unwrap_or_else(|| GLOBAL.to_owned());
        required("aggregate_type", &aggregate_type, limit::AGGREGATE_TYPE)?;
        optional("aggregate_id", self.aggregate_id.as_deref(), limit::AGGREGATE_ID)?;
        optional("tenant_id", self.tenant_id.as_deref(), limit::TENANT_ID)?;
        optional("topic", self.topic.as_deref(), limit::TOPIC)?;
        check_headers(&self.headers)?;
        if self.headers.get(VERSION_HEADER).is_some_and(|version| version == "0") {
            return Err(Mistake::NoVersion);
        }
        let payload = one_payload(std::mem::take(&mut self.payloads))?;
        let content_type = self.content_type.take().unwrap_or_else(|| match *payload {
            Payload::Json(_) => JSON.into(),
            Payload::Bytes(_) => OCTETS.into(),
        });
        required("content_type", &content_type, limit::CONTENT_TYPE)?;
        // What is to be available now was given a moment ago; it has not happened since.
        let occurred_at = self.occurred_at.unwrap_or_else(|| {
            let now = Timestamp::now();
            self.available_at.filter(|at| *at < now && now.since(*at) < JUST_NOW).unwrap_or(now)
        });
        let availability = availability(self.available_at, self.deliver_after, occurred_at)?;

        Ok(Fields {
            id: self.id.take().and_then(Result::ok).unwrap_or_else(EventId::generate),
            event_type: std::mem::take(&mut self.event_type).into_boxed_str(),
            aggregate_type: aggregate_type.into_boxed_str(),
            aggregate_id: self.aggregate_id.take().map(String::into_boxed_str),
            tenant_id: self.tenant_id.take().map(String::into_boxed_str),
            topic: self.topic.take().map(String::into_boxed_str),
            content_type,
            headers: std::mem::take(&mut self.headers),
            payload,
            occurred_at,
            availability,
        })
    }
}

fn required(field: &'static str, text: &str, max: usize) -> Result<(), Mistake> {
    if text.is_empty() {
        return Err(Mistake::Empty { field });
    }
    Mistake::check_text(field, text, max)
}

fn optional(field: &'static str, text: Option<&str>, max: usize) -> Result<(), Mistake> {
    text.map_or(Ok(()), |text| Mistake::check_text(field, text, max))
}

fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), Mistake> {
    if headers.is_empty() {
        return Ok(());
    }
    for (key, value) in headers {
        if key.is_empty() {
            return Err(Mistake::Empty { field: "header key" });
        }
        if key.contains('\0') || value.contains('\0') {
            return Err(Mistake::NulInHeader { key: key.chars().take(SHOWN_KEY).collect() });
        }
    }
    let len = serde_json::to_string(headers).map_or(0, |json| json.len());
    if len > limit::HEADERS {
        return Err(Mistake::HeadersTooLarge { len, max: limit::HEADERS });
    }
    Ok(())
}

fn one_payload(payloads: Vec<Given>) -> Result<Carried, Mistake> {
    if let [first, second, ..] = payloads.as_slice() {
        return Err(Mistake::TwoPayloads { first: first.form(), second: second.form() });
    }
    let payload: Carried = match payloads.into_iter().next().ok_or(Mistake::NoPayload)? {
        // A serialiser of ours made this text, so it is JSON already.
        Given::Serialised(Ok(text)) => Payload::Json(text.into_boxed_str()).into(),
        Given::Serialised(Err(reason)) => {
            return Err(Mistake::NotSerialisable(serde::ser::Error::custom(reason)));
        }
        Given::Text(text) => Payload::Json(text.into_boxed_str()).checked()?.into(),
        Given::Bytes(bytes) => Payload::Bytes(bytes).into(),
        Given::Of(event) => Carried::Of(event),
    };
    let len = payload.len();
    if len > limit::PAYLOAD { Err(Mistake::PayloadTooLarge { len, max: limit::PAYLOAD }) } else { Ok(payload) }
}

impl Payload {
    /// Refuses text that is not JSON.
    pub(crate) fn checked(self) -> Result<Self, Mistake> {
        if let Self::Json(text) = &self {
            // A text over the limit is refused for its length, which says more, and is not parsed for that.
            if text.len() <= limit::PAYLOAD {
                serde_json::from_str::<IgnoredAny>(text).map_err(Mistake::NotJson)?;
            }
        }
        Ok(self)
    }
}

fn availability(
    available_at: Option<Timestamp>,
    deliver_after: Option<Duration>,
    occurred_at: Timestamp,
) -> Result<Availability, Mistake> {
    match (available_at, deliver_after) {
        (None, None) => Ok(Availability::Now),
        (Some(_), Some(_)) => Err(Mistake::TwoAvailabilities),
        (Some(at), None) if at < occurred_at => Err(Mistake::AvailableBeforeOccurred { available_at: at, occurred_at }),
        (Some(at), None) => Ok(Availability::At(at)),
        (None, Some(Duration::ZERO)) => Err(Mistake::NoDelay),
        (None, Some(delay)) if delay > LONGEST_DELAY => Err(Mistake::DelayTooLong(delay)),
        // By this machine's clock, which is also the one that says when it happened.
        (None, Some(delay)) if Timestamp::now() + delay < occurred_at => {
            Err(Mistake::AvailableBeforeOccurred { available_at: Timestamp::now() + delay, occurred_at })
        }
        (None, Some(delay)) => Ok(Availability::After(delay)),
    }
}
