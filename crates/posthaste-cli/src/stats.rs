//! `posthaste stats`: how much there is of what.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

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

/// Count events by status and by destination, tell how long the oldest waits, who holds how many leases, and what is paused.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Count twice, so far apart, and tell how many events are written and delivered in a second.
    #[arg(long, value_name = "LENGTH", value_parser = rows::length)]
    rate: Option<Duration>,

    #[command(flatten)]
    output: Output,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let given = Given::read(&args.flags, &[])?;
    let database = Database::open_existing(&given.database()?).await?;
    let store = database.admin();
    let before = store.counts().await?;
    let rates = match args.rate {
        Some(apart) => {
            tokio::time::sleep(apart).await;
            Some(Rates::between(before, store.counts().await?, apart))
        }
        None => None,
    };
    let counts = if rates.is_some() { store.counts().await? } else { before };
    let pending = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
    let oldest = store.list(&pending, &Page { limit: 1, ..Page::default() }).await?;
    let now = database.now().await?;
    let waits = oldest.first().map(|record| now.since(record.state.created_at));
    let (owners, mut is_all) = owners(store, &pending).await?;
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
    print(args.output, &Found { counts, waits, rates, owners, destinations, pauses, is_all })?;
    Ok(ExitCode::SUCCESS)
}

/// Events in a second.
#[derive(Clone, Copy)]
struct Rates {
    written: f64,
    ended: f64,
}

impl Rates {
    fn between(before: Counts, after: Counts, apart: Duration) -> Self {
        let seconds = apart.as_secs_f64().max(0.001);
        // Retention deletes rows meanwhile; then nobody can tell, and it is not below zero.
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        Self {
            written: rate(before.total(), after.total()),
            ended: rate(before.done + before.dead, after.done + after.dead),
        }
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

/// Everything that is told.
struct Found {
    counts: Counts,
    waits: Option<Duration>,
    rates: Option<Rates>,
    owners: BTreeMap<String, u64>,
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
    let Found { counts, waits, rates, owners, destinations, pauses, is_all } = found;
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
    if let Some(Rates { written, ended }) = *rates {
        document["written_per_second"] = json!(written);
        document["ended_per_second"] = json!(ended);
        lines.push(("written per second", format!("{written:.1}")));
        lines.push(("ended per second", format!("{ended:.1}")));
    }
    for (owner, leases) in owners {
        lines.push(("leases", format!("{at_least}{leases} of {owner}")));
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
