//! The function by which other languages and triggers write events.

use std::time::Duration;

use posthaste_core::store::{AdminStore, Error};
use posthaste_core::{Delivery, Event, EventId, Options, Outbox, Timestamp, event};
use posthaste_sql::{Partitions, PgStore};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgDatabaseError, PgPoolOptions};
use tokio::sync::mpsc::unbounded_channel;

use super::support::{Database, claim, sql, within, write};
use crate::support::{chain, sql_of_other_languages};

async fn with_function(store: PgStore) -> PgStore {
    store.migrate().await.unwrap();
    store.create_write_function().await.unwrap();
    store
}

/// Calls the function of the default table, with these arguments as they stand in SQL.
async fn call(store: &PgStore, arguments: &str) -> Result<String, sqlx::Error> {
    let sql = format!("SELECT posthaste_write({arguments})");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(store.pool()).await
}

/// A row but for what differs from insert to insert, with how its moments lie.
async fn row(store: &PgStore, id: &str) -> String {
    let query = format!(
        "SELECT (to_jsonb(t) - ARRAY['seq', 'event_id', 'created_at', 'available_at', 'occurred_at'])::text \
         || ' available after ' || (available_at - created_at) || CASE WHEN occurred_at < '2026-01-01' \
         THEN ' occurred at ' || (occurred_at AT TIME ZONE 'UTC') ELSE ' occurred now' END FROM {} AS t WHERE event_id = $1",
        store.table()
    );
    sqlx::query_scalar(AssertSqlSafe(query)).bind(id).fetch_one(store.pool()).await.unwrap()
}

#[tokio::test]
async fn its_rows_are_those_of_the_library() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    let occurred_at = Timestamp::from_micros(1_580_702_706_123_456);
    let pairs = [
        ("'OrderPlaced', '{}'", Event::builder("OrderPlaced").json_text("{}")),
        (
            "'Größe''\"', ' { \"b\" : 1, \"a\": \"\\u0000\" } ', 'Order', '4''2', 't 1', 'a.b', \
             '{\"b\": \"2\", \"aa\": \"1\", \"B\": \"\\u0001\\n\\\"\\\\ é 😀 \\u007f/\"}', content_type => 'application/x+json', \
             occurred_at => '2020-02-03 04:05:06.123456Z', deliver_after => '90 s'",
            Event::builder("Größe'\"")
                .json_text(r#" { "b" : 1, "a": "\u0000" } "#)
                .aggregate("Order", "4'2")
                .tenant_id("t 1")
                .topic("a.b")
                .headers([("b", "2"), ("aa", "1"), ("B", "\u{1}\n\"\\ é 😀 \u{7f}/")])
                .content_type("application/x+json")
                .occurred_at(occurred_at)
                .deliver_after(Duration::from_secs(90)),
        ),
        (
            "event_type => 'T', payload_bytes => '\\x0001ff', aggregate_id => '', headers => '{}'",
            Event::builder("T").bytes([0, 1, 255]).aggregate_id(""),
        ),
    ];
    for (number, (arguments, builder)) in pairs.into_iter().enumerate() {
        let id = format!("by-library-{number}");
        let event = builder.id(&id).build().unwrap();
        write(&store, [event.clone()]).await;
        let called = call(&store, arguments).await.unwrap();
        assert_eq!(row(&store, &called).await, row(&store, &id).await);

        let read = store.find(&EventId::from_row(&called)).await.unwrap().unwrap().event.unwrap();
        assert_eq!(read.headers(), event.headers());
        assert_eq!(read.payload(), event.payload());
    }
}

#[tokio::test]
async fn its_ids_are_ulids_of_the_moment_or_chosen() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    let before = EventId::generate();
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(call(&store, "'T', '1'").await.unwrap());
    }
    let digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    for id in &ids {
        assert!(id.len() == 26 && id.chars().all(|digit| digits.contains(digit)), "{id}");
        // The first ten characters are the time; the server may be a little behind.
        let (time, then) = (&id[..7], &before.as_str()[..7]);
        assert!(time >= then, "{id} is before {before}");
    }
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());

    assert_eq!(call(&store, "'T', '1', event_id => 'request-8812'").await.unwrap(), "request-8812");
    let error = call(&store, "'T', '1', event_id => 'request-8812'").await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "23505");
}

/// What is refused, the field that is to blame, and what is said; the library says the same of the event beside it.
#[tokio::test]
async fn bad_input_is_refused_in_the_words_of_the_library_and_nothing_is_stored() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    let b = || Event::builder("T").json_text("{}");
    let long = |n| "ä".repeat(n);
    let [at, later] = [1_893_456_000_000_000, 1_924_992_000_000_000].map(Timestamp::from_micros);
    let same = [
        ("'', '1'".to_owned(), "event_type", Event::builder("").json_text("1")),
        (format!("'{}', '1'", long(129)), "event_type", Event::builder(long(129)).json_text("1")),
        ("'T', '1', ''".to_owned(), "aggregate_type", b().aggregate_type("")),
        (format!("'T', '1', '{}'", long(65)), "aggregate_type", b().aggregate_type(long(65))),
        (format!("'T', '1', aggregate_id => '{}'", long(129)), "aggregate_id", b().aggregate_id(long(129))),
        (format!("'T', '1', tenant_id => '{}'", long(65)), "tenant_id", b().tenant_id(long(65))),
        (format!("'T', '1', topic => '{}'", long(256)), "topic", b().topic(long(256))),
        ("'T', '1', content_type => ''".to_owned(), "content_type", b().content_type("")),
        (format!("'T', '1', content_type => '{}'", long(129)), "content_type", b().content_type(long(129))),
        ("'T', '1', headers => '{\"\": \"x\"}'".to_owned(), "headers", b().header("", "x")),
        (
            "'T', '1', headers => jsonb_build_object('k', repeat('x', 65536))".to_owned(),
            "headers",
            b().header("k", "x".repeat(65536)),
        ),
        (
            "'T', '\"' || repeat('x', 1048575) || '\"'".to_owned(),
            "payload",
            Event::builder("T").json_text(format!("\"{}\"", "x".repeat(1_048_575))),
        ),
        (
            "'T', payload_bytes => convert_to(repeat('x', 1048577), 'UTF8')".to_owned(),
            "payload",
            Event::builder("T").bytes(vec![b'x'; 1_048_577]),
        ),
        (
            "'T', '1', available_at => '2030-01-01Z', deliver_after => '1 s'".to_owned(),
            "available_at",
            b().available_at(at).deliver_after(Duration::from_secs(1)),
        ),
    ];
    for (arguments, column, builder) in same {
        let expected = builder.build().unwrap_err().mistake.to_string();
        assert_refused(&store, &arguments, column, &expected).await;
    }
    let mistake = b().available_at(at).occurred_at(later).build().unwrap_err().mistake;
    assert!(matches!(mistake, event::Mistake::AvailableBeforeOccurred { .. }));
    let ours = [
        ("NULL, '1'", "event_type", "event_type is missing; say what happened"),
        ("'T', '1', event_id => ''", "event_id", "event_id is empty; give it at least one character"),
        (
            "'T', '1', event_id => repeat('x', 37)",
            "event_id",
            "event_id has 37 characters, the limit is 36; shorten it, or put the long part in the payload",
        ),
        ("'T'", "payload", "payload is missing; give JSON as payload, or anything else as payload_bytes"),
        ("'T', '{'", "payload", "payload is not valid JSON; send text that is not JSON as payload_bytes"),
        ("'T', ''", "payload", "payload is not valid JSON; send text that is not JSON as payload_bytes"),
        (
            "'T', '1', payload_bytes => ''",
            "payload",
            "payload was given twice, as payload and as payload_bytes; give exactly one",
        ),
        (
            "'T', '1', headers => '[]'",
            "headers",
            "headers is of type array; give an object of texts, such as {\"region\": \"eu\"}",
        ),
        (
            "'T', '1', headers => '{\"k\": 1}'",
            "headers",
            "header \"k\" is of type number; headers are texts, so put it in quotes",
        ),
        (
            "'T', '1', headers => '{\"event-version\": \"0\"}'",
            "headers",
            "header \"event-version\" is 0; versions count from 1, which is what it is if it is left out",
        ),
        (
            "'T', '1', deliver_after => '0'",
            "deliver_after",
            "deliver_after is 00:00:00, which is no delay; leave it out to deliver at once",
        ),
        (
            "'T', '1', deliver_after => '36501 days'",
            "deliver_after",
            "deliver_after is 36501 days, the limit is 100 years; give a shorter one",
        ),
        (
            "'T', '1', available_at => 'infinity'",
            "available_at",
            "a moment is infinite; give one that comes, or leave it out",
        ),
        (
            "'T', '1', available_at => '2030-01-01Z', occurred_at => '2031-01-01Z'",
            "available_at",
            "available_at is 2030-01-01 00:00:00+00, before occurred_at, 2031-01-01 00:00:00+00, and nothing is delivered before \
             it happened; give a later available_at, or an earlier occurred_at",
        ),
    ];
    for (arguments, column, expected) in ours {
        assert_refused(&store, arguments, column, expected).await;
    }
}

#[tokio::test]
async fn what_is_available_now_was_said_a_moment_ago() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    for moment in ["now()", "clock_timestamp()", "clock_timestamp() - INTERVAL '900 ms'"] {
        call(&store, &format!("'T', '1', available_at => {moment}"))
            .await
            .unwrap_or_else(|error| panic!("{moment}: {error}"));
    }
    // The time of a transaction is that of its start, however long ago.
    sql(&store, "BEGIN; SELECT pg_sleep(2.5); SELECT posthaste_write('T', '1', available_at => now()); COMMIT").await;
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!((claimed.rows.len(), claimed.malformed.len()), (4, 0));

    // Longer ago is a mistake, and so is a moment before one that was given.
    for arguments in [
        "'T', '1', available_at => now() - INTERVAL '10 s'",
        "'T', '1', available_at => now(), occurred_at => now() + INTERVAL '1 ms'",
    ] {
        let error = call(&store, arguments).await.unwrap_err().to_string();
        assert!(error.contains("nothing is delivered before it happened"), "{arguments}: {error}");
    }
}

#[tokio::test]
async fn a_caller_with_tables_of_the_same_name_writes_where_it_is_meant() {
    let database = Database::new().await;
    let store = database.store().await;
    // The usual path, by which everybody has a schema of his own first.
    let path: String = sqlx::query_scalar("SHOW search_path").fetch_one(store.pool()).await.unwrap();
    assert_eq!(path, "\"$user\", public");
    let store = with_function(store).await;
    let role = format!("posthaste_{}_namesake", std::process::id());
    sql(
        &store,
        format!(
            "DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; GRANT INSERT, SELECT ON outbox_event TO {role}; \
             CREATE SCHEMA {role} AUTHORIZATION {role}; CREATE TABLE {role}.outbox_event (LIKE public.outbox_event INCLUDING ALL); \
             ALTER TABLE {role}.outbox_event OWNER TO {role}"
        ),
    )
    .await;
    let options = database.options().options([("role", &role)]);
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let namesake = PgStore::new(pool);
    let call = "SELECT public.posthaste_write('T', '1')";
    sql(&namesake, call).await;
    sql(&namesake, "CREATE TEMPORARY TABLE outbox_event (LIKE public.outbox_event INCLUDING ALL)").await;
    sql(&namesake, call).await;
    let there: i64 =
        sqlx::query_scalar("SELECT count(*) FROM public.outbox_event").fetch_one(store.pool()).await.unwrap();
    assert_eq!(there, 2);
    namesake.pool().close().await;
    sql(&store, format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

async fn assert_refused(store: &PgStore, arguments: &str, column: &str, expected: &str) {
    let shown: String = arguments.chars().take(60).collect();
    let error = call(store, arguments).await.unwrap_err();
    let error = error.as_database_error().unwrap().downcast_ref::<PgDatabaseError>();
    assert_eq!(error.message(), expected, "{shown}");
    assert_eq!((error.code(), error.column()), ("22023", Some(column)), "{shown}");
    assert_eq!(store.counts().await.unwrap().pending(), 0, "{shown}");
}

#[tokio::test]
async fn what_is_just_within_the_limits_is_stored() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    let arguments = "repeat('ä', 128), '\"' || repeat('x', 1048574) || '\"', repeat('ä', 64), repeat('ä', 128), repeat('ä', 64), \
                     repeat('ä', 255), jsonb_build_object('k', repeat('x', 65528)), content_type => repeat('ä', 128), \
                     event_id => repeat('ä', 36), deliver_after => '36500 days'";
    let id = call(&store, arguments).await.unwrap();
    let event = store.find(&EventId::from_row(&id)).await.unwrap().unwrap().event.unwrap();
    assert_eq!((event.topic().unwrap().chars().count(), event.payload().len()), (255, 1_048_576));
}

#[tokio::test]
async fn what_it_writes_is_delivered_if_and_only_if_the_transaction_commits() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    store.create_wake_trigger().await.unwrap();
    let (sender, mut delivered) = unbounded_channel();
    let relay = Outbox::builder(store.clone())
        .options(Options { poll_interval: Duration::from_secs(3600), ..Options::default() })
        .listen_all(move |event: Delivery| {
            let sent = sender.send(event.event_type().to_owned());
            async move { sent.unwrap() }
        })
        .start()
        .await
        .unwrap();
    sql(&store, "BEGIN; SELECT posthaste_write('Undone', '{}'); ROLLBACK").await;
    sql(&store, "BEGIN; SELECT posthaste_write('Done', '{}'); COMMIT").await;
    assert_eq!(within("it is woken", delivered.recv()).await.unwrap(), "Done");
    relay.shutdown().await;
    assert_eq!((delivered.recv().await, relay.store().counts().await.unwrap().done), (None, 1));
}

#[tokio::test]
async fn triggers_can_call_it() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    sql(
        &store,
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, total INTEGER NOT NULL); \
         CREATE FUNCTION order_placed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM posthaste_write('OrderPlaced', to_jsonb(NEW)::text, 'Order', NEW.id::text); RETURN NULL; \
         END $$; \
         CREATE TRIGGER order_placed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION order_placed(); \
         INSERT INTO orders VALUES (1, 1990), (2, 2990)",
    )
    .await;
    let (_, claimed) = claim(&store, 10).await;
    let payloads: Vec<_> = claimed.rows.iter().map(|row| row.event.payload().as_json().unwrap()).collect();
    assert_eq!(payloads, [r#"{"id": 1, "total": 1990}"#, r#"{"id": 2, "total": 2990}"#]);
}

#[tokio::test]
async fn the_page_on_other_languages_works() {
    let database = Database::new().await;
    let store = with_function(database.store().await).await;
    sql(&store, "CREATE TABLE orders (id BIGINT PRIMARY KEY, total INTEGER NOT NULL)").await;
    let blocks = sql_of_other_languages("PostgreSQL");
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        sql(&store, block).await;
    }
    // By the trigger of the page.
    sql(&store, "INSERT INTO orders VALUES (44, 1)").await;
    let (_, claimed) = claim(&store, 10).await;
    assert!(claimed.malformed.is_empty(), "{:?}", claimed.malformed);
    let ids: Vec<_> = claimed.rows.iter().map(|row| row.event.aggregate_id().unwrap()).collect();
    assert_eq!(ids, ["42", "43", "44"]);
    assert_eq!(claimed.rows[1].event.header("region"), Some("eu"));
}

#[tokio::test]
async fn tables_of_other_names_schemas_and_kinds_have_their_own() {
    let database = Database::new().await;
    let store = database.empty().await;
    sql(&store, "CREATE SCHEMA audit").await;
    let longest = "t".repeat(48);
    let tables = ["outbox_event", "audit.outbox_event", "audit.order_events", "select", &longest];
    let calls = ["posthaste_write", "audit.posthaste_write", "audit.order_events_write", "select_write"];
    let long_call = format!("{longest}_write");
    for (table, function) in tables.into_iter().zip(calls.into_iter().chain([long_call.as_str()])) {
        let store = store.clone().with_table(table).unwrap();
        with_function(store.clone()).await;
        store.create_write_function().await.unwrap();
        // From wherever the caller looks.
        sql(&store, format!("SET search_path = pg_catalog; SELECT {}('T', '1'); RESET search_path", public(function)))
            .await;
        assert_eq!(store.counts().await.unwrap().pending(), 1, "{table}");
    }

    let other = Database::new().await;
    let parts = with_function(other.empty().await.partitioned(Partitions::daily())).await;
    let id = call(&parts, "'T', '1'").await.unwrap();
    let place: String = sqlx::query_scalar("SELECT tableoid::regclass::text FROM outbox_event WHERE event_id = $1")
        .bind(&id)
        .fetch_one(parts.pool())
        .await
        .unwrap();
    assert!(place.starts_with("outbox_event_p2"), "{place}");
}

fn public(function: &str) -> String {
    if function.contains('.') { function.to_owned() } else { format!("public.{function}") }
}

#[tokio::test]
async fn without_a_table_or_the_right_to_create_it_it_says_so() {
    let database = Database::new().await;
    let store = database.empty().await;
    let error = store.create_write_function().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { .. }), "{error:?}");
    assert!(error.to_string().contains("it does not exist; call migrate() first"), "{error}");

    store.migrate().await.unwrap();
    let role = format!("posthaste_{}_nobody", std::process::id());
    sql(&store, format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role}; GRANT INSERT ON outbox_event TO {role}"))
        .await;
    let options = database.options().options([("role", &role)]);
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let nobody = PgStore::new(pool);
    let error = nobody.create_write_function().await.unwrap_err();
    assert!(matches!(&error, Error::Refused(_)), "{error:?}");
    assert!(chain(&error).contains("grant this user what it needs: "), "{}", chain(&error));
    assert!(chain(&error).contains("permission denied for schema public"), "{}", chain(&error));

    // Whoever may insert may call it, and needs nothing else.
    store.create_write_function().await.unwrap();
    call(&nobody, "'T', '1'").await.unwrap();
    sql(&store, format!("REVOKE INSERT ON outbox_event FROM {role}")).await;
    let error = call(&nobody, "'T', '1'").await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "42501");
    nobody.pool().close().await;
    sql(&store, format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
