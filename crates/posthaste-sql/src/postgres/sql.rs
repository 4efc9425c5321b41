//! What is said to PostgreSQL.

use crate::dialect::{Dialect, Slots};
use crate::migrate::Migration;

/// The columns of an event, in the order in which [`row`](super::row) reads them.
macro_rules! event_columns {
    () => {
        "event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload, payload_bytes, \
         headers, occurred_at, created_at, seq, attempts, available_at"
    };
}

/// The columns of an insert, and the moment of it.
macro_rules! insert_into {
    () => {
        "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, \
         payload, payload_bytes, headers, occurred_at, created_at, available_at, locked_by, locked_at) "
    };
}

/// When the next row that waits becomes available.
macro_rules! next_available {
    () => {
        "(SELECT min(available_at) FROM {table} \
         WHERE status IN (0, 2) AND available_at > (SELECT clock_timestamp()))"
    };
}

/// Has the statement planned anew each time. PostgreSQL would keep a plan that it made while the table was small, and walk
/// the whole of it with that plan once it is large. The parameter is true, so a plan for the values at hand has no use for
/// the count; a plan for any values has to reckon with it, and looks too dear to be kept.
macro_rules! planned_anew {
    ($parameter:literal) => {
        concat!("AND (", $parameter, " OR (SELECT count(*) FROM generate_series(1, 1000000000)) = 0) ")
    };
}

/// Has the statement not wait for the disk. A lease that a crash of the server takes back was held for nothing: the row is
/// claimed again, and what was delivered under it is settled by nobody and delivered again.
macro_rules! without_the_disk {
    () => {
        "AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off' "
    };
}

/// Pending rows. The status is hidden in a sum: from statistics that were taken when everything was done, the planner would
/// conclude that it finds nothing, and join accordingly.
macro_rules! pending {
    () => {
        "AND t.status + 0 NOT IN (1, 3) "
    };
}

/// Pending rows under the leases of `s`.
macro_rules! held {
    () => {
        concat!("AND t.locked_by = s.lease ", pending!())
    };
}

/// Which rows a claim takes, in their order. A range with both ends looks narrow to the planner, and a limit that it does not
/// see makes it reckon with few of those. So it walks the index in order, and merges what the indexes of partitions say,
/// whatever it knows of the table, instead of fetching and sorting all that is pending.
macro_rules! claimable {
    ($table:literal, $available_since:literal, $since:literal) => {
        concat!(
            "FROM ",
            $table,
            " WHERE status IN (0, 2) \
             AND available_at <= (SELECT clock_timestamp()) AND available_at >= ",
            $available_since,
            " AND created_at <= (SELECT clock_timestamp() - $2) AND created_at >= ",
            $since,
            " AND (locked_by IS NULL OR locked_at IS NULL OR locked_at <= (SELECT clock_timestamp() - $3)) \
             ORDER BY available_at, seq LIMIT (SELECT $4::bigint) FOR UPDATE SKIP LOCKED"
        )
    };
}

/// What makes a row claimable, once more, for the statement that finds rows by their numbers: in a table with partitions
/// another row may have the same number. The clock has gone on since the first look, so it says no less. The status is in a
/// sum, lest an index on pending rows be walked instead.
macro_rules! still_claimable {
    () => {
        "AND status + 0 NOT IN (1, 3) AND available_at <= (SELECT clock_timestamp()) \
         AND created_at <= (SELECT clock_timestamp() - $2) \
         AND (locked_by IS NULL OR locked_at IS NULL OR locked_at <= (SELECT clock_timestamp() - $3)) "
    };
}

/// Leases rows of that table and returns them. They are found once more by that column, under that condition.
macro_rules! claim {
    ($table:literal, $column:literal, $still_claimable:expr, $planned:expr) => {
        concat!(
            "UPDATE ",
            $table,
            " SET locked_by = $1, locked_at = (SELECT clock_timestamp()) WHERE ",
            $column,
            " = ANY (ARRAY(SELECT ",
            $column,
            " ",
            claimable!($table, "coalesce($5::timestamptz, '-infinity')", "'-infinity'"),
            ")) ",
            $still_claimable,
            without_the_disk!(),
            $planned,
            "RETURNING ",
            event_columns!(),
            ", locked_at, ",
            next_available!()
        )
    };
}

/// Pending rows whose numbers are between $4 and $5, under their leases, of a table in which no two have the same number: $1 has the number from which on each lease of $2 is
/// expected, or none. So they are found in one walk over the index.
macro_rules! held_in_runs {
    () => {
        concat!(
            "WHERE t.seq >= $4 AND t.seq <= $5 AND t.locked_by = ($2::text[])[width_bucket(t.seq, $1::bigint[])] ",
            pending!()
        )
    };
}

/// Pending rows with these numbers, under their leases: $5 has the number from which on each lease of $2 is expected, which
/// needs no join, and few leases for many rows. Ids tell those apart that have the same number in several partitions. Nothing
/// is added to the id, so that no index is searched for it as well.
macro_rules! held_by_seq {
    () => {
        concat!(
            "WHERE t.seq = ANY ($1) AND t.event_id || '' = ANY ($4) \
             AND t.locked_by = ($2::text[])[width_bucket(t.seq, $5::bigint[])] ",
            pending!()
        )
    };
}

/// What makes a row DONE.
macro_rules! done {
    () => {
        "SET status = 1, done_at = (SELECT clock_timestamp()), locked_by = NULL, locked_at = NULL "
    };
}

/// Settlements of every kind, each with its place.
macro_rules! settlements {
    () => {
        "unnest($1::text[], $2::text[], $4::smallint[], $5::integer[], $6::interval[], $7::text[]) \
         WITH ORDINALITY AS s (event_id, lease, status, attempts, delay, error, place) \
         WHERE t.event_id = ANY ($1) AND t.event_id = s.event_id "
    };
}

/// What a settlement of any kind makes of a row. Where a change is NULL the column stays as it is.
macro_rules! change {
    () => {
        "SET status = coalesce(s.status, t.status), attempts = t.attempts + s.attempts, \
         available_at = coalesce((SELECT clock_timestamp()) + s.delay, t.available_at), \
         done_at = CASE WHEN s.status IN (1, 3) THEN (SELECT clock_timestamp()) ELSE t.done_at END, \
         last_error = coalesce(s.error, t.last_error), locked_by = NULL, locked_at = NULL "
    };
}

/// Settles rows of every kind.
macro_rules! settle_other {
    ($($condition:literal)?) => {
        concat!(
            "UPDATE {table} AS t ",
            change!(),
            "FROM ",
            settlements!(),
            held!(),
            $($condition,)?
            planned_anew!("$3"),
            "RETURNING s.place"
        )
    };
}

// After the macros, which it uses.
pub(super) mod lanes;

// The clock is asked in a subquery: so it is asked once, after the rows that a statement sees were written, and what it
// says can be looked up in an index. now() would be the moment at which the transaction began.
pub(super) const DIALECT: Dialect = Dialect {
    quote: '"',
    moment: ("TIMESTAMPTZ 'epoch' + INTERVAL '1 microsecond' * ", ""),
    error_contains: ("strpos(last_error, ", ") > 0"),
    slots: Slots {
        // Many rows, a column an array.
        insert: concat!(
            insert_into!(),
            "SELECT event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload, \
             payload_bytes, headers, occurred_at, statement_timestamp(), \
             coalesce(available_at, statement_timestamp() + delay), lease, \
             CASE WHEN lease IS NOT NULL THEN statement_timestamp() END \
             FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], \
             $9::bytea[], $10::text[], $11::timestamptz[], $12::timestamptz[], $13::interval[], $14::text[]) \
             AS event (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload, \
             payload_bytes, headers, occurred_at, available_at, delay, lease)"
        ),
        // The error of a refused insert says it, and nothing else can be asked in that transaction.
        taken: "",

        claim: claim!("{table}", "seq", still_claimable!(), planned_anew!("$6")),
        // Also what a claim of up to $1 ago has not seen yet, and nobody has leased since.
        next_available: "SELECT (SELECT min(available_at) FROM {table} \
                          WHERE status IN (0, 2) AND available_at > (SELECT clock_timestamp() - $1) \
                          AND (available_at > (SELECT clock_timestamp()) \
                               OR locked_by IS NULL AND created_at <= (SELECT clock_timestamp() - $2))), \
                         clock_timestamp()",

        settle_done_run: concat!(
            "UPDATE ONLY {table} AS t ",
            done!(),
            held_in_runs!(),
            planned_anew!("$3"),
            "RETURNING t.seq"
        ),
        settle_done_by_seq: concat!(
            "UPDATE {table} AS t ",
            done!(),
            held_by_seq!(),
            planned_anew!("$3"),
            "RETURNING t.seq"
        ),
        settle_done: concat!(
            "UPDATE {table} AS t ",
            done!(),
            "FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS s (event_id, lease, place) \
             WHERE t.event_id = ANY ($1) AND t.event_id = s.event_id ",
            held!(),
            planned_anew!("$3"),
            "RETURNING s.place"
        ),
        delete_done_run: concat!(
            "DELETE FROM ONLY {table} AS t ",
            held_in_runs!(),
            planned_anew!("$3"),
            "RETURNING t.seq"
        ),
        delete_done_by_seq: concat!(
            "DELETE FROM {table} AS t ",
            held_by_seq!(),
            planned_anew!("$3"),
            "RETURNING t.seq"
        ),
        delete_done: concat!(
            "DELETE FROM {table} AS t \
             USING unnest($1::text[], $2::text[]) WITH ORDINALITY AS s (event_id, lease, place) \
             WHERE t.event_id = ANY ($1) AND t.event_id = s.event_id ",
            held!(),
            planned_anew!("$3"),
            "RETURNING s.place"
        ),
        settle_other: settle_other!(),
        // Every settlement says by itself which leases stood.
        held: "",
        renew: concat!(
            "UPDATE {table} AS t SET locked_at = (SELECT clock_timestamp()) \
             FROM unnest($1::text[], $2::text[]) AS s (event_id, lease) \
             WHERE t.event_id = ANY ($1) AND t.event_id = s.event_id ",
            held!(),
            planned_anew!("$3"),
            "RETURNING t.event_id, t.locked_by"
        ),
        release_all: "UPDATE {table} SET locked_by = NULL, locked_at = NULL \
                      WHERE status IN (0, 2) AND locked_by IS NOT NULL",

        counts: "SELECT status, count(*) FROM {table} WHERE status IN (0, 2) GROUP BY status \
                 UNION ALL SELECT status, count(*) FROM {table} WHERE status IN (1, 3) GROUP BY status",
        records: concat!(
            "SELECT ",
            event_columns!(),
            ", status, done_at, last_error, locked_by, locked_at FROM {table} WHERE TRUE"
        ),
        dead: "SELECT seq FROM {table} WHERE status IN (1, 3) AND status = 3",
        // In words that do not lead to the index of what is DEAD.
        dead_numbered: "SELECT seq FROM {table} WHERE status + 0 = 3 AND seq = ANY (",
        redrive: "UPDATE {table} SET status = 0, attempts = 0, available_at = (SELECT clock_timestamp()), \
                  done_at = NULL, last_error = NULL, locked_by = NULL, locked_at = NULL WHERE seq = ANY (ARRAY(",
        discard: "DELETE FROM {table} WHERE seq = ANY (ARRAY(",
        purge: "DELETE FROM {table} WHERE seq = ANY (ARRAY(",
        purgeable: "SELECT seq FROM {table} WHERE ",
        // An index on created_at would cost every insert. Numbers rise with the moments of inserts, but for some that happened
        // at the same time, so what is old is among the first; when none of them is, the rest is not walked.
        oldest: "SELECT min(seq) + 999 FROM {table}",

        pauses: "SELECT kind, name, reason, (extract(epoch FROM since) * 1000000)::bigint \
                 FROM {schema}\"{name}_pause\" ORDER BY since, kind, name",
        pause: "INSERT INTO {schema}\"{name}_pause\" (kind, name, reason) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        resume: "DELETE FROM {schema}\"{name}_pause\" WHERE kind = $1 AND name = $2",

        create_history: "CREATE TABLE IF NOT EXISTS {schema}posthaste_migration (\
                         table_name TEXT NOT NULL, version BIGINT NOT NULL, name TEXT NOT NULL, \
                         applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), \
                         PRIMARY KEY (table_name, version))",
        applied: "SELECT coalesce(max(version), 0) FROM {schema}posthaste_migration WHERE table_name = $1",
        record_applied: "INSERT INTO {schema}posthaste_migration (table_name, version, name) VALUES ($1, $2, $3)",
    },
};

/// Settles rows of every kind, and deletes those that are done: one statement, so that it can be tried again as a whole.
pub(super) const SETTLE_AND_DELETE_DONE: &str = concat!(
    "WITH deleted AS (DELETE FROM {table} AS t USING ",
    settlements!(),
    held!(),
    "AND s.status = 1 ",
    planned_anew!("$3"),
    "RETURNING s.place), changed AS (",
    settle_other!("AND s.status IS DISTINCT FROM 1 "),
    ") SELECT place FROM deleted UNION ALL SELECT place FROM changed"
);

/// Leases rows of a table that is one in storage, too. Where they are stored finds them faster than their numbers do. It
/// changes when somebody changes them, but nobody does: they are locked. What was changed before that, after the statement
/// began, is passed over, and found by the next one, which may be an interval later. With ONLY no other table is touched,
/// whatever has become of this one since somebody asked.
pub(super) const CLAIM_FROM_ONE_TABLE: &str = claim!("ONLY {table}", "ctid", "", planned_anew!("$6"));

/// The same for few rows, of which most of the time would be planning. The server keeps its plan; see
/// [`KeptPlan`](super::kept_plan::KeptPlan).
pub(super) const CLAIM_FEW_FROM_ONE_TABLE: &str = claim!("ONLY {table}", "ctid", "", "");

/// Leases rows of a table in partitions that were inserted since a moment, and returns them. Partitions in which none of them
/// is are not searched for their numbers. When the next row becomes available is not told, since all partitions have to be asked
/// for that.
pub(super) const CLAIM_FROM_PARTITIONS: &str = concat!(
    "WITH taken AS MATERIALIZED (SELECT seq, created_at ",
    claimable!("{table}", "'-infinity'", "coalesce($5::timestamptz, '-infinity')"),
    ") UPDATE {table} SET locked_by = $1, locked_at = (SELECT clock_timestamp()) \
     WHERE seq = ANY (ARRAY(SELECT seq FROM taken)) AND created_at >= coalesce($5::timestamptz, '-infinity') \
     AND created_at >= (SELECT min(created_at) FROM taken) AND created_at <= (SELECT max(created_at) FROM taken) ",
    still_claimable!(),
    without_the_disk!(),
    planned_anew!("$6"),
    "RETURNING ",
    event_columns!(),
    ", locked_at, NULL::timestamptz"
);

/// What a settlement says of the rows in general, and for rows that were inserted since a moment, whose place among the
/// parameters is still to be put in.
pub(super) const PENDING: (&str, &str) = (pending!(), concat!("AND t.created_at >= {since} ", pending!()));

/// Rows of the usual kind: of JSON, all of one content type, to be delivered at once, without anything that an event need not
/// have.
pub(super) const INSERT_PLAIN: &str = "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, payload, \
     content_type, occurred_at, created_at, available_at, locked_by, locked_at) \
     SELECT event_id, event_type, aggregate_type, aggregate_id, payload, $8, occurred_at, statement_timestamp(), \
     statement_timestamp(), lease, CASE WHEN lease IS NOT NULL THEN statement_timestamp() END \
     FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[]) \
     AS event (event_id, event_type, aggregate_type, aggregate_id, payload, occurred_at, lease)";

/// The same of one type and under one lease, or none: what they share is sent once.
pub(super) const INSERT_ALIKE: &str = "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, payload, \
     content_type, occurred_at, created_at, available_at, locked_by, locked_at) \
     SELECT event_id, $5::text, $6::text, aggregate_id, payload, $7::text, occurred_at, statement_timestamp(), \
     statement_timestamp(), $8::text, CASE WHEN $8::text IS NOT NULL THEN statement_timestamp() END \
     FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) \
     AS event (event_id, aggregate_id, payload, occurred_at)";

/// One row.
pub(super) const INSERT_ONE: &str = concat!(
    insert_into!(),
    "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, statement_timestamp(), \
     coalesce($12, statement_timestamp() + $13), $14, CASE WHEN $14 IS NOT NULL THEN statement_timestamp() END)"
);

/// One row of the usual kind. What is not said costs nothing: neither to send nor to reckon with.
macro_rules! insert_one_plain {
    ($columns:literal, $values:literal) => {
        concat!(
            "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, payload, content_type, occurred_at, \
             created_at, available_at",
            $columns,
            ") VALUES ($1, $2, $3, $4, $5, $6, $7, statement_timestamp(), statement_timestamp()",
            $values,
            ")"
        )
    };
}
pub(super) const INSERT_ONE_PLAIN: &str = insert_one_plain!("", "");
pub(super) const INSERT_ONE_LEASED: &str = insert_one_plain!(", locked_at, locked_by", ", statement_timestamp(), $8");

/// Rows for drivers that bind texts, bytes and numbers, and nothing else. Says whether it happened in a savepoint: the rows of a
/// savepoint are of another transaction than the one around it. Partitions do not tell of which one a new row is, and to ask
/// them for it is refused; rows of a plain table have the number of that table. Says, too, which transaction it is.
pub(super) const INSERT_VALUES: &str = concat!(
    "WITH written AS (",
    insert_into!(),
    "VALUES {rows} RETURNING CASE WHEN tableoid = '{table}'::regclass THEN xmin END AS written_by) \
     SELECT coalesce(bool_or(written_by::text::bigint <> (txid_current() & 4294967295)), true) AS nested, \
     count(written_by) > 0 AS known, txid_current() AS txid FROM written"
);

/// How many parameters one of them has.
pub(super) const PARAMETERS: usize = 14;

/// One of them. Moments and lengths of time are microseconds.
pub(super) const INSERT_VALUES_ROW: &str = "($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, \
     $9::bytea, $10::text, TIMESTAMPTZ 'epoch' + $11::bigint * INTERVAL '1 microsecond', statement_timestamp(), \
     coalesce(TIMESTAMPTZ 'epoch' + $12::bigint * INTERVAL '1 microsecond', \
     statement_timestamp() + $13::bigint * INTERVAL '1 microsecond'), $14::text, \
     CASE WHEN $14::text IS NOT NULL THEN statement_timestamp() END)";

/// Commits, and says which of some events are in the transaction. The first two statements are refused where a COMMIT would be
/// answered with success although it commits nothing, and the second lets it be committed if the look is refused. A row that was
/// there before the transaction began is none of its own. Under SERIALIZABLE nothing is found: a look at the index would be in
/// conflict with everybody who inserts beside it.
pub(super) const COMMIT_LOOKING: &str = "SET CONSTRAINTS ALL IMMEDIATE; SAVEPOINT posthaste_look; \
     SELECT event_id FROM {table} WHERE event_id = ANY (ARRAY[{ids}]) AND created_at >= now(){since} \
     AND current_setting('transaction_isolation') <> 'serializable'; \
     COMMIT AND CHAIN";

/// The same after the look was refused.
pub(super) const COMMIT_WITHOUT_LOOKING: &str = "ROLLBACK TO SAVEPOINT posthaste_look; COMMIT AND CHAIN";

/// Begins a transaction that changes the schema. Under a stricter isolation, which may be the default of a session, what is
/// read after a lock would be as old as the transaction.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Lets one process at a time migrate. Ends with the transaction. The number is "posthast" in ASCII.
pub(super) const LOCK_MIGRATION: &str = "SELECT pg_advisory_xact_lock(8101821198467429236)";

/// Wakes relays, outside of any transaction of the user, and without waiting for the disk: a lost notice costs nothing.
pub(super) const NOTIFY: &str =
    "SELECT set_config('synchronous_commit', 'off', true), pg_notify('posthaste_{name}', '')";

/// The same for rows that were there before, with [`EVERYWHERE`].
pub(super) const NOTIFY_EVERYWHERE: &str =
    "SELECT set_config('synchronous_commit', 'off', true), pg_notify('posthaste_{name}', $1)";

/// What a notice says of rows that were there before. Older releases look at what is new, whatever a notice says.
pub(super) const EVERYWHERE: &str = "everywhere";

/// The channel of the notices. Without the schema, so that it does not matter who names it and who does not.
pub(super) const CHANNEL: &str = "posthaste_{name}";

/// See [`PgStore::wake_trigger_sql`](super::PgStore::wake_trigger_sql).
pub(super) const WAKE_TRIGGER: &str = include_str!("sql/wake_trigger.sql");

/// Whether the table is one in storage, too: no partitions, no heirs, no view, no other engine.
pub(super) const IS_ONE_TABLE: &str = "SELECT coalesce((SELECT relkind = 'r' AND NOT relhassubclass AND amname = 'heap' \
     FROM pg_class LEFT JOIN pg_am ON pg_am.oid = relam WHERE pg_class.oid = to_regclass('{table}')), false)";

/// Whether the table is in partitions; NULL when there is none.
pub(super) const IS_PARTITIONED: &str =
    "SELECT (SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass('{table}'))";

/// In it, `{function}` stands for its name.
pub(super) const WRITE_FUNCTION: &str = include_str!("sql/write_function.sql");

const KEEP_PAUSES: Migration = Migration { name: "keep pauses", sql: include_str!("sql/2_keep_pauses.sql") };

pub(super) const MIGRATIONS: &[Migration] =
    &[Migration { name: "create the table", sql: include_str!("sql/1_create_the_table.sql") }, KEEP_PAUSES];

/// Of a table in partitions, with the same versions.
pub(super) const PARTITIONED_MIGRATIONS: &[Migration] = &[
    Migration { name: "create the partitioned table", sql: include_str!("sql/1_create_the_partitioned_table.sql") },
    KEEP_PAUSES,
];
