//! Dord: rows that wait, delivered in the order of each aggregate.

mod claim;

use std::time::Duration;

use anyhow::{Context, ensure};
use posthaste_core::listener::Failure;
use posthaste_core::store::{AdminStore, NewRow, WriteStore};
use posthaste_core::{Delivery, Event, OnDead, Options, Ordered, Outbox};

use super::drain::{Relays, drain_filled};
use crate::bench::{Bench, goal};
use crate::measure::About;
use crate::rounds::of;
use crate::subject::{Filling, STUCK, Subject, fill, payload};

/// Aggregates that the events belong to.
const KEYS: usize = 1000;

/// Events of a single aggregate, and how many of them per second we want to see.
const OF_ONE_KEY: usize = 10_000;
const ONE_KEY_GOAL: f64 = 5_000.0;

/// How much of the speed must be left beside done rows, or beside aggregates that stand still.
const BESIDE_GOAL: f64 = 0.9;

/// In order and without, and of one aggregate alone; and if that is asked for, with done rows, parked and blocked aggregates beside, and
/// then what a claim costs beside them, without what is done once at the start of a drain.
pub(crate) async fn run<S: Subject>(bench: &mut Bench, subject: &S, beside: bool) -> anyhow::Result<()> {
    let (events, done, still) = (bench.sizes.events, bench.sizes.done_beside, bench.sizes.still_beside);
    let filling = Filling { events, keys: KEYS, ..Filling::default() };
    let mut contestants = vec!["unordered", "ordered", "one aggregate"];
    if beside {
        contestants.extend(["done rows beside", "parked beside", "blocked beside"]);
    }
    let contestants: Vec<_> = contestants.into_iter().map(str::to_owned).collect();
    let title = format!("Dord {}", subject.name());
    let figures = bench
        .rounds
        .run(&title, "events/s", &contestants, async |contestant| match contestant {
            "unordered" => super::drain::ours(subject, filling, Relays::default()).await,
            "ordered" => in_order(subject, filling).await,
            "done rows beside" => in_order(subject, Filling { done, ..filling }).await,
            "parked beside" => in_order(subject, Filling { parked: still, ..filling }).await,
            "blocked beside" => in_order(subject, Filling { blocked: still, ..filling }).await,
            _ => in_order(subject, Filling { events: OF_ONE_KEY, keys: 1, ..filling }).await,
        })
        .await?;
    let ordered = of(&figures, "ordered");
    let about = About {
        workload: "Dord",
        database: subject.name(),
        what: "drain of rows that wait, in order over 1,000 aggregates",
        against: "the same without order",
        unit: "events/s",
    };
    bench.add(about.compare(&ordered, &of(&figures, "unordered"), Some(goal::ORDERED)));
    let one_key = About {
        workload: "Dord, one key",
        what: "drain of one aggregate, an event after the other",
        against: "a bound",
        ..about
    };
    bench.add(one_key.at_least(&of(&figures, "one aggregate"), ONE_KEY_GOAL));
    if !beside {
        return Ok(());
    }
    let words = format!("drain in order with {done} done rows beside");
    let about = About { workload: "Dord+1M", what: &words, against: "the same without them", ..about };
    bench.add(about.compare(&of(&figures, "done rows beside"), &ordered, Some(BESIDE_GOAL)));
    let words = format!("drain in order with {still} parked aggregates beside");
    let about = About { workload: "Dord+parked", what: &words, ..about };
    bench.add(about.compare(&of(&figures, "parked beside"), &ordered, Some(BESIDE_GOAL)));
    let words = format!("drain in order with {still} blocked aggregates beside");
    let about = About { workload: "Dord+blocked", what: &words, ..about };
    bench.add(about.compare(&of(&figures, "blocked beside"), &ordered, Some(BESIDE_GOAL)));
    claim::run(bench, subject).await
}

/// Events per second of the outbox in order.
async fn in_order<S: Subject>(subject: &S, filling: Filling) -> anyhow::Result<f64> {
    let store = filled(subject, filling).await?;
    let rate = drain_filled(subject, &store, filling, Relays { ordered: true, ..Relays::default() }).await?;
    S::close(store).await;
    Ok(rate)
}

/// An outbox in order with what is in it.
async fn filled<S: Subject>(subject: &S, filling: Filling) -> anyhow::Result<S::Store> {
    let store = subject.fresh().await?;
    S::prepare_lanes(&store).await?;
    stand_still::<S>(&store, filling.stuck_from, filling.parked, OnDead::Park).await?;
    stand_still::<S>(&store, filling.stuck_from, filling.blocked, OnDead::Block).await?;
    fill::<S>(&store, filling).await?;
    Ok(store)
}

/// Makes so many aggregates stand still, with a second event behind the first of each: parked, where that one is DEAD, or blocked,
/// where it has failed and is tried again after the drain is long over.
async fn stand_still<S: Subject>(
    store: &S::Store,
    from: usize,
    aggregates: usize,
    policy: OnDead,
) -> anyhow::Result<()> {
    if aggregates == 0 {
        return Ok(());
    }
    let payload = payload(200);
    let numbers: Vec<usize> = (0..2 * aggregates).collect();
    for chunk in numbers.chunks(10_000) {
        let event = |number: &usize| {
            Event::builder("Tick").aggregate(STUCK, from + number % aggregates).json_text(payload.as_str()).build()
        };
        let rows: Vec<_> = chunk.iter().map(event).collect::<Result<_, _>>()?;
        let rows: Vec<_> = rows.into_iter().map(NewRow::new).collect();
        let mut tx = store.begin().await?;
        store.insert(&mut tx, &rows).await?;
        store.commit(tx).await?;
    }
    let much_later = Duration::from_secs(24 * 3600);
    let outbox = Outbox::builder(store.clone())
        .ordered(Ordered::all())
        .on_dead(policy)
        .options(Options { retry_base: much_later, retry_max: much_later, retry_attempts: 1, ..Options::default() })
        .listen_all(|_: Delivery| async { Err::<(), _>(Failure::retryable("stuck")) })
        .start()
        .await?;
    let all = async {
        loop {
            let counts = AdminStore::counts(store).await?;
            let still = if policy == OnDead::Block { counts.retry } else { counts.dead };
            if still >= aggregates as u64 {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.context("not every aggregate stands still")??;
    let closed = outbox.shutdown().await;
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    Ok(())
}
