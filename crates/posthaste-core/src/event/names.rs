//! Names of event and aggregate types.

/// The aggregate type of events that belong to no aggregate.
pub const GLOBAL: &str = "__GLOBAL__";

/// The type of an event: a stable name that its author chose.
///
/// Strings are event types as they are. An enum gives a family of them:
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Event, EventType};
///
/// enum Orders { Placed, Cancelled }
///
/// impl EventType for Orders {
///     fn name(&self) -> &str {
///         match self {
///             Orders::Placed => "OrderPlaced",
///             Orders::Cancelled => "OrderCancelled",
///         }
///     }
/// }
///
/// let event = Event::of_json(Orders::Cancelled, "{}")?;
/// assert_eq!(event.event_type(), "OrderCancelled");
/// # let _ = Orders::Placed;
/// # Ok::<(), posthaste::event::Error>(())
/// ```
pub trait EventType {
    /// The name under which events of this type are stored and routed.
    fn name(&self) -> &str;
}

/// The type of an aggregate: a stable name that its author chose. Strings and enums serve as for [`EventType`].
pub trait AggregateType {
    /// The name under which aggregates of this type are stored and routed.
    fn name(&self) -> &str;
}

macro_rules! strings_are_names {
    ($($name:ident),*) => {$(
        impl $name for str {
            fn name(&self) -> &str {
                self
            }
        }

        impl $name for String {
            fn name(&self) -> &str {
                self
            }
        }

        impl<T: $name + ?Sized> $name for &T {
            fn name(&self) -> &str {
                (**self).name()
            }
        }
    )*};
}

strings_are_names!(EventType, AggregateType);
