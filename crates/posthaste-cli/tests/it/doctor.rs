//! `posthaste doctor`: each trouble is planted on a real server, found, and gone when it is mended as the doctor says.

use std::time::Duration;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};

use crate::place::{Place, until};
use crate::relay::{jetstream, postgres, redis, unique, variable};
use crate::stdout;

/// What the doctor finds, and the status.
fn found(here: &Place, more: &[&str]) -> (i32, Vec<Value>) {
    let output = here.run(&[&["doctor", "--output", "json"], more].concat());
    let status = output.status.code().unwrap();
    assert!(status < 2, "{}{}", stdout(&output), crate::stderr(&output));
    (status, serde_json::from_str::<Value>(stdout(&output)).unwrap().as_array().unwrap().clone())
}

/// The findings of one check.
fn of<'a>(findings: &'a [Value], check: &str) -> Vec<(&'a str, &'a str, &'a str)> {
    let text = |finding: &'a Value, key: &str| finding[key].as_str().unwrap_or_default();
    let of_check = findings.iter().filter(|finding| finding["check"] == check);
    of_check.map(|finding| (text(finding, "level"), text(finding, "finding"), text(finding, "fix"))).collect()
}

/// The one finding of a check, which is bad: what, and the fix.
#[track_caller]
fn bad<'a>(findings: &'a [Value], check: &str) -> (&'a str, &'a str) {
    match of(findings, check)[..] {
        [("warning" | "problem", what, fix)] => (what, fix),
        ref other => panic!("{check}: {other:?} in {findings:#?}"),
    }
}

#[track_caller]
fn assert_fine(findings: &[Value], check: &str) {
    assert!(matches!(of(findings, check)[..], [("ok", ..)]), "{check} in {findings:#?}");
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

#[tokio::test]
async fn what_is_well_is_said_to_be_and_what_is_missing_is_not() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    let (status, findings) = found(&here, &[]);
    let (what, fix) = bad(&findings, "schema");
    assert!(status == 1 && what.contains("not there") && fix.contains("posthaste migrate up"), "{findings:#?}");
    here.ok(&["migrate", "up"]);
    let (_, findings) = found(&here, &["--long-transaction", "10h"]);
    for check in [
        "connection",
        "schema",
        "clock",
        "indexes",
        "privileges",
        "autovacuum",
        "bloat",
        "leases",
        "relays",
        "destination stdout",
    ] {
        assert_fine(&findings, check);
    }
    let table = here.run(&["doctor", "--no-destinations", "--long-transaction", "10h"]);
    assert!(stdout(&table).starts_with("LEVEL") && !stdout(&table).contains("destination"), "{}", stdout(&table));

    let nobody = Place::new().variable("POSTHASTE_DATABASE_URL", "postgres://nobody@127.0.0.1:1/x");
    let (status, findings) = found(&nobody, &["--no-destinations"]);
    assert_eq!((status, findings.len()), (1, 1));
    assert!(bad(&findings, "connection").0.contains("127.0.0.1:1"), "{findings:#?}");
    assert!(here.fails(3, &["doctor", "--table", "no table!"]).contains("database.table"));
}

#[tokio::test]
async fn indexes_that_are_gone_are_found_and_made_again() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for index in ["outbox_event_pending", "outbox_event_seq", "outbox_event_final"] {
        execute(&mut connection, &format!("DROP INDEX {index}")).await;
        let (status, findings) = found(&here, &["--no-destinations"]);
        let (what, fix) = bad(&findings, "indexes");
        assert!(status == 1 && what.contains(index) && fix.contains("CONCURRENTLY"), "{findings:#?}");
        execute(&mut connection, fix).await;
        assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
    }
    execute(&mut connection, "ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_pkey").await;
    let (_, findings) = found(&here, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "indexes");
    assert!(what.contains("primary key"), "{what}");
    execute(&mut connection, fix).await;
    assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
    // As one is left that could not be made.
    execute(
        &mut connection,
        "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'outbox_event_final'::regclass",
    )
    .await;
    let (_, findings) = found(&here, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "indexes");
    assert!(what.contains("outbox_event_final is not valid"), "{what}");
    execute(&mut connection, fix).await;
    assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
}

#[tokio::test]
async fn privileges_that_lack_are_found_and_granted() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let role = format!("doctor_{:x}", fastrand::u64(..));
    let mut connection = PgConnection::connect(&url).await.unwrap();
    execute(&mut connection, &format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON posthaste_migration TO {role}")).await;
    let user = url.split_once("://").unwrap().1.split(['@', ':']).next().unwrap().to_owned();
    let theirs = url.replacen(&format!("//{user}@"), &format!("//{role}@"), 1);
    assert_ne!(theirs, url, "{url}");
    let there = Place::with("[relay]\nretention_done = \"1h\"\n").variable("POSTHASTE_DATABASE_URL", &theirs);
    let (status, findings) = found(&there, &["--no-destinations"]);
    assert_eq!(status, 1);
    let privileges = of(&findings, "privileges");
    for part in ["read events", "change status, attempts", "may not delete", "what is paused"] {
        assert!(
            privileges.iter().any(|(level, what, _)| *level == "problem" && what.contains(part)),
            "{part}: {findings:#?}"
        );
    }
    assert_eq!(of(&findings, "transactions of others").len(), 1, "{findings:#?}");
    for (_, _, fix) in privileges {
        execute(&mut connection, fix).await;
    }
    let (_, findings) = found(&there, &["--no-destinations"]);
    assert_fine(&findings, "privileges");
    assert!(matches!(of(&findings, "privileges of writers")[..], [("note", ..)]), "{findings:#?}");
    // What the doctor finds enough is enough.
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    assert_eq!(there.ok(&["relay", "--once"]).lines().count(), 1);
    execute(&mut connection, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_long_transaction_is_found_with_its_pid() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    let mut holding = PgConnection::connect(&url).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holding).await.unwrap();
    execute(&mut holding, "BEGIN; SELECT * FROM outbox_event FOR UPDATE").await;
    let mine = |findings: &[Value]| {
        let of_mine = |finding: &(&str, &str, &str)| finding.1.contains(&format!("PID {pid} "));
        of(findings, "transactions").into_iter().find(of_mine).map(|(level, _, fix)| (level.to_owned(), fix.to_owned()))
    };
    let mut fix = String::new();
    until("it is long enough", || {
        let (status, findings) = found(&here, &["--no-destinations", "--long-transaction", "1s"]);
        let Some((level, how)) = mine(&findings) else { return false };
        assert_eq!((status, &*level), (1, "warning"), "{findings:#?}");
        fix = how;
        true
    });
    assert!(mine(&found(&here, &["--no-destinations", "--long-transaction", "10m"]).1).is_none());
    let sql = fix.strip_prefix("end it: ").unwrap().split(';').next().unwrap().to_owned();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    execute(&mut connection, &sql).await;
    until("it is gone", || mine(&found(&here, &["--no-destinations", "--long-transaction", "1s"]).1).is_none());
}

#[tokio::test]
async fn a_slot_that_nobody_reads_is_found() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let slot = format!("doctor_{:x}", fastrand::u64(..));
    let mut connection = PgConnection::connect(&url).await.unwrap();
    execute(&mut connection, &format!("SELECT pg_create_physical_replication_slot('{slot}', TRUE)")).await;
    let (status, findings) = found(&here, &["--no-destinations"]);
    let mine: Vec<_> = of(&findings, "slots").into_iter().filter(|(_, what, _)| what.contains(&slot)).collect();
    let drop = format!("pg_drop_replication_slot('{slot}')");
    execute(&mut connection, &format!("SELECT {drop}")).await;
    assert!(status == 1 && matches!(mine[..], [("warning", _, fix)] if fix.contains(&drop)), "{findings:#?}");
    assert!(!found(&here, &["--no-destinations"]).1.iter().any(|finding| finding.to_string().contains(&slot)));
}

#[tokio::test]
async fn leases_that_ran_out_and_rows_that_nobody_takes_are_found() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    for id in ["1", "2"] {
        here.ok(&["events", "write", "--id", id, "--type", "OrderPlaced", "{}"]);
    }
    let mut connection = PgConnection::connect(&url).await.unwrap();
    execute(
        &mut connection,
        "UPDATE outbox_event SET locked_by = 'relay-9/17', locked_at = clock_timestamp() - interval '10 min' WHERE event_id = '1'; \
         UPDATE outbox_event SET available_at = clock_timestamp() - interval '20 min' WHERE event_id = '2'",
    )
    .await;
    let (status, findings) = found(&here, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "leases");
    assert!(status == 1 && what.starts_with("1 event(s)") && what.contains("of relay-9"), "{what}");
    assert!(what.contains("30") && fix.contains("posthaste relay"), "{what} {fix}");
    assert!(bad(&findings, "relays").0.contains("the oldest for 1200 s"), "{findings:#?}");
    here.ok(&["relay", "--once"]);
    let (_, findings) = found(&here, &["--no-destinations"]);
    assert_fine(&findings, "leases");
    assert_fine(&findings, "relays");
}

#[tokio::test]
async fn a_table_without_autovacuum_is_found() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    execute(&mut connection, "ALTER TABLE outbox_event SET (autovacuum_enabled = false)").await;
    execute(
        &mut connection,
        "INSERT INTO outbox_event (event_id, event_type, payload) SELECT n::text, 'X', '{}' FROM generate_series(1, 20000) AS n; \
         DELETE FROM outbox_event",
    )
    .await;
    let autovacuum = || found(&here, &["--no-destinations"]).1;
    // The server counts dead rows a little later.
    until("both are found", || of(&autovacuum(), "autovacuum").len() == 2);
    let findings = autovacuum();
    let levels: Vec<_> = of(&findings, "autovacuum").iter().map(|(level, ..)| (*level).to_owned()).collect();
    assert_eq!(levels, ["problem", "warning"], "{findings:#?}");
    let fix = of(&findings, "autovacuum")[0].2.to_owned();
    execute(&mut connection, &fix).await;
    execute(&mut connection, "VACUUM outbox_event").await;
    until("it is well", || matches!(of(&autovacuum(), "autovacuum")[..], [("ok", ..)]));
}

#[tokio::test]
async fn mysql_is_looked_at() {
    let (url, table) = (variable("POSTHASTE_TEST_MYSQL_URL"), format!("doctor_{:x}", fastrand::u64(..)));
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url).variable("POSTHASTE_DATABASE_TABLE", &table);
    assert!(bad(&found(&here, &["--no-destinations"]).1, "schema").0.contains("not there"));
    here.ok(&["migrate", "up"]);
    let (_, findings) = found(&here, &["--no-destinations", "--long-transaction", "10h"]);
    for check in ["connection", "schema", "clock", "indexes", "privileges", "transactions", "leases", "relays"] {
        assert_fine(&findings, check);
    }
    let mut connection = MySqlConnection::connect(&url).await.unwrap();
    let execute = async |connection: &mut MySqlConnection, sql: String| {
        sqlx::raw_sql(AssertSqlSafe(sql.clone()))
            .execute(connection)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    };
    for index in ["aggregate", "stage", "id"] {
        execute(&mut connection, format!("ALTER TABLE {table} DROP KEY {table}_{index}")).await;
        let (_, findings) = found(&here, &["--no-destinations"]);
        let (what, fix) = bad(&findings, "indexes");
        assert!(what.contains(&format!("{table}_{index}")), "{what}");
        execute(&mut connection, fix.to_owned()).await;
        assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
    }
    here.ok(&["events", "write", "--id", "1", "--type", "OrderPlaced", "{}"]);
    execute(
        &mut connection,
        format!("UPDATE {table} SET locked_by = 'relay-9/17', locked_at = UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE"),
    )
    .await;
    let (_, findings) = found(&here, &["--no-destinations"]);
    assert!(bad(&findings, "leases").0.contains("of relay-9"), "{findings:#?}");
    let id: i64 =
        sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(&mut connection).await.unwrap();
    execute(&mut connection, "START TRANSACTION".to_owned()).await;
    let locked = sqlx::query(AssertSqlSafe(format!("SELECT seq FROM {table} FOR UPDATE"))).fetch_all(&mut connection);
    assert_eq!(locked.await.unwrap().len(), 1);
    until("the transaction is found", || {
        // What the server says of transactions is as old as the last question, if that was less than 100 ms ago.
        std::thread::sleep(Duration::from_millis(200));
        let (_, findings) = found(&here, &["--no-destinations", "--long-transaction", "1s"]);
        of(&findings, "transactions").iter().any(|(level, what, fix)| {
            *level == "warning" && what.contains(&format!("connection {id} ")) && fix.contains(&format!("KILL {id}"))
        })
    });
}

#[tokio::test]
async fn sqlite_is_looked_at() {
    let here = Place::new();
    assert!(bad(&found(&here, &[]).1, "connection").0.contains("there is no posthaste.db"));
    assert!(!here.path("posthaste.db").exists());
    here.ok(&["events", "write", "--id", "1", "--type", "OrderPlaced", "{}"]);
    let (status, findings) = found(&here, &[]);
    assert_eq!(status, 0, "{findings:#?}");
    for check in ["connection", "schema", "journal", "bloat", "file", "indexes", "leases", "relays"] {
        assert_fine(&findings, check);
    }
    let url = format!("sqlite:{}", here.path("posthaste.db").display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    let execute = async |connection: &mut SqliteConnection, sql: &str| {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(connection)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    };
    execute(&mut connection, "DROP INDEX outbox_event_pending").await;
    execute(&mut connection, "UPDATE outbox_event SET locked_by = 'relay-9/17', locked_at = 1").await;
    let (status, findings) = found(&here, &[]);
    let (what, fix) = bad(&findings, "indexes");
    assert!(status == 1 && what.contains("outbox_event_pending"), "{what}");
    assert!(bad(&findings, "leases").0.contains("of relay-9"), "{findings:#?}");
    execute(&mut connection, fix).await;
    assert_fine(&found(&here, &[]).1, "indexes");
}

#[test]
fn destinations_that_are_away_or_forget_are_found() {
    let subjects = unique("doctor");
    jetstream("add", &format!(r#"{{"name": "{subjects}", "subjects": ["{subjects}.>"], "storage": "memory"}}"#));
    let here = Place::with(&format!(
        "[destination.away]\ntype = \"redis\"\nurl = \"redis://127.0.0.1:1\"\nto = \"x\"\n\
         [destination.closed]\ntype = \"file\"\npath = \"no/such/directory/x\"\n\
         [destination.memory]\ntype = \"nats\"\nurl = \"{nats}\"\nto = \"{subjects}.{{event_type}}\"\n\
         [destination.nowhere]\ntype = \"nats\"\nurl = \"{nats}\"\nto = \"no-{subjects}.x\"\n\
         [destination.redis]\ntype = \"redis\"\nurl = \"{}\"\nto = \"x\"\n\
         [[route]]\nto = [\"away\", \"closed\", \"memory\", \"nowhere\", \"redis\"]\n",
        variable("POSTHASTE_TEST_REDIS_URL"),
        nats = variable("POSTHASTE_TEST_NATS_URL"),
    ));
    here.ok(&["migrate", "up"]);
    let was = redis(&["CONFIG", "GET", "appendonly"]).lines().last().unwrap().to_owned();
    redis(&["CONFIG", "SET", "appendonly", "no"]);
    let (status, findings) = found(&here, &[]);
    redis(&["CONFIG", "SET", "appendonly", "yes"]);
    let (_, with_log) = found(&here, &[]);
    redis(&["CONFIG", "SET", "appendonly", &was]);
    assert_eq!(status, 1);
    assert!(bad(&findings, "destination away").0.contains("cannot be reached"), "{findings:#?}");
    assert!(bad(&findings, "destination closed").0.contains("no/such/directory"), "{findings:#?}");
    assert!(bad(&findings, "destination memory").0.contains("kept in memory"), "{findings:#?}");
    assert!(bad(&findings, "destination nowhere").0.contains("no stream takes the subject"), "{findings:#?}");
    let (what, fix) = bad(&findings, "destination redis");
    assert!(what.contains("appendonly is off") && fix.contains("appendonly yes"), "{what} {fix}");
    assert!(
        !of(&with_log, "destination redis").iter().any(|(_, what, _)| what.contains("appendonly")),
        "{with_log:#?}"
    );
}
