-- One lane, since SQLite has no hash function, and one relay at a time is enough on one machine: who has it, under which epoch,
-- and until when. A lease raises the epoch, and nothing lowers it.
CREATE TABLE IF NOT EXISTS {schema}"{name}_lane" (
    lane INTEGER PRIMARY KEY,
    owner TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    until INTEGER NOT NULL DEFAULT 0
);

INSERT OR IGNORE INTO {schema}"{name}_lane" (lane) VALUES (0);

-- One row for each relay that is there.
CREATE TABLE IF NOT EXISTS {schema}"{name}_relay" (
    owner TEXT PRIMARY KEY,
    until INTEGER NOT NULL,
    settings TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

-- One row for each key that nothing is delivered of for the time being.
CREATE TABLE IF NOT EXISTS {schema}"{name}_key" (
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    lane INTEGER NOT NULL,
    -- 1 let go on, 2 parked.
    state INTEGER NOT NULL,
    head_seq INTEGER NOT NULL,
    head_id TEXT NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER,
    reason TEXT,
    PRIMARY KEY (aggregate_type, aggregate_id)
) WITHOUT ROWID;

-- What is pending, by its number.
CREATE INDEX IF NOT EXISTS {schema}"{name}_lane_seq" ON "{name}" (seq) WHERE status IN (0, 2);
