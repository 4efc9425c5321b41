-- Times are microseconds since 1970, UTC. Text in their place would never compare as due, so it is refused.
CREATE TABLE {table} (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE CHECK (typeof(event_id) = 'text'),
    event_type TEXT NOT NULL,
    aggregate_type TEXT DEFAULT '__GLOBAL__',
    aggregate_id TEXT,
    tenant_id TEXT,
    topic TEXT,
    payload TEXT,
    payload_bytes BLOB,
    content_type TEXT,
    headers TEXT,
    status INTEGER NOT NULL DEFAULT 0 CHECK (status IN (0, 1, 2, 3)),
    attempts INTEGER NOT NULL DEFAULT 0,
    available_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CHECK (typeof(available_at) = 'integer'),
    created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))
        CHECK (typeof(created_at) = 'integer'),
    occurred_at INTEGER,
    done_at INTEGER,
    last_error TEXT,
    locked_by TEXT,
    locked_at INTEGER
);

-- For claims. By available_at and not by created_at: rows that wait for a far moment are never walked, and rows come in
-- the order of a claim. The rowid, which is seq, ends every index.
CREATE INDEX {schema}"{name}_pending" ON "{name}" (available_at) WHERE status IN (0, 2);

-- For retention, and to find what is dead among all that is done.
CREATE INDEX {schema}"{name}_final" ON "{name}" (status, done_at) WHERE status IN (1, 3);

-- For what happened to one aggregate.
CREATE INDEX {schema}"{name}_aggregate" ON "{name}" (aggregate_id) WHERE aggregate_id IS NOT NULL;
