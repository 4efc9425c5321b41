//! `posthaste init`: a file of settings to begin with, and the table.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use posthaste::TableName;

use crate::database::Database;
use crate::exit::Failed;
use crate::output::say;
use crate::settings::{self, Flags, Given};

/// Write a posthaste.toml to begin with, in which everything is explained.
///
/// With --database-url the table of the outbox is created there, too. A file that is there is left alone.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Where to write it.
    #[arg(value_name = "PATH", default_value = settings::FILE)]
    path: PathBuf,
}

/// What is written, with a line for the database.
const TEMPLATE: &str = include_str!("init/posthaste.toml");

/// The line of the template that says where the database is, and the one that says which table it is.
const DATABASE: &str = "url = \"sqlite:posthaste.db\"";
const TABLE: &str = "# table = \"outbox_event\"";

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let url = args.flags.database_url.as_deref();
    // Before anything is written: a URL with a password in it is refused, and one that nobody can connect with.
    let database = match url {
        Some(_) => {
            let given = Given::read(&args.flags.clone().without_file(), &[])?;
            Some(given.database_to_connect()?)
        }
        None => None,
    };
    let mut text = TEMPLATE.to_owned();
    if let (Some(url), Some(database)) = (url, &database) {
        text = text.replace(DATABASE, &format!("url = {url:?}"));
        if database.table != TableName::DEFAULT {
            text = text.replace(TABLE, &format!("table = {:?}", database.table));
        }
    }
    let shown = args.path.display();
    let created = OpenOptions::new().write(true).create_new(true).open(&args.path);
    match created {
        Ok(mut file) => file.write_all(text.as_bytes()).with_context(|| format!("{shown} cannot be written"))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(anyhow::anyhow!("{shown} is there already; remove it, or name another path").into());
        }
        Err(error) => return Err(anyhow::Error::new(error).context(format!("{shown} cannot be written")).into()),
    }
    say(format_args!("wrote {shown}"))?;
    if let Some(settings) = database {
        let database = Database::open(&settings).await?;
        database.migrate().await?;
        database.close().await;
        say(format_args!("{} in {} is up to date", settings.table, settings::shown(&settings.url)))?;
    }
    say("next: posthaste config check, then posthaste relay")?;
    Ok(ExitCode::SUCCESS)
}
