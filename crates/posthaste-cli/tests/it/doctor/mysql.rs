//! What may be wrong with MySQL and MariaDB.

use std::time::{Duration, Instant};

use posthaste_torture::server::{Kind, Server, ServerOptions};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::{assert_fine, assert_off, bad, execute, found, of};
use crate::place::{Place, until};
use crate::relay::variable;

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
    for index in ["aggregate", "stage", "id"] {
        execute(&url, &format!("ALTER TABLE {table} DROP KEY {table}_{index}")).await;
        let (_, findings) = found(&here, &["--no-destinations"]);
        let (what, fix) = bad(&findings, "indexes");
        assert!(what.contains(&format!("{table}_{index}")), "{what}");
        execute(&url, fix).await;
        assert_fine(&found(&here, &["--no-destinations"]).1, "indexes");
    }
    here.ok(&["events", "write", "--id", "1", "--type", "OrderPlaced", "{}"]);
    execute(
        &url,
        &format!("UPDATE {table} SET locked_by = 'relay-9/17', locked_at = UTC_TIMESTAMP(6) - INTERVAL 10 MINUTE"),
    )
    .await;
    let (_, findings) = found(&here, &["--no-destinations"]);
    assert!(bad(&findings, "leases").0.contains("of relay-9"), "{findings:#?}");
    let id: i64 =
        sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED)").fetch_one(&mut connection).await.unwrap();
    sqlx::raw_sql("START TRANSACTION").execute(&mut connection).await.unwrap();
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

/// On a server of its own: others set theirs to read only, for users like this one.
#[tokio::test]
async fn privileges_that_lack_are_found_and_granted() {
    let server = Server::start(Kind::MariaDb, &ServerOptions::default().fsync(false)).await.unwrap();
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", server.url());
    here.ok(&["migrate", "up", "--lanes"]);
    execute(server.url(), "CREATE USER relay IDENTIFIED BY ''; GRANT SELECT ON posthaste_migration TO relay").await;
    let url = server.url().replacen("//root@", "//relay@", 1);
    let settings = "[relay]\nordered = true\nretention_done = \"1h\"\n";
    let there = Place::with(settings).variable("POSTHASTE_DATABASE_URL", &url);
    let (status, findings) = found(&there, &["--no-destinations"]);
    assert_eq!(status, 1);
    let privileges = of(&findings, "privileges");
    for needed in ["SELECT on `outbox_event`", "UPDATE on `outbox_event`", "DELETE on `outbox_event`"] {
        assert!(
            privileges.iter().any(|(level, what, _)| *level == "problem" && what.contains(needed)),
            "{findings:#?}"
        );
    }
    for suffix in ["pause", "lane", "relay", "key"] {
        let needed = format!("SELECT on `outbox_event_{suffix}`");
        assert!(privileges.iter().any(|(_, what, _)| what.contains(&needed)), "{needed}: {findings:#?}");
    }
    assert_eq!(privileges.len(), 4 + 3 * 4, "{findings:#?}");
    assert!(matches!(of(&findings, "transactions of others")[..], [("note", ..)]), "{findings:#?}");
    for (_, _, fix) in privileges {
        execute(server.url(), fix).await;
    }
    let (_, findings) = found(&there, &["--no-destinations"]);
    assert_fine(&findings, "privileges");
    // What the doctor finds enough is enough.
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    assert_eq!(there.ok(&["relay", "--once"]).lines().count(), 1);

    execute(
        server.url(),
        "REVOKE UPDATE ON outbox_event FROM relay; GRANT UPDATE (status, locked_by) ON outbox_event TO relay",
    )
    .await;
    let (_, findings) = found(&there, &["--no-destinations"]);
    assert!(bad(&findings, "privileges").0.contains("UPDATE on `outbox_event`"), "{findings:#?}");
}

#[tokio::test]
async fn a_table_that_somebody_holds_is_found_and_not_waited_for() {
    let (url, table) = (variable("POSTHASTE_TEST_MYSQL_URL"), format!("doctor_{:x}", fastrand::u64(..)));
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url).variable("POSTHASTE_DATABASE_TABLE", &table);
    here.ok(&["migrate", "up"]);
    let mut holding = MySqlConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("LOCK TABLES {table} WRITE"))).execute(&mut holding).await.unwrap();
    let asked_at = Instant::now();
    let (status, findings) = found(&here, &["--no-destinations"]);
    // By itself the server would have us wait for a minute, or a day.
    assert!(asked_at.elapsed() < Duration::from_secs(30), "{:?}", asked_at.elapsed());
    let (what, fix) = bad(&findings, "locks");
    assert!(status == 1 && what.contains(&table) && fix.contains("KILL"), "{findings:#?}");
    assert!(of(&findings, "privileges").iter().all(|(level, ..)| *level == "ok"), "{findings:#?}");
    sqlx::raw_sql("UNLOCK TABLES").execute(&mut holding).await.unwrap();
    let (_, findings) = found(&here, &["--no-destinations", "--long-transaction", "10h"]);
    assert_fine(&findings, "privileges");
    assert!(of(&findings, "locks").is_empty(), "{findings:#?}");
}

#[test]
fn a_clock_that_is_off_is_found() {
    for (off, direction) in [(-3600, "ahead of"), (3600, "behind")] {
        let table = format!("doctor_{:x}", fastrand::u64(..));
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", &variable("POSTHASTE_TEST_MYSQL_URL"));
        let here = here.variable("POSTHASTE_DATABASE_TABLE", &table).with_clock(off);
        assert_off(&here, direction);
    }
}
