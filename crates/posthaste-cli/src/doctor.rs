//! `posthaste doctor`: what is wrong around an outbox, and what to do about it.

mod destinations;
mod finding;
mod mysql;
mod order;
mod postgres;
mod sqlite;
mod waiting;

use std::process::ExitCode;
use std::time::Duration;

use posthaste::store;
use posthaste::{TableName, Timestamp};

use crate::database::Database;
use crate::exit::{Failed, Status};
use crate::output::{Output, heard_or_not};
use crate::rows;
use crate::settings::{Flags, Given, Settings};

pub(crate) use destinations::can_be_written;

use finding::{Findings, Level};

/// How far the clock of the database may be from ours, beside what the way there takes.
const CLOCKS: Duration = Duration::from_secs(2);

/// Look for what is wrong: with the database, its table, what holds it back, and the destinations.
///
/// Nothing is changed, and nothing is made: no file, no table, no queue. Each finding says what to do. Which checks there are depends on the database; what could not be checked, for
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

impl Patient<'_> {
    /// Whether a relay with these settings deletes events.
    fn deletes(&self) -> bool {
        let options = &self.settings.relay;
        self.settings.database.delete_done || options.retention_done.is_some() || options.retention_dead.is_some()
    }
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[])?.settings()?;
    let patient = Patient { settings: &settings, long_transaction: args.long_transaction };
    let mut found = Findings::default();
    look_at_database(&patient, &mut found).await;
    if !args.no_destinations {
        destinations::look(&settings, &mut found).await;
    }
    heard_or_not(found.print(args.output))?;
    let is_well = found.worst() < Level::Warning;
    Ok(if is_well { ExitCode::SUCCESS } else { Status::No.into() })
}

async fn look_at_database(patient: &Patient<'_>, found: &mut Findings) {
    let settings = &patient.settings.database;
    if let Some(missing) = settings.missing() {
        return found.problem("connection", missing.reason(), "posthaste init, or database.url");
    }
    let database = match Database::open_as_it_is(settings).await {
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
    if let Err(error) = look_closer(&database, patient, is_there, found).await {
        found.problem(
            "database",
            format!("not everything could be looked at: {}", crate::text(&error)),
            "see what the error says, and try again",
        );
    }
    database.close().await;
}

/// Looks at the server, and at the table if there is one.
async fn look_closer(
    database: &Database,
    patient: &Patient<'_>,
    is_there: bool,
    found: &mut Findings,
) -> anyhow::Result<()> {
    match database {
        Database::Postgres(store) => {
            if postgres::is_standby(store, found).await? {
                return Ok(());
            }
            look_at_clock(postgres::clock(store).await?, found);
            postgres::look(store, patient, is_there, found).await?;
        }
        Database::MySql(store) => {
            look_at_clock(mysql::clock(store).await?, found);
            mysql::look(store, patient, is_there, found).await?;
        }
        Database::Sqlite(store) => sqlite::look(store, is_there, found).await?,
    }
    // Whoever holds the table is not waited for here, either.
    if is_there && !found.has("privileges") && !found.has("locks") {
        let in_order = order::look(database, patient.settings, found).await?;
        waiting::look(database, patient.settings, &in_order, found).await?;
    }
    Ok(())
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

/// What the clock of a database says, asked between two moments of ours.
struct Clock {
    asked_at: Timestamp,
    said: Timestamp,
    answered_at: Timestamp,
}

impl Clock {
    /// Asks, twice: the first answer may have waited for more than the way.
    async fn ask(mut question: impl AsyncFnMut() -> Result<i64, sqlx::Error>) -> Result<Self, sqlx::Error> {
        question().await?;
        let asked_at = Timestamp::now();
        let said = Timestamp::from_micros(question().await?);
        Ok(Self { asked_at, said, answered_at: Timestamp::now() })
    }
}

fn look_at_clock(Clock { asked_at, said, answered_at }: Clock, found: &mut Findings) {
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

/// The statements of the migrations that make an index, without the comments before them.
fn index_statements(script: &str) -> impl Iterator<Item = &str> {
    script.split(';').filter_map(|statement| {
        let start = statement.find("CREATE INDEX").or_else(|| statement.find("CREATE UNIQUE INDEX"))?;
        Some(statement[start..].trim())
    })
}

/// The name of a table, or of one beside it, as SQL has it. It holds nothing but letters, digits and underscores.
pub(crate) fn quoted(table: &TableName, suffix: &str, quote: char) -> String {
    let schema = table.schema().map_or_else(String::new, |schema| format!("{quote}{schema}{quote}."));
    format!("{schema}{quote}{}{suffix}{quote}", table.name())
}

fn index_is_missing(name: &str, fix: String, found: &mut Findings) {
    let what = format!("the index {name} is missing, so claims or lists fail, or walk the whole table");
    found.problem("indexes", what, fix);
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
            look_at_clock(Clock { asked_at: at(asked), said: at(said), answered_at: at(answered) }, &mut found);
            assert_eq!(found.worst(), level, "{asked} {said} {answered}");
        }
    }
}
