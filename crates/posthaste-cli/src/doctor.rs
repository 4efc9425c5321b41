//! `posthaste doctor`: what is wrong around an outbox, and what to do about it.

mod destinations;
mod finding;
mod mysql;
mod postgres;
mod sqlite;

use std::process::ExitCode;
use std::time::Duration;

use posthaste::Timestamp;
use posthaste::store;

use crate::database::Database;
use crate::exit::{Failed, Status};
use crate::output::Output;
use crate::rows;
use crate::settings::{Flags, Given, Settings};

use finding::{Findings, Level};

/// How far the clock of the database may be from ours, beside what the way there takes.
const CLOCKS: Duration = Duration::from_secs(2);

/// Look for what is wrong: with the database, its table, what holds it back, and the destinations.
///
/// Nothing is changed. Each finding says what to do. Which checks there are depends on the database; what could not be checked, for
/// lack of a privilege, is told, too.
///
/// Exit status: 0 if nothing is wrong, 1 if something is, 3 if the settings are.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Do not ask the destinations.
    #[arg(long)]
    no_destinations: bool,

    /// From when on a transaction that is open counts as long.
    #[arg(long, value_name = "LENGTH", value_parser = rows::length, default_value = "1m")]
    long_transaction: Duration,

    #[command(flatten)]
    output: Output,
}

/// What the checks go by.
struct Patient<'a> {
    settings: &'a Settings,
    long_transaction: Duration,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[], std::env::vars())?.settings()?;
    let patient = Patient { settings: &settings, long_transaction: args.long_transaction };
    let mut found = Findings::default();
    look_at_database(&patient, &mut found).await;
    if !args.no_destinations {
        destinations::look(&settings, &mut found).await;
    }
    found.print(args.output)?;
    let is_well = found.worst() < Level::Warning;
    Ok(if is_well { ExitCode::SUCCESS } else { Status::No.into() })
}

async fn look_at_database(patient: &Patient<'_>, found: &mut Findings) {
    let settings = &patient.settings.database;
    if let Some(file) = settings.missing_file() {
        found.problem(
            "connection",
            format!("there is no {file} in this directory, and no other database is given"),
            "posthaste init, or database.url",
        );
        return;
    }
    let database = match Database::open(settings).await {
        Ok(database) => database,
        Err(error) => {
            let url = crate::settings::shown(&settings.url);
            found.problem(
                "connection",
                format!("{url}: {}", crate::text_of(&error)),
                "see that it runs, and check database.url",
            );
            return;
        }
    };
    found.fine("connection", crate::settings::shown(&settings.url));
    let is_there = look_at_schema(&database, found).await;
    let looked = match &database {
        Database::Postgres(store) => postgres::look(store, patient, is_there, found).await,
        Database::MySql(store) => mysql::look(store, patient, is_there, found).await,
        Database::Sqlite(store) => sqlite::look(store, patient, is_there, found).await,
    };
    if let Err(error) = looked {
        found.problem(
            "database",
            format!("not everything could be looked at: {error}"),
            "see what the error says, and try again",
        );
    }
    database.close().await;
}

/// Whether the table is there, so that more can be asked of it.
async fn look_at_schema(database: &Database, found: &mut Findings) -> bool {
    match database.pending_migration_sql().await {
        Ok(pending) if pending.is_empty() => {
            found.fine("schema", "the table is up to date");
            true
        }
        Ok(pending) => {
            let versions = pending.lines().filter(|line| line.starts_with("-- ") && line.contains("version ")).count();
            let is_missing = pending.contains("version 1:");
            let what = if is_missing {
                "the table is not there".to_owned()
            } else {
                format!("the table lacks {versions} migration(s)")
            };
            found.problem("schema", what, "posthaste migrate up; posthaste migrate sql shows what it does");
            !is_missing
        }
        Err(error @ store::Error::Schema { .. }) => {
            found.problem("schema", crate::text_of(&error), "upgrade posthaste, or choose another table");
            false
        }
        Err(error) => {
            found.problem(
                "schema",
                format!("its version cannot be read: {}", crate::text_of(&error)),
                "GRANT SELECT on posthaste_migration",
            );
            true
        }
    }
}

/// Judges what the clock of the database says, asked between two moments of ours.
fn look_at_clock(asked_at: Timestamp, said: Timestamp, answered_at: Timestamp, found: &mut Findings) {
    let off = if said < asked_at { asked_at.since(said) } else { said.since(answered_at) };
    if off > CLOCKS {
        let direction = if said < asked_at { "behind" } else { "ahead of" };
        let what = format!("the database's clock is {:.1} s {direction} that of this machine", off.as_secs_f64());
        found.warning(
            "clock",
            what,
            "let both follow NTP; deliveries go by the database's clock, ages that are shown by both",
        );
    } else {
        found.fine("clock", "the clocks agree");
    }
}

/// Rows whose leases ran out, and rows that are due and nobody has.
struct Waiting {
    expired: i64,
    /// Since when the oldest of them is out, in seconds.
    expired_for: f64,
    owner: Option<String>,
    due: i64,
    /// How long the oldest of them is due, in seconds.
    due_for: f64,
}

/// How long something may be due before somebody should have taken it.
fn patience(settings: &Settings) -> Duration {
    (settings.relay.poll_interval * 3).max(Duration::from_secs(15))
}

impl Waiting {
    fn judge(self, settings: &Settings, found: &mut Findings) {
        let Self { expired, expired_for, owner, due, due_for } = self;
        let patience = patience(settings).as_secs_f64();
        if expired > 0 {
            let owner = owner.as_deref().map(posthaste::store::Lease::owner_of).unwrap_or("nobody known").to_owned();
            let what =
                format!("{expired} event(s) have leases that ran out, the oldest {expired_for:.0} s ago, of {owner}");
            let fix = "a relay takes them over at its next poll: see that one runs (posthaste relay), and that nothing is paused";
            found.warning("leases", what, fix);
        } else {
            found.fine("leases", "no lease has run out");
        }
        if due > 0 && due_for > patience {
            let what = format!("{due} event(s) are due and nobody has claimed them, the oldest for {due_for:.0} s");
            found.warning(
                "relays",
                what,
                "see that a relay runs (posthaste relay), and that it can keep up (posthaste stats)",
            );
        } else {
            found.fine("relays", "nothing that is due waits for long");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_by_what_the_way_takes() {
        let at = |seconds: i64| Timestamp::from_micros(1_800_000_000_000_000 + seconds * 1_000_000);
        for (asked, said, answered, level) in
            [(0, 0, 0, Level::Fine), (0, 30, 60, Level::Fine), (0, 3, 0, Level::Warning), (10, 0, 11, Level::Warning)]
        {
            let mut found = Findings::default();
            look_at_clock(at(asked), at(said), at(answered), &mut found);
            assert_eq!(found.worst(), level, "{asked} {said} {answered}");
        }
    }
}
