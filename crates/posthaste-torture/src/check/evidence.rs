//! The history, sorted by what it is about. One pass; everything is borrowed from the entries.

use std::collections::HashMap;

use crate::history::{Entry, Message, Run, What};
use crate::role::is_orderly;

/// Everything that a verdict is made of.
#[derive(Default)]
pub(super) struct Evidence<'a> {
    pub(super) run: Option<&'a Run>,
    /// Events in the order in which the history first mentions them, so that examples are the earliest.
    pub(super) events: Vec<Event<'a>>,
    by_id: HashMap<&'a str, usize>,
    /// The events that were received, in the order of their first delivery.
    pub(super) first_deliveries: Vec<usize>,
    pub(super) faults: Vec<FaultSeen<'a>>,
    fault_by_name: HashMap<&'a str, usize>,
    pub(super) healed: Option<Healed>,
    pub(super) drained: Option<Drained>,
    pub(super) ended: bool,
    pub(super) crashes: u64,
    /// From when to when a server was broken in a way by which it takes back what it did not wait for the disk with.
    taken_back: Vec<(i64, i64)>,
    /// Messages whose answer never came.
    pub(super) unanswered: u64,
    /// When each process ended, and whether by itself, in the order of time.
    ends: HashMap<&'a str, Vec<(i64, bool)>>,
    /// Processes that ended by themselves or in disorder or not at all, and how.
    pub(super) fallen: Vec<(&'a str, String)>,
    pub(super) ledger: u64,
    pub(super) rows: u64,
    pub(super) changes: u64,
}

/// What the history says of one event.
#[derive(Default)]
pub(super) struct Event<'a> {
    pub(super) id: &'a str,
    pub(super) told: Told,
    pub(super) malformed: bool,
    pub(super) ledger: Option<&'a Message>,
    /// The status of its row.
    pub(super) row: Option<&'a str>,
    /// How often it has failed, by its row.
    pub(super) attempts: u32,
    /// Why it failed last, by its row.
    pub(super) error: Option<&'a str>,
    pub(super) received: Vec<&'a Message>,
    pub(super) refused: u64,
    /// How often an answer about it never came.
    pub(super) answers_lost: u64,
    pub(super) claimed: Vec<Claimed<'a>>,
    pub(super) settled: Vec<Settled<'a>>,
    pub(super) changed: Vec<Changed<'a>>,
    /// When it was first heard of, before the database was looked at.
    pub(super) seen_at: Option<i64>,
    /// When it was first received, or read from the broker.
    pub(super) received_at: Option<i64>,
    /// When a relay was first told that the broker has it.
    pub(super) taken_at: Option<i64>,
    /// When the database noted that it is DONE.
    pub(super) done_at: Option<i64>,
    pub(super) dead_at: Option<i64>,
    /// When an operator first decided to skip it or to give it up.
    pub(super) given_up_at: Option<i64>,
    /// How often one decided to have it tried again.
    pub(super) released: u64,
}

/// What the producer was told of the transaction; all of it may be, of one id.
#[derive(Default)]
pub(super) struct Told {
    pub(super) acked: bool,
    pub(super) failed: bool,
    pub(super) unknown: bool,
    pub(super) found: bool,
    pub(super) not_found: bool,
}

/// A lease under which a poller had it: asked for, and had, at these moments.
pub(super) struct Claimed<'a> {
    pub(super) asked_at: i64,
    pub(super) at: i64,
    pub(super) lease: &'a str,
}

pub(super) struct Settled<'a> {
    pub(super) at: i64,
    pub(super) who: &'a str,
    pub(super) lease: &'a str,
    pub(super) action: &'a str,
    pub(super) applied: bool,
}

pub(super) struct Changed<'a> {
    pub(super) status: [&'a str; 2],
    pub(super) lease: [Option<&'a str>; 2],
    pub(super) held_ms: Option<i64>,
}

pub(super) struct FaultSeen<'a> {
    pub(super) name: &'a str,
    pub(super) broken: u64,
    pub(super) mended: u64,
    pub(super) effects: u64,
}

pub(super) struct Healed {
    pub(super) at: i64,
    pub(super) patience_ms: u64,
}

pub(super) struct Drained {
    pub(super) at: i64,
    pub(super) pending: u64,
}

impl<'a> Evidence<'a> {
    pub(super) fn gather(entries: &'a [Entry]) -> Self {
        let mut evidence = Self::default();
        for entry in entries {
            evidence.take(entry);
        }
        evidence.ends.values_mut().for_each(|ends| ends.sort_unstable());
        evidence
    }

    /// Whether the end was written down and the database was read. Otherwise a line that is missing proves nothing.
    pub(super) fn is_complete(&self) -> bool {
        self.ended && self.ledger > 0 && self.rows > 0
    }

    pub(super) fn ordered(&self) -> bool {
        self.run.is_some_and(|run| run.ordered)
    }

    /// Whether those behind an event that is refused for good wait for an operator.
    pub(super) fn waits(&self) -> bool {
        self.run.is_some_and(Run::waits)
    }

    /// Whether such an event is never DEAD by itself.
    pub(super) fn blocks(&self) -> bool {
        self.waits() && self.run.is_some_and(|run| run.on_dead == "block")
    }

    /// Whether rows were owned by lanes, and had no leases of their own.
    pub(super) fn lanes(&self) -> bool {
        self.run.is_some_and(|run| run.lanes)
    }

    /// Whether what the destination received was read from a broker at the end.
    pub(super) fn reads_back(&self) -> bool {
        self.run.is_some_and(Run::reads_back)
    }

    /// When an event is first known to have arrived. What was read at the end had arrived by the time a relay was told so.
    pub(super) fn arrived_at(&self, event: &Event<'_>) -> Option<i64> {
        if self.reads_back() { event.taken_at } else { event.received_at }
    }

    /// Whether what is pending at the end had all the time it may take.
    pub(super) fn patience_is_over(&self) -> bool {
        let (Some(healed), Some(drained)) = (&self.healed, &self.drained) else { return false };
        let patience = i64::try_from(healed.patience_ms).unwrap_or(i64::MAX).saturating_mul(1000);
        drained.at >= healed.at.saturating_add(patience)
    }

    /// Whether a process ended by itself within that many microseconds of a moment.
    pub(super) fn ended_within(&self, who: &str, at: i64, micros: i64) -> bool {
        let ends = self.ends.get(who).map_or(&[][..], Vec::as_slice);
        let next = ends.get(ends.partition_point(|(end, _)| *end < at));
        next.is_some_and(|(end, by_itself)| *by_itself && *end <= at.saturating_add(micros))
    }

    /// Whether the server was broken between these moments in a way that takes back what did not wait for the disk.
    pub(super) fn taken_back_between(&self, from: i64, to: i64) -> bool {
        self.taken_back.iter().any(|(broken, mended)| *broken <= to && from <= *mended)
    }

    fn take(&mut self, entry: &'a Entry) {
        match &entry.what {
            What::Run(run) => self.run = self.run.or(Some(run)),
            What::Exited { status, signal, wanted } => {
                self.crashes += u64::from(signal.is_some());
                self.ends.entry(&entry.who).or_default().push((entry.at, signal.is_none()));
                let orderly = status.is_none_or(is_orderly) && signal.is_none_or(is_sent);
                if !wanted || !orderly {
                    let how = match (signal, status) {
                        (Some(signal), _) => format!("it ended with signal {signal}"),
                        (None, status) => format!("it ended with exit status {}", status.unwrap_or(-1)),
                    };
                    self.fallen.push((&entry.who, how));
                }
            }
            What::DidNotEnd => self.fallen.push((&entry.who, "it did not end when it was asked to".to_owned())),
            What::AnswerLost { ids } => {
                self.unanswered += ids.len() as u64;
                ids.iter().for_each(|id| self.take_of_event(id, entry));
            }
            What::Claimed { ids, .. } => ids.iter().for_each(|id| self.take_of_event(id, entry)),
            What::Silent => {
                self.fallen.push((&entry.who, "it delivered nothing although everything was mended".to_owned()));
            }
            What::Broken { fault, .. } => {
                self.fault(fault).broken += 1;
                if self.takes_back(fault) {
                    self.taken_back.push((entry.at, i64::MAX));
                }
            }
            What::Mended { fault, effects } => {
                if self.takes_back(fault)
                    && let Some((_, mended)) = self.taken_back.last_mut()
                {
                    *mended = entry.at;
                }
                let fault = self.fault(fault);
                fault.mended += 1;
                fault.effects = fault.effects.saturating_add(*effects);
            }
            What::Healed { patience_ms } => self.healed = Some(Healed { at: entry.at, patience_ms: *patience_ms }),
            What::Drained { pending } => self.drained = Some(Drained { at: entry.at, pending: *pending }),
            What::End => self.ended = true,
            what => {
                if let Some(id) = subject(what) {
                    self.take_of_event(id, entry);
                }
            }
        }
    }

    /// PostgreSQL's claims do not wait for the disk. Those of the others do, or nothing but a power cut undoes them.
    fn takes_back(&self, fault: &str) -> bool {
        matches!(fault, "database-crash" | "disk-full") && self.run.is_some_and(|run| run.database == "postgres")
    }

    fn take_of_event(&mut self, id: &'a str, entry: &'a Entry) {
        let place = self.place(id);
        let event = &mut self.events[place];
        match &entry.what {
            What::Ledger(message) => {
                self.ledger += u64::from(event.ledger.is_none());
                event.ledger = Some(message);
                return;
            }
            What::Row { status, attempts, error, .. } => {
                self.rows += u64::from(event.row.is_none());
                event.row = Some(status);
                (event.attempts, event.error) = (*attempts, error.as_deref());
                return;
            }
            What::Changed { status: [before, after], lease: [held, next], held_ms, .. } => {
                self.changes += 1;
                let (status, lease) = ([&**before, after], [held.as_deref(), next.as_deref()]);
                event.changed.push(Changed { status, lease, held_ms: *held_ms });
                match &**after {
                    "done" if before != after => _ = event.done_at.get_or_insert(entry.at),
                    "dead" => _ = event.dead_at.get_or_insert(entry.at),
                    _ => {}
                }
                return;
            }
            What::Malformed { .. } => event.malformed = true,
            What::Decided { decision, .. } if decision == "release" => event.released += 1,
            What::Decided { .. } => _ = event.given_up_at.get_or_insert(entry.at),
            What::Acked { .. } => event.told.acked = true,
            What::Failed { .. } => event.told.failed = true,
            What::Unknown { .. } => event.told.unknown = true,
            What::Resolved { committed: true, .. } => event.told.found = true,
            What::Resolved { committed: false, .. } => event.told.not_found = true,
            What::Received(message) => {
                if event.received.is_empty() {
                    event.received_at = Some(entry.at);
                    self.first_deliveries.push(place);
                }
                event.received.push(message);
            }
            What::Taken { .. } => _ = event.taken_at.get_or_insert(entry.at),
            What::Refused { .. } => event.refused += 1,
            What::AnswerLost { .. } => event.answers_lost += 1,
            What::Claimed { lease, took_ms, .. } => {
                let asked_at = entry.at.saturating_sub(took_ms.saturating_mul(1000));
                event.claimed.push(Claimed { asked_at, at: entry.at, lease });
            }
            What::Settled { lease, action, applied, .. } => {
                event.settled.push(Settled { at: entry.at, who: &entry.who, lease, action, applied: *applied });
                if *applied && action == "dead" {
                    event.dead_at.get_or_insert(entry.at);
                }
            }
            _ => {}
        }
        event.seen_at.get_or_insert(entry.at);
    }

    fn place(&mut self, id: &'a str) -> usize {
        let next = self.events.len();
        let place = *self.by_id.entry(id).or_insert(next);
        if place == next {
            self.events.push(Event { id, ..Event::default() });
        }
        place
    }

    fn fault(&mut self, name: &'a str) -> &mut FaultSeen<'a> {
        let next = self.faults.len();
        let place = *self.fault_by_name.entry(name).or_insert(next);
        if place == next {
            self.faults.push(FaultSeen { name, broken: 0, mended: 0, effects: 0 });
        }
        &mut self.faults[place]
    }

    /// What is known of a fault, if it ever happened.
    pub(super) fn fault_named(&self, name: &str) -> Option<&FaultSeen<'a>> {
        self.fault_by_name.get(name).map(|&place| &self.faults[place])
    }
}

impl Event<'_> {
    pub(super) fn is(&self, status: &str) -> bool {
        self.row == Some(status)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.row.is_some_and(|status| !is_final(status))
    }

    pub(super) fn repeats(&self) -> u64 {
        (self.received.len() as u64).saturating_sub(1)
    }
}

/// Whether a row of that status is left alone for ever.
pub(super) fn is_final(status: &str) -> bool {
    matches!(status, "done" | "dead")
}

/// The events that an entry is about, where it may be about several.
pub(super) fn subjects(what: &What) -> impl Iterator<Item = &str> {
    let several = if let What::AnswerLost { ids } | What::Claimed { ids, .. } = what { &ids[..] } else { &[] };
    subject(what).into_iter().chain(several.iter().map(String::as_str))
}

/// Whether somebody who wants a process to end sends it that signal: KILL, or TERM before it could listen.
fn is_sent(signal: i32) -> bool {
    [9, 15].contains(&signal)
}

/// The event that an entry is about, if it is about one.
pub(super) fn subject(what: &What) -> Option<&str> {
    match what {
        What::Acked { id }
        | What::Failed { id, .. }
        | What::Unknown { id, .. }
        | What::Resolved { id, .. }
        | What::Taken { id }
        | What::Refused { id }
        | What::Settled { id, .. }
        | What::Decided { id, .. }
        | What::Malformed { id }
        | What::Row { id, .. }
        | What::Changed { id, .. } => Some(id),
        What::Received(message) | What::Ledger(message) => Some(&message.id),
        What::Run(_)
        | What::Started { .. }
        | What::Exited { .. }
        | What::DidNotEnd
        | What::Silent
        | What::AnswerLost { .. }
        | What::Claimed { .. }
        | What::Broken { .. }
        | What::Mended { .. }
        | What::Healed { .. }
        | What::Drained { .. }
        | What::End => None,
    }
}
