//! The procedure by which other languages and triggers write events.

use std::time::Duration;

use posthaste_core::store::{AdminStore, Error};
use posthaste_core::{Event, EventId, Timestamp};
use posthaste_sql::MySqlStore;
use sqlx::mysql::{MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

use super::fault::encrypted;
use super::{Database, execute, pool};
use crate::support::{chain, claim, sql_of_other_languages, write};

async fn with_procedure(database: &Database) -> MySqlStore {
    let store = database.store().await;
    store.create_write_procedure().await.unwrap();
    store
}

/// Calls the procedure of the default table, with these arguments as they stand in SQL, and gives the id.
async fn call(connection: &mut MySqlConnection, arguments: &str) -> Result<String, sqlx::Error> {
    connection.execute(AssertSqlSafe(format!("CALL posthaste_write({arguments}, @id)"))).await?;
    sqlx::query_scalar("SELECT @id").fetch_one(connection).await
}

/// A row but for what differs from insert to insert, with how its moments lie.
async fn row(store: &MySqlStore, id: &str) -> String {
    let query = "SELECT CONCAT_WS('|', event_type, aggregate_type, COALESCE(aggregate_id, 'none'), COALESCE(tenant_id, 'none'), \
                 COALESCE(topic, 'none'), COALESCE(payload, 'none'), COALESCE(HEX(payload_bytes), 'none'), content_type, \
                 headers IS NULL, status, attempts, COALESCE(locked_by, 'nobody'), COALESCE(done_at, 'not done'), \
                 TIMESTAMPDIFF(MICROSECOND, created_at, available_at), \
                 IF(occurred_at < '2026-01-01', occurred_at, 'now')) FROM outbox_event WHERE event_id = ?";
    sqlx::query_scalar(query).bind(id).fetch_one(store.pool()).await.unwrap()
}

#[tokio::test]
async fn its_rows_are_those_of_the_library() {
    let database = Database::new().await;
    let store = with_procedure(&database).await;
    let mut connection = database.connection().await;
    let pairs = [
        ("'OrderPlaced', NULL, NULL, '{}', NULL", Event::builder("OrderPlaced").json_text("{}")),
        (
            "'Größe''\"', 'Order', '4''2 ', ' { \"b\" : 1, \"a\": \"\\\\u0000\" } ', JSON_OBJECT('tenant_id', 't 1', \
             'topic', 'a.b', 'headers', JSON_OBJECT('b', '2', 'aa', '1', 'B', '\n\"\\\\ é 😀 /'), \
             'content_type', 'application/x+json', 'occurred_at', '2020-02-03T04:05:06.123456Z', 'deliver_after', 90.5)",
            Event::builder("Größe'\"")
                .json_text(r#" { "b" : 1, "a": "\u0000" } "#)
                .aggregate("Order", "4'2 ")
                .tenant_id("t 1")
                .topic("a.b")
                .headers([("b", "2"), ("aa", "1"), ("B", "\n\"\\ é 😀 /")])
                .content_type("application/x+json")
                .occurred_at(Timestamp::from_micros(1_580_702_706_123_456))
                .deliver_after(Duration::from_millis(90_500)),
        ),
        (
            "'T', NULL, '', NULL, '{\"payload_base64\": \"AAH/\", \"headers\": {}, \"topic\": null}'",
            Event::builder("T").bytes([0, 1, 255]).aggregate_id(""),
        ),
    ];
    for (number, (arguments, builder)) in pairs.into_iter().enumerate() {
        let id = format!("by-library-{number}");
        let event = builder.id(&id).build().unwrap();
        write(&store, [event.clone()]).await;
        let called = call(&mut connection, arguments).await.unwrap();
        assert_eq!(row(&store, &called).await, row(&store, &id).await);

        let read = store.find(&EventId::from_row(&called)).await.unwrap().unwrap().event.unwrap();
        assert_eq!(read.headers(), event.headers());
        assert_eq!(read.payload(), event.payload());
    }
}

#[tokio::test]
async fn its_ids_are_ulids_of_the_moment_or_chosen() {
    let database = Database::new().await;
    let _store = with_procedure(&database).await;
    let mut connection = database.connection().await;
    let before = EventId::generate();
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(call(&mut connection, "'T', NULL, NULL, '1', NULL").await.unwrap());
    }
    let digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    for id in &ids {
        assert!(id.len() == 26 && id.chars().all(|digit| digits.contains(digit)), "{id}");
        // The first ten characters are the time; the server may be a little behind.
        assert!(id[..7] >= before.as_str()[..7], "{id} is before {before}");
    }
    // Every digit comes up, so none was lost on the way to its place in the alphabet.
    let seen = ids.iter().flat_map(|id| id[10..].chars()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(seen.into_iter().collect::<String>(), digits);
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());

    let chosen = "'T', NULL, NULL, '1', '{\"event_id\": \"request-8812\"}'";
    assert_eq!(call(&mut connection, chosen).await.unwrap(), "request-8812");
    let error = call(&mut connection, chosen).await.unwrap_err();
    assert!(error.as_database_error().unwrap().is_unique_violation(), "{error}");
}

#[tokio::test]
async fn bad_input_is_refused_in_the_words_of_the_library_and_nothing_is_stored() {
    let database = Database::new().await;
    let store = with_procedure(&database).await;
    let b = || Event::builder("T").json_text("1");
    let long = |n| "ä".repeat(n);
    let option = |option: &str| format!("'T', NULL, NULL, '1', '{{{option}}}'");
    let same = [
        ("'', NULL, NULL, '1', NULL".to_owned(), Event::builder("").json_text("1")),
        (format!("'{}', NULL, NULL, '1', NULL", long(129)), Event::builder(long(129)).json_text("1")),
        ("CHAR(97, 0), NULL, NULL, '1', NULL".to_owned(), Event::builder("a\0").json_text("1")),
        ("'T', '', NULL, '1', NULL".to_owned(), b().aggregate_type("")),
        (format!("'T', '{}', NULL, '1', NULL", long(65)), b().aggregate_type(long(65))),
        (format!("'T', NULL, '{}', '1', NULL", long(129)), b().aggregate_id(long(129))),
        (option(&format!(r#""tenant_id": "{}""#, long(65))), b().tenant_id(long(65))),
        (option(&format!(r#""topic": "{}""#, long(256))), b().topic(long(256))),
        (option(r#""content_type": """#), b().content_type("")),
        (option(r#""headers": {"": "x"}"#), b().header("", "x")),
        (
            "'T', NULL, NULL, '1', '{\"available_at\": \"2030-01-01T00:00:00Z\", \"deliver_after\": 1}'".to_owned(),
            b().available_at(Timestamp::from_micros(1_893_456_000_000_000)).deliver_after(Duration::from_secs(1)),
        ),
    ];
    for (arguments, builder) in same {
        let expected = builder.build().unwrap_err().mistake.to_string();
        assert_refused(&database, &store, &arguments, &expected).await;
    }
    let payload = "'T', NULL, NULL, CONCAT('\"', REPEAT('x', 1048575), '\"'), NULL";
    let ours = [
        ("NULL, NULL, NULL, '1', NULL", "event_type is missing; say what happened"),
        (
            payload,
            "payload has 1048577 bytes, the limit is 1048576; store the large part elsewhere and put a reference in the event",
        ),
        (
            "'T', NULL, NULL, NULL, NULL",
            "payload is missing; give JSON as payload, or anything else as the option payload_base64",
        ),
        (
            "'T', NULL, NULL, '{', NULL",
            "payload is not valid JSON, or nested too deeply for this server; send it as the option payload_base64",
        ),
        (
            "'T', NULL, NULL, '', NULL",
            "payload is not valid JSON, or nested too deeply for this server; send it as the option payload_base64",
        ),
        (
            "'T', NULL, NULL, '1', '{\"payload_base64\": \"AA==\"}'",
            "payload was given twice, as payload and as payload_base64; give exactly one",
        ),
        (
            "'T', NULL, NULL, NULL, '{\"payload_base64\": \"?\"}'",
            "payload_base64 is not base64; encode the bytes with TO_BASE64",
        ),
        (
            "'T', NULL, NULL, '1', '['",
            "options is not a JSON object; give one, such as {\"tenant_id\": \"eu\"}, or NULL",
        ),
        (
            "'T', NULL, NULL, '1', '[]'",
            "options is not a JSON object; give one, such as {\"tenant_id\": \"eu\"}, or NULL",
        ),
        (
            "'T', NULL, NULL, '1', '{\"tenant\": \"eu\"}'",
            "there is no option tenant; see what there is in the documentation",
        ),
        (
            "'T', NULL, NULL, '1', '{\"tenant_id\": 1}'",
            "tenant_id is of type INTEGER, and has to be a text; put it in quotes",
        ),
        (
            "'T', NULL, NULL, '1', '{\"headers\": []}'",
            "headers is no object; give an object of texts, such as {\"region\": \"eu\"}",
        ),
        (
            "'T', NULL, NULL, '1', '{\"headers\": {\"k\": 1}}'",
            "header \"k\" is of type INTEGER; headers are texts, so put it in quotes",
        ),
        (
            "'T', NULL, NULL, '1', '{\"headers\": {\"k\": \"\\\\u0000\"}}'",
            "a header holds the character U+0000, which not every database can store; remove it",
        ),
        (
            "'T', NULL, NULL, '1', '{\"headers\": {\"event-version\": \"0\"}}'",
            "header \"event-version\" is 0; versions count from 1, which is what it is if it is left out",
        ),
        (
            "'T', NULL, NULL, '1', JSON_OBJECT('event_id', REPEAT('x', 37))",
            "event_id has 37 characters, the limit is 36; shorten it, or put the long part in the payload",
        ),
        (
            "'T', NULL, NULL, '1', '{\"deliver_after\": 0}'",
            "deliver_after is not above zero; leave it out to deliver at once",
        ),
        ("'T', NULL, NULL, '1', '{\"deliver_after\": \"1 s\"}'", "deliver_after is not a number; give the seconds"),
        (
            "'T', NULL, NULL, '1', '{\"deliver_after\": 1e300}'",
            "deliver_after is over 100 years, which is the limit; give a shorter one",
        ),
        (
            "'T', NULL, NULL, '1', '{\"occurred_at\": \"yesterday\"}'",
            "occurred_at is not a moment; give it in UTC, such as 2026-01-31T23:59:59.123456Z",
        ),
        (
            "'T', NULL, NULL, '1', '{\"occurred_at\": \"2026-02-30T00:00:00Z\"}'",
            "occurred_at is not a moment; there is no 2026-02-30",
        ),
        (
            "'T', NULL, NULL, '1', '{\"available_at\": \"2030-01-01 00:00:00\", \"occurred_at\": \"2031-01-01 00:00:00\"}'",
            "available_at, 2030-01-01 00:00:00.000000, is before occurred_at, 2031-01-01 00:00:00.000000; give a later or an \
             earlier one",
        ),
    ];
    for (arguments, expected) in ours {
        assert_refused(&database, &store, arguments, expected).await;
    }
    // What has many bytes as JSON depends on how the server writes it.
    let headers = "'T', NULL, NULL, '1', JSON_OBJECT('headers', JSON_OBJECT('k', REPEAT('x', 65536)))";
    let error = call(&mut database.connection().await, headers).await.unwrap_err().to_string();
    assert!(error.contains("bytes as JSON, the limit is 65536; put the large ones in the payload"), "{error}");
    assert_eq!(store.counts().await.unwrap().pending(), 0);
}

#[tokio::test]
async fn what_is_available_now_was_said_a_moment_ago() {
    let database = Database::new().await;
    let store = with_procedure(&database).await;
    let mut connection = database.connection().await;
    // With microseconds, and in whole seconds, as clients have them.
    for format in ["%Y-%m-%dT%H:%i:%s.%fZ", "%Y-%m-%dT%H:%i:%sZ"] {
        let arguments =
            format!("'T', NULL, NULL, '1', JSON_OBJECT('available_at', DATE_FORMAT(UTC_TIMESTAMP(6), '{format}'))");
        call(&mut connection, &arguments).await.unwrap();
    }
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!((claimed.rows.len(), claimed.malformed.len()), (2, 0));

    // Longer ago is a mistake, and so is a moment before one that was given.
    let arguments = "'T', NULL, NULL, '1', JSON_OBJECT('available_at', DATE_FORMAT(UTC_TIMESTAMP(6) - INTERVAL 10 SECOND, \
                     '%Y-%m-%dT%H:%i:%s.%fZ'))";
    let error = call(&mut connection, arguments).await.unwrap_err().to_string();
    assert!(error.contains("is before occurred_at"), "{error}");
}

#[tokio::test]
async fn headers_are_as_large_as_those_of_the_library() {
    let database = Database::new().await;
    let store = with_procedure(&database).await;
    let mut connection = database.connection().await;
    // 600 of 109 bytes each, and a bracket: with the spaces that servers add they are over the limit.
    let fitting = |last: usize| {
        let headers = (0..600).map(|n| (format!("k{n:03}"), "v".repeat(if n == 599 { last } else { 99 })));
        headers.collect::<std::collections::BTreeMap<_, _>>()
    };
    for (last, fits) in [(99, true), (99 + 65536 - 65401, true), (99 + 65537 - 65401, false)] {
        let headers = fitting(last);
        let event = Event::builder("T").json_text("1").headers(headers.clone()).build();
        assert_eq!(event.is_ok(), fits, "{last}");
        let options = serde_json::json!({ "headers": headers }).to_string();
        let called = call(&mut connection, &format!("'T', NULL, NULL, '1', '{options}'")).await;
        match called {
            Ok(id) => {
                let read = store.find(&EventId::from_row(&id)).await.unwrap().unwrap().event.unwrap();
                assert!(fits && read.headers() == event.unwrap().headers(), "{last}");
            }
            Err(error) => {
                assert!(!fits && error.to_string().contains("headers have 65537 bytes as JSON"), "{last}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_nested_too_deeply_is_not_called_something_else() {
    let database = Database::new().await;
    with_procedure(&database).await;
    let mut connection = database.connection().await;
    let nested = |levels: usize| format!("'T', NULL, NULL, '{}{}', NULL", "[".repeat(levels), "]".repeat(levels));
    call(&mut connection, &nested(30)).await.unwrap();
    let error = call(&mut connection, &nested(120)).await.unwrap_err().to_string();
    assert!(error.contains("or nested too deeply for this server; send it as the option payload_base64"), "{error}");
}

async fn assert_refused(database: &Database, store: &MySqlStore, arguments: &str, expected: &str) {
    let shown: String = arguments.chars().take(60).collect();
    let error = call(&mut database.connection().await, arguments).await.unwrap_err();
    let error = error.as_database_error().unwrap().downcast_ref::<MySqlDatabaseError>();
    assert_eq!(error.message(), expected, "{shown}");
    assert_eq!((error.number(), error.code()), (1644, Some("45000")), "{shown}");
    assert_eq!(store.counts().await.unwrap().pending(), 0, "{shown}");
}

#[tokio::test]
async fn it_is_part_of_the_transaction_and_triggers_can_call_it() {
    let database = Database::new().await;
    let store = with_procedure(&database).await;
    let mut connection = database.connection().await;
    let mut tx = connection.begin().await.unwrap();
    call(&mut tx, "'Undone', NULL, NULL, '1', NULL").await.unwrap();
    tx.rollback().await.unwrap();

    execute(&store, "CREATE TABLE orders (id BIGINT PRIMARY KEY, total INT NOT NULL)").await;
    let trigger = "CREATE TRIGGER order_placed AFTER INSERT ON orders FOR EACH ROW BEGIN DECLARE id VARCHAR(36); \
                   CALL posthaste_write('OrderPlaced', 'Order', NEW.id, JSON_OBJECT('total', NEW.total), NULL, id); END";
    sqlx::raw_sql(trigger).execute(store.pool()).await.unwrap();
    execute(&store, "INSERT INTO orders VALUES (1, 1990), (2, 2990)").await;
    let (_, claimed) = claim(&store, 10).await;
    let keys: Vec<_> = claimed.rows.iter().map(|row| (row.event.event_type(), row.event.aggregate_id())).collect();
    assert_eq!(keys, [("OrderPlaced", Some("1")), ("OrderPlaced", Some("2"))]);
    assert_eq!(claimed.rows[0].event.payload().as_json(), Some(r#"{"total": 1990}"#));

    let session = "SET SESSION sql_mode = '', time_zone = '+07:00', collation_connection = utf8mb4_general_ci";
    connection.execute(session).await.unwrap();
    let late: i64 = {
        let id = call(&mut connection, "'T', NULL, NULL, '1', NULL").await.unwrap();
        let query =
            "SELECT ABS(TIMESTAMPDIFF(SECOND, available_at, UTC_TIMESTAMP())) FROM outbox_event WHERE event_id = ?";
        sqlx::query_scalar(query).bind(id).fetch_one(&mut connection).await.unwrap()
    };
    assert!(late < 60, "{late}");
}

#[tokio::test]
async fn the_page_on_other_languages_works() {
    let database = Database::new().await;
    let store = with_procedure(&database).await;
    execute(&store, "CREATE TABLE orders (id BIGINT PRIMARY KEY, total INT NOT NULL)").await;
    let blocks = sql_of_other_languages("MySQL and MariaDB");
    assert_eq!(blocks.len(), 3);
    let mut connection = database.connection().await;
    for block in blocks {
        sqlx::raw_sql(AssertSqlSafe(block.to_owned())).execute(&mut connection).await.unwrap();
    }
    // By the trigger of the page.
    execute(&store, "INSERT INTO orders VALUES (44, 1)").await;
    let (_, claimed) = claim(&store, 10).await;
    assert!(claimed.malformed.is_empty(), "{:?}", claimed.malformed);
    // One of them waits for a minute.
    let ids: Vec<_> = claimed.rows.iter().map(|row| row.event.aggregate_id().unwrap()).collect();
    assert_eq!((ids, store.counts().await.unwrap().pending()), (vec!["42", "43", "44"], 4));
    assert_eq!(claimed.rows[1].event.header("region"), Some("eu"));
}

#[tokio::test]
async fn tables_of_other_names_and_databases_have_their_own() {
    let (database, other) = (Database::new().await, Database::new().await);
    let store = database.empty().await;
    let elsewhere = format!("{}.outbox_event", other.name);
    let longest = "t".repeat(48);
    let tables = ["outbox_event", &elsewhere, "order_events", "select", &longest];
    let (far, long) = (format!("{}.posthaste_write", other.name), format!("{longest}_write"));
    let calls = ["posthaste_write", &far, "order_events_write", "select_write", &long];
    for (table, procedure) in tables.into_iter().zip(calls) {
        let store = store.clone().with_table(table).unwrap();
        store.migrate().await.unwrap();
        store.create_write_procedure().await.unwrap();
        store.create_write_procedure().await.unwrap();
        execute(&store, &format!("CALL {procedure}('T', NULL, NULL, '1', NULL, @id)")).await;
        assert_eq!(store.counts().await.unwrap().pending(), 1, "{table}");
    }
}

#[tokio::test]
async fn an_older_one_is_replaced_and_the_same_is_left_alone() {
    let database = Database::new().await;
    let store = database.store().await;
    let old = "CREATE PROCEDURE posthaste_write(IN event_type TEXT) COMMENT 'posthaste 0' SELECT 1";
    sqlx::raw_sql(old).execute(store.pool()).await.unwrap();
    store.create_write_procedure().await.unwrap();
    let created = "SELECT CAST(created AS CHAR), CAST(routine_comment AS CHAR) FROM information_schema.routines \
                   WHERE routine_schema = DATABASE()";
    let first: (String, String) = sqlx::query_as(created).fetch_one(store.pool()).await.unwrap();
    assert_ne!(first.1, "posthaste 0");
    // The moment of its creation has seconds.
    execute(&store, "DO SLEEP(1.1)").await;
    store.create_write_procedure().await.unwrap();
    assert_eq!(sqlx::query_as::<_, (String, String)>(created).fetch_one(store.pool()).await.unwrap(), first);
    call(&mut database.connection().await, "'T', NULL, NULL, '1', NULL").await.unwrap();
}

#[tokio::test]
async fn without_a_table_or_the_right_to_create_it_it_says_so() {
    let database = Database::new().await;
    let error = database.empty().await.create_write_procedure().await.unwrap_err();
    assert!(matches!(&error, Error::Schema { .. }), "{error:?}");
    assert!(error.to_string().contains("call migrate() first"), "{error}");

    let user = encrypted(database.user("").await);
    let owner = database.store().await;
    execute(
        &owner,
        &format!("REVOKE CREATE ROUTINE, ALTER ROUTINE, EXECUTE ON {}.* FROM {}", database.name, database.user_name()),
    )
    .await;
    let store = MySqlStore::new(pool(1).connect_with(user.clone()).await.unwrap());
    // The table alone can be migrated.
    store.clone().with_table("another").unwrap().migrate().await.unwrap();
    let error = store.create_write_procedure().await.unwrap_err();
    assert!(matches!(&error, Error::Refused(_)), "{error:?}");
    assert!(chain(&error).contains("grant this user what it needs: "), "{}", chain(&error));

    // With the rights of who calls it.
    owner.create_write_procedure().await.unwrap();
    let grant = format!(
        "GRANT EXECUTE ON PROCEDURE {}.posthaste_write TO {user}; REVOKE INSERT ON {0}.* FROM {user}",
        database.name,
        user = database.user_name()
    );
    sqlx::raw_sql(AssertSqlSafe(grant)).execute(owner.pool()).await.unwrap();
    let mut connection = user.connect().await.unwrap();
    let error = call(&mut connection, "'T', NULL, NULL, '1', NULL").await.unwrap_err();
    assert!(error.to_string().contains("INSERT command denied"), "{error}");
}
