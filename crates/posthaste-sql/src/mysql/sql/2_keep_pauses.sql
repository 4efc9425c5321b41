-- What relays are told not to deliver for the time being. They look here about twice in a second.
CREATE TABLE IF NOT EXISTS {schema}`{name}_pause` (
    -- 0 a route, 1 a destination.
    kind TINYINT NOT NULL,
    name VARCHAR(128) NOT NULL,
    reason TEXT,
    since DATETIME(6) NOT NULL,
    PRIMARY KEY (kind, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE /*!80017 utf8mb4_0900_bin */ /*M!100203 utf8mb4_nopad_bin */;
