//! `posthaste migrate`: creates the table of the outbox, and brings it up to date.

use std::process::ExitCode;

use clap::Subcommand;

use crate::database::Database;
use crate::exit::{Failed, Status};
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

        /// Also prepare the table for order: three small tables beside it, and an index, which is built while others write.
        #[arg(long)]
        lanes: bool,
    },
    /// Say whether something is left to do.
    ///
    /// Exit status: 0 if the table is up to date, 1 if it is not.
    Status,
    /// Print the SQL of what is left to do, and do nothing.
    Sql,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[], std::env::vars())?.database()?;
    let shown = crate::settings::shown(&settings.url);
    let database = Database::open(&settings).await?;
    let pending = database.pending_migration_sql().await?;
    let ended = match args.command {
        Command::Up { wake_trigger, lanes } => {
            let trigger = match (&database, wake_trigger) {
                (Database::Postgres(store), true) => Some(store),
                (_, true) => return Err(anyhow::anyhow!("--wake-trigger is for PostgreSQL, and {shown} is not").into()),
                (_, false) => None,
            };
            database.migrate().await?;
            match pending.is_empty() {
                true => println!("{} in {shown} was up to date", settings.table),
                false => println!("{} in {shown} is up to date now", settings.table),
            }
            if let Some(store) = trigger {
                store.create_wake_trigger().await?;
                println!("rows of other programs wake the relays");
            }
            if lanes {
                database.prepare_lanes().await?;
                println!("events can be delivered in order");
            }
            ExitCode::SUCCESS
        }
        Command::Status if pending.is_empty() => {
            println!("{} in {shown} is up to date", settings.table);
            ExitCode::SUCCESS
        }
        Command::Status => {
            println!("{} in {shown} is not up to date; this is left to do:", settings.table);
            for step in pending.lines().filter_map(|line| line.strip_prefix("-- ")) {
                println!("  {step}");
            }
            Status::No.into()
        }
        Command::Sql => {
            print!("{pending}");
            ExitCode::SUCCESS
        }
    };
    database.close().await;
    Ok(ended)
}
