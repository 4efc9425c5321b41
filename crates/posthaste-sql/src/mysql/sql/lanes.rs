//! What is said to MySQL and MariaDB about lanes.

/// How many there are, which the expression below has one less of.
pub(in super::super) const LANES: u16 = 16;

/// Who has which lane.
macro_rules! lanes {
    () => {
        "{schema}`{name}_lane`"
    };
}

/// Who is there.
macro_rules! relays {
    () => {
        "{schema}`{name}_relay`"
    };
}

/// Which keys are closed.
macro_rules! keys {
    () => {
        "{schema}`{name}_key`"
    };
}

/// Those of some lanes that somebody has. By the primary key, so that no other lane is locked on the way.
macro_rules! held {
    ($lock:literal) => {
        concat!(
            "SELECT lane, epoch FROM ",
            lanes!(),
            " FORCE INDEX (PRIMARY) WHERE lane IN ({rows}) AND owner = ? ORDER BY lane ",
            $lock
        )
    };
}

/// The three tables.
pub(in super::super) const CREATE_TABLES: &str = include_str!("lanes.sql");

/// One row for each lane, if there are none.
pub(in super::super) const FILL_LANES: &str = concat!(
    "INSERT IGNORE INTO ",
    lanes!(),
    " (lane) VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15)"
);

/// Whether the column is there, and whether the index is.
pub(in super::super) const HAS_COLUMN: &str = "SELECT COUNT(*) FROM information_schema.columns \
     WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? AND column_name = 'lane'";

pub(in super::super) const HAS_INDEX: &str = "SELECT COUNT(*) FROM information_schema.statistics \
     WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ? AND index_name = CONCAT(?, '_lane_seq')";

/// A column that is stored in the index alone, so that it is there in a moment.
pub(in super::super) const ADD_COLUMN: &str = "ALTER TABLE {table} ADD COLUMN lane SMALLINT GENERATED ALWAYS AS \
     (IF(status IN (0, 2), CRC32(COALESCE(aggregate_id, event_id)) & 15, NULL)) VIRTUAL, ALGORITHM = INSTANT";

/// Is built while others write.
pub(in super::super) const ADD_INDEX: &str =
    "ALTER TABLE {table} ADD INDEX `{name}_lane_seq` (lane, seq), ALGORITHM = INPLACE, LOCK = NONE";

/// How many lanes there are; refused if nothing was prepared.
pub(in super::super) const COUNT: &str = concat!("SELECT COUNT(*) FROM ", lanes!());

/// Lanes that nobody has, up to so many. They stay locked.
pub(in super::super) const FREE: &str = concat!(
    "SELECT lane, epoch FROM ",
    lanes!(),
    " FORCE INDEX (PRIMARY) WHERE owner IS NULL OR until < UTC_TIMESTAMP(6) ORDER BY lane LIMIT ? FOR UPDATE"
);

/// Takes them.
pub(in super::super) const LEASE: &str = concat!(
    "UPDATE ",
    lanes!(),
    " SET owner = ?, epoch = epoch + 1, until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6)) WHERE lane IN ({rows})"
);

/// Those that an owner has, to be renewed or given back.
pub(in super::super) const HELD: &str = held!("FOR UPDATE");

/// The fence: those that an owner has, and will have until the settlement has happened. To lease one waits for this lock, or
/// passes the lane over.
pub(in super::super) const FENCE: &str = held!("LOCK IN SHARE MODE");

/// Extends leases.
pub(in super::super) const RENEW: &str =
    concat!("UPDATE ", lanes!(), " SET until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6)) WHERE lane IN ({rows})");

/// Lets others have lanes at once.
pub(in super::super) const GIVE_BACK: &str =
    concat!("UPDATE ", lanes!(), " SET owner = NULL, until = '1970-01-01 00:00:00' WHERE lane IN ({rows})");

/// Says that a relay is there. One that comes too late has no settings any more. They are set before the moment is.
pub(in super::super) const HERE: &str = concat!(
    "INSERT INTO ",
    relays!(),
    " (owner, until) VALUES (?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6))) \
     ON DUPLICATE KEY UPDATE settings = IF(until >= UTC_TIMESTAMP(6), settings, ''), until = VALUES(until)"
);

/// Says that it is going, and forgets those that have not said so for a day.
pub(in super::super) const GONE: &str =
    concat!("DELETE FROM ", relays!(), " WHERE owner = ? OR until < TIMESTAMPADD(DAY, -1, UTC_TIMESTAMP(6))");

/// Who is there, and with which settings.
pub(in super::super) const RELAYS: &str =
    concat!("SELECT owner, settings FROM ", relays!(), " WHERE until >= UTC_TIMESTAMP(6) ORDER BY owner");

/// Lets one relay at a time say with which settings it is there.
pub(in super::super) const AGREE_ALONE: &str = concat!("SELECT lane FROM ", lanes!(), " WHERE lane = 0 FOR UPDATE");

/// Says that a relay is there with these settings.
pub(in super::super) const AGREE: &str = concat!(
    "INSERT INTO ",
    relays!(),
    " (owner, settings, until) VALUES (?, ?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(6))) \
     ON DUPLICATE KEY UPDATE settings = VALUES(settings), until = VALUES(until)"
);

/// Says that those of a relay do not count.
pub(in super::super) const DISAGREE: &str = concat!("UPDATE ", relays!(), " SET settings = '' WHERE owner = ?");

/// Begins a read of which everything is as of one moment.
pub(in super::super) const BEGIN_READ: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; START TRANSACTION";

/// Begins one that sees what is not committed.
pub(in super::super) const BEGIN_LOOK: &str =
    "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED, READ ONLY; START TRANSACTION";

/// The lanes of an owner, and whether they have closed keys.
pub(in super::super) const MINE: &str = concat!(
    "SELECT l.lane, l.epoch, EXISTS (SELECT 1 FROM ",
    keys!(),
    " AS k WHERE k.lane = l.lane) FROM ",
    lanes!(),
    " AS l WHERE l.owner = ?"
);

/// The numbers of what is pending in a lane: after a number and up to another, so many. Lanes are put together by UNION ALL.
macro_rules! numbers_of_lane {
    ($condition:expr) => {
        concat!(
            "(SELECT lane, seq FROM {table} AS t FORCE INDEX (`{name}_lane_seq`) \
             WHERE lane = ? AND seq > ? AND seq <= ? ",
            $condition,
            "ORDER BY seq LIMIT ?)"
        )
    };
}

/// They are found in the index alone.
pub(in super::super) const NUMBERS_OF_LANE: &str = numbers_of_lane!("");

/// The same of one key or of all, and none of closed keys.
pub(in super::super) const WANTED_OF_LANE: &str = numbers_of_lane!(concat!(
    "AND (? IS NULL OR aggregate_id = ? AND COALESCE(aggregate_type, '__GLOBAL__') = ?) \
     AND NOT EXISTS (SELECT 1 FROM ",
    keys!(),
    " AS k WHERE k.aggregate_type = COALESCE(t.aggregate_type, '__GLOBAL__') AND k.aggregate_id = t.aggregate_id) "
));

/// Those of some numbers that are pending.
pub(in super::super) const PENDING: &str =
    "SELECT seq FROM {table} FORCE INDEX (PRIMARY) WHERE seq IN ({rows}) AND lane IS NOT NULL";

/// The rows with these numbers.
pub(in super::super) const ROWS: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", lane, ",
    micros!("UTC_TIMESTAMP(6)"),
    " AS read_at, ",
    micros!("available_at"),
    " AS available_at, ",
    micros!("IF(locked_by IS NULL, NULL, locked_at)"),
    " AS leased_at FROM {table} FORCE INDEX (PRIMARY) WHERE seq IN ({rows}) ORDER BY seq"
);

pub(in super::super) const SETTLE_DONE: &str = "UPDATE {table} SET status = 1, done_at = UTC_TIMESTAMP(6), locked_by = NULL, \
     locked_at = NULL WHERE seq IN ({rows}) AND status IN (0, 2)";

pub(in super::super) const DELETE_DONE: &str = "DELETE FROM {table} WHERE seq IN ({rows}) AND status IN (0, 2)";

/// Where a change is NULL the column stays as it is. STRAIGHT_JOIN makes it go from the changes to the rows.
pub(in super::super) const SETTLE_OTHER: &str = "UPDATE ({rows}) AS s STRAIGHT_JOIN {table} AS t ON t.seq = s.seq \
     SET t.status = COALESCE(s.status, t.status), t.attempts = t.attempts + s.attempts, \
     t.available_at = COALESCE(TIMESTAMPADD(MICROSECOND, s.delay, UTC_TIMESTAMP(6)), t.available_at), \
     t.done_at = IF(s.status = 3, UTC_TIMESTAMP(6), t.done_at), \
     t.last_error = COALESCE(s.error, t.last_error), t.locked_by = NULL, t.locked_at = NULL \
     WHERE t.status IN (0, 2)";

/// One of them: number, status, attempts to add, delay, error.
pub(in super::super) const CHANGE: &str = "SELECT CAST(? AS SIGNED) AS seq, CAST(? AS SIGNED) AS status, \
     CAST(? AS SIGNED) AS attempts, CAST(? AS SIGNED) AS delay, ? AS error";

/// Those of some numbers that are pending, which stay locked.
pub(in super::super) const LOCK_PENDING: &str =
    "SELECT seq FROM {table} FORCE INDEX (PRIMARY) WHERE seq IN ({rows}) AND status IN (0, 2) FOR UPDATE";

/// Closes the keys of DEAD rows.
pub(in super::super) const CLOSE: &str = concat!(
    "INSERT INTO ",
    keys!(),
    " (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since, reason) \
     SELECT COALESCE(aggregate_type, '__GLOBAL__'), aggregate_id, CRC32(aggregate_id) & 15, 2, seq, event_id, \
     UTC_TIMESTAMP(6), last_error FROM {table} FORCE INDEX (PRIMARY) \
     WHERE seq IN ({rows}) AND status = 3 AND aggregate_id IS NOT NULL \
     ON DUPLICATE KEY UPDATE state = 2, head_seq = VALUES(head_seq), head_id = VALUES(head_id), \
     since = VALUES(since), until = NULL, reason = VALUES(reason)"
);

/// What an operator sees of a closed key.
macro_rules! closed_key {
    () => {
        closed_key!("")
    };
    ($more:literal) => {
        concat!(
            "SELECT k.aggregate_type, k.aggregate_id, k.lane, k.head_seq, k.head_id, ",
            micros!("k.since"),
            ", k.reason, k.state = 1",
            $more,
            " FROM ",
            keys!(),
            " AS k "
        )
    };
}

/// Whether keys can be closed.
pub(in super::super) const HAS_KEYS: &str = "SELECT COUNT(*) FROM information_schema.tables \
     WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = CONCAT(?, '_key')";

/// Keys of lanes that an owner has which an operator has let go on.
pub(in super::super) const REOPENED: &str = concat!(
    closed_key!(),
    "JOIN ",
    lanes!(),
    " AS l ON l.lane = k.lane WHERE l.owner = ? AND l.lane = ? AND l.epoch = ? AND k.state = 1 \
     ORDER BY k.until, k.head_seq LIMIT ?"
);

/// Forgets one of them.
pub(in super::super) const FORGET: &str =
    concat!("DELETE FROM ", keys!(), " WHERE aggregate_type = ? AND aggregate_id = ? AND lane = ? AND state = 1");

/// Closed keys, those that wait for longest first.
pub(in super::super) const CLOSED: &str = concat!(closed_key!(), "ORDER BY k.since, k.head_seq LIMIT ?");

/// The same, each with how many events wait behind it.
pub(in super::super) const PARKED: &str = concat!(
    closed_key!(
        ", (SELECT COUNT(*) FROM {table} AS t WHERE t.aggregate_id = k.aggregate_id AND t.status IN (0, 2) \
         AND COALESCE(t.aggregate_type, '__GLOBAL__') = k.aggregate_type)"
    ),
    "ORDER BY k.since, k.head_seq LIMIT ?"
);

/// Keys whose head has failed and is tried again, but for those that are closed.
pub(in super::super) const BLOCKED: &str = concat!(
    "SELECT g.aggregate_type, g.aggregate_id, t.seq, t.event_id, ",
    micros!("t.created_at"),
    ", ",
    micros!("t.available_at"),
    ", t.last_error, g.pending \
     FROM (SELECT coalesce(aggregate_type, '__GLOBAL__') AS aggregate_type, aggregate_id, min(seq) AS head, \
     count(*) AS pending FROM {table} WHERE status IN (0, 2) AND aggregate_id IS NOT NULL \
     GROUP BY 1, 2 HAVING max(status) = 2) AS g JOIN {table} AS t ON t.seq = g.head AND t.aggregate_id = g.aggregate_id \
     WHERE t.status = 2 AND NOT EXISTS (SELECT 1 FROM ",
    keys!(),
    " AS k WHERE k.aggregate_type = g.aggregate_type AND k.aggregate_id = g.aggregate_id) ORDER BY t.seq LIMIT ?"
);

/// Who has the lanes, and who is there.
pub(in super::super) const HOLDERS: &str = concat!(
    "SELECT lane, owner, IF(owner IS NULL, NULL, ",
    micros!("until"),
    "), NULL, ",
    micros!("UTC_TIMESTAMP(6)"),
    " FROM ",
    lanes!(),
    " UNION ALL SELECT NULL, owner, ",
    micros!("until"),
    ", settings, ",
    micros!("UTC_TIMESTAMP(6)"),
    " FROM ",
    relays!(),
    " WHERE until >= UTC_TIMESTAMP(6)"
);

/// The head of a closed key, which stays locked.
pub(in super::super) const HEAD: &str = concat!(
    "SELECT head_seq FROM ",
    keys!(),
    " WHERE aggregate_type = ? AND aggregate_id = ? AND head_id = ? AND state = 2 FOR UPDATE"
);

/// Lets a key go on.
pub(in super::super) const REOPEN: &str = concat!(
    "UPDATE ",
    keys!(),
    " SET state = 1, until = UTC_TIMESTAMP(6) WHERE aggregate_type = ? AND aggregate_id = ?"
);

/// Redrives the head of a key.
pub(in super::super) const REDRIVE_HEAD: &str = "UPDATE {table} SET status = 0, attempts = 0, \
     available_at = UTC_TIMESTAMP(6), done_at = NULL, last_error = NULL, locked_by = NULL, locked_at = NULL \
     WHERE seq = ? AND status = 3";

/// After a redrive or a discard of these: the closed keys whose heads are among them go on.
pub(in super::super) const REOPEN_CHANGED: &str =
    concat!("UPDATE ", keys!(), " SET state = 1, until = UTC_TIMESTAMP(6) WHERE state = 2 AND head_seq IN (");

/// The first pending row of a key, by the index of its lane.
pub(in super::super) const FIRST_OF_KEY: &str = "SELECT seq, event_id FROM {table} FORCE INDEX (`{name}_lane_seq`) \
     WHERE lane = CRC32(?) & 15 AND aggregate_id = ? AND COALESCE(aggregate_type, '__GLOBAL__') = ? ORDER BY seq LIMIT 1";

/// Gives up a row that has failed.
pub(in super::super) const GIVE_UP: &str = "UPDATE {table} SET status = 3, done_at = UTC_TIMESTAMP(6), locked_by = NULL, \
     locked_at = NULL WHERE seq = ? AND status = 2";

/// Lets its key go on behind it.
pub(in super::super) const GO_ON_BEHIND: &str = concat!(
    "INSERT INTO ",
    keys!(),
    " (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since, until, reason) \
     SELECT COALESCE(aggregate_type, '__GLOBAL__'), aggregate_id, CRC32(aggregate_id) & 15, 1, seq, event_id, \
     UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), last_error FROM {table} FORCE INDEX (PRIMARY) WHERE seq = ? \
     ON DUPLICATE KEY UPDATE lane = VALUES(lane)"
);

/// Of DEAD rows: that nobody is to decide about a key because of it.
pub(in super::super) const HEADS_NO_CLOSED_KEY: &str = concat!(
    "NOT ((SELECT k.head_seq FROM ",
    keys!(),
    " AS k WHERE k.state = 2 AND k.aggregate_type = COALESCE({table}.aggregate_type, '__GLOBAL__') \
     AND k.aggregate_id = {table}.aggregate_id) <=> {table}.seq) AND "
);

/// Makes time pass for leases.
#[cfg(feature = "testing")]
pub(in super::super) const AGE: [&str; 2] = [
    concat!("UPDATE ", lanes!(), " SET until = TIMESTAMPADD(MICROSECOND, -?, until) WHERE owner IS NOT NULL"),
    concat!("UPDATE ", relays!(), " SET until = TIMESTAMPADD(MICROSECOND, -?, until)"),
];
