//! What seeds have found, and what they could find too rarely: each told step by step.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{OnDead, Options};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::ledger::Kind;
use super::node::Node;
use super::plan::{Odds, Plan, Temper};
use super::store::{Call, End, Trouble};
use super::{LAST_STEPS, Sim, check_places, heal};

/// A run without chance.
struct Scene {
    sim: Arc<Sim>,
    nodes: Vec<Option<Node>>,
}

impl Scene {
    fn new(plan: Plan) -> Self {
        Self { sim: Arc::new(Sim::new(0, plan, None)), nodes: Vec::new() }
    }

    async fn start(&mut self) -> &Node {
        let name = format!("n{}", self.nodes.len());
        self.nodes.push(Some(Node::start(&self.sim, name).await));
        self.node(self.nodes.len() - 1)
    }

    fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().unwrap()
    }

    /// Writes an event and commits.
    async fn write(&self, index: usize, kind: Kind, failures: u32) {
        let mut tx = self.node(index).outbox.begin().await.unwrap();
        tx.write(self.sim.event(kind, failures, 0)).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Everything comes to its end, and nothing went wrong.
    async fn ends_well(mut self) {
        heal(&self.sim, &mut self.nodes, &mut JoinSet::new(), 0).await;
        let ledger = self.sim.ledger();
        assert!(ledger.violations.is_empty(), "{}", ledger.trace.join("\n"));
    }
}

fn options() -> Options {
    let ms = Duration::from_millis;
    Options {
        workers: 1,
        poll_interval: ms(10),
        lease: ms(30_000),
        retry_base: ms(1),
        retry_max: ms(1),
        settle_linger: ms(1),
        ..Options::default()
    }
}

const LOST: End = End::AnswerLost(Trouble::Unavailable);

#[tokio::test(start_paused = true)]
async fn a_failure_whose_answer_was_lost_counts_once() {
    let mut scene = Scene::new(Plan::scripted(options()));
    // The row is due again, and claimed again, before the settler tries again.
    scene.start().await.process.expect(Call::Settle, LOST);
    scene.write(0, Kind::Fine, 1).await;
    scene.ends_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_deferral_whose_answer_was_lost_is_not_repeated() {
    let plan = Plan::scripted(options());
    let mut scene = Scene::new(Plan { listener: Temper { defers: Odds::ALWAYS, ..plan.listener }, ..plan });
    scene.start().await.process.expect(Call::Settle, LOST);
    let mut tx = scene.node(0).outbox.begin().await.unwrap();
    tx.write(scene.sim.event(Kind::Fine, 0, 1)).await.unwrap();
    tx.commit().await.unwrap();
    scene.ends_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_redrive_is_not_undone_by_an_outcome_from_before_it() {
    let mut scene = Scene::new(Plan::scripted(options()));
    scene.start().await.process.expect(Call::Settle, LOST);
    scene.write(0, Kind::Permanent, 0).await;
    let dead = loop {
        if let Some(dead) = scene.sim.ledger().dead().pop() {
            break dead;
        }
        sleep(Duration::from_millis(1)).await;
    };
    scene.sim.redrive(&dead);
    scene.ends_well().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_never_answer_hold_up_nothing_for_longer_than_a_lease() {
    let mut scene = Scene::new(Plan::scripted(options()));
    let process = Arc::clone(&scene.start().await.process);
    for call in [Call::Settle, Call::Claim, Call::Renew] {
        process.expect(call, End::Hangs);
    }
    for _ in 0..5 {
        scene.write(0, Kind::Fine, 1).await;
    }
    scene.ends_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_never_answers_is_tried_again_in_time() {
    // It takes longer than a lease, so without renewals the lease would be lost.
    let listener = Temper { slow: Odds::ALWAYS, ..Temper::default() };
    let slow = Options { listener_time_limit: Duration::from_secs(300), ..options() };
    let mut scene = Scene::new(Plan { listener, ..Plan::scripted(slow) });
    scene.start().await.process.expect(Call::Renew, End::Hangs);
    scene.write(0, Kind::Fine, 0).await;
    sleep(Duration::from_millis(10)).await;
    let sim = Arc::clone(&scene.sim);
    scene.ends_well().await;
    let lost = |line: &String| line.contains("Lost") || line.ends_with("false");
    assert!(!sim.ledger().trace.iter().any(lost), "{}", sim.ledger().trace.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn what_waited_for_a_place_beyond_its_lease_is_not_started() {
    let few = Options { settle_batch: 1, ..options() };
    let mut scene = Scene::new(Plan::scripted(few.clone()));
    scene.start().await;
    let mut tx = scene.node(0).outbox.begin().await.unwrap();
    tx.write_all((0..10).map(|_| scene.sim.event(Kind::Fine, 0, 0)).collect::<Vec<_>>()).await.unwrap();
    tx.commit().await.unwrap();
    // Its outcomes reach nobody, so the later events wait for a place, until somebody else has delivered them.
    scene.node(0).process.cut_off(few.lease * 2);
    scene.start().await;
    sleep(few.lease * 3).await;
    let sim = Arc::clone(&scene.sim);
    scene.ends_well().await;
    let started_by_both = sim.ledger().trace.iter().filter(|line| line.contains("starts")).count();
    assert!((10..20).contains(&started_by_both), "{}", sim.ledger().trace.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_panics_gives_its_places_back() {
    let mut scene = Scene::new(Plan::scripted(Options { hot_queue: 1, ..options() }));
    scene.start().await.process.expect(Call::Commit, End::Panics);
    let outbox = scene.node(0).outbox.clone();
    let event = scene.sim.event(Kind::Fine, 0, 0);
    let task = tokio::spawn(async move {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event).await.unwrap();
        let _ = tx.commit().await;
    });
    assert!(task.await.unwrap_err().is_panic());
    check_places(&scene.sim, &scene.node(0).outbox);
    scene.ends_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_has_one_deadline_for_everything() {
    // So long that a part of it is longer than the last steps together.
    let (deadline, lease) = (Duration::from_secs(30), Duration::from_secs(300));
    let plan = Plan::scripted(Options { shutdown_deadline: deadline, lease, ..options() });
    let listener = Temper { slow: Odds::ALWAYS, ..Temper::default() };
    let mut scene = Scene::new(Plan { listener, ..plan });
    scene.start().await;
    for _ in 0..10 {
        scene.write(0, Kind::Fine, 0).await;
    }
    // Neither the listener nor a claim, nor any settlement or hand-back, comes to its end.
    scene.node(0).process.cut_off(lease * 2);
    let receipt = scene.node(0).outbox.prepare([scene.sim.event(Kind::Fine, 0, 0)]).unwrap();
    drop(receipt);
    sleep(Duration::from_millis(100)).await;
    let began_at = Instant::now();
    let closed = scene.node(0).outbox.shutdown().await;
    assert_eq!(closed.abandoned, 10);
    assert!(began_at.elapsed() <= deadline + LAST_STEPS, "{:?}", began_at.elapsed());
    scene.nodes[0] = None;
    scene.start().await;
    scene.ends_well().await;
}

#[tokio::test(start_paused = true)]
async fn with_lanes_a_key_that_was_closed_late_stays_closed() {
    let ms = Duration::from_millis;
    let lingering = Options { settle_linger: ms(5), ..options() };
    let mut scene = Scene::new(Plan { lanes: Some(OnDead::Park), ..Plan::scripted(lingering) });
    // The event is read again after a tenth of a second and tried again before it is carried out, and settled again after it.
    scene.start().await.process.expect(Call::Settle, End::Late(Trouble::Unavailable, ms(104)));
    // Numbers 0 and 4 are of one key.
    scene.write(0, Kind::Permanent, 0).await;
    for _ in 1..=4 {
        scene.write(0, Kind::Fine, 0).await;
    }
    scene.ends_well().await;
}
