//! Where the demo keeps its tables: in a temporary directory, or in a file of the user's.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use posthaste::SqliteStore;
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tempfile::TempDir;

use super::service::CREATE_ORDERS;

/// Stands in the header of a database that belongs to the demo: "post" in ASCII.
const APPLICATION_ID: i64 = 0x706f_7374;

const SET_APPLICATION_ID: &str = "PRAGMA application_id = 1886352244";

const GET_APPLICATION_ID: &str = "PRAGMA application_id";

const COUNT_TABLES: &str = "SELECT COUNT(*) FROM sqlite_schema WHERE type = 'table'";

/// The database of the demo.
pub(super) struct Database {
    store: SqliteStore,
    kept: Option<PathBuf>,
    /// Removed when it is dropped.
    _temporary: Option<TempDir>,
}

impl Database {
    /// Opens the database at the path, or a temporary one, and makes the tables that are missing.
    pub(super) async fn open(kept: Option<&Path>) -> anyhow::Result<Self> {
        match kept {
            Some(path) => {
                check_place(path)?;
                check_owner(path).await?;
                let store = open(path).await.with_context(|| {
                    format!(
                        "--database {} cannot be used; it must be a file that can be written, \
                         in a directory that can be written",
                        path.display()
                    )
                })?;
                Ok(Self { store, kept: Some(path.to_owned()), _temporary: None })
            }
            None => {
                let directory = tempfile::Builder::new().prefix("posthaste-demo-").tempdir();
                let directory = directory.with_context(|| {
                    format!(
                        "no temporary directory can be made in {}; name a file with --database, or set TMPDIR",
                        std::env::temp_dir().display()
                    )
                })?;
                let store = open_temporary(&directory.path().join("demo.db")).await.with_context(|| {
                    format!(
                        "no database can be made in {}; name a file with --database, or set TMPDIR",
                        directory.path().display()
                    )
                })?;
                Ok(Self { store, kept: None, _temporary: Some(directory) })
            }
        }
    }

    pub(super) fn store(&self) -> &SqliteStore {
        &self.store
    }

    /// The path of a database that stays when the demo is over.
    pub(super) fn kept(&self) -> Option<&Path> {
        self.kept.as_deref()
    }

    /// Closes the database, and removes it if it is a temporary one.
    pub(super) async fn close(self) {
        self.store.close().await;
    }
}

async fn open(path: &Path) -> anyhow::Result<SqliteStore> {
    with_tables(SqliteStore::open(path).await?).await
}

/// Opens a database that will not outlive the demo, and so need not survive a power cut: without a sync for every
/// commit, slow disks do not set the pace.
async fn open_temporary(path: &Path) -> anyhow::Result<SqliteStore> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal);
    let pool =
        SqlitePoolOptions::new().max_connections(8).idle_timeout(None).max_lifetime(None).connect_with(options).await?;
    with_tables(SqliteStore::new(pool)).await
}

async fn with_tables(store: SqliteStore) -> anyhow::Result<SqliteStore> {
    store.migrate().await?;
    for statement in [SET_APPLICATION_ID, CREATE_ORDERS] {
        sqlx::query(statement).execute(store.pool()).await?;
    }
    Ok(store)
}

/// Whether there can be a file at that path.
fn check_place(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    if path.as_os_str().is_empty() {
        bail!("--database is empty; name a file, such as demo.db, or leave it out for a temporary one");
    }
    if path.is_dir() {
        bail!("--database {shown} is a directory; name a file in it, such as {}", path.join("demo.db").display());
    }
    if path.exists() && !path.is_file() {
        bail!("--database {shown} is a device or the like, not a file; choose another path");
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(directory) = directory.filter(|directory| !directory.is_dir()) {
        bail!("--database {shown}: there is no directory {}; create it, or choose another path", directory.display());
    }
    Ok(())
}

/// Whether a file that is there is the demo's. Looks without writing, so that nobody's file is changed.
async fn check_owner(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let length = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error).with_context(|| format!("--database {shown} cannot be looked at")),
    };
    if length == 0 {
        return Ok(());
    }
    let (application, tables) = owner(path).await.with_context(|| {
        format!(
            "--database {shown} is there, but is no SQLite database that can be read and written; choose another path"
        )
    })?;
    if application != APPLICATION_ID && tables > 0 {
        bail!("--database {shown} is the database of something else, and was left alone; choose another path");
    }
    Ok(())
}

/// To which application a database belongs, and how many tables it has.
async fn owner(path: &Path) -> Result<(i64, i64), sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let application = sqlx::query_scalar(GET_APPLICATION_ID).fetch_one(&mut connection).await?;
    let tables = sqlx::query_scalar(COUNT_TABLES).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok((application, tables))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_id_is_the_one_that_is_set() {
        assert!(SET_APPLICATION_ID.ends_with(&format!("= {APPLICATION_ID}")));
    }
}
