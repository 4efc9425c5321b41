//! Where the outbox is.

use std::io::ErrorKind;
use std::path::Path;

use posthaste::TableName;
use serde::Deserialize;
use sqlx::sqlite::SqliteConnectOptions;

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

/// What is not there of an outbox on SQLite, in words.
pub(crate) enum Missing {
    /// The file; a relay or `migrate` makes it.
    File(String),
    /// A place for it, which nobody makes.
    Directory(String),
}

impl Missing {
    pub(crate) fn reason(&self) -> &str {
        let (Self::File(reason) | Self::Directory(reason)) = self;
        reason
    }
}

impl Database {
    /// Whether the outbox is in the file of this directory where it is if nobody says.
    pub(crate) fn is_here(&self) -> bool {
        self.url == HERE
    }

    /// Whether it is none of SQLite.
    pub(crate) fn is_on_server(&self) -> bool {
        self.url.split_once(':').is_some_and(|(scheme, _)| !scheme.eq_ignore_ascii_case("sqlite"))
    }

    /// How to open the file of an outbox on SQLite, as it is.
    pub(crate) fn file(&self) -> Option<SqliteConnectOptions> {
        let (scheme, rest) = self.url.split_once(':')?;
        let is_sqlite = scheme.eq_ignore_ascii_case("sqlite");
        is_sqlite.then(|| format!("sqlite:{rest}").parse::<SqliteConnectOptions>().ok()).flatten()
    }

    /// What of an outbox on SQLite is not there yet.
    pub(crate) fn missing(&self) -> Option<Missing> {
        if self.url.contains(":memory:") || self.url.contains("mode=memory") {
            return None;
        }
        let options = self.file()?;
        let file = options.get_filename();
        if file.is_dir() {
            return Some(Missing::Directory(format!("{} is a directory; name a file in it", file.display())));
        }
        // What may not be looked at may be there.
        let is_missing = |path: &Path| match path.metadata() {
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
            Ok(_) => false,
        };
        let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
        if let Some(directory) = directory.filter(|directory| is_missing(directory) || directory.is_file()) {
            let reason = format!("there is no directory {}; make it, or correct the path", directory.display());
            return Some(Missing::Directory(reason));
        }
        let shown = file.display();
        is_missing(file).then(|| match self.is_here() {
            true => Missing::File(format!("there is no {shown} in this directory, and no other database is given")),
            false => Missing::File(format!("there is no file {shown}")),
        })
    }

    pub(super) fn of(given: Option<&Value>) -> Result<Self, Fault> {
        let Some(given) = given else { return Ok(Self { migrate: true, ..Self::default() }) };
        let mut database: Self = given.read("database")?;
        let is_said = |key| given.as_table().is_some_and(|table| table.get(key).is_some());
        // Whoever names no database has none to protect.
        if !is_said("url") && !is_said("migrate") {
            database.migrate = true;
        }
        posthaste::detect(&database.url).map_err(|error| wrong(Some(given), "url", error.to_string()))?;
        TableName::parse(&database.table).map_err(|error| wrong(Some(given), "table", error.to_string()))?;
        Ok(database)
    }

    /// The same for whoever is to connect there. What no server has to be asked for is looked at before: whether the driver understands
    /// the URL, whether the files that it names can be read, and whether there is a place for the file of SQLite.
    pub(super) fn to_connect(given: Option<&Value>) -> Result<Self, Fault> {
        let database = Self::of(given)?;
        posthaste::check_url(&database.url).map_err(|error| wrong(given, "url", error.to_string()))?;
        match database.missing() {
            Some(Missing::Directory(reason)) => Err(wrong(given, "url", reason)),
            Some(Missing::File(_)) | None => Ok(database),
        }
    }
}

/// What is wrong with a key, where it stands.
fn wrong(given: Option<&Value>, key: &str, message: String) -> Fault {
    let value = given.and_then(Value::as_table).and_then(|table| table.get(key));
    Fault::new(value.map_or(&Origin::Default, |value| &value.origin), format!("database.{key}"), message)
}
