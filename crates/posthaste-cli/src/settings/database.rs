//! Where the outbox is.

use std::path::Path;

use posthaste::TableName;
use serde::Deserialize;

use super::fault::{Fault, Origin};
use super::value::Value;

/// Where the outbox is if nobody says: a file in this directory.
const HERE: &str = "sqlite:posthaste.db";

/// Where the outbox is.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) table: String,
    /// Whether a relay creates and upgrades the table at its start.
    pub(crate) migrate: bool,
    /// Whether what is DONE is deleted instead of kept.
    pub(crate) delete_done: bool,
    /// Whether PostgreSQL tells of new rows.
    pub(crate) wake_ups: bool,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: HERE.to_owned(),
            table: TableName::DEFAULT.to_owned(),
            migrate: false,
            delete_done: false,
            wake_ups: true,
        }
    }
}

impl Database {
    /// The file of an outbox that nobody has named and nobody has made yet.
    pub(crate) fn missing_file(&self) -> Option<&'static str> {
        let file = HERE.strip_prefix("sqlite:").filter(|_| self.url == HERE)?;
        (!Path::new(file).exists()).then_some(file)
    }

    pub(super) fn of(given: Option<&Value>) -> Result<Self, Fault> {
        let Some(given) = given else { return Ok(Self { migrate: true, ..Self::default() }) };
        let mut database: Self = given.read("database")?;
        let of = |key| given.as_table().and_then(|table| table.get(key));
        // Whoever names no database has none to protect.
        if of("url").is_none() && of("migrate").is_none() {
            database.migrate = true;
        }
        let wrong = |key: &'static str, error: posthaste::store::Error| {
            let origin = of(key).map_or(&Origin::Default, |value| &value.origin);
            Fault::new(origin, format!("database.{key}"), error.to_string())
        };
        posthaste::detect(&database.url).map_err(|error| wrong("url", error))?;
        TableName::parse(&database.table).map_err(|error| wrong("table", error))?;
        Ok(database)
    }
}
