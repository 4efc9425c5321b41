//! The program as a user runs it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_posthaste-bench")).args(arguments).output().expect("the program runs")
}

#[test]
fn a_small_run_gives_ratios_and_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let (json, page) = (directory.path().join("figures.json"), directory.path().join("figures.html"));
    let small = "--database sqlite --workload w,w100,d,l,x --rounds 1 --warm-up 0 --events 1000 --seconds 1 --quick";
    let mut arguments: Vec<&str> = small.split(' ').collect();
    arguments.extend(["--json", json.to_str().unwrap(), "--report", page.to_str().unwrap()]);
    let output = bench(&arguments);
    let said = String::from_utf8_lossy(&output.stdout);
    // Goals may be missed, on a machine that does other things beside.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}{}", String::from_utf8_lossy(&output.stderr));

    let measured: Vec<Value> = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    for workload in ["W", "H", "W100", "D", "D+1M", "Ddel", "L100 p50", "L1000 p99", "X hot, statements"] {
        let of = of(&measured, workload);
        assert!(of["machine"]["cores"].as_u64().unwrap() > 0, "{of}");
        assert!(said.contains(workload), "{said}");
    }
    // The goals are the same on every database.
    assert_eq!(["W", "H", "D"].map(|workload| of(&measured, workload)["goal"].as_f64().unwrap()), [0.95, 0.85, 0.9]);
    // One writes at a time, so this is what is faster by hand.
    assert!(!measured.iter().any(|one| one["workload"] == "D/two loops"), "{said}");
    for told in ["D/one transaction", "Ddel/one transaction"] {
        assert_eq!(of(&measured, told)["goal"], Value::Null, "{told}");
    }
    let machine = &measured[0]["machine"];
    assert!(machine["driver"].as_str().unwrap().starts_with("sqlx 0."), "{machine}");
    assert!(["debug", "release"].contains(&machine["profile"].as_str().unwrap()), "{machine}");
    assert!(machine["settings"].as_str().unwrap().contains("--quick, 1 rounds after 0 of warm-up"), "{machine}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.matches("<svg").count() >= 9 && page.contains("SQLite 3."), "{page}");
    assert!(page.contains("class=\"goal\""), "{page}");
}

/// What was measured of a workload, with figures that are some.
fn of<'a>(measured: &'a [Value], workload: &str) -> &'a Value {
    let of = measured.iter().find(|one| one["workload"] == workload).unwrap_or_else(|| panic!("no {workload}"));
    assert!(of["ours"].as_f64() > Some(0.0) && of["ceiling"].as_f64() > Some(0.0), "{of}");
    assert!(of["ratio"].as_f64() > Some(0.0) && of.get("goal").is_some(), "{of}");
    of
}

/// A program that says what it is called with, and gives figures.
fn fake_peer(directory: &Path) {
    let manifest = "[[peer]]\nname = \"fake\"\nversion = \"1.0\"\nsettings = \"None.\"\ncommand = [\"./fake\"]\n\
                    workloads = [\"W\", \"D\", \"L\"]\n\n\
                    [[peer]]\nname = \"broken\"\nversion = \"1.0\"\nsettings = \"None.\"\ncommand = [\"./broken\"]\n\
                    workloads = [\"W\"]\n";
    let fake = "#!/bin/sh\necho \"$@\" >> calls\necho 'not the last line'\n\
                echo '{\"value\": 123.0, \"p50_us\": 7.0, \"p99_us\": 9.0}'\n";
    for (name, text) in [("peers.toml", manifest), ("fake", fake), ("broken", "#!/bin/sh\nexit 3\n")] {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
    }
}

#[tokio::test]
async fn a_small_run_on_postgres_has_two_loops_pgbench_and_peers_beside() {
    let (directory, database) = (tempfile::tempdir().unwrap(), Database::new(Server::Postgres, "small").await);
    fake_peer(directory.path());
    let json = directory.path().join("figures.json");
    let small = "--workload w,d,l,x --rounds 1 --warm-up 0 --events 1000 --seconds 1 --quick --url";
    let mut arguments: Vec<&str> = small.split(' ').collect();
    let peers = directory.path().to_str().unwrap();
    arguments.extend([&*database.url, "--json", json.to_str().unwrap(), "--peers", peers]);
    let output = bench(&arguments);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}{}", String::from_utf8_lossy(&output.stderr));

    let measured: Vec<Value> = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    for told in ["D/two loops", "Ddel/two loops", "L100 other by hand", "L100 peers p50", "X cold, statements"] {
        assert_eq!(of(&measured, told)["goal"], Value::Null, "{told}");
    }
    // Where it is installed, which it is with the server.
    assert!(of(&measured, "W/pgbench")["ceiling"].as_f64().unwrap() > 10.0, "{said}");
    for workload in ["W", "D"] {
        let peers = &of(&measured, workload)["peers"];
        assert_eq!((&peers["fake"], &peers["broken"]), (&123.0.into(), &Value::Null), "{peers}");
    }
    assert_eq!(of(&measured, "L100 peers p99")["peers"]["fake"], 9.0);
    assert!(said.contains("peer broken failed: exit status: 3"), "{said}");
    let settings = measured[0]["machine"]["databases"][0].as_str().unwrap();
    assert!(settings.starts_with("PostgreSQL 1") && settings.contains("max_wal_size"), "{settings}");
    let calls = std::fs::read_to_string(directory.path().join("calls")).unwrap();
    assert!(calls.contains("posthaste_bench_peer") && calls.contains("--workload D --events 1000"), "{calls}");
    database.drop().await;
}

#[tokio::test]
async fn a_database_with_tables_of_others_is_refused() {
    for server in [Server::Postgres, Server::MariaDb] {
        let database = Database::new(server, "refused").await;
        let run =
            || bench(&["--workload", "w", "--rounds", "1", "--warm-up", "0", "--seconds", "1", "--url", &database.url]);
        let is_refused = |because: &str| {
            let output = run();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && output.stdout.is_empty() && said.contains(because), "{said}");
            assert!(said.contains("CREATE DATABASE bench"), "{said}");
        };
        let is_taken = || {
            let output = run();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("tx/s"), "{said}{}", String::from_utf8_lossy(&output.stderr));
        };
        // The name of a table that a run would drop.
        database.execute("CREATE TABLE orders (mine INT)").await;
        database.execute("INSERT INTO orders VALUES (42)").await;
        is_refused(".orders`");
        // It is still there, and not the one that a run makes.
        database.execute("INSERT INTO orders (mine) VALUES (43)").await;
        database.execute("DROP TABLE orders").await;
        is_taken();
        // What an earlier run has left is its own.
        is_taken();
        database.execute("CREATE TABLE customers (name VARCHAR(10))").await;
        is_refused(".customers`");
        database.drop().await;
    }
}

#[derive(Clone, Copy)]
enum Server {
    Postgres,
    MariaDb,
}

/// A database of its own on a server that scripts/test starts.
struct Database {
    server: Server,
    name: String,
    /// Of the server, and of the database.
    home: String,
    url: String,
}

impl Database {
    async fn new(server: Server, name: &str) -> Self {
        let variable = match server {
            Server::Postgres => "POSTHASTE_TEST_POSTGRES_URL",
            Server::MariaDb => "POSTHASTE_TEST_MYSQL_URL",
        };
        let home = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set; run scripts/test, or eval \"$(scripts/servers start)\"")
        });
        let name = format!("bench_{name}_{}", std::process::id());
        let (before, parameters) = home.split_once('?').unwrap_or((&home, ""));
        let url = format!("{}/{name}?{parameters}", before.rsplit_once('/').expect("a URL").0);
        execute(server, &home, &format!("DROP DATABASE IF EXISTS {name}")).await;
        execute(server, &home, &format!("CREATE DATABASE {name}")).await;
        Self { server, name, home, url }
    }

    async fn execute(&self, sql: &str) {
        execute(self.server, &self.url, sql).await;
    }

    async fn drop(self) {
        execute(self.server, &self.home, &format!("DROP DATABASE {}", self.name)).await;
    }
}

async fn execute(server: Server, url: &str, sql: &str) {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    match server {
        Server::Postgres => {
            let mut connection = PgConnection::connect(url).await.expect("a connection");
            sql.execute(&mut connection).await.expect("a statement that works");
            connection.close().await.expect("an end");
        }
        Server::MariaDb => {
            let mut connection = MySqlConnection::connect(url).await.expect("a connection");
            sql.execute(&mut connection).await.expect("a statement that works");
            connection.close().await.expect("an end");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    for (arguments, reason) in [
        (&["--url", "oracle://x"][..], "--url must begin with postgres:// or mysql://"),
        (&["--events", "10"][..], "--events must be at least 1000"),
        (&["--rounds", "0"][..], "--rounds must be at least 1"),
        (&["--peers", "/nowhere"][..], "the peers are in the directory `peers`"),
        (&["--workload", "relay", "--program", "/nowhere"][..], "there is no /nowhere, whose relay would be measured"),
        (
            &["--workload", "relay", "--database", "sqlite", "--program", env!("CARGO_BIN_EXE_posthaste-bench")][..],
            "workload relay is measured on PostgreSQL",
        ),
        (&["--broker", "kafka"][..], "must be NAME=URL"),
        (&["--broker", "nats=x", "--broker", "nats=y"][..], "is given twice"),
        #[cfg(not(feature = "brokers"))]
        (&["--workload", "b"][..], "cargo run --release --features brokers -- bench --workload b"),
    ] {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{said}");
    }
}
