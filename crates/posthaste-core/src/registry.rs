//! Which listener gets which event.

use foldhash::HashMap;

use crate::event::{AggregateType, Event, EventType, GLOBAL};
use crate::listener::AnyListener;

/// Stands for every aggregate type or every event type in a registration.
pub const ANY: &str = "*";

/// Which listener gets which event: exactly one for each pair of aggregate type and event type.
///
/// The most exact registration wins: both names, then the aggregate type with any event type, then the event type with
/// any aggregate type, then the one for everything. Several listeners for one event are a
/// [`FanOut`](crate::listener::FanOut).
#[derive(Clone, Debug, Default)]
pub struct Registry {
    // By event type, then by aggregate type, so that a lookup borrows the event's own strings.
    routes: HashMap<Box<str>, HashMap<Box<str>, AnyListener>>,
}

/// Why a listener could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pair has a listener already.
    #[error(
        "aggregate type {aggregate_type:?} and event type {event_type:?} have a listener already; \
         put both listeners in one FanOut"
    )]
    Taken {
        /// The aggregate type.
        aggregate_type: String,
        /// The event type.
        event_type: String,
    },
    /// A name is empty.
    #[error("a listener was registered with an empty {field}; give its name, or \"*\" for any")]
    Empty {
        /// Which name.
        field: &'static str,
    },
}

impl Registry {
    /// A registry without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the listener for one pair of names; `"*"` stands for any.
    ///
    /// # Errors
    /// When the pair is taken or a name is empty.
    pub fn register(
        &mut self,
        aggregate_type: impl AggregateType,
        event_type: impl EventType,
        listener: impl Into<AnyListener>,
    ) -> Result<(), Error> {
        let (aggregate_type, event_type) = (aggregate_type.name(), event_type.name());
        if aggregate_type.is_empty() {
            return Err(Error::Empty { field: "aggregate type" });
        }
        if event_type.is_empty() {
            return Err(Error::Empty { field: "event type" });
        }
        let by_aggregate = self.routes.entry(event_type.into()).or_default();
        if by_aggregate.contains_key(aggregate_type) {
            return Err(Error::Taken { aggregate_type: aggregate_type.to_owned(), event_type: event_type.to_owned() });
        }
        by_aggregate.insert(aggregate_type.into(), listener.into());
        Ok(())
    }

    /// Registers the listener for events of that type that belong to no aggregate.
    ///
    /// # Errors
    /// When the type is taken or empty.
    pub fn register_global(
        &mut self,
        event_type: impl EventType,
        listener: impl Into<AnyListener>,
    ) -> Result<(), Error> {
        self.register(GLOBAL, event_type, listener)
    }

    /// Registers the listener for every event that no other listener gets.
    ///
    /// # Errors
    /// When there is one already.
    pub fn register_all(&mut self, listener: impl Into<AnyListener>) -> Result<(), Error> {
        self.register(ANY, ANY, listener)
    }

    /// The listener for an event, if there is one.
    pub fn listener_for(&self, event: &Event) -> Option<&AnyListener> {
        let (aggregate_type, event_type) = (event.aggregate_type(), event.event_type());
        let of_type = self.routes.get(event_type);
        let of_any_type = self.routes.get(ANY);
        of_type
            .and_then(|routes| routes.get(aggregate_type))
            .or_else(|| of_any_type.and_then(|routes| routes.get(aggregate_type)))
            .or_else(|| of_type.and_then(|routes| routes.get(ANY)))
            .or_else(|| of_any_type.and_then(|routes| routes.get(ANY)))
    }

    /// The most events that any listener takes at once.
    pub(crate) fn largest_batch(&self) -> usize {
        let listeners = self.routes.values().flat_map(HashMap::values);
        listeners.map(AnyListener::max_batch).max().unwrap_or(1)
    }

    /// Whether no listener is registered.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }
}
