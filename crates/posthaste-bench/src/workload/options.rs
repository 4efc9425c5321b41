//! What the options do to the speed: each value beside the default, in the same rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use posthaste_core::{Delivery, Options, Outbox};

use super::Counter;
use super::drain::{Relays, drain_filled_with};
use super::write::hot_with;
use crate::bench::Bench;
use crate::measure::About;
use crate::rounds::of;
use crate::subject::{Filling, Subject, check_done, fill};

/// How long a listener takes that waits for somebody else.
const SLOW: Duration = Duration::from_millis(5);

/// The defaults, among settings.
const DEFAULT: &str = "default";

/// Settings that a backlog is drained with, by a listener that does nothing.
const DRAINS: &[&str] = &[
    DEFAULT,
    "workers=1",
    "workers=16",
    "cold_queue=500",
    "cold_queue=1000",
    "cold_queue=4000",
    "poll_batch=500",
    "settle_batch=100",
    "settle_linger=0ms",
    "settle_linger=20ms",
];

/// Settings that a backlog is drained with, by a listener that waits.
const SLOW_DRAINS: &[&str] = &[DEFAULT, "workers=1", "workers=16", "workers=64"];

/// Settings under which eight writers write, and a listener that does nothing is hot behind them.
const HOT: &[&str] =
    &[DEFAULT, "settle_linger=0ms", "settle_linger=1ms", "settle_linger=20ms", "hot_queue=10", "workers=1"];

/// Everything that can be set and seen.
pub(crate) async fn run<S: Subject>(bench: &mut Bench, subject: &S) -> anyhow::Result<()> {
    let filling = Filling { events: bench.sizes.events, ..Filling::default() };
    compare(bench, subject, "drain", DRAINS, async |options| {
        let store = subject.fresh().await?;
        fill::<S>(&store, filling).await?;
        let rate = drain_filled_with(subject, &store, filling, Relays::default(), options).await?;
        S::close(store).await;
        Ok(rate)
    })
    .await?;
    let filling = Filling { events: bench.sizes.events / 40, ..Filling::default() };
    compare(bench, subject, "drain to a listener of 5 ms", SLOW_DRAINS, async |options| {
        drain_slowly(subject, filling, options).await
    })
    .await?;
    let writing = bench.sizes.writing;
    compare(bench, subject, "hot", HOT, async |options| hot_with(subject, writing, options).await).await
}

async fn compare<S: Subject>(
    bench: &mut Bench,
    subject: &S,
    what: &str,
    settings: &[&str],
    measure: impl AsyncFn(Options) -> anyhow::Result<f64>,
) -> anyhow::Result<()> {
    let contestants: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    let title = format!("options {}, {what}", subject.name());
    let figures =
        bench.rounds.run(&title, "events/s", &contestants, async |setting| measure(options(setting)?).await).await?;
    for setting in settings.iter().filter(|setting| **setting != DEFAULT) {
        let workload = format!("{what}, {setting}");
        let about = About {
            workload: &workload,
            database: subject.name(),
            what: "with that option",
            against: "with the defaults",
            unit: "events/s",
        };
        bench.add(about.compare(&of(&figures, setting), &of(&figures, DEFAULT), None));
    }
    Ok(())
}

/// The defaults but for one.
fn options(setting: &str) -> anyhow::Result<Options> {
    if setting == DEFAULT {
        return Ok(Options::default());
    }
    let (name, value) = setting.split_once('=').context("a setting is a name and a value")?;
    Ok(Options::default().with_env("", [(name.to_uppercase(), value.to_owned())])?)
}

async fn drain_slowly<S: Subject>(subject: &S, filling: Filling, options: Options) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    fill::<S>(&store, filling).await?;
    let (counter, count) = Counter::listener(filling.events);
    let count = Arc::new(count);
    let started_at = Instant::now();
    let listener = move |event: Delivery| {
        let count = Arc::clone(&count);
        async move {
            tokio::time::sleep(SLOW).await;
            count(event).await;
        }
    };
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await?;
    counter.wait().await?;
    let closed = outbox.shutdown().await;
    let took = started_at.elapsed();
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    check_done(&store, filling.events).await?;
    S::close(store).await;
    Ok(filling.events as f64 / took.as_secs_f64())
}
