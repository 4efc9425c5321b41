//! `posthaste migrate`: creates the table of the outbox, and brings it up to date.

use std::process::ExitCode;

use clap::Subcommand;
use posthaste::store;
use posthaste::{MySqlStore, PgStore, Scheme, TableName};

use crate::database::Database;
use crate::doctor::quoted;
use crate::exit::{Failed, Status};
use crate::output::{heard_or_not, print, say};
use crate::settings::{Flags, Given};

/// Create the table of the outbox, or bring it up to date.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Do what is left to do, in one transaction where the database has them for tables.
    Up {
        /// On PostgreSQL, also create the trigger that wakes relays for rows that other programs insert.
        #[arg(long)]
        wake_trigger: bool,

        /// Also create what other languages and triggers write events with: the function `posthaste_write` on PostgreSQL, the
        /// procedure of that name on MySQL and MariaDB.
        ///
        /// It is called NAME_write if the table is called NAME instead of outbox_event.
        #[arg(long)]
        write_function: bool,

        /// Also prepare the table for order: three small tables beside it, and an index, which is built while others write.
        #[arg(long)]
        lanes: bool,
    },
    /// Say whether something is left to do. Nothing is changed, and no file is made.
    ///
    /// Exit status: 0 if the table is up to date, 1 if it is not.
    Status,
    /// Print the SQL of what is left to do, and do nothing.
    Sql {
        /// Also that of the trigger of `migrate up --wake-trigger`.
        #[arg(long)]
        wake_trigger: bool,

        /// Also that of the function or procedure of `migrate up --write-function`.
        #[arg(long)]
        write_function: bool,

        /// Also that of `migrate up --lanes`, if the table is not prepared for order.
        #[arg(long)]
        lanes: bool,
    },
}

impl Command {
    /// What that database has not is refused before anything is opened, and maybe made.
    fn check(&self, scheme: Scheme, shown: &str) -> anyhow::Result<()> {
        let (wake_trigger, write_function) = match self {
            Self::Up { wake_trigger, write_function, .. } | Self::Sql { wake_trigger, write_function, .. } => {
                (*wake_trigger, *write_function)
            }
            Self::Status => (false, false),
        };
        if wake_trigger && scheme != Scheme::Postgres {
            anyhow::bail!("--wake-trigger is for PostgreSQL, and {shown} is not");
        }
        if write_function && scheme == Scheme::Sqlite {
            anyhow::bail!(
                "--write-function is for PostgreSQL, MySQL and MariaDB; {shown} is SQLite, which has no functions: insert rows"
            );
        }
        Ok(())
    }
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[])?.database()?;
    let shown = crate::settings::shown(&settings.url);
    args.command.check(posthaste::detect(&settings.url)?, &shown)?;
    let database = match args.command {
        Command::Up { .. } => Database::open(&settings).await?,
        // Whoever only asks makes no file, and changes none.
        Command::Status | Command::Sql { .. } => Database::open_as_it_is_or_empty(&settings).await?,
    };
    let pending = database.pending_migration_sql().await?;
    let ended = match args.command {
        Command::Up { wake_trigger, write_function, lanes } => {
            let besides = Besides::of(&database, wake_trigger, write_function);
            database.migrate().await?;
            match pending.is_empty() {
                true => say(format_args!("{} in {shown} was up to date", settings.table))?,
                false => say(format_args!("{} in {shown} is up to date now", settings.table))?,
            }
            besides.create(&TableName::parse(&settings.table)?).await?;
            if lanes {
                database.prepare_lanes().await?;
                say("events can be delivered in order")?;
            }
            ExitCode::SUCCESS
        }
        Command::Status if pending.is_empty() => {
            say(format_args!("{} in {shown} is up to date", settings.table))?;
            for (what, is_there, flag) in besides(&database, &TableName::parse(&settings.table)?).await? {
                match is_there {
                    true => say(format_args!("  {what}: there"))?,
                    false => say(format_args!("  {what}: not there; migrate up {flag}, where it is wanted"))?,
                }
            }
            ExitCode::SUCCESS
        }
        Command::Status => {
            let mut text = match settings.missing() {
                Some(missing) => format!("{} in {shown} is not there yet: {};", settings.table, missing.reason()),
                None => format!("{} in {shown} is not up to date;", settings.table),
            };
            text += " this is left to do:\n";
            // The statements have comments of their own.
            let heading = format!("-- {}, version ", TableName::parse(&settings.table)?);
            for step in pending.lines().filter(|line| line.starts_with(&heading)) {
                text += &format!("  {}\n", step.trim_start_matches("-- "));
            }
            heard_or_not(print(text))?;
            Status::No.into()
        }
        Command::Sql { wake_trigger, write_function, lanes } => {
            let besides = Besides::of(&database, wake_trigger, write_function);
            let lanes = if lanes { database.pending_lanes_sql().await? } else { String::new() };
            print(format_args!("{pending}{}{lanes}", besides.sql()))?;
            ExitCode::SUCCESS
        }
    };
    database.close().await;
    Ok(ended)
}

/// What may be there beside a table that is up to date, whether it is, and the flag that makes it.
async fn besides(
    database: &Database,
    table: &TableName,
) -> Result<Vec<(&'static str, bool, &'static str)>, store::Error> {
    let lanes = match database.count_lanes().await {
        Ok(()) => true,
        Err(store::Error::Schema { .. }) => false,
        Err(error) => return Err(error),
    };
    let mut besides = vec![("what order needs", lanes, "--lanes")];
    let (routine, trigger) = (table.write_routine(), format!("{}_wake", table.name()));
    let unavailable = |error: sqlx::Error| store::Error::Unavailable(error.into());
    match database {
        Database::Sqlite(_) => {}
        Database::Postgres(store) => {
            let asked = sqlx::query_as(ON_POSTGRES).bind(quoted(table, "", '"')).bind(routine).bind(trigger);
            let (function, trigger) = asked.fetch_one(store.pool()).await.map_err(unavailable)?;
            besides.push(("the function to write with", function, "--write-function"));
            besides.push(("the trigger that wakes relays", trigger, "--wake-trigger"));
        }
        Database::MySql(store) => {
            let asked = sqlx::query_scalar(ON_MYSQL).bind(table.schema()).bind(routine);
            let procedure: i64 = asked.fetch_one(store.pool()).await.map_err(unavailable)?;
            besides.push(("the procedure to write with", procedure > 0, "--write-function"));
        }
    }
    Ok(besides)
}

/// Whether there are a function and a trigger of these names.
const ON_POSTGRES: &str = "SELECT EXISTS (SELECT FROM pg_proc p JOIN pg_class c ON c.relnamespace = p.pronamespace \
     WHERE c.oid = to_regclass($1) AND p.proname = $2), \
     EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass($1) AND tgname = $3)";

/// How many procedures there are of that name.
const ON_MYSQL: &str = "SELECT count(*) FROM information_schema.routines \
     WHERE routine_schema = coalesce(?, database()) AND routine_name = ?";

/// What is created if it is asked for, since not everybody needs it, or may do it.
struct Besides<'a> {
    wake_trigger: Option<&'a PgStore>,
    write_function: Option<Writers<'a>>,
}

/// The stores that have a function or a procedure to write events with.
enum Writers<'a> {
    Postgres(&'a PgStore),
    MySql(&'a MySqlStore),
}

impl<'a> Besides<'a> {
    /// What was asked for of that database, which has it.
    fn of(database: &'a Database, wake_trigger: bool, write_function: bool) -> Self {
        let (trigger, writers) = match database {
            Database::Postgres(store) => (Some(store), Some(Writers::Postgres(store))),
            Database::MySql(store) => (None, Some(Writers::MySql(store))),
            Database::Sqlite(_) => (None, None),
        };
        Self { wake_trigger: trigger.filter(|_| wake_trigger), write_function: writers.filter(|_| write_function) }
    }

    fn sql(&self) -> String {
        let function = self.write_function.as_ref().map(|writers| match writers {
            Writers::Postgres(store) => store.write_function_sql(),
            Writers::MySql(store) => store.write_procedure_sql(),
        });
        let trigger = self.wake_trigger.map(PgStore::wake_trigger_sql);
        [function, trigger].into_iter().flatten().collect()
    }

    async fn create(&self, table: &TableName) -> Result<(), Failed> {
        let created = match &self.write_function {
            Some(Writers::Postgres(store)) => Some(("the function", store.create_write_function().await)),
            Some(Writers::MySql(store)) => Some(("the procedure", store.create_write_procedure().await)),
            None => None,
        };
        if let Some((what, created)) = created {
            let name = match (table.schema(), table.write_routine()) {
                (Some(schema), name) => format!("{schema}.{name}"),
                (None, name) => name,
            };
            created
                .map_err(|error| not_created(&format!("{what} {name} was not created"), "--write-function", error))?;
            say(format_args!("other programs write events with {what} {name}"))?;
        }
        if let Some(store) = self.wake_trigger {
            let created = store.create_wake_trigger().await;
            created.map_err(|error| not_created("the trigger was not created", "--wake-trigger", error))?;
            say("rows of other programs wake the relays")?;
        }
        Ok(())
    }
}

/// The table is ready, and works without what was refused.
fn not_created(what: &str, flag: &str, error: store::Error) -> Failed {
    let status = Failed::from(error);
    let reason = crate::text(&status.error);
    let error = anyhow::anyhow!(
        "the table is ready, but {what}: {reason}; let a user who may create it run what posthaste migrate sql {flag} prints"
    );
    Failed { status: status.status, error }
}
