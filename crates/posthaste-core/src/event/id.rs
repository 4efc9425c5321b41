//! Event ids.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ulid::{Generator, Overflow};

use super::{Mistake, limit};

/// The id of an event: a ULID unless its author chose another, and the key by which receivers tell repeats.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::EventId;
///
/// assert!(EventId::generate() < EventId::generate());
/// assert_eq!(EventId::new("request-8812")?.as_str(), "request-8812");
/// # Ok::<(), posthaste::event::Mistake>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(Arc<str>);

impl EventId {
    /// A new ULID, greater than every one that this process has made before.
    pub fn generate() -> Self {
        static GENERATOR: Mutex<Generator> = Mutex::new(Generator::new());
        let mut generator = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        let ulid = generator.generate().unwrap_or_else(Overflow::commit_overflow_increment);
        let mut text = [0; ulid::ULID_LEN];
        Self(Arc::from(&*ulid.array_to_str(&mut text)))
    }

    /// An id that the caller chose.
    ///
    /// # Errors
    /// When it is empty, longer than [`limit::ID`] characters, or holds a NUL.
    pub fn new(id: impl AsRef<str>) -> Result<Self, Mistake> {
        let id = id.as_ref();
        Mistake::check_text("id", id, limit::ID)?;
        if id.is_empty() {
            return Err(Mistake::Empty { field: "id" });
        }
        Ok(Self(Arc::from(id)))
    }

    /// An id as it stands in a row, without checks: the row exists, whatever it is called.
    pub fn from_row(id: impl AsRef<str>) -> Self {
        Self(Arc::from(id.as_ref()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for EventId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for EventId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for EventId {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for EventId {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
