-- Writes an event in the transaction of the caller, and returns its id. Checks what the library checks, so that whatever it stores
-- can be delivered. For programs in other languages, and for triggers.
CREATE OR REPLACE FUNCTION {schema}"{function}"(
    event_type TEXT,
    payload TEXT DEFAULT NULL,
    aggregate_type TEXT DEFAULT NULL,
    aggregate_id TEXT DEFAULT NULL,
    tenant_id TEXT DEFAULT NULL,
    topic TEXT DEFAULT NULL,
    headers JSONB DEFAULT NULL,
    payload_bytes BYTEA DEFAULT NULL,
    content_type TEXT DEFAULT NULL,
    event_id TEXT DEFAULT NULL,
    occurred_at TIMESTAMPTZ DEFAULT NULL,
    available_at TIMESTAMPTZ DEFAULT NULL,
    deliver_after INTERVAL DEFAULT NULL
) RETURNS TEXT LANGUAGE plpgsql
-- The table is the one that is meant here, not one that the caller might see under the same name.
SET search_path FROM CURRENT
AS $function$
DECLARE
    -- What may not be empty; what may be missing; how many characters each has at most.
    field TEXT;
    value TEXT;
    most INTEGER;
    may_be_empty BOOLEAN;
    written_at TIMESTAMPTZ := clock_timestamp();
    headers_text TEXT;
    random BYTEA;
    milliseconds BIGINT;
    -- The digits of a ULID: no I, L, O and U.
    digits CONSTANT TEXT := '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
BEGIN
    aggregate_type := coalesce(aggregate_type, '__GLOBAL__');
    -- What is to be available now was given a moment ago, or at the start of the transaction; it has not happened since.
    occurred_at := coalesce(
        occurred_at,
        CASE WHEN available_at < written_at AND available_at >= least(now(), written_at - INTERVAL '2 seconds') THEN available_at END,
        written_at);
    content_type := coalesce(
        content_type, CASE WHEN payload IS NOT NULL THEN 'application/json' ELSE 'application/octet-stream' END);

    IF event_type IS NULL THEN
        RAISE EXCEPTION 'event_type is missing; say what happened'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'event_type';
    END IF;
    FOR field, value, most, may_be_empty IN VALUES
        ('event_id', event_id, 36, FALSE),
        ('event_type', event_type, 128, FALSE),
        ('aggregate_type', aggregate_type, 64, FALSE),
        ('aggregate_id', aggregate_id, 128, TRUE),
        ('tenant_id', tenant_id, 64, TRUE),
        ('topic', topic, 255, TRUE),
        ('content_type', content_type, 128, FALSE)
    LOOP
        IF value = '' AND NOT may_be_empty THEN
            RAISE EXCEPTION '% is empty; give it at least one character', field
                USING ERRCODE = 'invalid_parameter_value', COLUMN = field;
        ELSIF length(value) > most THEN
            RAISE EXCEPTION '% has % characters, the limit is %; shorten it, or put the long part in the payload',
                field, length(value), most
                USING ERRCODE = 'invalid_parameter_value', COLUMN = field;
        END IF;
    END LOOP;

    IF headers IS NOT NULL THEN
        IF jsonb_typeof(headers) <> 'object' THEN
            RAISE EXCEPTION 'headers is of type %; give an object of texts, such as {"region": "eu"}', jsonb_typeof(headers)
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'headers';
        END IF;
        FOR field, value IN SELECT h.key, jsonb_typeof(h.value) FROM jsonb_each(headers) AS h LOOP
            IF field = '' THEN
                RAISE EXCEPTION 'header key is empty; give it at least one character'
                    USING ERRCODE = 'invalid_parameter_value', COLUMN = 'headers';
            ELSIF value <> 'string' THEN
                RAISE EXCEPTION 'header "%" is of type %; headers are texts, so put it in quotes', left(field, 64), value
                    USING ERRCODE = 'invalid_parameter_value', COLUMN = 'headers';
            END IF;
        END LOOP;
        IF headers ->> 'event-version' = '0' THEN
            RAISE EXCEPTION 'header "event-version" is 0; versions count from 1, which is what it is if it is left out'
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'headers';
        END IF;
        -- Sorted, and without spaces, as the library writes them.
        SELECT '{' || string_agg(to_json(h.key)::TEXT || ':' || to_json(h.value)::TEXT, ',' ORDER BY h.key COLLATE "C") || '}'
            INTO headers_text FROM jsonb_each_text(headers) AS h;
        IF octet_length(headers_text) > 65536 THEN
            RAISE EXCEPTION 'headers have % bytes as JSON, the limit is 65536; put the large ones in the payload',
                octet_length(headers_text)
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'headers';
        END IF;
    END IF;

    IF payload IS NULL AND payload_bytes IS NULL THEN
        RAISE EXCEPTION 'payload is missing; give JSON as payload, or anything else as payload_bytes'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'payload';
    ELSIF payload IS NOT NULL AND payload_bytes IS NOT NULL THEN
        RAISE EXCEPTION 'payload was given twice, as payload and as payload_bytes; give exactly one'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'payload';
    ELSIF coalesce(octet_length(payload), octet_length(payload_bytes)) > 1048576 THEN
        RAISE EXCEPTION 'payload has % bytes, the limit is 1048576; store the large part elsewhere and put a reference to it in the event',
            coalesce(octet_length(payload), octet_length(payload_bytes))
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'payload';
    ELSIF payload IS NOT NULL THEN
        BEGIN
            PERFORM payload::JSON;
        EXCEPTION WHEN invalid_text_representation THEN
            RAISE EXCEPTION 'payload is not valid JSON; send text that is not JSON as payload_bytes'
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'payload';
        END;
    END IF;

    IF available_at IS NOT NULL AND deliver_after IS NOT NULL THEN
        RAISE EXCEPTION 'available_at and deliver_after were both given; give one of them'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'available_at';
    ELSIF deliver_after <= INTERVAL '0' THEN
        RAISE EXCEPTION 'deliver_after is %, which is no delay; leave it out to deliver at once', deliver_after
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'deliver_after';
    ELSIF deliver_after > INTERVAL '36500 days' THEN
        RAISE EXCEPTION 'deliver_after is %, the limit is 100 years; give a shorter one', deliver_after
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'deliver_after';
    ELSIF NOT isfinite(occurred_at) OR NOT coalesce(isfinite(available_at), TRUE) THEN
        RAISE EXCEPTION 'a moment is infinite; give one that comes, or leave it out'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'available_at';
    ELSIF coalesce(available_at, written_at + deliver_after) < occurred_at THEN
        RAISE EXCEPTION 'available_at is %, before occurred_at, %, and nothing is delivered before it happened; give a later available_at, or an earlier occurred_at',
            coalesce(available_at, written_at + deliver_after), occurred_at
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'available_at';
    END IF;

    IF event_id IS NULL THEN
        -- A ULID: the time, so that ids rise as rows do, and 79 bits of chance.
        milliseconds := floor(extract(EPOCH FROM written_at) * 1000);
        random := uuid_send(gen_random_uuid());
        SELECT string_agg(substr(digits, 1 + d.digit, 1), '' ORDER BY d.place) INTO event_id FROM (
            SELECT i, ((milliseconds >> (45 - 5 * i)) & 31)::INTEGER FROM generate_series(0, 9) AS i
            UNION ALL
            SELECT 10 + i, get_byte(random, i) & 31 FROM generate_series(0, 15) AS i
        ) AS d (place, digit);
    END IF;

    INSERT INTO {table} (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload,
        payload_bytes, headers, occurred_at, created_at, available_at)
    VALUES (event_id, event_type, aggregate_type, aggregate_id, tenant_id, topic, content_type, payload,
        payload_bytes, headers_text, occurred_at, written_at, coalesce(available_at, written_at + deliver_after, written_at));
    RETURN event_id;
END
$function$;

-- The same path for whoever calls it: not with the schema of his own, where "$user" is in it, and not with his temporary tables first.
DO $path$
DECLARE
    path TEXT;
BEGIN
    SELECT coalesce(string_agg(quote_ident(s.name), ', ' ORDER BY s.place) || ', ', '') || 'pg_temp' INTO path
        FROM unnest(current_schemas(FALSE)) WITH ORDINALITY AS s (name, place) WHERE s.name NOT LIKE 'pg\_%';
    EXECUTE 'ALTER FUNCTION {schema}"{function}"(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT, JSONB, BYTEA, TEXT, TEXT, TIMESTAMPTZ, '
        'TIMESTAMPTZ, INTERVAL) SET search_path = ' || path;
END
$path$;
