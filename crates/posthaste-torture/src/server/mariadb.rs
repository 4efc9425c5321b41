//! What is particular to MariaDB.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};
use rustix::process::geteuid;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};

use super::process::{Launch, Parting};
use super::{Directory, ServerOptions, find_program};

/// Its programs.
pub(super) struct Programs {
    server: PathBuf,
    install: PathBuf,
}

pub(super) fn find() -> anyhow::Result<Programs> {
    let programs =
        || Some(Programs { server: find_program("mariadbd")?, install: find_program("mariadb-install-db")? });
    programs().context(
        "MariaDB is not installed: install Debian's package with `apt-get install mariadb-server`, or run \
         `scripts/test unit` as root, which does so",
    )
}

/// Makes the data directory.
pub(super) async fn prepare(directory: &Directory, options: &ServerOptions) -> anyhow::Result<()> {
    let temporary = temporary(directory);
    fs::create_dir(&temporary)?;
    let mut install = tokio::process::Command::new(find()?.install);
    install.arg("--no-defaults").args(user());
    install.arg(format!("--datadir={}", directory.data().display()));
    install.arg(format!("--tmpdir={}", temporary.display()));
    install.args(log_size(options).map(|size| format!("--innodb-log-file-size={size}")));
    install.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
    let output = install.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    if !output.status.success() {
        // The cause is on one of the two, advice on the other.
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("mariadb-install-db: {said}\n{complained}");
    }
    Ok(())
}

pub(super) fn launch(directory: &Directory, options: &ServerOptions, port: u16) -> anyhow::Result<Launch> {
    let mut arguments = vec!["--no-defaults".to_owned()];
    arguments.extend(user());
    let mut set = |name: &str, value: &str| arguments.push(format!("--{name}={value}"));
    set("datadir", &directory.data().display().to_string());
    set("tmpdir", &temporary(directory).display().to_string());
    set("socket", &directory.beside("socket").display().to_string());
    set("pid-file", &directory.beside("pid").display().to_string());
    set("bind-address", "127.0.0.1");
    set("port", &port.to_string());
    set("skip-name-resolve", "ON");
    set("max-connections", &options.max_connections.to_string());
    // 2 leaves the writing to the kernel but, unlike 0, loses no commit when only the server is killed.
    set("innodb-flush-log-at-trx-commit", if options.fsync { "1" } else { "2" });
    if let Some(size) = log_size(options) {
        set("innodb-log-file-size", size);
    }
    for (name, value) in &options.settings {
        set(name, value);
    }
    Ok(Launch { program: find()?.server, arguments, account: None, parting: Parting::Kill })
}

pub(super) async fn create_database(port: u16, name: &str) -> anyhow::Result<()> {
    let mut connection = connect(port).await?;
    connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name} CHARACTER SET utf8mb4"))).await?;
    Ok(connection.close().await?)
}

pub(super) async fn data_directory(port: u16) -> sqlx::Result<String> {
    let mut connection = connect(port).await?;
    let data = sqlx::query_scalar("SELECT @@datadir").fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok(data)
}

async fn connect(port: u16) -> sqlx::Result<MySqlConnection> {
    MySqlConnection::connect(&format!("mysql://root@127.0.0.1:{port}/mysql")).await
}

/// A server that starts deletes the temporary tables that it finds, also those of another server.
fn temporary(directory: &Directory) -> PathBuf {
    directory.beside("tmp")
}

/// The usual 96 MB would be most of a small disk.
fn log_size(options: &ServerOptions) -> Option<&'static str> {
    options.disk.map(|_| "16M")
}

/// It runs as root only if told so.
fn user() -> Option<String> {
    geteuid().is_root().then(|| "--user=root".to_owned())
}
