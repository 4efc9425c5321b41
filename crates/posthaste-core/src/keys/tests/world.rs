//! Random steps of everybody around what is in hand, and around the cursor.

use proptest::prelude::*;

use super::*;
use crate::lanes::cursor::Cursor;
use crate::store::Writer;

/// A step of anybody.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A writer inserts an event of a key, due after so many steps of time, if no other writer of the key is open.
    Insert(u8, u8),
    Commit(u8),
    BeginRead(usize),
    EndRead,
    CatchUp,
    CatchUpTogether,
    Take(usize),
    Done(usize),
    /// Put off for so many steps of time.
    Later(usize, u8),
    /// Its outcome is not known.
    Unknown(usize, u8),
    Settle(usize),
    Pass(u8),
    LoseLane,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_u8, prop_oneof![4 => Just(0_u8), 1 => 0..5_u8]).prop_map(|(key, due)| Step::Insert(key, due)),
        4 => (0..3_u8).prop_map(Step::Commit),
        4 => (1..5_usize).prop_map(Step::BeginRead),
        4 => Just(Step::EndRead),
        2 => Just(Step::CatchUp),
        1 => Just(Step::CatchUpTogether),
        4 => (1..4_usize).prop_map(Step::Take),
        6 => (0..3_usize).prop_map(Step::Done),
        1 => (0..3_usize, 0..5_u8).prop_map(|(worker, later)| Step::Later(worker, later)),
        1 => (0..3_usize, 0..4_u8).prop_map(|(worker, later)| Step::Unknown(worker, later)),
        4 => (0..3_usize).prop_map(Step::Settle),
        2 => (0..4_u8).prop_map(Step::Pass),
        1 => Just(Step::LoseLane),
    ]
}

/// A table with one lane, a relay that has it, and who is at what.
struct World {
    keys: Arc<Keys>,
    lease: LaneLease,
    cursor: Cursor,
    rows: BTreeMap<i64, Row>,
    last: i64,
    /// What a read has seen and not yet taken in hand.
    seen: Option<Seen>,
    workers: Vec<Option<Run>>,
    /// Outcomes to be written, in their order.
    outcomes: VecDeque<Ended>,
}

struct Row {
    key: u8,
    stage: RowStage,
    due_at: Instant,
    acknowledged: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RowStage {
    Open,
    Pending,
    Done,
}

struct Seen {
    rows: Vec<LaneRow>,
    known: Vec<i64>,
    limit: usize,
}

const UNIT: Duration = Duration::from_millis(600);

impl World {
    fn new(capacity: usize) -> Self {
        let keys = keys(capacity);
        let cursor = Cursor::new(LEASE);
        let workers = (0..3).map(|_| None).collect();
        Self {
            keys,
            lease: LEASE,
            cursor,
            rows: BTreeMap::new(),
            last: 0,
            seen: None,
            workers,
            outcomes: VecDeque::new(),
        }
    }

    fn open(&self) -> Vec<Writer> {
        let open = self.rows.iter().filter(|(_, row)| row.stage == RowStage::Open);
        open.map(|(seq, _)| Writer(seq.to_string().into())).collect()
    }

    fn pending(&self, after: i64, key: Option<u8>, known: &[i64], limit: usize) -> Vec<LaneRow> {
        let now = Instant::now();
        let wanted = |(seq, kept): &(&i64, &Row)| {
            kept.stage == RowStage::Pending
                && key.is_none_or(|key| kept.key == key)
                && known.binary_search(seq).is_err()
        };
        let found = self.rows.range(after + 1..).filter(wanted).take(limit);
        found.map(|(seq, kept)| row_due(kept.key, *seq, kept.due_at.saturating_duration_since(now))).collect()
    }

    fn begin_read(&mut self, limit: usize) {
        let mut known = self.keys.begin_read([(self.lease.lane, self.cursor.after())]);
        known.extend(self.cursor.left());
        known.sort_unstable();
        let rows = self.pending(self.cursor.after(), None, &known, limit);
        self.seen = Some(Seen { rows, known, limit });
    }

    fn end_read(&mut self) {
        let Some(seen) = self.seen.take() else { return };
        let open = self.open();
        if self.cursor.accepts(&open.iter().collect()) {
            let cut = seen.rows.len() >= seen.limit;
            let taken = self.keys.take_in_of(self.lease, seen.rows, &seen.known);
            self.cursor.advance(taken.seen, cut || taken.refused, taken.left, &open, Instant::now());
        }
    }

    fn catch_up(&mut self) {
        // Reads come one after the other.
        self.end_read();
        let Some(catch_up) = self.keys.next_behind(3) else { return };
        let known = self.keys.begin_read([(self.lease.lane, catch_up.after)]);
        let key = catch_up.id.key().unwrap().aggregate_id.parse().unwrap();
        let rows = self.pending(catch_up.after, Some(key), &known, catch_up.limit);
        let open = self.open();
        if self.cursor.accepts(&open.iter().collect()) {
            self.keys.caught_up(&catch_up, rows, &known);
        } else {
            self.keys.not_caught_up(&catch_up);
        }
    }

    /// The next event of a run begins, and this is what is to be held of it.
    fn begin(&mut self, worker: usize) -> Option<(i64, KeyId)> {
        let run = self.workers[worker].as_ref().filter(|run| run.goes_on())?;
        let (seq, id) = (run.items()[0].seq, run.id().clone());
        let key = self.rows[&seq].key;
        for (earlier, row) in self.rows.range(..seq).filter(|(_, row)| row.key == key) {
            assert!(row.acknowledged, "{seq} begins before {earlier} was acknowledged");
        }
        assert!(self.rows[&seq].due_at <= Instant::now(), "{seq} begins before it is due");
        Some((seq, id))
    }

    fn end_run(&mut self, worker: usize) {
        if self.workers[worker].as_ref().is_some_and(|run| !run.goes_on()) {
            self.workers[worker] = None;
        }
    }

    fn settle(&mut self, count: usize) {
        for _ in 0..count {
            let Some(mut ended) = self.outcomes.pop_front() else { return };
            // What the fence refuses changes nothing.
            if ended.lease == self.lease {
                let row = self.rows.get_mut(&ended.seq).unwrap();
                match &mut ended.then {
                    Then::Done => row.stage = RowStage::Done,
                    Then::Later(_, item) => {
                        // From when it is written.
                        item.due_at = item.due_at.max(Instant::now());
                        row.due_at = item.due_at;
                    }
                    _ => {}
                }
            }
            self.keys.ended([ended]);
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Insert(key, due) => {
                if !self.rows.values().any(|row| row.key == key && row.stage == RowStage::Open) {
                    self.last += 1;
                    let due_at = Instant::now() + UNIT * due.into();
                    self.rows.insert(self.last, Row { key, stage: RowStage::Open, due_at, acknowledged: false });
                }
            }
            Step::Commit(key) => {
                let open = |row: &&mut Row| row.key == key && row.stage == RowStage::Open;
                if let Some(row) = self.rows.values_mut().find(open) {
                    row.stage = RowStage::Pending;
                }
            }
            Step::BeginRead(limit) => {
                self.end_read();
                self.begin_read(limit);
            }
            Step::EndRead => self.end_read(),
            Step::CatchUp => self.catch_up(),
            Step::CatchUpTogether => {
                self.end_read();
                for (_, from) in self.keys.catch_up_together(|_| true) {
                    self.cursor.look_back(from);
                }
            }
            Step::Take(length) => {
                if let Some(free) = self.workers.iter().position(Option::is_none) {
                    self.workers[free] = self.keys.take(|_| length).now_or_never().flatten();
                }
            }
            Step::Done(worker) => {
                if let Some((seq, _)) = self.begin(worker) {
                    self.rows.get_mut(&seq).unwrap().acknowledged = true;
                    self.workers[worker].as_mut().unwrap().pass();
                    let lease = self.workers[worker].as_ref().unwrap().held().lease;
                    self.outcomes.push_back(Ended { lease, seq, then: Then::Done });
                }
                self.end_run(worker);
            }
            Step::Later(worker, later) => {
                if let Some((seq, id)) = self.begin(worker) {
                    let run = self.workers[worker].as_mut().unwrap();
                    let lease = run.held().lease;
                    let mut item = run.stop().unwrap();
                    item.due_at = Instant::now() + UNIT * later.into();
                    self.outcomes.push_back(Ended { lease, seq, then: Then::Later(id, item) });
                }
                self.end_run(worker);
            }
            Step::Unknown(worker, later) => {
                if let Some((seq, id)) = self.begin(worker) {
                    let at = Instant::now() + UNIT * later.into();
                    let run = self.workers[worker].as_mut().unwrap();
                    let lease = run.held().lease;
                    run.stop();
                    self.outcomes.push_back(Ended { lease, seq, then: Then::Reread(id, at) });
                }
                self.end_run(worker);
            }
            Step::Settle(count) => self.settle(count + 1),
            Step::Pass(units) => tokio::time::advance(UNIT * units.into()).await,
            Step::LoseLane => {
                self.keys.lost(self.lease);
                self.lease.epoch += 1;
                self.keys.leased(self.lease, far());
                self.cursor = Cursor::new(self.lease);
                self.seen = None;
            }
        }
        self.keys.state().check(self.keys.capacity);
    }

    /// From here on nothing goes wrong, and everything is delivered.
    async fn run_to_the_end(&mut self) {
        for key in 0..3 {
            self.take(Step::Commit(key)).await;
        }
        for _ in 0..2000 {
            for step in
                [Step::EndRead, Step::BeginRead(3), Step::EndRead, Step::CatchUp, Step::Take(2), Step::Settle(9)]
            {
                self.take(step).await;
            }
            for worker in 0..3 {
                self.take(Step::Done(worker)).await;
            }
            self.take(Step::Pass(1)).await;
            if self.rows.values().all(|row| row.stage == RowStage::Done) {
                break;
            }
        }
        let left: Vec<_> =
            self.rows.iter().filter(|(_, row)| row.stage != RowStage::Done).map(|(seq, _)| seq).collect();
        assert!(left.is_empty(), "{left:?} are left");
        while self.keys.behind() > 0 {
            self.take(Step::CatchUp).await;
        }
        assert_eq!((self.keys.in_hand(), self.keys.queued()), (0, 0));
        assert!(self.keys.state().keys.is_empty());
    }
}

/// 300 cases unless the environment says otherwise, and no files beside the tests.
fn few() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(few())]

    #[test]
    fn whatever_happens_events_of_a_key_begin_in_order_and_all_are_delivered(
        capacity in 1..8_usize,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(capacity);
            for step in steps {
                world.take(step).await;
            }
            world.run_to_the_end().await;
        });
    }
}
