-- One row for each lane: who has it, under which epoch, and until when. A lease raises the epoch, and nothing lowers it.
CREATE TABLE IF NOT EXISTS {schema}"{name}_lane" (
    lane SMALLINT PRIMARY KEY,
    owner VARCHAR(128) COLLATE "C",
    epoch BIGINT NOT NULL DEFAULT 0,
    until TIMESTAMPTZ NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

INSERT INTO {schema}"{name}_lane" (lane)
SELECT generate_series(0, 63) WHERE NOT EXISTS (SELECT FROM {schema}"{name}_lane");

-- One row for each relay that is there.
CREATE TABLE IF NOT EXISTS {schema}"{name}_relay" (
    owner VARCHAR(128) COLLATE "C" PRIMARY KEY,
    until TIMESTAMPTZ NOT NULL,
    settings TEXT NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- One row for each key that nothing is delivered of for the time being.
CREATE TABLE IF NOT EXISTS {schema}"{name}_key" (
    aggregate_type VARCHAR(64) NOT NULL,
    aggregate_id VARCHAR(128) NOT NULL,
    lane SMALLINT NOT NULL,
    -- 1 let go on, 2 parked.
    state SMALLINT NOT NULL,
    head_seq BIGINT NOT NULL,
    head_id VARCHAR(36) COLLATE "C" NOT NULL,
    since TIMESTAMPTZ NOT NULL,
    until TIMESTAMPTZ,
    reason TEXT,
    PRIMARY KEY (aggregate_type, aggregate_id)
);
CREATE INDEX IF NOT EXISTS "{name}_key_lane" ON {schema}"{name}_key" (lane, until);
