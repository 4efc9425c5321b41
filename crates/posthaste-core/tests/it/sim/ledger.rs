//! What happened, seen from outside, and what must hold.
//!
//! It is told of every statement at the moment the table carries it out, and of every call of a listener. From that it
//! keeps a table of its own, by rules of its own, so a row that changes when it must not is noticed at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use posthaste_core::store::{Action, Claim, Claimed, Lease, NewRow, Settled, Settlement, Status};
use posthaste_core::{Delivery, EventId};

use super::lanes::LanesLedger;
use super::plan::Plan;

/// What is to become of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// DONE, after some failures perhaps.
    Fine,
    /// DEAD after as many failures as are allowed.
    Poison,
    /// DEAD at the first failure.
    Permanent,
    /// DEAD because the listener says so.
    GivenUp,
    /// DEAD because nobody listens.
    Unroutable,
}

#[derive(Default)]
pub(super) struct Ledger {
    lease: Duration,
    attempts: u32,
    pub(super) deletes_done: bool,
    /// An event may be with two listeners of one process.
    overlaps: bool,
    pub(super) facts: BTreeMap<EventId, Fact>,
    pub(super) violations: Vec<String>,
    pub(super) trace: Vec<String>,
    leases: BTreeSet<String>,
    /// Nothing goes wrong.
    calm: bool,
    pub(super) lanes: LanesLedger,
}

/// What is known of one event.
pub(super) struct Fact {
    pub(super) kind: Kind,
    pub(super) payload: String,
    /// How often a listener may still fail with it, and put it off.
    pub(super) failures_left: u32,
    pub(super) deferrals_left: u32,
    /// Its row, once it is committed.
    pub(super) row: Option<Row>,
    /// Verdicts since the last redrive.
    failures: u32,
    deferrals: u32,
    deferred: u32,
    pub(super) dones: u32,
    /// With lanes: those behind it need not wait for it.
    pub(super) given_up: bool,
    /// Starts after somebody had said Done, and reasons for them.
    repeats: u32,
    excuses: u32,
    /// The processes in which it is with a listener.
    pub(super) running: BTreeSet<String>,
}

/// A row as it must be, in microseconds since the beginning.
#[derive(Clone)]
pub(super) struct Row {
    pub(super) status: Status,
    pub(super) attempts: u32,
    pub(super) lease: Option<Lease>,
    leased_at: u64,
    available_at: u64,
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.lease.as_ref().map(plain);
        write!(f, "{}, {} failures, lease {lease:?} since {}", self.status, self.attempts, self.leased_at)?;
        write!(f, ", available at {}", self.available_at)
    }
}

impl Fact {
    pub(super) fn new(kind: Kind, payload: String, failures_left: u32, deferrals_left: u32) -> Self {
        Self {
            kind,
            payload,
            failures_left,
            deferrals_left,
            row: None,
            failures: 0,
            deferrals: 0,
            deferred: 0,
            dones: 0,
            given_up: false,
            repeats: 0,
            excuses: 0,
            running: BTreeSet::new(),
        }
    }
}

/// How a call of a listener ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Done,
    Deferred,
    Failed,
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap()
}

/// A lease without the random part of its owner.
fn plain(lease: &Lease) -> String {
    let (owner, number) = lease.as_str().split_once('/').unwrap();
    format!("{}/{number}", owner.split('-').next().unwrap())
}

fn owner(lease: &Lease) -> &str {
    lease.as_str().split('-').next().unwrap()
}

pub(super) fn verb(action: &Action) -> &'static str {
    match action {
        Action::Done => "done",
        Action::Retry { .. } => "retry",
        Action::Defer { .. } => "defer",
        Action::Dead { .. } => "dead",
        Action::Release => "release",
    }
}

impl Ledger {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            lease: plan.options.lease,
            attempts: plan.options.retry_attempts,
            deletes_done: plan.deletes_done,
            overlaps: plan.options.in_flight_ttl.is_some(),
            calm: plan.calm,
            lanes: LanesLedger::new(plan.lanes),
            ..Self::default()
        }
    }

    pub(super) fn note(&mut self, now: u64, line: impl AsRef<str>) {
        self.trace.push(format!("{:>9.3} {}", now as f64 / 1000.0, line.as_ref()));
    }

    pub(super) fn broken(&mut self, now: u64, what: impl AsRef<str>) {
        self.note(now, format!("!! {}", what.as_ref()));
        self.violations.push(what.as_ref().to_owned());
    }

    fn fact(&mut self, id: &EventId) -> &mut Fact {
        self.facts.get_mut(id).expect("every event is known before it is written")
    }

    /// A transaction was committed, with these rows and the moments of their inserts.
    pub(super) fn committed(&mut self, now: u64, rows: &[(NewRow, u64)]) {
        for (new, inserted_at) in rows {
            let id = new.event.id();
            let lease = new.lease.as_ref().map_or_else(|| "-".to_owned(), plain);
            self.note(now, format!("commit {id} {lease}"));
            let delay = match new.event.availability() {
                posthaste_core::event::Availability::After(delay) => micros(delay),
                _ => 0,
            };
            let row = Row {
                status: Status::New,
                attempts: 0,
                lease: new.lease.clone(),
                leased_at: *inserted_at,
                available_at: inserted_at + delay,
            };
            if self.fact(id).row.replace(row).is_some() {
                self.broken(now, format!("twice: {id} was committed a second time"));
            }
            self.written(&new.event);
        }
    }

    pub(super) fn claimed(&mut self, now: u64, claim: &Claim, claimed: &Claimed) {
        let length = micros(self.lease);
        if !claimed.rows.is_empty() {
            let ids: Vec<_> = claimed.rows.iter().map(|row| row.event.id().as_str()).collect();
            self.note(now, format!("claim {} {}", plain(&claim.lease), ids.join(" ")));
            if !self.leases.insert(claim.lease.as_str().to_owned()) {
                self.broken(now, format!("lease: {} was used twice", plain(&claim.lease)));
            }
        }
        for row in &claimed.rows {
            let id = row.event.id();
            let fact = self.fact(id);
            let Some(kept) = &mut fact.row else {
                self.broken(now, format!("phantom: {id} was claimed, but never committed"));
                continue;
            };
            let free = kept.lease.is_none();
            let run_out = kept.leased_at + length <= now;
            let fits = !kept.status.is_final() && kept.available_at <= now && kept.attempts == row.attempts;
            let before = format!("{kept:?}");
            if !free {
                fact.excuses += 1;
            }
            (kept.lease, kept.leased_at) = (Some(claim.lease.clone()), now);
            if !free {
                self.note(now, format!("{id} is claimed after its lease ran out"));
            }
            if !(fits && (free || run_out)) {
                self.broken(now, format!("fence: {id} was claimed as {before}"));
            }
        }
    }

    /// An outcome is on its way. Until it is known to have arrived the event may be delivered again.
    pub(super) fn sent(&mut self, settlements: &[Settlement]) {
        for settlement in settlements.iter().filter(|settlement| settlement.action == Action::Done) {
            self.fact(&settlement.id).excuses += 1;
        }
    }

    pub(super) fn arrived(&mut self, settlements: &[Settlement], answers: &[Settled]) {
        for (settlement, answer) in settlements.iter().zip(answers) {
            if settlement.action == Action::Done && *answer == Settled::Applied {
                self.fact(&settlement.id).excuses -= 1;
            }
        }
    }

    pub(super) fn settled(&mut self, now: u64, settlement: &Settlement, answer: Settled) {
        let (id, lease) = (&settlement.id, &settlement.lease);
        let verb = verb(&settlement.action);
        self.note(now, format!("{verb} {id} {} {answer:?}", plain(lease)));
        let held = |row: &&Row| !row.status.is_final() && row.lease.as_ref() == Some(lease);
        if self.fact(id).row.as_ref().filter(held).is_none() {
            if answer == Settled::Applied {
                self.broken(now, format!("fence: {verb} of {id} under a lost lease"));
            }
            return;
        }
        if answer == Settled::Lost {
            self.broken(now, format!("fence: {verb} of {id} was refused under a lease that stood"));
            return;
        }
        self.applied(now, id, &settlement.action);
    }

    /// An outcome was written, and may be.
    pub(super) fn applied(&mut self, now: u64, id: &EventId, action: &Action) {
        let attempts = self.attempts;
        // With lanes, a statement that comes late counts a failure that its relay does not know of.
        let (lanes, late) = (self.lanes.policy.is_some(), self.lanes.policy.is_some() && !self.calm);
        let fact = self.fact(id);
        let Some(row) = fact.row.as_mut() else { return };
        row.lease = None;
        // Whatever does not end it is a reason to deliver it again.
        fact.excuses += u32::from(!matches!(action, Action::Done | Action::Dead { .. }));
        let mut wrong = None;
        match action {
            Action::Done => {
                row.status = Status::Done;
                if fact.dones == 0 {
                    wrong = Some("false done: nobody said Done for");
                }
            }
            Action::Retry { delay, .. } => {
                row.status = Status::Retry;
                row.attempts += 1;
                row.available_at = now + micros(*delay);
                if row.attempts > fact.failures && !late {
                    wrong = Some("attempts: more failures were counted than there were, for");
                }
            }
            Action::Defer { delay } => {
                row.available_at = now + micros(*delay);
                fact.deferred += 1;
                if fact.deferred > fact.deferrals {
                    wrong = Some("deferred: more often than the listener said, for");
                }
            }
            Action::Dead { counts, .. } => {
                row.status = Status::Dead;
                row.attempts += u32::from(*counts);
                let planned = match fact.kind {
                    Kind::Fine => false,
                    Kind::Poison => row.attempts == attempts || (lanes && row.attempts > attempts),
                    Kind::Permanent | Kind::GivenUp => *counts,
                    Kind::Unroutable => !*counts,
                };
                if !planned {
                    wrong = Some("wrongly dead:");
                } else if row.attempts > fact.failures && !late {
                    wrong = Some("attempts: dead with more failures than there were, for");
                }
            }
            Action::Release => {}
        }
        if let Some(wrong) = wrong {
            self.broken(now, format!("{wrong} {id}"));
        }
    }

    pub(super) fn renewed(&mut self, now: u64, id: &EventId, lease: &Lease, held: bool) {
        self.note(now, format!("renew {id} {} {held}", plain(lease)));
        let fact = self.fact(id);
        let standing = |row: &&mut Row| !row.status.is_final() && row.lease.as_ref() == Some(lease);
        match fact.row.as_mut().filter(standing) {
            Some(row) if held => row.leased_at = now,
            None if !held => {}
            _ => self.broken(now, format!("fence: renewal of {id} answered {held}")),
        }
    }

    pub(super) fn released_all(&mut self, now: u64) {
        self.note(now, "release all");
        for fact in self.facts.values_mut() {
            if let Some(row) = fact.row.as_mut().filter(|row| !row.status.is_final() && row.lease.is_some()) {
                row.lease = None;
                fact.excuses += 1;
            }
        }
    }

    pub(super) fn redriven(&mut self, now: u64, id: &EventId, count: u64) {
        self.note(now, format!("redrive {id} {count}"));
        let fact = self.fact(id);
        (fact.failures, fact.excuses) = (0, fact.excuses + 1);
        match &mut fact.row {
            Some(row) if row.status == Status::Dead && count == 1 => {
                *row = Row { status: Status::New, attempts: 0, lease: None, leased_at: 0, available_at: now };
            }
            Some(row) if row.status != Status::Dead && count == 0 => {}
            _ => self.broken(now, format!("redrive: of {id} answered {count}")),
        }
    }

    /// A listener is about to get an event.
    pub(super) fn started(&mut self, now: u64, process: &str, event: &Delivery) {
        let (length, overlaps) = (micros(self.lease), self.overlaps);
        // With lanes, who has lost his may go on for a while: what he does is in order, and is not written.
        let lanes = self.lanes.policy.is_some();
        let strict = !lanes || self.calm;
        let (id, attempt) = (event.id(), event.attempt());
        self.note(now, format!("{process} starts {id} attempt {attempt} {:?}", event.path()));
        let out_of_order = if lanes { self.out_of_order(event) } else { None };
        let Some(fact) = self.facts.get_mut(id) else {
            self.broken(now, format!("phantom: {id} was never written"));
            return;
        };
        let mut wrong = Vec::new();
        if event.payload().as_json() != Some(&fact.payload) || event.header("of") != Some(id.as_str()) {
            wrong.push("corrupt: another payload or header than written");
        }
        if !fact.running.insert(process.to_owned()) && !overlaps {
            wrong.push("twice: started while the same process was at it");
        }
        if fact.dones > 0 {
            fact.repeats += 1;
            if fact.repeats > fact.excuses && strict {
                wrong.push("duplicate: without a cause");
            }
        }
        match &fact.row {
            None => wrong.push("phantom: delivered, but never committed"),
            Some(row) if row.status.is_final() && strict => wrong.push("fence: started when it was final"),
            Some(_) if !strict => {}
            Some(row) => {
                if lanes {
                } else if row.lease.as_ref().is_none_or(|lease| owner(lease) != process) {
                    wrong.push("fence: started without a lease");
                } else if row.leased_at + length <= now {
                    wrong.push("fence: started when its lease had run out");
                }
                if row.attempts + 1 != attempt {
                    wrong.push("attempts: another number than the row's");
                }
                if row.available_at > now {
                    wrong.push("early: started before it was due");
                }
            }
        }
        for wrong in wrong.into_iter().map(str::to_owned).chain(out_of_order) {
            self.broken(now, format!("{wrong} ({id})"));
        }
    }

    /// A listener has ended, with a verdict or cut short.
    pub(super) fn ended(&mut self, now: u64, process: &str, id: &EventId, said: Option<Said>) {
        self.note(now, format!("{process} ends {id} {said:?}"));
        if said.is_none() && self.calm {
            self.broken(now, format!("cut: {id} was cut short without a cause"));
        }
        let Some(fact) = self.facts.get_mut(id) else { return };
        fact.running.remove(process);
        match said {
            Some(Said::Done) => fact.dones += 1,
            Some(Said::Deferred) => fact.deferrals += 1,
            Some(Said::Failed) => fact.failures += 1,
            None => {}
        }
    }

    pub(super) fn pending(&self) -> Vec<&EventId> {
        let pending = |fact: &Fact| fact.row.as_ref().is_some_and(|row| !row.status.is_final());
        self.facts.iter().filter(|(_, fact)| pending(fact)).map(|(id, _)| id).collect()
    }

    pub(super) fn dead(&self) -> Vec<EventId> {
        let dead = |fact: &Fact| fact.row.as_ref().is_some_and(|row| row.status == Status::Dead);
        self.facts.iter().filter(|(_, fact)| dead(fact)).map(|(id, _)| id.clone()).collect()
    }

    /// The events whose lease this process holds.
    pub(super) fn held_by(&self, process: &str) -> Vec<&EventId> {
        let held = |row: &Row| !row.status.is_final() && row.lease.as_ref().is_some_and(|held| owner(held) == process);
        self.facts.iter().filter(|(_, fact)| fact.row.as_ref().is_some_and(held)).map(|(id, _)| id).collect()
    }

    /// Once everything is healed and drained.
    pub(super) fn check_the_end(&mut self, now: u64) {
        let mut wrong = Vec::new();
        for (id, fact) in &self.facts {
            let Some(row) = &fact.row else { continue };
            let wanted = if fact.kind == Kind::Fine { Status::Done } else { Status::Dead };
            if !row.status.is_final() {
                wrong.push(format!("stuck: {id} {row:?}"));
            } else if row.status != wanted {
                wrong.push(format!("wrong end: {id} is {} and not {wanted}", row.status));
            } else if wanted == Status::Done && fact.dones == 0 {
                wrong.push(format!("lost: {id} reached nobody"));
            }
        }
        for wrong in wrong {
            self.broken(now, wrong);
        }
    }
}
