//! What keeps events from a listener for a while.

use std::sync::Arc;
use std::time::Duration;

/// Says whether a listener can be reached at all, before events are claimed for it.
///
/// Where every listener of an outbox is behind a gate that is shut, nothing is claimed until one of them opens. Where only some
/// are, their events are still claimed with the others, and the listener puts them off with
/// [`Outcome::RetryAfter`](super::Outcome::RetryAfter).
pub trait Gate: Send + Sync + 'static {
    /// How much would pass now. Asked before every claim: be quick.
    fn room(&self) -> Room;
}

/// How much would pass a [`Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Room {
    /// Everything.
    Open,
    /// So many events, to try whether more would.
    Few(usize),
    /// Nothing for that long.
    ShutFor(Duration),
}

impl Room {
    /// Of two ways, the one that lets more through, or sooner.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Open, _) | (_, Self::Open) => Self::Open,
            (Self::Few(one), Self::Few(other)) => Self::Few(one.max(other)),
            (Self::Few(few), _) | (_, Self::Few(few)) => Self::Few(few),
            (Self::ShutFor(one), Self::ShutFor(other)) => Self::ShutFor(one.min(other)),
        }
    }

    /// Of two gates one behind the other.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Open, room) | (room, Self::Open) => room,
            (Self::Few(one), Self::Few(other)) => Self::Few(one.min(other)),
            (Self::ShutFor(one), Self::ShutFor(other)) => Self::ShutFor(one.max(other)),
            (shut @ Self::ShutFor(_), _) | (_, shut @ Self::ShutFor(_)) => shut,
        }
    }
}

/// Gates that are passed one after the other.
pub(super) struct InARow(pub(super) Vec<Arc<dyn Gate>>);

impl Gate for InARow {
    fn room(&self) -> Room {
        self.0.iter().map(|gate| gate.room()).fold(Room::Open, Room::and)
    }
}

/// The gates of all listeners, without the listeners, which a shutdown lets go.
pub(crate) struct Gates(Option<Vec<Arc<dyn Gate>>>);

impl Gates {
    /// One listener without a gate is enough, and usual: then none of the others is asked.
    pub(crate) fn new(gates: impl Iterator<Item = Option<Arc<dyn Gate>>>) -> Self {
        let all: Option<Vec<_>> = gates.collect();
        Self(all.filter(|all| !all.is_empty()))
    }

    /// How much would pass them.
    pub(crate) fn room(&self) -> Room {
        let gates = self.0.iter().flatten();
        gates.map(|gate| gate.room()).reduce(Room::or).unwrap_or(Room::Open)
    }
}
