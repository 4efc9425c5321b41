-- What relays are told not to deliver for the time being. They look here about twice in a second.
CREATE TABLE IF NOT EXISTS {schema}"{name}_pause" (
    -- 0 a route, 1 a destination.
    kind SMALLINT NOT NULL,
    name VARCHAR(128) COLLATE "C" NOT NULL,
    reason TEXT,
    since TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, name)
);
