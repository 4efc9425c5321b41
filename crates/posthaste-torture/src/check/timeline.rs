//! What happened when, ready to be drawn. Times are seconds since the start.

use std::collections::HashMap;

use super::evidence::Evidence;
use crate::history::{Entry, What};

/// Steps of a curve; more would be finer than a screen.
const STEPS: u64 = 600;

/// What happened when. Times are seconds since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The first moment, in microseconds since 1970.
    pub started_at: i64,
    /// How long it all took.
    pub seconds: f64,
    /// When everything was mended.
    pub healed: Option<f64>,
    /// When nothing was pending any more, or the patience was over.
    pub drained: Option<f64>,
    /// A lane for each fault, with a bar from each break to its mending.
    pub faults: Vec<Lane>,
    /// A lane for each process, with a bar for each of its lives.
    pub processes: Vec<Lane>,
    /// The seconds that one point of a curve stands for, at least one.
    pub step: u64,
    /// Events acknowledged per second.
    pub written: Vec<f64>,
    /// Messages received per second, repeats and all; by a broker, as it said so.
    pub received: Vec<f64>,
    /// Events that were written by the end of the step, but neither received nor DEAD.
    pub lag: Vec<u64>,
}

/// What happened to one fault or process.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// Its bars, by their beginning.
    pub bars: Vec<Bar>,
}

/// A time during which something was broken, or a process was alive.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// When it began.
    pub from: f64,
    /// When it ended, or the history did.
    pub to: f64,
    /// How it ended.
    pub ending: Ending,
    /// What to say of it.
    pub note: String,
}

/// How a bar ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nobody says.
    Open,
    /// The fault was mended.
    Mended,
    /// The process ended by itself.
    Exited,
    /// The process was ended by a signal.
    Killed,
}

pub(super) fn draw(evidence: &Evidence<'_>, entries: &[Entry]) -> Timeline {
    let clock = Clock::of(entries);
    let seconds = clock.seconds(clock.ended_at);
    let healed = evidence.healed.as_ref().map(|healed| clock.seconds(healed.at));
    let step = (seconds.ceil() as u64).div_ceil(STEPS).max(1);
    let mut timeline = Timeline {
        started_at: clock.started_at,
        seconds,
        healed,
        drained: evidence.drained.as_ref().map(|drained| clock.seconds(drained.at)),
        faults: faults(&clock, entries, healed.unwrap_or(seconds)),
        processes: processes(&clock, entries, seconds),
        step,
        ..Timeline::default()
    };
    draw_curves(&mut timeline, &clock, evidence, entries);
    timeline
}

/// From the first line to the last. What a process with a wrong clock wrote is moved inside.
struct Clock {
    started_at: i64,
    ended_at: i64,
}

impl Clock {
    fn of(entries: &[Entry]) -> Self {
        let is_start = |entry: &&Entry| matches!(entry.what, What::Run(_));
        let is_end = |entry: &&Entry| matches!(entry.what, What::End);
        let started = entries.iter().find(is_start).or(entries.first()).map(|entry| entry.at);
        let ended = entries.iter().rev().find(is_end).map(|entry| entry.at);
        let ended = ended.or_else(|| entries.iter().map(|entry| entry.at).max());
        let started_at = started.unwrap_or(0);
        Self { started_at, ended_at: ended.unwrap_or(0).max(started_at) }
    }

    fn seconds(&self, at: i64) -> f64 {
        (at.clamp(self.started_at, self.ended_at) - self.started_at) as f64 / 1e6
    }
}

/// Lanes under construction, in the order in which they were first heard of.
#[derive(Default)]
struct Lanes<'a> {
    lanes: Vec<Lane>,
    by_name: HashMap<&'a str, usize>,
}

impl<'a> Lanes<'a> {
    fn open(&mut self, name: &'a str, from: f64, to: f64, note: String) {
        let next = self.lanes.len();
        let place = *self.by_name.entry(name).or_insert(next);
        if place == next {
            self.lanes.push(Lane { name: name.to_owned(), bars: Vec::new() });
        }
        self.lanes[place].bars.push(Bar { from, to, ending: Ending::Open, note });
    }

    /// Ends the oldest bar that is open.
    fn close(&mut self, name: &str, to: f64, ending: Ending, note: &str) {
        let Some(&place) = self.by_name.get(name) else { return };
        let open = self.lanes[place].bars.iter_mut().find(|bar| bar.ending == Ending::Open);
        if let Some(bar) = open {
            (bar.to, bar.ending) = (to, ending);
            bar.note.push_str(note);
        }
    }
}

fn faults(clock: &Clock, entries: &[Entry], end: f64) -> Vec<Lane> {
    let mut lanes = Lanes::default();
    for entry in entries {
        let now = clock.seconds(entry.at);
        match &entry.what {
            What::Broken { fault, detail } => lanes.open(fault, now, end.max(now), detail.clone()),
            What::Mended { fault, effects } => {
                lanes.close(fault, now, Ending::Mended, &format!(", effects: {effects}"));
            }
            _ => {}
        }
    }
    lanes.lanes
}

fn processes(clock: &Clock, entries: &[Entry], end: f64) -> Vec<Lane> {
    let mut lanes = Lanes::default();
    for entry in entries {
        let now = clock.seconds(entry.at);
        match &entry.what {
            What::Started { pid } => lanes.open(&entry.who, now, end, format!("process {pid}")),
            What::Exited { signal: Some(signal), .. } => {
                lanes.close(&entry.who, now, Ending::Killed, &format!(", ended by signal {signal}"));
            }
            What::Exited { status, .. } => {
                let status = status.map_or_else(|| "?".to_owned(), |status| status.to_string());
                lanes.close(&entry.who, now, Ending::Exited, &format!(", exited with {status}"));
            }
            _ => {}
        }
    }
    lanes.lanes
}

fn draw_curves(timeline: &mut Timeline, clock: &Clock, evidence: &Evidence<'_>, entries: &[Entry]) {
    let steps = (timeline.seconds / timeline.step as f64).ceil().max(1.0) as usize;
    let place = |at: i64| ((clock.seconds(at) / timeline.step as f64) as usize).min(steps - 1);
    let (mut written, mut received) = (vec![0_u64; steps], vec![0_u64; steps]);
    for entry in entries {
        match entry.what {
            What::Acked { .. } => written[place(entry.at)] += 1,
            What::Received(_) if !evidence.reads_back() => received[place(entry.at)] += 1,
            What::Taken { .. } => received[place(entry.at)] += 1,
            _ => {}
        }
    }
    let lag = lag(evidence, steps, place);
    let rate = |counts: Vec<u64>| counts.into_iter().map(|count| count as f64 / timeline.step as f64).collect();
    (timeline.written, timeline.received, timeline.lag) = (rate(written), rate(received), lag);
}

/// Counted by event: whoever wrote it may have been killed before saying so, and it may be received more than once.
fn lag(evidence: &Evidence<'_>, steps: usize, place: impl Fn(i64) -> usize) -> Vec<u64> {
    let (mut begun, mut over) = (vec![0_u64; steps], vec![0_u64; steps]);
    for event in evidence.events.iter().filter(|event| event.ledger.is_some()) {
        let from = event.seen_at.map_or(steps - 1, &place);
        begun[from] += 1;
        if let Some(at) = evidence.arrived_at(event).or(event.dead_at) {
            over[place(at).max(from)] += 1;
        }
    }
    let mut open = 0;
    let step = |(begun, over): (u64, u64)| {
        open = open + begun - over;
        open
    };
    begun.into_iter().zip(over).map(step).collect()
}
