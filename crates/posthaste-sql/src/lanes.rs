//! What is alike about lanes in every database.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::event::GLOBAL;
use posthaste_core::store::{
    ClaimedRow, ClosedKey, Error, Key, Lane, LaneHolders, LaneLease, LaneRow, LaneSettlement, Malformed,
    MalformedInLane, RawRow, RelayHere, RelayOfLanes, Renewed, Stall, StalledKey,
};
use posthaste_core::{EventId, Ordered, Timestamp};

use crate::table::TableName;

/// The table has no lanes yet, or not all that belongs to them.
pub(crate) fn not_prepared(table: &TableName, what: &str) -> Error {
    Error::Schema { table: table.to_string(), reason: format!("{NOT_PREPARED} ({what}); call prepare_lanes() first") }
}

const NOT_PREPARED: &str = "it is not prepared for lanes";

/// Whether that is what [`not_prepared`] says, and nothing that to prepare it would not help against.
pub(crate) fn is_not_prepared(reason: &str) -> bool {
    reason.starts_with(NOT_PREPARED)
}

/// Whether the table was ever seen to be prepared for lanes. It stays so.
#[derive(Default)]
pub(crate) struct Prepared(AtomicBool);

impl Prepared {
    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// What the database says.
    pub(crate) fn note(&self, prepared: bool) -> bool {
        self.0.store(prepared, Ordering::Relaxed);
        prepared
    }
}

/// How many lanes there are, if it is the number that the statements of this release are made for.
pub(crate) fn expect_count(table: &TableName, count: i64, known: u16) -> Result<u16, Error> {
    if count == i64::from(known) {
        return Ok(known);
    }
    Err(Error::Schema {
        table: table.to_string(),
        reason: format!("it has {count} lanes, and this release knows how to work with {known}"),
    })
}

/// A relay as a row tells it.
pub(crate) fn relay((owner, settings): (String, String)) -> RelayOfLanes {
    RelayOfLanes { owner, settings }
}

/// Those of some relays that are another and have other settings. Empty ones do not count.
pub(crate) fn others(mut relays: Vec<RelayOfLanes>, owner: &str, settings: &str) -> Vec<RelayOfLanes> {
    relays.retain(|other| other.owner != owner && !other.settings.is_empty() && other.settings != settings);
    relays
}

/// What a renewal says, given who is there with which settings.
pub(crate) fn renewed(held: Vec<bool>, mut relays: Vec<RelayOfLanes>, owner: &str) -> Renewed {
    relays.sort_unstable_by(|one, other| one.owner.cmp(&other.owner));
    let names = relays.iter().map(|relay| relay.owner.clone()).collect();
    let mine = relays.iter().find(|relay| relay.owner == owner).map(|relay| relay.settings.clone()).unwrap_or_default();
    let to_agree = mine.is_empty() || !others(relays, owner, &mine).is_empty();
    Renewed { held, relays: names, to_agree }
}

/// The number of a lane as a row tells it.
pub(crate) fn lane(number: i64) -> Lane {
    Lane(u16::try_from(number).unwrap_or(u16::MAX))
}

/// Who has the lanes and who is there, of rows that are either: the number of a lane with its owner and until when, or no number,
/// a relay, and its settings.
pub(crate) fn holders(now: Timestamp, rows: Vec<Holder>) -> LaneHolders {
    let mut holders = LaneHolders { now, lanes: Vec::new(), relays: Vec::new() };
    for Holder { lane: number, owner, until, settings } in rows {
        match (number, owner) {
            (Some(number), owner) => holders.lanes.push((lane(number), owner.zip(until))),
            (None, Some(owner)) => {
                let ordered = settings.as_deref().and_then(Ordered::of_settings);
                holders.relays.push(RelayHere { owner, ordered });
            }
            (None, None) => {}
        }
    }
    holders.lanes.sort_unstable();
    holders.relays.sort_unstable_by(|one, other| one.owner.cmp(&other.owner));
    holders
}

/// A row of who has a lane, or who is there.
pub(crate) struct Holder {
    pub(crate) lane: Option<i64>,
    pub(crate) owner: Option<String>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) settings: Option<String>,
}

/// A closed key, with how many events wait behind it.
pub(crate) fn parked((closed, waiting): (ClosedKey, i64)) -> StalledKey {
    StalledKey {
        key: closed.key,
        stall: if closed.reopened { Stall::Reopened } else { Stall::Parked },
        head_seq: closed.head_seq,
        head_id: closed.head_id,
        since: closed.since,
        retry_at: None,
        reason: closed.reason,
        waiting: waiting.unsigned_abs(),
    }
}

/// A key whose head is tried again, of which that many events are pending.
pub(crate) fn blocked(
    key: Key,
    head: (i64, EventId),
    moments: [Timestamp; 2],
    reason: Option<String>,
    pending: i64,
) -> StalledKey {
    let ((head_seq, head_id), [since, retry_at]) = (head, moments);
    let waiting = pending.unsigned_abs().saturating_sub(1);
    StalledKey { key, stall: Stall::Blocked, head_seq, head_id, since, retry_at: Some(retry_at), reason, waiting }
}

/// What a read found of a row.
pub(crate) struct Found {
    pub(crate) lane: Lane,
    pub(crate) seq: i64,
    pub(crate) id: EventId,
    pub(crate) read_at: Timestamp,
    pub(crate) available_at: Timestamp,
    /// When somebody leased this row alone, if one did.
    pub(crate) leased_at: Option<Timestamp>,
    pub(crate) attempts: Result<u32, String>,
    pub(crate) raw: Result<RawRow, String>,
}

impl Found {
    /// The row, given how long a lease on it alone is, and what its key is as far as can be told: that is asked only of a row that
    /// is no event.
    pub(crate) fn row(self, lease_duration: Duration, key: impl FnOnce() -> Option<Key>) -> LaneRow {
        let leased_until = self.leased_at.map(|leased_at| leased_at + lease_duration);
        let due_at = leased_until.map_or(self.available_at, |until| until.max(self.available_at));
        let lag = self.read_at.since(self.available_at);
        let (seq, id) = (self.seq, self.id);
        let event = self.raw.and_then(RawRow::decode);
        let row = match event.and_then(|event| self.attempts.map(|attempts| (event, attempts))) {
            Ok((event, attempts)) => Ok(ClaimedRow { seq, event, attempts, lag }),
            Err(reason) => Err(MalformedInLane { malformed: Malformed { id, reason }, key: key() }),
        };
        LaneRow { lane: self.lane, seq, due_in: due_at.since(self.read_at), row }
    }
}

/// The key of a row with these columns.
pub(crate) fn key(aggregate_type: Option<&str>, aggregate_id: Option<&str>) -> Option<Key> {
    Some(Key { aggregate_type: aggregate_type.unwrap_or(GLOBAL).into(), aggregate_id: aggregate_id?.into() })
}

/// Settlements with their places, of which no two are of the same row, and each lane has one epoch.
pub(crate) type Round<'a> = Vec<(usize, &'a LaneSettlement)>;

/// The settlements in rounds, one after the other: the second settlement of a row must find what the first one made of it. Each
/// round is in the order of the rows.
pub(crate) fn rounds(settlements: &[LaneSettlement]) -> Vec<Round<'_>> {
    let mut rounds: Vec<Round<'_>> = Vec::new();
    let (mut rows, mut epochs) = (HashSet::with_capacity(settlements.len()), HashMap::new());
    for (place, settlement) in settlements.iter().enumerate() {
        let LaneLease { lane, epoch } = settlement.lease;
        let fits = epochs.get(&lane).is_none_or(|known| *known == epoch) && !rows.contains(&settlement.seq);
        match rounds.last_mut() {
            Some(round) if fits => round.push((place, settlement)),
            _ => {
                rounds.push(vec![(place, settlement)]);
                rows.clear();
                epochs.clear();
            }
        }
        rows.insert(settlement.seq);
        epochs.insert(lane, epoch);
    }
    for round in &mut rounds {
        round.sort_unstable_by_key(|(_, settlement)| settlement.seq);
    }
    rounds
}

/// The leases under which a round is settled, each once, in the order of the lanes.
pub(crate) fn leases_of(round: &Round<'_>) -> Vec<LaneLease> {
    let mut leases: Vec<_> = round.iter().map(|(_, settlement)| settlement.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    leases
}

#[cfg(test)]
mod tests {
    use posthaste_core::store::Action;

    use super::*;

    fn settlement(lane: u16, epoch: i64, seq: i64) -> LaneSettlement {
        let id = EventId::from_row(format!("event {seq}"));
        LaneSettlement { lease: LaneLease { lane: Lane(lane), epoch }, seq, id, action: Action::Done, closes: false }
    }

    #[test]
    fn a_round_has_each_row_once_and_one_epoch_of_a_lane() {
        let settlements =
            [(1, 7, 5), (2, 3, 4), (1, 7, 5), (1, 7, 3), (1, 8, 9), (2, 3, 2)].map(|(l, e, s)| settlement(l, e, s));
        let rounds = rounds(&settlements);
        let places: Vec<Vec<usize>> =
            rounds.iter().map(|round| round.iter().map(|(place, _)| *place).collect()).collect();
        assert_eq!(places, [vec![1, 0], vec![3, 2], vec![5, 4]]);
        let lease = |lane, epoch| LaneLease { lane: Lane(lane), epoch };
        assert_eq!(leases_of(&rounds[0]), [lease(1, 7), lease(2, 3)]);
        assert_eq!(leases_of(&rounds[1]), [lease(1, 7)]);
        assert_eq!(leases_of(&rounds[2]), [lease(1, 8), lease(2, 3)]);
    }

    #[test]
    fn a_relay_agrees_again_if_it_has_no_settings_or_somebody_has_others() {
        let relay = |owner: &str, settings: &str| RelayOfLanes { owner: owner.into(), settings: settings.into() };
        let to_agree = |relays: &[RelayOfLanes]| renewed(Vec::new(), relays.to_vec(), "b").to_agree;
        assert!(!to_agree(&[relay("b", "all"), relay("a", "all"), relay("c", "")]));
        assert!(to_agree(&[relay("b", "all"), relay("a", "none")]));
        assert!(to_agree(&[relay("b", ""), relay("a", "all")]));
        assert!(to_agree(&[relay("a", "all")]));
        let told = renewed(vec![true], vec![relay("b", "all"), relay("a", "all")], "b");
        assert_eq!(told.relays, ["a", "b"]);
    }

    #[test]
    fn a_row_waits_for_its_moment_and_for_who_has_it() {
        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let found = |available_at, leased_at| Found {
            lane: Lane(3),
            seq: 1,
            id: EventId::from_row("1"),
            read_at: at(100),
            available_at: at(available_at),
            leased_at,
            attempts: Ok(0),
            raw: Err("it is nothing".to_owned()),
        };
        let due_in = |found: Found| found.row(Duration::from_secs(15), || None).due_in.as_secs();
        assert_eq!(due_in(found(90, None)), 0);
        assert_eq!(due_in(found(103, None)), 3);
        assert_eq!(due_in(found(103, Some(at(95)))), 10);
        assert_eq!(due_in(found(103, Some(at(80)))), 3);
    }
}
