-- Times are UTC. Every text compares byte for byte, trailing spaces included; MySQL and MariaDB have different names for
-- that, and each takes the comment of the other for a comment.
--
-- The rows are stored by seq: they are appended in order whatever the ids look like, and every index stays small.
CREATE TABLE IF NOT EXISTS {table} (
    seq BIGINT NOT NULL AUTO_INCREMENT,
    event_id VARCHAR(36) NOT NULL,
    event_type VARCHAR(128) NOT NULL,
    aggregate_type VARCHAR(64) DEFAULT '__GLOBAL__',
    aggregate_id VARCHAR(128),
    tenant_id VARCHAR(64),
    topic VARCHAR(255),
    payload LONGTEXT,
    payload_bytes LONGBLOB,
    content_type VARCHAR(128),
    headers LONGTEXT,
    status TINYINT NOT NULL DEFAULT 0 CHECK (status IN (0, 1, 2, 3)),
    attempts INT NOT NULL DEFAULT 0,
    available_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    occurred_at DATETIME(6),
    done_at DATETIME(6),
    last_error TEXT,
    locked_by VARCHAR(128),
    locked_at DATETIME(6),
    -- 0 for what is pending, else the status; and what rows of that stage are sorted by. There are no partial indexes
    -- here, so one index has a part for each stage: claims walk the first, retention and redrives the others.
    stage TINYINT GENERATED ALWAYS AS (IF(status IN (0, 2), 0, status)) STORED,
    -- MySQL makes it before it fills in defaults, and once more after; the first time no moment is there yet, only a zero
    -- that it would refuse.
    stage_at DATETIME(6) GENERATED ALWAYS AS
        (GREATEST(IF(status IN (0, 2), available_at, COALESCE(done_at, created_at)), TIMESTAMP'0001-01-01 00:00:00')) STORED,
    PRIMARY KEY (seq),
    UNIQUE KEY `{name}_id` (event_id),
    KEY `{name}_stage` (stage, stage_at, seq, status),
    -- For what happened to one aggregate.
    KEY `{name}_aggregate` (aggregate_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin */ /*M!100203 utf8mb4_nopad_bin */;
