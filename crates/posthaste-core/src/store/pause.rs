//! What operators have told relays not to deliver for the time being.

use crate::time::Timestamp;

/// What is paused: a route of the relays, or a destination. What these are is for the relays to say; a store keeps the names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Paused {
    /// A route.
    Route(String),
    /// A destination, and with it every route that leads there.
    Destination(String),
}

impl Paused {
    /// The longest name, in characters.
    pub const LONGEST_NAME: usize = 128;

    /// The number that stands for its kind in the table.
    pub fn kind(&self) -> i16 {
        match self {
            Self::Route(_) => 0,
            Self::Destination(_) => 1,
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        match self {
            Self::Route(name) | Self::Destination(name) => name,
        }
    }

    /// What a number and a name of the table stand for.
    pub fn from_row(kind: i64, name: String) -> Option<Self> {
        match kind {
            0 => Some(Self::Route(name)),
            1 => Some(Self::Destination(name)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Paused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Route(name) => write!(f, "route {name}"),
            Self::Destination(name) => write!(f, "destination {name}"),
        }
    }
}

/// A pause, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// What is paused.
    pub what: Paused,
    /// Why, if somebody has said so.
    pub reason: Option<String>,
    /// Since when, by the database's clock.
    pub since: Timestamp,
}
