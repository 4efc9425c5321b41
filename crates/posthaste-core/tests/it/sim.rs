//! The whole outbox, simulated: processes on one table, virtual time, and a seed that decides what goes wrong.
//!
//! Everything runs on one thread with tokio's paused clock, so a run of many minutes takes milliseconds and the same seed
//! always gives the same run. A seed that fails is printed; `POSTHASTE_SIM_SEED=…` runs it alone and prints what
//! happened. `POSTHASTE_SIM_SEEDS=…` says how many seeds to run, `POSTHASTE_SIM_FROM=…` from which on.
//!
//! What keeps it deterministic: `select!` in the core is biased, jitter comes from the seed, ids are chosen here, and where
//! the core iterates over a map it does so for statements that the ledger sorts. Listeners that block a thread are left out.

mod cases;
mod lanes;
mod ledger;
mod node;
mod plan;
mod store;

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use fastrand::Rng;
use posthaste_core::{Event, MemoryStore, Outbox};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use ledger::Ledger;
use node::Node;
use plan::{Plan, millis};
use store::{Call, SimStore};

/// Mistakes planted in the table, which the ledger must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    SettlesWithoutFence,
    FailuresAreDone,
    RollbackCommits,
    ClaimsWhatIsLeased,
    /// With lanes.
    LeasesWhatIsHeld,
    ReadsFromTheEnd,
    HandsOverUndrained,
}

/// One run: the table, the truth about it, and the seed's decisions.
struct Sim {
    plan: Plan,
    base: MemoryStore,
    sabotage: Option<Sabotage>,
    started_at: Instant,
    rng: Mutex<Rng>,
    ledger: Mutex<Ledger>,
    transactions_left: AtomicU32,
    /// The database is away until then, in milliseconds.
    away_until: AtomicU64,
    healed: AtomicBool,
    /// Transactions that may yet commit, and statements that are still to be carried out.
    open: AtomicU32,
    steps: AtomicU64,
}

/// Something that is still to come.
struct Open(Arc<Sim>);

impl Open {
    fn new(sim: &Arc<Sim>) -> Self {
        sim.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(sim))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A process as the world sees it.
struct Process {
    name: String,
    /// It does nothing more that anybody could see.
    dead: AtomicBool,
    /// What it sends gets through only then, if it was ever cut off.
    cut_off_until: Mutex<Option<Instant>>,
    /// It has heard that others have the same settings, which it needs to start.
    has_agreed: AtomicBool,
    /// What a test wants to become of the next calls.
    script: Mutex<VecDeque<(Call, store::End)>>,
}

impl Process {
    fn new(name: String) -> Self {
        let (cut_off_until, script) = (Mutex::default(), Mutex::default());
        Self { name, dead: AtomicBool::new(false), cut_off_until, has_agreed: AtomicBool::new(false), script }
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// The next such call, after those said before, ends like this.
    fn expect(&self, call: Call, end: store::End) {
        self.script.lock().unwrap().push_back((call, end));
    }

    fn scripted(&self, call: Call) -> Option<store::End> {
        let mut script = self.script.lock().unwrap();
        let index = script.iter().position(|(scripted, _)| *scripted == call)?;
        script.remove(index).map(|(_, end)| end)
    }

    fn cut_off(&self, length: Duration) {
        *self.cut_off_until.lock().unwrap() = Some(Instant::now() + length);
    }

    /// Waits for ever once it is dead.
    async fn lives(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits while the process is cut off, and for ever once it is dead.
    async fn goes_on(&self) {
        loop {
            self.lives().await;
            let until = *self.cut_off_until.lock().unwrap();
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }
}

impl Sim {
    fn new(seed: u64, plan: Plan, sabotage: Option<Sabotage>) -> Self {
        let base = if plan.deletes_done { MemoryStore::new().deleting_done() } else { MemoryStore::new() };
        let ledger = Ledger::new(&plan);
        Self {
            transactions_left: AtomicU32::new(plan.transactions),
            plan,
            base,
            sabotage,
            started_at: Instant::now(),
            rng: Mutex::new(Rng::with_seed(!seed)),
            ledger: Mutex::new(ledger),
            away_until: AtomicU64::new(0),
            healed: AtomicBool::new(false),
            open: AtomicU32::new(0),
            steps: AtomicU64::new(0),
        }
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap())
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }

    /// Microseconds since the beginning.
    fn now(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_micros()).unwrap()
    }

    fn note(&self, line: String) {
        let now = self.now();
        self.ledger().note(now, line);
    }

    fn broken(&self, what: String) {
        let now = self.now();
        self.ledger().broken(now, what);
    }

    fn takes_transaction(&self) -> bool {
        !self.is_healed()
            && self
                .transactions_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
    }

    fn is_away(&self) -> bool {
        self.now() / 1000 < self.away_until.load(Ordering::Relaxed)
    }

    fn is_healed(&self) -> bool {
        self.healed.load(Ordering::Relaxed)
    }

    /// Counts a call. Somebody who calls without end is stopped, so that the run comes to its end.
    async fn step(&self) {
        const TOO_MANY: u64 = 200_000;
        let steps = self.steps.fetch_add(1, Ordering::Relaxed);
        if steps == TOO_MANY {
            self.broken("spinning: the table is called without end".to_owned());
        }
        if steps >= TOO_MANY {
            std::future::pending::<()>().await;
        }
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Crash,
    Drop,
    Shutdown,
    /// Its writers first.
    ShutdownAfterWriters,
    ShutdownNow,
    /// A second signal while the shutdown is under way.
    ShutdownThenNow,
    /// Nobody waits for it.
    ShutdownUnheard,
}

/// Over its deadline a shutdown takes at most this: half a second for each of the last two statements, and what tasks get to
/// be gone.
const LAST_STEPS: Duration = Duration::from_millis(1500);

async fn end(sim: Arc<Sim>, mut node: Node, how: End) {
    let name = node.process.name.clone();
    sim.note(format!("{name} ends: {how:?}"));
    match how {
        End::Crash => {
            node.process.dead.store(true, Ordering::Relaxed);
            node.writers.abort_all();
            return;
        }
        End::Drop => {
            node.writers.abort_all();
            return;
        }
        End::ShutdownAfterWriters => while node.writers.join_next().await.is_some() {},
        _ => {}
    }
    let began_at = Instant::now();
    let deadline = sim.plan.options.shutdown_deadline;
    let closed = match how {
        End::ShutdownNow => node.outbox.shutdown_now().await,
        End::ShutdownThenNow => {
            let soon = sim.draw(|rng| millis(rng, 0..=500));
            let later = async {
                sleep(soon).await;
                node.outbox.shutdown_now().await
            };
            tokio::join!(node.outbox.shutdown(), later).1
        }
        End::ShutdownUnheard => {
            let patience = sim.draw(|rng| millis(rng, 0..=500));
            let _ = timeout(patience, node.outbox.shutdown()).await;
            node.outbox.shutdown().await
        }
        _ => node.outbox.shutdown().await,
    };
    sim.note(format!("{name} has ended: {closed:?}"));
    if began_at.elapsed() > deadline + LAST_STEPS {
        sim.broken(format!("shutdown: took {:?} with a deadline of {deadline:?}", began_at.elapsed()));
    }
    if node.outbox.in_flight() > 0 {
        sim.broken(format!("shutdown: {} events in flight after it", node.outbox.in_flight()));
    }
    let reached_the_table = !sim.plan.store.any_error() && node.process.cut_off_until.lock().unwrap().is_none();
    if matches!(how, End::ShutdownAfterWriters) && reached_the_table {
        let held: Vec<_> = sim.ledger().held_by(&name).into_iter().cloned().collect();
        if !held.is_empty() {
            sim.broken(format!("shutdown: {name} keeps the leases of {held:?}"));
        }
        let lanes = sim.ledger().lanes.count(&name);
        if lanes > 0 && closed.abandoned == 0 {
            sim.broken(format!("shutdown: {name} keeps {lanes} lanes"));
        }
    }
    while node.writers.join_next().await.is_some() {}
}

/// Lives through one seed.
async fn live(sim: Arc<Sim>) {
    let mut nodes: Vec<Option<Node>> = Vec::new();
    for index in 0..sim.plan.nodes {
        nodes.push(Some(Node::start(&sim, format!("n{index}")).await));
    }
    let mut endings = JoinSet::new();
    let mut runs = 0;
    while sim.now() < sim.plan.chaos.as_micros() as u64 {
        let Some(every) = sim.plan.nemesis_every else {
            sleep(sim.plan.chaos).await;
            break;
        };
        let rest = sim.draw(|rng| every.mul_f64(rng.f64() * 2.0)) + Duration::from_millis(1);
        sleep(rest).await;
        runs += 1;
        match sim.plan.calm {
            true => come_or_go(&sim, &mut nodes, &mut endings, runs).await,
            false => meddle(&sim, &mut nodes, &mut endings, runs).await,
        }
    }
    heal(&sim, &mut nodes, &mut endings, runs).await;
}

/// A process starts, or ends in order, unless it is the last one.
async fn come_or_go(sim: &Arc<Sim>, nodes: &mut [Option<Node>], endings: &mut JoinSet<()>, run: u32) {
    let index = sim.draw(|rng| rng.usize(..nodes.len()));
    let alone = nodes.iter().flatten().count() == 1;
    match nodes[index].take_if(|_| !alone) {
        Some(node) => {
            endings.spawn(end(Arc::clone(sim), node, End::Shutdown));
        }
        None if nodes[index].is_none() => nodes[index] = Some(Node::start(sim, format!("n{index}r{run}")).await),
        None => {}
    }
}

/// One act of the nemesis.
async fn meddle(sim: &Arc<Sim>, nodes: &mut [Option<Node>], endings: &mut JoinSet<()>, run: u32) {
    let (act, index, length) = sim.draw(|rng| (rng.u8(..14), rng.usize(..nodes.len()), millis(rng, 10..=8000)));
    // Who is alone on its table does not start before its predecessor is gone.
    while endings.try_join_next().is_some() {}
    if sim.plan.single_node && !endings.is_empty() {
        return;
    }
    let Some(node) = nodes[index].take() else {
        nodes[index] = Some(Node::start(sim, format!("n{index}r{run}")).await);
        return;
    };
    let how = match act {
        0..=1 => End::Crash,
        2 if sim.plan.single_node => End::Crash,
        2 => End::Drop,
        3 => End::Shutdown,
        4 => End::ShutdownAfterWriters,
        5 => End::ShutdownNow,
        6 => End::ShutdownThenNow,
        7 => End::ShutdownUnheard,
        _ => {
            match act {
                8..=9 => {
                    sim.note(format!("{} is cut off for {length:?}", node.process.name));
                    node.process.cut_off(length);
                }
                10 if sim.plan.store.any_error() => {
                    sim.note(format!("the database is away for {length:?}"));
                    sim.away_until.store(sim.now() / 1000 + length.as_millis() as u64, Ordering::Relaxed);
                }
                11 if sim.plan.lanes.is_some() => {
                    let skips = sim.draw(Rng::bool);
                    sim.decide(skips);
                    node.outbox.wake();
                }
                _ => {
                    let dead = sim.ledger().dead();
                    if let Some(id) = sim.draw(|rng| rng.choice(&dead).cloned()) {
                        sim.redrive(&id);
                        node.outbox.wake();
                    }
                }
            }
            nodes[index] = Some(node);
            return;
        }
    };
    endings.spawn(end(Arc::clone(sim), node, how));
}

/// Nothing goes wrong any more; everything must come to its end.
async fn heal(sim: &Arc<Sim>, nodes: &mut [Option<Node>], endings: &mut JoinSet<()>, run: u32) {
    // Writers end by themselves; in a calm run nothing else has to.
    for node in nodes.iter_mut().flatten() {
        if sim.plan.calm {
            while node.writers.join_next().await.is_some() {}
        }
    }
    sim.note("healed".to_owned());
    sim.healed.store(true, Ordering::Relaxed);
    sim.away_until.store(0, Ordering::Relaxed);
    for node in nodes.iter_mut().flatten() {
        while node.writers.join_next().await.is_some() {}
    }
    while let Some(ended) = endings.join_next().await {
        ended.unwrap();
    }
    if nodes.iter().flatten().next().is_none() {
        nodes[0] = Some(Node::start(sim, format!("n0r{}", run + 1)).await);
    }
    wait_for_the_end(sim, nodes).await;
    for node in nodes.iter_mut().filter_map(Option::take) {
        check_places(sim, &node.outbox);
        let began_at = Instant::now();
        let closed = node.outbox.shutdown().await;
        // A claim from before that still hangs may take all of the time.
        let longest = if sim.plan.calm { LAST_STEPS } else { sim.plan.options.shutdown_deadline + LAST_STEPS };
        if !closed.is_clean() || began_at.elapsed() > longest {
            sim.broken(format!("shutdown: of an idle process: {closed:?} after {:?}", began_at.elapsed()));
        }
    }
    let now = sim.now();
    sim.ledger().check_the_end(now);
    sim.check_the_table();
}

/// Waits until every row is final and nothing is in hand, for as long as that may take.
async fn wait_for_the_end(sim: &Sim, nodes: &[Option<Node>]) {
    let options = &sim.plan.options;
    // A call that hangs is given up after a lease, what it had leased runs out after another, and then come the attempts.
    let attempt = options.retry_max + options.listener_time_limit + Duration::from_secs(2);
    let delays = Duration::from_secs(40) + attempt * (options.retry_attempts + 4);
    let lanes = if sim.plan.lanes.is_some() { delays * 10 + options.lane_lease * 20 } else { Duration::ZERO };
    let patience =
        options.lease * 6 + lanes + delays + if sim.plan.calm { Duration::ZERO } else { options.poll_interval * 20 };
    let deadline = Instant::now() + patience;
    let in_hand = || nodes.iter().flatten().map(|node| node.outbox.in_flight()).sum::<usize>();
    while sim.open.load(Ordering::Relaxed) > 0 || in_hand() > 0 || !sim.ledger().pending().is_empty() {
        if Instant::now() > deadline {
            sim.broken(format!("stuck: after {patience:?} with {} in hand", in_hand()));
            return;
        }
        // Whoever parks keys has somebody who looks after them.
        sim.decide(true);
        sleep(Duration::from_millis(100)).await;
    }
}

/// Every place in the hot queue has come back.
fn check_places(sim: &Sim, outbox: &Outbox<SimStore>) {
    if sim.plan.lanes.is_some() {
        // With lanes nothing is promised a place.
        return;
    }
    let places = sim.plan.options.hot_queue;
    let receipt = outbox.prepare((0..places).map(|_| Event::of_json("Probe", "{}"))).unwrap();
    let granted = receipt.rows().filter(|row| row.lease.is_some()).count();
    receipt.rolled_back();
    if granted != places {
        sim.broken(format!("places: {} of {places} did not come back", places - granted));
    }
}

/// What a run came to.
struct Run {
    violations: Vec<String>,
    trace: Vec<String>,
}

impl Run {
    fn hash(&self) -> u64 {
        #[expect(deprecated, reason = "the one hasher of std that is the same everywhere")]
        let mut hasher = std::hash::SipHasher::new();
        self.trace.iter().for_each(|line| hasher.write(line.as_bytes()));
        hasher.finish()
    }
}

fn run(seed: u64, sabotage: Option<Sabotage>) -> Run {
    run_plan(seed, Plan::new(seed), sabotage)
}

fn run_plan(seed: u64, plan: Plan, sabotage: Option<Sabotage>) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let sim = runtime.block_on(async {
        let sim = Arc::new(Sim::new(seed, plan, sabotage));
        live(Arc::clone(&sim)).await;
        sim
    });
    drop(runtime);
    let mut ledger = sim.ledger();
    Run { violations: std::mem::take(&mut ledger.violations), trace: std::mem::take(&mut ledger.trace) }
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// What some seed must have come to: a fault that never happens proves nothing.
const SEEN: &[&str] = &[
    "Claim: Fails",
    "Settle: Fails",
    "Renew: Fails",
    "Commit: Fails",
    "Claim: AnswerLost",
    "Settle: AnswerLost",
    "Renew: AnswerLost",
    "Commit: AnswerLost",
    "Claim: Late",
    "Settle: Late",
    "Commit: Late",
    "Claim: Hangs",
    "Settle: Hangs",
    "Renew: Hangs",
    "Commit: Hangs",
    "Claim: Panics",
    "Settle: Panics",
    "Commit: Panics",
    "is cut off",
    "the database is away",
    "ends: Crash",
    "ends: Drop",
    "ends: ShutdownAfterWriters",
    "ends: ShutdownNow",
    "ends: ShutdownThenNow",
    "ends: ShutdownUnheard",
    "released: 1",
    "abandoned: 1",
    "release all",
    "attempt 3 Cold",
    "attempt 1 Hot",
    "Some(Done)",
    "Some(Failed)",
    "Some(Deferred)",
    " None",
    "after its lease ran out",
];

#[test]
fn every_seed_holds() {
    seeds_hold(Plan::new, 300, SEEN);
}

/// Runs many seeds, or the one that is named, each with the plan that it stands for.
fn seeds_hold(plan: fn(u64) -> Plan, few: u64, sights: &[&'static str]) {
    if let Some(seed) = env("POSTHASTE_SIM_SEED") {
        let run = run_plan(seed, plan(seed), None);
        println!("{:#?}\n{}", plan(seed), run.trace.join("\n"));
        assert!(run.violations.is_empty(), "seed {seed}:\n{}", run.violations.join("\n"));
        return;
    }
    let (from, count) = (env("POSTHASTE_SIM_FROM").unwrap_or(0), env("POSTHASTE_SIM_SEEDS").unwrap_or(few));
    let next = AtomicU64::new(from);
    let began_at = std::time::Instant::now();
    let (mut failed, mut unseen): (Vec<(u64, Vec<String>)>, _) = (Vec::new(), sights.to_vec());
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (next, tell) = (&next, tell.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        break;
                    }
                    tell.send((seed, run_plan(seed, plan(seed), None))).unwrap();
                }
            });
        }
        drop(tell);
        loop {
            let (seed, run) = match told.recv_timeout(Duration::from_secs(120)) {
                Ok(told) => told,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    // It spins without giving time a chance; nothing but the end of the process ends that.
                    eprintln!("a seed shortly before {} does not end", next.load(Ordering::Relaxed));
                    std::process::exit(101);
                }
            };
            unseen.retain(|sight| !run.trace.iter().any(|line| line.contains(sight)));
            if !run.violations.is_empty() {
                failed.push((seed, run.violations));
            }
        }
    });
    println!("{count} seeds in {:?}", began_at.elapsed());
    failed.sort();
    let shown: Vec<_> =
        failed.iter().take(20).map(|(seed, all)| format!("POSTHASTE_SIM_SEED={seed}: {}", all[0])).collect();
    assert!(failed.is_empty(), "{} of {count} seeds failed\n{}", failed.len(), shown.join("\n"));
    assert!(count < few || unseen.is_empty(), "never seen: {unseen:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..60 {
        let (first, second) = (run(seed, None), run(seed, None));
        let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
        assert_eq!(first.hash(), second.hash(), "POSTHASTE_SIM_SEED={seed}: from {differs:?} on");
    }
}

#[test]
fn planted_mistakes_are_noticed() {
    for (sabotage, verdict) in [
        (Sabotage::SettlesWithoutFence, "fence"),
        (Sabotage::FailuresAreDone, "false done"),
        (Sabotage::RollbackCommits, "phantom"),
        (Sabotage::ClaimsWhatIsLeased, "fence"),
    ] {
        let noticed = (0..200).any(|seed| {
            let violations = run(seed, Some(sabotage)).violations;
            violations.iter().any(|violation| violation.starts_with(verdict))
        });
        assert!(noticed, "{sabotage:?} went unnoticed");
    }
}
