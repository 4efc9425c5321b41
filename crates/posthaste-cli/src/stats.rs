//! `posthaste stats`: how much there is of what.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use posthaste::store::{AdminStore, Counts, Filter, Lease, Order, Page};
use posthaste::{Status, Timestamp};
use serde_json::json;

use crate::database::Database;
use crate::exit::Failed;
use crate::output::Output;
use crate::rows;
use crate::settings::{Flags, Given};

/// How many pending rows are looked at for who holds their leases.
const LOOKED_AT: usize = 10_000;

/// Count events by status, tell how long the oldest waits, and who holds how many leases.
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
    let settings = Given::read(&args.flags, &[], std::env::vars())?.database()?;
    let database = Database::open_existing(&settings).await?;
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
    let waits = oldest.first().map(|record| Timestamp::now().since(record.state.created_at));
    let owners = owners(store, &pending).await?;
    print(args.output, counts, waits, rates, &owners)?;
    database.close().await;
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

/// Who holds how many leases among the first pending rows.
async fn owners(store: &dyn AdminStore, pending: &Filter) -> Result<BTreeMap<String, u64>, Failed> {
    let mut owners = BTreeMap::new();
    rows::each(store, pending, (Order::OldestFirst, Some(LOOKED_AT)), |record| {
        if let Some((lease, _)) = &record.state.lease {
            *owners.entry(Lease::owner_of(lease).to_owned()).or_insert(0) += 1;
        }
        Ok(())
    })
    .await?;
    Ok(owners)
}

fn print(
    output: Output,
    counts: Counts,
    waits: Option<Duration>,
    rates: Option<Rates>,
    owners: &BTreeMap<String, u64>,
) -> std::io::Result<()> {
    let mut document = json!({
        "new": counts.new,
        "retry": counts.retry,
        "done": counts.done,
        "dead": counts.dead,
        "oldest_pending_seconds": waits.map(|waits| waits.as_secs_f64()),
        "leases": owners,
    });
    let mut lines = vec![
        ("new", counts.new.to_string()),
        ("retry", counts.retry.to_string()),
        ("done", counts.done.to_string()),
        ("dead", counts.dead.to_string()),
        ("oldest pending", waits.map_or("-".to_owned(), |waits| format!("{:.1} s", waits.as_secs_f64()))),
    ];
    if let Some(Rates { written, ended }) = rates {
        document["written_per_second"] = json!(written);
        document["ended_per_second"] = json!(ended);
        lines.push(("written per second", format!("{written:.1}")));
        lines.push(("ended per second", format!("{ended:.1}")));
    }
    for (owner, leases) in owners {
        lines.push(("leases", format!("{leases} of {owner}")));
    }
    output.one(&lines, &document)
}
