//! What a relay needs that owns rows by whole lanes of keys, instead of one by one.

use std::fmt;
use std::time::Duration;

use super::{Action, BoxFuture, ClaimedRow, Error, Malformed, Settled};
use crate::event::{Event, EventId};
use crate::order::Ordered;
use crate::time::Timestamp;

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
///
/// Whoever leases lanes through a store reads them and settles in them through the same one, or a clone of it: it may remember what it
/// was told under a lease.
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

    /// Extends the leases that still stand, from now on, and says that this relay is there, for as long. With a length of zero it
    /// says that this relay is going. Its settings stay as they are, unless it comes too late: then it has none.
    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>>;

    /// Says that this relay is there, for that long, and with which settings; unless others are there with other settings, which it
    /// gives then. Such a relay is not to lease anything. Of two that say so at once, one hears of the other.
    ///
    /// What was said stands for as long as renewals come in time, and nobody else is let in with other settings meanwhile. So it is
    /// said once, and again only when a renewal [asks for it](Renewed::to_agree). Default: nobody has others.
    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        let _ = (owner, settings, length);
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// The relays that are there, and own rows by lanes; none if the table is not prepared for that. Default: none.
    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Gives lanes back that this owner still holds. Others may lease them at once, so nothing of them may be under way.
    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>>;

    /// Reads what is pending in lanes, whether it is due or not, and changes nothing. The rows of a lane come in the order of
    /// their numbers, all from one snapshot. None come of a lane that is not leased to this owner under that epoch, at a moment
    /// not before the snapshot, and none of a key that is closed.
    ///
    /// All parts of one read are of the same kind: without an end, with one, or of a key; and no lane is in two of them.
    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>>;

    /// Writes outcomes back, each only if its lane is leased to this owner under that epoch and the row is pending. Gives one
    /// answer for each, in their order. No lease of such a lane happens in the middle of it.
    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>>;

    /// How many statements that settle, each for other lanes, are quicker than one after the other. Default: one.
    fn settles_at_once(&self) -> usize {
        1
    }

    /// Whether it can close keys. Default: it cannot, and is never asked to.
    fn closes_keys(&self) -> bool {
        false
    }

    /// Closed keys of these lanes that an operator has let go on. They stay closed until they are forgotten. Default: none.
    fn reopened_keys<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ClosedKey>, Error>> {
        let _ = (owner, leases, limit);
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Forgets closed keys that an operator has let go on, each only if its lane is leased to this owner under that epoch: from
    /// now on reads give their rows. Does nothing of the others. Default: nothing.
    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        let _ = (owner, keys);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A key of which nothing is delivered, because an event of it is DEAD and an operator is to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedKey {
    /// The key.
    pub key: Key,
    /// Its lane.
    pub lane: Lane,
    /// The number of the event that is to blame.
    pub head_seq: i64,
    /// Its id.
    pub head_id: EventId,
    /// Since when.
    pub since: Timestamp,
    /// Why it is DEAD.
    pub reason: Option<String>,
    /// Whether an operator has let it go on, and the relay that has the lane is yet to hear of it.
    pub reopened: bool,
}

/// A relay that owns rows by lanes, and is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayOfLanes {
    /// Its name.
    pub owner: String,
    /// What it delivers in order, as a text that is equal where that is.
    pub settings: String,
}

/// Its name, and what it delivers in order.
impl fmt::Display for RelayOfLanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (in order: {})", self.owner, self.settings)
    }
}

/// A key whose events wait for its head, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StalledKey {
    /// The key.
    pub key: Key,
    /// Why they wait.
    pub stall: Stall,
    /// The number of the event that they wait for.
    pub head_seq: i64,
    /// Its id.
    pub head_id: EventId,
    /// Since when: of a key that is parked, since its head is DEAD; of one that is blocked, since its head was inserted.
    pub since: Timestamp,
    /// When the head is tried again, of a key that is blocked.
    pub retry_at: Option<Timestamp>,
    /// The last error of the head.
    pub reason: Option<String>,
    /// How many events are pending behind it.
    pub waiting: u64,
}

/// Why the events of a key wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stall {
    /// The head is DEAD, and an operator is to decide. See [`AdminStore::release_key`](super::AdminStore::release_key).
    Parked,
    /// An operator has let the key go on, and the relay that has the lane is yet to hear of it.
    Reopened,
    /// The head has failed, and is tried again.
    Blocked,
}

/// Who has the lanes, and who is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneHolders {
    /// The moment, by the clock that leases run out by.
    pub now: Timestamp,
    /// Every lane, by its number, with who leased it last and until when, unless it was given back.
    pub lanes: Vec<(Lane, Option<(String, Timestamp)>)>,
    /// The relays that are there, by name.
    pub relays: Vec<RelayHere>,
}

impl LaneHolders {
    /// Who has a lane at that moment, and until when.
    pub fn of(&self, lane: Lane) -> Option<(&str, Timestamp)> {
        let (_, holder) = self.lanes.iter().find(|(number, _)| *number == lane)?;
        holder.as_ref().filter(|(_, until)| *until >= self.now).map(|(owner, until)| (&**owner, *until))
    }

    /// Whether events of aggregates of this type are delivered in order, as those relays say that are there; nothing if none
    /// says so, or not all say the same.
    pub fn orders(&self, aggregate_type: &str) -> Option<bool> {
        let mut said = self.relays.iter().map(|relay| Some(relay.ordered.as_ref()?.includes(aggregate_type)));
        let first = said.next()??;
        said.all(|other| other == Some(first)).then_some(first)
    }
}

/// A relay that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayHere {
    /// Its name.
    pub owner: String,
    /// What it delivers in order, if it has [said](LaneStore::agree) so.
    pub ordered: Option<Ordered>,
}

/// What a renewal says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// For each lease whether it stands.
    pub held: Vec<bool>,
    /// Who is there, this relay included, by name.
    pub relays: Vec<String>,
    /// Whether this relay has to [agree](LaneStore::agree) with the others again: it had been away for longer than it had said, so
    /// that others may have begun with other settings, or one that has others is there.
    pub to_agree: bool,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct ReadLanes {
    /// Who reads.
    pub owner: Box<str>,
    /// From which lanes.
    pub parts: Vec<ReadLane>,
    /// The numbers of rows that are not wanted, because they are in hand, in rising order.
    pub in_hand: Vec<i64>,
    /// Writers that were open at earlier reads and may have numbers before those that are read. Whoever of them is open still is
    /// to be among [`LaneRows::open`].
    pub passed: Vec<Writer>,
    /// How long after it was taken or renewed a lease on a single row has run out. There may be some of relays without lanes.
    pub lease_duration: Duration,
}

/// What to read from one lane.
#[derive(Clone, Debug)]
pub struct ReadLane {
    /// Which one, and the epoch under which it must be leased.
    pub lease: LaneLease,
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
    /// The leases of the parts that do not stand.
    pub lost: Vec<LaneLease>,
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
    /// Whether its key is closed by it, in the same moment. Only of a row that is to be DEAD and has a key, and only where the
    /// store [can](LaneStore::closes_keys).
    pub closes: bool,
}
