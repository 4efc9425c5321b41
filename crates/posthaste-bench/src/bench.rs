//! One run: how large, what it found so far.

use std::time::Duration;

use crate::measure::{ByContestant, Figures, Measurement};
use crate::peer;
use crate::rounds::Rounds;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// How long each contestant writes before it is the next one's turn.
    pub(crate) writing: Duration,
    /// How often it is its turn in a round: the disk has moods that last for seconds.
    pub(crate) turns: usize,
    /// How many rows wait in a drain.
    pub(crate) events: usize,
    /// How many are done beside them.
    pub(crate) done_beside: usize,
    /// How many aggregates stand still beside them, parked or blocked.
    pub(crate) still_beside: usize,
    /// How long latencies are measured in a round.
    pub(crate) latency: Duration,
    /// How many events go through the dispatcher alone.
    pub(crate) dispatched: usize,
    /// How many go to a broker.
    pub(crate) published: usize,
    /// How many a relay drains while its memory is looked at.
    pub(crate) relayed: usize,
}

impl Sizes {
    pub(crate) const FULL: Self = Self {
        writing: Duration::from_secs(1),
        turns: 6,
        events: 100_000,
        done_beside: 1_000_000,
        still_beside: 10_000,
        latency: Duration::from_secs(10),
        dispatched: 1_000_000,
        published: 100_000,
        relayed: 1_000_000,
    };

    pub(crate) const QUICK: Self = Self {
        writing: Duration::from_secs(1),
        turns: 3,
        events: 40_000,
        done_beside: 100_000,
        still_beside: 10_000,
        latency: Duration::from_secs(3),
        dispatched: 300_000,
        published: 20_000,
        relayed: 200_000,
    };
}

/// The least ratios that we want to see, on every database.
pub(crate) mod goal {
    pub(crate) const WRITE: f64 = 0.95;
    pub(crate) const HOT: f64 = 0.85;
    pub(crate) const DRAIN: f64 = 0.9;
    pub(crate) const DRAIN_BESIDE_DONE: f64 = 0.95;
    pub(crate) const ORDERED: f64 = 1.0;
}

/// A run under way.
pub(crate) struct Bench {
    pub(crate) sizes: Sizes,
    pub(crate) rounds: Rounds,
    pub(crate) measurements: Vec<Measurement>,
}

impl Bench {
    pub(crate) fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// Adds a measurement together with the peers that were among its contestants.
    pub(crate) fn add_with_peers(&mut self, mut measurement: Measurement, figures: &ByContestant) {
        peer::add_medians(&mut measurement, figures);
        self.add(measurement);
    }

    /// What the rounds of the outbox had in a measurement that is there.
    pub(crate) fn ours(&self, workload: &str, database: &str) -> Figures {
        let of = |measurement: &&Measurement| measurement.workload == workload && measurement.database == database;
        self.measurements.iter().find(of).map(|measurement| measurement.ours_by_round.clone()).unwrap_or_default()
    }

    pub(crate) fn reached(&self) -> bool {
        self.measurements.iter().all(|measurement| measurement.reached)
    }
}
