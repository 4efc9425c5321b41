//! What is said to each database.

/// The statements of one database.
pub(super) struct Sql {
    pub(super) create: &'static [&'static str],
    pub(super) insert_key: &'static str,
    pub(super) raise_number: &'static str,
    pub(super) number: &'static str,
    pub(super) insert_ledger: &'static str,
    pub(super) settle_unfenced: &'static str,
    pub(super) insert_malformed: &'static str,
    pub(super) lock: &'static [&'static str],
    pub(super) unlock: &'static [&'static str],
    /// What finds damage, answered with OK in the last row, and what mends it.
    pub(super) repair: &'static [(&'static str, &'static str)],
    /// The other connections, by number.
    pub(super) others: &'static str,
    /// What ends one of them: before and after its number.
    pub(super) terminate: (&'static str, &'static str),
    pub(super) ledger: &'static str,
    pub(super) rows: &'static str,
    pub(super) changes: &'static str,
    /// How many pending rows are leased by owners whose names begin like this.
    pub(super) leased: &'static str,
    /// How many leases of such owners were taken over.
    pub(super) taken_over: &'static str,
}

/// The name of a status by its code.
pub(super) fn status(code: i16) -> String {
    match code {
        0 => "new",
        1 => "done",
        2 => "retry",
        3 => "dead",
        _ => "unheard of",
    }
    .to_owned()
}

const KEYS: &str = "CREATE TABLE ledger_key (name VARCHAR(64) PRIMARY KEY, number BIGINT NOT NULL)";
const LEDGER: &str = "CREATE TABLE ledger (id VARCHAR(36) PRIMARY KEY, event_type VARCHAR(64) NOT NULL, \
                      name VARCHAR(64) NOT NULL, number BIGINT NOT NULL, hash BIGINT NOT NULL, poison SMALLINT NOT NULL)";
const ALL_LEDGER: &str = "SELECT id, event_type, name, number, hash, poison FROM ledger";
const ALL_ROWS: &str = "SELECT event_id, status, attempts, last_error FROM outbox_event";
const ALL_CHANGES: &str = "SELECT event_id, old_status, new_status, old_lease, new_lease, noted_at, held_ms \
     FROM outbox_change ORDER BY number";

pub(super) const POSTGRES: Sql = Sql {
    create: &[
        KEYS,
        LEDGER,
        "CREATE TABLE outbox_change (number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id TEXT NOT NULL, \
         old_status SMALLINT NOT NULL, new_status SMALLINT NOT NULL, old_lease TEXT, new_lease TEXT, \
         noted_at BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, held_ms BIGINT)",
        "CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
            INSERT INTO outbox_change (event_id, old_status, new_status, old_lease, new_lease, held_ms) \
            VALUES (OLD.event_id, OLD.status, NEW.status, OLD.locked_by, NEW.locked_by, \
                    (extract(epoch FROM clock_timestamp() - OLD.locked_at) * 1000)::bigint); RETURN NULL; END $$",
        "CREATE TRIGGER note_change AFTER UPDATE ON outbox_event FOR EACH ROW \
         WHEN (OLD.status <> NEW.status OR (OLD.locked_by IS NOT NULL AND NEW.locked_by IS DISTINCT FROM OLD.locked_by)) \
         EXECUTE FUNCTION note_change()",
    ],
    insert_key: "INSERT INTO ledger_key (name, number) VALUES ($1, 0)",
    raise_number: "UPDATE ledger_key SET number = number + 1 WHERE name = $1",
    number: "SELECT number FROM ledger_key WHERE name = $1",
    insert_ledger: "INSERT INTO ledger (id, event_type, name, number, hash, poison) VALUES ($1, $2, $3, $4, $5, $6)",
    settle_unfenced: "UPDATE outbox_event SET status = 1, done_at = now(), locked_by = NULL, locked_at = NULL \
                      WHERE event_id = $1",
    insert_malformed: "INSERT INTO outbox_event (event_id, event_type, payload, headers) VALUES ($1, 'Odd', '{}', 'no')",
    lock: &["BEGIN", "LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE"],
    unlock: &["COMMIT"],
    repair: &[],
    others: "SELECT pid::bigint FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    terminate: ("SELECT pg_terminate_backend(", ")"),
    ledger: ALL_LEDGER,
    rows: ALL_ROWS,
    changes: ALL_CHANGES,
    leased: "SELECT count(*) FROM outbox_event WHERE status IN (0, 2) AND locked_by LIKE $1 || '-%'",
    taken_over: "SELECT count(*) FROM outbox_change WHERE old_lease LIKE $1 || '-%' AND new_lease IS NOT NULL",
};

pub(super) const MARIADB: Sql = Sql {
    create: &[
        KEYS,
        LEDGER,
        "CREATE TABLE outbox_change (number BIGINT AUTO_INCREMENT PRIMARY KEY, event_id VARCHAR(255) NOT NULL, \
         old_status SMALLINT NOT NULL, new_status SMALLINT NOT NULL, old_lease VARCHAR(255), new_lease VARCHAR(255), \
         noted_at BIGINT NOT NULL, held_ms BIGINT)",
        "CREATE TRIGGER note_change AFTER UPDATE ON outbox_event FOR EACH ROW \
         IF OLD.status <> NEW.status OR (OLD.locked_by IS NOT NULL AND NOT NEW.locked_by <=> OLD.locked_by) THEN \
            INSERT INTO outbox_change (event_id, old_status, new_status, old_lease, new_lease, noted_at, held_ms) \
            VALUES (OLD.event_id, OLD.status, NEW.status, OLD.locked_by, NEW.locked_by, \
                    CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED), \
                    TIMESTAMPDIFF(MICROSECOND, OLD.locked_at, UTC_TIMESTAMP(6)) DIV 1000); \
         END IF",
    ],
    insert_key: "INSERT INTO ledger_key (name, number) VALUES (?, 0)",
    raise_number: "UPDATE ledger_key SET number = number + 1 WHERE name = ?",
    number: "SELECT number FROM ledger_key WHERE name = ?",
    insert_ledger: "INSERT INTO ledger (id, event_type, name, number, hash, poison) VALUES (?, ?, ?, ?, ?, ?)",
    settle_unfenced: "UPDATE outbox_event SET status = 1, done_at = UTC_TIMESTAMP(6), locked_by = NULL, locked_at = NULL \
                      WHERE event_id = ?",
    insert_malformed: "INSERT INTO outbox_event (event_id, event_type, payload, headers) VALUES (?, 'Odd', '{}', 'no')",
    lock: &["LOCK TABLES outbox_event WRITE"],
    unlock: &["UNLOCK TABLES"],
    // MariaDB 10.11 aborts when the disk is full in a rollback, and may leave entries of indexes without their rows.
    repair: &[
        ("CHECK TABLE outbox_event", "ALTER TABLE outbox_event FORCE"),
        ("CHECK TABLE ledger", "ALTER TABLE ledger FORCE"),
        ("CHECK TABLE outbox_change", "ALTER TABLE outbox_change FORCE"),
    ],
    others: "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
             WHERE db = database() AND id <> connection_id()",
    terminate: ("KILL", ""),
    ledger: ALL_LEDGER,
    rows: "SELECT event_id, CAST(status AS SIGNED), attempts, last_error FROM outbox_event",
    changes: ALL_CHANGES,
    leased: "SELECT count(*) FROM outbox_event WHERE status IN (0, 2) AND locked_by LIKE concat(?, '-%')",
    taken_over: "SELECT count(*) FROM outbox_change WHERE old_lease LIKE concat(?, '-%') AND new_lease IS NOT NULL",
};

pub(super) const SQLITE: Sql = Sql {
    create: &[
        KEYS,
        LEDGER,
        "CREATE TABLE outbox_change (number INTEGER PRIMARY KEY, event_id TEXT NOT NULL, old_status INTEGER NOT NULL, \
         new_status INTEGER NOT NULL, old_lease TEXT, new_lease TEXT, noted_at INTEGER NOT NULL \
         DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)), held_ms INTEGER)",
        "CREATE TRIGGER note_change AFTER UPDATE ON outbox_event FOR EACH ROW \
         WHEN old.status <> new.status OR (old.locked_by IS NOT NULL AND new.locked_by IS NOT old.locked_by) BEGIN \
            INSERT INTO outbox_change (event_id, old_status, new_status, old_lease, new_lease, held_ms) \
            VALUES (old.event_id, old.status, new.status, old.locked_by, new.locked_by, \
                    CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - old.locked_at / 1000); \
         END",
    ],
    insert_key: MARIADB.insert_key,
    raise_number: MARIADB.raise_number,
    number: MARIADB.number,
    insert_ledger: MARIADB.insert_ledger,
    settle_unfenced: "UPDATE outbox_event SET status = 1, done_at = 1, locked_by = NULL, locked_at = NULL \
                      WHERE event_id = ?",
    insert_malformed: MARIADB.insert_malformed,
    lock: &["BEGIN EXCLUSIVE"],
    unlock: &["COMMIT"],
    repair: &[],
    // There are none to be seen.
    others: "SELECT 0 WHERE FALSE",
    terminate: ("SELECT", ""),
    ledger: ALL_LEDGER,
    rows: ALL_ROWS,
    changes: ALL_CHANGES,
    leased: "SELECT count(*) FROM outbox_event WHERE status IN (0, 2) AND locked_by LIKE ? || '-%'",
    taken_over: "SELECT count(*) FROM outbox_change WHERE old_lease LIKE ? || '-%' AND new_lease IS NOT NULL",
};
