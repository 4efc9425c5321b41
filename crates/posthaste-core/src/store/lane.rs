//! What a relay needs that owns rows by whole lanes of keys, instead of one by one.

use std::time::Duration;

use super::{Action, BoxFuture, ClaimedRow, Error, Malformed, Settled};
use crate::event::{Event, EventId};

/// The number of a lane: a part of all keys, by hash. They count from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub u16);

/// A lane that is leased, and the fence around every settlement of its rows.
///
/// Each lease of a lane raises its epoch, so no two owners ever have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneLease {
    /// Which lane.
    pub lane: Lane,
    /// Under which epoch.
    pub epoch: i64,
}

/// The aggregate that events are of, and within which they can be delivered in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The type of the aggregate.
    pub aggregate_type: Box<str>,
    /// Its id.
    pub aggregate_id: Box<str>,
}

impl Key {
    /// The key of an event, if it has an aggregate id.
    pub fn of(event: &Event) -> Option<Self> {
        let aggregate_id = event.aggregate_id()?.into();
        Some(Self { aggregate_type: event.aggregate_type().into(), aggregate_id })
    }
}

/// What a relay needs to own rows by lanes: to lease lanes, to read their rows without writing them, and to settle under the
/// lane's epoch. Object-safe.
///
/// Each method is one statement or one transaction. When its future is dropped it may or may not have been carried out. Every
/// decision about time is the database's.
pub trait LaneStore: Send + Sync + 'static {
    /// How many lanes there are.
    ///
    /// # Errors
    /// When the table is not prepared for lanes, and what to do about it.
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>>;

    /// The lane of an event, as the database computes it; nothing if this store cannot tell without asking.
    fn lane_of(&self, event: &Event) -> Option<Lane>;

    /// Leases up to `wanted` lanes that nobody has, or whose lease has run out, for that long. Every other owner's settlements
    /// in them that come later are refused.
    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>>;

    /// Extends the leases that still stand, from now on, and says that this relay is there, for as long.
    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>>;

    /// Gives lanes back that this owner still holds. Others may lease them at once, so nothing of them may be under way.
    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>>;

    /// Reads what is pending in lanes, whether it is due or not, and changes nothing. The rows of a lane come in the order of
    /// their numbers, all from one snapshot.
    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>>;

    /// Writes outcomes back, each only if its lane is leased to this owner under that epoch and the row is pending. Gives one
    /// answer for each, in their order. No lease of such a lane happens in the middle of it.
    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>>;
}

/// What a renewal says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// For each lease whether it stands.
    pub held: Vec<bool>,
    /// Who is there, this relay included, by name.
    pub relays: Vec<String>,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct ReadLanes {
    /// From which lanes.
    pub parts: Vec<ReadLane>,
    /// The numbers of rows that are not wanted, because they are in hand, in rising order.
    pub in_hand: Vec<i64>,
    /// How long after it was taken or renewed a lease on a single row has run out. There may be some of relays without lanes.
    pub lease_duration: Duration,
}

/// What to read from one lane.
#[derive(Clone, Debug)]
pub struct ReadLane {
    /// Which one.
    pub lane: Lane,
    /// Only rows with higher numbers than this.
    pub after: i64,
    /// The last number to look at, if not all.
    pub until: Option<i64>,
    /// The most rows.
    pub limit: usize,
    /// Only rows of this key.
    pub key: Option<Key>,
}

/// What a read gave.
#[derive(Debug, Default)]
pub struct LaneRows {
    /// The rows, those of a lane in the order of their numbers.
    pub rows: Vec<LaneRow>,
    /// Whose transactions may yet bring rows with lower numbers, as known at a moment after the snapshot of the rows. So the rows
    /// of those who are named here are not among them.
    pub open: Vec<Writer>,
}

/// A pending row of a lane.
#[derive(Clone, Debug)]
pub struct LaneRow {
    /// In which lane.
    pub lane: Lane,
    /// The number that the database gave it.
    pub seq: i64,
    /// In how long it may be tried: when it is due, and nobody has a lease on it alone.
    pub due_in: Duration,
    /// The event, or what is wrong with the row.
    pub row: Result<ClaimedRow, MalformedInLane>,
}

/// A row that is no event, and has its place in the order all the same.
#[derive(Clone, Debug)]
pub struct MalformedInLane {
    /// What is wrong.
    pub malformed: Malformed,
    /// Its key, if that much can be read.
    pub key: Option<Key>,
}

/// Somebody whose transaction is open. Never the same for two transactions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Writer(pub Box<str>);

/// An outcome to be written back, under the lease of a lane.
#[derive(Clone, Debug)]
pub struct LaneSettlement {
    /// The lane of the row, which must be leased under that epoch.
    pub lease: LaneLease,
    /// The number of the row.
    pub seq: i64,
    /// Its id.
    pub id: EventId,
    /// What to make of it.
    pub action: Action,
}
