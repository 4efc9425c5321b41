-- Wakes the relays when somebody else than Posthaste has written rows. The notice goes out with their commit, which has
-- to queue for it: many writers at once get slower. Rows that a Posthaste process delivers itself send none.
CREATE OR REPLACE FUNCTION {schema}"{name}_wake"() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    PERFORM pg_notify('posthaste_{name}', '');
    RETURN NULL;
END
$function$;

DROP TRIGGER IF EXISTS "{name}_wake" ON {table};
CREATE TRIGGER "{name}_wake" AFTER INSERT ON {table} FOR EACH ROW WHEN (NEW.locked_by IS NULL)
    EXECUTE FUNCTION {schema}"{name}_wake"();
