//! Events that are types of the user's.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{DecodeError, Error, Event, EventBuilder, GLOBAL, IntoEvent, Upcasts};
use crate::registry::ANY;

/// A type of yours that is an event: written with `tx.write(value)`, received with
/// [`on`](crate::OutboxBuilder::on).
///
/// `#[derive(Event)]` of the crate `posthaste` implements it. By hand it is short, too:
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::event::{Kind, TypedEvent};
/// use posthaste::{Delivery, MemoryStore, Outbox};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { id: u64, total: u32 }
///
/// impl TypedEvent for OrderPlaced {
///     const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)];
///     const AGGREGATE_TYPE: &'static str = "Order";
///
///     fn aggregate_id(&self) -> Option<String> {
///         Some(self.id.to_string())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::builder(MemoryStore::new())
///     .on::<OrderPlaced>(|event, order| async move { println!("{}: {}", event.id(), order.total) })
///     .start()
///     .await?;
///
/// let mut tx = outbox.begin().await?;
/// tx.write(OrderPlaced { id: 42, total: 1990 }).await?;
/// tx.commit().await?;
/// # outbox.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// The payload is the value as serde writes it to JSON.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a typed event",
    label = "not a typed event",
    note = "derive it: `#[derive(Serialize, Deserialize, Event)]` with `#[event(type = \"…\")]`"
)]
pub trait TypedEvent: Serialize + DeserializeOwned + Send + 'static {
    /// Every kind of event that a value can be: one, or one for each member of a family. Not empty.
    const KINDS: &'static [Kind];

    /// The type of what changed. Default: [`GLOBAL`], for events that belong to no aggregate.
    const AGGREGATE_TYPE: &'static str = GLOBAL;

    /// The kind of this value. Default: the first, which is right for all but families.
    fn kind(&self) -> Kind {
        const { assert!(!Self::KINDS.is_empty(), "a typed event has at least one kind") };
        Self::KINDS[0]
    }

    /// Which aggregate changed. Default: none.
    fn aggregate_id(&self) -> Option<String> {
        None
    }

    /// Puts the payload on an event that already has its type, version and aggregate, and whatever else the event should
    /// have: tenant, topic, headers. Default: the value as JSON.
    fn encode(&self, event: EventBuilder) -> EventBuilder {
        event.json(self)
    }

    /// Reads an event that is one of [`KINDS`](Self::KINDS), type and version. Default: from JSON.
    ///
    /// # Errors
    /// When the payload does not fit. The event is DEAD then.
    fn decode(event: &Event) -> Result<Self, DecodeError> {
        event.decode()
    }

    /// How to make this type of older ones. Default: not at all.
    ///
    /// Types that are made of each other, by whatever detours, are refused when a listener for one of them is registered.
    fn upcasts() -> Upcasts<Self> {
        Upcasts::new()
    }

    /// A builder that starts with this event, to give it what only this one has.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// # use posthaste::event::{Kind, TypedEvent};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { id: u64 }
    /// # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
    /// let tomorrow = std::time::Duration::from_secs(24 * 3600);
    /// let event = OrderPlaced { id: 42 }.to_builder().header("trace", "7f3a").deliver_after(tomorrow).build()?;
    /// assert_eq!(event.event_type(), "OrderPlaced");
    /// # Ok::<(), posthaste::event::Error>(())
    /// ```
    fn to_builder(&self) -> EventBuilder {
        let kind = self.kind();
        let event = Event::builder(kind.event_type).version(kind.version).aggregate_type(Self::AGGREGATE_TYPE);
        self.encode(match self.aggregate_id() {
            Some(id) => event.aggregate_id(id),
            None => event,
        })
    }
}

/// An event type and the version of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Kind {
    /// The name under which events of this kind are stored and routed.
    pub event_type: &'static str,
    /// The version of the payload; the first is 1.
    pub version: u32,
}

impl Kind {
    /// A kind of event: its type, and the version of its payload.
    ///
    /// # Panics
    /// When the type is empty or `*`, which stands for any when listening, or when the version is 0; in a constant, when it
    /// is compiled.
    pub const fn new(event_type: &'static str, version: u32) -> Self {
        assert!(!event_type.is_empty(), "an event type has at least one character");
        assert!(!same(event_type, ANY), "`*` stands for any event type when listening; give this one a name");
        assert!(version > 0, "versions count from 1");
        Self { event_type, version }
    }

    /// Whether an event of this type and version is of this kind.
    pub(super) fn is(&self, event_type: &str, version: u32) -> bool {
        self.version == version && self.event_type == event_type
    }

    /// Whether two lists have a kind in common. The derive checks with it, when it is compiled, that a type and the one
    /// it is made of can be told apart.
    #[doc(hidden)]
    pub const fn overlap(some: &[Self], others: &[Self]) -> bool {
        let mut i = 0;
        while i < some.len() {
            let mut k = 0;
            while k < others.len() {
                if some[i].version == others[k].version && same(some[i].event_type, others[k].event_type) {
                    return true;
                }
                k += 1;
            }
            i += 1;
        }
        false
    }

    /// Whether the first list has a kind that the second has in a lower version. The derive checks with it that what a type
    /// is made of is not newer than the type.
    #[doc(hidden)]
    pub const fn newer(some: &[Self], others: &[Self]) -> bool {
        let mut i = 0;
        while i < some.len() {
            let mut k = 0;
            while k < others.len() {
                if some[i].version > others[k].version && same(some[i].event_type, others[k].event_type) {
                    return true;
                }
                k += 1;
            }
            i += 1;
        }
        false
    }
}

/// Equality of texts, for constants.
const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut i = 0;
    while i < one.len() {
        if one[i] != other[i] {
            return false;
        }
        i += 1;
    }
    true
}

impl<T: TypedEvent> IntoEvent for T {
    fn into_event(self) -> Result<Event, Error> {
        self.to_builder().build()
    }
}
