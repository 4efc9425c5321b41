//! Says of a history whether every promise was kept.
//!
//! It reads nothing but the history, and believes no line more than another. What the history proves wrong is *broken*.
//! What cannot be told from it, because the end is missing or a fault never happened, is *unknown*, which is no success
//! either. Something proved wrong stays wrong, however much else is unknown.

mod evidence;
mod fence;
mod judge;
#[cfg(test)]
pub(crate) mod planted;
mod repeats;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::HashMap;

pub use timeline::{Bar, Ending, Lane, Timeline};

use crate::history::{Entry, Run};
use evidence::Evidence;
use judge::Findings;

/// Examples kept for a verdict; more of them would say the same again.
pub const EXAMPLES: usize = 10;

/// Checks a history. The time it takes grows with the number of entries and no faster.
pub fn check(entries: &[Entry]) -> Report {
    let evidence = Evidence::gather(entries);
    let findings = Rule::ALL.map(|rule| (rule, judge::find(rule, &evidence)));
    let doubts = judge::doubts(&evidence);
    let stories = stories(&findings, entries);
    let verdicts: Vec<_> =
        findings.into_iter().map(|(rule, findings)| verdict(rule, findings, &evidence, &stories)).collect();
    Report {
        run: evidence.run.cloned().unwrap_or_default(),
        conclusion: conclude(&verdicts, &doubts),
        verdicts,
        doubts,
        totals: judge::totals(&evidence),
        faults: judge::faults(&evidence),
        timeline: timeline::draw(&evidence, entries),
    }
}

/// What a history proves.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was intended. All defaults when the history does not say.
    pub run: Run,
    /// What all verdicts together say.
    pub conclusion: Conclusion,
    /// One verdict a rule, in the order of [`Rule::ALL`].
    pub verdicts: Vec<Verdict>,
    /// Why the run proves less than it should, each as a clause. Empty when there is no doubt.
    pub doubts: Vec<String>,
    /// The figures.
    pub totals: Totals,
    /// The faults that were intended, then others that happened.
    pub faults: Vec<Fault>,
    /// What happened when.
    pub timeline: Timeline,
}

impl Report {
    /// The exit status of a process that checked this: 0 valid, 1 invalid, 2 unknown.
    pub fn exit_code(&self) -> u8 {
        match self.conclusion {
            Conclusion::Valid => 0,
            Conclusion::Invalid => 1,
            Conclusion::Unknown => 2,
        }
    }

    /// The rules that were broken, in the order of [`Rule::ALL`].
    pub fn broken(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Broken)
    }
}

/// What all verdicts together say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// Every rule holds, and the run was what it was meant to be.
    Valid,
    /// At least one rule was broken.
    Invalid,
    /// Nothing was proved wrong, but not everything was tried or can be told.
    Unknown,
}

/// What must be true of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Business rows and events are written together or not at all, as the producer was told.
    Atomicity,
    /// Everything written was received or is DEAD.
    Lost,
    /// Everything DONE had been received before.
    FalseDone,
    /// Everything received was written.
    Phantom,
    /// Everything was received as it was written.
    Corrupt,
    /// Nothing is DEAD but planned poison, at its last attempt, and malformed rows, each with the reason.
    WronglyDead,
    /// Rows are changed only under the lease that stands in them, which nobody takes over before it has run out, and not
    /// when they are DONE or DEAD.
    Fence,
    /// First deliveries of a key have rising numbers, if that is promised.
    Order,
    /// Nothing is received more often than the faults that befell it explain.
    Duplicates,
    /// Nothing is pending when the patience is over.
    Stuck,
    /// No process ends unless somebody wants it to, and then in time and in order.
    Fallen,
}

impl Rule {
    /// All of them, in the order of a report.
    pub const ALL: [Self; 11] = [
        Self::Atomicity,
        Self::Lost,
        Self::FalseDone,
        Self::Phantom,
        Self::Corrupt,
        Self::WronglyDead,
        Self::Fence,
        Self::Order,
        Self::Duplicates,
        Self::Stuck,
        Self::Fallen,
    ];

    /// Its name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Atomicity => "atomicity",
            Self::Lost => "lost",
            Self::FalseDone => "false done",
            Self::Phantom => "phantom",
            Self::Corrupt => "corrupt",
            Self::WronglyDead => "wrongly dead",
            Self::Fence => "fence",
            Self::Order => "order",
            Self::Duplicates => "duplicates",
            Self::Stuck => "stuck",
            Self::Fallen => "fallen",
        }
    }

    /// What is counted when it is broken.
    pub fn counts(self) -> &'static str {
        match self {
            Self::Atomicity => "business row, event and what the producer was told do not agree",
            Self::Lost => "written, but neither received nor DEAD",
            Self::FalseDone => "DONE, but never received, or only afterwards",
            Self::Phantom => "received, but never written",
            Self::Corrupt => "received otherwise than written",
            Self::WronglyDead => "DEAD against the plan, at the wrong failure, or without a reason",
            Self::Fence => "changed without the lease, taken over early, or changed after DONE or DEAD",
            Self::Order => "first received after a later one of its key",
            Self::Duplicates => "received again",
            Self::Stuck => "still pending when the patience was over",
            Self::Fallen => "processes that ended by themselves, in disorder, or not at all",
        }
    }
}

/// What the history says of one rule.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The rule.
    pub rule: Rule,
    /// Whether it holds.
    pub outcome: Outcome,
    /// How many events break it; for [`Rule::Duplicates`], how many deliveries were repeats, explained or not.
    pub count: u64,
    /// The first events that break it, at most [`EXAMPLES`].
    pub examples: Vec<Example>,
}

/// Whether a rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Held,
    /// It was broken.
    Broken,
    /// The run promises no such thing.
    NotPromised,
    /// Nothing breaks it, but the history is not whole.
    NotJudged,
}

/// An event that breaks a rule.
#[derive(Clone, Debug)]
pub struct Example {
    /// Its id.
    pub id: String,
    /// What is wrong with it.
    pub why: String,
    /// All entries about it, in the order of time.
    pub story: Vec<Entry>,
}

/// The figures of a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Business rows.
    pub written: u64,
    /// Events of which the producer was told that they are committed.
    pub acked: u64,
    /// Events of which it was told that they are not.
    pub failed: u64,
    /// Events of which it was told that nobody knows.
    pub unknown: u64,
    /// Messages that the sink took or the broker has, repeats and all.
    pub received: u64,
    /// Messages that the sink or the broker refused.
    pub refused: u64,
    /// Messages received again.
    pub duplicates: u64,
    /// How many of those are explained, each by what befell its event.
    pub allowed: u64,
    /// Rows that are DEAD.
    pub dead: u64,
    /// Rows that are no events, put into the table by hand.
    pub malformed: u64,
    /// Rows that are neither DONE nor DEAD.
    pub pending: u64,
    /// Processes ended by a signal.
    pub crashes: u64,
    /// Leases lost: rows that went from one lease to the next.
    pub lost_leases: u64,
    /// Messages to which the answer of the sink or the broker never came.
    pub unanswered: u64,
}

/// A fault, as often as it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its name.
    pub name: String,
    /// How often something was broken.
    pub times: u64,
    /// How often that can be shown to have done something.
    pub effects: u64,
    /// Whether the run does not count without it.
    pub intended: bool,
}

fn verdict(rule: Rule, findings: Findings, evidence: &Evidence<'_>, stories: &Stories) -> Verdict {
    let outcome = if findings.broken() {
        Outcome::Broken
    } else if rule == Rule::Order && !evidence.ordered() {
        Outcome::NotPromised
    } else if evidence.is_complete() {
        Outcome::Held
    } else {
        Outcome::NotJudged
    };
    let example = |(id, why): (String, String)| {
        let story = stories.get(&id).cloned().unwrap_or_default();
        Example { id, why, story }
    };
    Verdict { rule, outcome, count: findings.count, examples: findings.examples.into_iter().map(example).collect() }
}

fn conclude(verdicts: &[Verdict], doubts: &[String]) -> Conclusion {
    if verdicts.iter().any(|verdict| verdict.outcome == Outcome::Broken) {
        Conclusion::Invalid
    } else if doubts.is_empty() {
        Conclusion::Valid
    } else {
        Conclusion::Unknown
    }
}

type Stories = HashMap<String, Vec<Entry>>;

/// The entries about every example. They are looked for once the examples are known, so that nothing is kept of the rest.
fn stories(findings: &[(Rule, Findings)], entries: &[Entry]) -> Stories {
    let ids = findings.iter().flat_map(|(_, findings)| &findings.examples).map(|(id, _)| id.clone());
    let mut stories: Stories = ids.map(|id| (id, Vec::new())).collect();
    if stories.is_empty() {
        return stories;
    }
    for entry in entries {
        for id in evidence::subjects(&entry.what) {
            if let Some(story) = stories.get_mut(id) {
                story.push(entry.clone());
            }
        }
    }
    // What the database noted stands at the end of the history, but happened in between.
    for story in stories.values_mut() {
        story.sort_by_key(|entry| entry.at);
    }
    stories
}
