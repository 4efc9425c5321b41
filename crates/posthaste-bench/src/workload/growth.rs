//! How the cost of an event grows, beside how it grows for who works by hand.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_core::{Delivery, Outbox};
use serde::Serialize;

use super::drain::{Relays, drain_filled, drain_filled_by_hand};
use crate::bench::Bench;
use crate::measure::{About, Figures};
use crate::rounds::number;
use crate::subject::{Filling, Subject, event, fill, payload};

/// How much of the ratio at the smallest size must be left at any larger one, or of 1 if it was more: to lose a lead over work by
/// hand is not to grow worse than it.
const GOAL: f64 = 0.9;

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
    for part in parts {
        grown.push(match part {
            Part::Done => {
                let sizes = reach.done.iter().map(|&done| (done, Filling { done, ..base }, Relays::default()));
                sweep(bench, subject, "done rows beside", sizes).await?
            }
            Part::Backlog => {
                let sizes = reach.backlog.iter().map(|&events| (events, Filling { events, ..base }, Relays::default()));
                sweep(bench, subject, "rows that wait", sizes).await?
            }
            Part::Payload => {
                let sizes = reach.payload.iter().map(|&payload| {
                    // As many as a few hundred megabytes hold.
                    let events = (200_000_000 / payload).clamp(200, events);
                    (payload, Filling { events, payload, ..base }, Relays::default())
                });
                sweep(bench, subject, "bytes of payload", sizes).await?
            }
            Part::Workers => {
                let relays = |&workers: &usize| (workers, base, Relays { workers: Some(workers), ..Relays::default() });
                sweep(bench, subject, "workers", reach.workers.iter().map(relays)).await?
            }
            Part::Relays => {
                // A relay claims on one connection while it settles on another, and so keeps two loops by hand busy.
                let relays = |&count: &usize| (count, base, Relays { count, loops_for_each: 2, ..Relays::default() });
                sweep(bench, subject, "relays", reach.relays.iter().map(relays)).await?
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
        let middle = |figures: Figures| figures.median().unwrap_or(f64::NAN);
        points.push(Point { at, ours: middle(ours), by_hand: middle(by_hand), ratio: middle(ratios) });
    }
    let growth =
        Growth { database: subject.name().to_owned(), what: what.to_owned(), unit: "events/s".to_owned(), points };
    judge(bench, &growth);
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
    let our = lags(subject, length, pinned, true).await?;
    let their = lags(subject, length, pinned, false).await?;
    let part = length.as_secs() as usize / PARTS;
    let points: Vec<Point> = our
        .iter()
        .zip(&their)
        .enumerate()
        .map(|(index, (&ours, &by_hand))| Point { at: (index + 1) * part, ours, by_hand, ratio: by_hand / ours })
        .collect();
    points.iter().for_each(|point| tell(subject.name(), what, "µs p50", point));
    let growth =
        Growth { database: subject.name().to_owned(), what: what.to_owned(), unit: "µs p50".to_owned(), points };
    judge_age(bench, &growth);
    Ok(growth)
}

fn tell(database: &str, what: &str, unit: &str, point: &Point) {
    let Point { at, ours, by_hand, .. } = point;
    say!("growth {database}, {at} {what}: by hand {}, outbox {} {unit}", number(*by_hand), number(*ours));
}

/// Adds how much of the first ratio is left at the size where least is. Of a first ratio above 1, that much counts: how far ahead the
/// outbox is depends on how long the disk takes, for which who works by hand waits each time, and which large rows hide.
fn judge(bench: &mut Bench, growth: &Growth) {
    let ratios: Vec<f64> = growth.points.iter().map(|point| point.ratio).collect();
    let first = ratios.first().map_or(f64::NAN, |first| first.min(1.0));
    let worst = ratios.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
    let workload = format!("growth, {}", growth.what);
    let about = About {
        workload: &workload,
        database: &growth.database,
        what: "ratio to work by hand at the size where it is lowest",
        against: "the same ratio at the smallest size, or 1",
        unit: "",
    };
    let figures = |ratio: f64| [ratio].into_iter().collect::<Figures>();
    bench.add(about.compare(&figures(worst), &figures(first), Some(GOAL)));
}

/// Adds how much worse than the first part of the time the worst one was for who works by hand, to the same of the outbox. The
/// ratio of single parts would say more of the polling by hand, half of which is chance, than of the outbox.
fn judge_age(bench: &mut Bench, growth: &Growth) {
    let worst = |value: fn(&Point) -> f64| {
        let first = growth.points.first().map_or(f64::NAN, value);
        growth.points.iter().map(value).max_by(f64::total_cmp).unwrap_or(f64::NAN) / first
    };
    let workload = format!("growth, {}", growth.what);
    let about = About {
        workload: &workload,
        database: &growth.database,
        what: "how much longer events take in the worst part of the time than in the first, by hand",
        against: "the same of the outbox",
        unit: "",
    };
    let figures = |growth: f64| [growth].into_iter().collect::<Figures>();
    bench.add(about.compare(&figures(worst(|point| point.by_hand)), &figures(worst(|point| point.ours)), Some(GOAL)));
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
                S::write_by_hand(&store, &[event(index, &payload)]).await?;
            }
            committed[index].store(micros(started_at), Ordering::Release);
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
        // Polling every few milliseconds, as who works by hand does.
        let written = AtomicBool::new(false);
        let deliver = async {
            loop {
                let keys = S::complete_by_hand(&relay).await?;
                if keys.is_empty() {
                    if written.load(Ordering::Relaxed) {
                        return anyhow::Ok(());
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                keys.into_iter().flatten().filter_map(|key| key.parse().ok()).for_each(&hear);
            }
        };
        let write = async {
            write.await?;
            written.store(true, Ordering::Relaxed);
            Ok(())
        };
        tokio::try_join!(write, deliver)?;
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
