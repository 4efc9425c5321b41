//! The same processes, with lanes: what is delivered is in order, whatever goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_core::store::{
    AdminStore, BoxFuture, ClosedKey, Error, Key, Lane, LaneLease, LaneRows, LaneSettlement, LaneStore, ReadLanes,
    RelayOfLanes, Renewed, Settled, Status,
};
use posthaste_core::{Event, EventId, OnDead};

use super::ledger::{Fact, Ledger};
use super::plan::Plan;
use super::store::{Call, SimStore, at_once};
use super::{Sabotage, Sim, run_plan, seeds_hold};

impl LaneStore for SimStore {
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>> {
        self.sim.base.count_lanes()
    }

    fn lane_of(&self, event: &Event) -> Option<Lane> {
        self.sim.base.lane_of(event)
    }

    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>> {
        let owner = owner.to_owned();
        Box::pin(async move { Ok(self.call(Call::Lease, move |sim| sim.lease_lanes(&owner, wanted, length)).await?) })
    }

    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>> {
        let (owner, leases) = (owner.to_owned(), leases.to_vec());
        Box::pin(async move { Ok(self.call(Call::Renew, move |sim| sim.renew_lanes(&owner, &leases, length)).await?) })
    }

    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        let (name, settings) = (owner.to_owned(), settings.to_owned());
        let agree = move |sim: &Sim| at_once(sim.base.agree(&name, &settings, length)).unwrap();
        Box::pin(async move {
            // A process that cannot start has nobody to wait for it.
            match self.process.has_agreed.swap(true, Ordering::Relaxed) {
                true => Ok(self.call(Call::Renew, agree).await?),
                false => Ok(agree(&self.sim)),
            }
        })
    }

    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        self.sim.base.relays()
    }

    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>> {
        let (owner, leases) = (owner.to_owned(), leases.to_vec());
        Box::pin(async move { Ok(self.call(Call::GiveBack, move |sim| sim.give_back(&owner, &leases)).await?) })
    }

    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>> {
        let read = read.clone();
        Box::pin(async move { Ok(self.call(Call::Read, move |sim| sim.read_lanes(&read)).await?) })
    }

    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        let (owner, settlements) = (owner.to_owned(), settlements.to_vec());
        Box::pin(
            async move { Ok(self.call(Call::Settle, move |sim| sim.settle_in_lanes(&owner, &settlements)).await?) },
        )
    }

    fn settles_at_once(&self) -> usize {
        2
    }

    fn closes_keys(&self) -> bool {
        true
    }

    fn reopened_keys<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ClosedKey>, Error>> {
        let (owner, leases) = (owner.to_owned(), leases.to_vec());
        Box::pin(async move {
            let reopened = move |sim: &Sim| at_once(sim.base.reopened_keys(&owner, &leases, limit)).unwrap();
            Ok(self.call(Call::Read, reopened).await?)
        })
    }

    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        let (owner, keys) = (owner.to_owned(), keys.to_vec());
        Box::pin(async move {
            let forget = move |sim: &Sim| at_once(sim.base.forget_keys(&owner, &keys)).unwrap();
            Ok(self.call(Call::Settle, forget).await?)
        })
    }
}

/// Statements, at the moment at which the table carries them out.
impl Sim {
    fn lease_lanes(&self, owner: &str, wanted: usize, length: Duration) -> Vec<LaneLease> {
        if self.sabotage == Some(Sabotage::LeasesWhatIsHeld) {
            let held = self.ledger().lanes.held_by_others(owner);
            for (other, lease) in held {
                at_once(self.base.give_back_lanes(&other, &[lease])).unwrap();
            }
        }
        let leases = at_once(self.base.lease_lanes(owner, wanted, length)).unwrap();
        let now = self.now();
        self.ledger().leased_lanes(now, owner, &leases);
        leases
    }

    fn renew_lanes(&self, owner: &str, leases: &[LaneLease], length: Duration) -> Renewed {
        if self.sabotage == Some(Sabotage::HandsOverUndrained) {
            // What is held and not read any more is about to be given back, and waits for listeners only.
            let drains: Vec<_> =
                leases.iter().filter(|lease| self.ledger().lanes.drains(owner, lease)).copied().collect();
            if !drains.is_empty() {
                self.give_back(owner, &drains);
            }
        }
        at_once(self.base.renew_lanes(owner, leases, length)).unwrap()
    }

    fn give_back(&self, owner: &str, leases: &[LaneLease]) {
        at_once(self.base.give_back_lanes(owner, leases)).unwrap();
        let now = self.now();
        self.ledger().gave_back_lanes(now, owner, leases);
    }

    fn read_lanes(&self, read: &ReadLanes) -> LaneRows {
        if read.parts.iter().all(|part| part.key.is_none() && part.until.is_none()) {
            let leases = read.parts.iter().map(|part| part.lease);
            self.ledger().lanes.read.entry(read.owner.to_string()).or_default().note(leases.collect());
        }
        let mut rows = at_once(self.base.read_lanes(read)).unwrap();
        if self.sabotage == Some(Sabotage::ReadsFromTheEnd) {
            rows.rows.reverse();
        }
        rows
    }

    fn settle_in_lanes(&self, owner: &str, settlements: &[LaneSettlement]) -> Vec<Settled> {
        let mut answers = Vec::new();
        for settlement in settlements {
            let (mut owner, mut settlement) = (owner.to_owned(), settlement.clone());
            let named = (owner.clone(), settlement.lease);
            if self.sabotage == Some(Sabotage::SettlesWithoutFence)
                && let Some((holder, lease)) = self.ledger().lanes.holder(settlement.lease.lane)
            {
                (owner, settlement.lease) = (holder, lease);
            }
            let answer = at_once(self.base.settle_in_lanes(&owner, std::slice::from_ref(&settlement))).unwrap()[0];
            settlement.lease = named.1;
            let now = self.now();
            self.ledger().settled_in_lane(now, &named.0, &settlement, answer);
            answers.push(answer);
        }
        answers
    }

    /// An operator looks after keys that wait for him: lets their heads be tried again, or goes on behind them.
    pub(super) fn decide(&self, skips: bool) {
        let closed = at_once(self.base.closed_keys(usize::MAX)).unwrap();
        let Some(closed) = closed.into_iter().find(|closed| !closed.reopened) else { return };
        let now = self.now();
        if skips {
            at_once(self.base.skip_head(&closed.key, &closed.head_id)).unwrap();
            let mut ledger = self.ledger();
            ledger.note(now, format!("skip {}", closed.head_id));
            if let Some(fact) = ledger.facts.get_mut(&closed.head_id) {
                fact.given_up = true;
            }
        } else {
            self.redrive(&closed.head_id);
        }
    }
}

/// What is known of lanes, and of the order in which events were written.
#[derive(Default)]
pub(super) struct LanesLedger {
    pub(super) policy: Option<OnDead>,
    /// Who has each lane, under which epoch.
    holders: BTreeMap<Lane, (Option<String>, i64)>,
    /// The events of each key, in the order of their numbers.
    written: BTreeMap<String, Vec<EventId>>,
    lane_of: BTreeMap<EventId, Lane>,
    /// What each relay reads.
    read: BTreeMap<String, Reads>,
}

/// The lanes that a relay has read for what is new, ever and last.
#[derive(Default)]
struct Reads {
    ever: BTreeSet<LaneLease>,
    last: BTreeSet<LaneLease>,
}

impl Reads {
    fn note(&mut self, leases: BTreeSet<LaneLease>) {
        self.ever.extend(&leases);
        self.last = leases;
    }
}

impl LanesLedger {
    pub(super) fn note_lane(&mut self, id: &EventId, lane: Option<Lane>) {
        self.lane_of.extend(lane.map(|lane| (id.clone(), lane)));
    }

    /// Whether a relay has read a lane, and reads it no more.
    fn drains(&self, owner: &str, lease: &LaneLease) -> bool {
        self.read.get(owner).is_some_and(|reads| reads.ever.contains(lease) && !reads.last.contains(lease))
    }

    pub(super) fn new(policy: Option<OnDead>) -> Self {
        Self { policy, ..Self::default() }
    }

    fn holder(&self, lane: Lane) -> Option<(String, LaneLease)> {
        let (owner, epoch) = self.holders.get(&lane)?;
        Some((owner.clone()?, LaneLease { lane, epoch: *epoch }))
    }

    fn held_by_others(&self, owner: &str) -> Vec<(String, LaneLease)> {
        let held = self.holders.keys().filter_map(|lane| self.holder(*lane));
        held.filter(|(other, _)| other != owner).collect()
    }

    /// How many lanes a process has that is called like this.
    pub(super) fn count(&self, process: &str) -> usize {
        let is = |owner: &String| owner.split('-').next() == Some(process);
        self.holders.values().filter(|(owner, _)| owner.as_ref().is_some_and(is)).count()
    }
}

fn key_of(event: &Event) -> String {
    format!("{}/{}", event.aggregate_type(), event.aggregate_id().unwrap_or_default())
}

impl Ledger {
    fn leased_lanes(&mut self, now: u64, owner: &str, leases: &[LaneLease]) {
        if leases.is_empty() {
            return;
        }
        let plain = owner.split('-').next().unwrap_or(owner);
        self.note(now, format!("lease {plain} {} lanes", leases.len()));
        for lease in leases {
            let (holder, epoch) = self.lanes.holders.entry(lease.lane).or_insert((None, 0));
            let rises = lease.epoch > *epoch;
            (*holder, *epoch) = (Some(owner.to_owned()), lease.epoch);
            if !rises {
                self.broken(now, format!("epoch: lane {} was leased without a new one", lease.lane.0));
            }
        }
    }

    fn gave_back_lanes(&mut self, now: u64, owner: &str, leases: &[LaneLease]) {
        let plain = owner.split('-').next().unwrap_or(owner).to_owned();
        self.note(now, format!("give back {plain} {} lanes", leases.len()));
        for lease in leases {
            if let Some((holder, epoch)) = self.lanes.holders.get_mut(&lease.lane)
                && holder.as_deref() == Some(owner)
                && *epoch == lease.epoch
            {
                *holder = None;
                let of_lane = |id: &EventId| self.lanes.lane_of.get(id) == Some(&lease.lane);
                let with_it = self.facts.iter().filter(|(id, fact)| of_lane(id) && fact.running.contains(&plain));
                let with_it: Vec<_> = with_it.map(|(id, _)| id.clone()).collect();
                for id in with_it {
                    let lane = lease.lane.0;
                    self.broken(now, format!("drain: {plain} gave lane {lane} back while a listener of its had {id}"));
                }
            }
        }
    }

    /// A row was committed, behind all of its key that were before.
    pub(super) fn written(&mut self, event: &Event) {
        self.lanes.written.entry(key_of(event)).or_default().push(event.id().clone());
    }

    /// What is wrong with an event that begins, as far as the order goes.
    pub(super) fn out_of_order(&self, event: &Event) -> Option<String> {
        let written = self.lanes.written.get(&key_of(event))?;
        let mut before = written.iter().take_while(|id| *id != event.id());
        let passed = |fact: &Fact| fact.dones > 0 || fact.given_up;
        let missing = before.find(|id| !self.facts.get(*id).is_some_and(passed))?;
        Some(format!("order: started before {missing} was acknowledged"))
    }

    fn settled_in_lane(&mut self, now: u64, owner: &str, settlement: &LaneSettlement, answer: Settled) {
        let lease = settlement.lease;
        let plain = owner.split('-').next().unwrap_or(owner);
        let verb = super::ledger::verb(&settlement.action);
        self.note(
            now,
            format!("{verb} {} {plain} lane {} epoch {} {answer:?}", settlement.id, lease.lane.0, lease.epoch),
        );
        let held = self.lanes.holder(lease.lane) == Some((owner.to_owned(), lease));
        let pending = |fact: &Fact| fact.row.as_ref().is_some_and(|row| !row.status.is_final());
        let pending = self.facts.get(&settlement.id).is_some_and(pending);
        match (held && pending, answer) {
            (true, Settled::Applied) => {
                self.applied(now, &settlement.id, &settlement.action);
                let given_up = self.lanes.policy == Some(OnDead::Skip);
                let fact = self.facts.get_mut(&settlement.id).expect("it is pending");
                fact.given_up |= given_up && fact.row.as_ref().is_some_and(|row| row.status == Status::Dead);
            }
            (false, Settled::Applied) => {
                self.broken(now, format!("fence: {verb} of {} under a lost lease", settlement.id));
            }
            (true, Settled::Lost) => {
                self.broken(now, format!("fence: {verb} of {} was refused under a lease that stood", settlement.id));
            }
            (false, Settled::Lost) => {}
        }
    }
}

/// What some seed must have come to with lanes.
const SEEN: &[&str] = &[
    "Lease: Fails",
    "Read: Fails",
    "Settle: Fails",
    "Renew: Fails",
    "GiveBack: Fails",
    "Lease: AnswerLost",
    "Read: Hangs",
    "Settle: AnswerLost",
    "Settle: Late",
    "Settle: Hangs",
    "Settle: Panics",
    "is cut off",
    "ends: Crash",
    "ends: ShutdownNow",
    "give back",
    "epoch 3 Applied",
    "epoch 1 Lost",
    "skip e",
    "redrive e",
    "attempt 3",
    "Some(Done)",
    "Some(Failed)",
    " None",
];

#[test]
fn with_lanes_every_seed_holds() {
    seeds_hold(Plan::with_lanes, 300, SEEN);
}

#[test]
fn with_lanes_that_move_nothing_is_cut_short_or_repeated() {
    let seen = &["give back", "ends: Shutdown", "has ended", "epoch 3 Applied", "Some(Done)", "Some(Failed)"];
    seeds_hold(Plan::with_moving_lanes, 150, seen);
}

#[test]
fn with_lanes_the_same_seed_gives_the_same_run() {
    for seed in 0..40 {
        let (first, second) =
            (run_plan(seed, Plan::with_lanes(seed), None), run_plan(seed, Plan::with_lanes(seed), None));
        let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
        assert_eq!(first.hash(), second.hash(), "POSTHASTE_SIM_SEED={seed}: from {differs:?} on");
    }
}

#[test]
fn with_lanes_planted_mistakes_are_noticed() {
    for (sabotage, verdict) in [
        (Sabotage::SettlesWithoutFence, "fence"),
        (Sabotage::ReadsFromTheEnd, "order"),
        (Sabotage::LeasesWhatIsHeld, "duplicate"),
    ] {
        let noticed = (0..300).any(|seed| {
            let violations = run_plan(seed, Plan::with_lanes(seed), Some(sabotage)).violations;
            violations.iter().any(|violation| violation.starts_with(verdict))
        });
        assert!(noticed, "{sabotage:?} went unnoticed");
    }
}

#[test]
fn with_lanes_that_move_a_missing_drain_is_noticed() {
    for verdict in ["drain", "cut"] {
        let noticed = (0..150).any(|seed| {
            let run = run_plan(seed, Plan::with_moving_lanes(seed), Some(Sabotage::HandsOverUndrained));
            run.violations.iter().any(|violation| violation.starts_with(verdict))
        });
        assert!(noticed, "not noticed as {verdict}");
    }
}

impl SimStore {
    pub(super) fn as_lanes(&self) -> Option<Arc<dyn LaneStore>> {
        self.sim.plan.lanes.map(|_| Arc::new(self.clone()) as Arc<dyn LaneStore>)
    }
}
