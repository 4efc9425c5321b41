//! What operators do: `migrate`, `events`, `dead`, `stats`, `purge`.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::place::Place;
use crate::{stderr, stdout};

/// Where hooks are refused for good, which makes every event DEAD.
const NOWHERE: &str = "[[route]]\nmatch = { event_type = \"Nothing\" }\nto = \"stdout\"\n";

fn ids(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[test]
fn migrations_are_told_shown_and_done() {
    let here = Place::new();
    let flags = ["--database-url", "sqlite:shop.db"];
    let run = |command: &str| here.run(&[&["migrate", command], &flags[..]].concat());
    let output = run("status");
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("version 1: "), "{}", stdout(&output));
    let sql = stdout(&run("sql")).to_owned();
    assert!(sql.contains("CREATE TABLE"), "{sql}");
    assert_eq!(run("status").status.code(), Some(1), "to show it is not to do it");
    assert!(stdout(&run("up")).contains("is up to date now"));
    assert!(stdout(&run("up")).contains("was up to date"));
    assert_eq!(run("status").status.code(), Some(0));
    assert_eq!(stdout(&run("sql")), "");
    let error = here.fails(2, &["migrate", "up", "--wake-trigger", "--database-url", "sqlite:new.db"]);
    assert!(error.contains("is for PostgreSQL"), "{error}");
    let error = here.fails(2, &["migrate", "up", "--write-function", "--database-url", "sqlite:new.db"]);
    assert!(error.contains("which has no functions: insert rows"), "{error}");
    assert!(!here.path("new.db").exists(), "what is refused makes nothing");
}

/// What order and other languages need is no migration, so it is told apart.
#[tokio::test]
async fn status_says_what_is_there_beside_the_table() {
    for url in [crate::relay::postgres().await, crate::relay::variable("POSTHASTE_TEST_MYSQL_URL")] {
        let table = crate::relay::unique("status_");
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url).variable("POSTHASTE_DATABASE_TABLE", &table);
        here.ok(&["migrate", "up"]);
        let said = here.ok(&["migrate", "status"]);
        assert!(said.contains("what order needs: not there; migrate up --lanes"), "{said}");
        assert!(said.contains("to write with: not there; migrate up --write-function"), "{said}");
        here.ok(&["migrate", "up", "--lanes", "--write-function"]);
        let said = here.ok(&["migrate", "status"]);
        assert!(said.contains("what order needs: there") && said.contains("to write with: there"), "{said}");
        if url.starts_with("postgres") {
            assert!(said.contains("wakes relays: not there; migrate up --wake-trigger"), "{said}");
            here.ok(&["migrate", "up", "--wake-trigger"]);
            assert!(here.ok(&["migrate", "status"]).contains("wakes relays: there"));
        }
    }
}

/// The database has the last word at the commit, and may say no.
#[tokio::test]
async fn a_commit_that_fails_is_a_fault_of_the_database() {
    let url = crate::relay::postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(&url).await.unwrap();
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$; \
                  CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON outbox_event DEFERRABLE INITIALLY DEFERRED \
                  FOR EACH ROW EXECUTE FUNCTION refuse()";
    sqlx::raw_sql(refuse).execute(&mut connection).await.unwrap();
    let error = here.fails(4, &["events", "write", "--type", "OrderPlaced", "{}"]);
    assert!(error.contains("was not committed") && error.contains("not today"), "{error}");
}

/// Other languages write with it on each database; here they are the clients of the databases.
#[test]
fn a_function_or_a_procedure_is_created_on_demand_and_what_it_writes_is_delivered() {
    let url = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test"));
    let table = format!("relay_test_{:x}", fastrand::u64(..));
    let (postgres, mysql) = (url("POSTHASTE_TEST_POSTGRES_URL"), url("POSTHASTE_TEST_MYSQL_URL"));
    let port = mysql.split('/').nth(2).unwrap().rsplit(':').next().unwrap();
    let databases = [
        (
            &postgres,
            format!("the function {table}_write"),
            format!("SELECT {table}_write('OrderPlaced', '{{\"total\": 1990}}', 'Order', '42')"),
            vec!["psql", "--no-psqlrc", "--set=ON_ERROR_STOP=1", &*postgres],
        ),
        (
            &mysql,
            format!("the procedure {table}_write"),
            format!("CALL {table}_write('OrderPlaced', 'Order', '42', '{{\"total\": 1990}}', NULL, @id)"),
            vec!["mariadb", "--host=127.0.0.1", "--user=root", "--port", port, "mysql"],
        ),
    ];
    for (url, what, call, client) in databases {
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", url).variable("POSTHASTE_DATABASE_TABLE", &table);
        here.ok(&["migrate", "up"]);
        assert!(!here.ok(&["migrate", "up"]).contains("_write"));
        // What is shown is what the client can carry out.
        let sql = here.ok(&["migrate", "sql", "--write-function"]);
        assert!(!sql.contains("CREATE TABLE"), "{sql}");
        execute(&client, &sql);
        assert!(here.ok(&["migrate", "status"]).contains("what order needs: not there"));
        execute(&client, &here.ok(&["migrate", "sql", "--lanes"]));
        assert!(here.ok(&["migrate", "status"]).contains("what order needs: there"));
        assert_eq!(here.ok(&["migrate", "sql", "--lanes"]), "", "nothing is left to do");
        // What was interrupted half-way is completed.
        let quote = if client[0] == "psql" { '"' } else { '`' };
        let on = if client[0] == "psql" { String::new() } else { format!(" ON {table}") };
        execute(&client, &format!("DROP INDEX {quote}{table}_lane_seq{quote}{on};"));
        execute(&client, &here.ok(&["migrate", "sql", "--lanes"]));
        assert_eq!(here.ok(&["migrate", "sql", "--lanes"]), "");
        here.ok(&["migrate", "up", "--lanes"]);
        // What is wrong with it is no matter of what is left to do.
        execute(&client, &format!("DELETE FROM {table}_lane WHERE lane = 0;"));
        assert!(
            here.fails(5, &["migrate", "sql", "--lanes"]).contains("lanes, and this release knows how to work with")
        );
        execute(&client, &format!("INSERT INTO {table}_lane (lane) VALUES (0);"));
        let said = here.ok(&["migrate", "up", "--write-function"]);
        assert!(said.contains(&format!("other programs write events with {what}")), "{said}");
        execute(&client, &call);
        let delivered: Value = serde_json::from_str(&here.ok(&["relay", "--once"])).unwrap();
        assert_eq!((&delivered["key"], &delivered["body"]["total"]), (&Value::from("42"), &Value::from(1990)));
    }
}

/// Has the client of a database carry out SQL.
fn execute(client: &[&str], sql: &str) {
    let mut command = Command::new(client[0]);
    command.args(&client[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{} cannot be started: {error}", client[0]));
    child.stdin.take().unwrap().write_all(sql.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{client:?}: {}", stderr(&output));
}

#[tokio::test]
async fn whoever_may_not_create_functions_has_a_table_and_is_told_who_can() {
    let url = crate::relay::postgres().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let role = format!("posthaste_cli_{}", std::process::id());
    let create = format!(
        "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN; CREATE SCHEMA box; \
         GRANT USAGE, CREATE ON SCHEMA box TO {role}; REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC"
    );
    sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
    let here = Place::new()
        .variable("POSTHASTE_DATABASE_URL", &url.replace("postgres@", &format!("{role}@")))
        .variable("POSTHASTE_DATABASE_TABLE", "box.events");
    let output = here.run(&["migrate", "up", "--write-function"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stdout(&output).contains("box.events in"), "{}", stdout(&output));
    assert!(stdout(&output).contains("is up to date now"), "{}", stdout(&output));
    for words in [
        "error: the table is ready, but the function box.events_write was not created: ",
        "permission denied for language plpgsql",
        "let a user who may create it run what posthaste migrate sql --write-function prints",
    ] {
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    here.ok(&["events", "write", "--type", "T", "1"]);
    sqlx::raw_sql(AssertSqlSafe(format!("DROP OWNED BY {role}; DROP ROLE {role}")))
        .execute(&mut connection)
        .await
        .unwrap();
}

#[test]
fn every_database_can_be_migrated_and_written_to() {
    for name in ["POSTHASTE_TEST_POSTGRES_URL", "POSTHASTE_TEST_MYSQL_URL"] {
        let url = std::env::var(name).unwrap_or_else(|_| {
            panic!("{name} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first")
        });
        let table = format!("relay_test_{:x}", fastrand::u64(..));
        let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url).variable("POSTHASTE_DATABASE_TABLE", &table);
        let error = here.fails(5, &["stats"]);
        assert!(error.contains(&table) && error.contains("posthaste migrate up"), "{error}");
        here.ok(&["migrate", "up"]);
        let id = here.ok(&["events", "write", "--type", "OrderPlaced", r#"{"n": 1}"#]);
        assert_eq!(here.json(&["events", "show", id.trim(), "--output", "json"])["payload"], r#"{"n": 1}"#);
        assert_eq!(here.ok(&["relay", "--once"]).lines().count(), 1);
        assert_eq!(here.json(&["stats", "--output", "json"])["done"], 1);
        here.ok(&["purge", "--done-after", "0s", "--yes"]);
        assert_eq!(here.json(&["stats", "--output", "json"])["done"], 0);
    }
}

#[test]
fn a_database_that_is_away_or_refuses_has_its_own_status() {
    let here = Place::new();
    let error = here.fails(4, &["stats", "--database-url", "postgres://nobody@127.0.0.1:1/x"]);
    assert!(error.contains("127.0.0.1:1"), "{error}");
}

#[test]
fn events_are_written_listed_and_shown() {
    let here = Place::new();
    for (id, kind, tenant) in [("a", "OrderPlaced", "one"), ("b", "OrderPaid", "two"), ("c", "OrderPaid", "one")] {
        let written = here.ok(&["events", "write", "--id", id, "--type", kind, "--tenant", tenant, r#"{"b":1,"a":2}"#]);
        assert_eq!(written, format!("{id}\n"));
    }
    let error = here.fails(1, &["events", "write", "--id", "a", "--type", "OrderPlaced", "{}"]);
    assert!(error.contains("event id a is taken"), "{error}");
    let error = here.fails(2, &["events", "write", "--type", "OrderPlaced", "{"]);
    assert!(error.contains("JSON"), "{error}");

    assert_eq!(ids(&here.json(&["events", "list", "--output", "json"])), ["a", "b", "c"]);
    assert_eq!(ids(&here.json(&["events", "list", "--newest", "--limit", "2", "--output", "json"])), ["c", "b"]);
    for (limit, cut) in [("2", true), ("3", false)] {
        let output = here.run(&["events", "list", "--limit", limit]);
        assert_eq!(crate::stderr(&output).contains("there are more than these 2"), cut, "{}", crate::stderr(&output));
    }
    assert_eq!(
        ids(&here.json(&["events", "list", "--type", "OrderPaid", "--tenant", "one", "--output", "json"])),
        ["c"]
    );
    assert_eq!(ids(&here.json(&["events", "list", "--status", "done", "--output", "json"])), [""; 0]);
    assert_eq!(ids(&here.json(&["events", "list", "--since", "1h", "--output", "json"])).len(), 3);
    assert_eq!(ids(&here.json(&["events", "list", "--until", "1h", "--output", "json"])).len(), 0);
    let lines = here.ok(&["events", "list", "--output", "ndjson"]);
    assert_eq!(lines.lines().count(), 3);
    assert!(lines.lines().all(|line| line.starts_with('{')));
    let table = here.ok(&["events", "list"]);
    assert!(table.starts_with("SEQ  ID  STATUS  TYPE") && !table.contains('\u{1b}'), "{table}");
    assert_eq!(table.lines().count(), 4);

    let shown = here.json(&["events", "show", "a", "--output", "json"]);
    assert_eq!((&shown["payload"], &shown["tenant_id"]), (&r#"{"b":1,"a":2}"#.into(), &"one".into()));
    assert!(here.ok(&["events", "show", "a"]).contains("tenant_id       one"));
    assert!(here.fails(1, &["events", "show", "z"]).contains("there is no event z"));
    assert!(here.fails(2, &["events", "list", "--status", "gone"]).contains("new, retry, done or dead"));
}

#[test]
fn events_are_followed_as_they_come() {
    let here = Place::new();
    for id in ["a", "b", "c"] {
        here.ok(&["events", "write", "--id", id, "--type", "Ticked", "{}"]);
    }
    let tail = Tail::start(&here, "tail", &[]);
    tail.prints(&["b", "c"]);
    here.ok(&["events", "write", "--id", "d", "--type", "Ticked", "{}"]);
    tail.prints(&["b", "c", "d"]);
}

#[test]
fn only_what_fits_is_followed_and_an_error_may_come_late() {
    let here = Place::with(NOWHERE);
    for (id, kind) in [("a", "Nothing"), ("b", "Ticked")] {
        here.ok(&["events", "write", "--id", id, "--type", kind, "{}"]);
    }
    let of_type = Tail::start(&here, "of-type", &["--type", "Ticked"]);
    let with_error = Tail::start(&here, "with-error", &["--error", "no route fits"]);
    of_type.prints(&["b"]);
    for (id, kind) in [("c", "Nothing"), ("d", "Ticked")] {
        here.ok(&["events", "write", "--id", id, "--type", kind, "{}"]);
    }
    of_type.prints(&["b", "d"]);
    assert_eq!(with_error.printed(), [""; 0]);
    // Two are printed there, and the others are DEAD.
    here.ok(&["relay", "--once"]);
    here.until("both errors are seen", |here| here.read("with-error").lines().count() == 2);
    let mut seen = with_error.printed();
    seen.sort();
    assert_eq!(seen, ["b", "d"]);
    of_type.prints(&["b", "d"]);
}

/// Events that are followed, until it is dropped.
struct Tail<'a> {
    here: &'a Place,
    out: &'static str,
    child: Child,
}

impl<'a> Tail<'a> {
    /// Prints into a file of this name.
    fn start(here: &'a Place, out: &'static str, filter: &[&str]) -> Self {
        let file = std::fs::File::create(here.path(out)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_posthaste"))
            .args(["events", "tail", "--lines", "2", "--interval", "20ms", "--output", "ndjson", "--database-url"])
            .arg(format!("sqlite:{}", here.path("posthaste.db").display()))
            .args(filter)
            .stdout(file)
            .spawn()
            .unwrap();
        Self { here, out, child }
    }

    fn printed(&self) -> Vec<String> {
        let text = self.here.read(self.out);
        let id = |line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
        text.lines().map(id).collect()
    }

    /// Waits until so many are printed, which have to be these.
    #[track_caller]
    fn prints(&self, ids: &[&str]) {
        self.here.until("they are printed", |here| here.read(self.out).lines().count() >= ids.len());
        assert_eq!(self.printed(), ids);
    }
}

impl Drop for Tail<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn of_the_dead_no_more_are_listed_one_by_one_than_were_asked_for() {
    let here = Place::with(NOWHERE);
    dead(&here, 5);
    for (limit, is_cut) in [("4", true), ("5", false)] {
        let output = here.run(&["dead", "list", "--each", "--limit", limit, "--output", "ndjson"]);
        assert_eq!((output.status.code(), stdout(&output).lines().count()), (Some(0), limit.parse().unwrap()));
        assert_eq!(stderr(&output).contains("there are more than these 4"), is_cut, "{}", stderr(&output));
    }
    // Groups are made of all of them.
    let error = here.fails(2, &["dead", "list", "--limit", "4"]);
    assert!(error.contains("--each"), "{error}");
    assert_eq!(here.json(&["dead", "list", "--output", "json"])[0]["count"], 5);
}

#[test]
fn the_dead_are_grouped_redriven_and_discarded_and_nothing_without_a_yes() {
    let here = Place::with(NOWHERE);
    for n in 1..=12 {
        let kind = if n % 4 == 0 { "Refunded" } else { "Paid" };
        here.ok(&["events", "write", "--id", &format!("e{n}"), "--type", kind, "{}"]);
    }
    here.ok(&["relay", "--once"]);
    let groups = here.json(&["dead", "list", "--output", "json"]);
    let counts: Vec<_> =
        groups.as_array().unwrap().iter().map(|group| (&group["count"], &group["event_types"])).collect();
    assert_eq!(counts, [(&9.into(), &serde_json::json!(["Paid"])), (&3.into(), &serde_json::json!(["Refunded"]))]);
    assert!(groups[0]["error"].as_str().unwrap().contains("no route fits"), "{groups}");
    assert_eq!(
        ids(&here.json(&["dead", "list", "--each", "--type", "Refunded", "--output", "json"])),
        ["e4", "e8", "e12"]
    );

    let stats = || here.json(&["stats", "--output", "json"]);
    assert!(here.fails(2, &["dead", "redrive"]).contains("say which events to redrive"));
    let preview = here.fails(1, &["dead", "redrive", "--all"]);
    assert!(preview.contains("12 events to redrive") && preview.contains("and 7 more"), "{preview}");
    assert!(preview.contains("nothing was changed; say --yes to go on"), "{preview}");
    assert_eq!(stats()["dead"], 12);

    // Of those that are named, the ones that fit what else is said: the preview says so before.
    let preview = here.fails(1, &["dead", "redrive", "e1", "e4", "--type", "Refunded"]);
    assert!(preview.contains("1 event to redrive") && preview.contains("e1 is not among those"), "{preview}");
    assert!(!preview.contains("  e1  ") && preview.contains("  e4  "), "{preview}");
    assert!(
        here.fails(1, &["dead", "discard", "e1", "--error", "nothing like it", "--yes"]).contains("nothing to discard")
    );
    assert_eq!(stats()["dead"], 12);

    assert_eq!(here.ok(&["dead", "redrive", "e1", "e2", "e1", "nobody", "--yes"]), "2 redriven\n");
    assert_eq!((&stats()["dead"], &stats()["new"]), (&10.into(), &2.into()));
    let said = here.fails(1, &["dead", "redrive", "e1", "--yes"]);
    assert!(said.contains("e1 is NEW and not DEAD") && said.contains("nothing to redrive"), "{said}");
    assert_eq!(here.ok(&["dead", "redrive", "--type", "Paid", "--chunk", "2", "--yes"]), "7 redriven\n");
    assert_eq!(here.ok(&["dead", "discard", "--error", "no route", "--yes"]), "3 discarded\n");
    assert_eq!((&stats()["dead"], &stats()["new"]), (&0.into(), &9.into()));
    assert!(here.fails(1, &["dead", "discard", "--all", "--yes"]).contains("nothing to discard"));
}

/// In chunks, of which each dies before the next.
#[tokio::test]
async fn what_dies_again_is_redriven_once_and_the_rest_as_well() {
    let here = Place::with(NOWHERE);
    dead(&here, 5);
    // After the redrive, whatever clock SQLite has for it.
    let dies = "CREATE TRIGGER dies AFTER UPDATE OF status ON outbox_event WHEN old.status = 3 AND new.status = 0 BEGIN \
                UPDATE outbox_event SET status = 3, last_error = 'again', attempts = 1, \
                done_at = CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) + 60000000 WHERE seq = new.seq; END";
    in_file(&here, dies).await;
    assert_eq!(here.ok(&["dead", "redrive", "--all", "--chunk", "2", "--yes"]), "5 redriven\n");
    let list = here.json(&["dead", "list", "--each", "--error", "again", "--output", "json"]);
    assert_eq!(ids(&list), ["e1", "e2", "e3", "e4", "e5"]);
}

/// So many events that are DEAD.
fn dead(here: &Place, count: usize) {
    for n in 1..=count {
        here.ok(&["events", "write", "--id", &format!("e{n}"), "--type", "Paid", "{}"]);
    }
    here.ok(&["relay", "--once"]);
}

/// Says something to SQLite.
async fn in_file(here: &Place, sql: &str) {
    let url = format!("sqlite:{}", here.path("posthaste.db").display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// A database that refuses in the middle of it leaves what was done before.
#[tokio::test]
async fn what_was_changed_before_the_database_refused_is_told() {
    let here = Place::with(NOWHERE);
    dead(&here, 5);
    for (when, what) in [("UPDATE OF status", "redrive"), ("DELETE", "discard")] {
        in_file(
            &here,
            &format!(
                "CREATE TRIGGER no_{what} BEFORE {when} ON outbox_event WHEN old.event_id = 'e4' BEGIN \
                 SELECT RAISE(ABORT, 'not this one'); END"
            ),
        )
        .await;
    }
    let said = here.fails(4, &["dead", "redrive", "e1", "e2", "e3", "e4", "--chunk", "1", "--yes"]);
    assert!(said.contains("3 of 4 events had been redriven before this") && said.contains("not this one"), "{said}");
    assert_eq!(here.json(&["stats", "--output", "json"])["new"], 3);
    here.ok(&["relay", "--once"]);
    let said = here.fails(4, &["dead", "discard", "--all", "--chunk", "1", "--yes"]);
    assert!(said.contains("3 of 5 events had been discarded before this"), "{said}");
    let said = here.fails(4, &["purge", "--dead-after", "0s", "--yes"]);
    assert!(said.contains("not this one") && !said.contains("before this"), "{said}");
    // That one last: the order of a purge is that in which they ended.
    for n in ["a", "b"] {
        here.ok(&["events", "write", "--id", n, "--type", "Paid", "{}"]);
    }
    here.ok(&["relay", "--once"]);
    in_file(&here, "UPDATE outbox_event SET done_at = done_at - 600000000 WHERE event_id <> 'e4'").await;
    let said = here.fails(4, &["purge", "--dead-after", "0s", "--chunk", "1", "--yes"]);
    assert!(said.contains("3 had been deleted before this") && said.contains("not this one"), "{said}");
    assert_eq!(here.json(&["stats", "--output", "json"])["dead"], 1);
}

/// Others hold rows on PostgreSQL, which are passed by.
#[tokio::test]
async fn what_somebody_else_holds_is_told_to_be_left() {
    let url = crate::relay::postgres().await;
    let here = Place::with(NOWHERE).variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up"]);
    dead(&here, 3);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT * FROM outbox_event WHERE event_id = 'e2' FOR UPDATE")
        .execute(&mut connection)
        .await
        .unwrap();
    let output = here.run(&["dead", "redrive", "--all", "--yes"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), "2 redriven\n"), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 3 events was left"), "{}", stderr(&output));
    let output = here.run(&["dead", "discard", "e2", "--yes"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), "0 discarded\n"), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 1 event was left"), "{}", stderr(&output));
    sqlx::raw_sql("ROLLBACK").execute(&mut connection).await.unwrap();
    assert_eq!(here.ok(&["dead", "discard", "e2", "--yes"]), "1 discarded\n");
}

#[test]
fn what_is_old_is_purged_after_a_yes() {
    let here = Place::new();
    here.ok(&["events", "write", "--type", "Ticked", "{}"]);
    here.ok(&["relay", "--once"]);
    let preview = here.fails(1, &["purge", "--done-after", "0s"]);
    assert!(preview.contains("of 1 DONE events") && preview.contains("say --yes"), "{preview}");
    assert_eq!(here.ok(&["purge", "--done-after", "1h", "--yes"]), "0 deleted\n");
    assert_eq!(here.ok(&["purge", "--done-after", "0s", "--yes"]), "1 deleted\n");
    assert!(here.fails(2, &["purge"]).contains("--done-after"));
    assert!(here.fails(2, &["purge", "--done-after", "long"]).contains("such as 500ms, 90m or 168h"));
}

#[test]
fn whoever_only_looks_makes_no_database() {
    let here = Place::new();
    for command in
        [&["stats"][..], &["events", "list"], &["dead", "list"], &["purge", "--done-after", "1h"], &["pause", "list"]]
    {
        assert!(here.fails(5, command).contains("there is no posthaste.db in this directory"), "{command:?}");
    }
    assert!(!here.path("posthaste.db").exists());
}

/// What the settings say of migrations is for relays.
#[test]
fn whoever_only_looks_changes_no_table() {
    let url = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run scripts/test"));
    for database in [None, Some("POSTHASTE_TEST_POSTGRES_URL"), Some("POSTHASTE_TEST_MYSQL_URL")] {
        let here = Place::with("[database]\nmigrate = true\n[relay]\nordered = true\n");
        let url = database.map_or_else(|| format!("sqlite:{}", here.path("shop.db").display()), url);
        let table = format!("looked_at_{:x}", fastrand::u64(..));
        let here = here.variable("POSTHASTE_DATABASE_URL", &url).variable("POSTHASTE_DATABASE_TABLE", &table);
        let looks = || {
            for command in [
                &["stats"][..],
                &["events", "list"],
                &["events", "write", "--type", "Ticked", "{}"],
                &["dead", "list"],
                &["keys"],
                &["purge", "--done-after", "1h"],
                &["pause", "list"],
                &["resume", "route", "x"],
            ] {
                let error = here.fails(5, command);
                assert!(error.contains("posthaste migrate up does it"), "{command:?}: {error}");
            }
            assert_eq!(here.run(&["doctor", "--no-destinations"]).status.code(), Some(1));
        };
        looks();
        assert!(!here.path("shop.db").exists(), "nobody has made it");
        let status = here.run(&["migrate", "status"]);
        assert_eq!(status.status.code(), Some(1));
        assert!(
            stdout(&status).contains("version 1: ") && stdout(&status).contains("version 2: "),
            "{}",
            stdout(&status)
        );
        looks();
        // A relay does as it is told.
        here.ok(&["relay", "--once"]);
        assert_eq!(here.run(&["migrate", "status"]).status.code(), Some(0));
        here.ok(&["events", "write", "--type", "Ticked", "{}"]);
        assert_eq!(here.json(&["stats", "--output", "json"])["new"], 1);
    }
}

/// A relay whose table is up to date needs no right to change it, whatever the settings say.
#[tokio::test]
async fn a_relay_that_may_migrate_starts_without_the_right_to_if_nothing_is_left_to_do() {
    let url = crate::relay::postgres().await;
    let here = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    here.ok(&["migrate", "up", "--lanes"]);
    let role = format!("relay_{:x}", fastrand::u64(..));
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let grants = format!(
        "CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
         GRANT SELECT ON posthaste_migration, outbox_event_pause TO {role}; GRANT SELECT, UPDATE ON outbox_event TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_event_lane, outbox_event_relay, outbox_event_key TO {role}"
    );
    sqlx::raw_sql(AssertSqlSafe(grants)).execute(&mut connection).await.unwrap();
    let theirs = url.replacen("//postgres@", &format!("//{role}@"), 1);
    assert_ne!(theirs, url);
    for ordered in ["", "[relay]\nordered = true\n"] {
        here.ok(&["events", "write", "--type", "Ticked", "{}"]);
        let there =
            Place::with(&format!("[database]\nmigrate = true\n{ordered}")).variable("POSTHASTE_DATABASE_URL", &theirs);
        assert_eq!(there.ok(&["relay", "--once"]).lines().count(), 1);
    }
    let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await.unwrap();
}

#[test]
fn statistics_tell_what_waits_and_how_fast_it_goes() {
    let here = Place::new();
    here.ok(&["events", "write", "--type", "Ticked", "{}"]);
    let stats = here.json(&["stats", "--rate", "50ms", "--output", "json"]);
    assert_eq!((&stats["new"], &stats["written_per_second"]), (&1.into(), &0.0.into()));
    assert!(stats["oldest_pending_seconds"].as_f64().unwrap() > 0.0, "{stats}");
    assert_eq!(stats["counted_all"], true);
    let table = here.ok(&["stats"]);
    assert!(table.contains("oldest pending  ") && table.contains("new             1"), "{table}");
}

/// Rows that are deleted when they are done are not there to be counted.
#[test]
fn no_rates_are_told_where_what_is_done_is_deleted() {
    let here = Place::with("[database]\ndelete_done = true\n");
    here.ok(&["migrate", "up"]);
    let stats = here.json(&["stats", "--rate", "50ms", "--output", "json"]);
    for rate in ["written_per_second", "ended_per_second"] {
        assert!(stats.as_object().unwrap().contains_key(rate) && stats[rate].is_null(), "{stats}");
    }
    let table = here.ok(&["stats", "--rate", "50ms"]);
    assert!(table.contains("written per second  -") && table.contains("ended per second    -"), "{table}");
}

#[test]
fn rates_are_told_while_events_flow() {
    let here = Place::with("[relay]\npoll_interval = \"50ms\"\n[destination.out]\ntype = \"file\"\npath = \"out\"\n");
    here.ok(&["migrate", "up"]);
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                here.ok(&["events", "write", "--type", "Ticked", "{}"]);
            }
        });
        here.until("something is delivered", |here| !here.read("out").is_empty());
        let stats = here.run(&["stats", "--rate", "3s", "--output", "json"]);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(stats.status.code(), Some(0), "{}", stderr(&stats));
        let stats: Value = serde_json::from_str(stdout(&stats)).unwrap();
        let rates = ["written_per_second", "ended_per_second"].map(|rate| stats[rate].as_f64().unwrap());
        assert!(rates.iter().all(|rate| *rate > 0.0 && *rate < 10_000.0), "{stats}");
    });
    relay.terminate();
    assert_eq!(relay.end().0, Some(0));
    // Now nothing does.
    let table = here.ok(&["stats", "--rate", "50ms"]);
    assert!(table.contains("written per second  0.0") && table.contains("ended per second    0.0"), "{table}");
}
