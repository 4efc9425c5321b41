-- What relays are told not to deliver for the time being. They look here about twice in a second.
CREATE TABLE IF NOT EXISTS {schema}"{name}_pause" (
    -- 0 a route, 1 a destination.
    kind INTEGER NOT NULL,
    name TEXT NOT NULL,
    reason TEXT,
    since INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
