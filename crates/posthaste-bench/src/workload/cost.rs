//! X: what an event costs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use posthaste_core::{Options, Outbox};

use super::Counter;
use super::drain::{Relays, drain, pass_all};
use super::write::{ByHand, Ours, write_all};
use crate::bench::Bench;
use crate::measure::{About, Figures};
use crate::rounds::{number, of};
use crate::server::own_cpu_seconds;
use crate::statements::Statements;
use crate::subject::{Filling, Subject, check_drained, fill};

/// The most statements about the outbox for an event on the hot path: one INSERT, and a share of one UPDATE.
const MOST_STATEMENTS: f64 = 1.2;

/// What each event cost, by the name of the quantity.
type Costs = BTreeMap<&'static str, f64>;

/// The same of several rounds.
type ByQuantity = BTreeMap<String, Figures>;

/// Who works, and on which path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Contestant {
    WrittenByHand,
    Hot,
    DrainedByHand,
    Cold,
}

impl Contestant {
    fn name(self) -> &'static str {
        match self {
            Self::WrittenByHand => "written by hand",
            Self::Hot => "hot",
            Self::DrainedByHand => "drained by hand",
            Self::Cold => "cold",
        }
    }
}

/// On the hot path and on the cold one, beside the same work by hand.
pub(crate) async fn run<S: Subject>(bench: &mut Bench, subject: &S) -> anyhow::Result<()> {
    use Contestant::{Cold, DrainedByHand, Hot, WrittenByHand};
    let mut seen: BTreeMap<Contestant, ByQuantity> = BTreeMap::new();
    for (round, counts) in bench.rounds.all() {
        let mut order = [WrittenByHand, Hot, DrainedByHand, Cold];
        bench.rounds.random.shuffle(&mut order);
        for contestant in order {
            let costs = cost(subject, contestant, bench.sizes.events).await?;
            let words: Vec<_> = costs.iter().map(|(quantity, cost)| format!("{} {quantity}", number(*cost))).collect();
            say!("X {}, {round}, {}: {} per event", subject.name(), contestant.name(), words.join(", "));
            if counts {
                let seen = seen.entry(contestant).or_default();
                costs.iter().for_each(|(quantity, cost)| seen.entry((*quantity).to_owned()).or_default().push(*cost));
            }
        }
    }
    let seen = |contestant| seen.get(&contestant).cloned().unwrap_or_default();
    let words = ("written and delivered hot", "written by hand and not delivered");
    report(bench, subject, "hot", words, &seen(Hot), &seen(WrittenByHand));
    let words = ("claimed, delivered and settled", "claimed and completed by hand");
    report(bench, subject, "cold", words, &seen(Cold), &seen(DrainedByHand));
    Ok(())
}

fn report<S: Subject>(
    bench: &mut Bench,
    subject: &S,
    path: &str,
    (what, against): (&str, &str),
    ours: &ByQuantity,
    by_hand: &ByQuantity,
) {
    for (quantity, ours) in ours {
        let (workload, unit) = (format!("X {path}, {quantity}"), format!("{quantity} per event"));
        let about = About { workload: &workload, database: subject.name(), what, against, unit: &unit };
        if path == "hot" && quantity == STATEMENTS {
            bench.add(about.at_most(ours, MOST_STATEMENTS));
        } else if by_hand.contains_key(quantity) {
            bench.add(about.compare_costs(ours, &of(by_hand, quantity), None));
        }
    }
}

const STATEMENTS: &str = "statements";

/// How long a session takes to end after its connection was closed.
const SESSIONS_END: Duration = Duration::from_millis(500);

/// What each of the events costs who does the work. A fifth of them, where they are written one by one.
async fn cost<S: Subject>(subject: &S, contestant: Contestant, events: usize) -> anyhow::Result<Costs> {
    let on_hot_path = matches!(contestant, Contestant::WrittenByHand | Contestant::Hot);
    let waiting = if on_hot_path { 0 } else { events };
    let events = if on_hot_path { events / 5 } else { events };
    let filled = subject.fresh().await?;
    fill::<S>(&filled, Filling { events: waiting, ..Filling::default() }).await?;
    // What filled it is none of the cost, and has not been told yet.
    let store = subject.another(&filled).await?;
    S::leave(filled).await;
    tokio::time::sleep(SESSIONS_END).await;
    let costs = counted(subject, &store, events, async |store| match contestant {
        Contestant::WrittenByHand => write_all(events, ByHand::<S>::all(store, 1).await?).await,
        Contestant::Hot => {
            let (_, listener) = Counter::listener(usize::MAX);
            let outbox = Outbox::builder(store.clone()).listen_all(listener).start().await?;
            write_all(events, Ours::<S>::all(&outbox, 1)).await?;
            let closed = outbox.shutdown().await;
            ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
            Ok(())
        }
        Contestant::DrainedByHand => pass_all::<S>(vec![S::drainer(store).await?], Relays::default()).await,
        Contestant::Cold => drain(subject, store, events, Relays::default(), Options::default()).await.map(drop),
    })
    .await?;
    // Only now: to look is no part of the cost.
    let looking = subject.another(&store).await?;
    if contestant != Contestant::WrittenByHand {
        check_drained(&looking, Filling { events, ..Filling::default() }).await?;
    }
    S::close(looking).await;
    Ok(costs)
}

async fn counted<S: Subject>(
    subject: &S,
    store: &S::Store,
    events: usize,
    work: impl AsyncFnOnce(&S::Store) -> anyhow::Result<()>,
) -> anyhow::Result<Costs> {
    let (before, cpu_before, statements) = (subject.usage().await?, own_cpu_seconds()?, Statements::count());
    #[cfg(feature = "allocations")]
    let allocated_before = stats_alloc::INSTRUMENTED_SYSTEM.stats();
    work(store).await?;
    let mut costs = Costs::new();
    #[cfg(feature = "allocations")]
    {
        let allocated = stats_alloc::INSTRUMENTED_SYSTEM.stats() - allocated_before;
        // Nothing is counted in a program that has another allocator, such as the command.
        if allocated.allocations > 0 {
            costs.insert("allocations of the client", allocated.allocations as f64);
        }
    }
    costs.insert("µs of the client's processor", (own_cpu_seconds()? - cpu_before) * 1e6);
    if let Some(statements) = &statements {
        costs.insert(STATEMENTS, statements.so_far() as f64);
    }
    drop(statements);
    // Sessions tell the server of what they did when they end.
    S::leave(store.clone()).await;
    tokio::time::sleep(SESSIONS_END).await;
    let after = subject.usage().await?;
    let mut counted = |quantity, before: Option<u64>, after: Option<u64>| {
        if let (Some(before), Some(after)) = (before, after) {
            costs.insert(quantity, after.saturating_sub(before) as f64);
        }
    };
    counted("commits", before.commits, after.commits);
    counted("bytes of the log", before.wal_bytes, after.wal_bytes);
    counted("dead versions of rows", before.dead_rows, after.dead_rows);
    if let (Some(before), Some(after)) = (before.cpu_seconds, after.cpu_seconds) {
        costs.insert("µs of the server's processor", (after - before) * 1e6);
    }
    costs.values_mut().for_each(|cost| *cost /= events.max(1) as f64);
    Ok(costs)
}
