//! `posthaste config`: whether the settings are right, and what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use clap::Subcommand;

use crate::doctor;
use crate::exit::{Failed, Status};
use crate::output::{self, say, tell};
use crate::relay::{Connected, Holds, mistakes, registry};
use crate::settings::{Destination, Flags, Given, Origin, Table, Target, Value, hidden};

/// Check the settings, or show them.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say everything that is wrong with the settings, with line and field. Nobody is connected to.
    ///
    /// Where the file is no TOML, only the first place is said.
    ///
    /// Exit status: 0 if nothing is wrong, 3 if something is.
    Check,
    /// Show every setting that counts and where it comes from. Secrets are not shown.
    Print,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let given = Given::read(&args.flags, &[])?;
    match args.command {
        Command::Check => check(&given).await,
        Command::Print => print(&given),
    }
}

async fn check(given: &Given) -> Result<ExitCode, Failed> {
    let settings = match given.settings_to_connect() {
        Ok(settings) => settings,
        Err(faults) => {
            for fault in faults.iter() {
                tell(format_args!("error: {fault}"));
            }
            return Ok(Status::Settings.into());
        }
    };
    let (mut connected, mut is_wrong) = (Vec::with_capacity(settings.destinations.len()), false);
    for destination in &settings.destinations {
        if let Target::Lines(options) = &destination.target
            && let Some(path) = options.path()
            && let Err(error) = doctor::can_be_written(path)
        {
            let fault = destination.fault(format!("{} cannot be written to: {error}", path.display()));
            tell(format_args!("error: {fault}"));
            is_wrong = true;
        }
        let made = Connected::new(destination, false).await.map_err(|failed| {
            tell(format_args!("error: {}", crate::text(&failed.error)));
            is_wrong = true;
        });
        connected.push(made.ok());
    }
    for fault in mistakes(&settings, &connected) {
        tell(format_args!("error: {fault}"));
        is_wrong = true;
    }
    if is_wrong {
        return Ok(Status::Settings.into());
    }
    let connected: Vec<Connected> = connected.into_iter().flatten().collect();
    registry(&settings, &connected, &Holds::new(&settings), None)?;
    let used: BTreeSet<usize> = settings.routes.iter().flat_map(|route| route.to.iter().copied()).collect();
    for (place, destination) in settings.destinations.iter().enumerate() {
        if !used.contains(&place) {
            tell(format_args!(
                "warning: {}: destination.{}: no route leads there",
                destination.origin, destination.name
            ));
        }
    }
    let from = given.file.as_ref().map_or("there is no file".to_owned(), |file| file.display().to_string());
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    say(format_args!(
        "{from}: nothing is wrong; {}, {}",
        counted(settings.destinations.len(), "destination"),
        counted(settings.routes.len(), "route")
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A line for each value: what it is, and where it comes from.
fn print(given: &Given) -> Result<ExitCode, Failed> {
    let settings = given.settings()?;
    let mut lines = Vec::new();
    let database = given.table.get("database").and_then(Value::as_table);
    let of = &settings.database;
    let defaults = [
        ("delete_done", of.delete_done.to_string()),
        ("migrate", of.migrate.to_string()),
        ("table", format!("{:?}", of.table)),
        ("url", format!("{:?}", crate::settings::shown(&of.url))),
        ("wake_ups", of.wake_ups.to_string()),
    ];
    push_section(&mut lines, "database", database, defaults);
    let of = &settings.http;
    let http = [
        ("listen", format!("{:?}", of.listen.to_string())),
        ("sample_interval", format!("{:?}", format!("{:?}", of.sample_interval))),
    ];
    let token = of.token.as_ref().map(|_| ("token", String::new()));
    push_section(&mut lines, "http", given.table.get("http").and_then(Value::as_table), http.into_iter().chain(token));
    let of = &settings.telemetry;
    let telemetry = [
        ("interval", format!("{:?}", format!("{:?}", of.interval))),
        ("service_name", format!("{:?}", of.service_name)),
    ];
    let headers = (!of.headers.is_empty()).then(|| ("headers", String::new()));
    let otlp = of.otlp.as_ref().map(|_| ("otlp", String::new()));
    let mut telemetry: Vec<_> = telemetry.into_iter().chain(headers).chain(otlp).collect();
    telemetry.sort_unstable();
    push_section(&mut lines, "telemetry", given.table.get("telemetry").and_then(Value::as_table), telemetry);
    let format = format!("{:?}", settings.log.format).to_lowercase();
    let filter = settings.log.filter.as_deref().unwrap_or("warn,posthaste=info");
    let log = [("filter", format!("{filter:?}")), ("format", format!("{format:?}"))];
    push_section(&mut lines, "log", given.table.get("log").and_then(Value::as_table), log);
    let relay = set_in(serde_json::to_value(&settings.relay));
    let order = [("on_dead", format!("{:?}", settings.order.on_dead.name())), ("ordered", settings.order.shown())];
    let mut relay: Vec<_> = relay.iter().map(|(key, value)| (&**key, value.clone())).chain(order).collect();
    relay.sort_unstable();
    push_section(&mut lines, "relay", given.table.get("relay").and_then(Value::as_table), relay);
    let destinations = given.table.get("destination").and_then(Value::as_table);
    for destination in &settings.destinations {
        let given = destinations.and_then(|all| all.get(&destination.name)).and_then(Value::as_table);
        push_destination(&mut lines, destination, given);
    }
    let routes = given.table.get("route");
    for (place, route) in settings.routes.iter().enumerate() {
        let to: Vec<&str> = route.to.iter().map(|&place| &*settings.destinations[place].name).collect();
        let mut line = format!("route[{}] = {{ name = {:?}", place + 1, route.name);
        let as_given = |key| routes.and_then(|routes| routes.item(place)).and_then(Value::as_table)?.get(key);
        match as_given("match") {
            Some(matching) => line += &format!(", match = {}", hidden("match", matching)),
            None => line += ", match = {}",
        }
        line += &format!(", to = {to:?}, retry = {:?}", format!("{:?}", route.retry));
        // Without one, that of each destination counts.
        if let Some(envelope) = as_given("envelope") {
            line += &format!(", envelope = {}", hidden("envelope", envelope));
        }
        if let Some(rate) = route.rate {
            line += &format!(", rate = \"{}/{:?}\"", rate.events, rate.period);
        }
        if let Some(concurrency) = route.concurrency {
            line += &format!(", concurrency = {concurrency}");
        }
        if let Some(policy) = route.on_dead {
            line += &format!(", on_dead = {:?}", policy.name());
        }
        lines.push((line + " }", routes.map_or(Origin::Default, |routes| routes.place(place).clone())));
    }
    let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= 60).max().unwrap_or(0);
    let text: String = lines.iter().map(|(line, origin)| format!("{line:width$}  # {origin}\n")).collect();
    output::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// What was given of a section, and of the rest what counts instead.
fn push_section<'a>(
    lines: &mut Vec<(String, Origin)>,
    name: &str,
    given: Option<&Table>,
    effective: impl IntoIterator<Item = (&'a str, String)>,
) {
    for (key, value) in effective {
        match given.and_then(|given| given.get(key)) {
            Some(given) => lines.push((format!("{name}.{key} = {}", hidden(key, given)), given.origin.clone())),
            None => lines.push((format!("{name}.{key} = {value}"), Origin::Default)),
        }
    }
}

/// What was given of a destination, and of the rest what counts instead.
fn push_destination(lines: &mut Vec<(String, Origin)>, destination: &Destination, given: Option<&Table>) {
    let mut shown: BTreeMap<String, (String, Origin)> = set_in(destination.target.shown())
        .into_iter()
        .chain([("envelope".to_owned(), "\"plain\"".to_owned()), ("type".to_owned(), "\"stdout\"".to_owned())])
        .map(|(key, value)| (key, (value, Origin::Default)))
        .collect();
    // Within, all are: only this command waits for them.
    if let Some((value, _)) = shown.get_mut("lazy") {
        *value = destination.lazy.to_string();
    }
    for (key, _, value) in given.into_iter().flat_map(Table::iter) {
        shown.insert(key.to_owned(), (hidden(key, value), value.origin.clone()));
    }
    for (key, (value, origin)) in shown {
        lines.push((format!("destination.{}.{key} = {value}", destination.name), origin));
    }
}

/// Every option with its value; those that are not set are left out.
fn set_in(options: serde_json::Result<serde_json::Value>) -> Vec<(String, String)> {
    let all = options.expect("options are plain data");
    let all = all.as_object().expect("options are a struct");
    let set = all.iter().filter(|(_, value)| !value.is_null());
    set.map(|(key, value)| (key.clone(), value.to_string())).collect()
}
