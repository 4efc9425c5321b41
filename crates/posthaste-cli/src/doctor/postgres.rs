//! What may be wrong with an outbox on PostgreSQL.

use posthaste::{PgStore, TableName, Timestamp};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::finding::Findings;
use super::{Patient, Waiting, look_at_clock};
use crate::output::cut;

/// Dead rows that autovacuum leaves alone by itself, whatever the table.
const DEAD_ROWS: i64 = 10_000;

/// What a slot that nobody reads may hold before it is more than a warning.
const HELD_LOG: i64 = 1 << 30;

/// How long one question may take: the doctor must not be what holds others up.
const PATIENCE: &str = "SET statement_timeout = '15s'; SET lock_timeout = '1s'";

/// What of a row a relay changes.
const CHANGED: [&str; 7] = ["status", "attempts", "available_at", "done_at", "last_error", "locked_by", "locked_at"];

pub(super) async fn look(
    store: &PgStore,
    patient: &Patient<'_>,
    is_there: bool,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let mut connection = store.pool().acquire().await?.detach();
    let connection = &mut connection;
    sqlx::raw_sql(PATIENCE).execute(&mut *connection).await?;
    let (table, name) = (quoted(store.table()), store.table().name().to_owned());
    if sqlx::query_scalar::<_, bool>("SELECT pg_is_in_recovery()").fetch_one(&mut *connection).await? {
        let what = "this server is a standby, which takes no writes";
        found.problem("server", what, "connect to the primary: check database.url, or add target_session_attrs");
        return Ok(());
    }
    look_at_clocks(connection, found).await?;
    if is_there {
        look_at_indexes(connection, store, &table, found).await?;
        look_at_privileges(connection, patient, &table, &name, found).await?;
        look_at_vacuum(connection, &table, found).await?;
        look_at_bloat(connection, &table, found).await?;
    }
    look_at_transactions(connection, patient, found).await?;
    look_at_slots(connection, found).await?;
    if is_there && !found.has("privileges") {
        look_at_waiting(connection, patient, &table, found).await?;
    }
    Ok(())
}

/// The name as SQL has it. It holds nothing but letters, digits and underscores.
fn quoted(table: &TableName) -> String {
    let schema = table.schema().map_or_else(String::new, |schema| format!("\"{schema}\"."));
    format!("{schema}\"{}\"", table.name())
}

async fn look_at_clocks(connection: &mut PgConnection, found: &mut Findings) -> Result<(), sqlx::Error> {
    const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    // The first answer may have waited for more than the way.
    sqlx::query_scalar::<_, i64>(CLOCK).fetch_one(&mut *connection).await?;
    let asked_at = Timestamp::now();
    let said: i64 = sqlx::query_scalar(CLOCK).fetch_one(&mut *connection).await?;
    look_at_clock(asked_at, Timestamp::from_micros(said), Timestamp::now(), found);
    Ok(())
}

/// Those that the migrations make: whether they are there, and whether they can be used.
async fn look_at_indexes(
    connection: &mut PgConnection,
    store: &PgStore,
    table: &str,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let rows = sqlx::query(
        "SELECT c.relname, i.indisvalid AND i.indisready, i.indisprimary, \
         (SELECT relkind = 'p' FROM pg_class WHERE oid = i.indrelid) \
         FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass($1)",
    )
    .bind(table)
    .fetch_all(&mut *connection)
    .await?;
    let there: Vec<(String, bool, bool)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    let in_parts: bool =
        sqlx::query_scalar("SELECT coalesce((SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($1)), FALSE)")
            .bind(table)
            .fetch_one(&mut *connection)
            .await?;
    let script = store.migration_sql();
    for statement in script.split(';').filter_map(index_statement) {
        let Some(name) = statement.split('"').nth(1) else { continue };
        // Those of a partition are made with it.
        if !statement.contains(&format!("ON {table} ")) {
            continue;
        }
        match there.iter().find(|(other, ..)| other == name) {
            Some((_, true, _)) => {}
            Some((_, false, _)) => {
                let fix = format!("REINDEX INDEX CONCURRENTLY \"{name}\"");
                found.problem("indexes", format!("the index {name} is not valid, so nothing is found by it"), fix);
            }
            None => {
                let fix =
                    if in_parts { statement.to_owned() } else { statement.replacen("INDEX", "INDEX CONCURRENTLY", 1) };
                found.problem(
                    "indexes",
                    format!("the index {name} is missing, so claims or lists walk the whole table"),
                    fix,
                );
            }
        }
    }
    if !in_parts && !there.iter().any(|(_, _, primary)| *primary) {
        let fix = format!("ALTER TABLE {table} ADD PRIMARY KEY (event_id)");
        found.problem(
            "indexes",
            "there is no primary key, so ids may be taken twice and settlements walk the table",
            fix,
        );
    }
    if !found.has("indexes") {
        found.fine("indexes", "all are there and valid");
    }
    Ok(())
}

/// A statement that makes an index, without the comments before it.
fn index_statement(statement: &str) -> Option<&str> {
    let start = statement.find("CREATE INDEX").or_else(|| statement.find("CREATE UNIQUE INDEX"))?;
    Some(statement[start..].trim())
}

/// What the user of this connection may do, which should be the one of the relay.
async fn look_at_privileges(
    connection: &mut PgConnection,
    patient: &Patient<'_>,
    table: &str,
    name: &str,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let user: String = sqlx::query_scalar("SELECT quote_ident(current_user)").fetch_one(&mut *connection).await?;
    let may = "SELECT has_table_privilege(to_regclass($1), $2)";
    for (privilege, what) in [("SELECT", "read events"), ("INSERT", "write events")] {
        let allowed: Option<bool> =
            sqlx::query_scalar(may).bind(table).bind(privilege).fetch_one(&mut *connection).await?;
        if allowed != Some(true) {
            let (what, fix) = (format!("{user} may not {what}"), format!("GRANT {privilege} ON {table} TO {user}"));
            match privilege {
                // Whoever only relays needs no more.
                "INSERT" => found.note("privileges of writers", what, fix),
                _ => found.problem("privileges", what, fix),
            }
        }
    }
    let mut lacking = Vec::new();
    for column in CHANGED {
        let allowed: Option<bool> = sqlx::query_scalar("SELECT has_column_privilege(to_regclass($1), $2, 'UPDATE')")
            .bind(table)
            .bind(column)
            .fetch_one(&mut *connection)
            .await?;
        if allowed != Some(true) {
            lacking.push(column);
        }
    }
    if !lacking.is_empty() {
        let columns = lacking.join(", ");
        let what = format!("{user} may not change {columns}, so it cannot claim or settle");
        found.problem("privileges", what, format!("GRANT UPDATE ({columns}) ON {table} TO {user}"));
    }
    let options = &patient.settings.relay;
    if patient.settings.database.delete_done || options.retention_done.is_some() || options.retention_dead.is_some() {
        let allowed: Option<bool> =
            sqlx::query_scalar(may).bind(table).bind("DELETE").fetch_one(&mut *connection).await?;
        if allowed != Some(true) {
            let what = format!("{user} may not delete, which these settings ask for");
            found.problem("privileges", what, format!("GRANT DELETE ON {table} TO {user}"));
        }
    }
    let pauses = format!("{}{name}_pause\"", &table[..table.len() - name.len() - 1]);
    let allowed: Option<bool> =
        sqlx::query_scalar(may).bind(&pauses).bind("SELECT").fetch_one(&mut *connection).await?;
    if allowed == Some(false) {
        let what = format!("{user} may not see what is paused, and a relay of his does not start");
        found.problem("privileges", what, format!("GRANT SELECT ON {pauses} TO {user}"));
    }
    if !found.has("privileges") {
        found.fine("privileges", format!("{user} may do what a relay does"));
    }
    Ok(())
}

async fn look_at_vacuum(connection: &mut PgConnection, table: &str, found: &mut Findings) -> Result<(), sqlx::Error> {
    let is_on: String = sqlx::query_scalar("SELECT current_setting('autovacuum')").fetch_one(&mut *connection).await?;
    if is_on == "off" {
        let what = "autovacuum is off for the whole server: every row that was claimed or settled leaves a dead one";
        found.problem("autovacuum", what, "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()");
    }
    let disabled = sqlx::query_scalar::<_, String>(
        "SELECT c.oid::regclass::text FROM pg_class c WHERE 'autovacuum_enabled=false' = ANY (c.reloptions) \
         AND (c.oid = to_regclass($1) OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1)))",
    );
    for of in disabled.bind(table).fetch_all(&mut *connection).await? {
        let fix = format!("ALTER TABLE {of} RESET (autovacuum_enabled)");
        found.problem("autovacuum", format!("autovacuum is off for {of}, which grows with every claim"), fix);
    }
    let row = sqlx::query(
        "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint, \
         coalesce(extract(epoch FROM clock_timestamp() - max(greatest(last_autovacuum, last_vacuum))), -1)::float8 \
         FROM pg_stat_all_tables WHERE relid = to_regclass($1) \
         OR relid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))",
    );
    let row = row.bind(table).fetch_one(&mut *connection).await?;
    let (dead, live, ago): (i64, i64, f64) = (row.get(0), row.get(1), row.get(2));
    if dead > DEAD_ROWS && dead > live {
        let when = if ago < 0.0 { "never vacuumed".to_owned() } else { format!("vacuumed {ago:.0} s ago") };
        let what = format!("{dead} dead rows and {live} live ones, {when}: claims walk over the dead");
        found.warning(
            "autovacuum",
            what,
            format!(
                "end what holds it back (see transactions and slots), then VACUUM {table}; and let it come sooner: ALTER TABLE \
                 {table} SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0)"
            ),
        );
    }
    if !found.has("autovacuum") {
        found.fine("autovacuum", format!("{dead} dead rows, {live} live ones"));
    }
    Ok(())
}

/// Indexes that are much larger than what is in them. Each entry of the one on what is pending comes and goes.
async fn look_at_bloat(connection: &mut PgConnection, table: &str, found: &mut Findings) -> Result<(), sqlx::Error> {
    let rows = sqlx::query(
        "SELECT c.oid::regclass::text, pg_relation_size(c.oid), greatest(c.reltuples, 0)::bigint FROM pg_index i \
         JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relkind = 'i' AND (i.indrelid = to_regclass($1) \
         OR i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1)))",
    );
    for row in rows.bind(table).fetch_all(&mut *connection).await? {
        let (index, bytes, entries): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
        // An entry takes about 40 bytes, and pages are half empty at worst in an index that is well.
        if bytes > 64 << 20 && bytes / (entries + 1) > 400 {
            let what = format!("the index {index} takes {} MiB for about {entries} entries", bytes >> 20);
            found.warning("bloat", what, format!("REINDEX INDEX CONCURRENTLY {index}"));
        }
    }
    let row = sqlx::query(
        "SELECT pg_table_size(c.oid), greatest(c.reltuples, 0)::bigint, coalesce((SELECT sum(stawidth) FROM pg_statistic \
         WHERE starelid = c.oid), 0)::bigint FROM pg_class c WHERE c.oid = to_regclass($1)",
    );
    // Statistics are for superusers and owners.
    if let Ok(Some(row)) = row.bind(table).fetch_optional(&mut *connection).await {
        let (bytes, rows, width): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        // Half of every page is left free, on purpose.
        let expected = (rows * (width + 60)).saturating_mul(2);
        if width > 0 && bytes > 256 << 20 && bytes > expected.saturating_mul(3) {
            let what = format!("the table takes {} MiB for about {rows} rows of {width} bytes", bytes >> 20);
            found.warning(
                "bloat",
                what,
                format!("pg_repack, or VACUUM FULL {table} while no relay runs; and keep less (retention_done)"),
            );
        }
    }
    if !found.has("bloat") {
        found.fine("bloat", "table and indexes are about as large as what is in them");
    }
    Ok(())
}

/// Transactions that keep dead rows from being removed, and may hold rows.
async fn look_at_transactions(
    connection: &mut PgConnection,
    patient: &Patient<'_>,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let sees_all: bool = sqlx::query_scalar("SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')")
        .fetch_one(&mut *connection)
        .await?;
    if !sees_all {
        let what = "transactions of other users cannot be seen by this one";
        found.note("transactions of others", what, "GRANT pg_monitor to this user, or ask as another");
    }
    let rows = sqlx::query(
        "SELECT pid, coalesce(usename, ''), coalesce(application_name, ''), coalesce(state, ''), coalesce(query, ''), \
         extract(epoch FROM clock_timestamp() - xact_start)::float8 FROM pg_stat_activity \
         WHERE xact_start < clock_timestamp() - make_interval(secs => $1) AND pid <> pg_backend_pid() \
         AND backend_type = 'client backend' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL OR state LIKE 'idle in%') \
         ORDER BY xact_start",
    );
    for row in rows.bind(patient.long_transaction.as_secs_f64()).fetch_all(&mut *connection).await? {
        let (pid, user, application, state): (i32, String, String, String) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let (query, age): (String, f64) = (row.get(4), row.get(5));
        let what = format!(
            "PID {pid} ({user}, {application:?}) has had a transaction open for {age:.0} s, {state}: dead rows stay, and rows that \
             it has locked wait; its last statement: {}",
            cut(query.trim(), 60)
        );
        let fix = format!(
            "end it: SELECT pg_terminate_backend({pid}); and let the server do so: idle_in_transaction_session_timeout"
        );
        found.warning("transactions", what, fix);
    }
    let prepared = sqlx::query(
        "SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts \
         WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => $1)",
    );
    for row in prepared.bind(patient.long_transaction.as_secs_f64()).fetch_all(&mut *connection).await? {
        let (gid, age): (String, f64) = (row.get(0), row.get(1));
        let what =
            format!("the transaction {gid:?} was prepared {age:.0} s ago, and neither committed nor rolled back");
        found.warning(
            "transactions",
            what,
            format!("COMMIT PREPARED or ROLLBACK PREPARED '{}'", gid.replace('\'', "''")),
        );
    }
    if !found.has("transactions") {
        found.fine("transactions", format!("none that is seen is open for more than {:?}", patient.long_transaction));
    }
    Ok(())
}

/// Slots that nobody reads keep the log, and some of them dead rows.
async fn look_at_slots(connection: &mut PgConnection, found: &mut Findings) -> Result<(), sqlx::Error> {
    let rows = sqlx::query(
        "SELECT slot_name::text, slot_type, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint \
         FROM pg_replication_slots WHERE NOT active",
    );
    for row in rows.fetch_all(&mut *connection).await? {
        let (slot, kind, held): (String, String, i64) = (row.get(0), row.get(1), row.get(2));
        let what = format!(
            "nobody reads the {kind} replication slot {slot}, which keeps {} MiB of the log, and more each day",
            held >> 20
        );
        let fix = format!(
            "start its reader, or SELECT pg_drop_replication_slot('{}'); and set max_slot_wal_keep_size",
            slot.replace('\'', "''")
        );
        match held > HELD_LOG {
            true => found.problem("slots", what, fix),
            false => found.warning("slots", what, fix),
        }
    }
    if !found.has("slots") {
        found.fine("slots", "there is no replication slot that nobody reads");
    }
    Ok(())
}

async fn look_at_waiting(
    connection: &mut PgConnection,
    patient: &Patient<'_>,
    table: &str,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let sql = format!(
        "SELECT count(*) FILTER (WHERE expired), \
         coalesce(max(extract(epoch FROM now - locked_at)) FILTER (WHERE expired) - $1, 0)::float8, \
         min(locked_by) FILTER (WHERE expired), \
         count(*) FILTER (WHERE locked_by IS NULL AND available_at <= now), \
         coalesce(max(extract(epoch FROM now - available_at)) FILTER (WHERE locked_by IS NULL AND available_at <= now), 0)::float8 \
         FROM (SELECT available_at, locked_at, locked_by, now, coalesce(locked_at < now - make_interval(secs => $1), FALSE) \
               AS expired FROM {table}, (SELECT clock_timestamp() AS now) AS clock WHERE status IN (0, 2)) AS pending"
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(patient.settings.relay.lease.as_secs_f64());
    let row = query.fetch_one(&mut *connection).await?;
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
