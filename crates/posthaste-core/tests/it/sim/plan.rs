//! What a seed stands for: the settings of the nodes, and what goes wrong how often.

use std::time::Duration;

use fastrand::Rng;
use posthaste_core::{OnDead, Options};

/// Everything that a seed decides before the first step. What happens at each step is drawn as it comes.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Nothing goes wrong, so nothing may be repeated, and wake-ups alone must be enough.
    pub(super) calm: bool,
    pub(super) options: Options,
    pub(super) nodes: usize,
    pub(super) single_node: bool,
    pub(super) deletes_done: bool,
    /// The most events that the listener takes at once.
    pub(super) batch: usize,
    pub(super) transactions: u32,
    pub(super) chaos: Duration,
    pub(super) store: StoreFaults,
    pub(super) listener: Temper,
    /// How often the nemesis does something.
    pub(super) nemesis_every: Option<Duration>,
    /// Whether rows are owned by lanes, and what then becomes of keys with an event that is given up.
    pub(super) lanes: Option<OnDead>,
}

/// What goes wrong with calls of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreFaults {
    pub(super) slow: Odds,
    pub(super) very_slow: Odds,
    pub(super) fails: Odds,
    pub(super) answer_lost: Odds,
    pub(super) late: Odds,
    pub(super) hangs: Odds,
    pub(super) panics: Odds,
    /// No lease is ever renewed, so that processes lose leases while they are at it, to others and to themselves.
    pub(super) no_renewals: bool,
}

impl StoreFaults {
    pub(super) fn any_error(&self) -> bool {
        self.no_renewals
            || [self.very_slow, self.fails, self.answer_lost, self.late, self.hangs, self.panics]
                .iter()
                .any(|odds| odds.0 > 0)
    }
}

/// How a listener behaves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Temper {
    pub(super) slow: Odds,
    pub(super) fails: Odds,
    pub(super) panics: Odds,
    pub(super) times_out: Odds,
    pub(super) defers: Odds,
    /// The longest delay that it asks for, in milliseconds.
    pub(super) longest_delay: u64,
}

/// A chance, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds(u32);

impl Odds {
    /// Half of all faults are left out of a run: what always happens together hides what happens alone.
    fn draw(rng: &mut Rng) -> Self {
        Self([0, 0, 0, 10, 50, 200][rng.usize(..6)])
    }

    pub(super) const ALWAYS: Self = Self(1000);

    pub(super) fn hit(self, rng: &mut Rng) -> bool {
        self.0 > 0 && rng.u32(..1000) < self.0
    }
}

pub(super) fn millis(rng: &mut Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let calm = rng.u8(..8) == 0;
        let nodes = rng.usize(1..=3);
        let listener = Temper {
            slow: Odds::draw(rng),
            fails: Odds::draw(rng),
            panics: Odds::draw(rng),
            times_out: Odds::draw(rng),
            defers: Odds::draw(rng),
            longest_delay: 2000,
        };
        let store = StoreFaults {
            slow: Odds::draw(rng),
            very_slow: Odds::draw(rng),
            fails: Odds::draw(rng),
            answer_lost: Odds::draw(rng),
            late: Odds::draw(rng),
            hangs: Odds([0, 0, 5, 30][rng.usize(..4)]),
            panics: Odds([0, 0, 5, 30][rng.usize(..4)]),
            no_renewals: rng.u8(..4) == 0,
        };
        let mut options = options(rng, calm);
        let mut listener = listener;
        if store.no_renewals && !calm {
            // Long enough at it to lose leases.
            options.lease = Duration::from_millis([500, 1000, 3000][rng.usize(..3)]);
            options.listener_time_limit = options.lease * 3;
            listener.slow = Odds(300);
        }
        let store = if calm { StoreFaults { slow: store.slow, ..StoreFaults::default() } } else { store };
        let nemesis_every = (!calm && rng.u8(..4) > 0).then(|| millis(rng, 200..=5000));
        Self {
            calm,
            options,
            nodes,
            single_node: nodes == 1 && rng.bool(),
            deletes_done: rng.u8(..4) == 0,
            batch: [1, 1, 2, 5][rng.usize(..4)],
            transactions: rng.u32(3..=25),
            chaos: millis(rng, 1000..=20_000),
            store,
            listener,
            nemesis_every,
            lanes: None,
        }
    }

    /// The same with lanes.
    pub(super) fn with_lanes(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed ^ 0x1a9e5);
        let mut plan = Self::new(seed);
        plan.lanes = Some([OnDead::Block, OnDead::Park, OnDead::Skip][rng.usize(..3)]);
        plan.options.lane_lease = Duration::from_millis([1000, 3000, 10_000][rng.usize(..3)]);
        // Nobody else waits for a lease on a row.
        plan.single_node = false;
        // Many of each key.
        plan.transactions = rng.u32(10..=60);
        plan
    }

    /// With lanes, and nothing goes wrong, but processes come and go in order: lanes move all the time, also under listeners that
    /// take long, and nothing may be cut short or repeated for it.
    pub(super) fn with_moving_lanes(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed ^ 0x30_5e5);
        let mut plan = Self::with_lanes(seed);
        plan.calm = true;
        plan.store = StoreFaults { slow: plan.store.slow, ..StoreFaults::default() };
        plan.listener.slow = Odds(300);
        plan.nodes = rng.usize(2..=3);
        plan.nemesis_every = Some(millis(rng, 200..=2000));
        plan.transactions = rng.u32(30..=100);
        plan.chaos = millis(rng, 20_000..=60_000);
        let listener_time_limit = millis(rng, 100..=3000);
        plan.options = Options {
            lane_lease: Duration::from_millis([1000, 3000][rng.usize(..2)]),
            listener_time_limit,
            // Nobody's time is over before his listener's.
            shutdown_deadline: listener_time_limit * 2 + Duration::from_secs(1),
            poll_interval: Duration::from_secs(3600),
            poll_skip_recent: Duration::ZERO,
            in_flight_ttl: None,
            ..plan.options
        };
        plan
    }
}

impl Plan {
    /// One process after another by hand; nothing goes wrong but what the test says.
    pub(super) fn scripted(options: Options) -> Self {
        Self {
            calm: false,
            options,
            nodes: 0,
            single_node: false,
            deletes_done: false,
            batch: 1,
            transactions: 0,
            chaos: Duration::ZERO,
            store: StoreFaults::default(),
            // At most a millisecond, so that what is tried again is due before the settler tries again.
            listener: Temper { fails: Odds::ALWAYS, longest_delay: 1, ..Temper::default() },
            nemesis_every: None,
            lanes: None,
        }
    }
}

/// Small queues and short times, so that every bound is reached.
fn options(rng: &mut Rng, calm: bool) -> Options {
    let lease = [1000, 3000, 10_000, 60_000][rng.usize(..4)];
    let retry_base = millis(rng, 1..=500);
    Options {
        workers: rng.usize(1..=4),
        hot_queue: [1, 2, 4, 8, 100][rng.usize(..5)],
        cold_queue: [1, 2, 4, 8, 100][rng.usize(..5)],
        // In a calm run nobody may have to wait for the interval.
        poll_interval: if calm { Duration::from_secs(3600) } else { millis(rng, 50..=5000) },
        poll_batch: rng.usize(1..=10),
        poll_skip_recent: if calm || rng.u8(..4) > 0 { Duration::ZERO } else { millis(rng, 1..=300) },
        lease: Duration::from_millis(lease),
        listener_time_limit: millis(rng, 100..=lease * 2),
        retry_base,
        retry_max: retry_base * rng.u32(1..=10),
        retry_attempts: rng.u32(2..=6),
        settle_batch: [1, 2, 5, 100][rng.usize(..4)],
        settle_linger: millis(rng, 0..=20),
        shutdown_deadline: millis(rng, 100..=3000),
        in_flight_ttl: (!calm && rng.u8(..8) == 0).then(|| millis(rng, 500..=20_000)),
        ..Options::default()
    }
}
