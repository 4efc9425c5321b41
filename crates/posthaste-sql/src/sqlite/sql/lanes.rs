//! What is said to SQLite about lanes.

/// How many there are.
pub(in super::super) const LANES: u16 = 1;

/// Who has the lane.
macro_rules! lanes {
    () => {
        "{schema}\"{name}_lane\""
    };
}

/// Who is there.
macro_rules! relays {
    () => {
        "{schema}\"{name}_relay\""
    };
}

/// Which keys are closed.
macro_rules! keys {
    () => {
        "{schema}\"{name}_key\""
    };
}

/// What makes a row DONE.
macro_rules! done {
    () => {
        "SET status = 1, done_at = ?, locked_by = NULL, locked_at = NULL "
    };
}

/// Pending rows. They are found by their numbers, which are rowids, and by no index on what is pending.
macro_rules! in_run {
    () => {
        "WHERE seq BETWEEN ? AND ? AND status IN (0, 2)"
    };
}

macro_rules! by_seq {
    () => {
        "WHERE seq IN (SELECT value FROM json_each(?)) AND status IN (0, 2)"
    };
}

/// The tables and the index.
pub(in super::super) const PREPARE: &str = include_str!("lanes.sql");

/// Whether the index is there.
pub(in super::super) const INDEX: &str =
    "SELECT count(*) FROM {schema}sqlite_master WHERE type = 'index' AND name = '{name}_lane_seq' COLLATE NOCASE";

/// How many lanes there are; refused if nothing was prepared.
pub(in super::super) const COUNT: &str = concat!("SELECT count(*) FROM ", lanes!());

/// Takes up to ?4 lanes that nobody has.
pub(in super::super) const LEASE: &str = concat!(
    "UPDATE ",
    lanes!(),
    " SET owner = ?1, epoch = epoch + 1, until = ?2 WHERE lane IN (SELECT lane FROM ",
    lanes!(),
    " WHERE owner IS NULL OR until < ?3 ORDER BY lane LIMIT ?4) RETURNING lane, epoch"
);

/// Extends a lease that stands.
pub(in super::super) const RENEW: &str =
    concat!("UPDATE ", lanes!(), " SET until = ?4 WHERE lane = ?1 AND epoch = ?2 AND owner = ?3");

/// Says that a relay is there. One that comes too late has no settings any more.
pub(in super::super) const HERE: &str = concat!(
    "INSERT INTO ",
    relays!(),
    " AS r (owner, until) VALUES (?1, ?2) ON CONFLICT (owner) DO UPDATE SET until = excluded.until, \
     settings = CASE WHEN r.until >= ?3 THEN r.settings ELSE '' END"
);

/// Forgets relays that have not said so for a while.
pub(in super::super) const GONE: &str = concat!("DELETE FROM ", relays!(), " WHERE until < ?1");

/// Who is there, and with which settings.
pub(in super::super) const RELAYS: &str =
    concat!("SELECT owner, settings FROM ", relays!(), " WHERE until >= ?1 ORDER BY owner");

/// Says that a relay is there with these settings.
pub(in super::super) const AGREE: &str = concat!(
    "INSERT INTO ",
    relays!(),
    " (owner, settings, until) VALUES (?1, ?2, ?3) \
     ON CONFLICT (owner) DO UPDATE SET settings = excluded.settings, until = excluded.until"
);

/// Says that those of a relay do not count.
pub(in super::super) const DISAGREE: &str = concat!("UPDATE ", relays!(), " SET settings = '' WHERE owner = ?1");

/// Lets others have a lane at once.
pub(in super::super) const GIVE_BACK: &str =
    concat!("UPDATE ", lanes!(), " SET owner = NULL, until = 0 WHERE lane = ?1 AND epoch = ?2 AND owner = ?3");

/// The leases of an owner.
pub(in super::super) const HELD: &str = concat!("SELECT lane, epoch FROM ", lanes!(), " WHERE owner = ?1");

/// Whether the lane is held.
macro_rules! is_held {
    () => {
        concat!("EXISTS (SELECT 1 FROM ", lanes!(), " WHERE lane = ?7 AND epoch = ?8 AND owner = ?9)")
    };
}

/// Where the rows of a read are.
macro_rules! in_lane {
    () => {
        concat!(
            " FROM {table} AS t INDEXED BY \"{name}_lane_seq\" \
             WHERE status IN (0, 2) AND seq > ?1 AND seq <= ?2 AND seq NOT IN (SELECT value FROM json_each(?4)) \
             AND (?6 IS NULL OR aggregate_id = ?6 AND coalesce(aggregate_type, '__GLOBAL__') = ?5) \
             AND NOT EXISTS (SELECT 1 FROM ",
            keys!(),
            " AS k WHERE k.aggregate_type = coalesce(t.aggregate_type, '__GLOBAL__') AND k.aggregate_id = t.aggregate_id) \
             AND ",
            is_held!(),
            " ORDER BY seq LIMIT ?3) "
        )
    };
}

/// When somebody leased a row alone.
macro_rules! leased_at {
    () => {
        "CASE WHEN locked_by IS NOT NULL THEN locked_at END"
    };
}

/// What is pending in the lane, if it is held: after a number and up to another, so many rows, of one key or of all, and none of
/// closed keys nor of those in hand. Then a row that says, in its first column, whether the lane is held, from the same snapshot.
pub(in super::super) const READ: &str = concat!(
    "SELECT * FROM (SELECT ",
    packed_columns!(leased_at!()),
    in_lane!(),
    "UNION ALL SELECT ",
    is_held!(),
    ", NULL"
);

/// The same with every column by itself, whatever is in it.
pub(in super::super) const READ_WIDE: &str = concat!(
    "SELECT * FROM (SELECT ",
    event_columns!(),
    ", ",
    leased_at!(),
    in_lane!(),
    "UNION ALL SELECT ",
    is_held!(),
    ", NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
);

// OR ROLLBACK, because with the usual OR ABORT SQLite copies every page before it changes it, to undo the one statement; here all
// is undone anyway.
pub(in super::super) const SETTLE_DONE_RUN: &str =
    concat!("UPDATE OR ROLLBACK {table} NOT INDEXED ", done!(), in_run!());

pub(in super::super) const SETTLE_DONE: &str = concat!("UPDATE OR ROLLBACK {table} NOT INDEXED ", done!(), by_seq!());

pub(in super::super) const DELETE_DONE_RUN: &str = concat!("DELETE FROM {table} NOT INDEXED ", in_run!());

pub(in super::super) const DELETE_DONE: &str = concat!("DELETE FROM {table} NOT INDEXED ", by_seq!());

/// ?1 is a JSON array of [number, status, attempts to add, available_at, done_at, error], where NULL leaves the column as it is.
pub(in super::super) const SETTLE_OTHER: &str = "UPDATE {table} AS t NOT INDEXED \
     SET status = coalesce(s.status, t.status), attempts = t.attempts + s.attempts, \
     available_at = coalesce(s.available_at, t.available_at), done_at = coalesce(s.done_at, t.done_at), \
     last_error = coalesce(s.last_error, t.last_error), locked_by = NULL, locked_at = NULL \
     FROM (SELECT value ->> 0 AS seq, value ->> 1 AS status, value ->> 2 AS attempts, value ->> 3 AS available_at, \
           value ->> 4 AS done_at, value ->> 5 AS last_error FROM json_each(?1)) AS s \
     WHERE t.seq = s.seq AND t.status IN (0, 2)";

/// Those of some numbers that are pending.
pub(in super::super) const PENDING: &str = concat!("SELECT seq FROM {table} NOT INDEXED ", by_seq!());

/// Closes the keys of DEAD rows.
pub(in super::super) const CLOSE: &str = concat!(
    "INSERT INTO ",
    keys!(),
    " (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since, reason) \
     SELECT coalesce(aggregate_type, '__GLOBAL__'), aggregate_id, 0, 2, seq, event_id, ?2, last_error \
     FROM {table} NOT INDEXED WHERE seq IN (SELECT value FROM json_each(?1)) AND status = 3 AND aggregate_id IS NOT NULL \
     ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET state = 2, head_seq = excluded.head_seq, \
     head_id = excluded.head_id, since = excluded.since, until = NULL, reason = excluded.reason"
);

/// What an operator sees of a closed key.
macro_rules! closed_key {
    () => {
        closed_key!("")
    };
    ($more:literal) => {
        concat!(
            "SELECT k.aggregate_type, k.aggregate_id, k.lane, k.head_seq, k.head_id, k.since, k.reason, k.state = 1",
            $more,
            " FROM ",
            keys!(),
            " AS k "
        )
    };
}

/// Whether keys can be closed.
pub(in super::super) const HAS_KEYS: &str =
    "SELECT count(*) FROM {schema}sqlite_master WHERE type = 'table' AND name = '{name}_key' COLLATE NOCASE";

/// Keys of a lane that is held which an operator has let go on.
pub(in super::super) const REOPENED: &str = concat!(
    closed_key!(),
    "WHERE k.state = 1 AND k.lane = ?1 AND EXISTS (SELECT 1 FROM ",
    lanes!(),
    " AS l WHERE l.lane = ?1 AND l.epoch = ?2 AND l.owner = ?3) ORDER BY k.until, k.head_seq LIMIT ?4"
);

/// Forgets one of them.
pub(in super::super) const FORGET: &str =
    concat!("DELETE FROM ", keys!(), " WHERE aggregate_type = ?1 AND aggregate_id = ?2 AND lane = ?3 AND state = 1");

/// Closed keys, those that wait for longest first.
pub(in super::super) const CLOSED: &str = concat!(closed_key!(), "ORDER BY k.since, k.head_seq LIMIT ?1");

/// The same, each with how many events wait behind it.
pub(in super::super) const PARKED: &str = concat!(
    closed_key!(
        ", (SELECT count(*) FROM {table} AS t WHERE t.aggregate_id = k.aggregate_id AND t.status IN (0, 2) \
         AND coalesce(t.aggregate_type, '__GLOBAL__') = k.aggregate_type)"
    ),
    "ORDER BY k.since, k.head_seq LIMIT ?1"
);

/// Keys whose head has failed and is tried again, but for those that are closed.
pub(in super::super) const BLOCKED: &str = concat!(
    "SELECT g.aggregate_type, g.aggregate_id, t.seq, t.event_id, t.created_at, t.available_at, t.last_error, g.pending \
     FROM (SELECT coalesce(aggregate_type, '__GLOBAL__') AS aggregate_type, aggregate_id, min(seq) AS head, \
     count(*) AS pending FROM {table} WHERE status IN (0, 2) AND aggregate_id IS NOT NULL \
     GROUP BY 1, 2 HAVING max(status) = 2) AS g JOIN {table} AS t ON t.seq = g.head AND t.aggregate_id = g.aggregate_id \
     WHERE t.status = 2 AND NOT EXISTS (SELECT 1 FROM ",
    keys!(),
    " AS k WHERE k.aggregate_type = g.aggregate_type AND k.aggregate_id = g.aggregate_id) ORDER BY t.seq LIMIT ?1"
);

/// Who has the lane, and who is there.
pub(in super::super) const HOLDERS: &str = concat!(
    "SELECT lane, owner, CASE WHEN owner IS NOT NULL THEN until END, NULL FROM ",
    lanes!(),
    " UNION ALL SELECT NULL, owner, until, settings FROM ",
    relays!(),
    " WHERE until >= ?1"
);

/// Lets a key go on.
pub(in super::super) const REOPEN: &str = concat!(
    "UPDATE ",
    keys!(),
    " SET state = 1, until = ?3 WHERE aggregate_type = ?1 AND aggregate_id = ?2 AND head_id = ?4 AND state = 2 \
     RETURNING head_seq"
);

/// Redrives the head of a key.
pub(in super::super) const REDRIVE_HEAD: &str = "UPDATE {table} NOT INDEXED SET status = 0, attempts = 0, \
     available_at = ?2, done_at = NULL, last_error = NULL, locked_by = NULL, locked_at = NULL \
     WHERE seq = ?1 AND status = 3";

/// After a redrive or a discard of these: the closed keys whose heads are among them go on.
pub(in super::super) const REOPEN_CHANGED: &str = concat!(
    "UPDATE ",
    keys!(),
    " SET state = 1, until = ?1 WHERE state = 2 AND head_seq IN (SELECT value FROM json_each(?2))"
);

/// Gives up the first pending row of a key, if it is that one and has failed.
pub(in super::super) const GIVE_UP: &str = "UPDATE {table} NOT INDEXED SET status = 3, done_at = ?4, locked_by = NULL, \
     locked_at = NULL WHERE status = 2 AND event_id = ?3 AND seq = (SELECT seq FROM {table} INDEXED BY \"{name}_lane_seq\" \
     WHERE status IN (0, 2) AND aggregate_id = ?2 AND coalesce(aggregate_type, '__GLOBAL__') = ?1 ORDER BY seq LIMIT 1) \
     RETURNING seq, last_error";

/// Lets its key go on behind it.
pub(in super::super) const GO_ON_BEHIND: &str = concat!(
    "INSERT INTO ",
    keys!(),
    " (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since, until, reason) \
     VALUES (?1, ?2, 0, 1, ?5, ?3, ?4, ?4, ?6) ON CONFLICT (aggregate_type, aggregate_id) DO NOTHING"
);

/// Of DEAD rows: that nobody is to decide about a key because of it.
pub(in super::super) const HEADS_NO_CLOSED_KEY: &str = concat!(
    "(SELECT k.head_seq FROM ",
    keys!(),
    " AS k WHERE k.state = 2 AND k.aggregate_type = coalesce({table}.aggregate_type, '__GLOBAL__') \
     AND k.aggregate_id = {table}.aggregate_id) IS NOT {table}.seq AND "
);

/// Makes time pass for leases.
#[cfg(feature = "testing")]
pub(in super::super) const AGE: [&str; 2] =
    [concat!("UPDATE ", lanes!(), " SET until = until - ?1"), concat!("UPDATE ", relays!(), " SET until = until - ?1")];
