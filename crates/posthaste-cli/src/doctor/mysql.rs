//! What may be wrong with an outbox on MySQL or MariaDB.

use posthaste::{MySqlStore, TableName, Timestamp};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::finding::Findings;
use super::{Patient, Waiting, look_at_clock};

/// From how many undone changes on the server is behind with tidying up.
const HISTORY: i64 = 1_000_000;

pub(super) async fn look(
    store: &MySqlStore,
    patient: &Patient<'_>,
    is_there: bool,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let mut connection = store.pool().acquire().await?.detach();
    let connection = &mut connection;
    let table = quoted(store.table());
    look_at_clocks(connection, found).await?;
    if is_there {
        look_at_indexes(connection, store.table(), &table, found).await?;
        look_at_privileges(connection, patient, &table, found).await;
    }
    look_at_transactions(connection, patient, found).await?;
    if is_there && !found.has("privileges") {
        look_at_waiting(connection, patient, &table, found).await?;
    }
    Ok(())
}

fn quoted(table: &TableName) -> String {
    let schema = table.schema().map_or_else(String::new, |schema| format!("`{schema}`."));
    format!("{schema}`{}`", table.name())
}

async fn look_at_clocks(connection: &mut MySqlConnection, found: &mut Findings) -> Result<(), sqlx::Error> {
    const CLOCK: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))";
    sqlx::query_scalar::<_, i64>(CLOCK).fetch_one(&mut *connection).await?;
    let asked_at = Timestamp::now();
    let said: i64 = sqlx::query_scalar(CLOCK).fetch_one(&mut *connection).await?;
    look_at_clock(asked_at, Timestamp::from_micros(said), Timestamp::now(), found);
    Ok(())
}

async fn look_at_indexes(
    connection: &mut MySqlConnection,
    table: &TableName,
    quoted: &str,
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
        let what = format!("the index {index} is missing, so claims fail, or walk the whole table");
        found.problem("indexes", what, format!("ALTER TABLE {quoted} ADD {definition} `{index}` ({columns})"));
    }
    if !found.has("indexes") {
        found.fine("indexes", "all are there");
    }
    Ok(())
}

/// Tries statements that change nothing: no question tells what a user may do by way of roles.
async fn look_at_privileges(
    connection: &mut MySqlConnection,
    patient: &Patient<'_>,
    table: &str,
    found: &mut Findings,
) {
    let options = &patient.settings.relay;
    let deletes =
        patient.settings.database.delete_done || options.retention_done.is_some() || options.retention_dead.is_some();
    let pauses = format!("{}_pause`", &table[..table.len() - 1]);
    let tried = [
        (true, "SELECT", table, format!("SELECT status FROM {table} WHERE FALSE")),
        (true, "UPDATE", table, format!("UPDATE {table} SET locked_by = NULL WHERE FALSE")),
        (deletes, "DELETE", table, format!("DELETE FROM {table} WHERE FALSE")),
        (true, "SELECT", &*pauses, format!("SELECT kind FROM {pauses} WHERE FALSE")),
    ];
    for (_, privilege, on, statement) in tried.into_iter().filter(|(is_needed, ..)| *is_needed) {
        if let Err(error) = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await {
            let what = format!("a relay needs {privilege} on {on}, and is refused: {error}");
            found.problem("privileges", what, format!("GRANT {privilege} ON {on} TO this user"));
        }
    }
    if !found.has("privileges") {
        found.fine("privileges", "this user may do what a relay does");
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
    if !found.has("transactions") {
        found.fine("transactions", format!("none is open for more than {:?}", patient.long_transaction));
    }
    Ok(())
}

async fn look_at_waiting(
    connection: &mut MySqlConnection,
    patient: &Patient<'_>,
    table: &str,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let sql = format!(
        "SELECT CAST(COALESCE(SUM(age > ?), 0) AS SIGNED), CAST(COALESCE(MAX(age) - ?, 0) AS DOUBLE), \
         MIN(IF(age > ?, locked_by, NULL)), CAST(COALESCE(SUM(due >= 0), 0) AS SIGNED), CAST(COALESCE(MAX(due), 0) AS DOUBLE) \
         FROM (SELECT locked_by, TIMESTAMPDIFF(MICROSECOND, locked_at, UTC_TIMESTAMP(6)) / 1e6 AS age, \
               IF(locked_by IS NULL, TIMESTAMPDIFF(MICROSECOND, available_at, UTC_TIMESTAMP(6)) / 1e6, NULL) AS due \
               FROM {table} WHERE stage = 0) AS pending"
    );
    let lease = patient.settings.relay.lease.as_secs_f64();
    let row = sqlx::query(AssertSqlSafe(sql)).bind(lease).bind(lease).bind(lease).fetch_one(&mut *connection).await?;
    let waiting = Waiting {
        expired: row.get(0),
        expired_for: row.get(1),
        owner: row.get(2),
        due: row.get(3),
        due_for: row.get(4),
    };
    waiting.judge(patient.settings, found);
    Ok(())
}
