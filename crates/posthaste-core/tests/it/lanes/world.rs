//! The table, a lane of it, and the relays that lease it.

use std::sync::LazyLock;

use super::search::{Next, State};

const EVENTS: usize = 3;
const RELAYS: usize = 2;
const KEYS: usize = 2;

/// The epoch of the lane, and any before it.
const CURRENT: u8 = 1;
const OLD: u8 = 0;

/// Two events of the first key, one of the second. What goes hot, runs for a while or fails is of the first; the second one is
/// there to be in the way.
const KEY_OF: [usize; EVENTS] = [0, 0, 1];
const OBSERVED: usize = 0;

/// What becomes of a key whose event has failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// It is tried again until it is done.
    Block,
    /// It is DEAD, and what is behind it waits for somebody to decide.
    Park,
    /// It is DEAD, and what is behind it goes on.
    Skip,
}

/// What is deliberately wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    SettlesUnderAnyEpoch,
    ReadsPastTheGreatest,
    ForgetsWhoWasOpen,
    HotWithoutLooking,
    HotPastParkedKeys,
    KeepsFollowersOfForgotten,
    HandsOverUndrained,
    TrustsOldReads,
    KeepsTheEpoch,
    TidiesEpochsUp,
}

/// Of faults that are not counted: as many as there may be, one after the other.
pub(crate) const ANY_NUMBER: u8 = u8::MAX;

/// How often what may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Faults {
    pub(crate) crashes: u8,
    /// Leases that run out under a relay that goes on as if they had not.
    pub(crate) expiries: u8,
    /// Crashes and expiries on top of those, whichever comes, each at any step.
    pub(crate) either: u8,
    pub(crate) handovers: u8,
    pub(crate) failures: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) faults: Faults,
    /// Whether writers of one key wait for each other, as they do who lock the aggregate or check its version.
    pub(crate) serialised: bool,
    /// Whether something may happen between the look of a read and what it takes in hand.
    pub(crate) slow_reads: bool,
    /// Whether events may go hot, and whether reads go on from a cursor. Each makes for many more states.
    pub(crate) hot: bool,
    pub(crate) cursor: bool,
    pub(crate) mistake: Option<Mistake>,
}

impl Rules {
    pub(crate) fn new(policy: Policy, faults: Faults) -> Self {
        Self { policy, faults, serialised: true, slow_reads: false, hot: true, cursor: true, mistake: None }
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Unwritten,
    /// In a transaction that has not committed: it has its number, and nobody sees it.
    Open,
    Pending,
    /// Pending, to be tried again later.
    Later,
    Done,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Row {
    stage: Stage,
    seq: u8,
}

impl Row {
    fn is_pending(self) -> bool {
        matches!(self.stage, Stage::Pending | Stage::Later)
    }

    fn is_committed(self) -> bool {
        !matches!(self.stage, Stage::Unwritten | Stage::Open)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lane {
    owner: Option<usize>,
    epoch: u8,
    expired: bool,
}

impl Lane {
    const NEW: Self = Self { owner: None, epoch: CURRENT, expired: false };
}

/// What a relay has of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hand {
    Nothing,
    /// Written by this process, to be delivered from memory after the commit.
    Promised,
    Queued,
    Running,
    Succeeded,
    Failed,
}

impl Hand {
    fn is_begun(self) -> bool {
        matches!(self, Self::Running | Self::Succeeded | Self::Failed)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Relay {
    /// The epoch under which it believes to have the lane. It may be wrong.
    lease: Option<u8>,
    gives_up: bool,
    /// What a read has seen that is not yet taken in hand, a bit for each event.
    seen: Option<u8>,
    /// Rows that are before the cursor, where reads begin; and those before where it will be after the next read. Of what is
    /// done it does not matter, so it is not among them.
    before: u8,
    before_next: u8,
    /// Whose transactions were open when the last read had looked, and those of them that the cursor has passed since.
    open: u8,
    passed: u8,
    /// Keys whose rows were passed by because they were parked.
    closed: [bool; KEYS],
    hand: [Hand; EVENTS],
}

impl Relay {
    const NEW: Self = Self {
        lease: None,
        gives_up: false,
        seen: None,
        before: 0,
        before_next: 0,
        open: 0,
        passed: 0,
        closed: [false; KEYS],
        hand: [Hand::Nothing; EVENTS],
    };

    /// The next read begins at the beginning.
    fn look_back(&mut self) {
        (self.before, self.before_next, self.open, self.passed) = (0, 0, 0, 0);
        self.seen = None;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct World {
    rows: [Row; EVENTS],
    lane: Lane,
    /// The event that a key is parked for.
    parked: [Option<usize>; KEYS],
    relays: [Relay; RELAYS],
    /// Which events a listener has taken at least once, a bit for each.
    acknowledged: u8,
    left: Faults,
    faultless: bool,
}

impl State for World {
    /// Everything was written, and delivered, or given up by somebody's choice.
    fn is_over(&self) -> bool {
        (0..EVENTS).all(|event| match self.rows[event].stage {
            Stage::Done => self.acknowledged & bit(event) != 0,
            Stage::Dead => self.parked[KEY_OF[event]].is_none(),
            _ => false,
        })
    }
}

/// One step of anybody. Relays are named by number, and so are events and keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Write { event: usize, hot_in: Option<usize> },
    Commit { event: usize },
    GoHot { relay: usize, event: usize },
    ForgetHot { relay: usize, event: usize },
    Lease { relay: usize },
    RunOut,
    NoticeLoss { relay: usize },
    Look { relay: usize },
    Take { relay: usize, limit: u8 },
    Start { relay: usize, event: usize },
    Succeed { relay: usize, event: usize },
    Fail { relay: usize, event: usize },
    Settle { relay: usize, event: usize },
    BecomeDue { event: usize },
    WantToGiveUp { relay: usize },
    HandOver { relay: usize },
    Crash { relay: usize },
    ReleaseHead { key: usize },
    SkipHead { key: usize },
}

fn bit(event: usize) -> u8 {
    1 << event
}

fn bits(of: impl Fn(usize) -> bool) -> u8 {
    (0..EVENTS).filter(|event| of(*event)).fold(0, |bits, event| bits | bit(event))
}

impl World {
    pub(crate) fn new(faults: Faults) -> Self {
        Self {
            rows: [Row { stage: Stage::Unwritten, seq: 0 }; EVENTS],
            lane: Lane::NEW,
            parked: [None; KEYS],
            relays: [Relay::NEW; RELAYS],
            acknowledged: 0,
            left: faults,
            faultless: true,
        }
    }

    /// Every step that is possible now.
    pub(crate) fn steps(&self, rules: &Rules, steps: &mut Vec<Next<Self, Step>>) {
        for &step in ALL_STEPS.iter() {
            let mut world = *self;
            match world.take(rules, step) {
                None => {}
                Some(Err(broken)) => steps.push(Next { step, to: Err(broken), calm: false }),
                Some(Ok(())) if world == *self => {}
                Some(Ok(())) => {
                    let to = if world.two_have_one_epoch() {
                        Err("two relays have a lease of the same epoch")
                    } else {
                        Ok(world.simplified(rules))
                    };
                    steps.push(Next { step, to, calm: self.is_calm(step) });
                }
            }
        }
    }

    /// Whether a step happens without anything going wrong, or anybody changing his mind.
    fn is_calm(&self, step: Step) -> bool {
        match step {
            Step::Crash { .. } | Step::Fail { .. } | Step::WantToGiveUp { .. } => false,
            Step::RunOut => !self.owner_renews(),
            _ => true,
        }
    }

    /// Makes a step. Nothing if it is not possible; an error if it breaks a promise.
    fn take(&mut self, rules: &Rules, step: Step) -> Option<Result<(), &'static str>> {
        let possible = match step {
            Step::Write { event, hot_in } => self.write(rules, event, hot_in),
            Step::Commit { event } => {
                let row = &mut self.rows[event];
                let open = row.stage == Stage::Open;
                row.stage = Stage::Pending;
                open
            }
            Step::GoHot { relay, event } => {
                let committed = self.rows[event].is_committed();
                self.moves(relay, event, Hand::Promised, Hand::Queued) && committed
            }
            Step::ForgetHot { relay, event } => {
                let promised = self.moves(relay, event, Hand::Promised, Hand::Nothing);
                self.drop_followers(rules, relay, event);
                promised
            }
            Step::Lease { relay } => self.lease(rules, relay),
            Step::RunOut => self.run_out(),
            Step::NoticeLoss { relay } => {
                let lost = self.relays[relay].lease.is_some() && !self.holds(relay);
                self.forget_lane(relay);
                lost
            }
            Step::Look { relay } => rules.slow_reads && self.look(relay),
            Step::Take { limit: 1, .. } if !rules.slow_reads => false,
            Step::Take { relay, limit } => {
                (rules.slow_reads || self.look(relay)) && self.take_in_hand(rules, relay, limit)
            }
            Step::Start { relay, event } => return self.start(rules, relay, event),
            Step::Succeed { relay, event } => {
                self.acknowledged |= bit(event);
                self.moves(relay, event, Hand::Running, Hand::Succeeded)
            }
            Step::Fail { relay, event } => {
                use_up(&mut self.left.failures) && self.moves(relay, event, Hand::Running, Hand::Failed)
            }
            Step::Settle { relay, event } => return self.settle(rules, relay, event),
            Step::BecomeDue { event } => {
                let row = &mut self.rows[event];
                let later = row.stage == Stage::Later;
                row.stage = Stage::Pending;
                later
            }
            Step::WantToGiveUp { relay } => {
                let relay = &mut self.relays[relay];
                let willing = relay.lease.is_some() && !relay.gives_up;
                relay.gives_up = true;
                relay.seen = None;
                willing && use_up(&mut self.left.handovers)
            }
            Step::HandOver { relay } => self.hand_over(rules, relay),
            Step::Crash { relay } => {
                // It starts again at once; until then it is like one that does nothing. Its lease is nobody's.
                self.forget_lane(relay);
                self.faultless = false;
                if self.lane.expired && rules.has(Mistake::TidiesEpochsUp) {
                    self.lane = Lane::NEW;
                }
                use_up(&mut self.left.crashes) || use_up(&mut self.left.either)
            }
            Step::ReleaseHead { key } => {
                let head = self.parked[key].take();
                if let Some(head) = head {
                    self.rows[head].stage = Stage::Pending;
                }
                head.is_some()
            }
            Step::SkipHead { key } => self.parked[key].take().is_some(),
        };
        possible.then_some(Ok(()))
    }

    /// Inserts a row. It goes hot if this process has the lane, as far as it knows, and the insert itself finds no row of the
    /// key that is pending, and the key not parked.
    fn write(&mut self, rules: &Rules, event: usize, hot_in: Option<usize>) -> bool {
        if self.rows[event].stage != Stage::Unwritten || (hot_in.is_some() && !rules.hot) {
            return false;
        }
        let key = KEY_OF[event];
        let of_key = |other: &usize| KEY_OF[*other] == key && *other != event;
        let after_those_before = (0..event).filter(of_key).all(|earlier| self.rows[earlier].is_committed());
        if rules.serialised && !after_those_before {
            return false;
        }
        if let Some(relay) = hot_in {
            let older = (0..EVENTS).filter(of_key).any(|other| self.rows[other].is_pending());
            let looked = (!older || rules.has(Mistake::HotWithoutLooking))
                && (self.parked[key].is_none() || rules.has(Mistake::HotPastParkedKeys));
            let relay = &mut self.relays[relay];
            if relay.lease.is_none() || relay.gives_up || !looked {
                return false;
            }
            relay.hand[event] = Hand::Promised;
        }
        let last = self.rows.iter().map(|row| row.seq).max().unwrap_or(0);
        self.rows[event] = Row { stage: Stage::Open, seq: last + 1 };
        true
    }

    fn moves(&mut self, relay: usize, event: usize, from: Hand, to: Hand) -> bool {
        std::mem::replace(&mut self.relays[relay].hand[event], to) == from
    }

    /// Lets those go that waited behind a promise which nobody keeps any more. They are read again, behind its row.
    fn drop_followers(&mut self, rules: &Rules, relay: usize, event: usize) {
        if rules.has(Mistake::KeepsFollowersOfForgotten) {
            return;
        }
        let behind = |other: &usize| KEY_OF[*other] == KEY_OF[event] && self.rows[*other].seq > self.rows[event].seq;
        for other in (0..EVENTS).filter(behind) {
            let hand = &mut self.relays[relay].hand[other];
            if *hand == Hand::Queued {
                *hand = Hand::Nothing;
            }
        }
        self.relays[relay].look_back();
    }

    /// Whether the lane is leased to this relay under the epoch that it knows.
    fn holds(&self, relay: usize) -> bool {
        self.lane.owner == Some(relay) && self.relays[relay].lease == Some(self.lane.epoch)
    }

    fn owner_renews(&self) -> bool {
        self.lane.owner.is_some_and(|owner| self.holds(owner))
    }

    fn two_have_one_epoch(&self) -> bool {
        let [one, other] = self.relays.map(|relay| relay.lease);
        one.is_some() && one == other && one != Some(OLD)
    }

    /// The same state for all that differ in nothing that matters: which epoch it was that is over, which relay is which, and
    /// where among the others a row was that is done. So there are fewer of them.
    fn simplified(mut self, rules: &Rules) -> Self {
        // Where epochs begin again, one that is over may come back.
        if !rules.has(Mistake::TidiesEpochsUp) {
            for relay in &mut self.relays {
                relay.lease = relay.lease.map(|epoch| if epoch == self.lane.epoch { CURRENT } else { OLD });
            }
            self.lane.epoch = CURRENT;
        }
        let done = bits(|event| self.rows[event].stage == Stage::Done);
        let ended = bits(|event| self.rows[event].is_committed());
        for relay in &mut self.relays {
            (relay.before, relay.before_next) = (relay.before & !done, relay.before_next & !done);
            // It would do so with the next read.
            if relay.passed & ended != 0 && relay.seen.is_none() && !rules.has(Mistake::ForgetsWhoWasOpen) {
                relay.look_back();
            }
        }
        let mut swapped = self;
        swapped.relays.swap(0, 1);
        swapped.lane.owner = self.lane.owner.map(|owner| 1 - owner);
        self.min(swapped)
    }

    fn lease(&mut self, rules: &Rules, relay: usize) -> bool {
        let free = self.lane.owner.is_none() || self.lane.expired;
        if self.relays[relay].lease.is_some() || !free {
            return false;
        }
        let epoch = if rules.has(Mistake::KeepsTheEpoch) { self.lane.epoch } else { self.lane.epoch + 1 };
        self.lane = Lane { owner: Some(relay), epoch, expired: false };
        self.relays[relay].lease = Some(epoch);
        true
    }

    fn run_out(&mut self) -> bool {
        if self.lane.owner.is_none() || self.lane.expired {
            return false;
        }
        let at_fault = self.owner_renews();
        self.lane.expired = true;
        if at_fault {
            self.faultless = false;
        }
        !at_fault || use_up(&mut self.left.expiries) || use_up(&mut self.left.either)
    }

    fn forget_lane(&mut self, relay: usize) {
        self.relays[relay] = Relay::NEW;
    }

    /// Looks at what is pending behind the cursor. Rows of a key that is parked are passed by, and read again when it is not.
    fn look(&mut self, relay: usize) -> bool {
        let parked = self.parked.map(|head| head.is_some());
        let pending = bits(|event| self.rows[event].is_pending() && !parked[KEY_OF[event]]);
        let relay = &mut self.relays[relay];
        if relay.lease.is_none() || relay.gives_up || relay.seen.is_some() {
            return false;
        }
        if (0..KEYS).any(|key| relay.closed[key] && !parked[key]) {
            relay.look_back();
        }
        relay.closed = parked;
        relay.seen = Some(pending & !relay.before);
        true
    }

    /// Takes the first of what was read in hand, but for what is in hand, or was settled since the look.
    ///
    /// It also hears who is still open, which says of each of them that the look has not seen its row. Whoever was passed by
    /// and is not open any more may have committed before the look, so what it saw is of no use.
    fn take_in_hand(&mut self, rules: &Rules, relay: usize, limit: u8) -> bool {
        let rows = self.rows;
        let open = bits(|event| rows[event].stage == Stage::Open);
        let relay = &mut self.relays[relay];
        let Some(seen) = relay.seen.take() else { return false };
        if relay.passed & !open != 0 && !rules.has(Mistake::ForgetsWhoWasOpen) {
            relay.look_back();
            return true;
        }
        let mut new: Vec<usize> = (0..EVENTS).filter(|event| seen & bit(*event) != 0).collect();
        new.retain(|event| relay.hand[*event] == Hand::Nothing);
        new.sort_unstable_by_key(|event| rows[*event].seq);
        new.truncate(limit.into());
        for event in &new {
            relay.hand[*event] = Hand::Queued;
        }
        if !rules.cursor {
            return true;
        }
        // Who was open at the last read, and may have a lower number than it found, has been seen by this one, or is passed.
        relay.passed |= relay.open;
        relay.open = open;
        relay.before |= relay.before_next;
        let last = new.last().map_or(0, |event| rows[*event].seq);
        relay.before_next |= bits(|event| rows[event].stage != Stage::Unwritten && rows[event].seq <= last);
        if rules.has(Mistake::ReadsPastTheGreatest) {
            (relay.before, relay.passed) = (relay.before_next, 0);
        }
        true
    }

    /// Starts an event, if those before it that are in hand have succeeded. They need not be settled: a run of one key
    /// goes on.
    fn start(&mut self, rules: &Rules, relay: usize, event: usize) -> Option<Result<(), &'static str>> {
        let (row, hand) = (self.rows[event], &self.relays[relay].hand);
        if hand[event] != Hand::Queued || row.stage == Stage::Later || self.relays[relay].gives_up {
            return None;
        }
        let older = |other: &usize| KEY_OF[*other] == KEY_OF[event] && self.rows[*other].seq < row.seq;
        let older: Vec<usize> =
            (0..EVENTS).filter(|other| self.rows[*other].stage != Stage::Unwritten).filter(older).collect();
        if !older.iter().all(|other| matches!(hand[*other], Hand::Nothing | Hand::Succeeded)) {
            return None;
        }
        let passed = |other: &usize| {
            let given_up = self.rows[*other].stage == Stage::Dead && self.parked[KEY_OF[*other]] != Some(*other);
            self.acknowledged & bit(*other) != 0 || given_up
        };
        if rules.serialised && !older.iter().all(passed) {
            return Some(Err("an event was started before the one before it was done"));
        }
        let elsewhere = (0..RELAYS).any(|other| other != relay && self.relays[other].hand[event].is_begun());
        if self.faultless && (elsewhere || self.acknowledged & bit(event) != 0) {
            return Some(Err("an event was started twice without a fault"));
        }
        self.relays[relay].hand[event] = Hand::Running;
        if KEY_OF[event] != OBSERVED {
            // What may happen while it runs is of no interest.
            self.acknowledged |= bit(event);
            self.relays[relay].hand[event] = Hand::Succeeded;
        }
        Some(Ok(()))
    }

    /// Writes an outcome, those of one key in their order, if the lane is still held under the epoch.
    fn settle(&mut self, rules: &Rules, relay: usize, event: usize) -> Option<Result<(), &'static str>> {
        let (row, key) = (self.rows[event], KEY_OF[event]);
        let outcome = self.relays[relay].hand[event];
        if !matches!(outcome, Hand::Succeeded | Hand::Failed) {
            return None;
        }
        let older_waits = (0..EVENTS).any(|other| {
            KEY_OF[other] == key && self.rows[other].seq < row.seq && self.relays[relay].hand[other].is_begun()
        });
        if older_waits {
            return None;
        }
        let holds = self.holds(relay);
        if !holds && !rules.has(Mistake::SettlesUnderAnyEpoch) {
            self.forget_lane(relay);
            return Some(Ok(()));
        }
        if !holds && row.is_pending() {
            return Some(Err("a settlement was written under a lost lease"));
        }
        let stage = match (outcome, rules.policy) {
            (Hand::Succeeded, _) => Stage::Done,
            (_, Policy::Block) => Stage::Later,
            (_, Policy::Park | Policy::Skip) => Stage::Dead,
        };
        if row.is_pending() {
            self.rows[event].stage = stage;
            if stage == Stage::Dead && rules.policy == Policy::Park {
                self.parked[key] = Some(event);
            }
        }
        let parked = self.parked[key].is_some();
        let relay = &mut self.relays[relay];
        relay.closed[key] |= parked;
        relay.hand[event] = if stage == Stage::Later { Hand::Queued } else { Hand::Nothing };
        for other in (0..EVENTS).filter(|other| *other == event || (parked && KEY_OF[*other] == key)) {
            if other != event {
                relay.hand[other] = Hand::Nothing;
            }
            // What was read before says nothing of them any more.
            if !rules.has(Mistake::TrustsOldReads) {
                relay.seen = relay.seen.map(|seen| seen & !bit(other));
            }
        }
        Some(Ok(()))
    }

    /// Gives the lane back once nothing of it is with a listener or waits to be settled.
    fn hand_over(&mut self, rules: &Rules, relay: usize) -> bool {
        let drained = !self.relays[relay].hand.iter().any(|hand| hand.is_begun());
        if !self.relays[relay].gives_up || !self.holds(relay) {
            return false;
        }
        if drained {
            self.forget_lane(relay);
        } else if !rules.has(Mistake::HandsOverUndrained) {
            return false;
        }
        self.lane.owner = None;
        true
    }
}

fn use_up(left: &mut u8) -> bool {
    let some = *left > 0;
    if *left != ANY_NUMBER {
        *left = left.saturating_sub(1);
    }
    some
}

static ALL_STEPS: LazyLock<Vec<Step>> = LazyLock::new(|| all_steps().collect());

fn all_steps() -> impl Iterator<Item = Step> {
    let relays = (0..RELAYS).flat_map(|relay| {
        let of_events =
            (0..EVENTS).flat_map(move |event| [Step::Start { relay, event }, Step::Settle { relay, event }]);
        let of_key = (0..EVENTS).filter(|event| KEY_OF[*event] == OBSERVED).flat_map(move |event| {
            [
                Step::Succeed { relay, event },
                Step::Write { event, hot_in: Some(relay) },
                Step::GoHot { relay, event },
                Step::ForgetHot { relay, event },
                Step::Fail { relay, event },
            ]
        });
        let others = [
            Step::Lease { relay },
            Step::NoticeLoss { relay },
            Step::Look { relay },
            Step::Take { relay, limit: 1 },
            Step::Take { relay, limit: 3 },
            Step::WantToGiveUp { relay },
            Step::HandOver { relay },
            Step::Crash { relay },
        ];
        of_events.chain(of_key).chain(others)
    });
    let rows = (0..EVENTS)
        .flat_map(|event| [Step::Write { event, hot_in: None }, Step::Commit { event }, Step::BecomeDue { event }]);
    let keys = [Step::ReleaseHead { key: OBSERVED }, Step::SkipHead { key: OBSERVED }];
    relays.chain(rows).chain(keys).chain([Step::RunOut])
}
