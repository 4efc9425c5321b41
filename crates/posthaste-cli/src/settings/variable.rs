//! What variables of the environment set.

use std::ffi::{OsStr, OsString};

use posthaste::Options;

use super::fault::{Fault, Origin};
use super::value::{Kind, Table, Value};
use super::{SECTIONS, no_table};

/// How all of them begin.
const PREFIX: &str = "POSTHASTE_";

/// The one that names the file.
pub(super) const FILE: &str = "POSTHASTE_CONFIG";

/// How those go on that this project has for its own tests and runs.
const OF_TESTS: [&str; 7] = ["GOLDEN", "KILL_AT", "NODE_", "SIM_", "TEST_", "TORTURE_", "VICTIM"];

/// What can be set in the tables of the file, but for those that are of a library's making.
const KEYS: &[(&str, &[&str])] = &[
    ("database", &["delete_done", "migrate", "table", "url", "wake_ups"]),
    ("http", &["listen", "sample_interval", "token"]),
    ("log", &["filter", "format"]),
    ("relay", &["on_dead", "ordered"]),
    ("telemetry", &["headers", "interval", "otlp", "service_name"]),
];

/// All that are ours by their names. Their values need not be text.
pub(super) fn all() -> Vec<(String, OsString)> {
    let all = std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value));
    let mut ours: Vec<_> = all.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    ours.sort_unstable();
    ours
}

/// Sets what a variable says: `POSTHASTE_DATABASE_URL`, `POSTHASTE_DESTINATION_ORDERS_URL`.
pub(super) fn set(table: &mut Table, name: &str, value: &OsStr) -> Result<(), Fault> {
    let rest = name.strip_prefix(PREFIX).unwrap_or(name);
    if name == FILE || OF_TESTS.iter().any(|other| rest.starts_with(other)) || is_of_kubernetes(rest, value) {
        return Ok(());
    }
    let (given, rest) = (Variable { name, value }, rest.to_ascii_lowercase());
    if let Some(rest) = rest.strip_prefix("destination_") {
        return given.set_of_destination(table, rest);
    }
    for section in SECTIONS {
        if let Some(key) = rest.strip_prefix(section).and_then(|rest| rest.strip_prefix('_')) {
            let value = given.value(&format!("{section}.{key}"))?;
            return match table.table_mut(section) {
                Some(values) => {
                    put(values, key, value);
                    Ok(())
                }
                None => Err(no_table(table, section)),
            };
        }
    }
    // Who keeps a secret in a variable may call it as he likes.
    if table.iter_values().any(|value| value.refers_to(name)) {
        return Ok(());
    }
    Err(unknown(name))
}

struct Variable<'a> {
    name: &'a str,
    value: &'a OsStr,
}

impl Variable<'_> {
    fn origin(&self) -> Origin {
        Origin::Variable(self.name.to_owned())
    }

    fn value(&self, field: &str) -> Result<Value, Fault> {
        match self.value.to_str() {
            Some(text) => Ok(Value::untyped(text, self.origin())),
            None => Err(Fault::new(&self.origin(), field, "its value is no text: it has to be UTF-8")),
        }
    }

    /// The longest name of a destination that fits is the one that is meant.
    fn set_of_destination(&self, table: &mut Table, rest: &str) -> Result<(), Fault> {
        let destinations = match table.get_mut("destination").map(|value| &mut value.kind) {
            Some(Kind::Table(destinations)) => Some(destinations),
            _ => None,
        };
        let mut fitting: Option<(usize, String, String, &mut Table)> = None;
        for (name, destination) in destinations.into_iter().flat_map(Table::iter_mut) {
            let plain = plain(name);
            let key = rest.strip_prefix(&*plain).and_then(|rest| rest.strip_prefix('_'));
            if let (Some(key), Kind::Table(settings)) = (key, &mut destination.kind)
                && fitting.as_ref().is_none_or(|(length, ..)| *length < plain.len())
            {
                fitting = Some((plain.len(), format!("destination.{name}.{key}"), key.to_owned(), settings));
            }
        }
        match fitting {
            Some((_, field, key, settings)) => {
                put(settings, &key, self.value(&field)?);
                Ok(())
            }
            None => {
                let message =
                    "no destination of the file is called so; it is POSTHASTE_DESTINATION_, its name, _ and the key";
                Err(Fault::new(&self.origin(), "destination", message))
            }
        }
    }
}

/// Sets a key of a table, or of one in it: where there is a table `sasl`, `sasl_password` is the password in it.
fn put(table: &mut Table, key: &str, value: Value) {
    let inner = table.iter_mut().find_map(|(name, inner)| {
        let key = key.strip_prefix(&*plain(name))?.strip_prefix('_').filter(|key| !key.is_empty())?;
        match &mut inner.kind {
            Kind::Table(inner) => Some((inner, key)),
            _ => None,
        }
    });
    match inner {
        Some((inner, key)) => put(inner, key, value),
        None => {
            // As it is called in the file, if it is there.
            let there = table.iter().map(|(name, ..)| name).find(|name| plain(name) == key).map(str::to_owned);
            table.set(there.as_deref().unwrap_or(key), value);
        }
    }
}

/// A name as it is in a variable.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('-', "_")
}

/// Kubernetes tells every process of the services beside it. One that is called posthaste, or posthaste-relay, has our beginning.
fn is_of_kubernetes(rest: &str, value: &OsStr) -> bool {
    let is_of_port = |rest: &str| {
        let (number, protocol) = rest.split_once('_').unwrap_or((rest, ""));
        number.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].iter().any(|known| protocol.starts_with(known))
    };
    // In front of everything is the rest of its name.
    let rest = format!("_{rest}");
    rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.ends_with("_PORT") && value.to_str().is_some_and(|address| address.contains("://"))
        || rest.split_once("_PORT_").is_some_and(|(_, port)| is_of_port(port))
}

/// What to say of a name that nothing has.
fn unknown(name: &str) -> Fault {
    let origin = Origin::Variable(name.to_owned());
    let Some((section, nearest)) = nearest(name) else {
        let message = "nothing is set by it; variables begin with POSTHASTE_DATABASE_, POSTHASTE_DESTINATION_, \
                       POSTHASTE_HTTP_, POSTHASTE_LOG_, POSTHASTE_RELAY_ or POSTHASTE_TELEMETRY_";
        return Fault::new(&origin, "", message);
    };
    Fault::new(&origin, section, format!("nothing is set by it; the nearest that there is is {nearest}"))
}

/// The variable that may be meant, and the table that it is about.
fn nearest(name: &str) -> Option<(&'static str, String)> {
    let options = serde_json::to_value(Options::default()).unwrap_or_default();
    let options = options.as_object().into_iter().flatten().map(|(option, _)| ("relay", option.clone()));
    let own = KEYS.iter().flat_map(|(section, keys)| keys.iter().map(|key| (*section, (*key).to_owned())));
    let named = |(section, key): (&'static str, String)| (section, format!("{PREFIX}{section}_{key}").to_uppercase());
    let known = own.chain(options).map(named).chain([("", FILE.to_owned())]);
    let name = name.to_uppercase();
    // Whoever left out the table has the rest right.
    let end = name.replacen(PREFIX, "_", 1);
    let rated =
        known.map(|(section, known)| (if known.ends_with(&end) { 0 } else { distance(&name, &known) }, section, known));
    let (apart, section, known) = rated.min_by_key(|(apart, ..)| *apart)?;
    (apart <= 4).then_some((section, known))
}

/// How many letters have to be changed, left out or added to make one of the other.
fn distance(one: &str, other: &str) -> usize {
    let mut last: Vec<usize> = (0..=other.chars().count()).collect();
    for (row, letter) in one.chars().enumerate() {
        let (mut diagonal, mut left) = (row, row + 1);
        last[0] = left;
        for (place, of_other) in other.chars().enumerate() {
            let changed = diagonal + usize::from(letter != of_other);
            diagonal = last[place + 1];
            left = changed.min(diagonal + 1).min(left + 1);
            last[place + 1] = left;
        }
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_misspelt_is_told_with_what_may_be_meant() {
        for (name, meant) in [
            ("POSTHASTE_DATABSE_URL", "POSTHASTE_DATABASE_URL"),
            ("POSTHASTE_DATABASEURL", "POSTHASTE_DATABASE_URL"),
            ("POSTHASTE_URL", "POSTHASTE_DATABASE_URL"),
            ("POSTHASTE_WORKERS", "POSTHASTE_RELAY_WORKERS"),
            ("POSTHASTE_RELY_POLL_INTERVAL", "POSTHASTE_RELAY_POLL_INTERVAL"),
            ("POSTHASTE_CONFG", "POSTHASTE_CONFIG"),
        ] {
            let fault = set(&mut Table::default(), name, OsStr::new("x")).unwrap_err().to_string();
            assert!(
                fault.starts_with(&format!("variable {name}: ")) && fault.ends_with(&format!(" {meant}")),
                "{fault}"
            );
        }
        let fault = set(&mut Table::default(), "POSTHASTE_COLOUR_OF_THE_BIKE_SHED", OsStr::new("x")).unwrap_err();
        assert!(fault.to_string().contains("variables begin with POSTHASTE_DATABASE_"), "{fault}");
    }

    #[test]
    fn what_others_have_under_that_beginning_is_left_alone() {
        for (name, value) in [
            ("POSTHASTE_CONFIG", "/etc/posthaste.toml"),
            ("POSTHASTE_TEST_POSTGRES_URL", "postgres://a"),
            ("POSTHASTE_SIM_SEEDS", "300"),
            ("POSTHASTE_SERVICE_HOST", "10.0.0.1"),
            ("POSTHASTE_SERVICE_PORT", "9797"),
            ("POSTHASTE_RELAY_SERVICE_PORT_METRICS", "9797"),
            ("POSTHASTE_PORT", "tcp://10.0.0.1:9797"),
            ("POSTHASTE_RELAY_PORT_9797_TCP", "tcp://10.0.0.1:9797"),
            ("POSTHASTE_PORT_9797_TCP_ADDR", "10.0.0.1"),
        ] {
            let mut table = Table::default();
            set(&mut table, name, OsStr::new(value)).unwrap();
            assert!(table.is_empty(), "{name}");
        }
        // A name that is ours by its looks is refused where it is read.
        let mut table = Table::default();
        set(&mut table, "POSTHASTE_RELAY_PORT", OsStr::new("9797")).unwrap();
        assert!(!table.is_empty());
    }

    #[test]
    fn tables_in_tables_have_variables_too() {
        let mut table = Table::default();
        let (bus, sasl) = (("bus-eu", "destination"), Table::default());
        let mut destination = Table::default();
        destination.set("sasl", Value { origin: Origin::Default, kind: Kind::Table(sasl) });
        let mut destinations = Table::default();
        destinations.set(bus.0, Value { origin: Origin::Default, kind: Kind::Table(destination) });
        table.set(bus.1, Value { origin: Origin::Default, kind: Kind::Table(destinations) });
        set(&mut table, "POSTHASTE_DESTINATION_BUS_EU_SASL_PASSWORD", OsStr::new("hunter2")).unwrap();
        let inner = |table: &Table, key: &str| table.get(key).and_then(Value::as_table).cloned().unwrap();
        let sasl = inner(&inner(&inner(&table, "destination"), "bus-eu"), "sasl");
        assert_eq!(sasl.get("password").and_then(Value::text), Some("hunter2"));
    }
}
