//! What a claim costs in order: a read of the lanes, as a relay makes one after the other while it has a backlog.
//!
//! A drain as a whole also has what is done once: aggregates that stand still are read when a relay gets their lanes, and then no more.
//! Here the reads are made one at a time, with nothing beside them, and those of the start do not count.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use posthaste_core::store::{
    Action, LaneLease, LaneRow, LaneSettlement, LaneStore, ReadLane, ReadLanes, RelayStore, Settled,
};

use super::{BESIDE_GOAL, KEYS, filled};
use crate::bench::Bench;
use crate::measure::{About, ByContestant, Figures};
use crate::rounds::of;
use crate::subject::{Filling, STUCK, Subject};

/// Rows that a read asks for, which is about what a relay does with a backlog and default settings.
const AT_A_TIME: usize = 1000;

/// A read that brings less is not one of a backlog: what a read costs by itself is shared by fewer.
const FULL: usize = AT_A_TIME * 9 / 10;

/// Full reads that do not count: statements are prepared, and what they read comes into memory.
const LEAD_IN: usize = 5;

/// With fewer events there would be few reads that count.
const FEWEST: usize = 20_000;

/// The first of the aggregates that stand still, where none of the events belongs to one with the same id.
const ELSEWHERE: usize = 1_000_000;

/// How often nothing is found.
const LOOKS: usize = 50;

/// Who reads, and for how long it has the lanes.
const OWNER: &str = "bench";
const LEASE: Duration = Duration::from_secs(600);

/// What a claim costs beside done rows, and beside aggregates that stand still: for each event, and where there is none.
pub(super) async fn run<S: Subject>(bench: &mut Bench, subject: &S) -> anyhow::Result<()> {
    let (done, still) = (bench.sizes.done_beside, bench.sizes.still_beside);
    let events = bench.sizes.events.max(FEWEST);
    let filling = Filling { events, keys: KEYS, stuck_from: ELSEWHERE, ..Filling::default() };
    let beside = |contestant: &str| match contestant {
        "done rows beside" => Filling { done, ..filling },
        "parked beside" => Filling { parked: still, ..filling },
        "parked beside, same ids" => Filling { parked: still, stuck_from: 0, ..filling },
        "blocked beside" => Filling { blocked: still, ..filling },
        _ => filling,
    };
    let looks = Mutex::new(ByContestant::new());
    let contestants = ["alone", "done rows beside", "parked beside", "parked beside, same ids", "blocked beside"];
    let contestants = contestants.map(str::to_owned);
    let title = format!("Dord claim {}", subject.name());
    let claims = bench
        .rounds
        .run(&title, "µs per event", &contestants, async |contestant| {
            let Cost { of_an_event, of_nothing } = cost(subject, beside(contestant)).await?;
            let mut looks = looks.lock().unwrap_or_else(PoisonError::into_inner);
            looks.entry(contestant.to_owned()).or_default().push(of_nothing);
            Ok(of_an_event)
        })
        .await?;
    let looks = looks.into_inner().unwrap_or_else(PoisonError::into_inner);
    let warm_up = bench.rounds.warm_up;
    let looks = |contestant: &str| of(&looks, contestant).rounds().iter().skip(warm_up).copied().collect::<Figures>();
    let parts = [
        ("done", "done rows beside", format!("{done} done rows")),
        ("blocked", "blocked beside", format!("{still} blocked aggregates")),
        ("parked", "parked beside", format!("{still} parked aggregates")),
        (
            "parked, same ids",
            "parked beside, same ids",
            format!("{still} parked aggregates, of another type and with the same ids as those of the events,"),
        ),
    ];
    for (name, contestant, words) in parts {
        let workload = format!("Dord claim, {name}");
        let what = format!("what a claim in order costs for each event with {words} beside");
        let about = About {
            workload: &workload,
            database: subject.name(),
            what: &what,
            against: "the same without them",
            unit: "µs per event",
        };
        bench.add(about.compare_costs(&of(&claims, contestant), &of(&claims, "alone"), Some(BESIDE_GOAL)));
        let workload = format!("Dord claim of nothing, {name}");
        let what = format!("what a claim in order costs that finds nothing with {words} beside");
        let about = About { workload: &workload, what: &what, unit: "µs", ..about };
        bench.add(about.compare_costs(&looks(contestant), &looks("alone"), None));
    }
    Ok(())
}

/// What a claim costs, in microseconds.
struct Cost {
    of_an_event: f64,
    of_nothing: f64,
}

async fn cost<S: Subject>(subject: &S, filling: Filling) -> anyhow::Result<Cost> {
    let used = filled(subject, filling).await?;
    // What filled it has delivered before, where something stands still. Whoever reads comes anew for everybody.
    let store = subject.another(&used).await?;
    S::leave(used).await;
    let lanes = store.lanes().context("no lanes")?;
    let count = usize::from(lanes.count_lanes().await?);
    let leases = lanes.lease_lanes(OWNER, count, LEASE).await?;
    ensure!(leases.len() == count, "somebody else has lanes");
    let mut relay = Relay::new(Arc::clone(&lanes), leases);
    let mut reads = Reads::default();
    loop {
        let (took, found) = relay.read().await?;
        // What stands still comes with the first reads, and never again.
        if !relay.in_hand.iter().any(is_stuck) {
            reads.push(took, found);
        }
        relay.settle().await?;
        if found == 0 {
            break;
        }
    }
    let mut of_nothing = Figures::default();
    for _ in 0..LOOKS {
        let (took, found) = relay.read().await?;
        ensure!(found == 0, "{found} rows were left over");
        of_nothing.push(micros(took));
    }
    lanes.give_back_lanes(OWNER, &relay.leases()).await?;
    crate::subject::check_drained(&store, filling).await?;
    S::close(store).await;
    // Of looks, one that met something else is one of many.
    Ok(Cost { of_an_event: reads.of_an_event()?, of_nothing: of_nothing.median().context("nothing was read")? })
}

/// Reads of a backlog, together: no single one counts for more than its events.
#[derive(Debug, Default)]
struct Reads {
    full: usize,
    took: Duration,
    found: usize,
}

impl Reads {
    fn push(&mut self, took: Duration, found: usize) {
        if found < FULL {
            return;
        }
        self.full += 1;
        if self.full > LEAD_IN {
            self.took += took;
            self.found += found;
        }
    }

    fn of_an_event(&self) -> anyhow::Result<f64> {
        ensure!(self.found > 0, "only {} reads brought {FULL} events or more", self.full);
        Ok(micros(self.took) / self.found as f64)
    }
}

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

fn is_stuck(row: &LaneRow) -> bool {
    row.row.as_ref().is_ok_and(|row| row.event.aggregate_type() == STUCK)
}

/// Reads and settles as a relay does: what the last read has brought is in hand when the next one is made, which begins before it and
/// leaves it out.
struct Relay {
    lanes: Arc<dyn LaneStore>,
    parts: Vec<Part>,
    /// What the last read has brought.
    in_hand: Vec<LaneRow>,
    /// What the one before it has brought.
    before: Vec<LaneRow>,
}

/// Where a relay is in a lane.
struct Part {
    lease: LaneLease,
    /// The last number of the read before the last, and of the last.
    after: i64,
    seen: i64,
}

impl Relay {
    fn new(lanes: Arc<dyn LaneStore>, leases: Vec<LaneLease>) -> Self {
        let parts = leases.into_iter().map(|lease| Part { lease, after: 0, seen: 0 }).collect();
        Self { lanes, parts, in_hand: Vec::new(), before: Vec::new() }
    }

    fn leases(&self) -> Vec<LaneLease> {
        self.parts.iter().map(|part| part.lease).collect()
    }

    /// How long it takes to read, and how many rows that brings, which are in hand then.
    async fn read(&mut self) -> anyhow::Result<(Duration, usize)> {
        let limit = AT_A_TIME.div_ceil(self.parts.len());
        let part = |part: &Part| ReadLane { lease: part.lease, after: part.after, until: None, limit, key: None };
        let mut in_hand: Vec<_> = self.in_hand.iter().map(|row| row.seq).collect();
        in_hand.sort_unstable();
        let read = ReadLanes {
            owner: OWNER.into(),
            parts: self.parts.iter().map(part).collect(),
            in_hand,
            passed: Vec::new(),
            lease_duration: LEASE,
        };
        let started_at = Instant::now();
        let found = self.lanes.read_lanes(&read).await?;
        let took = started_at.elapsed();
        ensure!(found.lost.is_empty(), "lanes were lost");
        self.before = std::mem::replace(&mut self.in_hand, found.rows);
        for part in &mut self.parts {
            part.after = part.seen;
            let last = self.in_hand.iter().filter(|row| row.lane == part.lease.lane).map(|row| row.seq).max();
            part.seen = last.unwrap_or(part.seen);
        }
        Ok((took, self.in_hand.len()))
    }

    /// Has the events be DONE that the read before the last has brought, but for those of aggregates that stand still.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let before = std::mem::take(&mut self.before);
        let lease_of =
            |row: &LaneRow| self.parts.iter().find(|part| part.lease.lane == row.lane).map(|part| part.lease);
        let done = |row: &LaneRow| {
            let id = row.row.as_ref().ok()?.event.id().clone();
            Some(LaneSettlement { lease: lease_of(row)?, seq: row.seq, id, action: Action::Done, closes: false })
        };
        let done: Vec<_> = before.iter().filter(|row| !is_stuck(row)).filter_map(done).collect();
        if !done.is_empty() {
            let settled = self.lanes.settle_in_lanes(OWNER, &done).await?;
            ensure!(settled.iter().all(|settled| *settled == Settled::Applied), "not everything was settled");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_are_not_full_do_not_count() {
        let mut reads = Reads::default();
        for _ in 0..LEAD_IN {
            reads.push(Duration::from_millis(100), AT_A_TIME);
        }
        assert!(reads.of_an_event().is_err());
        for (millis, found) in [(2, 1000), (4, 1000), (50, 10), (50, 0), (3, 1000)] {
            reads.push(Duration::from_millis(millis), found);
        }
        assert_eq!(reads.of_an_event().unwrap(), 3.0);
    }
}
