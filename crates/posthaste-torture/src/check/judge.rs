//! The rules, the doubts and the figures, each from the [evidence](super::evidence).

use std::collections::HashMap;

use super::evidence::{Event, Evidence};
use super::{EXAMPLES, Fault, Rule, Totals, fence, repeats};
use crate::history::Message;

/// What breaks a rule.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) count: u64,
    /// Ids, each with what is wrong.
    pub(super) examples: Vec<(String, String)>,
}

impl Findings {
    /// A count without examples breaks nothing: repeats that the faults explain.
    pub(super) fn broken(&self) -> bool {
        !self.examples.is_empty()
    }

    fn add(&mut self, id: &str, why: impl Into<String>) {
        self.count += 1;
        self.name(id, why);
    }

    fn name(&mut self, id: &str, why: impl Into<String>) {
        if self.examples.len() < EXAMPLES {
            self.examples.push((id.to_owned(), why.into()));
        }
    }
}

pub(super) fn find(rule: Rule, evidence: &Evidence<'_>) -> Findings {
    match rule {
        Rule::Atomicity => of_each(evidence, atomicity),
        Rule::Lost => of_each(evidence, lost),
        Rule::FalseDone => of_each(evidence, false_done),
        Rule::Phantom => of_each(evidence, phantom),
        Rule::Corrupt => of_each(evidence, |_, event| corrupt(event)),
        Rule::WronglyDead => of_each(evidence, wrongly_dead),
        Rule::Fence => of_each(evidence, fence::crossed),
        Rule::Order => order(evidence),
        Rule::Duplicates => duplicates(evidence),
        Rule::Stuck => of_each(evidence, stuck),
        Rule::Fallen => fallen(evidence),
    }
}

/// Asks of every event what is wrong with it.
fn of_each(evidence: &Evidence<'_>, rule: impl Fn(&Evidence<'_>, &Event<'_>) -> Option<String>) -> Findings {
    let mut findings = Findings::default();
    for event in &evidence.events {
        if let Some(why) = rule(evidence, event) {
            findings.add(event.id, why);
        }
    }
    findings
}

/// The ledger and the outbox hold the same events, and those of which the producers were told.
fn atomicity(evidence: &Evidence<'_>, event: &Event<'_>) -> Option<String> {
    // A malformed row was put there by hand, so it has no business row.
    let (committed, in_outbox) = (event.ledger.is_some(), event.row.is_some() && !event.malformed);
    let absence_proves = evidence.is_complete();
    let told = &event.told;
    let contradictions = [
        (committed && told.failed, "its transaction failed, but its business row is there"),
        (committed && told.not_found, "it was looked up and not found, but its business row is there"),
        (absence_proves && !committed && told.acked, "it was acknowledged, but its business row is missing"),
        (absence_proves && !committed && told.found, "it was looked up and found, but its business row is missing"),
        (absence_proves && committed && !in_outbox, "its business row is there, but its event is missing"),
        (absence_proves && !committed && in_outbox, "its event is there, but its business row is missing"),
    ];
    reasons(contradictions.into_iter().filter(|(wrong, _)| *wrong).map(|(_, why)| why.to_owned()))
}

fn lost(evidence: &Evidence<'_>, event: &Event<'_>) -> Option<String> {
    // While the drain goes on, what is pending is not lost.
    let still_to_come = event.is_pending() && !evidence.patience_is_over();
    let wrong = evidence.is_complete()
        && event.ledger.is_some()
        && event.received.is_empty()
        && !event.is("dead")
        && !still_to_come;
    let row = || event.row.map_or_else(|| "missing".to_owned(), str::to_uppercase);
    let never = match event.taken_at {
        Some(_) => "the broker said that it has it, and does not have it at the end",
        None => "it was never received",
    };
    wrong.then(|| format!("{never}, and its row is {}", row()))
}

/// By how many microseconds the clocks of the sink and the database may differ: some count milliseconds.
const CLOCKS: i64 = 50_000;

fn false_done(evidence: &Evidence<'_>, event: &Event<'_>) -> Option<String> {
    if !evidence.is_complete() {
        return None;
    }
    if event.received_at.is_none() {
        // A malformed row that is made DONE was not received either.
        return event.is("done").then(|| "its row is DONE, but it was never received".to_owned());
    }
    let Some(arrived_at) = evidence.arrived_at(event) else {
        return event.is("done").then(|| "its row is DONE, but nobody was told that the broker has it".to_owned());
    };
    let early = arrived_at.saturating_sub(event.done_at?);
    (early > CLOCKS).then(|| format!("it was DONE {} ms before it was first received", early / 1000))
}

fn phantom(evidence: &Evidence<'_>, event: &Event<'_>) -> Option<String> {
    let wrong = evidence.is_complete() && event.ledger.is_none() && !event.received.is_empty();
    wrong.then(|| "it was received, but has no business row".to_owned())
}

fn corrupt(event: &Event<'_>) -> Option<String> {
    let ledger = event.ledger?;
    reasons(event.received.iter().filter(|received| **received != ledger).map(|received| differences(ledger, received)))
}

fn differences(written: &Message, received: &Message) -> String {
    let fields = [
        ("type", written.event_type.clone(), received.event_type.clone()),
        ("key", written.key.clone(), received.key.clone()),
        ("number", written.number.to_string(), received.number.to_string()),
        ("hash", format!("{:016x}", written.hash), format!("{:016x}", received.hash)),
        ("poison", written.poison.to_string(), received.poison.to_string()),
    ];
    let differ = fields.iter().filter(|(_, written, received)| written != received);
    let differ: Vec<_> = differ.map(|(name, was, came)| format!("{name} {was:?} came as {came:?}")).collect();
    differ.join(", ")
}

fn wrongly_dead(evidence: &Evidence<'_>, event: &Event<'_>) -> Option<String> {
    let planned = match event.ledger {
        Some(ledger) => ledger.poison,
        None => event.malformed || !evidence.is_complete(),
    };
    if !event.is("dead") {
        return None;
    }
    if !planned {
        return Some("its row is DEAD, which nobody planned".to_owned());
    }
    let poison = event.ledger.is_some_and(|ledger| ledger.poison);
    if poison && evidence.blocks() {
        // It would have been tried for ever, and is DEAD at whatever failure somebody gave it up.
        return event.given_up_at.is_none().then(|| "its row is DEAD, and nobody gave it up".to_owned());
    }
    let last = evidence.run.map(|run| run.attempts).filter(|last| *last > 0 && poison);
    let untimely = last.filter(|last| *last != event.attempts);
    let untimely = untimely.map(|last| format!("its row is DEAD at failure {}, not {last}", event.attempts));
    let baseless = event.error.is_none_or(str::is_empty).then(|| "its row is DEAD without a reason".to_owned());
    reasons(untimely.into_iter().chain(baseless))
}

/// First deliveries of a key, in the order in which they came. What is DEAD or meant to be may come late or never.
fn order(evidence: &Evidence<'_>) -> Findings {
    let mut findings = Findings::default();
    if !evidence.ordered() || !evidence.is_complete() {
        return findings;
    }
    let mut last: HashMap<&str, u64> = HashMap::new();
    for &place in &evidence.first_deliveries {
        let event = &evidence.events[place];
        let Some(ledger) = event.ledger.filter(|ledger| !ledger.poison && !event.is("dead")) else { continue };
        let last = last.entry(&ledger.key).or_insert(0);
        if ledger.number < *last {
            let (key, number) = (&ledger.key, ledger.number);
            findings.add(event.id, format!("number {number} of key {key:?} first came after number {last}"));
        }
        *last = ledger.number.max(*last);
    }
    overtaking(evidence, &mut findings);
    findings
}

/// Where those behind an event that is refused for good wait for an operator: whatever came before he had decided about it.
fn overtaking(evidence: &Evidence<'_>, findings: &mut Findings) {
    if !evidence.waits() {
        return;
    }
    let mut refused: HashMap<&str, Vec<(u64, Option<i64>)>> = HashMap::new();
    for event in &evidence.events {
        if let Some(ledger) = event.ledger.filter(|ledger| ledger.poison) {
            refused.entry(&ledger.key).or_default().push((ledger.number, event.given_up_at));
        }
    }
    for &place in &evidence.first_deliveries {
        let event = &evidence.events[place];
        let Some((ledger, arrived_at)) = event.ledger.zip(evidence.arrived_at(event)) else { continue };
        let too_early = |(number, given_up_at): &&(u64, Option<i64>)| {
            *number < ledger.number && given_up_at.is_none_or(|given_up_at| arrived_at < given_up_at)
        };
        if let Some((before, _)) = refused.get(&*ledger.key).into_iter().flatten().find(too_early) {
            let (key, number) = (&ledger.key, ledger.number);
            findings
                .add(event.id, format!("number {number} of key {key:?} came before anybody gave up number {before}"));
        }
    }
}

/// All repeats are counted, and examples are those that nothing explains.
fn duplicates(evidence: &Evidence<'_>) -> Findings {
    let mut findings = Findings::default();
    for event in &evidence.events {
        findings.count += event.repeats();
        let explained = repeats::explained(evidence, event);
        // What explains them may be a line that is missing.
        if event.repeats() > explained && evidence.ended && evidence.changes > 0 && !is_unnoted(event) {
            let times = event.received.len();
            findings.name(event.id, format!("it was received {times} times; repeats explained: {explained}"));
        }
    }
    findings
}

fn stuck(evidence: &Evidence<'_>, event: &Event<'_>) -> Option<String> {
    let row = || event.row.map_or_else(|| "missing".to_owned(), str::to_uppercase);
    if event.is_pending() {
        return evidence.patience_is_over().then(|| format!("its row is still {}", row()));
    }
    let unburied = event.malformed && evidence.is_complete() && !event.is("dead");
    unburied.then(|| format!("it is malformed, but its row is {}", row()))
}

fn fallen(evidence: &Evidence<'_>) -> Findings {
    let mut findings = Findings::default();
    for (who, how) in &evidence.fallen {
        findings.add(who, how.as_str());
    }
    findings
}

/// Why the run proves less than it should.
pub(super) fn doubts(evidence: &Evidence<'_>) -> Vec<String> {
    let mut doubts = Vec::new();
    if evidence.run.is_none() {
        doubts.push("the history does not say what was intended".to_owned());
    }
    doubts.extend(what_is_missing(evidence));
    doubts.extend(drain_in_doubt(evidence));
    doubts.extend(evidence.run.iter().flat_map(|run| &run.faults).filter_map(|name| never_happened(evidence, name)));
    if evidence.waits() && evidence.is_complete() && evidence.events.iter().all(|event| event.given_up_at.is_none()) {
        doubts.push("no key had to wait for an operator".to_owned());
    }
    let unnoted = evidence.events.iter().filter(|event| is_unnoted(event)).count();
    if unnoted > 0 {
        doubts.push(format!("not all changes were noted (rows concerned: {unnoted})"));
    }
    doubts
}

fn what_is_missing(evidence: &Evidence<'_>) -> Option<String> {
    let written = evidence.ledger > 0 || evidence.events.iter().any(|event| event.told.acked || event.told.found);
    let why = match () {
        () if !evidence.ended => "the history has no end",
        () if !written => "nothing was written",
        () if evidence.ledger == 0 => "the business rows were not read",
        () if evidence.rows == 0 => "the rows of the outbox were not read",
        () => return None,
    };
    Some(why.to_owned())
}

fn drain_in_doubt(evidence: &Evidence<'_>) -> Option<String> {
    let Some(drained) = &evidence.drained else { return Some("the drain has no end".to_owned()) };
    if evidence.healed.is_none() {
        return Some("nothing says that everything was mended before the drain".to_owned());
    }
    let pending = evidence.events.iter().filter(|event| event.is_pending()).count();
    if pending > 0 && !evidence.patience_is_over() {
        return Some(format!("the drain ended before its time (rows pending: {pending})"));
    }
    let late = pending == 0 && drained.pending > 0;
    late.then(|| format!("the drain gave up on rows that were settled later ({})", drained.pending))
}

fn never_happened(evidence: &Evidence<'_>, name: &str) -> Option<String> {
    match evidence.fault_named(name) {
        None => Some(format!("{name} never happened")),
        Some(fault) if fault.mended == 0 => Some(format!("{name} was never mended")),
        Some(fault) if fault.effects == 0 => Some(format!("{name} did nothing")),
        Some(_) => None,
    }
}

/// A row is born NEW, so any other status came by a change. Without the changes the fence is not seen.
fn is_unnoted(event: &Event<'_>) -> bool {
    let Some(row) = event.row.filter(|row| *row != "new" && !event.malformed) else { return false };
    !event.changed.iter().any(|changed| changed.status[1] == row)
}

pub(super) fn totals(evidence: &Evidence<'_>) -> Totals {
    let mut totals = Totals {
        written: evidence.ledger,
        crashes: evidence.crashes,
        unanswered: evidence.unanswered,
        ..Totals::default()
    };
    for event in &evidence.events {
        totals.acked += u64::from(event.told.acked);
        totals.failed += u64::from(event.told.failed);
        totals.unknown += u64::from(event.told.unknown);
        totals.received += event.received.len() as u64;
        totals.refused += event.refused;
        totals.duplicates += event.repeats();
        totals.dead += u64::from(event.is("dead"));
        totals.malformed += u64::from(event.malformed);
        totals.pending += u64::from(event.is_pending());
        totals.lost_leases += if evidence.lanes() { fence::lost_lanes(event) } else { fence::lost_leases(event) };
        totals.allowed += repeats::explained(evidence, event);
    }
    totals
}

pub(super) fn faults(evidence: &Evidence<'_>) -> Vec<Fault> {
    let intended = evidence.run.map_or(&[][..], |run| &run.faults);
    let known = |name: &str, intended| {
        let (times, effects) = evidence.fault_named(name).map_or((0, 0), |fault| (fault.broken, fault.effects));
        Fault { name: name.to_owned(), times, effects, intended }
    };
    let others = evidence.faults.iter().filter(|fault| intended.iter().all(|name| name != fault.name));
    intended.iter().map(|name| known(name, true)).chain(others.map(|fault| known(fault.name, false))).collect()
}

/// All reasons as one text, if there are any.
pub(super) fn reasons(reasons: impl Iterator<Item = String>) -> Option<String> {
    let reasons: Vec<_> = reasons.collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}
