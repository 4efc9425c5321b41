//! What is said to MySQL and MariaDB.

use crate::dialect::{Dialect, Slots};
use crate::migrate::Migration;

/// The bound microseconds after 1970 as a moment, whatever the time zone of the session.
macro_rules! moment {
    () => {
        "TIMESTAMPADD(MICROSECOND, ?, TIMESTAMP'1970-01-01 00:00:00')"
    };
}

/// A moment as microseconds after 1970.
macro_rules! micros {
    ($column:literal) => {
        concat!("TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', ", $column, ")")
    };
}

/// The columns of an event, in the order in which [`row`](super::row) reads them.
macro_rules! event_columns {
    () => {
        concat!(
            "event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload, \
             payload_bytes, headers, ",
            micros!("occurred_at"),
            " AS occurred_at, ",
            micros!("created_at"),
            " AS created_at, seq, attempts"
        )
    };
}

/// What a claim may take, but for the moment from which on it looks.
macro_rules! claimable {
    () => {
        "stage = 0 AND stage_at <= UTC_TIMESTAMP(6) \
         AND created_at <= TIMESTAMPADD(MICROSECOND, -?, UTC_TIMESTAMP(6)) \
         AND (locked_by IS NULL OR locked_at IS NULL \
              OR locked_at <= TIMESTAMPADD(MICROSECOND, -?, UTC_TIMESTAMP(6)))"
    };
}

// After the macros, which it uses.
pub(super) mod lanes;

/// In a template, `{rows}` stands for as many of the rows below as a statement is about.
pub(super) const DIALECT: Dialect = Dialect {
    quote: '`',
    moment: ("TIMESTAMPADD(MICROSECOND, ", ", TIMESTAMP'1970-01-01 00:00:00')"),
    error_contains: ("LOCATE(", ", last_error) > 0"),
    slots: Slots {
        insert: "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, \
                 content_type, payload, payload_bytes, headers, occurred_at, available_at, locked_by, locked_at, \
                 created_at, status, attempts) VALUES {rows}",
        // Locked, because a transaction does not otherwise see what others committed since it began.
        taken: "SELECT event_id FROM {table} WHERE event_id IN ({rows}) LIMIT 1 LOCK IN SHARE MODE",

        claim: concat!(
            "SELECT ",
            event_columns!(),
            ", TIMESTAMPDIFF(MICROSECOND, available_at, UTC_TIMESTAMP(6)) AS late_by, ",
            micros!("available_at"),
            " AS available_at \
             FROM {table} FORCE INDEX (`{name}_stage`) \
             WHERE ",
            claimable!(),
            " AND stage_at >= ",
            moment!(),
            " ORDER BY stage_at, seq LIMIT ? FOR UPDATE"
        ),
        // At once, if there is something that a claim may take and this one has not taken.
        next_available: concat!(
            "SELECT COALESCE(\
                (SELECT 0 FROM {table} FORCE INDEX (`{name}_stage`) WHERE ",
            claimable!(),
            " LIMIT 1), \
                (SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), stage_at) \
                 FROM {table} FORCE INDEX (`{name}_stage`) \
                 WHERE stage = 0 AND stage_at > UTC_TIMESTAMP(6) ORDER BY stage_at LIMIT 1))"
        ),

        settle_done_run: "",
        settle_done_by_seq: "UPDATE {table} SET status = 1, done_at = UTC_TIMESTAMP(6), locked_by = NULL, \
                             locked_at = NULL WHERE seq IN ({rows}) AND locked_by = ? AND status IN (0, 2)",
        settle_done: "UPDATE {table} SET status = 1, done_at = UTC_TIMESTAMP(6), locked_by = NULL, locked_at = NULL \
                      WHERE (event_id, locked_by) IN ({rows}) AND status IN (0, 2)",
        delete_done_run: "",
        delete_done_by_seq: "DELETE FROM {table} WHERE seq IN ({rows}) AND locked_by = ? AND status IN (0, 2)",
        delete_done: "DELETE FROM {table} WHERE (event_id, locked_by) IN ({rows}) AND status IN (0, 2)",
        // Where a change is NULL the column stays as it is. STRAIGHT_JOIN makes it go from the changes to the rows.
        settle_other: "UPDATE ({rows}) AS s STRAIGHT_JOIN {table} AS t \
                       ON t.event_id = s.event_id AND t.locked_by = s.lease \
                       SET t.status = COALESCE(s.status, t.status), t.attempts = t.attempts + s.attempts, \
                       t.available_at = COALESCE(TIMESTAMPADD(MICROSECOND, s.delay, UTC_TIMESTAMP(6)), t.available_at), \
                       t.done_at = IF(s.status = 3, UTC_TIMESTAMP(6), t.done_at), \
                       t.last_error = COALESCE(s.error, t.last_error), t.locked_by = NULL, t.locked_at = NULL \
                       WHERE t.status IN (0, 2)",
        held: "SELECT event_id, locked_by FROM {table} \
               WHERE (event_id, locked_by) IN ({rows}) AND status IN (0, 2) FOR UPDATE",
        renew: "UPDATE {table} SET locked_at = UTC_TIMESTAMP(6) \
                WHERE (event_id, locked_by) IN ({rows}) AND status IN (0, 2)",
        release_all: "UPDATE {table} FORCE INDEX (`{name}_stage`) SET locked_by = NULL, locked_at = NULL \
                      WHERE stage = 0 AND locked_by IS NOT NULL",

        counts: "SELECT CAST(status AS SIGNED), COUNT(*) FROM {table} FORCE INDEX (`{name}_stage`) GROUP BY status",
        records: concat!(
            "SELECT ",
            event_columns!(),
            ", status, last_error, locked_by, ",
            micros!("available_at"),
            " AS available_at, ",
            micros!("done_at"),
            " AS done_at, ",
            micros!("locked_at"),
            " AS locked_at FROM {table} WHERE TRUE"
        ),
        dead: "SELECT seq FROM {table} FORCE INDEX (`{name}_stage`) WHERE stage = 3",
        dead_numbered: "SELECT seq FROM {table} FORCE INDEX (PRIMARY) WHERE stage = 3 AND seq IN (",
        redrive: "UPDATE {table} SET status = 0, attempts = 0, available_at = UTC_TIMESTAMP(6), done_at = NULL, \
                  last_error = NULL, locked_by = NULL, locked_at = NULL WHERE stage = 3",
        discard: "DELETE FROM {table} WHERE stage = 3",
        purge: "DELETE FROM {table} WHERE ",
        // A delete here says by itself which rows it is about.
        purgeable: "",
        // An index on created_at would cost every insert. Numbers rise with the moments of inserts, but for some that happened
        // at the same time, so what is old is among the first; when none of them is, the rest is not walked.
        oldest: "SELECT MIN(seq) + 999 FROM {table}",

        pauses: concat!(
            "SELECT CAST(kind AS SIGNED), name, reason, ",
            micros!("since"),
            " FROM {schema}`{name}_pause` ORDER BY since, kind, name"
        ),
        pause: "INSERT IGNORE INTO {schema}`{name}_pause` (kind, name, reason, since) VALUES (?, ?, ?, UTC_TIMESTAMP(6))",
        resume: "DELETE FROM {schema}`{name}_pause` WHERE kind = ? AND name = ?",

        create_history: "CREATE TABLE IF NOT EXISTS {schema}posthaste_migration (\
                         table_name VARCHAR(64) NOT NULL, version BIGINT NOT NULL, name VARCHAR(255) NOT NULL, \
                         applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)), \
                         PRIMARY KEY (table_name, version)) \
                         ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        applied: "SELECT COALESCE(MAX(version), 0) FROM {schema}posthaste_migration WHERE table_name = ?",
        record_applied: "INSERT INTO {schema}posthaste_migration (table_name, version, name) VALUES (?, ?, ?)",
    },
};

/// One row of an insert. Availability is a length of time from 1970 on, or from now on.
pub(super) const INSERT_ROW: &str = concat!(
    "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ",
    moment!(),
    ", TIMESTAMPADD(MICROSECOND, ?, IF(?, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))), \
     ?, IF(?, UTC_TIMESTAMP(6), NULL), UTC_TIMESTAMP(6), 0, 0)"
);

/// The columns of rows of the usual kind: of JSON, to be delivered at once, without anything that an event need not have.
macro_rules! insert_plain {
    ($lease:literal) => {
        concat!(
            "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, content_type, payload, occurred_at, \
             created_at, available_at",
            $lease,
            ") VALUES {rows}"
        )
    };
}

/// One of them.
macro_rules! insert_plain_row {
    ($lease:literal) => {
        concat!("(?, ?, ?, ?, ?, ?, ", moment!(), ", UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)", $lease, ")")
    };
}

pub(super) const INSERT_PLAIN: &str = insert_plain!("");
pub(super) const INSERT_PLAIN_ROW: &str = insert_plain_row!("");
pub(super) const INSERT_LEASED: &str = insert_plain!(", locked_at, locked_by");
pub(super) const INSERT_LEASED_ROW: &str = insert_plain_row!(", UTC_TIMESTAMP(6), ?");

/// The same row, but refused with [`OUT_OF_RANGE`](super::fault) where no transaction is open, or where that cannot be told:
/// without `autocommit` every statement is in one.
pub(super) fn asking(row: &str) -> String {
    row.replacen('?', "IF(@@in_transaction AND @@autocommit, ?, ~0 + 1)", 1)
}

/// Begins a transaction, with a savepoint that ends with it, whoever ends it.
pub(super) const BEGIN_OWN: &str = "BEGIN; SAVEPOINT posthaste_begin";

/// Commits it. Refused, and nothing is committed, unless it is the very transaction that was begun.
pub(super) const COMMIT_OWN: &str = "RELEASE SAVEPOINT posthaste_begin; COMMIT";

/// The same, and says which of some events are in it.
pub(super) const COMMIT_LOOKING: &str = "RELEASE SAVEPOINT posthaste_begin; \
     SELECT event_id FROM {table} WHERE event_id IN ({ids}); COMMIT";

/// Refused in a transaction, and changes nothing outside.
pub(super) const ASK: &str = "SET TRANSACTION READ WRITE";

/// One of many values.
pub(super) const VALUE: &str = "?";

/// One of many ids with their leases.
pub(super) const LEASE: &str = "(?, ?)";

/// One of many changes to rows: id, lease, status, attempts to add, delay, error.
pub(super) const CHANGE: &str = "SELECT ? AS event_id, ? AS lease, CAST(? AS SIGNED) AS status, \
                                 CAST(? AS SIGNED) AS attempts, CAST(? AS SIGNED) AS delay, ? AS error";

/// Passes by rows that other claims are at, where the server can. Without it a claim waits for the one before.
pub(super) const SKIP_LOCKED: &str = " SKIP LOCKED";

/// Leases the rows that a claim has locked.
pub(super) const LEASE_CLAIMED: &str =
    "UPDATE {table} SET locked_by = ?, locked_at = UTC_TIMESTAMP(6) WHERE seq IN ({rows})";

/// The numbers of DEAD rows whose ids follow.
pub(super) const DEAD_NAMED: &str = "SELECT seq FROM {table} WHERE stage = 3 AND event_id IN (";

/// Begins a transaction that locks the rows it found and not the gaps between them, where producers insert.
pub(super) const BEGIN_RELAY: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

/// What there is to know of the server. One that has no `in_transaction` passes it over.
pub(super) const VARIABLES: &str =
    "SHOW VARIABLES WHERE Variable_name IN ('version', 'max_allowed_packet', 'in_transaction')";

/// What of the server, or of the session, keeps a connection from writing; nothing if it can. A server that does not know
/// one of these variables passes it over.
pub(super) const READ_ONLY: &str = "SHOW VARIABLES WHERE Value <> 'OFF' AND Variable_name IN \
                                    ('read_only', 'super_read_only', 'innodb_read_only', 'transaction_read_only', \
                                     'tx_read_only')";

/// Fails unless the table is the one that the migrations make.
pub(super) const PROBE: &str = "SELECT seq, event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, \
                                payload, payload_bytes, content_type, headers, status, attempts, available_at, \
                                created_at, occurred_at, done_at, last_error, locked_by, locked_at, stage, stage_at \
                                FROM {table} FORCE INDEX (`{name}_stage`) WHERE stage IS NULL LIMIT 0";

/// The name of a lock for a schema and a table. It must be short; MySQL has no MD5 any more.
macro_rules! migration_lock {
    () => {
        "CONCAT('posthaste ', LEFT(SHA2(CONCAT(COALESCE(?, DATABASE(), ''), '.', ?), 256), 32))"
    };
}

/// Locks out other processes that migrate the same table.
pub(super) const LOCK_MIGRATION: &str = concat!("SELECT GET_LOCK(", migration_lock!(), ", ?)");

/// Lets them in again.
pub(super) const UNLOCK_MIGRATION: &str = concat!("DO RELEASE_LOCK(", migration_lock!(), ")");

/// In it, `{procedure}` stands for its name, and `{comment}` for what it is known by.
pub(super) const WRITE_PROCEDURE: &str = include_str!("sql/write_procedure.sql");

/// What the procedure that is there is known by.
pub(super) const WRITE_PROCEDURE_COMMENT: &str = "SELECT CAST(routine_comment AS CHAR) FROM information_schema.routines \
     WHERE routine_schema = COALESCE(?, DATABASE()) AND routine_name = ? AND routine_type = 'PROCEDURE'";

pub(super) const MIGRATIONS: &[Migration] = &[
    Migration { name: "create the table", sql: include_str!("sql/1_create_the_table.sql") },
    Migration { name: "keep pauses", sql: include_str!("sql/2_keep_pauses.sql") },
];
