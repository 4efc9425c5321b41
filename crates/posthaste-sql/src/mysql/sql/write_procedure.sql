-- Writes an event in the transaction of the caller, and gives its id back. Checks what the library checks, so that whatever it
-- stores can be delivered. For programs in other languages, and for triggers.
--
-- Procedures have no parameters that may be left out, so what most events do not need is in `options`, a JSON object or NULL.
-- A message of SIGNAL has at most 128 characters.
CREATE PROCEDURE {schema}`{procedure}`(
    IN event_type LONGTEXT CHARACTER SET utf8mb4,
    IN aggregate_type LONGTEXT CHARACTER SET utf8mb4,
    IN aggregate_id LONGTEXT CHARACTER SET utf8mb4,
    IN payload LONGTEXT CHARACTER SET utf8mb4,
    IN options LONGTEXT CHARACTER SET utf8mb4,
    OUT id VARCHAR(36) CHARACTER SET utf8mb4
)
MODIFIES SQL DATA
-- With the rights of who calls it.
SQL SECURITY INVOKER
COMMENT '{comment}'
BEGIN
    DECLARE field, kind VARCHAR(64) CHARACTER SET utf8mb4;
    DECLARE value, option_keys, header_keys, headers LONGTEXT CHARACTER SET utf8mb4;
    DECLARE payload_bytes LONGBLOB;
    DECLARE tenant_id, topic, content_type, event_id LONGTEXT CHARACTER SET utf8mb4;
    DECLARE place, most INT DEFAULT 0;
    DECLARE size BIGINT DEFAULT 1;
    DECLARE delay DECIMAL(30, 6);
    DECLARE written_at, occurred_at, available_at DATETIME(6);
    DECLARE message VARCHAR(512) CHARACTER SET utf8mb4;

    SET id = NULL;
    SET written_at = UTC_TIMESTAMP(6);
    SET aggregate_type = COALESCE(aggregate_type, '__GLOBAL__');

    -- The options.
    IF options IS NOT NULL AND (NOT JSON_VALID(options) OR JSON_TYPE(options) NOT IN ('OBJECT', 'NULL')) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'options is not a JSON object; give one, such as {"tenant_id": "eu"}, or NULL';
    END IF;
    IF JSON_TYPE(options) = 'OBJECT' THEN
        SET option_keys = JSON_KEYS(options);
        WHILE place < JSON_LENGTH(option_keys) DO
            SET value = JSON_UNQUOTE(JSON_EXTRACT(option_keys, CONCAT('$[', place, ']')));
            IF CAST(value AS BINARY) NOT IN ('event_id', 'tenant_id', 'topic', 'content_type', 'headers', 'payload_base64', 'occurred_at',
                             'available_at', 'deliver_after') THEN
                SET message = CONCAT('there is no option ', LEFT(value, 40), '; see what there is in the documentation');
                SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
            END IF;
            SET field = value;
            SET kind = JSON_TYPE(JSON_EXTRACT(options, CONCAT('$.', field)));
            SET value = JSON_UNQUOTE(JSON_EXTRACT(options, CONCAT('$.', field)));
            -- What is null was left out.
            IF kind = 'NULL' THEN
                SET value = NULL;
            ELSEIF field = 'headers' THEN
                IF kind <> 'OBJECT' THEN
                    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'headers is no object; give an object of texts, such as {"region": "eu"}';
                END IF;
                SET headers = JSON_EXTRACT(options, '$.headers');
            ELSEIF field = 'deliver_after' THEN
                IF kind NOT IN ('INTEGER', 'UNSIGNED INTEGER', 'DOUBLE', 'DECIMAL') THEN
                    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'deliver_after is not a number; give the seconds';
                END IF;
                SET delay = LEAST(GREATEST(CAST(value AS DOUBLE), -1), 1e15);
            ELSEIF kind <> 'STRING' THEN
                SET message = CONCAT(field, ' is of type ', kind, ', and has to be a text; put it in quotes');
                SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
            ELSEIF field IN ('occurred_at', 'available_at') THEN
                IF value NOT REGEXP '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?Z?$' THEN
                    SET message = CONCAT(field, ' is not a moment; give it in UTC, such as 2026-01-31T23:59:59.123456Z');
                    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
                END IF;
                SET value = REPLACE(REPLACE(value, 'T', ' '), 'Z', '');
                -- There may be no such day.
                IF CAST(LEFT(value, 10) AS DATE) IS NULL THEN
                    SET message = CONCAT(field, ' is not a moment; there is no ', LEFT(value, 10));
                    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
                ELSEIF field = 'occurred_at' THEN
                    SET occurred_at = value;
                ELSE
                    SET available_at = value;
                END IF;
            ELSEIF field = 'event_id' THEN
                SET event_id = value;
            ELSEIF field = 'tenant_id' THEN
                SET tenant_id = value;
            ELSEIF field = 'topic' THEN
                SET topic = value;
            ELSEIF field = 'content_type' THEN
                SET content_type = value;
            ELSE
                BEGIN
                    -- MariaDB refuses what is not base64, MySQL makes NULL of it.
                    DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET payload_bytes = NULL;
                    SET payload_bytes = FROM_BASE64(value);
                END;
                IF payload_bytes IS NULL THEN
                    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'payload_base64 is not base64; encode the bytes with TO_BASE64';
                END IF;
            END IF;
            SET place = place + 1;
        END WHILE;
    END IF;
    -- What is to be available now was given a moment ago, maybe in whole seconds; it has not happened since.
    SET occurred_at = COALESCE(
        occurred_at,
        IF(available_at < written_at AND available_at >= written_at - INTERVAL 2 SECOND, available_at, NULL),
        written_at);
    SET content_type = COALESCE(content_type, IF(payload_bytes IS NULL, 'application/json', 'application/octet-stream'));

    -- The texts. By their length: to compare with '' would leave spaces out. And as bytes: collations may take no notice of U+0000.
    IF event_type IS NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'event_type is missing; say what happened';
    END IF;
    SET place = 0;
    WHILE place < 7 DO
        SET field = ELT(place + 1, 'event_id', 'event_type', 'aggregate_type', 'aggregate_id', 'tenant_id', 'topic', 'content_type');
        SET value = ELT(place + 1, event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type);
        SET most = ELT(place + 1, 36, 128, 64, 128, 64, 255, 128);
        IF CHAR_LENGTH(value) = 0 AND field NOT IN ('aggregate_id', 'tenant_id', 'topic') THEN
            SET message = CONCAT(field, ' is empty; give it at least one character');
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
        ELSEIF CHAR_LENGTH(value) > most THEN
            SET message = CONCAT(field, ' has ', CHAR_LENGTH(value), ' characters, the limit is ', most,
                '; shorten it, or put the long part in the payload');
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
        ELSEIF LOCATE(UNHEX('00'), CAST(value AS BINARY)) > 0 THEN
            SET message = CONCAT(field, ' holds the character U+0000, which not every database can store; remove it');
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
        END IF;
        SET place = place + 1;
    END WHILE;

    -- The headers.
    IF JSON_LENGTH(headers) = 0 THEN
        SET headers = NULL;
    END IF;
    IF headers IS NOT NULL THEN
        -- Those that could not fit are not gone through one by one.
        IF JSON_LENGTH(headers) > 65536 / 6 THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'headers have more than 65536 bytes as JSON, which is the limit; put them in the payload';
        END IF;
        SET header_keys = JSON_KEYS(headers);
        SET option_keys = JSON_EXTRACT(headers, '$.*');
        SET place = 0;
        WHILE place < JSON_LENGTH(option_keys) DO
            SET kind = JSON_TYPE(JSON_EXTRACT(option_keys, CONCAT('$[', place, ']')));
            SET value = JSON_UNQUOTE(JSON_EXTRACT(header_keys, CONCAT('$[', place, ']')));
            IF CHAR_LENGTH(value) = 0 THEN
                SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'header key is empty; give it at least one character';
            ELSEIF kind <> 'STRING' THEN
                SET message = CONCAT('header "', LEFT(value, 40), '" is of type ', kind, '; headers are texts, so put it in quotes');
                SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
            ELSEIF LOCATE(UNHEX('00'), CAST(value AS BINARY)) > 0
                OR LOCATE(UNHEX('00'), CAST(JSON_UNQUOTE(JSON_EXTRACT(option_keys, CONCAT('$[', place, ']'))) AS BINARY)) > 0 THEN
                SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a header holds the character U+0000, which not every database can store; remove it';
            END IF;
            -- As the library counts: without the spaces that a server adds.
            SET size = size + 2 + LENGTH(JSON_QUOTE(value))
                + LENGTH(JSON_QUOTE(JSON_UNQUOTE(JSON_EXTRACT(option_keys, CONCAT('$[', place, ']')))));
            SET place = place + 1;
        END WHILE;
        IF size > 65536 THEN
            SET message = CONCAT('headers have ', size, ' bytes as JSON, the limit is 65536; put the large ones in the payload');
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
        END IF;
        IF JSON_UNQUOTE(JSON_EXTRACT(headers, '$."event-version"')) = '0' THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'header "event-version" is 0; versions count from 1, which is what it is if it is left out';
        END IF;
    END IF;

    -- The payload.
    IF payload IS NULL AND payload_bytes IS NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'payload is missing; give JSON as payload, or anything else as the option payload_base64';
    ELSEIF payload IS NOT NULL AND payload_bytes IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'payload was given twice, as payload and as payload_base64; give exactly one';
    ELSEIF COALESCE(LENGTH(payload), LENGTH(payload_bytes)) > 1048576 THEN
        SET message = CONCAT('payload has ', COALESCE(LENGTH(payload), LENGTH(payload_bytes)),
            ' bytes, the limit is 1048576; store the large part elsewhere and put a reference in the event');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
    ELSEIF payload IS NOT NULL THEN
        BEGIN
            -- Of what is nested deeper than it reads (100 levels, MariaDB 32) MySQL makes an error, and MariaDB says that it is no JSON.
            DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET most = 0;
            SET most = JSON_VALID(payload);
        END;
        IF most = 0 THEN
            SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'payload is not valid JSON, or nested too deeply for this server; send it as the option payload_base64';
        END IF;
    END IF;

    -- When.
    IF available_at IS NOT NULL AND delay IS NOT NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'available_at and deliver_after were both given; give one of them';
    ELSEIF delay <= 0 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'deliver_after is not above zero; leave it out to deliver at once';
    ELSEIF delay > 3153600000 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'deliver_after is over 100 years, which is the limit; give a shorter one';
    END IF;
    IF delay IS NOT NULL THEN
        SET available_at = TIMESTAMPADD(MICROSECOND, delay * 1000000, written_at);
    END IF;
    IF available_at < occurred_at THEN
        SET message = CONCAT('available_at, ', available_at, ', is before occurred_at, ', occurred_at, '; give a later or an earlier one');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
    END IF;

    IF event_id IS NULL THEN
        -- A ULID: the time, so that ids rise as rows do, and 80 bits of chance. CONV has the digits 0 to 9 and A to V, a ULID has
        -- no I, L, O and U: from the last digit on, each makes room for the one before it.
        SET value = LPAD(CONV(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', written_at) DIV 1000, 10, 32), 10, '0');
        SET message = SHA2(CONCAT(UUID(), RAND(), CONNECTION_ID()), 256);
        SET value = CONCAT(value, LPAD(CONV(LEFT(message, 10), 16, 32), 8, '0'), LPAD(CONV(SUBSTR(message, 11, 10), 16, 32), 8, '0'));
        SET place = 1;
        WHILE place <= 14 DO
            SET value = REPLACE(value, SUBSTR('VUTSRQPONMLKJI', place, 1), SUBSTR('ZYXWVTSRQPNMKJ', place, 1));
            SET place = place + 1;
        END WHILE;
        SET event_id = value;
    END IF;

    INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload,
        payload_bytes, headers, occurred_at, created_at, available_at)
    VALUES (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload,
        payload_bytes, headers, occurred_at, written_at, COALESCE(available_at, written_at));
    SET id = event_id;
END
