//! Order: who owns the lanes, whether all relays have the same in order, and what stands still.

use std::collections::HashSet;
use std::time::Duration;

use posthaste::Ordered;
use posthaste::store::{AdminStore, ClosedKey, Key, LaneHolders};
use sqlx::AssertSqlSafe;
use tokio::time::sleep;

use super::finding::Findings;
use super::quoted;
use crate::database::{Database, with_store};
use crate::keys::{age, name};
use crate::output::cut;
use crate::settings::{Order, Settings};

/// How far apart the lanes are looked at, so that what is only on its way from one relay to another is told from what stays.
const APART: Duration = Duration::from_secs(2);

/// How many parked aggregates are looked for.
const MOST: usize = 10_000;

const PREPARE: &str = "posthaste migrate up --lanes";

/// What is delivered in order, as far as it matters for what else is looked at.
#[derive(Default)]
pub(super) struct InOrder {
    ordered: Option<Ordered>,
    /// How many relays are there that own lanes.
    pub(super) relays: usize,
    /// Aggregates of which nothing is delivered until somebody decides.
    pub(super) parked: HashSet<Key>,
}

impl InOrder {
    /// Whether events of one aggregate of this type wait for each other.
    pub(super) fn includes(&self, aggregate_type: &str) -> bool {
        self.ordered.as_ref().is_some_and(|ordered| ordered.includes(aggregate_type))
    }

    /// Whether there is anything to know.
    pub(super) fn is_some(&self) -> bool {
        self.ordered.is_some()
    }
}

pub(super) async fn look(database: &Database, settings: &Settings, found: &mut Findings) -> anyhow::Result<InOrder> {
    let (store, wanted) = (database.admin(), &settings.order.ordered);
    let Some(holders) = store.lane_holders().await? else {
        if wanted.is_some() {
            let what = "the table is not prepared for order, so a relay with these settings does not start";
            found.problem("order", what, PREPARE);
        }
        return Ok(InOrder::default());
    };
    if wanted.is_some()
        && let Err(error) = database.count_lanes().await
    {
        found.problem("order", crate::text_of(&error), PREPARE);
    }
    look_at_relays(&holders, settings, found);
    look_at_lanes(database, &holders, found).await?;
    let parked = look_at_keys(store, &holders, found).await?;
    let theirs = holders.relays.iter().find_map(|relay| relay.ordered.clone());
    Ok(InOrder { ordered: theirs.or_else(|| wanted.clone()), relays: holders.relays.len(), parked })
}

/// A relay that has something else in order than those that are there does not start.
fn look_at_relays(holders: &LaneHolders, settings: &Settings, found: &mut Findings) {
    for relay in &holders.relays {
        let Some(theirs) = &relay.ordered else { continue };
        if Some(theirs) == settings.order.ordered.as_ref() {
            continue;
        }
        let theirs = Order { ordered: Some(theirs.clone()), ..Order::default() }.shown();
        let what = format!(
            "{} has ordered = {theirs}, and these settings have ordered = {}: a relay with these does not start beside it",
            relay.owner,
            settings.order.shown()
        );
        found.problem("order", what, format!("say relay.ordered = {theirs}, or end that relay first"));
    }
}

/// Where relays are there each lane belongs to one of them, and stays with it.
async fn look_at_lanes(database: &Database, before: &LaneHolders, found: &mut Findings) -> anyhow::Result<()> {
    let lanes = before.lanes.len();
    if before.relays.is_empty() {
        found.fine("lanes", format!("no relay is there that would own the {lanes} lanes"));
        return Ok(());
    }
    let epochs = epochs(database).await?;
    sleep(APART).await;
    let Some(after) = database.admin().lane_holders().await? else { return Ok(()) };
    let changed = epochs.iter().zip(self::epochs(database).await?).filter(|(then, now)| **then != *now).count();
    let is_free = |lane| before.of(lane).is_none() && after.of(lane).is_none();
    let free: Vec<_> = after.lanes.iter().filter(|(lane, _)| is_free(*lane)).collect();
    if !free.is_empty() && !after.relays.is_empty() {
        let last = free.iter().filter_map(|(_, holder)| holder.as_ref()).min_by_key(|(_, until)| *until);
        let since = last.map_or_else(String::new, |(owner, until)| {
            format!("; the lease of {owner} ran out {} ago", age(after.now.since(*until)))
        });
        let what = format!("{} of {lanes} lanes have no owner, and their events wait{since}", free.len());
        let fix = "see in the logs of the relays why they do not take them, and that they reach the database; or start another";
        found.warning("lanes", what, fix);
    }
    if changed > 0 {
        let what = format!("{changed} of {lanes} lanes have changed hands within {APART:?}: their epochs have risen");
        let fix = "relays that come or go do so; if it goes on they do not renew their leases in time: raise relay.lane_lease";
        found.note("lanes", what, fix);
    }
    let relays = after.relays.len();
    found.fine_unless_found("lanes", format!("each of the {lanes} lanes has an owner, of {relays} relay(s)"));
    Ok(())
}

/// The epoch of each lane. A lease raises it, so one that has not risen has had the same owner all the time.
async fn epochs(database: &Database) -> Result<Vec<i64>, sqlx::Error> {
    let quote = if matches!(database, Database::MySql(_)) { '`' } else { '"' };
    with_store!(database, store => {
        let sql = format!("SELECT epoch FROM {} ORDER BY lane", quoted(store.table(), "_lane", quote));
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(store.pool()).await
    })
}

/// Those of which nothing is delivered until somebody decides.
async fn look_at_keys(
    store: &dyn AdminStore,
    holders: &LaneHolders,
    found: &mut Findings,
) -> anyhow::Result<HashSet<Key>> {
    let closed = store.closed_keys(MOST).await?;
    let parked: Vec<&ClosedKey> = closed.iter().filter(|closed| !closed.reopened).collect();
    if let Some(first) = parked.first() {
        let at_least = if closed.len() == MOST { "at least " } else { "" };
        let what = format!(
            "{at_least}{} aggregate(s) are parked and wait for you, {} for the longest, {}: event {} is DEAD: {}",
            parked.len(),
            name(&first.key),
            age(holders.now.since(first.since)),
            first.head_id,
            cut(first.reason.as_deref().unwrap_or("no error was kept"), 80)
        );
        let fix = "posthaste keys lists them; keys release delivers that event again, keys skip goes on without it";
        found.warning("keys", what, fix);
    }
    found.fine_unless_found("keys", "no aggregate is parked");
    Ok(parked.into_iter().map(|closed| closed.key.clone()).collect())
}
