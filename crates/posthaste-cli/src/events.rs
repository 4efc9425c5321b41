//! `posthaste events`: what is in the table, and a way to write into it by hand.

mod waiting;

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use posthaste::store::{Cursor, Filter, Order, Page, Pause, Record, Store};
use posthaste::{Event, EventBuilder, EventId, Outbox, Status};
use serde_json::Value;
use tokio::time::Instant;

use crate::database::{Database, with_store};
use crate::exit::{self, Failed};
use crate::output::{Form, Output, plain, print, say, tell};
use crate::pause;
use crate::rows::{self, Wanted};
use crate::settings::{Flags, Given, Ways};

/// List, show, write or follow events.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List events, oldest first.
    List {
        #[command(flatten)]
        wanted: Wanted,

        /// Of this status (new, retry, done, dead); may be given several times.
        #[arg(long, value_name = "STATUS", value_parser = rows::status)]
        status: Vec<Status>,

        /// Newest first.
        #[arg(long)]
        newest: bool,

        /// How many at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,

        #[command(flatten)]
        output: Output,
    },
    /// Show everything of one event, the payload and why it is not delivered yet included.
    ///
    /// Exit status: 0 if it was found, 1 if there is none with that id.
    Show {
        /// Its id.
        #[arg(value_parser = rows::id)]
        id: EventId,

        #[command(flatten)]
        output: Output,
    },
    /// Write an event, in a transaction of its own, and print its id.
    Write(Box<Write>),
    /// Print events as they are written, until Ctrl-C.
    ///
    /// A filter is compared with what is new. An error comes long after its row, so with --error all rows since the last one that was
    /// printed are compared each time; after a look that takes long the next one waits ten times as long.
    Tail {
        #[command(flatten)]
        wanted: Wanted,

        /// How many of those that are there already to begin with.
        #[arg(long, value_name = "N", default_value_t = 10)]
        lines: usize,

        /// How often to look, at most.
        #[arg(long, value_name = "LENGTH", default_value = "500ms", value_parser = rows::length)]
        interval: Duration,

        /// The form: a line for people or a line of JSON.
        #[command(flatten)]
        output: Output,
    },
}

/// What an event is made of.
#[derive(clap::Args)]
struct Write {
    /// The payload as JSON. Default: read from standard input.
    payload: Option<String>,

    /// What happened, such as OrderPlaced.
    #[arg(long = "type", value_name = "NAME")]
    event_type: String,

    /// What it happened to, such as Order.
    #[arg(long, value_name = "NAME")]
    aggregate_type: Option<String>,

    /// To which one of them.
    #[arg(long, value_name = "ID")]
    aggregate_id: Option<String>,

    /// Whose it is.
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,

    /// What {topic} stands for in addresses.
    #[arg(long, value_name = "NAME")]
    topic: Option<String>,

    /// A header; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,

    /// Its id. Default: a new one.
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Deliver it no sooner than after so long.
    #[arg(long, value_name = "LENGTH", value_parser = rows::length)]
    after: Option<Duration>,

    /// The payload is not JSON but bytes of this type.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a header looks like NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let given = Given::read(&args.flags, &[])?;
    let settings = given.database()?;
    let database = match args.command {
        Command::Write(_) => Database::open_to_write(&settings).await?,
        _ => Database::open_existing(&settings).await?,
    };
    let ended = match args.command {
        Command::List { wanted, status, newest, limit, output } => {
            let order = if newest { Order::NewestFirst } else { Order::OldestFirst };
            let filter = wanted.filter(status, &database).await?;
            rows::list(database.admin(), &filter, (order, Some(limit)), output).await
        }
        Command::Show { id, output } => show(&database, &given, &id, output).await,
        Command::Write(event) => with_store!(&database, store => write(store.clone(), *event).await),
        Command::Tail { wanted, lines, interval, output } => {
            let filter = wanted.filter(Vec::new(), &database).await?;
            tail(&database, &filter, lines, interval, output).await
        }
    };
    database.close().await;
    ended
}

async fn show(database: &Database, given: &Given, id: &EventId, output: Output) -> Result<ExitCode, Failed> {
    let Some(record) = database.admin().find(id).await? else {
        tell(format_args!("there is no event {id}"));
        return Ok(exit::Status::No.into());
    };
    let reasons = waiting::reasons(database, &record).await?;
    let mut document = rows::document(&record, true);
    if let (Ok(event), Ok(ways)) = (&record.event, given.ways()) {
        add_way(&mut document, &record, event, &ways, &pause::known(database.admin()).await);
    }
    let fields = document.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let lines = fields.map(|(name, value)| (name.clone(), text(value)));
    let lines: Vec<_> = lines.chain(reasons.iter().map(|reason| ("waiting".to_owned(), reason.text.clone()))).collect();
    let lines: Vec<(&str, String)> = lines.iter().map(|(name, text)| (&**name, text.clone())).collect();
    document["waiting"] = reasons.into_iter().map(|reason| reason.document).collect();
    output.one(&lines, &document)?;
    Ok(ExitCode::SUCCESS)
}

/// Adds which way these settings would send it, and what keeps it from going.
fn add_way(document: &mut Value, record: &Record, event: &Event, ways: &Ways, pauses: &[Pause]) {
    let Some(route) = ways.routes.iter().find(|route| route.fits(event)) else {
        document["route"] = Value::Null;
        return;
    };
    let to: Vec<&str> = route.to.iter().map(|&place| &*ways.destinations[place]).collect();
    if !record.state.status.is_final() {
        let holds = |pause: &&Pause| route.is_held_by(&pause.what, |place| &ways.destinations[place]);
        let held: Vec<String> = pauses.iter().filter(holds).map(|pause| pause.what.to_string()).collect();
        if !held.is_empty() {
            document["paused"] = held.join(", ").into();
        }
    }
    document["route"] = route.name.clone().into();
    document["destinations"] = to.into();
}

async fn write<S: Store>(store: S, given: Write) -> Result<ExitCode, Failed> {
    let event = given.event()?;
    let outbox = Outbox::writer_only(store).start().await.map_err(anyhow::Error::from)?;
    let mut tx = outbox.begin().await?;
    let written = tx.write(event).await.map_err(|error| match error {
        posthaste::WriteError::Store { error, .. } => Failed::from(error),
        error => Failed::from(anyhow::Error::from(error)),
    })?;
    tx.commit().await.map_err(|error| Failed { status: exit::Status::Database, error: error.into() })?;
    // Lets the relays hear of it.
    outbox.shutdown().await;
    if let Some(id) = written {
        say(id)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Write {
    fn event(self) -> Result<EventBuilder, Failed> {
        let payload = match self.payload {
            Some(payload) => payload.into_bytes(),
            None => {
                let mut payload = Vec::new();
                std::io::stdin().read_to_end(&mut payload).context("the payload cannot be read")?;
                payload
            }
        };
        let mut event = Event::builder(&*self.event_type).headers(self.header);
        if let Some(aggregate_type) = &self.aggregate_type {
            event = event.aggregate_type(&**aggregate_type);
        }
        if let Some(aggregate_id) = self.aggregate_id {
            event = event.aggregate_id(aggregate_id);
        }
        if let Some(tenant) = self.tenant {
            event = event.tenant_id(tenant);
        }
        if let Some(topic) = self.topic {
            event = event.topic(topic);
        }
        if let Some(id) = self.id {
            event = event.id(id);
        }
        if let Some(after) = self.after {
            event = event.deliver_after(after);
        }
        Ok(match self.content_type {
            Some(content_type) => event.content_type(content_type).bytes(payload),
            None => event.json_text(String::from_utf8(payload).context("the payload is no text; give --content-type")?),
        })
    }
}

/// For how long rows of transactions that were slower than others are looked for: numbers are given before the commit.
const LATE: Duration = Duration::from_secs(10);

/// To look is work for the database. One that finds nothing is repeated after so many times as long as it took.
const REST: u32 = 10;

async fn tail(
    database: &Database,
    filter: &Filter,
    lines: usize,
    interval: Duration,
    output: Output,
) -> Result<ExitCode, Failed> {
    let store = database.admin();
    // One row more, to know where those begin that are not wanted.
    let last = Page { limit: lines + 1, after: None, order: Order::NewestFirst };
    let mut there = store.list(filter, &last).await?;
    let mut from = if there.len() > lines { there.pop().map(|record| Cursor::from(&record)) } else { None };
    let (mut recent, mut seen) = (VecDeque::new(), BTreeSet::new());
    let top = Page { limit: 1, after: None, order: Order::NewestFirst };
    loop {
        // What does not fit moves the place to look from, too: where nothing fits, all that there is would be looked at each time. An
        // error comes long after its row.
        let mark = match filter.error_contains {
            None => store.list(&Filter::default(), &top).await?.first().map(|record| record.state.seq),
            Some(_) => None,
        };
        let mut page = Page { limit: 500, after: from, order: Order::OldestFirst };
        let took = loop {
            let begun = Instant::now();
            let records = store.list(filter, &page).await?;
            let Some(newest) = records.last() else { break begun.elapsed() };
            page.after = Some(Cursor::from(newest));
            for record in records {
                if seen.insert(record.state.seq) {
                    recent.push_back((Instant::now(), record.state.seq));
                    let line = match output.form() {
                        Form::Table => plain(&rows::cells(&record).join("  ")),
                        // A document that never ends would be of no use.
                        Form::Json | Form::Ndjson => rows::document(&record, true).to_string(),
                    };
                    print(format_args!("{line}\n"))?;
                }
            }
        };
        recent.extend(mark.map(|seq| (Instant::now(), seq)));
        while let Some((_, seq)) = recent.pop_front_if(|(at, _)| at.elapsed() > LATE) {
            seen.remove(&seq);
            from = Some(Cursor(from.map_or(seq, |Cursor(from)| from.max(seq))));
        }
        tokio::time::sleep(interval.max(took * REST)).await;
    }
}
