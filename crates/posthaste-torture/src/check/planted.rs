//! A small history with a bit of everything in which nothing is wrong, and ways to spoil it.

use super::evidence::subject;
use crate::history::{Entry, Message, Run, What};

/// What an entry about an event is, to pick it out.
pub(crate) type Kind = fn(&What) -> bool;

pub(crate) const ACKED: Kind = |what| matches!(what, What::Acked { .. });
pub(crate) const RECEIVED: Kind = |what| matches!(what, What::Received(_));
pub(crate) const SETTLED: Kind = |what| matches!(what, What::Settled { .. });
pub(crate) const LEDGER: Kind = |what| matches!(what, What::Ledger(_));
pub(crate) const ROW: Kind = |what| matches!(what, What::Row { .. });
pub(crate) const CHANGED: Kind = |what| matches!(what, What::Changed { .. });

/// A history to spoil.
#[derive(Clone)]
pub(crate) struct Planted {
    pub(crate) entries: Vec<Entry>,
}

impl Planted {
    /// Three events of key a, the first of them repeated because its relay was killed and the last of unknown outcome;
    /// of key b one that is poison and one that is not; a transaction that failed; a malformed row.
    pub(crate) fn valid() -> Self {
        let mut planted = Self { entries: Vec::new() };
        planted.writing();
        planted.delivering();
        planted.database();
        planted
    }

    fn writing(&mut self) {
        let run = Run {
            version: "0.1.0".to_owned(),
            seed: 42,
            database: "sqlite".to_owned(),
            destination: "sink".to_owned(),
            seconds: 10,
            faults: vec!["kill-relay".to_owned()],
            left_out: vec![("disk-full".to_owned(), "needs root".to_owned())],
            lease_ms: 600,
            attempts: 2,
            ordered: true,
            on_dead: "skip".to_owned(),
            lanes: false,
        };
        self.add(0, "runner", What::Run(run));
        for (pid, who) in [(10, "sink"), (11, "producer-1"), (12, "relay-1"), (13, "relay-2")] {
            self.add(100, who, What::Started { pid });
        }
        for (at, id) in [(1000, "a1"), (1100, "a2"), (1200, "p1"), (1300, "b2")] {
            self.add(at, "producer-1", What::Acked { id: id.to_owned() });
        }
        self.add(1400, "producer-1", What::Unknown { id: "a3".to_owned(), error: "connection closed".to_owned() });
        self.add(1500, "producer-1", What::Resolved { id: "a3".to_owned(), committed: true });
        self.add(1600, "producer-1", What::Failed { id: "f1".to_owned(), error: "rolled back".to_owned() });
        self.add(1700, "nemesis", What::Malformed { id: "m1".to_owned() });
    }

    fn delivering(&mut self) {
        self.add(2000, "sink", What::Received(message("a1")));
        self.add(2001, "nemesis", What::Broken { fault: "kill-relay".to_owned(), detail: "relay-1".to_owned() });
        self.add(2002, "relay-1", What::Exited { status: None, signal: Some(9), wanted: true });
        self.add(2500, "nemesis", What::Mended { fault: "kill-relay".to_owned(), effects: 1 });
        for (at, id, lease) in [(3000, "a1", "r2/1"), (3100, "a2", "r2/2"), (3200, "a3", "r2/3"), (3300, "b2", "r2/4")]
        {
            self.add(at, "sink", What::Received(message(id)));
            self.add(at + 1, "relay-2", settled(id, lease, "done", true));
        }
        self.add(4000, "sink", What::Refused { id: "p1".to_owned() });
        self.add(4001, "relay-2", settled("p1", "r2/5", "retry", true));
        self.add(5000, "sink", What::Refused { id: "p1".to_owned() });
        self.add(5001, "relay-2", settled("p1", "r2/6", "dead", true));
        self.add(5002, "relay-2", settled("m1", "r2/7", "dead", true));
        self.add(10_000, "runner", What::Healed { patience_ms: 5000 });
        self.add(11_000, "runner", What::Drained { pending: 0 });
        self.add(11_500, "relay-2", What::Exited { status: Some(0), signal: None, wanted: true });
    }

    fn database(&mut self) {
        for id in ["a1", "a2", "a3", "p1", "b2"] {
            self.add(12_000, "runner", What::Ledger(message(id)));
        }
        let rows = [("a1", "done"), ("a2", "done"), ("a3", "done"), ("p1", "dead"), ("b2", "done"), ("m1", "dead")];
        for (id, status) in rows {
            self.add(12_000, "runner", row(id, status));
        }
        self.add(2800, "database", taken_over("a1", ["r1/1", "r2/1"], Some(900)));
        for (at, id, lease) in [(3001, "a1", "r2/1"), (3101, "a2", "r2/2"), (3201, "a3", "r2/3"), (3301, "b2", "r2/4")]
        {
            self.add(at, "database", changed(id, ["new", "done"], [Some(lease), None]));
        }
        self.add(4001, "database", changed("p1", ["new", "retry"], [Some("r2/5"), None]));
        self.add(5001, "database", changed("p1", ["retry", "dead"], [Some("r2/6"), None]));
        self.add(5002, "database", changed("m1", ["new", "dead"], [Some("r2/7"), None]));
        self.add(12_500, "runner", What::End);
    }

    /// Adds an entry at the end.
    pub(crate) fn add(&mut self, millis: i64, who: &str, what: What) {
        self.entries.push(Entry { at: millis * 1000, who: who.to_owned(), what });
    }

    /// Says that the run was on that database.
    pub(crate) fn on(&mut self, database: &str) {
        for entry in &mut self.entries {
            if let What::Run(run) = &mut entry.what {
                database.clone_into(&mut run.database);
            }
        }
    }

    /// Removes every entry of that kind about that event. There must be one.
    pub(crate) fn forget(&mut self, id: &str, kind: Kind) {
        self.forget_where(|what| kind(what) && subject(what) == Some(id));
    }

    /// Removes every such entry. There must be one.
    pub(crate) fn forget_where(&mut self, wanted: impl Fn(&What) -> bool) {
        let before = self.entries.len();
        self.entries.retain(|entry| !wanted(&entry.what));
        assert!(self.entries.len() < before, "there is nothing to forget");
    }

    /// Replaces the first entry of that kind about that event.
    pub(crate) fn replace(&mut self, id: &str, kind: Kind, what: What) {
        let entry = self.entries.iter_mut().find(|entry| kind(&entry.what) && subject(&entry.what) == Some(id));
        entry.expect("there is something to replace").what = what;
    }

    /// Makes the row of an event end with another status, by a change and a settlement that are right.
    pub(crate) fn end_as(&mut self, id: &str, status: &str, lease: &str) {
        self.replace(id, ROW, row(id, status));
        self.forget(id, CHANGED);
        self.forget(id, SETTLED);
        self.add(9000, "database", changed(id, ["new", status], [Some(lease), None]));
        self.add(9000, "relay-2", settled(id, lease, status, true));
    }

    /// Lets the drain end at that moment with that many rows pending.
    pub(crate) fn drain_until(&mut self, millis: i64, pending: u64) {
        self.forget_where(|what| matches!(what, What::Drained { .. }));
        self.add(millis, "runner", What::Drained { pending });
    }

    /// Lets it be a run in which nothing is broken on purpose.
    pub(crate) fn without_faults(&mut self) {
        self.forget_where(|what| matches!(what, What::Broken { .. } | What::Mended { .. }));
        self.run().faults.clear();
    }

    pub(crate) fn run(&mut self) -> &mut Run {
        let mut whats = self.entries.iter_mut().map(|entry| &mut entry.what);
        whats.find_map(|what| if let What::Run(run) = what { Some(run) } else { None }).expect("there is a run")
    }
}

/// The message of an event whose id is its key and its number, poison if the key is p.
pub(crate) fn message(id: &str) -> Message {
    let (key, number) = id.split_at(1);
    let number = number.parse().unwrap();
    let key = if key == "p" { "b" } else { key };
    let hash = id.bytes().fold(7, |hash: u64, byte| hash * 31 + u64::from(byte));
    let (event_type, key) = ("order.placed".to_owned(), key.to_owned());
    Message { id: id.to_owned(), event_type, key, number, hash, poison: id.starts_with('p') }
}

pub(crate) fn settled(id: &str, lease: &str, action: &str, applied: bool) -> What {
    What::Settled { id: id.to_owned(), lease: lease.to_owned(), action: action.to_owned(), applied }
}

pub(crate) fn changed(id: &str, status: [&str; 2], lease: [Option<&str>; 2]) -> What {
    let (status, lease) = (status.map(str::to_owned), lease.map(|lease| lease.map(str::to_owned)));
    What::Changed { id: id.to_owned(), status, lease, held_ms: None }
}

pub(crate) fn taken_over(id: &str, lease: [&str; 2], held_ms: Option<i64>) -> What {
    let (status, lease) = (["new", "new"].map(str::to_owned), lease.map(|lease| Some(lease.to_owned())));
    What::Changed { id: id.to_owned(), status, lease, held_ms }
}

/// What an operator is about to do.
pub(crate) fn decided(id: &str, decision: &str) -> What {
    What::Decided { id: id.to_owned(), decision: decision.to_owned() }
}

/// Rows that a relay claimed.
pub(crate) fn claimed(lease: &str, ids: &[&str]) -> What {
    What::Claimed { lease: lease.to_owned(), ids: ids.iter().map(|id| (*id).to_owned()).collect(), took_ms: 100 }
}

pub(crate) fn answer_lost(ids: &[&str]) -> What {
    What::AnswerLost { ids: ids.iter().map(|id| (*id).to_owned()).collect() }
}

pub(crate) fn row(id: &str, status: &str) -> What {
    let (attempts, error) = if status == "dead" { (2, Some("refused".to_owned())) } else { (0, None) };
    What::Row { id: id.to_owned(), status: status.to_owned(), attempts, error }
}
