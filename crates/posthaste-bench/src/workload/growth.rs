//! How the cost of an event grows, beside how it grows for who works by hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use posthaste_core::{Delivery, Outbox};
use serde::Serialize;
use tokio::sync::Notify;

use super::drain::{Relays, drain_filled, drain_filled_by_hand};
use crate::bench::Bench;
use crate::measure::{About, Figures, Measurement};
use crate::rounds::number;
use crate::subject::{Filling, Pass, Passed, Subject, event, fill, payload};

/// How much of the ratio at the size where growth begins must be left at any larger one: nothing may grow worse than work by hand does.
const GOAL: f64 = 0.9;

/// With a smaller backlog it is the start of an outbox that is measured.
const FIRST_BACKLOG: usize = 10_000;

/// How much longer than in the best part of the time an event may take in the worst one.
const FLAT: f64 = 2.0;

/// How large things grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    done: &'static [usize],
    backlog: &'static [usize],
    payload: &'static [usize],
    workers: &'static [usize],
    relays: &'static [usize],
    churn: Duration,
    pinned: Duration,
}

impl Reach {
    pub(crate) const FULL: Self = Self {
        done: &[0, 1_000_000, 10_000_000],
        backlog: &[1_000, 10_000, 100_000, 1_000_000],
        payload: &[100, 1_000, 10_000, 100_000, 1_000_000],
        workers: &[1, 2, 4, 8, 16],
        relays: &[1, 2, 4],
        churn: Duration::from_secs(600),
        pinned: Duration::from_secs(60),
    };

    pub(crate) const QUICK: Self = Self {
        done: &[0, 100_000],
        backlog: &[1_000, 10_000, 40_000],
        payload: &[100, 1_000, 10_000, 100_000],
        workers: &[1, 4, 16],
        relays: &[1, 2],
        churn: Duration::from_secs(20),
        pinned: Duration::from_secs(20),
    };
}

/// A row of sizes, with what was seen at each.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Growth {
    pub(crate) database: String,
    pub(crate) what: String,
    pub(crate) unit: String,
    /// The size with which those beyond it are compared.
    pub(crate) from: usize,
    pub(crate) points: Vec<Point>,
}

/// What was seen at a size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) at: usize,
    pub(crate) ours: f64,
    pub(crate) by_hand: f64,
    /// Ours to that by hand, as the middle of those that were measured together.
    pub(crate) ratio: f64,
}

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Done rows beside those that wait.
    Done,
    /// Rows that wait.
    Backlog,
    /// The payload of each.
    Payload,
    /// Workers of one relay.
    Workers,
    /// Relays on one table.
    Relays,
    /// The time for which events have come and gone.
    Churn,
    /// The time for which a transaction is held open beside.
    HeldOpen,
}

/// These parts of all that grows.
pub(crate) async fn run<S: Subject>(
    bench: &mut Bench,
    subject: &S,
    reach: Reach,
    parts: &[Part],
) -> anyhow::Result<Vec<Growth>> {
    let events = bench.sizes.events;
    let base = Filling { events, ..Filling::default() };
    let mut grown = Vec::new();
    let relays = Relays::default().by_hand_faster::<S>();
    for part in parts {
        grown.push(match part {
            Part::Done => {
                let sizes = reach.done.iter().map(|&done| (done, Filling { done, ..base }, relays));
                sweep(bench, subject, "done rows beside", 0, sizes).await?
            }
            Part::Backlog => {
                let sizes = reach.backlog.iter().map(|&events| (events, Filling { events, ..base }, relays));
                sweep(bench, subject, "rows that wait", FIRST_BACKLOG, sizes).await?
            }
            Part::Payload => {
                let sizes = reach.payload.iter().map(|&payload| {
                    // As many as a few hundred megabytes hold.
                    let events = (200_000_000 / payload).clamp(200, events);
                    (payload, Filling { events, payload, ..base }, relays)
                });
                sweep(bench, subject, "bytes of payload", 0, sizes).await?
            }
            Part::Workers => {
                let sizes = |&workers: &usize| (workers, base, Relays { workers: Some(workers), ..relays });
                sweep(bench, subject, "workers", 0, reach.workers.iter().map(sizes)).await?
            }
            Part::Relays => {
                let sizes = |&count: &usize| (count, base, Relays { count, ..relays });
                sweep(bench, subject, "relays", 0, reach.relays.iter().map(sizes)).await?
            }
            Part::Churn => age(bench, subject, "seconds of churn", reach.churn, false).await?,
            Part::HeldOpen => age(bench, subject, "seconds of a transaction held open", reach.pinned, true).await?,
        });
    }
    Ok(grown)
}

async fn sweep<S: Subject>(
    bench: &mut Bench,
    subject: &S,
    what: &str,
    from: usize,
    sizes: impl Iterator<Item = (usize, Filling, Relays)>,
) -> anyhow::Result<Growth> {
    let mut points = Vec::new();
    for (at, filling, relays) in sizes {
        let mut table = Table::new(subject, filling, relays);
        let (mut ours, mut by_hand, mut ratios) = (Figures::default(), Figures::default(), Figures::default());
        for round in 0..bench.rounds.rounds * turns(filling.events) {
            // One right after the other: what changes on the machine meanwhile changes for both.
            let (our, their) = if round % 2 == 0 {
                let their = table.drain(Drainer::ByHand).await?;
                (table.drain(Drainer::Outbox).await?, their)
            } else {
                (table.drain(Drainer::Outbox).await?, table.drain(Drainer::ByHand).await?)
            };
            tell(subject.name(), what, "events/s", &Point { at, ours: our, by_hand: their, ratio: our / their });
            ours.push(our);
            by_hand.push(their);
            ratios.push(our / their);
        }
        table.close().await;
        points.push(Point { at, ours: ours.middle(), by_hand: by_hand.middle(), ratio: ratios.middle() });
    }
    let (database, what, unit) = (subject.name().to_owned(), what.to_owned(), "events/s".to_owned());
    let growth = Growth { database, what, unit, from, points };
    bench.add(judge(&growth));
    Ok(growth)
}

/// How often a round drains so many events: what takes milliseconds says little by itself.
fn turns(events: usize) -> usize {
    (20_000 / events.max(1)).clamp(1, 8)
}

/// Who drains.
#[derive(Clone, Copy, Debug)]
enum Drainer {
    ByHand,
    Outbox,
}

/// A table of one size, drained again and again.
struct Table<'s, S: Subject> {
    subject: &'s S,
    filling: Filling,
    relays: Relays,
    /// The table of the last drain, if what that left there hardly counts beside what was done before.
    kept: Option<(S::Store, usize)>,
}

impl<'s, S: Subject> Table<'s, S> {
    fn new(subject: &'s S, filling: Filling, relays: Relays) -> Self {
        Self { subject, filling, relays, kept: None }
    }

    async fn drain(&mut self, drainer: Drainer) -> anyhow::Result<f64> {
        let (store, done) = match self.kept.take() {
            Some((store, done)) => {
                fill::<S>(&store, Filling { done: 0, ..self.filling }).await?;
                (store, done)
            }
            None => {
                let store = self.subject.fresh().await?;
                fill::<S>(&store, self.filling).await?;
                (store, self.filling.done)
            }
        };
        let filling = Filling { done, ..self.filling };
        let rate = match drainer {
            Drainer::ByHand => drain_filled_by_hand::<S>(&store, filling, self.relays).await?,
            Drainer::Outbox => drain_filled(self.subject, &store, filling, self.relays).await?,
        };
        let done = done + filling.events;
        if done + filling.events <= self.filling.done + self.filling.done / 5 {
            self.kept = Some((store, done));
        } else {
            S::close(store).await;
        }
        Ok(rate)
    }

    async fn close(self) {
        if let Some((store, _)) = self.kept {
            S::close(store).await;
        }
    }
}

/// How long events take from their commit to their listener as time goes by, written at a steady rate.
async fn age<S: Subject>(
    bench: &mut Bench,
    subject: &S,
    what: &str,
    length: Duration,
    pinned: bool,
) -> anyhow::Result<Growth> {
    let mut order = [true, false];
    bench.rounds.random.shuffle(&mut order);
    let (mut our, mut their) = (Vec::new(), Vec::new());
    for by_outbox in order {
        let lags = lags(subject, length, pinned, by_outbox).await?;
        *(if by_outbox { &mut our } else { &mut their }) = lags;
    }
    let part = length.as_secs() as usize / PARTS;
    let points: Vec<Point> = our
        .iter()
        .zip(&their)
        .enumerate()
        .map(|(index, (&ours, &by_hand))| Point { at: (index + 1) * part, ours, by_hand, ratio: by_hand / ours })
        .collect();
    points.iter().for_each(|point| tell(subject.name(), what, "µs p50", point));
    let (database, what, unit) = (subject.name().to_owned(), what.to_owned(), "µs p50".to_owned());
    let growth = Growth { database, what, unit, from: 0, points };
    for judged in judge_age(&growth) {
        bench.add(judged);
    }
    Ok(growth)
}

fn tell(database: &str, what: &str, unit: &str, point: &Point) {
    let Point { at, ours, by_hand, .. } = point;
    say!("growth {database}, {at} {what}: by hand {}, outbox {} {unit}", number(*by_hand), number(*ours));
}

/// How much of the ratio at the size where growth begins is left at the larger one where least is: what the outbox has of its own speed
/// there, to what who works by hand has of his.
fn judge(growth: &Growth) -> Measurement {
    let mut points = growth.points.iter().filter(|point| point.at >= growth.from);
    let first = points.next().map_or(f64::NAN, |point| point.ratio);
    let worst = points.map(|point| point.ratio).min_by(f64::total_cmp).unwrap_or(f64::NAN);
    let workload = format!("growth, {}", growth.what);
    let about = About {
        workload: &workload,
        database: &growth.database,
        what: "ratio to work by hand, as many loops as keep up with a relay, at the larger size where it is lowest",
        against: "the same ratio at the size where growth begins",
        unit: "",
    };
    let figures = |ratio: f64| [ratio].into_iter().collect::<Figures>();
    about.compare(&figures(worst), &figures(first), Some(GOAL))
}

/// How much longer events take in the worst part of the time than in the best: beside the same of who works by hand, and by itself.
fn judge_age(growth: &Growth) -> [Measurement; 2] {
    let worst = |value: fn(&Point) -> f64| {
        let best = growth.points.iter().map(value).min_by(f64::total_cmp).unwrap_or(f64::NAN);
        let worst = growth.points.iter().map(value).max_by(f64::total_cmp).unwrap_or(f64::NAN) / best;
        [worst].into_iter().collect::<Figures>()
    };
    let (ours, by_hand) = (worst(|point| point.ours), worst(|point| point.by_hand));
    let workload = format!("growth, {}", growth.what);
    let about = About {
        workload: &workload,
        database: &growth.database,
        what: "how many times as long events take in the worst part of the time as in the best",
        against: "the same by hand, claiming behind a mark",
        unit: "",
    };
    let flat = format!("{workload}, flat");
    [
        about.compare_costs(&ours, &by_hand, Some(GOAL)),
        About { workload: &flat, against: "a bound", ..about }.at_most(&ours, FLAT),
    ]
}

/// Events per second while a table ages.
const RATE: u64 = 500;

/// Into how many parts the time is divided.
const PARTS: usize = 5;

/// Latencies from commit to listener, as the p50 of each part of the time, in microseconds.
async fn lags<S: Subject>(subject: &S, length: Duration, pinned: bool, by_outbox: bool) -> anyhow::Result<Vec<f64>> {
    let store = subject.fresh().await?;
    let relay = subject.another(&store).await?;
    let events = usize::try_from(RATE * length.as_secs())?;
    let started_at = Instant::now();
    let committed: Arc<Vec<AtomicU64>> = Arc::new((0..events).map(|_| AtomicU64::new(0)).collect());
    let heard = Arc::new(Mutex::new(vec![None; events]));
    let hear = {
        let (committed, heard) = (Arc::clone(&committed), Arc::clone(&heard));
        move |index: usize| {
            let at = micros(started_at);
            // Heard of before the writer knew that it had committed.
            let since = committed[index].load(Ordering::Acquire).min(at);
            let since = if since == 0 { at } else { since };
            heard.lock().expect("nobody panics")[index] = Some(at - since);
        }
    };
    let guard = if pinned { Some(S::pin(&store).await?) } else { None };
    let writer = Outbox::writer_only(store.clone()).start().await?;
    let mut hand = S::writers(&store, 1).await?.pop().context("one was asked for")?;
    // What is written by hand wakes who delivers by hand, without any way through the database.
    let written = Arc::new(Notify::new());
    let write = async {
        let payload = payload(200);
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(RATE)?);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        for index in 0..events {
            ticks.tick().await;
            if by_outbox {
                let mut tx = writer.begin().await?;
                S::order(&mut tx).await?;
                tx.write(event(index, &payload)).await?;
                tx.commit().await?;
            } else {
                S::write_by_hand(&mut hand, &[event(index, &payload)]).await?;
            }
            committed[index].store(micros(started_at), Ordering::Release);
            written.notify_one();
        }
        anyhow::Ok(())
    };
    if by_outbox {
        let outbox = Outbox::builder(relay.clone())
            .listen_all(move |event: Delivery| {
                hear(event.aggregate_id().and_then(|id| id.parse().ok()).unwrap_or_default());
                std::future::ready(())
            })
            .start()
            .await?;
        write.await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        outbox.shutdown().await;
    } else {
        let mut drainer = S::drainer(&relay).await?;
        S::expect_growth(&mut drainer).await?;
        let hear = move |passed: &Passed| {
            passed.keys.iter().flatten().filter_map(|key| key.parse().ok()).for_each(&hear);
        };
        let written = Arc::clone(&written);
        // A task, as those of the outbox are.
        let deliver = tokio::spawn(async move {
            let (mut left, mut mark) = (events, 0);
            while left > 0 {
                let pass = Pass { faster: true, mark: Some(mark), deleting: false };
                let passed = S::pass_by_hand(&mut drainer, pass, &hear).await?;
                left -= passed.seqs.len();
                mark = passed.seqs.iter().copied().fold(mark, i64::max);
                if passed.seqs.is_empty() {
                    written.notified().await;
                }
            }
            anyhow::Ok(())
        });
        write.await?;
        deliver.await??;
    }
    drop(guard);
    writer.shutdown().await;
    S::close(relay).await;
    S::close(store).await;
    let heard = std::mem::take(&mut *heard.lock().expect("nobody panics"));
    anyhow::ensure!(heard.iter().all(Option::is_some), "not every event was delivered");
    let heard: Vec<u64> = heard.into_iter().flatten().collect();
    Ok(heard.chunks(events.div_ceil(PARTS)).map(middle).collect())
}

fn middle(micros: &[u64]) -> f64 {
    let mut sorted = micros.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2] as f64
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(from: usize, points: &[(usize, f64, f64)]) -> Growth {
        let point = |&(at, ours, by_hand): &(usize, f64, f64)| Point { at, ours, by_hand, ratio: ours / by_hand };
        let points = points.iter().map(point).collect();
        Growth { database: "d".to_owned(), what: "rows".to_owned(), unit: String::new(), from, points }
    }

    #[test]
    fn a_lead_that_is_lost_counts_as_growth() {
        let lost = judge(&growth(0, &[(0, 160.0, 100.0), (1, 100.0, 100.0), (2, 120.0, 100.0)]));
        assert_eq!((lost.ours, lost.ceiling, lost.ratio, lost.reached), (1.0, 1.6, 0.625, false));
        let kept = judge(&growth(0, &[(0, 80.0, 100.0), (1, 40.0, 50.0)]));
        assert_eq!((kept.ratio, kept.reached), (1.0, true));
    }

    #[test]
    fn what_is_too_small_is_told_and_not_judged() {
        let judged = judge(&growth(10, &[(1, 50.0, 100.0), (10, 100.0, 100.0), (100, 95.0, 100.0)]));
        assert_eq!((judged.ours, judged.ceiling, judged.reached), (0.95, 1.0, true));
        // With one size nothing has grown, and nothing is reached.
        assert!(!judge(&growth(10, &[(1, 50.0, 100.0), (10, 100.0, 100.0)])).reached);
    }

    #[test]
    fn time_is_judged_from_the_best_part_and_by_itself() {
        let [beside, flat] = judge_age(&growth(0, &[(1, 8.0, 6.0), (2, 4.0, 5.0), (3, 6.0, 5.0)]));
        assert_eq!((beside.ours, beside.ceiling, beside.ratio, beside.reached), (2.0, 1.2, 0.6, false));
        assert!(flat.reached && !flat.more_is_better);
        let [beside, flat] = judge_age(&growth(0, &[(1, 1.0, 1.0), (2, 3.0, 9.0)]));
        assert!(beside.reached && !flat.reached);
    }
}
