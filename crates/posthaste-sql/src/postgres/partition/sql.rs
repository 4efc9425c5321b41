//! What is said to PostgreSQL about partitions.

/// The partitions but the one for everything else: name, and from when to when. Read once, not once for each period.
macro_rules! partitions {
    () => {
        "part AS MATERIALIZED (\
         SELECT format('%I.%I', space.nspname, child.relname) AS name, \
         replace(bound[1], 'MINVALUE', '-infinity')::timestamptz AS lower, \
         replace(bound[2], 'MAXVALUE', 'infinity')::timestamptz AS upper \
         FROM pg_inherits AS link JOIN pg_class AS child ON child.oid = link.inhrelid \
         JOIN pg_namespace AS space ON space.oid = child.relnamespace, \
         regexp_match(pg_get_expr(child.relpartbound, child.oid), \
         'FROM \\(''?([^'')]+)''?\\) TO \\(''?([^'')]+)''?\\)') AS bound \
         WHERE link.inhparent = to_regclass('{table}') AND bound IS NOT NULL)"
    };
}

/// A partition as it is to be made, given its ends: its name, which tells its beginning in UTC, how its ends are written, and
/// whether rows for it may be written while it is made.
macro_rules! piece {
    () => {
        "SELECT format('%I.%I', space.nspname, '{name}_p' || to_char(lower AT TIME ZONE 'UTC', \
         CASE WHEN '{unit}' = 'hour' OR lower <> date_trunc('day', lower AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' \
         THEN 'YYYYMMDDHH24' ELSE 'YYYYMMDD' END)), \
         lower, upper, \
         to_char(lower AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00'), \
         to_char(upper AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00'), \
         lower <= clock_timestamp() + INTERVAL '1 minute' \
         FROM piece, pg_class AS parent JOIN pg_namespace AS space ON space.oid = parent.relnamespace \
         WHERE parent.oid = to_regclass('{table}') AND lower < upper ORDER BY lower"
    };
}

/// Lets one process at a time change the schema, as migrations do, and waits for other locks only for moments.
pub(super) const ALONE: &str = "SET LOCAL lock_timeout = '5s'; SELECT pg_advisory_xact_lock(8101821198467429236); \
                                SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '5s'";

/// The owner of the table, this role, and whether it may act as the owner.
pub(super) const OWNER: &str = "SELECT quote_ident(pg_get_userbyid(relowner)), quote_ident(current_user), \
                                pg_has_role(current_user, relowner, 'MEMBER') \
                                FROM pg_class WHERE oid = to_regclass('{table}')";

/// Has the name of the table mean the same to another role, whose "$user" in the path is another schema.
pub(super) const KEEP_SCHEMA: &str = "SELECT set_config('search_path', concat_ws(', ', quote_ident(nspname), \
                                      nullif(current_setting('search_path'), '')), true) \
                                      FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace \
                                      WHERE pg_class.oid = to_regclass('{table}')";

/// How many partitions there are.
pub(super) const COUNT: &str = "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('{table}')";

/// The partitions that are missing from now on, up to so many ahead. Where some are there of another length, the rest of the
/// time after them.
pub(super) const MISSING: &str = concat!(
    "WITH ",
    partitions!(),
    ", period AS (\
     SELECT start AT TIME ZONE 'UTC' AS lower, (start + INTERVAL '1 {unit}') AT TIME ZONE 'UTC' AS upper \
     FROM generate_series(0, $1) AS number, \
     LATERAL (SELECT date_trunc('{unit}', clock_timestamp() AT TIME ZONE 'UTC') + number * INTERVAL '1 {unit}' AS start) \
     AS start), \
     piece AS (\
     SELECT greatest(lower, (SELECT max(part.upper) FROM part \
     WHERE part.lower < period.upper AND part.upper > period.lower)) AS lower, upper FROM period) ",
    piece!()
);

/// Whether rows may be in the partition for everything else. Anybody may ask, and it costs nothing.
pub(super) const MAY_HAVE_FALLEN: &str =
    "SELECT coalesce(pg_relation_size(to_regclass('{schema}\"{name}_default\"')) > 0, false)";

/// The first partition, after a moment, that is missing between others and for which there are rows. Not before the first
/// partition: rows with moments of long ago stay where they are.
pub(super) const FALLEN: &str = concat!(
    "WITH ",
    partitions!(),
    ", fallen AS (\
     SELECT min(created_at) AS at FROM {schema}\"{name}_default\" \
     WHERE created_at >= greatest($1, (SELECT min(lower) FROM part)) AND created_at < (SELECT max(upper) FROM part)), \
     period AS (\
     SELECT at, start AT TIME ZONE 'UTC' AS lower, (start + INTERVAL '1 {unit}') AT TIME ZONE 'UTC' AS upper \
     FROM fallen, LATERAL (SELECT date_trunc('{unit}', at AT TIME ZONE 'UTC') AS start) AS start \
     WHERE at IS NOT NULL), \
     piece AS (\
     SELECT greatest(lower, (SELECT max(part.upper) FROM part WHERE part.upper <= at)) AS lower, \
     least(upper, (SELECT min(part.lower) FROM part WHERE part.lower > at)) AS upper FROM period) ",
    piece!()
);

/// How many rows would have to move, up to a limit, and about how many bytes they are.
pub(super) const TO_MOVE: &str = "SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM (\
                                  SELECT coalesce(pg_column_size(payload), 0) \
                                  + coalesce(pg_column_size(payload_bytes), 0) \
                                  + coalesce(pg_column_size(headers), 0) AS bytes FROM {schema}\"{name}_default\" \
                                  WHERE created_at >= $1 AND created_at < $2 LIMIT $3) AS fallen";

/// Keeps everybody out. Whoever waits here sees the new partition afterwards; one that had the list of partitions already
/// would not find the rows that have moved, and take its leases on them for lost.
pub(super) const LOCK_TABLE: &str = "LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE";

/// For what is done while everybody is kept out.
pub(super) const HURRY: &str = "SET LOCAL statement_timeout = '1s'";

/// Also those who write there directly, as a subscription may: nothing comes in between a look and the end.
pub(super) const LOCK_DEFAULT: &str = "LOCK TABLE ONLY {schema}\"{name}_default\" IN ACCESS EXCLUSIVE MODE";

/// A table that can become a partition. It locks nothing that is in use.
pub(super) const CREATE: &str = "CREATE TABLE {partition} (LIKE {table} INCLUDING ALL EXCLUDING IDENTITY, \
                                 PRIMARY KEY (event_id)) WITH (fillfactor = 50); \
                                 CREATE UNIQUE INDEX ON {partition} (seq)";

/// Moves rows into it.
pub(super) const MOVE: &str = "WITH fallen AS (DELETE FROM {schema}\"{name}_default\" \
                               WHERE created_at >= $1 AND created_at < $2 RETURNING *) \
                               INSERT INTO {partition} SELECT * FROM fallen";

/// Whether nothing else is left where they were.
pub(super) const NOTHING_LEFT: &str = "SELECT NOT EXISTS (SELECT FROM {schema}\"{name}_default\")";

/// Takes its pages as well, so that [`MAY_HAVE_FALLEN`] says no again. Everybody is kept out already.
pub(super) const SHRINK: &str = "TRUNCATE ONLY {schema}\"{name}_default\"";

/// Makes it a partition. SHARE UPDATE EXCLUSIVE on the table lets writers and readers pass; ACCESS EXCLUSIVE on the partition
/// for everything else holds relays up for as long as it takes to walk that one, which is empty as a rule. A writer that has
/// chosen that one for its row already fails if the row belongs here, so for the present the whole table is locked before.
pub(super) const ATTACH: &str =
    "ALTER TABLE {table} ATTACH PARTITION {partition} FOR VALUES FROM ('{lower}') TO ('{upper}')";

/// The partitions of which all is older than the shortest time that rows are kept, oldest first, and whether all is older than
/// any row is kept.
pub(super) const OLD: &str = concat!(
    "WITH ",
    partitions!(),
    " SELECT name, coalesce(upper <= clock_timestamp() - $2, false) FROM part \
     WHERE upper <= clock_timestamp() - $1 ORDER BY upper LIMIT 1000"
);

/// How many pending rows, up to a limit, are in a partition, and whether any DONE or DEAD row is to be kept for longer. An
/// index answers each part of it.
pub(super) const STILL_NEEDED: &str = "SELECT \
     (SELECT count(*) FROM (SELECT FROM {partition} WHERE status IN (0, 2) LIMIT 100000) AS pending), \
     coalesce((SELECT max(done_at) FROM {partition} WHERE status IN (1, 3) AND status = 1) > done, false) \
     OR EXISTS (SELECT FROM {partition} WHERE status IN (1, 3) AND status = 1 AND done_at IS NULL AND created_at > done) \
     OR coalesce((SELECT max(done_at) FROM {partition} WHERE status IN (1, 3) AND status = 3) > dead, false) \
     OR EXISTS (SELECT FROM {partition} WHERE status IN (1, 3) AND status = 3 AND done_at IS NULL AND created_at > dead) \
     FROM (SELECT coalesce(clock_timestamp() - $1, '-infinity') AS done, \
     coalesce(clock_timestamp() - $2, '-infinity') AS dead) AS kept";

/// For [`STILL_NEEDED`]: without statistics the planner might walk the partition instead.
pub(super) const BY_INDEX: &str = "SET LOCAL enable_seqscan = off";

/// Keeps everybody off the partition. Not waited for: the table is locked already, so only a vacuum can be there.
pub(super) const LOCK_PARTITION: &str = "LOCK TABLE ONLY {partition} IN ACCESS EXCLUSIVE MODE NOWAIT";

/// Whether it still is a partition of this table: somebody may have taken it out to keep it, or be about to.
pub(super) const STILL_OURS: &str = "SELECT EXISTS (SELECT FROM pg_inherits AS link \
                                     WHERE inhrelid = to_regclass($1) AND inhparent = to_regclass('{table}') \
                                     AND to_jsonb(link) ->> 'inhdetachpending' IS DISTINCT FROM 'true')";

/// Needs ACCESS EXCLUSIVE on the table as well, and on the partition for everything else.
pub(super) const DROP: &str = "DROP TABLE {partition}";
