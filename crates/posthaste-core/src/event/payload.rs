//! What an event carries.

use std::fmt;
use std::ops::Deref;

use super::Event;

/// What an event carries: JSON text or bytes, kept exactly as written.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// JSON, checked when the event was built, never reformatted.
    Json(Box<str>),
    /// Anything else.
    Bytes(Box<[u8]>),
}

impl Payload {
    /// The bytes of either form; JSON as UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Json(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// The JSON text, unless the payload is bytes.
    pub fn as_json(&self) -> Option<&str> {
        match self {
            Self::Json(text) => Some(text),
            Self::Bytes(_) => None,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The payload of an event: its own, or that of the event of which it is a changed copy.
pub(crate) enum Carried {
    Own(Payload),
    /// Of one that has its own.
    Of(Event),
}

impl Carried {
    /// Whose it is, if it is another event's.
    pub(crate) fn owner(&self) -> Option<&Event> {
        match self {
            Self::Own(_) => None,
            Self::Of(event) => Some(event),
        }
    }
}

impl From<Payload> for Carried {
    fn from(payload: Payload) -> Self {
        Self::Own(payload)
    }
}

impl Deref for Carried {
    type Target = Payload;

    fn deref(&self) -> &Payload {
        match self {
            Self::Own(payload) => payload,
            Self::Of(event) => event.payload(),
        }
    }
}

impl PartialEq for Carried {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Debug for Payload {
    /// Prints the form and the length only: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.as_json().is_some() { "Json" } else { "Bytes" };
        write!(f, "{form}({} bytes)", self.len())
    }
}
