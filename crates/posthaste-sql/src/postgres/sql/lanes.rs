//! What is said to PostgreSQL about lanes.

/// How many there are, which the expression below has one less of.
pub(in super::super) const LANES: u16 = 64;

/// The lane of a row. It is a part of the index, word for word.
macro_rules! lane {
    ($row:literal) => {
        concat!(lane_hash!($row), " & 63")
    };
}

/// The hash that it is made of.
macro_rules! lane_hash {
    ($row:literal) => {
        concat!("hashtextextended(coalesce(", $row, "aggregate_id, ", $row, "event_id) COLLATE \"C\", 0)")
    };
}

/// The hash by which it is told whether a key may be closed: of the type as well, since ids are often the same in several types.
macro_rules! key_hash {
    ($row:literal, $id:expr) => {
        concat!("hashtextextended(coalesce(", $row, "aggregate_type, '__GLOBAL__') COLLATE \"C\", ", $id, ")")
    };
}

/// Who has which lane.
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

/// In place of the columns of an event, and of when it was read and leased.
macro_rules! no_event {
    () => {
        "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"
    };
}

/// What is pending, in other words than those of the index for claims. With the same words that one would serve as well, and
/// from statistics that were taken when everything was done the planner would take it, and walk all that is pending for each
/// lane.
macro_rules! pending_in_lane {
    () => {
        "status NOT IN (1, 3)"
    };
}

/// What the index is on.
macro_rules! indexed {
    () => {
        concat!("((", lane!(""), "), seq) WHERE ", pending_in_lane!())
    };
}

/// Those of some lanes that an owner has under these epochs. They are locked, in their order.
macro_rules! held {
    ($owner:literal, $lock:literal) => {
        concat!(
            "held AS MATERIALIZED (SELECT l.lane FROM ",
            lanes!(),
            " AS l JOIN unnest($2::smallint[], $3::bigint[]) AS mine (lane, epoch) \
             ON l.lane = mine.lane AND l.epoch = mine.epoch WHERE l.owner = ",
            $owner,
            " ORDER BY l.lane FOR ",
            $lock,
            " OF l) "
        )
    };
}

/// The fence: lanes that are held, and stay so until the settlement has happened. To lease one takes a stronger lock, which
/// waits for this one or passes the lane over; to renew one, which changes neither owner nor epoch, does not.
macro_rules! fence {
    () => {
        concat!("WITH ", held!("$4", "KEY SHARE"))
    };
}

/// Pending rows in lanes that are held. An array is asked for once, also by a row that somebody has changed meanwhile.
macro_rules! in_held {
    () => {
        concat!(pending!(), "AND ", lane!("t."), " = ANY (ARRAY(SELECT lane::bigint FROM held)) ", planned_anew!("$5"))
    };
}

/// Pending rows, if every lane is held. That spares a look at the lane of each row; if one of the lanes is not, nothing is settled by this.
macro_rules! in_all_held {
    () => {
        concat!(pending!(), "AND (SELECT count(*) FROM held) = cardinality($2::smallint[]) ", planned_anew!("$5"))
    };
}

/// Pending rows with these numbers, of a table in which no two have the same.
macro_rules! by_seq {
    () => {
        concat!("WHERE t.seq = ANY ($1) ", in_all_held!())
    };
}

/// The same where the numbers are close to each other: a walk from the first to the last of them takes fewer steps than a search for
/// each.
macro_rules! in_a_range {
    () => {
        concat!(
            "WHERE t.seq >= $6 AND t.seq <= $7 AND ($1::bigint[])[width_bucket(t.seq, $1::bigint[])] = t.seq ",
            in_all_held!()
        )
    };
}

/// The same where several may. Nothing is added to the id, so that no index is searched for it as well.
macro_rules! by_seq_and_id {
    () => {
        concat!("WHERE t.seq = ANY ($1) AND t.event_id || '' = ANY ($6) ", in_held!(), "RETURNING t.seq")
    };
}

/// Settlements of every kind, each with its place.
macro_rules! settlements {
    () => {
        settlements!("", "")
    };
    ($parameter:literal, $column:literal) => {
        concat!(
            "unnest($1::bigint[], $6::text[], $7::smallint[], $8::integer[], $9::interval[], $10::text[]",
            $parameter,
            ") WITH ORDINALITY AS s (seq, event_id, status, attempts, delay, error, ",
            $column,
            "place) WHERE t.seq = ANY ($1) AND t.seq = s.seq AND t.event_id || '' = s.event_id "
        )
    };
}

/// The same, each with whether it closes its key.
macro_rules! closing_settlements {
    () => {
        settlements!(", $11::boolean[]", "closes, ")
    };
}

/// Deletes those that are done, and changes the others.
macro_rules! delete_done_and_change {
    ($settlements:expr, $returned:literal) => {
        concat!(
            fence!(),
            ", deleted AS (DELETE FROM {table} AS t USING ",
            $settlements,
            in_held!(),
            "AND s.status = 1 RETURNING s.place), changed AS (UPDATE {table} AS t ",
            change!(),
            "FROM ",
            $settlements,
            in_held!(),
            "AND s.status IS DISTINCT FROM 1 RETURNING s.place",
            $returned,
            ")"
        )
    };
}

/// Closes the keys of rows that have just been made DEAD.
macro_rules! close {
    () => {
        concat!(
            ", closed AS (INSERT INTO ",
            keys!(),
            " (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since, reason) \
             SELECT DISTINCT ON (coalesce(aggregate_type, '__GLOBAL__'), aggregate_id) \
             coalesce(aggregate_type, '__GLOBAL__'), aggregate_id, ",
            lane!(""),
            ", 2, seq, event_id, clock_timestamp(), last_error FROM changed WHERE closes AND aggregate_id IS NOT NULL \
             ORDER BY coalesce(aggregate_type, '__GLOBAL__'), aggregate_id, seq \
             ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET state = 2, head_seq = excluded.head_seq, \
             head_id = excluded.head_id, since = excluded.since, until = NULL, reason = excluded.reason) "
        )
    };
}

/// The three tables.
pub(in super::super) const CREATE_TABLES: &str = include_str!("lanes.sql");

/// What whoever carries the statements out has to know.
pub(in super::super) const ABOUT: &str = "-- {table} prepared for order. Not to be carried out within a transaction.\n\
     -- Whoever relays needs SELECT, INSERT, UPDATE and DELETE on the three tables.\n";

/// Lets one process at a time build the index. Whoever waited for it in a statement would have a snapshot, for which the one
/// that builds waits in turn, so it is asked for again and again. The number is "posthlan" in ASCII.
pub(in super::super) const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(8101821198468145518)";

/// As long as it takes, whatever the session is set to.
pub(in super::super) const NO_TIMEOUTS: &str = "SET statement_timeout = 0; SET lock_timeout = 0";

/// The index of the table, and whether it is complete.
pub(in super::super) const INDEX: &str = "SELECT i.indexrelid::regclass::text, i.indisvalid AND i.indisready \
     FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid \
     WHERE i.indrelid = to_regclass('{table}') AND c.relname = '{name}_lane_seq'";

/// Builds it while others write.
pub(in super::super) const CREATE_INDEX: &str =
    concat!("CREATE INDEX CONCURRENTLY \"{name}_lane_seq\" ON {table} ", indexed!());

/// The index of a table in partitions: nothing by itself, and complete when each partition has one that is a part of it.
/// Writers wait behind this, so it waits for moments only.
pub(in super::super) const CREATE_INDEX_OF_PARTITIONS: &str =
    concat!("SET LOCAL lock_timeout = '100ms'; CREATE INDEX \"{name}_lane_seq\" ON ONLY {table} ", indexed!());

/// The same with those of all partitions at once, which nobody writes to meanwhile.
pub(in super::super) const CREATE_INDEX_OF_ALL_PARTITIONS: &str =
    concat!("CREATE INDEX \"{name}_lane_seq\" ON {table} ", indexed!());

/// A partition without a part of the index, if there is one, and an index of it that could become one, and whether that is
/// complete.
pub(in super::super) const PARTITION_WITHOUT: &str = "WITH whole AS MATERIALIZED (\
     SELECT i.indexrelid AS oid, pg_get_expr(indexprs, indrelid) AS on_what, pg_get_expr(indpred, indrelid) AS of_what \
     FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid \
     WHERE i.indrelid = to_regclass('{table}') AND c.relname = '{name}_lane_seq') \
     SELECT link.inhrelid::regclass::text, i.indexrelid::regclass::text, i.indisvalid AND i.indisready \
     FROM whole CROSS JOIN pg_inherits AS link \
     LEFT JOIN pg_index AS i ON i.indrelid = link.inhrelid AND pg_get_expr(i.indexprs, i.indrelid) = on_what \
     AND pg_get_expr(i.indpred, i.indrelid) = of_what \
     WHERE link.inhparent = to_regclass('{table}') AND NOT EXISTS (\
     SELECT FROM pg_inherits AS part JOIN pg_index AS own ON own.indexrelid = part.inhrelid \
     WHERE part.inhparent = whole.oid AND own.indrelid = link.inhrelid) \
     ORDER BY link.inhrelid LIMIT 1";

/// Builds it for one partition. The server gives it a name that is free.
pub(in super::super) const CREATE_INDEX_OF_ONE: &str = concat!("CREATE INDEX CONCURRENTLY ON {partition} ", indexed!());

/// How many lanes there are; refused if nothing was prepared. And the hash of a text, and whether texts are hashed as we have
/// them.
pub(in super::super) const COUNT: &str = concat!(
    "SELECT count(*), hashtextextended($1::text COLLATE \"C\", 0), current_setting('server_encoding') = 'UTF8' FROM ",
    lanes!()
);

/// Takes up to $3 lanes that nobody has. Waits for the disk, so that no epoch comes twice.
pub(in super::super) const LEASE: &str = concat!(
    "WITH free AS MATERIALIZED (SELECT lane FROM ",
    lanes!(),
    " WHERE owner IS NULL OR until < (SELECT clock_timestamp()) ORDER BY lane LIMIT $3 FOR UPDATE SKIP LOCKED) UPDATE ",
    lanes!(),
    " AS l SET owner = $1, epoch = l.epoch + 1, until = clock_timestamp() + $2 \
     FROM free WHERE l.lane = free.lane RETURNING l.lane, l.epoch"
);

/// Extends leases, says that this relay is there, or is going, and who else is there. One that comes too late has no settings any
/// more. Does not wait for the disk: a renewal that a crash of the server takes back is one that came too late.
pub(in super::super) const RENEW: &str = concat!(
    "WITH ",
    held!("$1", "NO KEY UPDATE"),
    ", renewed AS (UPDATE ",
    lanes!(),
    " AS l SET until = clock_timestamp() + $4 FROM held WHERE l.lane = held.lane RETURNING l.lane, l.epoch), \
     here AS (INSERT INTO ",
    relays!(),
    " AS r (owner, until) VALUES ($1, CASE WHEN $4 > INTERVAL '0' THEN clock_timestamp() + $4 ELSE '-infinity' END) \
     ON CONFLICT (owner) DO UPDATE SET until = excluded.until, \
     settings = CASE WHEN r.until >= clock_timestamp() THEN r.settings ELSE '' END RETURNING settings), \
     gone AS (DELETE FROM ",
    relays!(),
    " WHERE until < clock_timestamp() - INTERVAL '1 day' AND owner <> $1) \
     SELECT lane, epoch, NULL::text, NULL::text FROM renewed \
     UNION ALL SELECT NULL, NULL, owner, settings FROM ",
    relays!(),
    " WHERE until >= (SELECT clock_timestamp()) AND owner <> $1 \
     UNION ALL SELECT NULL, NULL, $1::text, settings FROM here \
     WHERE set_config('synchronous_commit', 'off', true) = 'off' AND $4 > INTERVAL '0'"
);

/// Lets one relay at a time say with which settings it is there. Settlements go on beside it. It is a statement of its own, so that
/// the next one sees what whoever had this lock before has written.
pub(in super::super) const AGREE_ALONE: &str =
    concat!("SELECT lane FROM ", lanes!(), " WHERE lane = 0 FOR NO KEY UPDATE");

/// Who is there, and with which settings.
pub(in super::super) const RELAYS: &str =
    concat!("SELECT owner, settings FROM ", relays!(), " WHERE until >= (SELECT clock_timestamp()) ORDER BY owner");

/// Says that a relay is there with these settings; unless others are there with other settings, which are told, and those of this
/// one do not count any more.
pub(in super::super) const AGREE: &str = concat!(
    "WITH others AS MATERIALIZED (SELECT owner, settings FROM ",
    relays!(),
    " WHERE until >= (SELECT clock_timestamp()) AND owner <> $1 AND settings NOT IN ('', $2)), \
     agreed AS (INSERT INTO ",
    relays!(),
    " (owner, settings, until) SELECT $1, $2, clock_timestamp() + $3 WHERE NOT EXISTS (SELECT FROM others) \
     ON CONFLICT (owner) DO UPDATE SET settings = excluded.settings, until = excluded.until), \
     refused AS (UPDATE ",
    relays!(),
    " SET settings = '' WHERE owner = $1 AND EXISTS (SELECT FROM others)) \
     SELECT owner::text, settings FROM others ORDER BY owner"
);

/// Lets others have lanes at once.
pub(in super::super) const GIVE_BACK: &str = concat!(
    "WITH ",
    held!("$1", "NO KEY UPDATE"),
    "UPDATE ",
    lanes!(),
    " AS l SET owner = NULL, until = '-infinity' FROM held WHERE l.lane = held.lane"
);

/// What is pending in lanes that are held: of each after a number and up to another, so many rows, of one key or of all, and
/// none of closed keys. Those in hand are found by a search in their numbers, which rise. A subquery for each row, and only where
/// a lane has closed keys, keeps the planner from a join that would sort all that is pending. Whether a lane has any is one step in
/// their index, in which those that were let go on come first; EXISTS would be answered by a walk over all of them.
///
/// Of some lanes it is known which keys may be closed ($10): those with hashes whose bits are set ($11, of which the mask $12 gives the
/// number). All others are open, and not looked for, as long as no key of the lane was let go on: an operator, whom the relay does
/// not know, may also let one go on that was not closed.
///
/// Then which lanes are not held. Then the open writers: whoever has taken a number has this lock on the sequence from before that
/// until he ends, which who settles has not. Where the numbers come from elsewhere, it is the lock on the table. They are looked up
/// while the statement runs, so after its snapshot.
macro_rules! read {
    ($planned:expr) => {
        concat!(
    "WITH part AS MATERIALIZED (SELECT p.*, l.lane IS NOT NULL AS held, k.stands IS NOT NULL AS closed, \
     p.told AND k.stands = 2 AS known \
     FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $10::boolean[]) \
     AS p (lane, epoch, after, until, most, aggregate_type, aggregate_id, told) LEFT JOIN ",
    lanes!(),
    " AS l ON l.lane = p.lane AND l.epoch = p.epoch AND l.owner = $9 LEFT JOIN LATERAL (\
     SELECT CASE WHEN until IS NULL THEN 2 ELSE 1 END AS stands FROM ",
    keys!(),
    " WHERE lane = p.lane ORDER BY until LIMIT 1) AS k ON true) \
     SELECT t.*, p.lane, NULL::bigint, NULL::text FROM part AS p CROSS JOIN LATERAL (SELECT ",
    event_columns!(),
    ", (SELECT clock_timestamp()), CASE WHEN locked_by IS NOT NULL THEN locked_at END FROM {table} AS t WHERE ",
    lane!("t."),
    " = p.lane AND ",
    pending_in_lane!(),
    " AND seq > p.after AND seq <= p.until \
     AND ($8::bigint[])[width_bucket(seq, $8::bigint[])] IS DISTINCT FROM seq \
     AND (p.aggregate_id IS NULL \
     OR aggregate_id = p.aggregate_id AND coalesce(aggregate_type, '__GLOBAL__') = p.aggregate_type) \
     AND (NOT p.closed OR CASE WHEN p.known THEN get_bit($11::bytea, ((",
    key_hash!("t.", lane_hash!("t.")),
    ") & $12::bigint)::integer) = 0 ELSE false END OR (SELECT k.state FROM ",
    keys!(),
    " AS k WHERE k.aggregate_type = coalesce(t.aggregate_type, '__GLOBAL__') AND k.aggregate_id = t.aggregate_id) IS NULL) ",
    $planned,
    "ORDER BY seq LIMIT p.most) AS t WHERE p.held UNION ALL SELECT ",
    no_event!(),
    ", lane, epoch, NULL FROM part WHERE NOT held UNION ALL SELECT ",
    no_event!(),
    ", NULL, NULL, virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND relation = \
     (SELECT coalesce(pg_get_serial_sequence('{table}', 'seq'), '{table}')::regclass) \
     AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
     AND mode = 'RowExclusiveLock' AND granted AND pid IS DISTINCT FROM pg_backend_pid()"
)
    };
}

pub(in super::super) const READ: &str = read!(planned_anew!("$13"));

/// The same, for as long as its plan is a good one. See [`KeptPlan`](super::super::kept_plan::KeptPlan).
pub(in super::super) const READ_BY_KEPT_PLAN: &str = read!("");

/// A settlement that answers nothing if all of the numbers were settled, and otherwise which. That is nearly always the former, and
/// spares both sides a row for each.
macro_rules! all_or_these {
    ($settlement:expr) => {
        concat!(
            fence!(),
            ", settled AS (",
            $settlement,
            "RETURNING t.seq) SELECT CASE WHEN count(*) < cardinality($1) THEN coalesce(array_agg(seq), '{}') END FROM settled"
        )
    };
}

/// Makes rows DONE. With ONLY no other table is touched, whatever has become of this one since somebody asked.
pub(in super::super) const SETTLE_DONE_IN_ONE_TABLE: &str =
    all_or_these!(concat!("UPDATE ONLY {table} AS t ", done!(), by_seq!()));

pub(in super::super) const DELETE_DONE_IN_ONE_TABLE: &str =
    all_or_these!(concat!("DELETE FROM ONLY {table} AS t ", by_seq!()));

pub(in super::super) const SETTLE_DONE_IN_A_RANGE: &str =
    all_or_these!(concat!("UPDATE ONLY {table} AS t ", done!(), in_a_range!()));

pub(in super::super) const DELETE_DONE_IN_A_RANGE: &str =
    all_or_these!(concat!("DELETE FROM ONLY {table} AS t ", in_a_range!()));

/// The same wherever the rows are.
pub(in super::super) const SETTLE_DONE: &str = concat!(fence!(), "UPDATE {table} AS t ", done!(), by_seq_and_id!());

pub(in super::super) const DELETE_DONE: &str = concat!(fence!(), "DELETE FROM {table} AS t ", by_seq_and_id!());

/// Settles rows of every kind.
pub(in super::super) const SETTLE_OTHER: &str =
    concat!(fence!(), "UPDATE {table} AS t ", change!(), "FROM ", settlements!(), in_held!(), "RETURNING s.place");

/// The same, and deletes those that are done.
pub(in super::super) const SETTLE_AND_DELETE_DONE: &str = concat!(
    delete_done_and_change!(settlements!(), ""),
    " SELECT place FROM deleted UNION ALL SELECT place FROM changed"
);

/// Settles rows of every kind, and closes keys in the same moment.
pub(in super::super) const SETTLE_AND_CLOSE: &str = concat!(
    fence!(),
    ", changed AS (UPDATE {table} AS t ",
    change!(),
    "FROM ",
    closing_settlements!(),
    in_held!(),
    "RETURNING s.place, s.closes, t.aggregate_type, t.aggregate_id, t.seq, t.event_id, t.last_error)",
    close!(),
    "SELECT place FROM changed"
);

/// The same, and deletes those that are done.
pub(in super::super) const SETTLE_DELETE_DONE_AND_CLOSE: &str = concat!(
    delete_done_and_change!(
        closing_settlements!(),
        ", s.closes, t.aggregate_type, t.aggregate_id, t.seq, t.event_id, t.last_error"
    ),
    close!(),
    "SELECT place FROM deleted UNION ALL SELECT place FROM changed"
);

/// What an operator sees of a closed key.
macro_rules! closed_key {
    () => {
        "SELECT k.aggregate_type, k.aggregate_id, k.lane, k.head_seq, k.head_id, k.since, k.reason, k.state = 1 "
    };
}

/// Keys of lanes that are held which an operator has let go on.
pub(in super::super) const REOPENED: &str = concat!(
    closed_key!(),
    "FROM ",
    keys!(),
    " AS k JOIN ",
    lanes!(),
    " AS l ON l.lane = k.lane JOIN unnest($2::smallint[], $3::bigint[]) AS mine (lane, epoch) \
     ON l.lane = mine.lane AND l.epoch = mine.epoch WHERE l.owner = $1 AND k.state = 1 ORDER BY k.until, k.head_seq LIMIT $4"
);

/// The hashes of closed keys of some lanes, as rows of such keys have them.
pub(in super::super) const CLOSED_HASHES: &str = concat!(
    "SELECT lane, ",
    key_hash!("", "hashtextextended(aggregate_id COLLATE \"C\", 0)"),
    " FROM ",
    keys!(),
    " WHERE lane = ANY ($1::smallint[]) LIMIT $2"
);

/// Forgets those of them whose lanes are held.
pub(in super::super) const FORGET: &str = concat!(
    "WITH ",
    held!("$1", "KEY SHARE"),
    "DELETE FROM ",
    keys!(),
    " AS k USING unnest($2::smallint[], $4::text[], $5::text[]) AS gone (lane, aggregate_type, aggregate_id) \
     WHERE k.aggregate_type = gone.aggregate_type AND k.aggregate_id = gone.aggregate_id AND k.state = 1 \
     AND k.lane = gone.lane AND k.lane IN (SELECT lane FROM held)"
);

/// Closed keys, those that wait for longest first.
pub(in super::super) const CLOSED: &str =
    concat!(closed_key!(), "FROM ", keys!(), " AS k ORDER BY k.since, k.head_seq LIMIT $1");

/// The same, each with how many events wait behind it.
pub(in super::super) const PARKED: &str = concat!(
    closed_key!(),
    ", (SELECT count(*) FROM {table} AS t WHERE ",
    lane!("t."),
    " = k.lane AND ",
    pending_in_lane!(),
    " AND t.aggregate_id = k.aggregate_id AND coalesce(t.aggregate_type, '__GLOBAL__') = k.aggregate_type) FROM ",
    keys!(),
    " AS k ORDER BY k.since, k.head_seq LIMIT $1"
);

/// Keys whose head has failed and is tried again, but for those that are closed.
pub(in super::super) const BLOCKED: &str = concat!(
    "SELECT g.aggregate_type, g.aggregate_id, t.seq, t.event_id, t.created_at, t.available_at, t.last_error, g.pending \
     FROM (SELECT coalesce(aggregate_type, '__GLOBAL__') AS aggregate_type, aggregate_id, min(seq) AS head, \
     count(*) AS pending FROM {table} WHERE status IN (0, 2) AND aggregate_id IS NOT NULL \
     GROUP BY 1, 2 HAVING max(status) = 2) AS g JOIN {table} AS t ON t.seq = g.head AND t.aggregate_id = g.aggregate_id \
     WHERE t.status = 2 AND NOT EXISTS (SELECT 1 FROM ",
    keys!(),
    " AS k WHERE k.aggregate_type = g.aggregate_type AND k.aggregate_id = g.aggregate_id) ORDER BY t.seq LIMIT $1"
);

/// Who has the lanes, and who is there.
pub(in super::super) const HOLDERS: &str = concat!(
    "SELECT lane::bigint, owner::text, CASE WHEN owner IS NOT NULL THEN until END, NULL::text, clock_timestamp() FROM ",
    lanes!(),
    " UNION ALL SELECT NULL, owner, until, settings, clock_timestamp() FROM ",
    relays!(),
    " WHERE until >= (SELECT clock_timestamp())"
);

/// Lets a key go on behind its head.
macro_rules! reopen {
    () => {
        concat!(
            "UPDATE ",
            keys!(),
            " SET state = 1, until = clock_timestamp() WHERE aggregate_type = $1 AND aggregate_id = $2 AND head_id = $3 \
             AND state = 2"
        )
    };
}

pub(in super::super) const SKIP_HEAD: &str =
    concat!("WITH open AS (", reopen!(), " RETURNING head_seq) SELECT count(*) FROM open");

/// Lets a key go on with its head, which is redriven.
pub(in super::super) const RELEASE: &str = concat!(
    "WITH open AS (",
    reopen!(),
    " RETURNING head_seq, head_id), redriven AS (UPDATE {table} SET status = 0, attempts = 0, \
     available_at = clock_timestamp(), done_at = NULL, last_error = NULL, locked_by = NULL, locked_at = NULL \
     FROM open WHERE event_id = head_id AND seq = head_seq AND status = 3) SELECT count(*) FROM open"
);

/// Gives up the first pending row of a key, if it is that one and has failed, and lets the key go on behind it. Whether it was so.
pub(in super::super) const GIVE_UP_HEAD: &str = concat!(
    "WITH head AS MATERIALIZED (SELECT t.seq, t.event_id FROM {table} AS t WHERE ",
    lane!("t."),
    " = hashtextextended($2::text COLLATE \"C\", 0) & 63 AND ",
    pending_in_lane!(),
    " AND t.aggregate_id = $2 AND coalesce(t.aggregate_type, '__GLOBAL__') = $1 ORDER BY t.seq LIMIT 1), \
     dead AS (UPDATE {table} AS t SET status = 3, done_at = clock_timestamp(), locked_by = NULL, locked_at = NULL FROM head \
     WHERE t.event_id = head.event_id AND t.seq = head.seq AND head.event_id = $3 AND t.status = 2 \
     RETURNING t.seq, t.event_id, t.last_error), \
     open AS (INSERT INTO ",
    keys!(),
    " (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since, until, reason) \
     SELECT $1, $2, hashtextextended($2::text COLLATE \"C\", 0) & 63, 1, seq, event_id, clock_timestamp(), clock_timestamp(), \
     last_error FROM dead ON CONFLICT (aggregate_type, aggregate_id) DO NOTHING) SELECT count(*) FROM dead"
);

/// Of DEAD rows: that nobody is to decide about a key because of it. A subquery for each row keeps the planner from a join, for which
/// it would sort all of them.
pub(in super::super) const HEADS_NO_CLOSED_KEY: &str = concat!(
    "(SELECT k.head_seq FROM ",
    keys!(),
    " AS k WHERE k.state = 2 AND k.aggregate_type = coalesce({table}.aggregate_type, '__GLOBAL__') \
     AND k.aggregate_id = {table}.aggregate_id) IS DISTINCT FROM {table}.seq AND "
);

/// Whether the heads of closed keys are in a partition.
pub(in super::super) const HAS_HEADS: &str = concat!(
    "SELECT EXISTS (SELECT FROM ",
    keys!(),
    " AS k JOIN {partition} AS t ON t.event_id = k.head_id AND t.seq = k.head_seq WHERE k.state = 2 AND t.status = 3)"
);

/// Whether keys can be closed.
pub(in super::super) const HAS_KEYS: &str = "SELECT to_regclass('{schema}\"{name}_key\"') IS NOT NULL";

/// Around what redrives or discards DEAD rows: a closed key whose head is among them goes on. How many there were.
pub(in super::super) const AROUND_DEAD: (&str, &str) = (
    "WITH changed AS (",
    concat!(
        " RETURNING seq, event_id), open AS (UPDATE ",
        keys!(),
        " SET state = 1, until = clock_timestamp() FROM changed \
         WHERE head_id = event_id AND head_seq = seq AND state = 2) SELECT count(*) FROM changed"
    ),
);

/// Makes time pass for leases.
#[cfg(feature = "testing")]
pub(in super::super) const AGE: [&str; 2] =
    [concat!("UPDATE ", lanes!(), " SET until = until - $1"), concat!("UPDATE ", relays!(), " SET until = until - $1")];
