//! A row as a database gives it, and what makes it an event.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::event::{Availability, Event, EventId, Fields, GLOBAL, JSON, OCTETS, Payload};
use crate::time::Timestamp;

/// The columns of an event as a database gives them, before anybody knows whether they make sense.
#[derive(Clone, Debug)]
pub struct RawRow {
    /// `event_id`.
    pub event_id: EventId,
    /// `event_type`.
    pub event_type: String,
    /// `aggregate_type`.
    pub aggregate_type: Option<String>,
    /// `aggregate_id`.
    pub aggregate_id: Option<String>,
    /// `tenant_id`.
    pub tenant_id: Option<String>,
    /// `topic`.
    pub topic: Option<String>,
    /// `content_type`; see [`content_type`](Self::content_type).
    pub content_type: Option<Cow<'static, str>>,
    /// `payload`.
    pub payload: Option<String>,
    /// `payload_bytes`.
    pub payload_bytes: Option<Vec<u8>>,
    /// `headers`, a JSON object of strings.
    pub headers: Option<String>,
    /// `occurred_at`, in microseconds.
    pub occurred_at: Option<i64>,
    /// `created_at`, in microseconds.
    pub created_at: i64,
}

impl RawRow {
    /// A content type as it stands in a row. The usual ones need no memory of their own.
    pub fn content_type(text: &str) -> Cow<'static, str> {
        match text {
            JSON => JSON.into(),
            OCTETS => OCTETS.into(),
            other => other.to_owned().into(),
        }
    }

    /// Makes the event.
    ///
    /// # Errors
    /// What is wrong with the row, for its `last_error`.
    pub fn decode(self) -> Result<Event, String> {
        if self.event_type.is_empty() {
            return Err("event_type is empty; it needs at least one character".to_owned());
        }
        let payload = match (self.payload, self.payload_bytes) {
            (Some(text), None) => Payload::Json(text.into_boxed_str())
                .checked()
                .map_err(|error| format!("payload is not JSON: {}", source_text(&error)))?,
            (None, Some(bytes)) => Payload::Bytes(bytes.into_boxed_slice()),
            (None, None) => return Err("payload and payload_bytes are both NULL; exactly one must be set".to_owned()),
            (Some(_), Some(_)) => {
                return Err("payload and payload_bytes are both set; exactly one must be set".to_owned());
            }
        };
        let headers = match self.headers.as_deref() {
            None | Some("" | "null") => BTreeMap::new(),
            Some(json) => serde_json::from_str(json)
                .map_err(|error| format!("headers are not a JSON object of strings: {error}"))?,
        };
        let content_type = self.content_type.unwrap_or(match payload {
            Payload::Json(_) => Cow::Borrowed(JSON),
            Payload::Bytes(_) => Cow::Borrowed(OCTETS),
        });
        Ok(Event::from_fields(Fields {
            id: self.event_id,
            event_type: self.event_type.into_boxed_str(),
            aggregate_type: self.aggregate_type.map_or_else(|| GLOBAL.into(), String::into_boxed_str),
            aggregate_id: self.aggregate_id.map(String::into_boxed_str),
            tenant_id: self.tenant_id.map(String::into_boxed_str),
            topic: self.topic.map(String::into_boxed_str),
            content_type,
            headers,
            payload: payload.into(),
            occurred_at: Timestamp::from_micros(self.occurred_at.unwrap_or(self.created_at)),
            availability: Availability::Now,
        }))
    }
}

fn source_text(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The most characters of an error that a row keeps.
const LONGEST_ERROR: usize = 4000;

/// An error as a row keeps it: at most 4000 characters, and without U+0000, which not every database can store.
pub fn cut_error(text: &str) -> String {
    text.chars().map(|c| if c == '\0' { '\u{fffd}' } else { c }).take(LONGEST_ERROR).collect()
}
