//! `posthaste dead`: what was given up, why, and what is to become of it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use posthaste::store::{AdminStore, Filter, Order, Redrive};
use posthaste::{EventId, Status, Timestamp};
use serde_json::json;

use crate::database::Database;
use crate::exit::{self, Failed};
use crate::output::{Output, confirmed, cut, say, tell};
use crate::rows::{self, Wanted};
use crate::settings::{Flags, Given};

/// List what was given up, deliver it again, or delete it.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List DEAD events by the error that they ended with, most frequent first.
    List {
        #[command(flatten)]
        wanted: Wanted,

        /// List each event, instead of groups of them.
        #[arg(long)]
        each: bool,

        /// With --each: how many at most.
        #[arg(long, value_name = "N", default_value_t = 1000, requires = "each")]
        limit: usize,

        #[command(flatten)]
        output: Output,
    },
    /// Make DEAD events NEW again, with no attempts, to be delivered at once.
    ///
    /// Exit status: 0 if it was done, 1 if it was not confirmed, nothing fits, or some were left because somebody else holds them.
    Redrive(Choice),
    /// Delete DEAD events for good.
    ///
    /// Exit status: 0 if it was done, 1 if it was not confirmed, nothing fits, or some were left because somebody else holds them.
    Discard(Choice),
}

/// Which DEAD events, and whether to ask.
#[derive(clap::Args)]
struct Choice {
    /// These events only; of them, those that also fit what else is said.
    #[arg(value_name = "ID", value_parser = rows::id)]
    ids: Vec<EventId>,

    #[command(flatten)]
    wanted: Wanted,

    /// All DEAD events.
    #[arg(long)]
    all: bool,

    /// Do not ask.
    #[arg(long)]
    yes: bool,

    /// How many rows one statement changes, at most.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    chunk: u32,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[])?.database()?;
    let database = Database::open_existing(&settings).await?;
    let store = database.admin();
    let ended = match args.command {
        Command::List { wanted, each, limit, output } => {
            let filter = wanted.filter(vec![Status::Dead], &database).await?;
            match each {
                true => rows::list(store, &filter, (Order::OldestFirst, Some(limit)), output).await,
                false => groups(store, &filter, output).await,
            }
        }
        Command::Redrive(choice) => change(&database, choice, Change::Redrive).await,
        Command::Discard(choice) => change(&database, choice, Change::Discard).await,
    };
    database.close().await;
    ended
}

/// Events that ended alike.
struct Group {
    count: u64,
    types: BTreeSet<String>,
    oldest: Timestamp,
    newest: Timestamp,
    example: EventId,
}

async fn groups(store: &dyn AdminStore, filter: &Filter, output: Output) -> Result<ExitCode, Failed> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    rows::each(store, filter, (Order::OldestFirst, None), |record| {
        let at = record.state.done_at.unwrap_or(record.state.created_at);
        let reason = record.state.last_error.as_deref().unwrap_or("(no error was kept)");
        let group = groups.entry(alike(reason)).or_insert_with(|| Group {
            count: 0,
            types: BTreeSet::new(),
            oldest: at,
            newest: at,
            example: record.id.clone(),
        });
        group.count += 1;
        (group.oldest, group.newest) = (group.oldest.min(at), group.newest.max(at));
        group.types.extend(record.event.iter().map(|event| event.event_type().to_owned()));
        Ok(())
    })
    .await?;
    let mut groups: Vec<(String, Group)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.count));
    let mut printed = output.rows(&["COUNT", "TYPES", "OLDEST", "NEWEST", "EXAMPLE", "ERROR"]);
    for (error, group) in groups {
        let types: Vec<&str> = group.types.iter().map(String::as_str).collect();
        let document = json!({
            "count": group.count,
            "error": error,
            "event_types": types,
            "oldest": group.oldest.to_string(),
            "newest": group.newest.to_string(),
            "example": group.example.as_str(),
        });
        let cells = vec![
            group.count.to_string(),
            cut(&types.join(","), 40),
            group.oldest.to_string(),
            group.newest.to_string(),
            group.example.to_string(),
            cut(&error, 120),
        ];
        printed.push(cells, document)?;
    }
    printed.print()?;
    Ok(ExitCode::SUCCESS)
}

/// An error without what is different each time: numbers, and long words with digits in them, such as ids.
fn alike(error: &str) -> String {
    let mut alike = String::with_capacity(error.len());
    let mut rest = error;
    while let Some(sign) = rest.chars().next() {
        let word = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-').len();
        let (taken, word) = if word > 0 { (word, &rest[..word]) } else { (sign.len_utf8(), &rest[..sign.len_utf8()]) };
        if word.len() >= 16 && word.contains(|c: char| c.is_ascii_digit()) {
            alike.push('…');
        } else if !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) {
            alike.push('#');
        } else {
            alike.push_str(word);
        }
        rest = &rest[taken..];
    }
    alike
}

#[derive(Clone, Copy)]
enum Change {
    Redrive,
    Discard,
}

impl Change {
    fn verb(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Discard => "discarded",
        }
    }
}

/// How many events a preview shows.
const PREVIEW: usize = 5;

async fn change(database: &Database, mut choice: Choice, change: Change) -> Result<ExitCode, Failed> {
    let store = database.admin();
    // Whoever names one twice means it once.
    let mut named = BTreeSet::new();
    choice.ids.retain(|id| named.insert(id.clone()));
    if choice.ids.is_empty() && choice.wanted.is_everything() && !choice.all {
        let verb = change.verb();
        return Err(anyhow::anyhow!("say which events to {verb}: ids, a filter such as --error TEXT, or --all").into());
    }
    let mut filter = choice.wanted.filter(vec![Status::Dead], database).await?;
    // What dies from now on is not among those that are shown, so it is left alone; also what dies for the second time, after it was
    // redriven here.
    filter.ended_before = Some(database.now().await?);
    let mut fitting = Vec::new();
    let mut count = 0;
    if choice.ids.is_empty() {
        count = rows::each(store, &filter, (Order::OldestFirst, None), |record| {
            if fitting.len() < PREVIEW {
                fitting.push(record);
            }
            Ok(())
        })
        .await?;
    } else {
        for id in &choice.ids {
            match store.find(id).await? {
                Some(record) if record.state.status != Status::Dead => {
                    tell(format_args!("{id} is {} and not DEAD; it is left alone", record.state.status));
                }
                Some(record) if !rows::fits(store, &filter, &record).await? => {
                    tell(format_args!("{id} is not among those that were asked for; it is left alone"));
                }
                Some(record) => {
                    count += 1;
                    fitting.push(record);
                }
                None => tell(format_args!("there is no event {id}")),
            }
        }
    }
    if count == 0 {
        tell(format_args!("nothing to {}", change.verb()));
        return Ok(exit::Status::No.into());
    }
    let plural = if count == 1 { "" } else { "s" };
    tell(format_args!("{count} event{plural} to {}:", change.verb()));
    for record in fitting.iter().take(PREVIEW) {
        tell(format_args!("  {}", crate::output::plain(&rows::cells(record).join("  "))));
    }
    if count > PREVIEW {
        tell(format_args!("  … and {} more", count - PREVIEW));
    }
    if !confirmed(&format!("{} them?", change.verb()), choice.yes)? {
        return Ok(exit::Status::No.into());
    }
    let ids = (!choice.ids.is_empty()).then_some(choice.ids);
    let chunk = usize::try_from(choice.chunk).unwrap_or(usize::MAX);
    let changed = in_chunks(store, Redrive { ids, filter, chunk }, change, count).await?;
    say(format_args!("{changed} {}", change.done()))?;
    let left = u64::try_from(count).unwrap_or(u64::MAX).saturating_sub(changed);
    if left == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let (was, it) = if left == 1 { ("was", "it") } else { ("were", "them") };
    tell(format_args!(
        "{left} of {count} event{plural} {was} left, since somebody else holds {it} or has changed {it}; posthaste dead list shows \
         what is there"
    ));
    Ok(exit::Status::No.into())
}

/// Goes on until as many are changed as were counted, or nothing is left.
async fn in_chunks(store: &dyn AdminStore, mut which: Redrive, change: Change, count: usize) -> Result<u64, Failed> {
    let total = u64::try_from(count).unwrap_or(u64::MAX);
    let bar = ProgressBar::new(total).with_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed}").unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let (mut changed, chunk) = (0, which.chunk);
    while changed < total {
        which.chunk = usize::try_from(total - changed).unwrap_or(usize::MAX).min(chunk);
        let more = match change {
            Change::Redrive => store.redrive(&which).await,
            Change::Discard => store.discard(&which).await,
        };
        match more {
            Ok(0) => break,
            Ok(more) => changed += more,
            Err(error) => {
                bar.finish_and_clear();
                let (failed, done) = (Failed::from(error), change.done());
                return Err(match changed {
                    0 => failed,
                    _ => failed.after(format_args!("{changed} of {total} events had been {done} before this")),
                });
            }
        }
        bar.set_position(changed);
    }
    bar.finish_and_clear();
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_numbers_and_ids_are_alike() {
        for (error, same) in [
            ("no answer within 5 s", "no answer within # s"),
            ("order 01JABCDEFGH0123456789XYZAB is gone", "order … is gone"),
            ("größe 7: nein", "größe #: nein"),
            ("HTTP500 from v2", "HTTP500 from v2"),
            ("", ""),
        ] {
            assert_eq!(alike(error), same);
        }
    }
}
