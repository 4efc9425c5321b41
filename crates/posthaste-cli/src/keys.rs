//! `posthaste keys`: aggregates whose events wait for one that has failed, and what is to become of them.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use posthaste::Timestamp;
use posthaste::store::{AdminStore, ClosedKey, Key, LaneHolders, Stall, StalledKey};
use serde_json::{Value, json};

use crate::database::Database;
use crate::exit::{self, Failed};
use crate::output::{Output, confirmed, cut, plain, say, tell};
use crate::settings::{Flags, Given};

/// List aggregates that are delivered in order and stand still, and let them go on.
///
/// An aggregate is named by its type and its id: Order/42. It is parked when an event of it is DEAD, until somebody skips or
/// releases it; it is blocked while an event of it has failed and is tried again, until that succeeds or somebody skips it. Those
/// behind that event wait.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,

    #[command(flatten)]
    output: Output,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Let aggregates go on behind the event that they stand still for: one that is DEAD stays so, and one that has failed and is
    /// tried again becomes DEAD.
    ///
    /// Exit status: 0 if it was done, 1 if it was not confirmed or nothing fits.
    Skip(Choice),
    /// Let parked aggregates go on with the event that is DEAD, which is delivered again.
    ///
    /// Exit status: 0 if it was done, 1 if it was not confirmed or nothing fits.
    Release(Choice),
}

/// Which aggregates, and whether to ask.
#[derive(clap::Args)]
struct Choice {
    /// These: type, a slash, and id, as the list shows them.
    #[arg(value_name = "KEY")]
    keys: Vec<String>,

    /// All that are parked.
    #[arg(long, conflicts_with = "keys")]
    all: bool,

    /// Do not ask.
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[])?.database()?;
    let database = Database::open_existing(&settings).await?;
    let store = database.admin();
    let ended = match args.command {
        None => list(store, args.limit, args.output).await,
        Some(Command::Skip(choice)) => change(store, choice, Change::Skip).await,
        Some(Command::Release(choice)) => change(store, choice, Change::Release).await,
    };
    database.close().await;
    ended
}

/// A key as people write it.
pub(crate) fn name(key: &Key) -> String {
    format!("{}/{}", key.aggregate_type, key.aggregate_id)
}

async fn list(store: &dyn AdminStore, limit: usize, output: Output) -> Result<ExitCode, Failed> {
    let mut printed = output.rows(&["STATE", "KEY", "WAITING", "AGE", "HEAD", "RETRY", "REASON"]);
    match store.lane_holders().await? {
        None => tell("this table is not prepared for order, so nothing waits for anything"),
        Some(holders) => {
            // One more, to know whether there are more.
            let stalled = store.stalled_keys(limit.saturating_add(1)).await?;
            let more = stalled.len() > limit;
            for key in stalled.iter().take(limit).filter(|key| waits(key, &holders)) {
                printed.push(cells(key, holders.now), document(key, holders.now))?;
            }
            if more {
                tell(format_args!("there are more than {limit}; --limit shows more of them"));
            }
        }
    }
    printed.print()?;
    Ok(ExitCode::SUCCESS)
}

/// Whether those behind the head wait for it: not if all relays that are there say that they do not.
fn waits(key: &StalledKey, holders: &LaneHolders) -> bool {
    key.stall != Stall::Blocked || holders.orders(&key.key.aggregate_type) != Some(false)
}

fn state(stall: Stall) -> &'static str {
    match stall {
        Stall::Parked => "parked",
        Stall::Reopened => "released",
        Stall::Blocked => "blocked",
    }
}

fn cells(key: &StalledKey, now: Timestamp) -> Vec<String> {
    vec![
        state(key.stall).to_owned(),
        name(&key.key),
        key.waiting.to_string(),
        age(now.since(key.since)),
        key.head_id.to_string(),
        key.retry_at.map_or("-".to_owned(), |at| at.to_string()),
        cut(key.reason.as_deref().unwrap_or("-"), 80),
    ]
}

fn document(key: &StalledKey, now: Timestamp) -> Value {
    json!({
        "state": state(key.stall),
        "aggregate_type": key.key.aggregate_type,
        "aggregate_id": key.key.aggregate_id,
        "waiting": key.waiting,
        "since": key.since.to_string(),
        "age_seconds": now.since(key.since).as_secs_f64(),
        "head_id": key.head_id.as_str(),
        "head_seq": key.head_seq,
        "retry_at": key.retry_at.map(|at| at.to_string()),
        "reason": key.reason,
    })
}

/// A length of time in its two largest units.
pub(crate) fn age(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, ..) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Skip,
    Release,
}

impl Change {
    fn verb(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Release => "release",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Skip => "skipped",
            Self::Release => "released",
        }
    }

    /// What becomes of the event that is to blame.
    fn head(self, of: &Fitting) -> &'static str {
        match (self, of) {
            (Self::Release, _) => "is delivered again",
            (Self::Skip, Fitting::Parked(_)) => "stays DEAD",
            (Self::Skip, Fitting::Blocked(_)) => "becomes DEAD",
        }
    }
}

/// An aggregate that stands still, and is to go on.
enum Fitting {
    Parked(ClosedKey),
    Blocked(StalledKey),
}

impl Fitting {
    fn key(&self) -> &Key {
        match self {
            Self::Parked(closed) => &closed.key,
            Self::Blocked(stalled) => &stalled.key,
        }
    }

    /// In words, with what becomes of its event.
    fn shown(&self, change: Change) -> String {
        let (head, reason) = match self {
            Self::Parked(closed) => (&closed.head_id, &closed.reason),
            Self::Blocked(stalled) => (&stalled.head_id, &stalled.reason),
        };
        let (name, reason) = (name(self.key()), cut(reason.as_deref().unwrap_or("-"), 80));
        format!("{name}  {head} {}  {reason}", change.head(self))
    }

    /// Whether it stood still for that event until then.
    async fn change(&self, store: &dyn AdminStore, change: Change) -> Result<bool, Failed> {
        Ok(match (self, change) {
            (Self::Blocked(stalled), _) => store.give_up_head(&stalled.key, &stalled.head_id).await?,
            (Self::Parked(closed), Change::Skip) => store.skip_head(&closed.key, &closed.head_id).await?,
            (Self::Parked(closed), Change::Release) => store.release_key(&closed.key, &closed.head_id).await?,
        })
    }
}

/// How many keys a preview shows.
const PREVIEW: usize = 20;

async fn change(store: &dyn AdminStore, choice: Choice, change: Change) -> Result<ExitCode, Failed> {
    let verb = change.verb();
    if choice.keys.is_empty() && !choice.all {
        return Err(anyhow::anyhow!("say which aggregates to {verb}: keys such as Order/42, or --all").into());
    }
    let fitting = fitting(store, &choice, change).await?;
    if fitting.is_empty() {
        tell(format_args!("nothing to {verb}"));
        return Ok(exit::Status::No.into());
    }
    let plural = if fitting.len() == 1 { "" } else { "s" };
    tell(format_args!("{} aggregate{plural} to {verb}, each with the event that it stands still for:", fitting.len()));
    for one in fitting.iter().take(PREVIEW) {
        tell(format_args!("  {}", plain(&one.shown(change))));
    }
    if fitting.len() > PREVIEW {
        tell(format_args!("  … and {} more", fitting.len() - PREVIEW));
    }
    if !confirmed(&format!("{verb} them?"), choice.yes)? {
        return Ok(exit::Status::No.into());
    }
    let mut changed = 0_u64;
    for one in &fitting {
        match one.change(store, change).await {
            Ok(true) => changed += 1,
            Ok(false) => tell(format_args!("{} has gone on meanwhile", plain(&name(one.key())))),
            Err(failed) if changed == 0 => return Err(failed),
            Err(failed) => {
                let (total, done) = (fitting.len(), change.done());
                return Err(failed.after(format_args!("{changed} of {total} aggregates had been {done} before this")));
            }
        }
    }
    say(format_args!("{changed} {}", change.done()))?;
    Ok(if changed > 0 { ExitCode::SUCCESS } else { exit::Status::No.into() })
}

/// What is meant: of what is parked all, or by name; of what is blocked by name only, since it may go on by itself.
async fn fitting(store: &dyn AdminStore, choice: &Choice, change: Change) -> Result<Vec<Fitting>, Failed> {
    let closed = store.closed_keys(usize::MAX).await?;
    if choice.all {
        return Ok(closed.into_iter().filter(|closed| !closed.reopened).map(Fitting::Parked).collect());
    }
    let mut fitting: Vec<Fitting> = Vec::new();
    let mut blocked = None;
    for wanted in &choice.keys {
        // A type or an id may have a slash in it, so it is the name that is looked for.
        if fitting.iter().any(|known| name(known.key()) == *wanted) {
            continue;
        }
        if let Some(closed) = closed.iter().find(|closed| name(&closed.key) == *wanted) {
            if closed.reopened {
                tell(format_args!("{wanted} was let go on already, and a relay is yet to hear of it"));
            } else {
                fitting.push(Fitting::Parked(closed.clone()));
            }
            continue;
        }
        if blocked.is_none() {
            blocked = Some(blocked_keys(store).await?);
        }
        match blocked.iter().flatten().find(|stalled| name(&stalled.key) == *wanted) {
            Some(stalled) if change == Change::Skip => fitting.push(Fitting::Blocked(stalled.clone())),
            Some(_) => tell(format_args!("{wanted} is blocked, not parked: its event is tried again by itself")),
            None => tell(format_args!("{wanted} does not stand still; posthaste keys lists what does")),
        }
    }
    Ok(fitting)
}

/// Aggregates whose first event has failed, and holds up those behind it.
async fn blocked_keys(store: &dyn AdminStore) -> Result<Vec<StalledKey>, Failed> {
    let Some(holders) = store.lane_holders().await? else { return Ok(Vec::new()) };
    let mut stalled = store.stalled_keys(usize::MAX).await?;
    stalled.retain(|key| key.stall == Stall::Blocked && waits(key, &holders));
    Ok(stalled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        for (seconds, shown) in [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3720, "1h 2m"), (180_000, "2d 2h")] {
            assert_eq!(age(Duration::from_secs(seconds)), shown);
        }
    }
}
