//! What may be wrong with an outbox on MySQL or MariaDB.

use posthaste::{MySqlStore, TableName};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::finding::Findings;
use super::{Clock, Patient, index_is_missing, quoted};

/// The moment, in microseconds since 1970.
const CLOCK: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// From how many undone changes on the server is behind with tidying up.
const HISTORY: i64 = 1_000_000;

/// What of a row a relay changes.
const CHANGED: [&str; 7] = ["status", "attempts", "available_at", "done_at", "last_error", "locked_by", "locked_at"];

pub(super) async fn clock(store: &MySqlStore) -> Result<Clock, sqlx::Error> {
    let mut connection = store.pool().acquire().await?;
    Clock::ask(async || sqlx::query_scalar(CLOCK).fetch_one(&mut *connection).await).await
}

pub(super) async fn look(
    store: &MySqlStore,
    patient: &Patient<'_>,
    is_there: bool,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let mut connection = store.pool().acquire().await?.detach();
    let connection = &mut connection;
    // Whoever holds the table for long is a finding, and not waited for.
    sqlx::raw_sql("SET SESSION lock_wait_timeout = 2, innodb_lock_wait_timeout = 2").execute(&mut *connection).await?;
    if is_there {
        look_at_indexes(connection, store.table(), found).await?;
        look_at_privileges(connection, patient, store.table(), found).await?;
    }
    look_at_transactions(connection, patient, found).await
}

async fn look_at_indexes(
    connection: &mut MySqlConnection,
    table: &TableName,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let there: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT CAST(index_name AS CHAR) FROM information_schema.statistics \
         WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
    )
    .bind(table.schema())
    .bind(table.name())
    .fetch_all(&mut *connection)
    .await?;
    let name = table.name();
    for (index, definition) in
        [(format!("{name}_id"), "UNIQUE KEY"), (format!("{name}_stage"), "KEY"), (format!("{name}_aggregate"), "KEY")]
    {
        if there.iter().any(|other| other.eq_ignore_ascii_case(&index)) {
            continue;
        }
        let columns = match index.strip_prefix(name) {
            Some("_id") => "event_id",
            Some("_stage") => "stage, stage_at, seq, status",
            _ => "aggregate_id",
        };
        let quoted = quoted(table, "", '`');
        index_is_missing(&index, format!("ALTER TABLE {quoted} ADD {definition} `{index}` ({columns})"), found);
    }
    found.fine_unless_found("indexes", "all are there");
    Ok(())
}

/// Tries statements that change nothing: no question tells what a user may do by way of roles.
async fn look_at_privileges(
    connection: &mut MySqlConnection,
    patient: &Patient<'_>,
    table: &TableName,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let user: String = sqlx::query_scalar("SELECT CURRENT_USER()").fetch_one(&mut *connection).await?;
    let user = match user.rsplit_once('@') {
        Some((name, host)) => format!("'{}'@'{}'", name.replace('\'', "''"), host.replace('\'', "''")),
        None => format!("'{user}'"),
    };
    let (events, pauses) = (quoted(table, "", '`'), quoted(table, "_pause", '`'));
    let update = |on: &str, columns: &[&str]| {
        let same: Vec<String> = columns.iter().map(|column| format!("{column} = {column}")).collect();
        ("UPDATE", on.to_owned(), format!("UPDATE {on} SET {} WHERE FALSE", same.join(", ")))
    };
    let select = |on: &str| ("SELECT", on.to_owned(), format!("SELECT 1 FROM {on} WHERE FALSE"));
    let delete = |on: &str| ("DELETE", on.to_owned(), format!("DELETE FROM {on} WHERE FALSE"));
    let mut tried = vec![select(&events), update(&events, &CHANGED), select(&pauses)];
    if patient.deletes() {
        tried.push(delete(&events));
    }
    if patient.settings.order.ordered.is_some() && are_there(connection, table).await? {
        for (suffix, column) in [("_lane", "epoch"), ("_relay", "until"), ("_key", "until")] {
            let on = quoted(table, suffix, '`');
            let insert = format!("INSERT INTO {on} SELECT * FROM {on} WHERE FALSE");
            tried.extend([select(&on), update(&on, &[column]), delete(&on), ("INSERT", on, insert)]);
        }
    }
    for (privilege, on, statement) in tried {
        match sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await {
            Err(error) if is_late(&error) => {
                let what = format!("somebody holds {on}, for which relays wait: {error}");
                let fix = "see who it is with SHOW FULL PROCESSLIST, and end it: KILL and the id";
                found.problem("locks", what, fix);
                // The next would wait for the same.
                return Ok(());
            }
            Err(error @ sqlx::Error::Database(_)) => {
                let what = format!("a relay needs {privilege} on {on}, and is refused: {error}");
                found.problem("privileges", what, format!("GRANT {privilege} ON {on} TO {user}"));
            }
            tried => {
                tried?;
            }
        }
    }
    found.fine_unless_found("privileges", "this user may do what a relay does");
    Ok(())
}

/// Whether somebody else had something for longer than we wait for it.
fn is_late(error: &sqlx::Error) -> bool {
    const LOCK_WAIT_TIMEOUT: u16 = 1205;
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    error.is_some_and(|error| error.number() == LOCK_WAIT_TIMEOUT)
}

/// Whether the tables of lanes are there. Who has no privilege on them at all is told so by the server as well.
async fn are_there(connection: &mut MySqlConnection, table: &TableName) -> Result<bool, sqlx::Error> {
    const NO_SUCH_TABLE: &str = "42S02";
    let asked = format!("SELECT 1 FROM {} WHERE FALSE", quoted(table, "_lane", '`'));
    match sqlx::raw_sql(AssertSqlSafe(asked)).execute(connection).await {
        Err(sqlx::Error::Database(error)) => Ok(error.code().as_deref() != Some(NO_SUCH_TABLE)),
        asked => asked.map(|_| true),
    }
}

async fn look_at_transactions(
    connection: &mut MySqlConnection,
    patient: &Patient<'_>,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let rows = sqlx::query(
        "SELECT CAST(trx_mysql_thread_id AS SIGNED), CAST(TIMESTAMPDIFF(SECOND, trx_started, NOW()) AS SIGNED), \
         CAST(trx_rows_locked AS SIGNED) FROM information_schema.innodb_trx \
         WHERE trx_started <= NOW() - INTERVAL ? SECOND AND trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started",
    );
    let rows = match rows.bind(patient.long_transaction.as_secs()).fetch_all(&mut *connection).await {
        Ok(rows) => rows,
        Err(error) => {
            let what = format!("open transactions cannot be seen: {error}");
            found.note("transactions of others", what, "GRANT PROCESS ON *.* to this user, or ask as another");
            return Ok(());
        }
    };
    for row in rows {
        let (id, age, locked): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let what = format!(
            "connection {id} has had a transaction open for {age} s, with {locked} rows locked: they wait, and nothing older is \
             tidied up"
        );
        found.warning("transactions", what, format!("end it: KILL {id}; and let the server do so: wait_timeout"));
    }
    let history: Option<i64> = sqlx::query_scalar(
        "SELECT CAST(count AS SIGNED) FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'",
    )
    .fetch_optional(&mut *connection)
    .await
    .unwrap_or_default();
    if let Some(history) = history.filter(|history| *history > HISTORY) {
        let what = format!("{history} old versions of rows wait to be purged, which claims walk over");
        found.warning("transactions", what, "end long transactions; give purging more threads: innodb_purge_threads");
    }
    found.fine_unless_found("transactions", format!("none is open for more than {:?}", patient.long_transaction));
    Ok(())
}

/// Asks for [`Figures`](super::waiting::Figures).
pub(super) fn waiting(table: &TableName, lease: f64) -> String {
    let table = quoted(table, "", '`');
    format!(
        "SELECT CAST(COALESCE(SUM(age > {lease}), 0) AS SIGNED), CAST(COALESCE(MAX(age) - {lease}, 0) AS DOUBLE), \
         MIN(IF(age > {lease}, locked_by, NULL)), CAST(COALESCE(SUM(due >= 0), 0) AS SIGNED), \
         CAST(COALESCE(MAX(due), 0) AS DOUBLE), \
         TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6)) \
         FROM (SELECT locked_by, TIMESTAMPDIFF(MICROSECOND, locked_at, UTC_TIMESTAMP(6)) / 1e6 AS age, \
               IF(locked_by IS NULL, TIMESTAMPDIFF(MICROSECOND, available_at, UTC_TIMESTAMP(6)) / 1e6, NULL) AS due \
               FROM {table} WHERE stage = 0) AS pending"
    )
}
