//! `posthaste stats`: how much there is of what.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use posthaste::Status;
use posthaste::store::{AdminStore, Counts, Filter, Lease, Order, Page, Pause, Record};
use serde_json::json;

use crate::database::Database;
use crate::exit::Failed;
use crate::output::Output;
use crate::settings::{Flags, Given, Ways};
use crate::{pause, rows};

/// How many rows are looked at for who holds their leases, and for their destinations.
const LOOKED_AT: usize = 10_000;

/// Count events by status and by destination, tell how long the oldest waits, who holds how many leases and lanes, and what is paused.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Count twice, so far apart, and tell how many events are written and delivered in a second, unless rows are deleted meanwhile.
    #[arg(long, value_name = "LENGTH", value_parser = rows::length)]
    rate: Option<Duration>,

    #[command(flatten)]
    output: Output,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let given = Given::read(&args.flags, &[])?;
    let settings = given.database()?;
    let database = Database::open_existing(&settings).await?;
    let store = database.admin();
    let began_at = Instant::now();
    let mut counts = store.counts().await?;
    let mut rates = None;
    if let Some(apart) = args.rate {
        tokio::time::sleep(apart).await;
        // To count may take long in a large table.
        let (before, elapsed) = (counts, began_at.elapsed());
        counts = store.counts().await?;
        // What is deleted at once was never there to be counted.
        let told = if settings.delete_done { None } else { Rates::between(before, counts, elapsed) };
        rates = Some(told);
    }
    let pending = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
    let oldest = store.list(&pending, &Page { limit: 1, ..Page::default() }).await?;
    let now = database.now().await?;
    let waits = oldest.first().map(|record| now.since(record.state.created_at));
    let (owners, mut is_all) = owners(store, &pending).await?;
    let lanes = lanes(store).await?;
    let destinations = match given.ways() {
        Ok(ways) => {
            let (destinations, are_all) = destinations(store, &ways).await?;
            is_all &= are_all;
            destinations
        }
        // Whoever has the URL of the database alone sees the rest.
        Err(_) => BTreeMap::new(),
    };
    let pauses = pause::known(store).await;
    database.close().await;
    print(args.output, &Found { counts, waits, rates, owners, lanes, destinations, pauses, is_all })?;
    Ok(ExitCode::SUCCESS)
}

/// Events in a second.
#[derive(Clone, Copy)]
struct Rates {
    written: f64,
    ended: f64,
}

impl Rates {
    /// Nothing where a count fell: rows were deleted or redriven meanwhile, and nobody can tell how many came.
    fn between(before: Counts, after: Counts, elapsed: Duration) -> Option<Self> {
        let seconds = elapsed.as_secs_f64().max(0.001);
        let rate = |before: u64, after: u64| Some(after.checked_sub(before)? as f64 / seconds);
        Some(Self {
            written: rate(before.total(), after.total())?,
            ended: rate(before.done + before.dead, after.done + after.dead)?,
        })
    }
}

/// Who holds how many leases among the first pending rows, and whether these are all.
async fn owners(store: &dyn AdminStore, pending: &Filter) -> Result<(BTreeMap<String, u64>, bool), Failed> {
    let mut owners = BTreeMap::new();
    let seen = rows::each(store, pending, (Order::OldestFirst, Some(LOOKED_AT)), |record| {
        if let Some((lease, _)) = &record.state.lease {
            *owners.entry(Lease::owner_of(lease).to_owned()).or_insert(0) += 1;
        }
        Ok(())
    })
    .await?;
    Ok((owners, seen < LOOKED_AT))
}

/// Who has how many lanes: relays that deliver in order lease these, and no single events.
async fn lanes(store: &dyn AdminStore) -> Result<BTreeMap<String, u64>, Failed> {
    let mut lanes = BTreeMap::new();
    if let Some(holders) = store.lane_holders().await? {
        for (owner, _) in holders.lanes.iter().filter_map(|(lane, _)| holders.of(*lane)) {
            *lanes.entry(owner.to_owned()).or_insert(0) += 1;
        }
    }
    Ok(lanes)
}

/// Everything that is told.
struct Found {
    counts: Counts,
    waits: Option<Duration>,
    /// If they were asked for, what can be told of them.
    rates: Option<Option<Rates>>,
    owners: BTreeMap<String, u64>,
    lanes: BTreeMap<String, u64>,
    destinations: BTreeMap<String, OfDestination>,
    pauses: Vec<Pause>,
    /// Whether all rows were looked at for their owners and destinations.
    is_all: bool,
}

/// What waits for a destination, and what was given up on the way there.
#[derive(Clone, Copy, Default)]
struct OfDestination {
    new: u64,
    retry: u64,
    dead: u64,
}

/// What is there for each destination, by where these settings would send it, among the first rows that are pending and the last
/// that are dead; and whether these are all.
async fn destinations(store: &dyn AdminStore, ways: &Ways) -> Result<(BTreeMap<String, OfDestination>, bool), Failed> {
    let mut found: BTreeMap<String, OfDestination> =
        ways.destinations.iter().map(|name| (name.clone(), OfDestination::default())).collect();
    let mut count = |record: Record| {
        let Ok(event) = &record.event else { return Ok(()) };
        let route = ways.routes.iter().find(|route| route.fits(event));
        for &place in route.iter().flat_map(|route| &route.to) {
            let of = found.entry(ways.destinations[place].clone()).or_default();
            match record.state.status {
                Status::New => of.new += 1,
                Status::Retry => of.retry += 1,
                Status::Dead => of.dead += 1,
                Status::Done => {}
            }
        }
        Ok(())
    };
    let pending = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
    let of_pending = rows::each(store, &pending, (Order::OldestFirst, Some(LOOKED_AT)), &mut count).await?;
    let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    let of_dead = rows::each(store, &dead, (Order::NewestFirst, Some(LOOKED_AT)), &mut count).await?;
    Ok((found, of_pending.max(of_dead) < LOOKED_AT))
}

fn print(output: Output, found: &Found) -> std::io::Result<()> {
    let Found { counts, waits, rates, owners, lanes, destinations, pauses, is_all } = found;
    let at_least = if *is_all { "" } else { "at least " };
    let by_destination: serde_json::Map<String, serde_json::Value> = destinations
        .iter()
        .map(|(name, OfDestination { new, retry, dead })| {
            (name.clone(), json!({ "new": new, "retry": retry, "dead": dead }))
        })
        .collect();
    let mut document = json!({
        "new": counts.new,
        "retry": counts.retry,
        "done": counts.done,
        "dead": counts.dead,
        "oldest_pending_seconds": waits.map(|waits| waits.as_secs_f64()),
        "leases": owners,
        "lanes": lanes,
        // Otherwise leases and destinations are counted among the first of very many, and there may be more.
        "counted_all": is_all,
        "destinations": by_destination,
        "paused": pauses.iter().map(pause::document).collect::<Vec<_>>(),
    });
    let mut lines = vec![
        ("new", counts.new.to_string()),
        ("retry", counts.retry.to_string()),
        ("done", counts.done.to_string()),
        ("dead", counts.dead.to_string()),
        ("oldest pending", waits.map_or("-".to_owned(), |waits| format!("{:.1} s", waits.as_secs_f64()))),
    ];
    if let Some(rates) = rates {
        let (written, ended) = (rates.map(|rates| rates.written), rates.map(|rates| rates.ended));
        document["written_per_second"] = json!(written);
        document["ended_per_second"] = json!(ended);
        let shown = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.1}"));
        lines.push(("written per second", shown(written)));
        lines.push(("ended per second", shown(ended)));
    }
    for (owner, leases) in owners {
        lines.push(("leases", format!("{at_least}{leases} of {owner}")));
    }
    for (owner, lanes) in lanes {
        lines.push(("lanes", format!("{lanes} of {owner}")));
    }
    for (name, OfDestination { new, retry, dead }) in destinations {
        lines.push(("destination", format!("{name}: {at_least}{new} new, {retry} retry, {dead} dead")));
    }
    for pause in pauses {
        let reason = pause.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        lines.push(("paused", format!("{} since {}{reason}", pause.what, pause.since)));
    }
    output.one(&lines, &document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_told_unless_a_count_fell() {
        let before = Counts { new: 10, retry: 0, done: 100, dead: 5 };
        let between = |after| Rates::between(before, after, Duration::from_millis(2500));
        let rates = between(Counts { new: 20, retry: 5, done: 120, dead: 10 }).expect("nothing fell");
        assert_eq!((rates.written.to_string(), rates.ended.to_string()), ("16".to_owned(), "10".to_owned()));
        assert!(between(before).is_some_and(|rates| rates.written == 0.0 && rates.ended == 0.0));
        for (after, what) in [
            (Counts { done: 0, ..before }, "retention has deleted rows"),
            (Counts { new: 500, done: 99, ..before }, "it has, and more were written than that"),
            (Counts { new: 15, dead: 0, ..before }, "an operator has redriven some"),
        ] {
            assert!(between(after).is_none(), "{what}");
        }
    }
}
