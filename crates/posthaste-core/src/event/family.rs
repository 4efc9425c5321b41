//! Families of events: an enum with a variant for each type of event.
//!
//! `#[derive(Event)]` on an enum writes each variant as an event of its own: the event type says which variant it is, and
//! the payload is what the variant holds, without its name. So a listener in another program may take one member of
//! the family as a struct, or the whole family as an enum, or be no Rust program at all.
//!
//! | variant | payload |
//! |---|---|
//! | `Placed { id: u64, total: u32 }` | `{"id":42,"total":1990}` |
//! | `Cancelled(OrderCancelled)` | what `OrderCancelled` is by itself |
//! | `Archived` | `{}`, so that it may get fields one day; whatever is there is not looked at |
//!
//! It goes through the implementation that serde derives for the enum, so attributes such as `#[serde(rename)]` count.
//! The two functions here are what the derive calls. By hand:
//!
//! ```
//! # extern crate posthaste_core as posthaste;
//! use posthaste::event::{DecodeError, Event, EventBuilder, Kind, TypedEvent, family};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! enum OrderEvent {
//!     Placed { id: u64, total: u32 },
//!     Archived,
//! }
//!
//! impl TypedEvent for OrderEvent {
//!     const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1), Kind::new("OrderArchived", 1)];
//!
//!     fn kind(&self) -> Kind {
//!         match self {
//!             Self::Placed { .. } => Self::KINDS[0],
//!             Self::Archived => Self::KINDS[1],
//!         }
//!     }
//!
//!     fn encode(&self, event: EventBuilder) -> EventBuilder {
//!         event.json(&family::payload(self))
//!     }
//!
//!     fn decode(event: &Event) -> Result<Self, DecodeError> {
//!         family::decode(event, if event.event_type() == "OrderPlaced" { 0 } else { 1 })
//!     }
//! }
//!
//! let event = OrderEvent::Placed { id: 42, total: 1990 }.to_builder().build()?;
//! assert_eq!(event.event_type(), "OrderPlaced");
//! assert_eq!(event.payload().as_json(), Some(r#"{"id":42,"total":1990}"#));
//! assert!(matches!(event.typed()?, OrderEvent::Placed { id: 42, .. }));
//! # let _ = OrderEvent::Archived;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bare;
mod member;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::Track;

use super::{DecodeError, Event};

use bare::Bare;
use member::Member;

/// What the present variant of an enum holds, without the variant's name.
///
/// The enum must be one whose form serde derives, without `tag` or `untagged`; anything else fails to serialise.
pub fn payload<T: Serialize>(family: &T) -> impl Serialize {
    Bare(family)
}

/// Reads the payload as the variant at this place in the enum; the first has place 0.
///
/// # Errors
/// When the payload does not fit that variant.
pub fn decode<T: DeserializeOwned>(event: &Event, place: u32) -> Result<T, DecodeError> {
    let json = event.payload().as_bytes();
    let mut payload = serde_json::Deserializer::from_slice(json);
    T::deserialize(Member::new(place, &mut payload)).and_then(|family| payload.end().map(|()| family)).map_err(
        |error| {
            // As in `Event::decode`, only what fails is read a second time for the path.
            let mut again = serde_json::Deserializer::from_slice(json);
            let mut track = Track::new();
            let tracked = serde_path_to_error::Deserializer::new(&mut again, &mut track);
            let path = T::deserialize(Member::new(place, tracked)).err().map(|_| track.path().to_string());
            DecodeError::json(event, path.unwrap_or_default(), error)
        },
    )
}
