//! Which listener gets which event.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use foldhash::HashMap;

use crate::event::{AggregateType, Event, EventType, GLOBAL, TypedEvent};
use crate::hook::panic_text;
use crate::listener::{self, AnyListener, Delivery, Gates, Handle, HandleFn, IntoVerdict, typed};
use crate::order::OnDead;

/// Stands for every aggregate type or every event type in a registration.
pub const ANY: &str = "*";

/// Which listener gets which event: exactly one for each pair of aggregate type and event type.
///
/// The most exact registration wins: both names, then the aggregate type with any event type, then the event type with
/// any aggregate type, then the one for everything. Several listeners for one event are a
/// [`FanOut`](crate::listener::FanOut). Typed events are registered by their types instead of by names.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::listener::{Delivery, Path};
/// use posthaste::{Event, Registry};
///
/// let mut registry = Registry::new();
/// registry.register("Order", "OrderPlaced", |_: Delivery| async {})?;
/// registry.register("Order", "*", |_: Delivery| async {})?;
/// assert!(registry.register("Order", "*", |_: Delivery| async {}).is_err());
///
/// let paid = Event::builder("OrderPaid").aggregate("Order", 42).json_text("{}").build()?;
/// assert!(registry.listener_for(&paid).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Registry {
    // By event type, then by aggregate type, so that a lookup borrows the event's own strings.
    routes: HashMap<Box<str>, HashMap<Box<str>, AnyListener>>,
    choices: Vec<Choice>,
}

/// Listeners, and what says which of them gets an event.
#[derive(Clone)]
struct Choice {
    listeners: Arc<[AnyListener]>,
    choose: Arc<Choose>,
}

/// Says the place of the listener that gets an event.
type Choose = dyn Fn(&Event) -> Option<usize> + Send + Sync;

impl Choice {
    /// A function that panics has chosen nobody.
    fn listener_for(&self, event: &Event) -> Option<&AnyListener> {
        let chosen = catch_unwind(AssertUnwindSafe(|| (self.choose)(event))).unwrap_or_else(|panic| {
            tracing::error!(event_id = %event.id(), panic = panic_text(&*panic), "choice of a listener panicked");
            None
        });
        self.listeners.get(chosen?)
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choice").field("listeners", &self.listeners).finish_non_exhaustive()
    }
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
    /// Typed events are made of each other by their upcasts.
    #[error("upcasts go round in a circle: {}; remove one of these steps", circle(types))]
    Circle {
        /// The types, each made of the next one, and the last of the first.
        types: Vec<&'static str>,
    },
    /// A listener was made of settings that are wrong.
    #[error("the listener for aggregate type {aggregate_type:?} and event type {event_type:?} is not right: {mistake}")]
    Mistaken {
        /// The aggregate type.
        aggregate_type: String,
        /// The event type.
        event_type: String,
        /// What is wrong with it.
        mistake: String,
    },
    /// One of several listeners was made of settings that are wrong.
    #[error("listener {place} of those to choose from is not right: {mistake}")]
    MistakenChoice {
        /// Which one; the first is 1.
        place: usize,
        /// What is wrong with it.
        mistake: String,
    },
    /// A name is empty.
    #[error("a listener was registered with an empty {field}; give its name, or \"*\" for any")]
    Empty {
        /// Which name.
        field: &'static str,
    },
}

/// `A is made of B, which is made of A`.
fn circle(types: &[&'static str]) -> String {
    match types {
        [] => String::new(),
        [one] => format!("{one} is made of itself"),
        [first, others @ ..] => {
            let others = others.join(", which is made of ");
            format!("{first} is made of {others}, which is made of {first}")
        }
    }
}

impl Registry {
    /// A registry without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers the listener for one pair of names; `"*"` stands for any.
    ///
    /// # Errors
    /// When the pair is taken or a name is empty, or the listener cannot be used.
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
        let listener = listener.into();
        if let Some(mistake) = listener.mistake() {
            let (aggregate_type, event_type) = (aggregate_type.to_owned(), event_type.to_owned());
            return Err(Error::Mistaken { aggregate_type, event_type, mistake: mistake.to_owned() });
        }
        let by_aggregate = self.routes.entry(event_type.into()).or_default();
        if by_aggregate.contains_key(aggregate_type) {
            return Err(Error::Taken { aggregate_type: aggregate_type.to_owned(), event_type: event_type.to_owned() });
        }
        by_aggregate.insert(aggregate_type.into(), listener);
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

    /// Registers listeners among which a function chooses, by their place: for what names alone do not say, such as a tenant or
    /// a header. It is asked before names are looked at, and an event for which it gives nothing goes by its names. It is asked
    /// several times for an event, and has to give the same each time.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, Registry};
    ///
    /// let mut registry = Registry::new();
    /// let listeners = [|_: Delivery| async { println!("for the auditors") }];
    /// registry.register_by(listeners, |event| (event.tenant_id() == Some("bank")).then_some(0))?;
    ///
    /// let of_the_bank = Event::builder("Paid").tenant_id("bank").json_text("{}").build()?;
    /// assert!(registry.listener_for(&of_the_bank).is_some());
    /// assert!(registry.listener_for(&Event::of_json("Paid", "{}")?).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When one of the listeners cannot be used; nothing is registered then.
    pub fn register_by<L: Into<AnyListener>>(
        &mut self,
        listeners: impl IntoIterator<Item = L>,
        choose: impl Fn(&Event) -> Option<usize> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let listeners: Arc<[AnyListener]> = listeners.into_iter().map(Into::into).collect();
        for (place, listener) in (1..).zip(&*listeners) {
            if let Some(mistake) = listener.mistake() {
                return Err(Error::MistakenChoice { place, mistake: mistake.to_owned() });
            }
        }
        self.choices.push(Choice { listeners, choose: Arc::new(choose) });
        Ok(())
    }

    /// Registers an async function for a typed event; see [`OutboxBuilder::on`](crate::OutboxBuilder::on).
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::Registry;
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { id: u64 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    ///
    /// let mut registry = Registry::new();
    /// registry.on::<OrderPlaced>(|_event, order| async move { println!("{}", order.id) })?;
    /// # Ok::<(), posthaste::registry::Error>(())
    /// ```
    ///
    /// # Errors
    /// When one of its types is taken, or its upcasts lead back to it; nothing is registered then.
    pub fn on<T: TypedEvent>(&mut self, function: impl HandleFn<T>) -> Result<(), Error> {
        self.register_for::<T>(typed::<T>(function))
    }

    /// Registers an async function for a typed event, and what it works with; see
    /// [`OutboxBuilder::on_with`](crate::OutboxBuilder::on_with).
    ///
    /// # Errors
    /// When one of its types is taken; nothing is registered then.
    pub fn on_with<S, T, F, Fut>(&mut self, state: S, function: F) -> Result<(), Error>
    where
        S: Clone + Send + Sync + 'static,
        T: TypedEvent,
        F: Fn(S, Delivery, T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoVerdict> + Send + 'static,
    {
        self.register_for::<T>(listener::typed_with(state, function))
    }

    /// Registers a struct that handles a typed event; see [`OutboxBuilder::handle`](crate::OutboxBuilder::handle).
    ///
    /// # Errors
    /// When one of its types is taken; nothing is registered then.
    pub fn handle<T: TypedEvent>(&mut self, handler: impl Handle<T>) -> Result<(), Error> {
        self.register_for::<T>(listener::handler::<T>(handler))
    }

    /// Registers any listener for all event types of a typed event; see
    /// [`OutboxBuilder::listen_for`](crate::OutboxBuilder::listen_for).
    ///
    /// # Errors
    /// When one of them is taken, or the upcasts of the type lead back to it; nothing is registered then.
    pub fn register_for<T: TypedEvent>(&mut self, listener: impl Into<AnyListener>) -> Result<(), Error> {
        let upcasts = T::upcasts();
        if let Some(types) = upcasts.circle() {
            return Err(Error::Circle { types: types.to_vec() });
        }
        let listener = listener.into();
        let mut registry = self.clone();
        for (aggregate_type, event_type) in upcasts.routes() {
            registry.register(aggregate_type, event_type, listener.clone())?;
        }
        *self = registry;
        Ok(())
    }

    /// The listener for an event, if there is one.
    pub fn listener_for(&self, event: &Event) -> Option<&AnyListener> {
        if let Some(chosen) = self.choices.iter().find_map(|choice| choice.listener_for(event)) {
            return Some(chosen);
        }
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
        self.listeners().map(AnyListener::max_batch).max().unwrap_or(1)
    }

    /// Whether any listener has such a policy for events that it cannot deliver.
    pub(crate) fn any_dead_policy(&self, wanted: impl Fn(Option<OnDead>) -> bool) -> bool {
        self.listeners().any(|listener| wanted(listener.dead_policy()))
    }

    pub(crate) fn gates(&self) -> Gates {
        Gates::new(self.listeners().map(AnyListener::gate))
    }

    fn listeners(&self) -> impl Iterator<Item = &AnyListener> {
        let chosen = self.choices.iter().flat_map(|choice| choice.listeners.iter());
        self.routes.values().flat_map(HashMap::values).chain(chosen)
    }

    /// Whether no listener is registered.
    pub fn is_empty(&self) -> bool {
        self.listeners().next().is_none()
    }
}
