//! What is said to SQLite.

use crate::dialect::{Dialect, Slots};
use crate::migrate::Migration;

/// The columns of an event, in the order in which [`row`](super::row) reads them.
macro_rules! event_columns {
    () => {
        "event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload, payload_bytes, \
         headers, occurred_at, created_at, seq, attempts, available_at"
    };
}

/// The same in two columns, as [`packed`](super::packed) reads them: all but the payload in a JSON array, with what else there is at its
/// end, and the payload, of which the array says what it is. No text and no number is as large as a BLOB, which SQLite would refuse
/// in the array, or take for JSON.
macro_rules! packed_columns {
    () => {
        packed_columns!("NULL")
    };
    ($leased_at:expr) => {
        concat!(
            "json_array(event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, headers, \
             occurred_at, created_at, seq, attempts, available_at, \
             (payload IS NOT NULL) + 2 * (payload_bytes IS NOT NULL) + 4 * coalesce(\
             event_type >= x'' OR aggregate_type >= x'' OR aggregate_id >= x'' OR tenant_id >= x'' OR topic >= x'' \
             OR content_type >= x'' OR headers >= x'' OR occurred_at >= x'' OR attempts >= x'' OR locked_at >= x'', 0), ",
            $leased_at,
            "), coalesce(payload, payload_bytes)"
        )
    };
}

/// What a claim does, but for what it returns. The index is named so that no statistics, taken at a bad moment, talk SQLite out of
/// using it.
macro_rules! claim {
    () => {
        "UPDATE {table} SET locked_by = ?1, locked_at = ?2 WHERE seq IN (\
            SELECT seq FROM {table} INDEXED BY \"{name}_pending\" \
            WHERE status IN (0, 2) AND available_at <= ?2 AND created_at <= ?3 \
            AND (locked_by IS NULL OR locked_at IS NULL OR locked_at <= ?4) \
            ORDER BY available_at, seq LIMIT ?5) \
         RETURNING "
    };
}

// After the macro, which it uses.
pub(super) mod lanes;

pub(super) const DIALECT: Dialect = Dialect {
    quote: '"',
    moment: ("", ""),
    error_contains: ("instr(last_error, ", ") > 0"),
    slots: Slots {
        insert: "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, \
                 content_type, payload, payload_bytes, headers, occurred_at, created_at, available_at, locked_by, \
                 locked_at, status, attempts) VALUES {rows}",
        taken: "SELECT event_id FROM {table} WHERE event_id IN (SELECT value FROM json_each(?1)) LIMIT 1",

        claim: concat!(claim!(), packed_columns!()),
        next_available: "SELECT min(available_at) FROM {table} INDEXED BY \"{name}_pending\" \
                         WHERE status IN (0, 2) AND available_at > ?1",

        // ?1 is a JSON array of seqs, which are rowids: no index has to be searched. OR ROLLBACK, because with the usual
        // OR ABORT SQLite copies every page before it changes it, to undo the one statement; here all is undone anyway.
        settle_done_by_seq: "UPDATE OR ROLLBACK {table} SET status = 1, done_at = ?3, locked_by = NULL, locked_at = NULL \
                             WHERE seq IN (SELECT value FROM json_each(?1)) AND locked_by = ?2 AND status IN (0, 2)",
        settle_done_run: "UPDATE OR ROLLBACK {table} SET status = 1, done_at = ?4, locked_by = NULL, locked_at = NULL \
                          WHERE seq BETWEEN ?1 AND ?2 AND locked_by = ?3 AND status IN (0, 2)",
        // ?1 is a JSON object of leases by event id. CROSS JOIN makes SQLite go from the object to the rows.
        settle_done: "UPDATE OR ROLLBACK {table} SET status = 1, done_at = ?2, locked_by = NULL, locked_at = NULL WHERE seq IN (\
                      SELECT t.seq FROM json_each(?1) AS s CROSS JOIN {table} AS t ON t.event_id = s.key \
                      WHERE t.locked_by = s.value AND t.status IN (0, 2))",
        delete_done_by_seq: "DELETE FROM {table} \
                             WHERE seq IN (SELECT value FROM json_each(?1)) AND locked_by = ?2 AND status IN (0, 2)",
        delete_done_run: "DELETE FROM {table} \
                          WHERE seq BETWEEN ?1 AND ?2 AND locked_by = ?3 AND status IN (0, 2)",
        delete_done: "DELETE FROM {table} WHERE seq IN (\
                      SELECT t.seq FROM json_each(?1) AS s CROSS JOIN {table} AS t ON t.event_id = s.key \
                      WHERE t.locked_by = s.value AND t.status IN (0, 2))",
        // ?1 is a JSON array of [id, lease, status, attempts to add, available_at, done_at, error], where NULL leaves
        // the column as it is.
        settle_other: "UPDATE {table} AS t SET status = coalesce(s.status, t.status), \
                       attempts = t.attempts + s.attempts, available_at = coalesce(s.available_at, t.available_at), \
                       done_at = coalesce(s.done_at, t.done_at), last_error = coalesce(s.last_error, t.last_error), \
                       locked_by = NULL, locked_at = NULL \
                       FROM (SELECT value ->> 0 AS event_id, value ->> 1 AS lease, value ->> 2 AS status, \
                             value ->> 3 AS attempts, value ->> 4 AS available_at, value ->> 5 AS done_at, \
                             value ->> 6 AS last_error FROM json_each(?1)) AS s \
                       WHERE t.event_id = s.event_id AND t.locked_by = s.lease AND t.status IN (0, 2)",
        held: "SELECT t.event_id FROM json_each(?1) AS s CROSS JOIN {table} AS t ON t.event_id = s.key \
               WHERE t.locked_by = s.value AND t.status IN (0, 2)",
        renew: "UPDATE {table} AS t SET locked_at = ?2 FROM json_each(?1) AS s \
                WHERE t.event_id = s.key AND t.locked_by = s.value AND t.status IN (0, 2) \
                RETURNING event_id, locked_by",
        release_all: "UPDATE {table} INDEXED BY \"{name}_pending\" SET locked_by = NULL, locked_at = NULL \
                      WHERE status IN (0, 2) AND locked_by IS NOT NULL",

        counts: "SELECT status, count(*) FROM {table} INDEXED BY \"{name}_pending\" WHERE status IN (0, 2) \
                 GROUP BY status \
                 UNION ALL SELECT status, count(*) FROM {table} INDEXED BY \"{name}_final\" WHERE status IN (1, 3) \
                 GROUP BY status",
        records: concat!(
            "SELECT ",
            event_columns!(),
            ", status, done_at, last_error, locked_by, locked_at FROM {table} WHERE TRUE"
        ),
        dead: "SELECT seq FROM {table} WHERE status IN (1, 3) AND status = 3",
        // What they are is asked by whoever changes them.
        dead_numbered: "SELECT value FROM json_each(",
        // NOT INDEXED leaves the number, and keeps SQLite from looking by a filter.
        redrive: "UPDATE {table} NOT INDEXED SET status = 0, attempts = 0, available_at = ?, done_at = NULL, \
                  last_error = NULL, locked_by = NULL, locked_at = NULL WHERE seq IN (",
        discard: "DELETE FROM {table} NOT INDEXED WHERE seq IN (",
        purge: "DELETE FROM {table} WHERE seq IN (",
        purgeable: "SELECT seq FROM {table} WHERE ",
        // An index on created_at would cost every insert. Numbers rise with the moments of inserts, but for some that happened
        // at the same time, so what is old is among the first; when none of them is, the rest is not walked.
        oldest: "SELECT min(seq) + 999 FROM {table}",

        pauses: "SELECT kind, name, reason, since FROM {schema}\"{name}_pause\" ORDER BY since, kind, name",
        pause: "INSERT OR IGNORE INTO {schema}\"{name}_pause\" (kind, name, reason, since) VALUES (?1, ?2, ?3, ?4)",
        resume: "DELETE FROM {schema}\"{name}_pause\" WHERE kind = ?1 AND name = ?2",

        create_history: "CREATE TABLE IF NOT EXISTS {schema}posthaste_migration (\
                         table_name TEXT NOT NULL COLLATE NOCASE, version INTEGER NOT NULL, name TEXT NOT NULL, \
                         applied_at INTEGER NOT NULL, PRIMARY KEY (table_name, version))",
        applied: "SELECT coalesce(max(version), 0) FROM {schema}posthaste_migration WHERE table_name = ?1",
        record_applied: "INSERT INTO {schema}posthaste_migration (table_name, version, name, applied_at) \
                         VALUES (?1, ?2, ?3, ?4)",
    },
};

/// A claim that returns every column by itself, whatever is in it.
pub(super) const CLAIM_WIDE: &str = concat!(claim!(), event_columns!());

/// That many pending rows under a lease, with every column by itself. A claim takes them in this order, so it walks no further than
/// the claim did.
pub(super) const LEASED_WIDE: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM {table} INDEXED BY \"{name}_pending\" WHERE status IN (0, 2) AND available_at <= ?2 AND locked_by = ?1 \
     ORDER BY available_at, seq LIMIT ?3"
);

/// The values of one row of an insert.
pub(super) const INSERT_ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0)";

/// Rows of the usual kind: of JSON, all of one content type and under one lease, to be delivered at once, without anything
/// that an event need not have. What they share is bound once. Parameters have no numbers, because those are looked up by
/// name, one after the other.
pub(super) const INSERT_PLAIN: &str = "INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, payload, \
     occurred_at, created_at, available_at, content_type, locked_by, locked_at, status, attempts) \
     SELECT column1, column2, column3, column4, column5, column6, ?, ?, ?, ?, ?, 0, 0 FROM (VALUES {rows})";

/// One of them.
pub(super) const INSERT_PLAIN_ROW: &str = "(?, ?, ?, ?, ?, ?)";

/// Asks whether a transaction is open: it is refused within one, and does nothing without. A part of the same message, it costs
/// next to nothing; a message of its own would make a transaction 12 % longer.
pub(super) const ASK: &str = "BEGIN; ROLLBACK";

/// One of the ids in a JSON array that no row has.
pub(super) const MISSING: &str = "SELECT s.value FROM json_each(?1) AS s \
     WHERE NOT EXISTS (SELECT 1 FROM {table} AS t WHERE t.event_id = s.value)";

/// Deletes the rows whose ids are in a JSON array.
pub(super) const TAKE_BACK: &str = "DELETE FROM {table} WHERE event_id IN (SELECT value FROM json_each(?1))";

pub(super) const MIGRATIONS: &[Migration] = &[
    Migration { name: "create the table", sql: include_str!("sql/1_create_the_table.sql") },
    Migration { name: "keep pauses", sql: include_str!("sql/2_keep_pauses.sql") },
];

/// Both, for rows that the tests of [`packed`](super::packed) make.
#[cfg(test)]
pub(super) const PACKED_AND_WIDE: [&str; 2] = [packed_columns!("locked_at"), concat!(event_columns!(), ", locked_at")];

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Row};

    use crate::SqliteStore;

    impl SqliteStore {
        /// How SQLite carries out a statement, a step a line.
        pub(in crate::sqlite) async fn plan(&self, sql: &str, parameters: usize) -> String {
            let mut query = sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}")));
            for _ in 0..parameters {
                query = query.bind("{}");
            }
            let steps = query.fetch_all(&self.pool).await.unwrap();
            steps.iter().map(|step| step.get::<String, _>("detail") + "\n").collect()
        }
    }

    #[tokio::test]
    async fn claims_walk_only_what_is_pending_and_sort_nothing() {
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        store.migrate().await.unwrap();
        let slots = &store.sql.slots;
        for claim in [&slots.claim, &store.sql.claim_wide] {
            let claim = store.plan(claim.as_str(), 5).await;
            assert!(claim.contains("SEARCH outbox_event USING INDEX outbox_event_pending (available_at<?)"), "{claim}");
            assert!(claim.contains("SEARCH outbox_event USING INTEGER PRIMARY KEY (rowid=?)"), "{claim}");
            assert!(!claim.contains("TEMP B-TREE") && !claim.contains("SCAN"), "{claim}");
        }
        let leased = store.plan(store.sql.leased_wide.as_str(), 3).await;
        assert!(leased.contains("USING INDEX outbox_event_pending (available_at<?)"), "{leased}");
        assert!(!leased.contains("TEMP B-TREE"), "{leased}");
        let next = store.plan(slots.next_available.as_str(), 1).await;
        assert!(next.contains("USING INDEX outbox_event_pending (available_at>?)"), "{next}");
    }

    #[tokio::test]
    async fn settlements_find_each_row_by_its_id() {
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        store.migrate().await.unwrap();
        let slots = &store.sql.slots;
        for (sql, parameters) in [
            (&slots.settle_done, 2),
            (&slots.delete_done, 1),
            (&slots.settle_other, 1),
            (&slots.held, 1),
            (&slots.renew, 2),
        ] {
            let plan = store.plan(sql.as_str(), parameters).await;
            assert!(plan.contains("SEARCH t USING INDEX sqlite_autoindex_outbox_event_1 (event_id=?)"), "{plan}");
            assert!(!plan.contains("SCAN t") && !plan.contains("TEMP B-TREE"), "{plan}");
        }
        for (sql, parameters) in [(&slots.settle_done_by_seq, 3), (&slots.delete_done_by_seq, 2)] {
            let plan = store.plan(sql.as_str(), parameters).await;
            assert!(plan.contains("SEARCH outbox_event USING INTEGER PRIMARY KEY (rowid=?)"), "{plan}");
        }
        for (sql, parameters) in [(&slots.settle_done_run, 4), (&slots.delete_done_run, 3)] {
            let plan = store.plan(sql.as_str(), parameters).await;
            assert!(plan.contains("SEARCH outbox_event USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"), "{plan}");
        }
    }

    #[tokio::test]
    async fn counts_never_walk_the_table() {
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        store.migrate().await.unwrap();
        let counts = store.plan(store.sql.slots.counts.as_str(), 0).await;
        assert!(counts.contains("INDEX outbox_event_pending"), "{counts}");
        assert!(counts.contains("COVERING INDEX outbox_event_final"), "{counts}");
    }

    #[tokio::test]
    async fn lanes_are_read_in_their_order_and_settled_by_number() {
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        store.migrate().await.unwrap();
        store.prepare_lanes().await.unwrap();
        let plan = async |template: &str, parameters| {
            store.plan(&super::DIALECT.fill(template, store.table()), parameters).await
        };
        for read in [super::lanes::READ, super::lanes::READ_WIDE] {
            let read = plan(read, 9).await;
            assert!(read.contains("SEARCH t USING INDEX outbox_event_lane_seq (seq>? AND seq<?)"), "{read}");
            assert!(!read.contains("TEMP B-TREE") && !read.contains("SCAN t"), "{read}");
        }
        for (template, parameters) in [(super::lanes::SETTLE_DONE, 2), (super::lanes::DELETE_DONE, 1)] {
            let settle = plan(template, parameters).await;
            assert!(settle.contains("SEARCH outbox_event USING INTEGER PRIMARY KEY (rowid=?)"), "{settle}");
        }
        for (template, parameters) in [(super::lanes::SETTLE_DONE_RUN, 3), (super::lanes::DELETE_DONE_RUN, 2)] {
            let settle = plan(template, parameters).await;
            assert!(settle.contains("SEARCH outbox_event USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"), "{settle}");
        }
        let other = plan(super::lanes::SETTLE_OTHER, 1).await;
        assert!(other.contains("SEARCH t USING INTEGER PRIMARY KEY (rowid=?)"), "{other}");
    }
}
