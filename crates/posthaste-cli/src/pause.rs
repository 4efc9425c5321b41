//! `posthaste pause` and `posthaste resume`: keeps events from a route or a destination, in all relays.

use std::process::ExitCode;

use clap::Subcommand;
use posthaste::store::{AdminStore, Pause, Paused};
use serde_json::{Value, json};

use crate::database::Database;
use crate::exit::{Failed, Status};
use crate::output::{Output, cut, say, tell};
use crate::relay::kind;
use crate::settings::{Flags, Given};

/// Keep events from a route or a destination, in all relays, until it is resumed.
///
/// Relays notice within a second. What is with a destination already is delivered; everything else stays pending, uses up no
/// attempt, and survives restarts. A paused destination holds every route that leads there.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Pause a route.
    ///
    /// Exit status: 0 if it is paused now, or was before; 1 if the settings have no such route.
    Route(Which),
    /// Pause a destination, and so every route that leads there.
    ///
    /// Exit status: 0 if it is paused now, or was before; 1 if the settings have no such destination.
    Destination(Which),
    /// Say what is paused.
    List {
        #[command(flatten)]
        output: Output,
    },
}

#[derive(clap::Args)]
struct Which {
    /// What it is called in the settings.
    name: String,

    /// Why; shown to whoever asks what is paused.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Also if these settings have nothing of that name, as where the relays have others.
    #[arg(long)]
    anyway: bool,
}

/// Let relays deliver to a paused route or destination again.
///
/// Relays notice within a second. Events that were claimed meanwhile, because others were delivered, come within a quarter of the time
/// that the pause took, but two seconds at least and five minutes at most; of very many, the last come two minutes later. All others
/// come at once.
///
/// Exit status: 0 if it is delivered to again; 1 if it was not paused.
#[derive(clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    flags: Flags,

    #[command(subcommand)]
    command: Resume,
}

#[derive(Subcommand)]
enum Resume {
    /// Resume a route.
    Route {
        /// What it is called in the settings.
        name: String,
    },
    /// Resume a destination.
    Destination {
        /// What it is called in the settings.
        name: String,
    },
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let given = Given::read(&args.flags, &[])?;
    let (what, which) = match args.command {
        Command::List { output } => return list(&given, output).await,
        Command::Route(which) => (Paused::Route(which.name.clone()), which),
        Command::Destination(which) => (Paused::Destination(which.name.clone()), which),
    };
    if let Some(reason) = unfit(&what) {
        return Err(Failed::new(Status::CouldNotRun, reason));
    }
    if !which.anyway {
        let ways = given.ways()?;
        let known: Vec<&str> = match &what {
            Paused::Route(_) => ways.routes.iter().map(|route| &*route.name).collect(),
            Paused::Destination(_) => ways.destinations.iter().map(|name| &**name).collect(),
        };
        if !known.contains(&what.name()) {
            tell(format_args!("there is no {what} in these settings, but {known:?}; --anyway pauses it all the same"));
            return Ok(Status::No.into());
        }
    }
    let database = Database::open_existing(&given.database()?).await?;
    match database.admin().pause(&what, which.reason.as_deref()).await? {
        true => say(format_args!("{what} is paused"))?,
        false => say(format_args!("{what} was paused already"))?,
    }
    database.close().await;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn resume(args: ResumeArgs) -> Result<ExitCode, Failed> {
    let settings = Given::read(&args.flags, &[])?.database()?;
    let what = match args.command {
        Resume::Route { name } => Paused::Route(name),
        Resume::Destination { name } => Paused::Destination(name),
    };
    let database = Database::open_existing(&settings).await?;
    let was_paused = database.admin().resume(&what).await?;
    database.close().await;
    if !was_paused {
        tell(format_args!("{what} was not paused"));
        return Ok(Status::No.into());
    }
    say(format_args!("{what} is resumed"))?;
    Ok(ExitCode::SUCCESS)
}

/// Why nothing can be called so.
fn unfit(what: &Paused) -> Option<String> {
    let longest = Paused::LONGEST_NAME;
    (what.name().is_empty() || what.name().chars().count() > longest)
        .then(|| format!("a name has between 1 and {longest} characters"))
}

async fn list(given: &Given, output: Output) -> Result<ExitCode, Failed> {
    let database = Database::open_existing(&given.database()?).await?;
    let mut rows = output.rows(&["KIND", "NAME", "SINCE", "REASON"]);
    for pause in database.admin().pauses().await? {
        let reason = pause.reason.as_deref().map_or_else(|| "-".to_owned(), |reason| cut(reason, 80));
        let cells = vec![kind(&pause.what).to_owned(), pause.what.name().to_owned(), pause.since.to_string(), reason];
        rows.push(cells, document(&pause))?;
    }
    rows.print()?;
    database.close().await;
    Ok(ExitCode::SUCCESS)
}

/// What is paused, for whoever shows it beside something else: not everybody who may see events may see this.
pub(crate) async fn known(store: &dyn AdminStore) -> Vec<Pause> {
    store.pauses().await.unwrap_or_else(|error| {
        tell(format_args!("warning: it cannot be seen what is paused: {}", crate::text_of(&error)));
        Vec::new()
    })
}

/// A pause as JSON.
pub(crate) fn document(pause: &Pause) -> Value {
    json!({
        "kind": kind(&pause.what),
        "name": pause.what.name(),
        "reason": pause.reason,
        "since": pause.since.to_string(),
    })
}
