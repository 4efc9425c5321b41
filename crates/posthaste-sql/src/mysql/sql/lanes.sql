-- One row for each lane: who has it, under which epoch, and until when. A lease raises the epoch, and nothing lowers it.
CREATE TABLE IF NOT EXISTS {schema}`{name}_lane` (
    lane SMALLINT NOT NULL PRIMARY KEY,
    owner VARCHAR(128),
    epoch BIGINT NOT NULL DEFAULT 0,
    until DATETIME(6) NOT NULL DEFAULT '1970-01-01 00:00:00'
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin */ /*M!100203 utf8mb4_nopad_bin */;

-- One row for each relay that is there.
CREATE TABLE IF NOT EXISTS {schema}`{name}_relay` (
    owner VARCHAR(128) NOT NULL PRIMARY KEY,
    until DATETIME(6) NOT NULL,
    settings VARCHAR(8192) NOT NULL DEFAULT ''
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin */ /*M!100203 utf8mb4_nopad_bin */;

-- One row for each key that nothing is delivered of for the time being.
CREATE TABLE IF NOT EXISTS {schema}`{name}_key` (
    aggregate_type VARCHAR(64) NOT NULL,
    aggregate_id VARCHAR(128) NOT NULL,
    lane SMALLINT NOT NULL,
    -- 1 let go on, 2 parked.
    state TINYINT NOT NULL,
    head_seq BIGINT NOT NULL,
    head_id VARCHAR(36) NOT NULL,
    since DATETIME(6) NOT NULL,
    until DATETIME(6),
    reason TEXT,
    PRIMARY KEY (aggregate_type, aggregate_id),
    KEY `{name}_key_lane` (lane, state, until)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin */ /*M!100203 utf8mb4_nopad_bin */;
