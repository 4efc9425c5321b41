//! The table of the memory store, with the indexes that a database would keep.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foldhash::HashMap;

use super::lanes::{Lanes, lane_of};
use crate::event::{Availability, Event, EventId};
use crate::store::{
    Action, Claim, Claimed, ClaimedRow, ClosedKey, Counts, Error, Filter, Key, Lane, LaneLease, LaneRow, LaneRows,
    LaneSettlement, Lease, Malformed, MalformedInLane, NewRow, Order, Page, Purge, ReadLane, ReadLanes, Record,
    Redrive, RowState, Settled, Settlement, Stall, StalledKey, Status, cut_error,
};
use crate::time::Timestamp;

/// All rows by `seq`, and where to find those that matter without walking the others.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<i64, Row>,
    seqs: HashMap<EventId, i64>,
    /// Pending rows without a lease, by when they are available.
    free: BTreeSet<(Timestamp, i64)>,
    /// Pending rows with a lease, by when it was taken or renewed.
    leased: BTreeSet<(Timestamp, i64)>,
    /// Pending rows of each lane.
    in_lanes: BTreeSet<(Lane, i64)>,
    pub(super) lanes: Lanes,
    /// Keys of which nothing is delivered.
    closed: BTreeMap<Key, ClosedKey>,
    last_seq: i64,
}

#[derive(Debug)]
struct Row {
    event: Event,
    /// What a careless hand wrote over the headers, and why that is no event any more.
    damage: Option<String>,
    status: Status,
    attempts: u32,
    available_at: Timestamp,
    created_at: Timestamp,
    done_at: Option<Timestamp>,
    last_error: Option<String>,
    lease: Option<(Lease, Timestamp)>,
}

impl Row {
    fn is_pending(&self) -> bool {
        !self.status.is_final()
    }

    /// When it became DONE or DEAD, if it did.
    fn ended_at(&self) -> Option<Timestamp> {
        self.status.is_final().then(|| self.done_at.unwrap_or(self.created_at))
    }

    fn key(&self) -> Option<Key> {
        Key::of(&self.event)
    }

    fn is_held_under(&self, lease: &Lease) -> bool {
        self.is_pending() && self.lease.as_ref().is_some_and(|(held, _)| held == lease)
    }
}

impl Table {
    pub(super) fn contains(&self, id: &EventId) -> bool {
        self.seqs.contains_key(id)
    }

    pub(super) fn commit(&mut self, staged: Vec<(NewRow, Timestamp)>) -> Result<(), Error> {
        if let Some((taken, _)) = staged.iter().find(|(row, _)| self.contains(row.event.id())) {
            return Err(Error::DuplicateId { id: taken.event.id().clone() });
        }
        for (new, created_at) in staged {
            self.last_seq += 1;
            let available_at = match new.event.availability() {
                Availability::Now => created_at,
                Availability::At(at) => at,
                Availability::After(delay) => created_at + delay,
            };
            self.seqs.insert(new.event.id().clone(), self.last_seq);
            let row = Row {
                event: new.event,
                damage: None,
                status: Status::New,
                attempts: 0,
                available_at,
                created_at,
                done_at: None,
                last_error: None,
                lease: new.lease.map(|lease| (lease, created_at)),
            };
            self.index(self.last_seq, &row);
            self.rows.insert(self.last_seq, row);
        }
        Ok(())
    }

    fn index(&mut self, seq: i64, row: &Row) {
        if row.is_pending() {
            match &row.lease {
                None => self.free.insert((row.available_at, seq)),
                Some((_, locked_at)) => self.leased.insert((*locked_at, seq)),
            };
            self.in_lanes.insert((lane_of(&row.event), seq));
        }
    }

    /// Takes a row out of the indexes.
    fn unindex(&mut self, seq: i64, row: &Row) {
        match &row.lease {
            None => self.free.remove(&(row.available_at, seq)),
            Some((_, locked_at)) => self.leased.remove(&(*locked_at, seq)),
        };
        self.in_lanes.remove(&(lane_of(&row.event), seq));
    }

    /// Changes a row and keeps the indexes true.
    fn change(&mut self, seq: i64, change: impl FnOnce(&mut Row)) {
        let Some(mut row) = self.rows.remove(&seq) else { return };
        self.unindex(seq, &row);
        change(&mut row);
        self.index(seq, &row);
        self.rows.insert(seq, row);
    }

    pub(super) fn claim(&mut self, claim: &Claim, now: Timestamp) -> Claimed {
        let newest = now - claim.skip_recent;
        let old_enough = |(_, seq): &(Timestamp, i64)| self.rows[seq].created_at <= newest;
        let free = self.free.range(..=(now, i64::MAX)).copied().filter(old_enough).take(claim.limit);
        let run_out = self
            .leased
            .range(..=(now - claim.lease_duration, i64::MAX))
            .map(|(_, seq)| (self.rows[seq].available_at, *seq))
            .filter(|(available_at, _)| *available_at <= now)
            .filter(old_enough);
        let mut due: Vec<_> = free.chain(run_out).collect();
        due.sort_unstable();
        due.truncate(claim.limit);
        let mut claimed = Claimed::default();
        for (_, seq) in &due {
            self.change(*seq, |row| row.lease = Some((claim.lease.clone(), now)));
            let row = &self.rows[seq];
            match &row.damage {
                None => claimed.rows.push(ClaimedRow {
                    seq: *seq,
                    event: row.event.clone(),
                    attempts: row.attempts,
                    lag: now.since(row.available_at),
                }),
                Some(reason) => {
                    claimed.malformed.push(Malformed { id: row.event.id().clone(), reason: reason.clone() });
                }
            }
        }
        if due.len() < claim.limit {
            let next = self.free.range((now + Duration::from_micros(1), 0)..).next();
            claimed.next_in = next.map(|(available_at, _)| available_at.since(now));
        }
        claimed
    }

    pub(super) fn settle(&mut self, settlement: &Settlement, now: Timestamp, deletes_done: bool) -> Settled {
        let Some(&seq) = self.seqs.get(&settlement.id) else { return Settled::Lost };
        if !self.rows[&seq].is_held_under(&settlement.lease) {
            return Settled::Lost;
        }
        self.apply(seq, &settlement.action, now, deletes_done);
        Settled::Applied
    }

    /// The same under the lease of the lane that the row is in.
    pub(super) fn settle_in_lane(
        &mut self,
        owner: &str,
        settlement: &LaneSettlement,
        now: Timestamp,
        deletes_done: bool,
    ) -> Settled {
        let (lease, seq) = (settlement.lease, settlement.seq);
        let pending = self.in_lanes.contains(&(lease.lane, seq)) && self.seqs.get(&settlement.id) == Some(&seq);
        if !pending || !self.lanes.is_held(owner, lease) {
            return Settled::Lost;
        }
        if let (true, Action::Dead { error, .. }, Some(key)) =
            (settlement.closes, &settlement.action, self.rows[&seq].key())
        {
            let (lane, reason, id) = (lease.lane, Some(cut_error(error)), settlement.id.clone());
            let closed =
                ClosedKey { key: key.clone(), lane, head_seq: seq, head_id: id, since: now, reason, reopened: false };
            self.closed.insert(key, closed);
        }
        self.apply(seq, &settlement.action, now, deletes_done);
        Settled::Applied
    }

    fn apply(&mut self, seq: i64, action: &Action, now: Timestamp, deletes_done: bool) {
        if deletes_done && *action == Action::Done {
            self.remove(seq);
            return;
        }
        self.change(seq, |row| {
            row.lease = None;
            match action {
                Action::Done => {
                    row.status = Status::Done;
                    row.done_at = Some(now);
                }
                Action::Retry { delay, error } => {
                    row.status = Status::Retry;
                    row.attempts += 1;
                    row.available_at = now + *delay;
                    row.last_error = Some(cut_error(error));
                }
                Action::Defer { delay } => row.available_at = now + *delay,
                Action::Dead { error, counts } => {
                    row.status = Status::Dead;
                    row.attempts += u32::from(*counts);
                    row.done_at = Some(now);
                    row.last_error = Some(cut_error(error));
                }
                Action::Release => {}
            }
        });
    }

    pub(super) fn read_lanes(&self, read: &ReadLanes, now: Timestamp) -> LaneRows {
        let mut rows = Vec::new();
        let held = |part: &&ReadLane| self.lanes.is_held(&read.owner, part.lease);
        for part in read.parts.iter().filter(held).filter(|part| part.after < i64::MAX) {
            let lane = part.lease.lane;
            let from = (lane, part.after + 1);
            // A range must not end before it begins.
            let to = (lane, part.until.unwrap_or(i64::MAX).max(part.after + 1));
            let pending = self.in_lanes.range(from..=to).map(|(_, seq)| (*seq, &self.rows[seq]));
            let wanted = pending.filter(|(seq, row)| {
                part.until.is_none_or(|until| *seq <= until)
                    && part.key.as_ref().is_none_or(|key| row.key().as_ref() == Some(key))
                    && read.in_hand.binary_search(seq).is_err()
                    && !self.is_closed(row)
            });
            let found = wanted.take(part.limit).map(|(seq, row)| in_lane(lane, seq, row, read.lease_duration, now));
            rows.extend(found);
        }
        let lost = read.parts.iter().filter(|part| !held(part)).map(|part| part.lease).collect();
        // Numbers are given at the commit, so nobody has one that is not seen.
        LaneRows { rows, open: Vec::new(), lost }
    }

    fn is_closed(&self, row: &Row) -> bool {
        !self.closed.is_empty() && row.key().is_some_and(|key| self.closed.contains_key(&key))
    }

    pub(super) fn closed_keys(&self, limit: usize) -> Vec<ClosedKey> {
        let mut closed: Vec<_> = self.closed.values().cloned().collect();
        closed.sort_by_key(|closed| closed.since);
        closed.truncate(limit);
        closed
    }

    pub(super) fn stalled_keys(&self, limit: usize) -> Vec<StalledKey> {
        let mut pending: BTreeMap<Key, (i64, u64)> = BTreeMap::new();
        for (seq, row) in self.rows.iter().filter(|(_, row)| row.is_pending()) {
            if let Some(key) = row.key() {
                pending.entry(key).or_insert((*seq, 0)).1 += 1;
            }
        }
        let parked = self.closed_keys(limit).into_iter().map(|closed| StalledKey {
            waiting: pending.get(&closed.key).map_or(0, |(_, count)| *count),
            stall: if closed.reopened { Stall::Reopened } else { Stall::Parked },
            key: closed.key,
            head_seq: closed.head_seq,
            head_id: closed.head_id,
            since: closed.since,
            retry_at: None,
            reason: closed.reason,
        });
        let blocked =
            pending.iter().filter(|(key, _)| !self.closed.contains_key(key)).filter_map(|(key, (seq, count))| {
                let head = self.rows.get(seq).filter(|row| row.status == Status::Retry)?;
                Some(StalledKey {
                    key: key.clone(),
                    stall: Stall::Blocked,
                    head_seq: *seq,
                    head_id: head.event.id().clone(),
                    since: head.created_at,
                    retry_at: Some(head.available_at),
                    reason: head.last_error.clone(),
                    waiting: count - 1,
                })
            });
        let mut blocked: Vec<_> = blocked.collect();
        blocked.sort_by_key(|key| key.head_seq);
        parked.chain(blocked).take(limit).collect()
    }

    pub(super) fn reopened_keys(&self, owner: &str, leases: &[LaneLease], limit: usize) -> Vec<ClosedKey> {
        let mine = |lane| leases.iter().any(|lease| lease.lane == lane && self.lanes.is_held(owner, *lease));
        let reopened = self.closed.values().filter(|closed| closed.reopened && mine(closed.lane));
        reopened.take(limit).cloned().collect()
    }

    pub(super) fn forget_keys(&mut self, owner: &str, keys: &[(LaneLease, Key)]) {
        for (lease, key) in keys {
            let held = self.lanes.is_held(owner, *lease);
            if held && self.closed.get(key).is_some_and(|closed| closed.reopened && closed.lane == lease.lane) {
                self.closed.remove(key);
            }
        }
    }

    /// Lets a key go on that is closed because of that event, with it or behind it.
    pub(super) fn reopen(&mut self, key: &Key, head: &EventId, with_head: bool, now: Timestamp) -> bool {
        let is_it = |closed: &&mut ClosedKey| !closed.reopened && closed.head_id == *head;
        let Some(closed) = self.closed.get_mut(key).filter(is_it) else { return false };
        closed.reopened = true;
        let head = closed.head_seq;
        if with_head && self.rows.get(&head).is_some_and(|row| row.status == Status::Dead) {
            self.redrive_row(head, now);
        }
        true
    }

    /// Makes the first pending row of a key DEAD, if it is that one and has failed, and lets the key go on behind it.
    pub(super) fn give_up_head(&mut self, key: &Key, head: &EventId, now: Timestamp) -> bool {
        let first = self.rows.iter().find(|(_, row)| row.is_pending() && row.key().as_ref() == Some(key));
        let Some((&seq, row)) = first.filter(|(_, row)| row.event.id() == head && row.status == Status::Retry) else {
            return false;
        };
        let (key, lane, head_id) = (key.clone(), lane_of(&row.event), head.clone());
        let reason = row.last_error.clone();
        self.change(seq, |row| {
            row.status = Status::Dead;
            row.done_at = Some(now);
            row.lease = None;
        });
        let reopened = ClosedKey { key: key.clone(), lane, head_seq: seq, head_id, since: now, reason, reopened: true };
        self.closed.entry(key).or_insert(reopened);
        true
    }

    pub(super) fn renew(&mut self, id: &EventId, lease: &Lease, now: Timestamp) -> bool {
        let Some(&seq) = self.seqs.get(id) else { return false };
        let held = self.rows[&seq].is_held_under(lease);
        if held {
            self.change(seq, |row| row.lease = Some((lease.clone(), now)));
        }
        held
    }

    pub(super) fn release_all(&mut self) -> u64 {
        let leased: Vec<i64> = self.leased.iter().map(|(_, seq)| *seq).collect();
        for seq in &leased {
            self.change(*seq, |row| row.lease = None);
        }
        leased.len() as u64
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for row in self.rows.values() {
            *counts.of_mut(row.status) += 1;
        }
        counts
    }

    pub(super) fn find(&self, id: &EventId) -> Option<Record> {
        let seq = *self.seqs.get(id)?;
        Some(record(seq, &self.rows[&seq]))
    }

    pub(super) fn list(&self, filter: &Filter, page: &Page) -> Vec<Record> {
        let fits = |(_, row): &(&i64, &Row)| fits(row, filter);
        let record = |(seq, row): (&i64, &Row)| record(*seq, row);
        match (page.order, page.after) {
            (Order::OldestFirst, after) => {
                let from = after.map_or(i64::MIN, |cursor| cursor.0.saturating_add(1));
                self.rows.range(from..).filter(fits).take(page.limit).map(record).collect()
            }
            (Order::NewestFirst, after) => {
                let before = after.map_or(i64::MAX, |cursor| cursor.0);
                self.rows.range(..before).rev().filter(fits).take(page.limit).map(record).collect()
            }
        }
    }

    pub(super) fn redrive(&mut self, redrive: &Redrive, now: Timestamp) -> u64 {
        let dead = self.dead(redrive);
        for seq in &dead {
            self.redrive_row(*seq, now);
            self.reopen_headed_by(*seq);
        }
        dead.len() as u64
    }

    fn redrive_row(&mut self, seq: i64, now: Timestamp) {
        self.change(seq, |row| {
            row.status = Status::New;
            row.attempts = 0;
            row.available_at = now;
            row.done_at = None;
            row.last_error = None;
            row.lease = None;
        });
    }

    pub(super) fn discard(&mut self, discard: &Redrive) -> u64 {
        let dead = self.dead(discard);
        for seq in &dead {
            self.reopen_headed_by(*seq);
            self.remove(*seq);
        }
        dead.len() as u64
    }

    /// The closed key whose head this row is, if it is one, goes on.
    fn reopen_headed_by(&mut self, seq: i64) {
        let key = self.rows.get(&seq).and_then(Row::key);
        if let Some(closed) = key.and_then(|key| self.closed.get_mut(&key)).filter(|closed| closed.head_seq == seq) {
            closed.reopened = true;
        }
    }

    /// A chunk of the DEAD rows that are meant.
    fn dead(&self, wanted: &Redrive) -> Vec<i64> {
        let any_status = Filter { statuses: Vec::new(), ..wanted.filter.clone() };
        let named = |row: &Row| wanted.ids.as_ref().is_none_or(|ids| ids.contains(row.event.id()));
        self.rows
            .iter()
            .filter(|(_, row)| row.status == Status::Dead && named(row) && fits(row, &any_status))
            .map(|(seq, _)| *seq)
            .take(wanted.chunk)
            .collect()
    }

    pub(super) fn purge(&mut self, purge: &Purge, now: Timestamp) -> u64 {
        let older = |at: Option<Timestamp>, after: Option<Duration>| match (at, after) {
            (Some(at), Some(after)) => at <= now - after,
            _ => false,
        };
        let old: Vec<i64> = self
            .rows
            .iter()
            .filter(|(seq, row)| {
                let heads = || row.key().and_then(|key| self.closed.get(&key)).filter(|closed| !closed.reopened);
                let kept = match row.status {
                    // Somebody is to decide about it first.
                    Status::Dead if heads().is_some_and(|closed| closed.head_seq == **seq) => None,
                    Status::Done => purge.done_after,
                    Status::Dead => purge.dead_after,
                    Status::New | Status::Retry => None,
                };
                older(row.done_at, kept) || older(Some(row.created_at), purge.any_after)
            })
            .map(|(seq, _)| *seq)
            .take(purge.chunk)
            .collect();
        for seq in &old {
            self.remove(*seq);
        }
        old.len() as u64
    }

    fn remove(&mut self, seq: i64) {
        let Some(row) = self.rows.remove(&seq) else { return };
        self.seqs.remove(row.event.id());
        self.unindex(seq, &row);
    }

    pub(super) fn damage_headers(&mut self, id: &EventId, headers: &str) {
        if let Some(row) = self.seqs.get(id).and_then(|seq| self.rows.get_mut(seq)) {
            let decoded = serde_json::from_str::<BTreeMap<String, String>>(headers);
            row.damage = decoded.err().map(|error| format!("headers are not a JSON object of strings: {error}"));
        }
    }
}

fn in_lane(lane: Lane, seq: i64, row: &Row, lease_duration: Duration, now: Timestamp) -> LaneRow {
    let leased_until = row.lease.as_ref().map(|(_, locked_at)| *locked_at + lease_duration);
    let due_at = leased_until.map_or(row.available_at, |until| until.max(row.available_at));
    let event = match &row.damage {
        None => {
            Ok(ClaimedRow { seq, event: row.event.clone(), attempts: row.attempts, lag: now.since(row.available_at) })
        }
        Some(reason) => Err(MalformedInLane {
            malformed: Malformed { id: row.event.id().clone(), reason: reason.clone() },
            key: row.key(),
        }),
    };
    LaneRow { lane, seq, due_in: due_at.since(now), row: event }
}

fn record(seq: i64, row: &Row) -> Record {
    Record {
        id: row.event.id().clone(),
        event: row.damage.clone().map_or_else(|| Ok(row.event.clone()), Err),
        state: RowState {
            seq,
            status: row.status,
            attempts: row.attempts,
            available_at: row.available_at,
            created_at: row.created_at,
            done_at: row.done_at,
            last_error: row.last_error.clone(),
            lease: row.lease.as_ref().map(|(lease, at)| (lease.as_str().to_owned(), *at)),
        },
    }
}

fn fits(row: &Row, filter: &Filter) -> bool {
    let event = &row.event;
    (filter.statuses.is_empty() || filter.statuses.contains(&row.status))
        && filter.event_type.as_deref().is_none_or(|wanted| wanted == event.event_type())
        && filter.aggregate_type.as_deref().is_none_or(|wanted| wanted == event.aggregate_type())
        && filter.aggregate_id.as_deref().is_none_or(|wanted| Some(wanted) == event.aggregate_id())
        && filter.tenant_id.as_deref().is_none_or(|wanted| Some(wanted) == event.tenant_id())
        && filter.created_from.is_none_or(|from| row.created_at >= from)
        && filter.created_before.is_none_or(|before| row.created_at < before)
        && filter.ended_before.is_none_or(|before| row.ended_at().is_some_and(|at| at < before))
        && filter
            .error_contains
            .as_deref()
            .is_none_or(|wanted| row.last_error.as_deref().is_some_and(|error| error.contains(wanted)))
}
