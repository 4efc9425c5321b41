//! Everything that can be set: in a file, over it by variables, over these by flags.

mod database;
mod destination;
mod fault;
mod http;
mod order;
mod route;
mod secret;
mod telemetry;
mod value;
mod variable;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste::Options;
use posthaste::store::Paused;
use serde::Deserialize;

pub(crate) use database::{Database, Missing};
pub(crate) use destination::{Destination, Target};
pub(crate) use fault::{Fault, Faults, Origin};
pub(crate) use http::{Http, Listen};
pub(crate) use order::Order;
pub(crate) use route::Route;
pub(crate) use secret::{hidden, shown};
pub(crate) use telemetry::Telemetry;
pub(crate) use value::{Table, Value};

/// The file that is read if there is one, unless another is named.
pub(crate) const FILE: &str = "posthaste.toml";

/// The tables of the file. Variables are called after these: `POSTHASTE_RELAY_WORKERS`.
const SECTIONS: [&str; 5] = ["database", "http", "log", "relay", "telemetry"];

/// What every command takes that needs settings.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct Flags {
    /// The file with the settings. Default: posthaste.toml in this directory, if there is one.
    #[arg(long, value_name = "PATH", global = true, help_heading = "Settings")]
    pub(crate) config: Option<PathBuf>,

    /// The database: sqlite:…, postgres://… or mysql://…; with a password in it as env:NAME or file:PATH.
    #[arg(long, value_name = "URL", global = true, help_heading = "Settings")]
    pub(crate) database_url: Option<String>,

    /// The table of the outbox.
    #[arg(long, value_name = "NAME", global = true, help_heading = "Settings")]
    pub(crate) table: Option<String>,
}

impl Flags {
    /// The same without the file.
    pub(crate) fn without_file(self) -> Self {
        Self { config: Some(PathBuf::new()), ..self }
    }

    /// What they set: the flag, the table and the key, and the text.
    fn layer(&self) -> impl Iterator<Item = (&'static str, [&'static str; 2], &String)> {
        let url = self.database_url.iter().map(|url| ("--database-url", ["database", "url"], url));
        url.chain(self.table.iter().map(|table| ("--table", ["database", "table"], table)))
    }
}

/// The settings as they were given, before anything is made of them.
pub(crate) struct Given {
    pub(crate) file: Option<PathBuf>,
    pub(crate) table: Table,
    /// What is wrong with variables and secrets.
    faults: Vec<Fault>,
}

/// All settings.
pub(crate) struct Settings {
    pub(crate) database: Database,
    pub(crate) relay: Options,
    pub(crate) order: Order,
    pub(crate) log: Log,
    pub(crate) http: Http,
    pub(crate) telemetry: Telemetry,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) routes: Arc<[Route]>,
}

impl Settings {
    /// Whether that pause keeps events from a route: one of its own, or of a destination that it leads to.
    pub(crate) fn holds(&self, paused: &Paused, route: &Route) -> bool {
        route.is_held_by(paused, |place| &self.destinations[place].name)
    }

    /// Whether nobody has said where events go, which may have been forgotten where others write them: who tries it out has a file.
    pub(crate) fn prints_what_a_server_has(&self) -> bool {
        self.database.is_on_server() && !self.destinations.iter().any(Destination::is_given)
    }
}

/// Which events go to which destinations.
pub(crate) struct Ways {
    /// What they are called.
    pub(crate) destinations: Vec<String>,
    pub(crate) routes: Vec<Route>,
}

/// What a relay says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// Lines for people, or JSON for programs.
    pub(crate) format: LogFormat,
    /// What is told, as in `RUST_LOG`.
    pub(crate) filter: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

impl LogFormat {
    /// What a variable says of it, for whoever cannot read the settings.
    pub(crate) fn of_environment() -> Option<Self> {
        let said = std::env::var("POSTHASTE_LOG_FORMAT").ok()?;
        <Self as clap::ValueEnum>::from_str(&said, false).ok()
    }
}

impl Given {
    /// Reads the file, if there is one, then the variables, then the flags; and what they refer to.
    pub(crate) fn read(flags: &Flags, more: &[(&'static str, [&'static str; 2], String)]) -> Result<Self, Faults> {
        let variables = variable::all();
        let by_variable = variables.iter().find(|(name, _)| name == variable::FILE);
        let by_variable = by_variable.map(|(name, path)| (PathBuf::from(path), Origin::Variable(name.clone())));
        let by_flag = flags.config.clone().map(|path| (path, Origin::Flag("--config")));
        let (file, mut table) = read_file(by_flag.or(by_variable))?;
        let set = |(name, value): &(String, OsString)| variable::set(&mut table, name, value).err();
        let mut faults: Vec<Fault> = variables.iter().filter_map(set).collect();
        let more = more.iter().map(|(flag, place, text)| (*flag, *place, text));
        for (flag, [section, key], text) in flags.layer().chain(more) {
            match table.table_mut(section) {
                Some(table) => table.set(key, Value::untyped(text, Origin::Flag(flag))),
                None => faults.push(no_table(&table, section)),
            }
        }
        let home = file.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
        secret::resolve(&mut table, &home, &mut faults);
        Ok(Self { file, table, faults })
    }

    /// The settings of the database alone, for commands that need no others. What is wrong with others is no concern of theirs: a
    /// secret of a destination need not be where they are run.
    pub(crate) fn database(&self) -> Result<Database, Fault> {
        if let Some(fault) = self.faults.iter().find(|fault| fault.is_about("database")) {
            return Err(fault.clone());
        }
        Database::of(self.table.get("database"))
    }

    /// The same for whoever has something to do before he connects: what would be refused then is refused now.
    pub(crate) fn database_to_connect(&self) -> Result<Database, Fault> {
        self.database()?;
        Database::to_connect(self.table.get("database"))
    }

    /// Which way events go, for commands that send nothing. What else belongs to destinations, secrets included, is not looked at.
    pub(crate) fn ways(&self) -> Result<Ways, Faults> {
        let mut faults = Vec::new();
        let destinations = destination::names(self.table.get("destination"));
        let relay = self.part("relay", &mut Vec::new(), relay);
        let routes = self.routes(&destinations, relay.as_ref(), &mut faults);
        Faults::check(faults)?;
        Ok(Ways { destinations: destinations.into_iter().map(|(name, _)| name.to_owned()).collect(), routes })
    }

    /// All settings, or everything that is wrong with them.
    pub(crate) fn settings(&self) -> Result<Settings, Faults> {
        self.with_database(Database::of)
    }

    /// The same for a relay, and for whoever asks whether one could run: also what a database would be refused for before anybody
    /// is connected to. Whoever only shows the settings, or tells more about the database, goes without.
    pub(crate) fn settings_to_connect(&self) -> Result<Settings, Faults> {
        self.with_database(Database::to_connect)
    }

    fn with_database(&self, read: impl Fn(Option<&Value>) -> Result<Database, Fault>) -> Result<Settings, Faults> {
        let mut faults = self.faults.clone();
        for (key, origin, _) in self.table.iter() {
            if !SECTIONS.contains(&key) && !["destination", "route"].contains(&key) {
                let message =
                    "there is no such table; there are database, destination, http, log, relay, route and telemetry";
                faults.push(Fault::new(origin, key, message));
            }
        }
        let http = self.part("http", &mut faults, Http::of);
        let telemetry = self.part("telemetry", &mut faults, Telemetry::of);
        let database = self.part("database", &mut faults, read);
        let relay = self.part("relay", &mut faults, relay);
        let log = self.part("log", &mut faults, Log::of);
        let destinations = destination::all(self.table.get("destination"), &mut faults);
        // Those that are wrong are there all the same.
        let names = destination::names(self.table.get("destination"));
        let routes = self.routes(&names, relay.as_ref(), &mut faults);
        Faults::check(faults)?;
        let complete = "what is missing has a fault";
        let (relay, order) = relay.expect(complete);
        Ok(Settings {
            database: database.expect(complete),
            relay,
            order,
            log: log.expect(complete),
            http: http.expect(complete),
            telemetry: telemetry.expect(complete),
            destinations,
            routes: routes.into(),
        })
    }

    /// What a table of the file makes, with everything that is wrong with it.
    fn part<T>(
        &self,
        name: &str,
        faults: &mut Vec<Fault>,
        read: impl Fn(Option<&Value>) -> Result<T, Fault>,
    ) -> Option<T> {
        match self.table.get(name) {
            Some(value) => value.read_through(name, faults, |value| read(Some(value))),
            None => read(None).map_err(|fault| faults.push(fault)).ok(),
        }
    }

    /// How what is told looks, as far as that can be seen where something else is wrong.
    pub(crate) fn log_format(&self) -> LogFormat {
        let format = self.table.get("log").and_then(Value::as_table).and_then(|log| log.get("format"));
        format.and_then(|format| format.read("log.format").ok()).unwrap_or_default()
    }

    fn routes(
        &self,
        destinations: &[(&str, &Origin)],
        relay: Option<&(Options, Order)>,
        faults: &mut Vec<Fault>,
    ) -> Vec<Route> {
        let retry = relay.map_or_else(|| Options::default().retry_policy(), |(options, _)| options.retry_policy());
        // Where the relay's own settings are wrong, nobody knows whether there is order.
        let in_order = relay.is_none_or(|(_, order)| order.ordered.is_some());
        route::all(self.table.get("route"), destinations, (&retry, in_order), faults)
    }
}

fn relay(given: Option<&Value>) -> Result<(Options, Order), Fault> {
    let Some(given) = given else { return Ok(Default::default()) };
    let mut relay = given.clone();
    let order = Order::take(&mut relay)?;
    let options: Options = relay.read("relay")?;
    options.check().map_err(|error| {
        let value = given.as_table().and_then(|table| table.get(error.option()));
        let origin = value.map_or(&Origin::Default, |value| &value.origin);
        Fault::new(origin, format!("relay.{}", error.option()), error.to_string())
    })?;
    Ok((options, order))
}

impl Log {
    fn of(given: Option<&Value>) -> Result<Self, Fault> {
        let Some(given) = given else { return Ok(Self::default()) };
        let log: Self = given.read("log")?;
        let Some(filter) = &log.filter else { return Ok(log) };
        match tracing_subscriber::EnvFilter::builder().parse(filter) {
            Ok(_) => Ok(log),
            Err(error) => {
                let value = given.as_table().and_then(|table| table.get("filter"));
                let origin = value.map_or(&Origin::Default, |value| &value.origin);
                let message = format!("{error}; it looks like \"info\" or \"warn,posthaste=debug\"");
                Err(Fault::new(origin, "log.filter", message))
            }
        }
    }
}

fn read_file(named: Option<(PathBuf, Origin)>) -> Result<(Option<PathBuf>, Table), Fault> {
    let (path, named_by) = match named {
        // An empty name is that of no file at all.
        Some((path, _)) if path.as_os_str().is_empty() => return Ok((None, Table::default())),
        Some(named) => named,
        None if Path::new(FILE).exists() => (PathBuf::from(FILE), Origin::Default),
        None => return Ok((None, Table::default())),
    };
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Fault::new(&named_by, "", format!("{shown} cannot be read: {error}")))?;
    let table = Table::parse(&shown, &text)?;
    Ok((Some(path), table))
}

fn no_table(table: &Table, section: &str) -> Fault {
    let origin = table.get(section).map_or(&Origin::Default, |value| &value.origin);
    Fault::new(origin, section, format!("this must be a table: write [{section}] and what belongs to it below"))
}
