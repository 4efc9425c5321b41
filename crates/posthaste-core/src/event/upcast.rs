//! Older versions of a typed event.

use std::any::{TypeId, type_name};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use super::{DecodeError, Event, Kind, TypedEvent};
use crate::event::error::Mismatch;

/// How to make a `T` of older versions of it.
///
/// An older version is a typed event of its own, with the same event type and a lower version, and a function that makes
/// a `T` of it. What the older one accepts is accepted, too: with a function from 1 to 2 and one from 2 to 3, a listener
/// for version 3 takes all three. The older type may also have another event type, if that was renamed.
///
/// Belongs to the type, in [`TypedEvent::upcasts`], or to one listener, with
/// [`Typed::upcast`](crate::listener::Typed::upcast). `#[event(from = OrderPlacedV1)]` of the derive writes it with
/// [`From`].
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::Event;
/// use posthaste::event::{Kind, TypedEvent, Upcasts};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlacedV1 { id: u64, total: u32 }
///
/// impl TypedEvent for OrderPlacedV1 {
///     const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)];
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { id: u64, total: u32, currency: String }
///
/// impl TypedEvent for OrderPlaced {
///     const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 2)];
///
///     fn upcasts() -> Upcasts<Self> {
///         Upcasts::new().upcast(|old: OrderPlacedV1| Self { id: old.id, total: old.total, currency: "EUR".into() })
///     }
/// }
///
/// let old = Event::of_json("OrderPlaced", r#"{"id":42,"total":1990}"#)?;
/// let order: OrderPlaced = old.typed()?;
/// assert_eq!(order.currency, "EUR");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Upcasts<T> {
    steps: Vec<Step<T>>,
    /// The names of types that are made of each other, if there are such.
    circle: Option<Vec<&'static str>>,
}

/// How to make a `T` of one older kind of event.
struct Step<T> {
    aggregate_type: &'static str,
    kind: Kind,
    /// How many functions it takes. Of two ways from the same kind the shorter one is taken.
    length: usize,
    read: Read<T>,
}

type Read<T> = Arc<dyn Fn(&Event) -> Result<T, DecodeError> + Send + Sync>;

impl<T: TypedEvent> Upcasts<T> {
    /// None: only the present version is accepted.
    pub fn new() -> Self {
        Self { steps: Vec::new(), circle: None }
    }

    /// Accepts an older type, and everything that it accepts, through this function.
    #[must_use]
    pub fn upcast<Old: TypedEvent>(mut self, convert: impl Fn(Old) -> T + Send + Sync + 'static) -> Self {
        let convert = Arc::new(convert);
        for kind in Old::KINDS {
            let convert = Arc::clone(&convert);
            self.steps.push(Step {
                aggregate_type: Old::AGGREGATE_TYPE,
                kind: *kind,
                length: 1,
                read: Arc::new(move |event| Old::decode(event).map(|old| convert(old))),
            });
        }
        // Without this check, types that are made of each other would ask each other without end.
        let older = Making::begin::<T>().of::<Old>().map(|_making| Old::upcasts());
        let older = older.unwrap_or_else(|circle| Upcasts { steps: Vec::new(), circle: Some(circle) });
        self.circle = self.circle.or(older.circle);
        for older in older.steps {
            let convert = Arc::clone(&convert);
            self.steps.push(Step {
                aggregate_type: older.aggregate_type,
                kind: older.kind,
                length: older.length + 1,
                read: Arc::new(move |event| (older.read)(event).map(|old| convert(old))),
            });
        }
        self
    }

    /// The names of types that are made of each other, each of the next one, the last of the first.
    pub(crate) fn circle(&self) -> Option<&[&'static str]> {
        self.circle.as_deref()
    }

    /// The event as a `T`, if it is one or can be made one.
    pub(crate) fn read(&self, event: &Event) -> Result<T, DecodeError> {
        let event_type = event.event_type();
        let version = event.version().map_err(|error| error.of(event_type, None))?;
        let read = if T::KINDS.iter().any(|kind| kind.is(event_type, version)) {
            T::decode(event)
        } else if let Some(step) = self.shortest(event_type, version) {
            (step.read)(event)
        } else {
            Err(self.not_accepted(event_type, version).into())
        };
        read.map_err(|error| error.of(event_type, Some(version)))
    }

    fn shortest(&self, event_type: &str, version: u32) -> Option<&Step<T>> {
        self.steps.iter().filter(|step| step.kind.is(event_type, version)).min_by_key(|step| step.length)
    }

    fn not_accepted(&self, event_type: &str, version: u32) -> Mismatch {
        let kinds = || T::KINDS.iter().chain(self.steps.iter().map(|step| &step.kind));
        let mut versions: Vec<u32> =
            kinds().filter(|kind| kind.event_type == event_type).map(|kind| kind.version).collect();
        versions.sort_unstable();
        versions.dedup();
        if versions.is_empty() {
            let mut types: Vec<&'static str> = kinds().map(|kind| kind.event_type).collect();
            types.sort_unstable();
            types.dedup();
            Mismatch::EventType { accepted: types }
        } else {
            Mismatch::Version { version, accepted: versions }
        }
    }

    /// Every pair of aggregate type and event type that can be read.
    pub(crate) fn routes(&self) -> Vec<(&'static str, &'static str)> {
        const { assert!(!T::KINDS.is_empty(), "a typed event has at least one kind") };
        let present = T::KINDS.iter().map(|kind| (T::AGGREGATE_TYPE, kind.event_type));
        let older = self.steps.iter().map(|step| (step.aggregate_type, step.kind.event_type));
        let mut routes: Vec<_> = present.chain(older).collect();
        routes.sort_unstable();
        routes.dedup();
        routes
    }
}

thread_local! {
    /// The types whose upcasts this thread is just asking for, each for the one before it.
    static MAKING: RefCell<Vec<(TypeId, &'static str)>> = const { RefCell::new(Vec::new()) };
}

/// Says, until it is dropped, that upcasts of a type are being made.
struct Making;

impl Making {
    fn begin<T: 'static>() -> Self {
        MAKING.with_borrow_mut(|types| types.push((TypeId::of::<T>(), type_name::<T>())));
        Self
    }

    /// Goes on with an older type, unless that is being made already: then these are the types that lead to it.
    fn of<Old: 'static>(self) -> Result<Self, Vec<&'static str>> {
        let circle = MAKING.with_borrow(|types| {
            let first = types.iter().position(|(id, _)| *id == TypeId::of::<Old>())?;
            Some(types[first..].iter().map(|(_, name)| *name).collect())
        });
        circle.map_or(Ok(self), Err)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        MAKING.with_borrow_mut(Vec::pop);
    }
}

impl<T: TypedEvent> Default for Upcasts<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Upcasts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps.iter().map(|step| step.kind)).finish()
    }
}
