//! Why an event could not be built.

use std::time::Duration;

use crate::time::Timestamp;

/// Why an event could not be built. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    #[error("payload could not be serialised to JSON")]
    NotSerialisable(#[source] serde_json::Error),
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
        "available_at is {available_at}, before occurred_at, {occurred_at}; an event cannot be delivered before it happened"
    )]
    AvailableBeforeOccurred {
        /// When it should be available.
        available_at: Timestamp,
        /// When it happened.
        occurred_at: Timestamp,
    },
}

impl Error {
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

/// A payload that does not decode. A listener that fails with it, even wrapped in other errors, makes the event DEAD.
#[derive(Debug, thiserror::Error)]
#[error("the payload does not decode")]
pub struct DecodeError(#[source] Mismatch);

impl DecodeError {
    pub(crate) fn new(error: serde_json::Error) -> Self {
        Self(Mismatch(error))
    }
}

/// What did not fit. A type of its own, so that it is recognised wherever it is in a chain of errors.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Mismatch(serde_json::Error);
