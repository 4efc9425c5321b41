//! What may be wrong with PostgreSQL.

use posthaste_torture::server::{Kind, Server, ServerOptions};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{assert_fine, assert_off, bad, found, of};
use crate::place::{Place, until};
use crate::relay::{postgres, unique};
use crate::stdout;

async fn say(connection: &mut PgConnection, sql: &str) {
    let said = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await;
    said.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The same database for another role.
fn of_role(url: &str, role: &str) -> String {
    let user = url.split_once("://").unwrap().1.split(['@', ':']).next().unwrap();
    let theirs = url.replacen(&format!("//{user}@"), &format!("//{role}@"), 1);
    assert_ne!(theirs, url, "{url}");
    theirs
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
        say(&mut connection, &format!("DROP INDEX {index}")).await;
        let (status, findings) = found(&here, &["--no-destinations"]);
        let (what, fix) = bad(&findings, "indexes");
        assert!(status == 1 && what.contains(index) && fix.contains("CONCURRENTLY"), "{findings:#?}");
        say(&mut connection, fix).await;
        assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
    }
    say(&mut connection, "ALTER TABLE outbox_event DROP CONSTRAINT outbox_event_pkey").await;
    let (_, findings) = found(&here, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "indexes");
    assert!(what.contains("primary key"), "{what}");
    say(&mut connection, fix).await;
    assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
    // As one is left that could not be made.
    say(&mut connection, "UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = 'outbox_event_final'::regclass")
        .await;
    let (_, findings) = found(&here, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "indexes");
    assert!(what.contains("outbox_event_final is not valid"), "{what}");
    say(&mut connection, fix).await;
    assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
}

#[tokio::test]
async fn privileges_that_lack_are_found_and_granted() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let role = unique("doctor_");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    say(&mut connection, &format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON posthaste_migration TO {role}")).await;
    let theirs = of_role(&url, &role);
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
        say(&mut connection, fix).await;
    }
    let (_, findings) = found(&there, &["--no-destinations"]);
    assert_fine(&findings, "privileges");
    assert!(matches!(of(&findings, "privileges of writers")[..], [("note", ..)]), "{findings:#?}");
    // What the doctor finds enough is enough.
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    assert_eq!(there.ok(&["relay", "--once"]).lines().count(), 1);
    say(&mut connection, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_long_transaction_is_found_with_its_pid() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    let mut holding = PgConnection::connect(&url).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holding).await.unwrap();
    say(&mut holding, "BEGIN; SELECT * FROM outbox_event FOR UPDATE").await;
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
    say(&mut connection, &sql).await;
    until("it is gone", || mine(&found(&here, &["--no-destinations", "--long-transaction", "1s"]).1).is_none());
}

#[tokio::test]
async fn who_holds_the_table_is_found_with_its_pid() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let mut holding = PgConnection::connect(&url).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut holding).await.unwrap();
    say(&mut holding, "BEGIN; LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE").await;
    let (status, findings) = found(&here, &["--no-destinations"]);
    assert_eq!(status, 1, "{findings:#?}");
    let [(level, what, fix)] = of(&findings, "locks")[..] else { panic!("{findings:#?}") };
    assert!(level == "problem" && what.starts_with(&format!("PID {pid} holds the table")), "{what}");
    assert!(fix.contains(&format!("pg_terminate_backend({pid})")), "{fix}");
    assert!(of(&findings, "database").is_empty(), "{findings:#?}");
    say(&mut holding, "ROLLBACK").await;
    assert!(of(&found(&here, &["--no-destinations"]).1, "locks").is_empty());
}

#[tokio::test]
async fn a_slot_that_nobody_reads_is_found() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let slot = format!("doctor_{:x}", fastrand::u64(..));
    let mut connection = PgConnection::connect(&url).await.unwrap();
    say(&mut connection, &format!("SELECT pg_create_physical_replication_slot('{slot}', TRUE)")).await;
    let (status, findings) = found(&here, &["--no-destinations"]);
    let mine: Vec<_> = of(&findings, "slots").into_iter().filter(|(_, what, _)| what.contains(&slot)).collect();
    let drop = format!("pg_drop_replication_slot('{slot}')");
    say(&mut connection, &format!("SELECT {drop}")).await;
    assert!(status == 1 && matches!(mine[..], [("warning", _, fix)] if fix.contains(&drop)), "{findings:#?}");
    assert!(!found(&here, &["--no-destinations"]).1.iter().any(|finding| finding.to_string().contains(&slot)));
}

#[tokio::test]
async fn a_clock_that_is_off_is_found() {
    for (off, direction) in [(-3600, "ahead of"), (3600, "behind")] {
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", &postgres().await).with_clock(off);
        assert_off(&here, direction);
    }
}

/// Two databases of one server: a transaction keeps rows of its own, and a slot the log of all of them.
#[tokio::test]
async fn of_another_database_only_what_is_the_servers_is_found() {
    let options =
        ServerOptions::default().fsync(false).setting("max_prepared_transactions", "4").setting("wal_level", "logical");
    let server = Server::start(Kind::Postgres, &options).await.unwrap();
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", server.url());
    here.ok(&["migrate", "up"]);
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    say(&mut connection, "CREATE DATABASE another").await;
    let ours: String = sqlx::query_scalar("SELECT current_database()").fetch_one(&mut connection).await.unwrap();
    let theirs = server.url().replacen(&format!("/{ours}"), "/another", 1);
    let mut other = PgConnection::connect(&theirs).await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut other).await.unwrap();
    say(&mut other, "SELECT pg_create_logical_replication_slot('theirs', 'test_decoding')").await;
    say(&mut other, "CREATE TABLE t (n int)").await;
    say(&mut other, "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'of another'").await;
    say(&mut other, "BEGIN; INSERT INTO t VALUES (2)").await;
    let there = Place::new().variable("POSTHASTE_DATABASE_URL", &theirs);
    let look = |place: &Place| {
        let (_, findings) = found(place, &["--no-destinations", "--long-transaction", "1s"]);
        serde_json::to_string(&findings).unwrap()
    };
    let pid = format!("PID {pid} ");
    until("both are long enough for who looks there", || {
        let findings = look(&there);
        findings.contains(&pid) && findings.contains("of another")
    });
    let findings = look(&here);
    assert!(!findings.contains(&pid) && !findings.contains("of another"), "{findings}");
    // It keeps the log of the whole server.
    for findings in [findings, look(&there)] {
        assert!(findings.contains("nobody reads the logical replication slot theirs"), "{findings}");
    }
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
    say(
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
    say(&mut connection, "ALTER TABLE outbox_event SET (autovacuum_enabled = false)").await;
    say(
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
    say(&mut connection, &fix).await;
    say(&mut connection, "VACUUM outbox_event").await;
    until("it is well", || matches!(of(&autovacuum(), "autovacuum")[..], [("ok", ..)]));
}

#[tokio::test]
async fn every_word_for_no_autovacuum_is_understood() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for (word, is_off) in
        [("off", true), ("0", true), ("no", true), ("false", true), ("FALSE", true), ("on", false), ("1", false)]
    {
        say(&mut connection, &format!("ALTER TABLE outbox_event SET (autovacuum_enabled = {word})")).await;
        let (status, findings) = found(&here, &["--no-destinations", "--long-transaction", "10h"]);
        match is_off {
            true => {
                let (what, fix) = bad(&findings, "autovacuum");
                assert!(status == 1 && what.contains("off for outbox_event"), "{word}: {what}");
                say(&mut connection, fix).await;
                assert_fine(&found(&here, &["--no-destinations"]).1, "autovacuum");
            }
            false => assert_fine(&findings, "autovacuum"),
        }
    }
}

/// The server counts by samples, while others look at the table as it was.
fn is_about_72(what: &str, of: &str) -> bool {
    let (_, rest) = what.split_once("for about ").unwrap();
    let (number, rest) = rest.split_once(' ').unwrap();
    (60..=90).contains(&number.parse::<u32>().unwrap()) && rest.starts_with(of)
}

/// A table of 280 MiB and an index of 140, in which next to nothing is left.
#[tokio::test]
async fn what_is_much_larger_than_what_is_in_it_is_found() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    say(
        &mut connection,
        "ALTER TABLE outbox_event SET UNLOGGED; ALTER TABLE outbox_event SET (autovacuum_enabled = off); \
         ALTER TABLE outbox_event ALTER payload SET STORAGE EXTERNAL; \
         INSERT INTO outbox_event (event_id, event_type, status, payload) \
         SELECT n::text, 'X', 1, lpad(n::text, 1900, 'x') FROM generate_series(1, 72000) AS n",
    )
    .await;
    // How much is in it nobody has counted yet.
    let (_, findings) = found(&here, &["--no-destinations"]);
    assert!(
        matches!(of(&findings, "bloat")[..], [("note", what, _)] if what.contains("cannot be seen")),
        "{findings:#?}"
    );
    say(&mut connection, "ANALYZE outbox_event").await;
    assert_fine(&found(&here, &["--no-destinations"]).1, "bloat");

    say(&mut connection, "CREATE INDEX wide ON outbox_event (payload)").await;
    say(&mut connection, "DELETE FROM outbox_event WHERE event_id::int % 1000 <> 0").await;
    say(&mut connection, "VACUUM ANALYZE outbox_event").await;
    let (status, findings) = found(&here, &["--no-destinations"]);
    let bloat = of(&findings, "bloat");
    let with = |part: &str| bloat.iter().find(|(level, what, _)| *level == "warning" && what.contains(part));
    let (_, what, _) = with("the table outbox_event takes").unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(status == 1 && is_about_72(what, "rows"), "{what}");
    let (_, what, fix) = with("the index wide takes").unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(is_about_72(what, "entries"), "{what}");

    // Who may not read the table is not told that it is well.
    let role = unique("doctor_");
    say(&mut connection, &format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON posthaste_migration TO {role}")).await;
    let there = Place::new().variable("POSTHASTE_DATABASE_URL", &of_role(&url, &role));
    let (_, theirs) = found(&there, &["--no-destinations"]);
    say(&mut connection, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    let levels: Vec<_> =
        of(&theirs, "bloat").iter().map(|(level, what, _)| (*level, what.contains("cannot be seen"))).collect();
    assert!(levels.contains(&("note", true)) && !levels.iter().any(|(level, _)| *level == "ok"), "{theirs:#?}");

    say(&mut connection, fix).await;
    say(&mut connection, "VACUUM FULL outbox_event").await;
    assert_fine(&found(&here, &["--no-destinations"]).1, "bloat");
}

#[tokio::test]
async fn partitions_are_looked_at_one_by_one() {
    let url = postgres().await;
    let store = posthaste::PgStore::connect(&url).await.unwrap().partitioned(posthaste::Partitions::daily());
    store.migrate().await.unwrap();
    store.close().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    let (_, findings) = found(&here, &["--no-destinations", "--long-transaction", "10h"]);
    for check in ["schema", "indexes", "privileges", "autovacuum", "bloat"] {
        assert_fine(&findings, check);
    }
    let mut connection = PgConnection::connect(&url).await.unwrap();
    for lost in [
        "DROP INDEX outbox_event_pending",
        "ALTER TABLE outbox_event_default DROP CONSTRAINT outbox_event_default_pkey",
        "DROP INDEX outbox_event_default_seq_idx",
    ] {
        say(&mut connection, lost).await;
        let (status, findings) = found(&here, &["--no-destinations"]);
        let (_, fix) = bad(&findings, "indexes");
        assert_eq!(status, 1, "{findings:#?}");
        say(&mut connection, fix).await;
        assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
    }
    say(&mut connection, "ALTER TABLE outbox_event_default SET (autovacuum_enabled = off)").await;
    let (_, findings) = found(&here, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "autovacuum");
    assert!(what.contains("off for outbox_event_default"), "{what}");
    say(&mut connection, fix).await;
    assert_fine(&found(&here, &["--no-destinations"]).1, "autovacuum");
}

/// Whoever prepares transactions has to end them, which takes a server that lets him prepare any.
#[tokio::test]
async fn a_prepared_transaction_that_nobody_ends_is_found() {
    let options = ServerOptions::default().fsync(false).setting("max_prepared_transactions", "4");
    let server = Server::start(Kind::Postgres, &options).await.unwrap();
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", server.url());
    here.ok(&["migrate", "up"]);
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    say(&mut connection, "BEGIN; UPDATE outbox_event SET attempts = 1; PREPARE TRANSACTION 'it''s ours'").await;
    let prepared = |findings: &[Value]| {
        let found = of(findings, "transactions").into_iter().find(|(_, what, _)| what.contains("was prepared"));
        found.map(|(level, what, fix)| (level.to_owned(), what.to_owned(), fix.to_owned()))
    };
    let mut told = None;
    until("it is long ago", || {
        told = prepared(&found(&here, &["--no-destinations", "--long-transaction", "1s"]).1);
        told.is_some()
    });
    let (level, what, fix) = told.unwrap();
    assert!(level == "warning" && what.contains("it's ours"), "{level} {what}");
    assert!(prepared(&found(&here, &["--no-destinations", "--long-transaction", "10m"]).1).is_none());
    assert!(fix.ends_with("ROLLBACK PREPARED 'it''s ours'"), "{fix}");
    say(&mut connection, &fix[fix.find("ROLLBACK").unwrap()..]).await;
    let (status, findings) = found(&here, &["--no-destinations", "--long-transaction", "1s"]);
    assert!(prepared(&findings).is_none() && status == 0, "{findings:#?}");
}

#[tokio::test]
async fn a_standby_is_no_place_for_an_outbox() {
    let options = ServerOptions::default().fsync(false);
    let primary = Server::start(Kind::Postgres, &options).await.unwrap();
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", primary.url());
    here.ok(&["migrate", "up"]);
    let standby = Server::standby_of(&primary, &options).await.unwrap();
    let there = Place::new().variable("POSTHASTE_DATABASE_URL", standby.url());
    let (status, findings) = found(&there, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "server");
    assert!(status == 1 && what.contains("standby") && fix.contains("primary"), "{what} {fix}");
    assert_fine(&findings, "schema");
    assert!(of(&findings, "privileges").is_empty(), "what comes behind says nothing of the primary: {findings:#?}");
    // The primary has a reader for its log now, and nothing is wrong with it.
    let (status, findings) = found(&here, &["--no-destinations"]);
    assert!(status == 0 && of(&findings, "server").is_empty(), "{findings:#?}");
    assert_fine(&findings, "slots");
}

/// A row that is not among the first takes longer than a question may, as very many rows would.
#[tokio::test]
async fn where_not_all_that_wait_can_be_counted_in_time_the_first_of_them_are() {
    let url = postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let role = unique("doctor_");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    say(
        &mut connection,
        "INSERT INTO outbox_event (event_id, event_type, payload, available_at) \
         SELECT n::text, 'One', '{}', clock_timestamp() - interval '20 min' FROM generate_series(1, 10000) AS n \
         UNION ALL SELECT 'last', 'One', '{}', clock_timestamp() + interval '1 h'; \
         CREATE FUNCTION in_time(id text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN IF id = 'last' THEN \
         RAISE EXCEPTION USING ERRCODE = 'query_canceled', MESSAGE = 'canceling statement due to statement timeout'; \
         END IF; RETURN TRUE; END $$; \
         CREATE POLICY in_time ON outbox_event USING (in_time(event_id)); \
         ALTER TABLE outbox_event ENABLE ROW LEVEL SECURITY",
    )
    .await;
    // On so few rows it would not take the index by itself.
    say(
        &mut connection,
        &format!(
            "CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}; \
             ALTER ROLE {role} SET enable_seqscan = off; ALTER ROLE {role} SET enable_bitmapscan = off; \
             ALTER ROLE {role} SET enable_sort = off"
        ),
    )
    .await;
    let there = Place::new().variable("POSTHASTE_DATABASE_URL", &of_role(&url, &role));
    let (status, findings) = found(&there, &["--no-destinations"]);
    let (what, _) = bad(&findings, "relays");
    assert!(status == 1 && what.starts_with("at least 10000 event(s) are due"), "{findings:#?}");
    assert!(of(&findings, "leases")[0].1.ends_with("among the first 10000 that are pending"), "{findings:#?}");
    say(&mut connection, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
