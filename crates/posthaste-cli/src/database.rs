//! The database of an outbox, whichever it is.

use posthaste::Event;
use posthaste::store::{self, AdminStore, Lane, RelayStore};
use posthaste::{MySqlStore, PgStore, Scheme, SqliteStore};

use crate::settings;

/// An open database.
#[derive(Clone)]
pub(crate) enum Database {
    Sqlite(SqliteStore),
    Postgres(PgStore),
    MySql(MySqlStore),
}

/// Does the same with whichever store there is.
macro_rules! with_store {
    ($database:expr, $store:ident => $do:expr) => {
        match $database {
            $crate::database::Database::Sqlite($store) => $do,
            $crate::database::Database::Postgres($store) => $do,
            $crate::database::Database::MySql($store) => $do,
        }
    };
}

pub(crate) use with_store;

impl Database {
    /// Connects.
    pub(crate) async fn open(settings: &settings::Database) -> Result<Self, store::Error> {
        let (url, table) = (&*settings.url, &*settings.table);
        Ok(match posthaste::detect(url)? {
            Scheme::Sqlite => {
                let store = SqliteStore::connect(url).await?.with_table(table)?;
                Self::Sqlite(if settings.delete_done { store.deleting_done() } else { store })
            }
            Scheme::MySql => {
                let store = MySqlStore::connect(url).await?.with_table(table)?;
                Self::MySql(if settings.delete_done { store.deleting_done() } else { store })
            }
            _ => {
                let store = PgStore::connect(url).await?.with_table(table)?;
                let store = if settings.delete_done { store.deleting_done() } else { store };
                Self::Postgres(if settings.wake_ups { store } else { store.without_wake_ups() })
            }
        })
    }

    /// Connects to one that is there already: whoever only looks makes no new file by it.
    pub(crate) async fn open_existing(settings: &settings::Database) -> Result<Self, store::Error> {
        if let Some(file) = settings.missing_file() {
            let reason = format!("there is no {file} in this directory, and no other database is given");
            return Err(store::Error::Schema { table: settings.table.clone(), reason });
        }
        Self::open_ready(settings).await
    }

    /// Connects to one whose table is there and up to date, or is brought there.
    pub(crate) async fn open_ready(settings: &settings::Database) -> Result<Self, store::Error> {
        let database = Self::open(settings).await?;
        database.check_schema(settings).await?;
        Ok(database)
    }

    /// Brings the table up to date if the settings say so, and checks that it is.
    pub(crate) async fn check_schema(&self, settings: &settings::Database) -> Result<(), store::Error> {
        if settings.migrate {
            return self.migrate().await;
        }
        match self.pending_migration_sql().await?.is_empty() {
            true => Ok(()),
            false => Err(store::Error::Schema {
                table: settings.table.clone(),
                reason: "it is not there, or of an older version".to_owned(),
            }),
        }
    }

    pub(crate) fn admin(&self) -> &dyn AdminStore {
        with_store!(self, store => store)
    }

    /// The lane of an event, where rows have one.
    pub(crate) async fn lane_of(&self, event: &Event) -> Option<Lane> {
        with_store!(self, store => {
            let lanes = RelayStore::lanes(store)?;
            // Asks the database how it finds them.
            lanes.count_lanes().await.ok()?;
            lanes.lane_of(event)
        })
    }

    /// Whether the table is prepared for order.
    pub(crate) async fn count_lanes(&self) -> Result<(), store::Error> {
        with_store!(self, store => match RelayStore::lanes(store) {
            Some(lanes) => lanes.count_lanes().await.map(drop),
            None => Ok(()),
        })
    }

    /// Prepares the table for order.
    pub(crate) async fn prepare_lanes(&self) -> Result<(), store::Error> {
        with_store!(self, store => store.prepare_lanes().await)
    }

    pub(crate) async fn migrate(&self) -> Result<(), store::Error> {
        with_store!(self, store => store.migrate().await)
    }

    /// The SQL of what is left to do; empty when the table is up to date.
    pub(crate) async fn pending_migration_sql(&self) -> Result<String, store::Error> {
        with_store!(self, store => store.pending_migration_sql().await)
    }

    pub(crate) async fn close(&self) {
        with_store!(self, store => store.close().await);
    }
}
