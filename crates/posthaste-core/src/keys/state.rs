//! The lists, queues and counts behind [`Keys`](super::Keys), which holds the lock around them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashSet};
use tokio::time::Instant;

use super::{CatchUp, Ended, Held, Item, KeyId, Then};
use crate::queue::PASSED_OVER;
use crate::store::{Lane, LaneLease};

/// The rows of a key that waits for longer than this are not kept, and rows behind one that does not fit wait no longer than this.
const KEPT: Duration = Duration::from_secs(1);

/// Which part of all places is many for one key.
const MANY: usize = 16;

/// A key that was taken to run, its lane, and the events that it runs with.
pub(super) type TakenRun = (KeyId, Arc<Held>, VecDeque<Item>);

#[derive(Default)]
pub(super) struct State {
    pub(super) lanes: BTreeMap<Lane, InHand>,
    pub(super) keys: HashMap<KeyId, Entry>,
    pub(super) ready: VecDeque<KeyId>,
    pub(super) waiting: BTreeSet<(Instant, KeyId)>,
    /// Keys that want to be caught up with.
    pub(super) behind: VecDeque<KeyId>,
    /// The numbers of all rows in hand: in a list, with a worker, or with the settler.
    pub(super) in_hand: BTreeSet<(Lane, i64)>,
    /// How many are in lists.
    pub(super) queued: usize,
    /// Since when places have been short, and not half of them free.
    pub(super) short_since: Option<Instant>,
    /// Keys that were closed since the read under way began, which may not know it.
    pub(super) closed_since: HashSet<KeyId>,
    pub(super) room_wanted: Option<usize>,
    /// Somebody is to be woken when the lock is let go.
    pub(super) wakes: Wakes,
    pub(super) is_closed: bool,
}

#[derive(Default)]
pub(super) struct Wakes {
    pub(super) work: bool,
    pub(super) reader: bool,
    pub(super) reader_at: Option<Instant>,
    pub(super) owner: bool,
}

/// A lane that is held.
pub(super) struct InHand {
    pub(super) held: Arc<Held>,
    /// How many of its events are with workers, or with the settler.
    pub(super) begun: usize,
}

pub(super) struct Entry {
    pub(super) lease: LaneLease,
    pub(super) list: VecDeque<Item>,
    pub(super) stage: Stage,
    /// There is more of this key in the table than in hand. No read but one for this key alone may bring it.
    pub(super) more: Option<More>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is nothing to do before it is caught up with.
    Idle,
    Ready,
    /// With a worker, or its head has failed and that is not yet written.
    Running,
    Waiting(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct More {
    /// What is up to here is in hand, or over.
    pub(super) after: i64,
    /// Whether it is among those to be caught up with, or is just being.
    pub(super) asked: bool,
}

impl State {
    pub(super) fn lane(&self, lease: LaneLease) -> Option<&InHand> {
        self.lanes.get(&lease.lane).filter(|lane| lane.held.lease == lease)
    }

    pub(super) fn lane_mut(&mut self, lease: LaneLease) -> Option<&mut InHand> {
        self.lanes.get_mut(&lease.lane).filter(|lane| lane.held.lease == lease)
    }

    /// Lets everything of a lane go.
    pub(super) fn forget(&mut self, lane: Lane) {
        let Some(gone) = self.lanes.remove(&lane) else { return };
        gone.held.lose();
        self.drop_lists(lane);
        self.in_hand.retain(|(of, _)| *of != lane);
    }

    /// Lets everything of a lane go that is not begun.
    pub(super) fn give_up(&mut self, lease: LaneLease) {
        let Some(lane) = self.lane(lease) else { return };
        lane.held.drain();
        self.drop_lists(lease.lane);
        self.tell_if_drained(lease);
    }

    pub(super) fn drop_lists(&mut self, lane: Lane) {
        let gone: Vec<_> =
            self.keys.iter().filter(|(_, entry)| entry.lease.lane == lane).map(|(id, _)| id.clone()).collect();
        for id in &gone {
            if let Some(entry) = self.keys.remove(id) {
                self.queued -= entry.list.len();
                self.let_go(lane, &entry.list);
            }
        }
        let gone: HashSet<_> = gone.into_iter().collect();
        self.ready.retain(|id| !gone.contains(id));
        self.waiting.retain(|(_, id)| !gone.contains(id));
        self.behind.retain(|id| !gone.contains(id));
    }

    pub(super) fn let_go(&mut self, lane: Lane, items: &VecDeque<Item>) {
        for item in items {
            self.in_hand.remove(&(lane, item.seq));
        }
    }

    pub(super) fn tell_if_drained(&mut self, lease: LaneLease) {
        if self.lane(lease).is_some_and(|lane| lane.held.drains() && lane.begun == 0) {
            self.wakes.owner = true;
        }
    }

    /// A key may take another row while it has fewer than half as many as there are places left.
    pub(super) fn fits(&self, id: &KeyId, capacity: usize) -> bool {
        let queued = self.keys.get(id).map_or(0, |entry| entry.list.len());
        queued * 2 < capacity.saturating_sub(self.queued)
    }

    /// Whether what comes behind a row of this key waits for it, which does not fit. Not if the key is one of those that places are
    /// short of: it has many of them, or keeps some and does not go on for now; nor for longer than a moment, since whoever is at it
    /// may be slow.
    pub(super) fn is_waited_for(&mut self, id: &KeyId, capacity: usize, now: Instant) -> bool {
        let Some(entry) = self.keys.get(id) else { return false };
        let is_to_blame =
            entry.list.len() >= (capacity / MANY).max(1) || matches!(entry.stage, Stage::Waiting(_) | Stage::Idle);
        !is_to_blame && now - *self.short_since.get_or_insert(now) < KEPT
    }

    /// Puts a row in the list of its key, in its place by number.
    pub(super) fn enlist(&mut self, id: &KeyId, lease: LaneLease, item: Item) -> bool {
        self.in_hand.insert((lease.lane, item.seq));
        self.queued += 1;
        let entry = self.keys.entry(id.clone()).or_insert_with(|| Entry {
            lease,
            list: VecDeque::new(),
            stage: Stage::Idle,
            more: None,
        });
        let place = entry.list.partition_point(|other| other.seq < item.seq);
        entry.list.insert(place, item);
        place == 0
    }

    /// The same for a row that a read has found, and the key goes on if it is the first.
    pub(super) fn queue(&mut self, id: &KeyId, lease: LaneLease, item: Item, now: Instant) {
        let is_head = self.enlist(id, lease, item);
        match self.keys.get(id).map(|entry| entry.stage) {
            Some(Stage::Waiting(due_at)) if is_head => {
                self.waiting.remove(&(due_at, id.clone()));
                self.go_on(id, now);
            }
            Some(Stage::Idle) => self.go_on(id, now),
            _ => {}
        }
    }

    /// What a key does next that is not with a worker: it is ready, waits for its head or for a catch-up, or there is nothing.
    pub(super) fn go_on(&mut self, id: &KeyId, now: Instant) {
        let Some(entry) = self.keys.get_mut(id) else { return };
        match entry.list.front() {
            None if entry.more.is_some() => entry.stage = Stage::Idle,
            None => {
                self.keys.remove(id);
            }
            Some(head) if head.due_at <= now => {
                entry.stage = Stage::Ready;
                self.ready.push_back(id.clone());
                self.wakes.work = true;
            }
            Some(head) => {
                let (due_at, after) = (head.due_at, head.seq - 1);
                entry.stage = Stage::Waiting(due_at);
                self.waiting.insert((due_at, id.clone()));
                if due_at - now > KEPT {
                    self.drop_list(id, after);
                    let sooner = self.wakes.reader_at.is_none_or(|at| due_at < at);
                    if sooner {
                        self.wakes.reader_at = Some(due_at);
                    }
                } else {
                    // A worker that sleeps has to know until when.
                    self.wakes.work = true;
                }
            }
        }
    }

    /// Has a key wait that has no rows in hand.
    fn wait(&mut self, id: &KeyId, until: Instant) {
        let Some(entry) = self.keys.get_mut(id) else { return };
        entry.stage = Stage::Waiting(until);
        self.waiting.insert((until, id.clone()));
        // A worker that sleeps has to know until when.
        self.wakes.work = true;
    }

    /// A key that waits does so no more: what it waits for may be over, so it is read again, from that number on or from where it
    /// waits.
    pub(super) fn stop_waiting(&mut self, id: &KeyId, after: i64) {
        let Some(entry) = self.keys.get_mut(id) else { return };
        let Stage::Waiting(due_at) = entry.stage else { return };
        entry.stage = Stage::Idle;
        let first = entry.list.front().map(|head| head.seq - 1);
        let after = [first, entry.more.map(|more| more.after)].into_iter().flatten().fold(after, i64::min);
        self.waiting.remove(&(due_at, id.clone()));
        self.drop_list(id, after);
    }

    /// Lets the rows of a key go, which are read again from a number on.
    pub(super) fn drop_list(&mut self, id: &KeyId, after: i64) {
        let Some(entry) = self.keys.get_mut(id) else { return };
        let (lane, list) = (entry.lease.lane, std::mem::take(&mut entry.list));
        entry.more = Some(More { after, asked: false });
        self.queued -= list.len();
        self.let_go(lane, &list);
    }

    pub(super) fn note_more(&mut self, id: &KeyId, after: i64, capacity: usize) {
        if let Some(entry) = self.keys.get_mut(id) {
            entry.more = Some(More { after, asked: false });
            self.ask_if_few(id, capacity);
        }
    }

    /// Asks for a catch-up of a key that has more, when little of it is left in hand.
    pub(super) fn ask_if_few(&mut self, id: &KeyId, capacity: usize) {
        let room = capacity.saturating_sub(self.queued);
        let Some(entry) = self.keys.get_mut(id) else { return };
        let few = entry.list.is_empty() || entry.list.len() * 4 < room;
        if let Some(more) = entry.more.as_mut().filter(|more| !more.asked)
            && few
            && !matches!(entry.stage, Stage::Waiting(_))
        {
            more.asked = true;
            self.behind.push_back(id.clone());
            self.wakes.reader = true;
        }
    }

    /// Whether a key is still as it was when a catch-up of it began.
    pub(super) fn awaits(&self, catch_up: &CatchUp) -> bool {
        self.keys.get(&catch_up.id).is_some_and(|entry| {
            entry.lease == catch_up.lease && entry.more == Some(More { after: catch_up.after, asked: true })
        })
    }

    /// Has keys go on whose heads are due.
    pub(super) fn wake_due(&mut self, now: Instant, capacity: usize) {
        while let Some((due_at, id)) = self.waiting.first().filter(|(due_at, _)| *due_at <= now).cloned() {
            self.waiting.remove(&(due_at, id.clone()));
            self.go_on(&id, now);
            self.ask_if_few(&id, capacity);
        }
    }

    pub(super) fn tell_of_room(&mut self, capacity: usize) {
        let room = capacity.saturating_sub(self.queued);
        if self.room_wanted.take_if(|wanted| *wanted <= room).is_some() {
            self.wakes.reader = true;
        }
    }

    /// The first key that is ready and whose head is due, taken from those in line.
    fn next_ready(&mut self, now: Instant) -> Option<KeyId> {
        loop {
            let id = self.ready.pop_front()?;
            if self.head_of(&id).due_at <= now {
                return Some(id);
            }
            // Another row has become the first.
            self.go_on(&id, now);
        }
    }

    /// The first event of a key that is ready.
    fn head_of(&self, id: &KeyId) -> &Item {
        self.keys.get(id).and_then(|entry| entry.list.front()).expect("what is ready has an event")
    }

    /// Takes the first key that is ready, with as many events as `length` says of its head.
    pub(super) fn next_run(
        &mut self,
        now: Instant,
        capacity: usize,
        length: impl Fn(&Item) -> usize,
    ) -> Option<TakenRun> {
        let id = self.next_ready(now)?;
        let length = length(self.head_of(&id)).max(1);
        Some(self.begin_run(id, now, capacity, length, |_| true))
    }

    /// Takes keys that are ready and whose heads are wanted: at most `most` events, `of_one_key` of each. What is not wanted keeps
    /// its place, and at most [`PASSED_OVER`] keys are passed over.
    pub(super) fn wanted_runs(
        &mut self,
        now: Instant,
        capacity: usize,
        most: usize,
        of_one_key: usize,
        wanted: impl Fn(&Item) -> bool,
    ) -> Vec<TakenRun> {
        let (mut runs, mut passed_over, mut room) = (Vec::new(), Vec::new(), most);
        while room > 0
            && passed_over.len() < PASSED_OVER
            && let Some(id) = self.next_ready(now)
        {
            if wanted(self.head_of(&id)) {
                let run = self.begin_run(id, now, capacity, of_one_key.min(room), &wanted);
                room -= run.2.len();
                runs.push(run);
            } else {
                passed_over.push(id);
            }
        }
        for id in passed_over.into_iter().rev() {
            self.ready.push_front(id);
        }
        self.wakes.work |= !self.ready.is_empty();
        runs
    }

    /// Has a key that is ready run with its first events: those that are due and wanted, at most so many.
    fn begin_run(
        &mut self,
        id: KeyId,
        now: Instant,
        capacity: usize,
        most: usize,
        wanted: impl Fn(&Item) -> bool,
    ) -> TakenRun {
        let entry = self.keys.get_mut(&id).expect("what is ready is in hand");
        let fits = |item: &&Item| item.due_at <= now && wanted(item);
        let count = entry.list.iter().take(most).take_while(fits).count();
        let items: VecDeque<_> = entry.list.drain(..count).collect();
        entry.stage = Stage::Running;
        let lane = self.lanes.get_mut(&entry.lease.lane).expect("what is in hand is of a lane that is held");
        lane.begun += items.len();
        let held = Arc::clone(&lane.held);
        self.queued -= items.len();
        self.ask_if_few(&id, capacity);
        self.wakes.work |= !self.ready.is_empty();
        (id, held, items)
    }

    pub(super) fn end(&mut self, ended: Ended, now: Instant, capacity: usize) {
        let Ended { lease, seq, then } = ended;
        let Some(lane) = self.lane_mut(lease) else { return };
        lane.begun -= 1;
        let drains = lane.held.drains();
        self.in_hand.remove(&(lease.lane, seq));
        if let Then::Close(id) = &then {
            self.closed_since.insert(id.clone());
        }
        if drains {
            self.tell_if_drained(lease);
            return;
        }
        match then {
            Then::Done => {}
            Then::GoOn(id) => self.resume(&id, now, capacity),
            Then::Later(id, item) => {
                self.enlist(&id, lease, item);
                self.resume(&id, now, capacity);
            }
            Then::Close(id) => {
                if let Some(entry) = self.keys.remove(&id) {
                    self.queued -= entry.list.len();
                    self.let_go(lease.lane, &entry.list);
                    self.behind.retain(|other| *other != id);
                }
            }
            Then::Reread(id, at) => {
                self.drop_list(&id, seq - 1);
                match at > now {
                    true => self.wait(&id, at),
                    false => self.resume(&id, now, capacity),
                }
            }
        }
    }

    pub(super) fn resume(&mut self, id: &KeyId, now: Instant, capacity: usize) {
        self.go_on(id, now);
        self.ask_if_few(id, capacity);
    }

    /// Whether everything that is counted twice adds up. For tests.
    #[cfg(test)]
    pub(super) fn check(&self, capacity: usize) {
        let listed: usize = self.keys.values().map(|entry| entry.list.len()).sum();
        assert_eq!(self.queued, listed);
        assert!(listed <= capacity + 200, "{listed} in lists");
        let begun: usize = self.lanes.values().map(|lane| lane.begun).sum();
        assert_eq!(self.in_hand.len(), listed + begun);
        for (id, entry) in &self.keys {
            assert!(self.lane(entry.lease).is_some_and(|lane| !lane.held.drains()));
            assert!(entry.list.iter().is_sorted_by_key(|item| item.seq));
            let ready = self.ready.iter().filter(|other| *other == id).count();
            assert_eq!(ready, usize::from(entry.stage == Stage::Ready), "{id:?} {:?}", entry.stage);
            let waits = self.waiting.iter().filter(|(_, other)| other == id).count();
            assert_eq!(waits, usize::from(matches!(entry.stage, Stage::Waiting(_))), "{id:?} {:?}", entry.stage);
            assert!(entry.stage != Stage::Idle || (entry.list.is_empty() && entry.more.is_some()), "{id:?}");
        }
    }
}
