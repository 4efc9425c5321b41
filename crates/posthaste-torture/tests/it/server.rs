use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use posthaste_torture::server::{Directory, How, Kind, Server, ServerOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions, Connection, Executor};

use crate::client::Client;
use crate::{eventually, in_memory};

#[tokio::test]
async fn postgres_keeps_what_was_committed() {
    keeps_what_was_committed(Kind::Postgres).await;
}

#[tokio::test]
async fn mariadb_keeps_what_was_committed() {
    keeps_what_was_committed(Kind::MariaDb).await;
}

async fn keeps_what_was_committed(kind: Kind) {
    let mut server = Server::start(kind, &in_memory()).await.unwrap();
    let (url, port) = (server.url().to_owned(), server.port());
    let mut client = Client::connect(kind, &url).await.unwrap();
    client.create_table().await.unwrap();
    client.insert().await.unwrap();

    server.restart(How::Fast).await.unwrap();
    client.insert().await.unwrap_err();
    let mut client = Client::connect(kind, &url).await.unwrap();
    client.insert().await.unwrap();

    server.stop(How::Immediate).await.unwrap();
    assert_eq!(server.pid(), None);
    client.insert().await.unwrap_err();
    Client::connect(kind, &url).await.err().expect("an outage");
    server.start_again().await.unwrap();
    let mut client = Client::connect(kind, &url).await.unwrap();
    assert_eq!(client.count().await.unwrap(), 2);
    assert_eq!((server.url(), server.port()), (&*url, port));

    let (pid, home) = (server.pid().unwrap(), home_of(&server));
    server.close().await.unwrap();
    assert!(!is_alive(pid));
    assert!(!home.exists());
}

#[tokio::test]
async fn a_standby_follows_and_takes_no_writes() {
    let options = ServerOptions::default().fsync(false);
    let primary = Server::start(Kind::Postgres, &options).await.unwrap();
    let mut client = Client::connect(Kind::Postgres, primary.url()).await.unwrap();
    client.create_table().await.unwrap();
    let standby = Server::standby_of(&primary, &options).await.unwrap();
    assert_ne!(standby.port(), primary.port());
    client.insert().await.unwrap();
    let mut reader = Client::connect(Kind::Postgres, standby.url()).await.unwrap();
    let began_at = std::time::Instant::now();
    while reader.count().await.unwrap() < 1 {
        assert!(began_at.elapsed() < std::time::Duration::from_secs(30), "it does not follow");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let error = reader.insert().await.unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");

    let mariadb = Server::start(Kind::MariaDb, &options).await.unwrap();
    assert!(Server::standby_of(&mariadb, &options).await.is_err());
}

#[tokio::test]
async fn postgres_survives_a_full_disk() {
    survives_a_full_disk(Kind::Postgres).await;
}

#[tokio::test]
async fn mariadb_survives_a_full_disk() {
    survives_a_full_disk(Kind::MariaDb).await;
}

/// Where no disk can be mounted, the reason is all there is to see.
async fn survives_a_full_disk(kind: Kind) {
    let mut server = Server::start(kind, &in_memory()).await.unwrap();
    if let Err(why) = server.can_fill_disk() {
        assert!(!why.to_string().is_empty());
        server.fill_disk().await.unwrap_err();
        return;
    }
    let mut client = Client::connect(kind, server.url()).await.unwrap();
    client.create_table().await.unwrap();
    let mut written = 0;
    server.fill_disk().await.unwrap();
    let error = loop {
        match client.insert().await {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    println!("after {written} rows: {error}");
    // Its transaction is still open.
    drop(client);

    server.free_disk().await.unwrap();
    let mut client = Client::connect(kind, server.url()).await.unwrap();
    assert_eq!(client.count().await.unwrap(), written);
    client.insert().await.unwrap();

    let (pid, home) = (server.pid().unwrap(), home_of(&server));
    assert!(is_mounted(&home));
    drop(server);
    assert!(!is_alive(pid));
    assert!(!home.exists());
    assert!(!is_mounted(&home));
}

/// Without room for its log, PostgreSQL cannot even say no: it crashes, and again when it recovers.
#[tokio::test]
async fn postgres_is_started_again_after_a_full_disk() {
    const LOG_A_MEGABYTE: &str = "SELECT pg_logical_emit_message(FALSE, '', REPEAT('x', 1000000))";
    let mut server = Server::start(Kind::Postgres, &in_memory()).await.unwrap();
    if server.can_fill_disk().is_err() {
        return;
    }
    let mut client = Client::connect(Kind::Postgres, server.url()).await.unwrap();
    client.create_table().await.unwrap();
    client.insert().await.unwrap();
    server.fill_disk().await.unwrap();
    while client.execute(LOG_A_MEGABYTE).await.is_ok() {}
    eventually(|| server.pid().is_none().then_some(())).await;

    server.free_disk().await.unwrap();
    let mut client = Client::connect(Kind::Postgres, server.url()).await.unwrap();
    assert_eq!(client.count().await.unwrap(), 1);
}

/// SQLite needs no server, only the directory.
#[tokio::test]
async fn sqlite_survives_a_full_disk() {
    const INSERT: &str = "INSERT INTO bulk VALUES (RANDOMBLOB(10000))";
    let directory = Directory::new(Some(4 << 20)).unwrap();
    let path = directory.path();
    let options = SqliteConnectOptions::new().filename(path.join("database")).create_if_missing(true);
    let mut connection = options.journal_mode(SqliteJournalMode::Wal).connect().await.unwrap();
    connection.execute("CREATE TABLE bulk (filler BLOB)").await.unwrap();
    connection.execute(INSERT).await.unwrap();
    if directory.can_fill().is_ok() {
        directory.fill().await.unwrap();
        let error = connection.execute(INSERT).await.unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        directory.free().unwrap();
    }
    connection.execute(INSERT).await.unwrap();
    connection.close().await.unwrap();
    directory.close().unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_setting_of_its_own_words() {
    let options = in_memory().setting("no_such_setting", "1");
    let error = Server::start(Kind::Postgres, &options).await.err().expect("the setting is wrong");
    assert!(format!("{error:#}").contains("no_such_setting"), "{error:#}");
}

/// The kernel tells a child of the end of the thread that started it, not of the process.
#[tokio::test]
async fn a_server_outlives_the_thread_that_started_it() {
    let starting = std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Server::start(Kind::Postgres, &ServerOptions::default().fsync(false))).unwrap()
    });
    let server = starting.join().unwrap();
    let mut client = Client::connect(Kind::Postgres, server.url()).await.unwrap();
    client.create_table().await.unwrap();
}

/// The environment variable that makes a test the victim of another: where to write what it started.
const VICTIM: &str = "POSTHASTE_TORTURE_VICTIM";

#[tokio::test]
async fn postgres_ends_with_a_killed_program() {
    ends_with_a_killed_program(Kind::Postgres, "server::postgres_ends_with_a_killed_program").await;
}

#[tokio::test]
async fn mariadb_ends_with_a_killed_program() {
    ends_with_a_killed_program(Kind::MariaDb, "server::mariadb_ends_with_a_killed_program").await;
}

async fn ends_with_a_killed_program(kind: Kind, test: &str) {
    if let Some(notes) = std::env::var_os(VICTIM) {
        return be_victim(kind, Path::new(&notes)).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let notes = directory.path().join("notes");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(VICTIM, &notes)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let notes = eventually(|| fs::read_to_string(&notes).ok().filter(|notes| notes.ends_with('\n'))).await;
    let (pid, home) = notes.trim().split_once(' ').unwrap();
    let (pid, home) = (pid.parse().unwrap(), Path::new(home));
    assert!(is_alive(pid));

    victim.kill().unwrap();
    victim.wait().unwrap();
    eventually(|| (!is_alive(pid)).then_some(())).await;
    // Whoever comes next cleans up. It may be a test beside this one.
    drop(Directory::new(None).unwrap());
    eventually(|| (!home.exists()).then_some(())).await;
    assert!(!is_mounted(home));
}

async fn be_victim(kind: Kind, notes: &Path) {
    let server = Server::start(kind, &in_memory()).await.unwrap();
    fs::write(notes, format!("{} {}\n", server.pid().unwrap(), home_of(&server).display())).unwrap();
    std::future::pending::<()>().await;
}

fn home_of(server: &Server) -> PathBuf {
    server.log_path().parent().unwrap().to_owned()
}

/// A process that only waits to be reaped has no command line.
fn is_alive(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

fn is_mounted(home: &Path) -> bool {
    fs::read_to_string("/proc/mounts").unwrap().contains(home.to_str().unwrap())
}
