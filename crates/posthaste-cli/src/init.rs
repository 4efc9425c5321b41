//! `posthaste init`: a file of settings to begin with, and the table.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use posthaste::{TableName, store};

use crate::database::Database;
use crate::exit::Failed;
use crate::output::say;
use crate::settings::{self, Flags, Given};

/// Write a posthaste.toml to begin with, in which everything is explained.
///
/// With --database-url the table of the outbox is created there, too. With --table the file names that table. A file that is there is
/// left alone.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Where to write it; --config says the same.
    #[arg(value_name = "PATH", default_value = settings::FILE, conflicts_with = "config")]
    path: PathBuf,
}

/// What is written, with a line for the database.
const TEMPLATE: &str = include_str!("init/posthaste.toml");

/// The line of the template that says where the database is, and the one that says which table it is.
const DATABASE: &str = "url = \"sqlite:posthaste.db\"";
const TABLE: &str = "# table = \"outbox_event\"";

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let (flags, url) = (&args.flags, args.flags.database_url.as_deref());
    let path = flags.config.as_ref().unwrap_or(&args.path);
    // Before anything is written: a URL with a password in it is refused, and one that nobody can connect with.
    let given = || Given::read(&flags.clone().without_file(), &[]);
    let database = match (url, &flags.table) {
        (Some(_), _) => Some(given()?.database_to_connect()?),
        (None, Some(_)) => Some(given()?.database()?),
        (None, None) => None,
    };
    let mut text = TEMPLATE.to_owned();
    if let Some(url) = url {
        text = text.replace(DATABASE, &format!("url = {url:?}"));
    }
    if let Some(database) = database.as_ref().filter(|database| database.table != TableName::DEFAULT) {
        text = text.replace(TABLE, &format!("table = {:?}", database.table));
    }
    let shown = path.display();
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    match created {
        Ok(mut file) => file.write_all(text.as_bytes()).with_context(|| format!("{shown} cannot be written"))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(anyhow::anyhow!("{shown} is there already; remove it, or name another path").into());
        }
        Err(error) => return Err(anyhow::Error::new(error).context(format!("{shown} cannot be written")).into()),
    }
    say(format_args!("wrote {shown}"))?;
    // What other commands have to be told to find the file.
    let found = if *path == Path::new(settings::FILE) { String::new() } else { format!(" --config {shown}") };
    if let Some(settings) = database.filter(|_| url.is_some()) {
        // The file stays, with which to go on once the database is there.
        let wanted =
            format!("{shown} is written, and the table is not there yet; create it with posthaste migrate up{found}");
        create(&settings).await.map_err(|error| Failed::from(error).after(wanted))?;
        say(format_args!("{} in {} is up to date", settings.table, settings::shown(&settings.url)))?;
    }
    say(format_args!("next: posthaste config check{found}, then posthaste relay{found}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn create(settings: &settings::Database) -> Result<(), store::Error> {
    let database = Database::open(settings).await?;
    let created = database.migrate().await;
    database.close().await;
    created
}
