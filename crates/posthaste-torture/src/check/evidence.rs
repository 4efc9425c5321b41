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
    /// Messages whose answer never came.
    pub(super) unanswered: u64,
    /// Processes that ended by themselves or in disorder, and how.
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
    pub(super) received: Vec<&'a Message>,
    pub(super) refused: u64,
    pub(super) settled: Vec<Settled<'a>>,
    pub(super) changed: Vec<Changed<'a>>,
    /// When it was first heard of, before the database was looked at.
    pub(super) seen_at: Option<i64>,
    pub(super) received_at: Option<i64>,
    pub(super) dead_at: Option<i64>,
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

pub(super) struct Settled<'a> {
    pub(super) who: &'a str,
    pub(super) lease: &'a str,
    pub(super) action: &'a str,
    pub(super) applied: bool,
}

pub(super) struct Changed<'a> {
    pub(super) status: [&'a str; 2],
    pub(super) lease: [Option<&'a str>; 2],
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
        evidence
    }

    /// Whether the end was written down and the database was read. Otherwise a line that is missing proves nothing.
    pub(super) fn is_complete(&self) -> bool {
        self.ended && self.ledger > 0 && self.rows > 0
    }

    pub(super) fn ordered(&self) -> bool {
        self.run.is_some_and(|run| run.ordered)
    }

    /// Whether what is pending at the end had all the time it may take.
    pub(super) fn patience_is_over(&self) -> bool {
        let (Some(healed), Some(drained)) = (&self.healed, &self.drained) else { return false };
        let patience = i64::try_from(healed.patience_ms).unwrap_or(i64::MAX).saturating_mul(1000);
        drained.at >= healed.at.saturating_add(patience)
    }

    fn take(&mut self, entry: &'a Entry) {
        match &entry.what {
            What::Run(run) => self.run = self.run.or(Some(run)),
            What::Exited { status, signal, wanted } => {
                self.crashes += u64::from(signal.is_some());
                if !wanted || status.is_some_and(|status| !is_orderly(status)) {
                    let how = match (signal, status) {
                        (Some(signal), _) => format!("signal {signal}"),
                        (None, status) => format!("exit status {}", status.unwrap_or(-1)),
                    };
                    self.fallen.push((&entry.who, how));
                }
            }
            What::AnswerLost { ids } => self.unanswered += ids.len() as u64,
            What::DidNotEnd => self.fallen.push((&entry.who, "a kill, since it did not end in time".to_owned())),
            What::Silent => self.fallen.push((&entry.who, "nothing delivered at the end".to_owned())),
            What::Broken { fault, .. } => self.fault(fault).broken += 1,
            What::Mended { fault, effects } => {
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

    fn take_of_event(&mut self, id: &'a str, entry: &'a Entry) {
        let place = self.place(id);
        let event = &mut self.events[place];
        match &entry.what {
            What::Ledger(message) => {
                self.ledger += u64::from(event.ledger.is_none());
                event.ledger = Some(message);
                return;
            }
            What::Row { status, .. } => {
                self.rows += u64::from(event.row.is_none());
                event.row = Some(status);
                return;
            }
            What::Changed { status: [before, after], lease: [held, next], .. } => {
                self.changes += 1;
                event.changed.push(Changed { status: [before, after], lease: [held.as_deref(), next.as_deref()] });
                if after == "dead" {
                    event.dead_at.get_or_insert(entry.at);
                }
                return;
            }
            What::Malformed { .. } => event.malformed = true,
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
            What::Refused { .. } => event.refused += 1,
            What::Settled { lease, action, applied, .. } => {
                event.settled.push(Settled { who: &entry.who, lease, action, applied: *applied });
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

/// The event that an entry is about, if it is about one.
pub(super) fn subject(what: &What) -> Option<&str> {
    match what {
        What::Acked { id }
        | What::Failed { id, .. }
        | What::Unknown { id, .. }
        | What::Resolved { id, .. }
        | What::Refused { id }
        | What::Settled { id, .. }
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
        | What::Broken { .. }
        | What::Mended { .. }
        | What::Healed { .. }
        | What::Drained { .. }
        | What::End => None,
    }
}
