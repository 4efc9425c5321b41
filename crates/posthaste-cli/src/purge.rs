//! `posthaste purge`: deletes what is old.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use jiff::SignedDuration;
use posthaste::TableName;
use posthaste::store::Purge;

use crate::database::Database;
use crate::exit::{Failed, Status};
use crate::output::{confirmed, say, tell};
use crate::rows;
use crate::settings::{Flags, Given};

/// Delete events that ended long ago.
///
/// A relay does this by itself with the settings retention_done and retention_dead.
///
/// Exit status: 0 if it was done, 1 if it was not confirmed.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Delete events that became DONE longer ago than this.
    #[arg(long, value_name = "LENGTH", value_parser = rows::length, required_unless_present = "dead_after")]
    done_after: Option<Duration>,

    /// Delete events that became DEAD longer ago than this.
    #[arg(long, value_name = "LENGTH", value_parser = rows::length)]
    dead_after: Option<Duration>,

    /// Do not ask.
    #[arg(long)]
    yes: bool,

    /// How many rows one statement deletes, at most.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    chunk: u32,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[])?.database()?;
    let database = Database::open_existing(&settings).await?;
    // To count them may take as long as to delete them.
    let counts = if args.yes { None } else { Some(database.admin().counts().await?) };
    let table = TableName::parse(&settings.table)?;
    for (status, kept) in [(posthaste::Status::Done, args.done_after), (posthaste::Status::Dead, args.dead_after)] {
        if let Some(kept) = kept {
            let name = status.name();
            // As it may be written on the command line: 168h, and not 604800s.
            let age = SignedDuration::try_from(kept).map_or_else(|_| format!("{kept:?}"), |kept| format!("{kept:#}"));
            let Some(all) = counts.map(|counts| counts.of(status)) else {
                tell(format_args!("{name} events that ended more than {age} ago are deleted"));
                continue;
            };
            let old = database.count_ended(&table, status, kept).await?;
            let but = if status == posthaste::Status::Dead { ", but for what parked aggregates wait for" } else { "" };
            tell(format_args!("of {all} {name} events, {old} ended more than {age} ago; these are deleted{but}"));
        }
    }
    if !confirmed("delete them?", args.yes)? {
        database.close().await;
        return Ok(Status::No.into());
    }
    let chunk = usize::try_from(args.chunk).unwrap_or(usize::MAX);
    let purge = Purge { done_after: args.done_after, dead_after: args.dead_after, chunk, ..Purge::default() };
    let (bar, mut deleted) = (ProgressBar::new_spinner(), 0);
    loop {
        match database.admin().purge(&purge).await {
            Ok(0) => break,
            Ok(more) => deleted += more,
            Err(error) => {
                bar.finish_and_clear();
                let failed = Failed::from(error);
                return Err(match deleted {
                    0 => failed,
                    _ => failed.after(format_args!("{deleted} had been deleted before this")),
                });
            }
        }
        bar.set_message(format!("{deleted} deleted"));
        bar.tick();
    }
    bar.finish_and_clear();
    say(format_args!("{deleted} deleted"))?;
    database.close().await;
    Ok(ExitCode::SUCCESS)
}
