//! What the user writes: an event, its builder and its limits.

mod builder;
mod error;
pub mod family;
mod id;
mod names;
mod payload;
mod typed;
mod upcast;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::time::Timestamp;

pub use builder::EventBuilder;
pub(crate) use error::Mismatch;
pub use error::{DecodeError, Error, Mistake};
pub use id::EventId;
pub use names::{AggregateType, EventType, GLOBAL};
pub(crate) use payload::Carried;
pub use payload::Payload;
pub use typed::{Kind, TypedEvent};
pub use upcast::Upcasts;

/// The content type of an event that does not say otherwise and whose payload is JSON.
pub const JSON: &str = "application/json";

/// The content type of an event that does not say otherwise and whose payload is bytes.
pub const OCTETS: &str = "application/octet-stream";

/// The header that holds the version of a payload, if it is not 1.
///
/// Version 1 has no header. So an event that was written before its type had versions, by [`Event::builder`] or by a
/// program in another language, is of version 1 without anybody doing anything, and most rows have no headers at all.
pub const VERSION_HEADER: &str = "event-version";

/// How long each field of an event may be. The table's columns are as wide, so what was built can be stored.
pub mod limit {
    /// Characters in an event id.
    pub const ID: usize = 36;
    /// Characters in an event type.
    pub const EVENT_TYPE: usize = 128;
    /// Characters in an aggregate type.
    pub const AGGREGATE_TYPE: usize = 64;
    /// Characters in an aggregate id.
    pub const AGGREGATE_ID: usize = 128;
    /// Characters in a tenant id.
    pub const TENANT_ID: usize = 64;
    /// Characters in a topic.
    pub const TOPIC: usize = 255;
    /// Characters in a content type.
    pub const CONTENT_TYPE: usize = 128;
    /// Bytes in a payload; JSON is counted as UTF-8.
    pub const PAYLOAD: usize = 1_048_576;
    /// Bytes in all headers together, written as JSON.
    pub const HEADERS: usize = 65_536;
}

/// Something that happened, to be delivered at least once.
///
/// Immutable and cheap to clone: clones share one allocation, and the payload is serialised once, when the event is
/// built, for the insert and for the delivery alike.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::Event;
///
/// let event = Event::builder("OrderPlaced")
///     .aggregate("Order", "42")
///     .header("trace", "7f3a")
///     .json(&serde_json::json!({ "id": 42, "total": "19.90" }))
///     .build()?;
/// assert_eq!(event.event_type(), "OrderPlaced");
/// # Ok::<(), posthaste::event::Error>(())
/// ```
#[derive(Clone)]
pub struct Event(Arc<Fields>);

#[derive(Debug, PartialEq)]
pub(crate) struct Fields {
    pub(crate) id: EventId,
    pub(crate) event_type: Box<str>,
    pub(crate) aggregate_type: Box<str>,
    pub(crate) aggregate_id: Option<Box<str>>,
    pub(crate) tenant_id: Option<Box<str>>,
    pub(crate) topic: Option<Box<str>>,
    pub(crate) content_type: Cow<'static, str>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) payload: Carried,
    pub(crate) occurred_at: Timestamp,
    pub(crate) availability: Availability,
}

/// From when on an event may be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// As soon as its transaction has committed.
    #[default]
    Now,
    /// Not before this moment, by the database's clock.
    At(Timestamp),
    /// Not before this long after the insert, by the database's clock.
    After(Duration),
}

impl Event {
    /// Starts an event of that type.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::time::Duration;
    ///
    /// use posthaste::Event;
    ///
    /// let event = Event::builder("OrderPlaced")
    ///     .aggregate("Order", 42)
    ///     .tenant_id("shop-7")
    ///     .header("trace", "7f3a")
    ///     .json(&serde_json::json!({ "total": 1990 }))
    ///     .deliver_after(Duration::from_secs(60))
    ///     .build()?;
    /// assert_eq!((event.aggregate_id(), event.is_delayed()), (Some("42"), true));
    /// # Ok::<(), posthaste::event::Error>(())
    /// ```
    pub fn builder(event_type: impl EventType) -> EventBuilder {
        EventBuilder::new(event_type)
    }

    /// An event with a JSON text as payload and defaults for everything else.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::Event;
    ///
    /// let event = Event::of_json("ShopOpened", r#"{"by":"Ada"}"#)?;
    /// assert!(Event::of_json("ShopOpened", "{by: Ada}").is_err());
    /// # let _ = event;
    /// # Ok::<(), posthaste::event::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the type is empty or too long, or the text is not JSON or too long.
    pub fn of_json(event_type: impl EventType, json: impl Into<String>) -> Result<Self, Error> {
        Self::builder(event_type).json_text(json).build()
    }

    /// The id by which receivers tell a repeated delivery.
    pub fn id(&self) -> &EventId {
        &self.0.id
    }

    /// The name that the writer chose for this type of event.
    pub fn event_type(&self) -> &str {
        &self.0.event_type
    }

    /// The type of what changed; [`GLOBAL`] when none was given.
    pub fn aggregate_type(&self) -> &str {
        &self.0.aggregate_type
    }

    /// Which aggregate changed.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.0.aggregate_id.as_deref()
    }

    /// The tenant, carried along and never interpreted.
    pub fn tenant_id(&self) -> Option<&str> {
        self.0.tenant_id.as_deref()
    }

    /// Where a relay should send it, if not where the routes say.
    pub fn topic(&self) -> Option<&str> {
        self.0.topic.as_deref()
    }

    /// The media type of the payload.
    pub fn content_type(&self) -> &str {
        &self.0.content_type
    }

    /// The headers, sorted by key.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.0.headers
    }

    /// The value of one header.
    pub fn header(&self, key: &str) -> Option<&str> {
        self.0.headers.get(key).map(String::as_str)
    }

    /// The payload as it was written, byte for byte.
    pub fn payload(&self) -> &Payload {
        &self.0.payload
    }

    /// The payload decoded from JSON.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::Event;
    ///
    /// let total: u32 = Event::of_json("OrderPlaced", "1990")?.decode()?;
    /// assert_eq!(total, 1990);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the payload is bytes that are not JSON, or JSON that does not fit `T`. As a listener's error it makes the event
    /// DEAD at once: the payload will not be another next time. The reason names the field and its place.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        let json = self.0.payload.as_bytes();
        serde_json::from_slice(json).map_err(|error| {
            // Following the path costs an allocation per field, so only what fails is read a second time for it.
            let mut again = serde_json::Deserializer::from_slice(json);
            let path = serde_path_to_error::deserialize::<_, T>(&mut again).err().map(|error| error.path().to_string());
            DecodeError::json(self, path.unwrap_or_default(), error)
        })
    }

    /// The payload as the typed event it was written as, in its present version.
    ///
    /// For listeners that take any events, such as batches; [`on`](crate::OutboxBuilder::on) hands out the decoded
    /// payload by itself.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::listener::{Delivery, Outcome, batch};
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { total: u32 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    ///
    /// let listener = batch(|events: Vec<Delivery>| async move {
    ///     let total = |event: &Delivery| Ok(event.typed::<OrderPlaced>()?.total);
    ///     events.iter().map(|event| total(event).map(|_total| Outcome::Done)).collect()
    /// });
    /// ```
    ///
    /// # Errors
    /// When it is an event of another type, of a version for which there is no upcast, or does not decode. As a
    /// listener's error it makes the event DEAD at once.
    pub fn typed<T: TypedEvent>(&self) -> Result<T, DecodeError> {
        T::upcasts().read(self)
    }

    /// The version of the payload: what the header [`VERSION_HEADER`] says, and 1 without it.
    ///
    /// # Errors
    /// When the header is not a number from 1 on.
    pub fn version(&self) -> Result<u32, DecodeError> {
        match self.header(VERSION_HEADER).map(|text| (text, text.parse())) {
            None => Ok(1),
            Some((_, Ok(version @ 1..))) => Ok(version),
            Some((text, _)) => Err(Mismatch::VersionHeader(text.to_owned()).into()),
        }
    }

    /// The payload as [`bytes::Bytes`] that share this event's memory.
    pub fn shared_payload(&self) -> bytes::Bytes {
        bytes::Bytes::from_owner(SharedPayload(self.clone()))
    }

    /// When it happened, by the clock of the machine that wrote it.
    pub fn occurred_at(&self) -> Timestamp {
        self.0.occurred_at
    }

    /// From when on it may be delivered.
    pub fn availability(&self) -> Availability {
        self.0.availability
    }

    /// Whether it waits for a later moment, and so never takes the hot path.
    pub fn is_delayed(&self) -> bool {
        self.0.availability != Availability::Now
    }

    /// A builder that starts with every field of this event, for a changed copy. The payload is shared, not copied.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::Event;
    ///
    /// let event = Event::of_json("OrderPlaced", "{}")?;
    /// let copy = event.to_builder().header("region", "eu-1").build()?;
    /// assert_eq!((copy.id(), copy.header("region")), (event.id(), Some("eu-1")));
    /// # Ok::<(), posthaste::event::Error>(())
    /// ```
    pub fn to_builder(&self) -> EventBuilder {
        EventBuilder::from_event(self)
    }

    pub(crate) fn from_fields(fields: Fields) -> Self {
        Self(Arc::new(fields))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl fmt::Debug for Event {
    /// Never prints the payload: it may hold what no log should.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.0.id)
            .field("event_type", &self.0.event_type)
            .field("aggregate_type", &self.0.aggregate_type)
            .field("aggregate_id", &self.0.aggregate_id)
            .field("payload_len", &self.0.payload.len())
            .finish_non_exhaustive()
    }
}

/// What can be written to an outbox: an [`Event`], a builder of one, a [`TypedEvent`], or a type of yours that knows how to
/// become one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be written to an outbox",
    note = "derive `Event` for it, or make an event with `Event::builder`"
)]
pub trait IntoEvent {
    /// Makes the event.
    ///
    /// # Errors
    /// When a field is missing or over its limit.
    fn into_event(self) -> Result<Event, Error>;
}

impl IntoEvent for Event {
    fn into_event(self) -> Result<Event, Error> {
        Ok(self)
    }
}

impl IntoEvent for &Event {
    fn into_event(self) -> Result<Event, Error> {
        Ok(self.clone())
    }
}

impl IntoEvent for EventBuilder {
    fn into_event(self) -> Result<Event, Error> {
        self.build()
    }
}

impl<E: IntoEvent> IntoEvent for Result<E, Error> {
    fn into_event(self) -> Result<Event, Error> {
        self?.into_event()
    }
}

struct SharedPayload(Event);

impl AsRef<[u8]> for SharedPayload {
    fn as_ref(&self) -> &[u8] {
        self.0.payload().as_bytes()
    }
}
