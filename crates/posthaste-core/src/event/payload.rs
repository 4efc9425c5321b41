//! What an event carries.

use std::fmt;

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

impl fmt::Debug for Payload {
    /// Prints the form and the length only: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.as_json().is_some() { "Json" } else { "Bytes" };
        write!(f, "{form}({} bytes)", self.len())
    }
}
