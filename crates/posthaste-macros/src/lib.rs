//! `#[derive(Event)]` of Posthaste. Use it through the crate `posthaste`, which re-exports it with its feature `derive`.

mod attributes;
mod expand;
mod field;
mod shape;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

use shape::Shape;

/// Makes a type an event: written with `tx.write(value)`, received with `on::<Type>(…)`. Comes with the feature
/// `derive`, which is on by default.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{MemoryStore, Outbox};
/// # /*
/// use posthaste::Event;
/// # */
/// # use posthaste_macros::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
/// struct OrderPlaced { id: u64, total: u32 }
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
/// The payload is the type as serde writes it to JSON, so the type derives `Serialize` and `Deserialize`, too. A value
/// is written by value or by reference.
///
/// # Attributes
///
/// | attribute | what it says | default |
/// |---|---|---|
/// | `type = "OrderPlaced"` | the event type, exactly as it is stored and routed | none: renaming the Rust type must not rename the events in the table |
/// | `version = 2` | the version of the payload | 1 |
/// | `aggregate = "Order"` | the type of what changed | no aggregate |
/// | `key = "id"` | the field that says which one changed, by its `Display` | no aggregate id |
/// | `tenant = "shop"` | the field that is the tenant, by its `Display` | no tenant |
/// | `topic = "orders"` | where a relay sends it, instead of where its routes say | the routes of the relay |
/// | `from = OrderPlacedV1` | an older type that is accepted as well, through `From`; may be repeated | the present version only |
/// | `crate = posthaste_core` | where this crate is found, if not at `::posthaste` | |
///
/// A field may be a path such as `"customer.id"`. The fields of a tuple struct are counted from `"0"`; in one with a single
/// field a name is looked up in what that field holds.
///
/// # Families
///
/// On an enum, each variant is an event type of its own. Everything but its `type` may be said for the whole enum, and be
/// said otherwise for a variant, except `aggregate`. The payload is what the variant holds, without its name.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// # /*
/// use posthaste::{Event, TypedEvent};
/// # */
/// # use posthaste::TypedEvent;
/// # use posthaste_macros::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(aggregate = "Order", key = "id")]
/// enum OrderEvent {
///     #[event(type = "OrderPlaced")]
///     Placed { id: u64, total: u32 },
///     #[event(type = "OrderCancelled")]
///     Cancelled(Cancellation),
///     /// Has no fields, so it has no key.
///     #[event(type = "OrdersArchived")]
///     Archived,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// struct Cancellation { id: u64, reason: String }
///
/// let event = OrderEvent::Placed { id: 42, total: 1990 }.to_builder().build()?;
/// assert_eq!((event.event_type(), event.aggregate_id()), ("OrderPlaced", Some("42")));
/// assert_eq!(event.payload().as_json(), Some(r#"{"id":42,"total":1990}"#));
///
/// let event = OrderEvent::Archived.to_builder().build()?;
/// assert_eq!(event.payload().as_json(), Some("{}"));
/// # let cancellation = Cancellation { id: 42, reason: String::new() };
/// # assert_eq!(OrderEvent::Cancelled(cancellation).to_builder().build()?.aggregate_id(), Some("42"));
/// # Ok::<(), posthaste::event::Error>(())
/// ```
///
/// `on::<OrderEvent>(…)` gets all of them, as the enum.
///
/// # Versions
///
/// When the payload changes so that the old one no longer decodes, keep the old type beside the new one, raise the
/// version, and say how to make the new of the old:
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// # /*
/// use posthaste::Event;
/// # */
/// # use posthaste_macros::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
/// struct OrderPlacedV1 { id: u64, total: u32 }
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(type = "OrderPlaced", aggregate = "Order", key = "id", version = 2, from = OrderPlacedV1)]
/// struct OrderPlaced { id: u64, total: u32, currency: String }
///
/// impl From<OrderPlacedV1> for OrderPlaced {
///     fn from(old: OrderPlacedV1) -> Self {
///         Self { id: old.id, total: old.total, currency: "EUR".into() }
///     }
/// }
///
/// let old = posthaste::Event::of_json("OrderPlaced", r#"{"id":42,"total":1990}"#)?;
/// assert_eq!(old.typed::<OrderPlaced>()?.currency, "EUR");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What is given as `from` must be older: of the same event type it has a lower version, and it is not made of this type in
/// turn, by whatever detours. A listener for the new type gets both. A version that is neither the present one nor one of those is DEAD, with a
/// reason that says so; deploy listeners before writers.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    match Shape::of(&input) {
        Ok(shape) => expand::expand(&shape).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
