//! The database of an outbox, whichever it is.

use std::time::Duration;

use posthaste::store::{self, AdminStore, Lane, RelayStore};
use posthaste::{Event, Status, Timestamp};
use posthaste::{MySqlStore, PgStore, Scheme, SqliteStore, TableName};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqlitePoolOptions;

use crate::doctor;
use crate::settings::{self, Missing};

/// How long a server may take to let somebody in.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many connections a command has to a file, as it is.
const CONNECTIONS: u32 = 4;

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
    /// Connects. A server that takes the connection and says nothing is one that is away. A file that cannot be there is none: no
    /// waiting helps.
    pub(crate) async fn open(settings: &settings::Database) -> Result<Self, store::Error> {
        if let Some(missing @ Missing::Directory(_)) = settings.missing() {
            return Err(lacking(missing, settings));
        }
        match tokio::time::timeout(PATIENCE, Self::connect(settings)).await {
            Ok(connected) => connected,
            Err(_) => Err(store::Error::Unavailable(format!("no answer within {PATIENCE:?}").into())),
        }
    }

    async fn connect(settings: &settings::Database) -> Result<Self, store::Error> {
        let (url, table) = (&*settings.url, &*settings.table);
        Ok(match posthaste::detect(url)? {
            Scheme::Sqlite => Self::of_sqlite(SqliteStore::connect(url).await?, settings)?,
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

    fn of_sqlite(store: SqliteStore, settings: &settings::Database) -> Result<Self, store::Error> {
        let store = store.with_table(&settings.table)?;
        Ok(Self::Sqlite(if settings.delete_done { store.deleting_done() } else { store }))
    }

    /// Connects to one that is there, and leaves it as it is: the file of SQLite is not made, and keeps its journal.
    pub(crate) async fn open_as_it_is(settings: &settings::Database) -> Result<Self, store::Error> {
        let Some(options) = settings.file() else { return Self::open(settings).await };
        if let Some(missing) = settings.missing() {
            return Err(lacking(missing, settings));
        }
        let options = options.create_if_missing(false);
        let file = options.get_filename().display().to_string();
        // As the store makes its own: nobody goes through the idle ones.
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).idle_timeout(None).max_lifetime(None);
        let connected = pool.connect_with(options).await;
        let pool = connected
            .map_err(|error| store::Error::Unavailable(format!("{file}: {}", crate::text_of(&error)).into()))?;
        Self::of_sqlite(SqliteStore::new(pool), settings)
    }

    /// The same for whoever asks what a migration would do. Instead of a file that is not there yet he sees an empty one, in memory.
    pub(crate) async fn open_as_it_is_or_empty(settings: &settings::Database) -> Result<Self, store::Error> {
        match settings.missing() {
            Some(Missing::File(_)) => Self::of_sqlite(SqliteStore::connect("sqlite::memory:").await?, settings),
            _ => Self::open_as_it_is(settings).await,
        }
    }

    /// Connects to one that is there already, with a table that is up to date. Whoever is no relay makes no new file by it, and
    /// changes no table, whatever the settings say of that: only a relay and `migrate` do.
    pub(crate) async fn open_existing(settings: &settings::Database) -> Result<Self, store::Error> {
        let database = Self::open_as_it_is(settings).await?;
        database.check_version(settings).await?;
        Ok(database)
    }

    /// The same for whoever writes. A file in this directory that nobody has named is made for him.
    pub(crate) async fn open_to_write(settings: &settings::Database) -> Result<Self, store::Error> {
        if !(settings.migrate && settings.is_here()) {
            return Self::open_existing(settings).await;
        }
        let database = Self::open(settings).await?;
        database.migrate().await?;
        Ok(database)
    }

    /// Brings the table up to date if the settings say so, and checks that it is. For relays.
    pub(crate) async fn make_ready(&self, settings: &settings::Database) -> Result<(), store::Error> {
        match settings.migrate {
            true => self.migrate().await,
            false => self.check_version(settings).await,
        }
    }

    async fn check_version(&self, settings: &settings::Database) -> Result<(), store::Error> {
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

    /// The SQL of that; empty when the table is prepared.
    pub(crate) async fn pending_lanes_sql(&self) -> Result<String, store::Error> {
        with_store!(self, store => store.pending_lanes_sql().await)
    }

    pub(crate) async fn migrate(&self) -> Result<(), store::Error> {
        with_store!(self, store => store.migrate().await)
    }

    /// The SQL of what is left to do; empty when the table is up to date.
    pub(crate) async fn pending_migration_sql(&self) -> Result<String, store::Error> {
        with_store!(self, store => store.pending_migration_sql().await)
    }

    /// How many events became this longer ago than that, by the clock of the database.
    pub(crate) async fn count_ended(
        &self,
        table: &TableName,
        status: Status,
        kept: Duration,
    ) -> Result<i64, store::Error> {
        // As it stands in the table.
        let status = if status == Status::Dead { 3 } else { 1 };
        let micros = i64::try_from(kept.as_micros()).unwrap_or(i64::MAX);
        let of = |quote, moment: String| {
            let table = doctor::quoted(table, "", quote);
            AssertSqlSafe(format!(
                "SELECT count(*) FROM {table} WHERE status = {status} \
                 AND (done_at <= {moment} OR done_at IS NULL AND created_at <= {moment})"
            ))
        };
        let counted = match self {
            Self::Sqlite(store) => {
                let before = Timestamp::now().as_micros().saturating_sub(micros);
                sqlx::query_scalar(of('"', before.to_string())).fetch_one(store.pool()).await
            }
            Self::Postgres(store) => {
                let before = format!("clock_timestamp() - {micros} * interval '1 microsecond'");
                sqlx::query_scalar(of('"', before)).fetch_one(store.pool()).await
            }
            Self::MySql(store) => {
                let before = format!("UTC_TIMESTAMP(6) - INTERVAL {micros} MICROSECOND");
                sqlx::query_scalar(of('`', before)).fetch_one(store.pool()).await
            }
        };
        counted.map_err(|error| store::Error::Unavailable(error.into()))
    }

    /// The moment, by the clock that events are due by.
    pub(crate) async fn now(&self) -> Result<Timestamp, store::Error> {
        self.admin().clock().await
    }

    pub(crate) async fn close(&self) {
        with_store!(self, store => store.close().await);
    }
}

fn lacking(missing: Missing, settings: &settings::Database) -> store::Error {
    match missing {
        Missing::File(reason) => store::Error::Schema { table: settings.table.clone(), reason },
        Missing::Directory(reason) => {
            store::Error::Config { field: "database.url", value: settings::shown(&settings.url), reason }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// The clock goes on by itself while everybody waits, so this takes no time.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for scheme in ["postgres", "mysql"] {
            let url = format!("{scheme}://shop@{address}/shop");
            let (asked_at, settings) = (Instant::now(), settings::Database { url, ..Default::default() });
            let error = Database::open(&settings).await.err().expect("nobody answers");
            assert!(matches!(error, store::Error::Unavailable(_)), "{error:?}");
            assert!(crate::text_of(&error).contains("no answer within 20s"), "{error:?}");
            assert_eq!(asked_at.elapsed().as_secs(), 20, "{scheme}");
        }
        // Both have been there.
        for _ in 0..2 {
            listener.accept().unwrap();
        }
    }
}
