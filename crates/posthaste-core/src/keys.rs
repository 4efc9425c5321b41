//! What a relay has in hand of the lanes that it holds, key by key. Nothing here waits for a database.
//!
//! The events of a key are in one list, in the order of their numbers. A key is ready, with a worker, or waits for its head;
//! workers take keys, not events, and get a run of events each. An event is in hand from the read that found it until its
//! outcome is written. See `docs/design/ordering.md`.

mod held;
mod run;
mod state;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Event;
use crate::listener::{Delivery, Path};
use crate::order::Ordered;
use crate::store::{Key, Lane, LaneLease, LaneRow, MalformedInLane};
use crate::sync::{Mutex, Notify};
use crate::wake::Wake;

pub(crate) use held::Held;
pub(crate) use run::Run;
use state::{Entry, InHand, More, Stage, State};

/// What is delivered one after the other: an aggregate, or a row alone that needs no order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum KeyId {
    Aggregate(Arc<Key>),
    Row(i64),
}

impl KeyId {
    /// The key of it that a store knows.
    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Self::Aggregate(key) => Some(key),
            Self::Row(_) => None,
        }
    }
}

/// An event in hand, or a row that is none and has its place in the order all the same.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) seq: i64,
    pub(crate) due_at: Instant,
    pub(crate) queued_at: Instant,
    /// How long it had been available before it was queued.
    pub(crate) lag: Duration,
    pub(crate) row: Result<Delivery, MalformedInLane>,
}

/// Everything in hand, with a lock around it that is held for moments only.
pub(crate) struct Keys {
    state: Mutex<State>,
    capacity: usize,
    ordered: Ordered,
    /// The same as in the state, for who asks before each event.
    closing: AtomicBool,
    /// Something to do: one permit, handed on by whoever leaves work behind.
    work: Notify,
    /// Wakes the reader: a key wants more, or there is the room that it waits for.
    reader: Wake,
    /// Wakes who looks after lanes: one of them is drained.
    owner: Wake,
}

/// What was taken in hand of a lane.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The last row of which account was taken.
    pub(crate) seen: Option<i64>,
    /// Whether there was no room for the one after it.
    pub(crate) refused: bool,
    /// Rows that were seen and left, since their keys have more. They need not be read again.
    pub(crate) left: Vec<i64>,
    pub(crate) count: usize,
}

/// A read of one key, to come to the end of what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CatchUp {
    pub(crate) id: KeyId,
    pub(crate) lease: LaneLease,
    pub(crate) after: i64,
    pub(crate) limit: usize,
}

/// What became of an event in hand.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) lease: LaneLease,
    pub(crate) seq: i64,
    pub(crate) then: Then,
}

/// What becomes of its key.
#[derive(Debug)]
pub(crate) enum Then {
    /// It has gone on already.
    Done,
    /// It goes on now, behind the event.
    GoOn(KeyId),
    /// It waits for the event, which is tried again.
    Later(KeyId, Item),
    /// Nothing more of it is delivered until somebody decides.
    Close(KeyId),
    /// Nobody knows what the table says of the event, so it is read again, not before that moment.
    Reread(KeyId, Instant),
}

impl Keys {
    pub(crate) fn new(capacity: usize, ordered: Ordered, reader: Wake, owner: Wake) -> Self {
        let (state, closing, work) = (Mutex::default(), AtomicBool::new(false), Notify::new());
        Self { state, capacity, ordered, closing, work, reader, owner }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is in hand, and wakes whoever has something to do then.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (answer, wakes) = {
            let mut state = self.state();
            let answer = change(&mut state);
            // Whatever was let go makes room.
            state.tell_of_room(self.capacity);
            (answer, std::mem::take(&mut state.wakes))
        };
        if wakes.work {
            self.work.notify_one();
        }
        if wakes.reader {
            self.reader.now();
        } else if let Some(at) = wakes.reader_at {
            self.reader.at(at);
        }
        if wakes.owner {
            self.owner.now();
        }
        answer
    }

    /// What a row is delivered in order with.
    fn id_of(&self, row: &LaneRow) -> KeyId {
        let ordered = |key: &Key| self.ordered.includes(&key.aggregate_type);
        let key = match &row.row {
            Ok(row) => self.key_of(&row.event),
            Err(malformed) => malformed.key.clone().filter(ordered),
        };
        key.map_or(KeyId::Row(row.seq), |key| KeyId::Aggregate(Arc::new(key)))
    }

    fn key_of(&self, event: &Event) -> Option<Key> {
        if self.ordered.includes(event.aggregate_type()) { Key::of(event) } else { None }
    }

    // Lanes.

    /// A lane was leased: nothing of it is in hand.
    pub(crate) fn leased(&self, lease: LaneLease, stands_until: Instant) {
        self.change(|state| {
            state.forget(lease.lane);
            let held = Arc::new(Held::new(lease, stands_until));
            state.lanes.insert(lease.lane, InHand { held, begun: 0 });
            state.wakes.reader = true;
        });
    }

    /// The leases that are held, as far as is known; also those that are being given up.
    pub(crate) fn leases(&self) -> Vec<Arc<Held>> {
        self.state().lanes.values().map(|lane| Arc::clone(&lane.held)).collect()
    }

    /// The leases whose lanes are to be read.
    pub(crate) fn to_read(&self) -> Vec<LaneLease> {
        let state = self.state();
        state.lanes.values().filter(|lane| !lane.held.drains()).map(|lane| lane.held.lease).collect()
    }

    /// Whether a lane is held under that epoch and outcomes may be written.
    pub(crate) fn settles(&self, lease: LaneLease) -> bool {
        self.state().lane(lease).is_some_and(|lane| lane.held.settles())
    }

    /// Whether this event's lane is held, so that a read brings it soon.
    pub(crate) fn holds(&self, lane: Lane) -> bool {
        self.state().lanes.get(&lane).is_some_and(|lane| !lane.held.drains())
    }

    /// A lane is lost: somebody else may have it.
    pub(crate) fn lost(&self, lease: LaneLease) {
        self.change(|state| {
            if state.lane(lease).is_some() {
                state.forget(lease.lane);
                state.wakes.owner = true;
            }
        });
    }

    /// A lane is to be given back: nothing more of it begins, and what is only queued is forgotten.
    pub(crate) fn give_up(&self, lease: LaneLease) {
        self.change(|state| state.give_up(lease));
    }

    /// The same, and attempts that are under way are cut short.
    pub(crate) fn cut(&self, lease: LaneLease) {
        self.change(|state| {
            state.give_up(lease);
            if let Some(lane) = state.lane(lease) {
                lane.held.cut();
            }
        });
    }

    /// The same, and nothing more of it is written: an outcome is missing before.
    pub(crate) fn give_up_unsettled(&self, lease: LaneLease) {
        self.change(|state| {
            state.give_up(lease);
            if let Some(lane) = state.lane(lease) {
                lane.held.stop_settling();
                lane.held.cut();
            }
        });
    }

    /// Lanes that are given up, and of which nothing is under way any more. They are not in hand from now on.
    pub(crate) fn drained(&self) -> Vec<Arc<Held>> {
        self.change(|state| {
            let drained: Vec<_> = state
                .lanes
                .values()
                .filter(|lane| lane.held.drains() && lane.begun == 0)
                .map(|lane| Arc::clone(&lane.held))
                .collect();
            for held in &drained {
                state.forget(held.lease.lane);
            }
            drained
        })
    }

    /// Cuts short what is under way in lanes whose leases may be over; says when to look again.
    pub(crate) fn run_out(&self, now: Instant) -> Option<Instant> {
        let over: Vec<_> = self.leases().into_iter().filter(|held| !held.stands(now)).collect();
        for held in over {
            if !held.is_cut() {
                self.cut(held.lease);
            }
        }
        self.leases().iter().filter(|held| !held.is_cut()).map(|held| held.stands_until()).min()
    }

    // Reading.

    /// A read begins. Gives the numbers that it is not to bring, for each lane those after a number.
    pub(crate) fn begin_read(&self, after: impl IntoIterator<Item = (Lane, i64)>) -> Vec<i64> {
        let mut state = self.state();
        state.closed_since.clear();
        let ranges = after.into_iter().map(|(lane, after)| (lane, after.saturating_add(1))..=(lane, i64::MAX));
        let mut numbers: Vec<i64> =
            ranges.flat_map(|range| state.in_hand.range(range)).map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// How many more would be taken in hand.
    pub(crate) fn room(&self) -> usize {
        let state = self.state();
        if state.is_closed { 0 } else { self.capacity.saturating_sub(state.queued) }
    }

    /// Has the reader woken when there is that much room, or as much as there ever can be.
    pub(crate) fn want_room(&self, wanted: usize) {
        let wanted = wanted.min(self.capacity);
        self.change(|state| state.room_wanted = Some(wanted));
    }

    /// Takes in hand what a read has found in lanes, in the order of the numbers, but for what it was not to bring. The answers are
    /// in the order of the lanes.
    ///
    /// The order is that of all lanes together, so that what is delivered at about the same time lies together in the table, and
    /// is written back together.
    pub(crate) fn take_in(&self, found: Vec<(LaneLease, Vec<LaneRow>)>, not_wanted: &[i64]) -> Vec<Taken> {
        let now = Instant::now();
        let leases: Vec<_> = found.iter().map(|(lease, _)| *lease).collect();
        let rows =
            found.into_iter().enumerate().flat_map(|(lane, (_, rows))| rows.into_iter().map(move |row| (lane, row)));
        let mut rows: Vec<_> = rows.map(|(lane, row)| (lane, self.id_of(&row), row)).collect();
        rows.sort_by_key(|(_, _, row)| row.seq);
        self.change(|state| {
            if state.queued <= self.capacity / 2 {
                state.short_since = None;
            }
            let readable = |lease: &LaneLease| state.lane(*lease).is_some_and(|lane| !lane.held.drains());
            let mut open: Vec<_> = leases.iter().map(|lease| readable(lease) && !state.is_closed).collect();
            let mut taken: Vec<_> = leases.iter().map(|_| Taken::default()).collect();
            for (lane, id, row) in rows {
                let (lease, taken, seq) = (leases[lane], &mut taken[lane], row.seq);
                if !open[lane] {
                    taken.refused = true;
                    continue;
                }
                let known = not_wanted.binary_search(&seq).is_ok() || state.in_hand.contains(&(lease.lane, seq));
                let more = state.keys.get(&id).and_then(|entry| entry.more);
                // What a key has up to there is in hand, or over: so this one has come since, late or redriven, and no read for
                // the key alone would bring it.
                let later = more.is_some_and(|more| more.after < seq);
                if known || later || state.closed_since.contains(&id) {
                    if !known {
                        taken.left.push(seq);
                    }
                } else if state.queued >= self.capacity
                    || !state.fits(&id, self.capacity) && state.is_waited_for(&id, self.capacity, now)
                {
                    // There are few places left, which is not this key's doing, and there will be more soon.
                    taken.refused = true;
                    open[lane] = false;
                    continue;
                } else if !state.fits(&id, self.capacity) {
                    // What was before it in this read is in hand.
                    state.note_more(&id, seq - 1, self.capacity);
                    taken.left.push(seq);
                } else {
                    state.queue(&id, lease, item(row, now), now);
                    taken.count += 1;
                }
                taken.seen = Some(seq);
            }
            taken
        })
    }

    /// The next key to be caught up with, if there is room. `most` rows at once, at most.
    pub(crate) fn next_behind(&self, most: usize) -> Option<CatchUp> {
        self.change(|state| {
            let room = self.capacity.saturating_sub(state.queued);
            if room == 0 || state.is_closed {
                return None;
            }
            while let Some(id) = state.behind.pop_front() {
                let Some(entry) = state.keys.get(&id) else { continue };
                let Some(more) = entry.more.filter(|more| more.asked) else { continue };
                let share = room.div_ceil(2).saturating_sub(entry.list.len()).clamp(1, most.max(1));
                return Some(CatchUp { lease: entry.lease, after: more.after, limit: share, id });
            }
            None
        })
    }

    /// Has keys go on whose heads are due. Workers do so, too, but they may all be busy.
    pub(crate) fn wake_due(&self) {
        let now = Instant::now();
        self.change(|state| state.wake_due(now, self.capacity));
    }

    /// How many keys are to be caught up with.
    pub(crate) fn behind(&self) -> usize {
        self.state().behind.len()
    }

    /// A catch-up was not to be had now.
    pub(crate) fn not_caught_up(&self, catch_up: &CatchUp) {
        self.change(|state| {
            if state.awaits(catch_up) {
                state.behind.push_front(catch_up.id.clone());
            }
        });
    }

    /// Takes in hand what a catch-up has found. Its key goes on with other reads when there was no more.
    pub(crate) fn caught_up(&self, catch_up: &CatchUp, rows: Vec<LaneRow>, not_wanted: &[i64]) -> usize {
        let (id, lease, now) = (&catch_up.id, catch_up.lease, Instant::now());
        self.change(|state| {
            let readable = state.lane(lease).is_some_and(|lane| !lane.held.drains());
            if !readable || state.is_closed || !state.awaits(catch_up) || state.closed_since.contains(id) {
                return 0;
            }
            let alone = matches!(id, KeyId::Row(_));
            let (mut count, mut ended, mut after) = (0, alone || rows.len() < catch_up.limit, catch_up.after);
            for row in rows {
                // The store has found it by the key, so it is of this key, or else it is a row of its own.
                if state.queued >= self.capacity || !state.fits(id, self.capacity) {
                    ended = false;
                    break;
                }
                after = after.max(row.seq);
                let known = not_wanted.binary_search(&row.seq).is_ok();
                if !known && !state.in_hand.contains(&(lease.lane, row.seq)) {
                    state.enlist(id, lease, item(row, now));
                    count += 1;
                }
            }
            let entry = state.keys.get_mut(id).expect("it awaits this");
            entry.more = (!ended).then_some(More { after, asked: false });
            if entry.stage == Stage::Idle {
                state.go_on(id, now);
            }
            state.ask_if_few(id, self.capacity);
            count
        })
    }

    /// Gives up to catch up with keys one by one, in lanes of which that may be: they are read again from these numbers on, and
    /// that brings all of them.
    pub(crate) fn catch_up_together(&self, may_be: impl Fn(LaneLease) -> bool) -> Vec<(LaneLease, i64)> {
        self.change(|state| {
            let mut from = BTreeMap::new();
            for id in std::mem::take(&mut state.behind) {
                let Some(entry) = state.keys.get_mut(&id) else { continue };
                if !may_be(entry.lease) {
                    state.behind.push_back(id);
                    continue;
                }
                let Some(more) = entry.more.take_if(|more| more.asked) else { continue };
                let least = from.entry(entry.lease).or_insert(more.after);
                *least = more.after.min(*least);
                if entry.stage == Stage::Idle && entry.list.is_empty() {
                    state.keys.remove(&id);
                }
            }
            from.into_iter().collect()
        })
    }

    /// A key that was closed goes on from that number on. Reads leave it alone until it was caught up with. So does one that waits
    /// for a head that an operator has given up.
    ///
    /// Not while it is with a worker, or in line for one: reads have left it alone, so what it has in hand is not all that it has up to
    /// there. It comes to an end of that first, and is asked for again.
    pub(crate) fn reopen(&self, lease: LaneLease, key: Key, head_seq: i64) -> bool {
        let id = KeyId::Aggregate(Arc::new(key));
        self.change(|state| {
            let readable = state.lane(lease).is_some_and(|lane| !lane.held.drains());
            let is_busy = |entry: &Entry| matches!(entry.stage, Stage::Ready | Stage::Running);
            if !readable || state.keys.get(&id).is_some_and(is_busy) {
                return false;
            }
            state.stop_waiting(&id, head_seq - 1);
            if state.keys.contains_key(&id) {
                return true;
            }
            let more = Some(More { after: head_seq - 1, asked: false });
            state.keys.insert(id, Entry { lease, list: VecDeque::new(), stage: Stage::Idle, more });
            true
        })
    }

    /// Such a key may be read now.
    pub(crate) fn reopened(&self, lease: LaneLease, key: Key) {
        let id = KeyId::Aggregate(Arc::new(key));
        self.change(|state| {
            if state.keys.get(&id).is_some_and(|entry| entry.lease == lease) {
                state.ask_if_few(&id, self.capacity);
            }
        });
    }

    // Delivering.

    /// The next key that is ready, with a run of its events: as many as `length` says of the first of them. Nothing once closed.
    pub(crate) async fn take(self: &Arc<Self>, length: impl Fn(&Item) -> usize) -> Option<Run> {
        loop {
            let due_at = {
                let now = Instant::now();
                let taken = self.change(|state| {
                    if state.is_closed {
                        // The next worker has to hear it too.
                        state.wakes.work = true;
                        return Err(None);
                    }
                    state.wake_due(now, self.capacity);
                    let run = state.next_run(now, self.capacity, &length);
                    run.ok_or_else(|| Some(state.waiting.first().map(|(due_at, _)| *due_at)))
                });
                match taken {
                    Ok((id, held, items)) => return Some(Run::new(Arc::clone(self), id, held, items)),
                    Err(None) => return None,
                    Err(Some(due_at)) => due_at,
                }
            };
            match due_at {
                None => self.work.notified().await,
                Some(due_at) => {
                    tokio::select! {
                        biased;
                        () = self.work.notified() => {}
                        () = tokio::time::sleep_until(due_at) => {}
                    }
                }
            }
        }
    }

    /// Runs of other keys that are ready and begin with events that are wanted: at most `most` events, `of_one_key` of each. Keys
    /// that begin with another one keep their places. Never waits.
    pub(crate) fn take_wanted(
        self: &Arc<Self>,
        most: usize,
        of_one_key: usize,
        wanted: impl Fn(&Item) -> bool,
    ) -> Vec<Run> {
        let now = Instant::now();
        let taken = self.change(|state| match state.is_closed {
            true => Vec::new(),
            false => state.wanted_runs(now, self.capacity, most, of_one_key, wanted),
        });
        taken.into_iter().map(|(id, held, items)| Run::new(Arc::clone(self), id, held, items)).collect()
    }

    /// A worker has ended its run, and this was not begun. If it was stopped, an outcome is yet to be written.
    fn back(&self, id: &KeyId, lease: LaneLease, items: VecDeque<Item>, stopped: bool) {
        let now = Instant::now();
        self.change(|state| {
            let Some(lane) = state.lane_mut(lease) else { return };
            lane.begun -= items.len();
            if lane.held.drains() {
                state.let_go(lease.lane, &items);
                state.tell_if_drained(lease);
                return;
            }
            for item in items.into_iter().rev() {
                state.enlist(id, lease, item);
            }
            if !stopped {
                state.go_on(id, now);
                state.ask_if_few(id, self.capacity);
            }
        });
    }

    /// Outcomes were written, or were given up.
    pub(crate) fn ended(&self, all: impl IntoIterator<Item = Ended>) {
        let now = Instant::now();
        self.change(|state| {
            for ended in all {
                state.end(ended, now, self.capacity);
            }
        });
    }

    /// No more runs are given out, and nothing more is taken in hand.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.change(|state| {
            state.is_closed = true;
            state.wakes.work = true;
            state.wakes.reader = true;
        });
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// How many events are in hand: queued, with a listener, or waiting for their settlement.
    pub(crate) fn in_hand(&self) -> usize {
        self.state().in_hand.len()
    }

    /// How many of them are with a listener, or waiting for their settlement.
    pub(crate) fn begun(&self) -> usize {
        self.state().lanes.values().map(|lane| lane.begun).sum()
    }

    /// How many of them are queued.
    pub(crate) fn queued(&self) -> usize {
        self.state().queued
    }
}

fn item(row: LaneRow, now: Instant) -> Item {
    // What is so far off is beyond this process's life.
    let far = Duration::from_secs(365 * 24 * 3600);
    let due_at = now + row.due_in.min(far);
    let lag = row.row.as_ref().map_or(Duration::ZERO, |row| row.lag);
    let seq = row.seq;
    let row = row.row.map(|row| Delivery::new(row.event, row.attempts, Path::Cold).with_seq(seq));
    Item { seq, due_at, queued_at: now, lag, row }
}

#[cfg(test)]
mod tests;
