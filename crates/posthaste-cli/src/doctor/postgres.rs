//! What may be wrong with an outbox on PostgreSQL.

use posthaste::{Partitions, PgStore, TableName};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::finding::Findings;
use super::{Clock, Patient, index_is_missing, index_statements, quoted};
use crate::output::cut;

/// The moment, in microseconds since 1970.
const CLOCK: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Dead rows that autovacuum leaves alone by itself, whatever the table.
const DEAD_ROWS: i64 = 10_000;

/// What a slot that nobody reads may hold before it is more than a warning.
const HELD_LOG: i64 = 1 << 30;

/// How many transactions a standby may keep dead rows for before it is told.
const HELD_TRANSACTIONS: i32 = 100_000;

/// How large an index and a table may be whatever is in them.
const SMALL_INDEX: i64 = 64 << 20;
const SMALL_TABLE: i64 = 256 << 20;

/// How long one question may take: the doctor must not be what holds others up.
const PATIENCE: &str = "SET statement_timeout = '15s'; SET lock_timeout = '1s'";

/// What of a row a relay changes.
const CHANGED: [&str; 7] = ["status", "attempts", "available_at", "done_at", "last_error", "locked_by", "locked_at"];

/// The table and its partitions.
const ITS_PARTS: &str =
    "(SELECT to_regclass($1)::oid UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))";

/// A connection that does not go back to the pool, on which no question takes long.
pub(super) async fn connection(store: &PgStore) -> Result<PgConnection, sqlx::Error> {
    let mut connection = store.pool().acquire().await?.detach();
    sqlx::raw_sql(PATIENCE).execute(&mut connection).await?;
    Ok(connection)
}

/// Whether the server takes no writes, which is told.
pub(super) async fn is_standby(store: &PgStore, found: &mut Findings) -> Result<bool, sqlx::Error> {
    let is_standby: bool =
        sqlx::query_scalar("SELECT pg_is_in_recovery()").fetch_one(&mut connection(store).await?).await?;
    if is_standby {
        let what = "this server is a standby, which takes no writes: nothing can be claimed or written here";
        found.problem("server", what, "name the primary in database.url");
    }
    Ok(is_standby)
}

pub(super) async fn clock(store: &PgStore) -> Result<Clock, sqlx::Error> {
    let mut connection = connection(store).await?;
    Clock::ask(async || sqlx::query_scalar(CLOCK).fetch_one(&mut connection).await).await
}

pub(super) async fn look(
    store: &PgStore,
    patient: &Patient<'_>,
    is_there: bool,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let mut connection = connection(store).await?;
    let connection = &mut connection;
    // Who holds the table may be among them, and then nothing else can be looked at.
    look_at_transactions(connection, patient, found).await?;
    look_at_slots(connection, found).await?;
    if !is_there {
        return Ok(());
    }
    let table = quoted(store.table(), "", '"');
    match look_at_table(connection, store, &table, patient, found).await {
        Err(error) if is_late(&error) => {
            let holders = holders(connection, &table).await?;
            let who = if holders.is_empty() { "somebody".to_owned() } else { format!("PID {}", holders.join(", ")) };
            let what = format!("{who} holds the table, for which relays wait: {error}");
            let fix = match holders.first() {
                Some(holder) => {
                    format!("see what it does in pg_stat_activity, and end it: SELECT pg_terminate_backend({holder})")
                }
                None => "see who it is in pg_locks and pg_stat_activity".to_owned(),
            };
            found.problem("locks", what, fix);
            Ok(())
        }
        looked => looked,
    }
}

async fn look_at_table(
    connection: &mut PgConnection,
    store: &PgStore,
    table: &str,
    patient: &Patient<'_>,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    look_at_indexes(connection, store, table, found).await?;
    look_at_privileges(connection, patient, store.table(), found).await?;
    look_at_vacuum(connection, table, found).await?;
    look_at_bloat(connection, table, found).await
}

/// Whether somebody else had something for longer than we wait for it.
fn is_late(error: &sqlx::Error) -> bool {
    const LOCK_NOT_AVAILABLE: &str = "55P03";
    has_code(error, LOCK_NOT_AVAILABLE)
}

/// Whether a question took longer than it may.
pub(super) fn is_cut_off(error: &sqlx::Error) -> bool {
    const QUERY_CANCELED: &str = "57014";
    has_code(error, QUERY_CANCELED)
}

fn has_code(error: &sqlx::Error, expected: &str) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == expected)
}

/// Who lets nobody else read the table or a part of it, by PID.
async fn holders(connection: &mut PgConnection, table: &str) -> Result<Vec<String>, sqlx::Error> {
    let holders: Vec<i32> = sqlx::query_scalar(AssertSqlSafe(format!(
        "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'relation' AND granted AND mode = 'AccessExclusiveLock' \
         AND pid IS NOT NULL AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND relation IN {ITS_PARTS} ORDER BY pid"
    )))
    .bind(table)
    .fetch_all(connection)
    .await?;
    Ok(holders.iter().map(ToString::to_string).collect())
}

/// Those that the migrations make: whether they are there, and whether they can be used.
async fn look_at_indexes(
    connection: &mut PgConnection,
    store: &PgStore,
    table: &str,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let there: Vec<(String, bool)> = sqlx::query_as(
        "SELECT c.relname::text, i.indisvalid AND i.indisready FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
         WHERE i.indrelid = to_regclass($1)",
    )
    .bind(table)
    .fetch_all(&mut *connection)
    .await?;
    let in_parts: bool =
        sqlx::query_scalar("SELECT coalesce((SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($1)), FALSE)")
            .bind(table)
            .fetch_one(&mut *connection)
            .await?;
    let script = match in_parts {
        true => store.clone().partitioned(Partitions::daily()).migration_sql(),
        false => store.migration_sql(),
    };
    for statement in index_statements(&script) {
        let Some(name) = statement.split('"').nth(1) else { continue };
        // Those of a partition are made with it.
        if !statement.contains(&format!("ON {table} ")) {
            continue;
        }
        match there.iter().find(|(other, _)| other == name) {
            Some((_, true)) => {}
            Some((_, false)) => {
                let fix = format!("REINDEX INDEX CONCURRENTLY \"{name}\"");
                found.problem("indexes", format!("the index {name} is not valid, so nothing is found by it"), fix);
            }
            None => {
                let fix =
                    if in_parts { statement.to_owned() } else { statement.replacen("INDEX", "INDEX CONCURRENTLY", 1) };
                index_is_missing(name, fix, found);
            }
        }
    }
    // Each partition has its own.
    let keyless = sqlx::query_as::<_, (String, bool, bool)>(AssertSqlSafe(format!(
        "SELECT c.oid::regclass::text, NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary), \
         NOT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] \
          WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1 AND a.attname = 'seq') \
         FROM pg_class c WHERE c.relkind = 'r' AND c.oid IN {ITS_PARTS} ORDER BY 1"
    )));
    for (of, lacks_key, lacks_seq) in keyless.bind(table).fetch_all(&mut *connection).await? {
        if lacks_key {
            let what = format!("{of} has no primary key, so ids may be taken twice and settlements walk the table");
            found.problem("indexes", what, format!("ALTER TABLE {of} ADD PRIMARY KEY (event_id)"));
        }
        if lacks_seq && in_parts {
            let what = format!("{of} has no index on seq alone, so settlements walk the table");
            found.problem("indexes", what, format!("CREATE UNIQUE INDEX CONCURRENTLY ON {of} (seq)"));
        }
    }
    found.fine_unless_found("indexes", "all are there and valid");
    Ok(())
}

/// What the user of this connection may do, which should be the one of the relay.
async fn look_at_privileges(
    connection: &mut PgConnection,
    patient: &Patient<'_>,
    table: &TableName,
    found: &mut Findings,
) -> Result<(), sqlx::Error> {
    let (events, pauses) = (quoted(table, "", '"'), quoted(table, "_pause", '"'));
    let user: String = sqlx::query_scalar("SELECT quote_ident(current_user)").fetch_one(&mut *connection).await?;
    // What is not there is no question of privileges.
    let mut lacks = async |privilege: &str, on: &str| -> Result<bool, sqlx::Error> {
        let may = sqlx::query_scalar("SELECT has_table_privilege(to_regclass($1), $2)").bind(on).bind(privilege);
        let may: Option<bool> = may.fetch_one(&mut *connection).await?;
        Ok(may == Some(false))
    };
    let mut refused = Vec::new();
    if lacks("SELECT", &events).await? {
        refused.push(("SELECT", &events, "read events".to_owned()));
    }
    if patient.deletes() && lacks("DELETE", &events).await? {
        refused.push(("DELETE", &events, "delete events, which these settings ask for".to_owned()));
    }
    if lacks("SELECT", &pauses).await? {
        refused.push(("SELECT", &pauses, "see what is paused, and a relay of his does not start".to_owned()));
    }
    let of_lanes = ["_lane", "_relay", "_key"].map(|suffix| quoted(table, suffix, '"'));
    if patient.settings.order.ordered.is_some() {
        for on in &of_lanes {
            for privilege in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
                if lacks(privilege, on).await? {
                    let what = format!("{privilege} on {on}, by which events are delivered in order");
                    refused.push((privilege, on, what));
                }
            }
        }
    }
    for (privilege, on, what) in refused {
        found.problem("privileges", format!("{user} may not {what}"), format!("GRANT {privilege} ON {on} TO {user}"));
    }
    // Whoever only relays needs no more.
    if lacks("INSERT", &events).await? {
        let fix = format!("GRANT INSERT ON {events} TO {user}");
        found.note("privileges of writers", format!("{user} may not write events"), fix);
    }
    let mut lacking = Vec::new();
    for column in CHANGED {
        let may = sqlx::query_scalar("SELECT has_column_privilege(to_regclass($1), $2, 'UPDATE')");
        let may: Option<bool> = may.bind(&events).bind(column).fetch_one(&mut *connection).await?;
        if may == Some(false) {
            lacking.push(column);
        }
    }
    if !lacking.is_empty() {
        let columns = lacking.join(", ");
        let what = format!("{user} may not change {columns}, so it cannot claim or settle");
        found.problem("privileges", what, format!("GRANT UPDATE ({columns}) ON {events} TO {user}"));
    }
    found.fine_unless_found("privileges", format!("{user} may do what a relay does"));
    Ok(())
}

async fn look_at_vacuum(connection: &mut PgConnection, table: &str, found: &mut Findings) -> Result<(), sqlx::Error> {
    let is_on: String = sqlx::query_scalar("SELECT current_setting('autovacuum')").fetch_one(&mut *connection).await?;
    if is_on == "off" {
        let what = "autovacuum is off for the whole server: every row that was claimed or settled leaves a dead one";
        found.problem("autovacuum", what, "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()");
    }
    // The server keeps the word that was said: off, no, 0, false, or the beginning of one.
    let disabled = sqlx::query_scalar::<_, String>(AssertSqlSafe(format!(
        "SELECT c.oid::regclass::text FROM pg_class c, pg_options_to_table(c.reloptions) AS option \
         WHERE CASE WHEN option_name = 'autovacuum_enabled' THEN NOT option_value::boolean ELSE FALSE END \
         AND c.oid IN {ITS_PARTS} ORDER BY 1"
    )));
    for of in disabled.bind(table).fetch_all(&mut *connection).await? {
        let fix = format!("ALTER TABLE {of} RESET (autovacuum_enabled)");
        found.problem("autovacuum", format!("autovacuum is off for {of}, which grows with every claim"), fix);
    }
    let row = sqlx::query(AssertSqlSafe(format!(
        "SELECT coalesce(sum(n_dead_tup), 0)::bigint, coalesce(sum(n_live_tup), 0)::bigint, \
         coalesce(extract(epoch FROM clock_timestamp() - max(greatest(last_autovacuum, last_vacuum))), -1)::float8 \
         FROM pg_stat_all_tables WHERE relid IN {ITS_PARTS}"
    )));
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
    found.fine_unless_found("autovacuum", format!("{dead} dead rows, {live} live ones"));
    Ok(())
}

/// Tables and indexes that are much larger than what is in them. Each entry of the index on what is pending comes and goes.
async fn look_at_bloat(connection: &mut PgConnection, table: &str, found: &mut Findings) -> Result<(), sqlx::Error> {
    // How much is in them is known since the last VACUUM or ANALYZE, and of rows how wide they are to who may read them.
    let parts = sqlx::query_as::<_, (String, i64, i64, i64, bool)>(AssertSqlSafe(format!(
        "SELECT c.oid::regclass::text, pg_relation_size(c.oid), c.reltuples::bigint, \
         (SELECT coalesce(sum(avg_width), 0) FROM pg_stats \
          WHERE schemaname = n.nspname AND tablename = c.relname AND NOT inherited)::bigint, \
         c.reltuples = 0 OR (SELECT count(*) FROM pg_stats WHERE schemaname = n.nspname AND tablename = c.relname AND NOT inherited) \
          = (SELECT count(*) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND c.oid IN {ITS_PARTS} ORDER BY 1"
    )));
    for (of, bytes, rows, width, is_known) in parts.bind(table).fetch_all(&mut *connection).await? {
        // Half of every page is left free, on purpose.
        let expected = rows.saturating_mul(width + 60).saturating_mul(2);
        if bytes <= SMALL_TABLE {
            continue;
        }
        let taken = format!("the table {of} takes {} MiB", bytes >> 20);
        if rows < 0 || !is_known {
            let what = format!("{taken}, and for how much cannot be seen: it has no statistics that are for this user");
            found.note("bloat", what, format!("ANALYZE {of}, as its owner, and GRANT SELECT ON {of} to this user"));
        } else if bytes > expected.saturating_mul(3) {
            let what = format!("{taken} for about {rows} rows of {width} bytes");
            let fix = format!("pg_repack, or VACUUM FULL {of} while no relay runs; and keep less (retention_done)");
            found.warning("bloat", what, fix);
        }
    }
    let indexes = sqlx::query_as::<_, (String, i64, i64, bool)>(AssertSqlSafe(format!(
        "SELECT c.oid::regclass::text, pg_relation_size(c.oid), greatest(c.reltuples, 0)::bigint, \
         coalesce(s.last_vacuum, s.last_autovacuum, s.last_analyze, s.last_autoanalyze) IS NOT NULL \
         FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid LEFT JOIN pg_stat_all_tables s ON s.relid = i.indrelid \
         WHERE c.relkind = 'i' AND i.indrelid IN {ITS_PARTS} ORDER BY 1"
    )));
    for (index, bytes, entries, is_known) in indexes.bind(table).fetch_all(&mut *connection).await? {
        // An entry takes about 40 bytes, and pages are half empty at worst in an index that is well.
        if is_known && bytes > SMALL_INDEX && bytes / (entries + 1) > 400 {
            let what = format!("the index {index} takes {} MiB for about {entries} entries", bytes >> 20);
            found.warning("bloat", what, format!("REINDEX INDEX CONCURRENTLY {index}"));
        }
    }
    found.fine_unless_found("bloat", "table and indexes are about as large as what is in them");
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
         AND backend_type = 'client backend' AND datname = current_database() AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL OR state LIKE 'idle in%') \
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
    let none = format!("none that is seen is open for more than {:?}", patient.long_transaction);
    found.fine_unless_found("transactions", none);
    Ok(())
}

/// Slots that nobody reads keep the log, and some of them dead rows; so do those whose reader is far behind.
async fn look_at_slots(connection: &mut PgConnection, found: &mut Findings) -> Result<(), sqlx::Error> {
    let rows = sqlx::query(
        "SELECT slot_name::text, slot_type, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), \
         CASE WHEN active THEN coalesce(confirmed_flush_lsn, restart_lsn) ELSE restart_lsn END), 0)::bigint, active \
         FROM pg_replication_slots WHERE restart_lsn IS NOT NULL",
    );
    for row in rows.fetch_all(&mut *connection).await? {
        let (slot, kind, held, is_read): (String, String, i64, bool) = (row.get(0), row.get(1), row.get(2), row.get(3));
        if is_read {
            if held > HELD_LOG {
                let what =
                    format!("the reader of the {kind} replication slot {slot} is {} MiB of the log behind", held >> 20);
                found.warning(
                    "slots",
                    what,
                    "see why it is slow, or stop it and drop its slot; and set max_slot_wal_keep_size",
                );
            }
            continue;
        }
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
    found.fine_unless_found("slots", "there is no replication slot that nobody reads, or whose reader is far behind");
    // Those with hot_standby_feedback say which rows their own questions still need.
    // Where there is a slot, that stands in the slot.
    let standbys = sqlx::query_as::<_, (String, i64)>(
        "SELECT format('the standby \"%s\" (PID %s)', application_name, pid), age(backend_xmin)::bigint AS held \
         FROM pg_stat_replication WHERE age(backend_xmin) > $1 \
         UNION ALL SELECT format('the standby of the replication slot \"%s\"', slot_name), age(xmin)::bigint \
         FROM pg_replication_slots WHERE age(xmin) > $1 ORDER BY held DESC",
    );
    for (standby, held) in standbys.bind(HELD_TRANSACTIONS).fetch_all(connection).await? {
        let what = format!("{standby} keeps the dead rows of the last {held} transactions, for a question of its own");
        let fix = "end the long question there, or set hot_standby_feedback = off on that standby";
        found.warning("standbys", what, fix);
    }
    Ok(())
}

/// Asks for [`Figures`](super::waiting::Figures), of so many that are due first, or of all.
pub(super) fn waiting(table: &TableName, lease: f64, most: Option<usize>) -> String {
    let table = quoted(table, "", '"');
    let first = most.map_or_else(String::new, |most| format!(" ORDER BY available_at LIMIT {most}"));
    format!(
        "SELECT count(*) FILTER (WHERE expired), \
         coalesce(max(extract(epoch FROM now - locked_at)) FILTER (WHERE expired) - {lease}, 0)::float8, \
         min(locked_by) FILTER (WHERE expired), \
         count(*) FILTER (WHERE locked_by IS NULL AND available_at <= now), \
         coalesce(max(extract(epoch FROM now - available_at)) FILTER (WHERE locked_by IS NULL AND available_at <= now), 0)::float8, \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
         FROM (SELECT available_at, locked_at, locked_by, now, coalesce(locked_at < now - make_interval(secs => {lease}), FALSE) \
               AS expired FROM (SELECT available_at, locked_at, locked_by FROM {table} WHERE status IN (0, 2){first}) AS pending, \
               (SELECT clock_timestamp() AS now) AS clock) AS judged"
    )
}
