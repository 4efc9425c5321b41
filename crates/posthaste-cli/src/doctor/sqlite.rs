//! What may be wrong with an outbox on SQLite.

use posthaste::{SqliteStore, TableName, Timestamp};
use sqlx::SqliteConnection;

use super::finding::Findings;
use super::{index_is_missing, index_statements, quoted};

/// From how large a log on somebody keeps it from being written back.
const LARGE_LOG: u64 = 256 << 20;

/// How large a file may be for all of it to be read.
const READABLE: i64 = 1 << 30;

pub(super) async fn look(store: &SqliteStore, is_there: bool, found: &mut Findings) -> Result<(), sqlx::Error> {
    let mut connection = store.pool().acquire().await?;
    look_at_file(&mut connection, found).await?;
    if is_there {
        look_at_indexes(&mut connection, store, found).await?;
    }
    Ok(())
}

async fn look_at_file(connection: &mut SqliteConnection, found: &mut Findings) -> Result<(), sqlx::Error> {
    async fn pragma<T>(connection: &mut SqliteConnection, name: &'static str) -> Result<T, sqlx::Error>
    where
        for<'r> (T,): sqlx::FromRow<'r, sqlx::sqlite::SqliteRow>,
        T: Send + Unpin,
    {
        sqlx::query_scalar(name).fetch_one(connection).await
    }
    let mode: String = pragma(connection, "PRAGMA journal_mode").await?;
    if !["wal", "memory"].contains(&&*mode) {
        let what = format!("the journal is {mode:?}: readers and writers wait for each other");
        found.warning("journal", what, "PRAGMA journal_mode = WAL");
    }
    let path: Option<String> = sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
        .fetch_one(&mut *connection)
        .await?;
    let log = path.filter(|path| !path.is_empty()).map(|path| format!("{path}-wal"));
    if let Some(bytes) = log.and_then(|log| std::fs::metadata(log).ok()).map(|log| log.len())
        && bytes > LARGE_LOG
    {
        let what =
            format!("the log beside the file has {} MiB: somebody reads for a long time, and keeps it", bytes >> 20);
        found.warning("journal", what, "end that transaction, then PRAGMA wal_checkpoint(TRUNCATE)");
    }
    found.fine_unless_found("journal", format!("it is {mode:?}"));
    let (pages, free, size): (i64, i64, i64) = (
        pragma(connection, "PRAGMA page_count").await?,
        pragma(connection, "PRAGMA freelist_count").await?,
        pragma(connection, "PRAGMA page_size").await?,
    );
    if free > pages / 2 && free * size > 64 << 20 {
        let what = format!("{} of {} MiB of the file are empty", (free * size) >> 20, (pages * size) >> 20);
        found.note("bloat", what, "VACUUM, while no relay runs, if the space is needed");
    } else {
        found.fine("bloat", format!("{free} of {pages} pages are empty"));
    }
    if pages * size < READABLE {
        match pragma::<String>(connection, "PRAGMA quick_check(1)").await? {
            fine if fine == "ok" => found.fine("file", "it is whole"),
            fault => {
                found.problem("file", format!("it is damaged: {fault}"), "restore it from a copy, or sqlite3 .recover");
            }
        }
    }
    Ok(())
}

async fn look_at_indexes(
    connection: &mut SqliteConnection,
    store: &SqliteStore,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let there: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_index_list(?)")
        .bind(store.table().name())
        .fetch_all(&mut *connection)
        .await?;
    let script = store.migration_sql();
    for statement in index_statements(&script) {
        let Some(name) = statement.split(" ON ").next().and_then(|head| head.rsplit('"').nth(1)) else { continue };
        if !there.iter().any(|other| other == name) {
            index_is_missing(name, statement.to_owned(), found);
        }
    }
    found.fine_unless_found("indexes", "all are there");
    Ok(())
}

/// Asks for [`Figures`](super::waiting::Figures).
pub(super) fn waiting(table: &TableName, lease: f64) -> String {
    let (table, now) = (quoted(table, "", '"'), Timestamp::now().as_micros());
    format!(
        "SELECT count(*) FILTER (WHERE age > {lease}), coalesce(max(age) - {lease}, 0.0), \
         min(locked_by) FILTER (WHERE age > {lease}), count(*) FILTER (WHERE due >= 0), coalesce(max(due), 0.0), {now} \
         FROM (SELECT locked_by, ({now} - locked_at) / 1e6 AS age, \
         iif(locked_by IS NULL, ({now} - available_at) / 1e6, NULL) AS due FROM {table} WHERE status IN (0, 2))"
    )
}
