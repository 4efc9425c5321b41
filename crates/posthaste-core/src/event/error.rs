//! Why an event could not be built.

use std::fmt;
use std::time::Duration;

use super::{Event, Payload, VERSION_HEADER};
use crate::time::Timestamp;

/// An event that could not be built: which one, and why. Nothing was written.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::Event;
/// use posthaste::event::{Error, Mistake};
///
/// let unfinished = Event::builder("OrderPlaced").id("request-8812").build();
/// assert!(matches!(unfinished, Err(Error { mistake: Mistake::NoPayload, .. })));
/// assert_eq!(unfinished.unwrap_err().to_string(), "event OrderPlaced (id request-8812) could not be built");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// Its type, if it has one. A long one is cut.
    pub event_type: Option<Box<str>>,
    /// Its id, if one was given. A long one is cut.
    pub id: Option<Box<str>>,
    /// Which one it is of those that were given together; the first is 1.
    pub place: Option<usize>,
    /// What is wrong with it.
    pub mistake: Mistake,
}

impl From<Mistake> for Error {
    fn from(mistake: Mistake) -> Self {
        Self { event_type: None, id: None, place: None, mistake }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.mistake)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.place, &self.event_type) {
            (Some(place), Some(event_type)) => write!(f, "event {place} of those given, {event_type}")?,
            (Some(place), None) => write!(f, "event {place} of those given")?,
            (None, Some(event_type)) => write!(f, "event {event_type}")?,
            (None, None) => f.write_str("the event")?,
        }
        if let Some(id) = &self.id {
            write!(f, " (id {id})")?;
        }
        // Only a pair of commas needs its second one.
        let comma = if self.place.is_some() && self.event_type.is_some() { "," } else { "" };
        write!(f, "{comma} could not be built")
    }
}

/// What is wrong with an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// A field that must not be empty is.
    #[error("{field} is empty; give it at least one character")]
    Empty {
        /// Which field.
        field: &'static str,
    },
    /// A text is longer than its column.
    #[error("{field} has {len} characters, the limit is {max}; shorten it, or put the long part in the payload")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its length in characters.
        len: usize,
        /// The limit in characters.
        max: usize,
    },
    /// A text holds the character U+0000, which PostgreSQL cannot store.
    #[error("{field} holds the character U+0000, which not every database can store; remove it")]
    Nul {
        /// Which field.
        field: &'static str,
    },
    /// The key or the value of a header holds the character U+0000.
    #[error("header {key:?} holds the character U+0000, which not every database can store; remove it")]
    NulInHeader {
        /// Which header. A long key is cut.
        key: String,
    },
    /// No payload was given.
    #[error("payload is missing; give it with json, json_text or bytes")]
    NoPayload,
    /// Two payloads were given.
    #[error("payload was given twice, as {first} and as {second}; give exactly one")]
    TwoPayloads {
        /// The form given first.
        first: &'static str,
        /// The form given after it.
        second: &'static str,
    },
    /// The payload is too large.
    #[error(
        "payload has {len} bytes, the limit is {max}; store the large part elsewhere and put a reference to it in the event"
    )]
    PayloadTooLarge {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The text given as JSON is not JSON.
    #[error("payload is not valid JSON; send text that is not JSON with bytes")]
    NotJson(#[source] serde_json::Error),
    /// The value given as payload could not be turned into JSON.
    #[error("payload could not be serialised to JSON; change its type, or encode it yourself and give it with bytes")]
    NotSerialisable(#[source] serde_json::Error),
    /// A version of zero.
    #[error("version is 0; versions count from 1, which is what it is if it is left out")]
    NoVersion,
    /// The headers are too large together.
    #[error("headers have {len} bytes as JSON, the limit is {max}; put the large ones in the payload")]
    HeadersTooLarge {
        /// Their length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Both a moment and a delay were given.
    #[error("available_at and deliver_after were both given; give one of them")]
    TwoAvailabilities,
    /// A delay of zero.
    #[error("deliver_after is zero; leave it out to deliver at once")]
    NoDelay,
    /// A delay too long to express.
    #[error("deliver_after is {0:?}, the limit is 100 years; give a shorter one")]
    DelayTooLong(Duration),
    /// It should be available before it happened.
    #[error(
        "available_at is {available_at}, before occurred_at, {occurred_at}, and nothing is delivered before it happened; \
         give a later available_at, or an earlier occurred_at"
    )]
    AvailableBeforeOccurred {
        /// When it should be available.
        available_at: Timestamp,
        /// When it happened.
        occurred_at: Timestamp,
    },
}

impl Mistake {
    /// The same, naming the event, as far as it says what it is.
    pub(super) fn of(self, event_type: &str, id: Option<&str>) -> Error {
        let shown = |text: &str| (!text.is_empty()).then(|| shown(text));
        Error { event_type: shown(event_type), id: id.and_then(shown), place: None, mistake: self }
    }

    /// Refuses text that is too long or that not every database can store.
    pub(crate) fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), Self> {
        if text.contains('\0') {
            return Err(Self::Nul { field });
        }
        // Most texts are short enough even if every byte were a character.
        if text.len() > max {
            let len = text.chars().count();
            if len > max {
                return Err(Self::TooLong { field, len, max });
            }
        }
        Ok(())
    }
}

/// As much of a name as a message shows.
const SHOWN: usize = 64;

/// A name that may be as wrong as can be, for a message.
fn shown(text: &str) -> Box<str> {
    let mut escaped = text.escape_debug();
    let mut shown: String = escaped.by_ref().take(SHOWN).collect();
    if escaped.next().is_some() {
        shown.push('…');
    }
    shown.into_boxed_str()
}

/// A payload that does not decode. A listener that fails with it, even wrapped in other errors, makes the event DEAD.
#[derive(Debug)]
pub struct DecodeError {
    /// Once it is known.
    event_type: Option<Box<str>>,
    /// Once it is known.
    version: Option<u32>,
    mismatch: Mismatch,
}

impl DecodeError {
    /// A payload that a decoder of your own does not accept, and why.
    pub fn other(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Mismatch::Other(reason.into()).into()
    }

    /// A payload that is no JSON, or JSON that does not fit, and where in it. An empty path and `.` stand for the whole.
    pub(crate) fn json(event: &Event, path: String, error: serde_json::Error) -> Self {
        match (event.payload(), path.as_str()) {
            (Payload::Bytes(_), _) if !error.is_data() => Mismatch::Bytes(error).into(),
            (_, "" | ".") => Mismatch::Whole(error).into(),
            _ => Mismatch::Field { path, error }.into(),
        }
    }

    /// The same, naming what did not decode.
    pub(crate) fn of(mut self, event_type: &str, version: Option<u32>) -> Self {
        self.event_type = Some(event_type.into());
        self.version = version;
        self
    }
}

impl From<Mismatch> for DecodeError {
    fn from(mismatch: Mismatch) -> Self {
        Self { event_type: None, version: None, mismatch }
    }
}

impl std::error::Error for DecodeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.mismatch)
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.event_type.as_deref().unwrap_or("the payload"))?;
        if let Some(version) = self.version {
            write!(f, " version {version}")?;
        }
        f.write_str(" does not decode")
    }
}

/// What did not fit. A type of its own, so that it is recognised wherever it is in a chain of errors.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("{0}; {MEND}")]
    Whole(serde_json::Error),
    #[error("{path}: {error}; {MEND}")]
    Field { path: String, error: serde_json::Error },
    #[error("the payload is bytes, which are not JSON: {0}; {READ_BYTES}")]
    Bytes(serde_json::Error),
    #[error("version {version} is not accepted, only {}; {}", list(accepted), what_to_do(*version, accepted))]
    Version { version: u32, accepted: Vec<u32> },
    #[error("this event type is not accepted, only {}; listen for it with a listener of its own", list(accepted))]
    EventType { accepted: Vec<&'static str> },
    #[error(
        "the header {VERSION_HEADER} is {0:?}, which is not a version; write a whole number from 1 on, or leave it out for 1"
    )]
    VersionHeader(String),
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

const MEND: &str = "mend the reader or the payload, then redrive the event";

const READ_BYTES: &str = "read them with payload().as_bytes(), or write JSON, then redrive the event";

/// `1`, `1 and 2`, `1, 2 and 3`.
fn list(items: &[impl fmt::Display]) -> String {
    let mut text = String::new();
    for (place, item) in items.iter().enumerate() {
        text.push_str(match place {
            0 => "",
            _ if place + 1 == items.len() => " and ",
            _ => ", ",
        });
        text.push_str(&item.to_string());
    }
    text
}

fn what_to_do(version: u32, accepted: &[u32]) -> &'static str {
    if accepted.iter().all(|known| version > *known) {
        "it is newer than this program: update it, then redrive the event"
    } else {
        "add an upcast from it, then redrive the event"
    }
}
