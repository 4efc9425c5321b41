//! What is particular to PostgreSQL.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use rustix::process::geteuid;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::process::{Account, Launch, Parting};
use super::{Directory, ServerOptions, find_program};

/// The directory of its programs.
pub(super) fn find() -> anyhow::Result<PathBuf> {
    let newest = fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten().flatten();
    let newest = newest.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        programs.join("initdb").is_file().then_some((version, programs))
    });
    let elsewhere = || find_program("initdb")?.parent().map(Path::to_path_buf);
    newest.max().map(|(_, programs)| programs).or_else(elsewhere).context(
        "PostgreSQL is not installed: install Debian's package with `apt-get install postgresql`, or run \
         `scripts/test unit` as root, which does so",
    )
}

/// Makes an empty data directory, for its user alone.
fn make_data(directory: &Directory) -> anyhow::Result<PathBuf> {
    let data = directory.data();
    fs::create_dir(&data)?;
    fs::set_permissions(&data, Permissions::from_mode(0o700))?;
    if let Some(Account { uid, gid }) = account()? {
        chown(&data, Some(uid), Some(gid))?;
    }
    Ok(data)
}

/// Fills it with a copy of the server at that port, which is to follow it.
pub(super) async fn copy(directory: &Directory, port: u16) -> anyhow::Result<()> {
    let data = make_data(directory)?;
    let mut copy = Command::new(find()?.join("pg_basebackup"));
    copy.args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "-N", "-p"]);
    copy.arg(port.to_string()).arg("-D").arg(&data);
    run_as(copy, account()?).await.context("pg_basebackup")
}

/// Makes the data directory.
pub(super) async fn prepare(directory: &Directory) -> anyhow::Result<()> {
    let data = make_data(directory)?;
    let mut initdb = Command::new(find()?.join("initdb"));
    initdb.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "-D"]).arg(&data);
    run_as(initdb, account()?).await.context("initdb")
}

pub(super) fn launch(directory: &Directory, options: &ServerOptions, port: u16) -> anyhow::Result<Launch> {
    let mut arguments = vec!["-D".to_owned(), directory.data().display().to_string()];
    let mut set = |name: &str, value: &str| arguments.extend(["-c".to_owned(), format!("{name}={value}")]);
    set("listen_addresses", "127.0.0.1");
    set("port", &port.to_string());
    set("unix_socket_directories", "");
    set("max_connections", &options.max_connections.to_string());
    set("fsync", if options.fsync { "on" } else { "off" });
    set("log_lock_waits", "on");
    // Checkpoints are a part of what has to be survived: not only every five minutes.
    set("checkpoint_timeout", "30s");
    if options.disk.is_some() {
        // The log must not fill the disk by itself.
        set("min_wal_size", "32MB");
        set("max_wal_size", "64MB");
    }
    for (name, value) in &options.settings {
        set(name, value);
    }
    // To quit takes its children along, and gives its shared memory back.
    Ok(Launch { program: find()?.join("postgres"), arguments, account: account()?, parting: Parting::Quit })
}

pub(super) async fn create_database(port: u16, name: &str) -> anyhow::Result<()> {
    let mut connection = connect(port).await?;
    connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    Ok(connection.close().await?)
}

pub(super) async fn data_directory(port: u16) -> sqlx::Result<String> {
    let mut connection = connect(port).await?;
    let data = sqlx::query_scalar("SELECT current_setting('data_directory')").fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(data)
}

async fn connect(port: u16) -> sqlx::Result<PgConnection> {
    PgConnection::connect(&format!("postgres://postgres@127.0.0.1:{port}/postgres")).await
}

/// The user to run as instead of root, as whom PostgreSQL refuses to run.
fn account() -> anyhow::Result<Option<Account>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    Ok(Some(Account { uid: id("-u")?, gid: id("-g")? }))
}

fn id(which: &str) -> anyhow::Result<u32> {
    let output = Command::new("id").args([which, "postgres"]).output().context("id")?;
    let id = String::from_utf8_lossy(&output.stdout);
    id.trim().parse().context("there is no user `postgres`, which `apt-get install postgresql` creates")
}

async fn run_as(mut command: Command, account: Option<Account>) -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt;
    if let Some(Account { uid, gid }) = account {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/");
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
