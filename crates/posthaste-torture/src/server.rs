//! Private database servers that the nemesis may break.
//!
//! Each has a temporary directory and a free port of 127.0.0.1 of its own. It ends with the [`Server`], and also when
//! this process is killed. What a killed process could not delete, the next [`Directory`] deletes.

mod directory;
mod mariadb;
mod postgres;
mod process;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

pub use directory::Directory;
use process::Process;

/// Which database server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL, the newest that is installed.
    Postgres,
    /// MariaDB.
    MariaDb,
}

/// How a server is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// In good order, without waiting for clients: SIGINT to PostgreSQL, SIGTERM to MariaDB.
    Fast,
    /// As in a crash, so that it has to recover: SIGQUIT to PostgreSQL, SIGKILL to MariaDB.
    Immediate,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    fsync: bool,
    max_connections: u32,
    disk: Option<u64>,
    settings: Vec<(String, String)>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { fsync: true, max_connections: 200, disk: None, settings: Vec::new() }
    }
}

impl ServerOptions {
    /// Whether a commit waits for the disk. By default it does, as in production. A commit outlives an
    /// [immediate](How::Immediate) end in both cases: only a power cut takes what the kernel has.
    #[must_use]
    pub fn fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// How many clients are let in, by default 200: several processes with a pool each.
    #[must_use]
    pub fn max_connections(mut self, max_connections: u32) -> Self {
        self.max_connections = max_connections;
        self
    }

    /// Puts the data on a disk of its own of that many bytes, which [can be filled](Server::fill_disk). A full one
    /// takes as much memory. An empty database needs about 50 MB, and its log up to 64 MB more. By default, the data is
    /// in the directory for temporary files.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk = Some(bytes);
        self
    }

    /// A setting of the server, in its own words. It outranks the other options.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A running server, or one that is down for a while.
///
/// Dropping it ends the server at once and deletes its data.
pub struct Server {
    kind: Kind,
    port: u16,
    url: String,
    options: ServerOptions,
    // Before the directory, as fields are dropped in this order.
    process: Option<Process>,
    directory: Directory,
}

/// For a start that recovers from a crash, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// For an end in good order, which writes all dirty pages.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const DATABASE: &str = "torture";

impl Server {
    /// Starts a server with an empty database.
    ///
    /// # Errors
    /// When the server is not installed (the error says how to get it), or does not start (the error has the end of its
    /// log).
    pub async fn start(kind: Kind, options: &ServerOptions) -> anyhow::Result<Self> {
        kind.check_installed()?;
        let directory = Directory::new(options.disk)?;
        match kind {
            Kind::Postgres => postgres::prepare(&directory).await?,
            Kind::MariaDb => mariadb::prepare(&directory, options).await?,
        }
        let mut server = Self { kind, port: 0, url: String::new(), options: options.clone(), process: None, directory };
        server.start_on_free_port().await?;
        match kind {
            Kind::Postgres => postgres::create_database(server.port, DATABASE).await?,
            Kind::MariaDb => mariadb::create_database(server.port, DATABASE).await?,
        }
        server.url = server.url_at(server.addr());
        Ok(server)
    }

    /// Starts a standby of a running PostgreSQL: a copy that follows it, and takes no writes.
    ///
    /// # Errors
    /// When the other is no PostgreSQL, cannot be copied, or the copy does not start.
    pub async fn standby_of(primary: &Self, options: &ServerOptions) -> anyhow::Result<Self> {
        if primary.kind != Kind::Postgres {
            bail!("a standby is made of PostgreSQL only, not of {}", primary.kind.name());
        }
        let directory = Directory::new(options.disk)?;
        postgres::copy(&directory, primary.port).await?;
        let (kind, options) = (Kind::Postgres, options.clone());
        let mut server = Self { kind, port: 0, url: String::new(), options, process: None, directory };
        server.start_on_free_port().await?;
        server.url = server.url_at(server.addr());
        Ok(server)
    }

    /// Where its database is, for sqlx.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same database through another address, such as that of a [proxy](crate::proxy::Proxy).
    pub fn url_at(&self, addr: SocketAddr) -> String {
        match self.kind {
            Kind::Postgres => format!("postgres://postgres@{addr}/{DATABASE}"),
            Kind::MariaDb => format!("mysql://root@{addr}/{DATABASE}"),
        }
    }

    /// Which server this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its port, the same all its life.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The id of its first process, unless it is down.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().filter(|process| !process.has_ended()).map(Process::pid)
    }

    /// Its log, from its first start.
    pub fn log_path(&self) -> PathBuf {
        self.directory.beside("log")
    }

    /// Ends it and starts it again.
    ///
    /// # Errors
    /// As [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub async fn restart(&mut self, how: How) -> anyhow::Result<()> {
        self.stop(how).await?;
        self.start_again().await
    }

    /// Ends it, and returns when it has ended. Nothing happens if it is down.
    ///
    /// # Errors
    /// When it had to be killed because it did not end in a minute.
    pub async fn stop(&mut self, how: How) -> anyhow::Result<()> {
        let Some(process) = &mut self.process else { return Ok(()) };
        process.signal(self.kind.signal(how));
        let ended = timeout(STOP_LIMIT, process.ended()).await.is_ok();
        // Dropping kills it.
        self.process = None;
        if !ended {
            bail!("{} did not end in {STOP_LIMIT:?} and was killed\n{}", self.kind.name(), self.log_tail());
        }
        Ok(())
    }

    /// Starts it with the same data on the same port, and returns when it answers. Nothing happens if it is running.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        // Children of a server that was killed may still hold on to its memory for a moment.
        const INSIST: Duration = Duration::from_secs(3);
        const PAUSE: Duration = Duration::from_millis(300);
        let began_at = Instant::now();
        loop {
            match self.start_on(self.port).await {
                Err(_) if began_at.elapsed() < INSIST => sleep(PAUSE).await,
                other => return other,
            }
        }
    }

    /// Whether [`fill_disk`](Self::fill_disk) is possible.
    ///
    /// # Errors
    /// Why it is not.
    pub fn can_fill_disk(&self) -> anyhow::Result<()> {
        self.directory.can_fill()
    }

    /// Takes what is left of its disk. Again, if the server has given some back since.
    ///
    /// Writers get errors, or the server crashes: PostgreSQL without room for its log, MariaDB without room for a
    /// column that has pages of its own. It then stays down until [`free_disk`](Self::free_disk).
    ///
    /// # Errors
    /// When there is no disk of its own.
    pub async fn fill_disk(&mut self) -> anyhow::Result<()> {
        self.directory.fill().await
    }

    /// Gives the disk back, and returns when the server answers. It is started again if it is down.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn free_disk(&mut self) -> anyhow::Result<()> {
        self.directory.free()?;
        if self.pid().is_some() && self.wait_until_it_answers(self.port).await.is_ok() {
            return Ok(());
        }
        self.stop(How::Immediate).await?;
        self.start_again().await
    }

    /// Ends it in good order and deletes its data.
    ///
    /// # Errors
    /// When something is left behind.
    pub async fn close(mut self) -> anyhow::Result<()> {
        self.stop(How::Fast).await?;
        self.directory.close()
    }

    async fn start_on_free_port(&mut self) -> anyhow::Result<()> {
        loop {
            self.port = free_port()?;
            match self.start_on(self.port).await {
                // Somebody else was faster.
                Err(_) if !is_free(self.port) => {}
                other => return other,
            }
        }
    }

    async fn start_on(&mut self, port: u16) -> anyhow::Result<()> {
        if self.pid().is_none() {
            let launch = match self.kind {
                Kind::Postgres => postgres::launch(&self.directory, &self.options, port)?,
                Kind::MariaDb => mariadb::launch(&self.directory, &self.options, port)?,
            };
            let log = File::options().create(true).append(true).open(self.log_path())?;
            self.process = Some(Process::spawn(launch, log).await?);
        }
        let answered = self.wait_until_it_answers(port).await;
        if answered.is_err() {
            self.process = None;
        }
        answered.with_context(|| format!("{} does not start\n{}", self.kind.name(), self.log_tail()))
    }

    async fn wait_until_it_answers(&mut self, port: u16) -> anyhow::Result<()> {
        let (kind, data) = (self.kind, self.directory.data());
        let process = self.process.as_mut().context("it is down")?;
        tokio::select! {
            answer = timeout(START_LIMIT, answer(kind, port, &data)) => answer.context("it does not answer"),
            () = process.ended() => bail!("it ended"),
        }
    }

    fn log_tail(&self) -> String {
        const LINES: usize = 20;
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Kind {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
        }
    }

    /// The bytes with which sqlx asks for a COMMIT, and which nothing else contains by chance, as "READ COMMITTED" does
    /// the plain word. For [`Proxy::lose_reply_to`](crate::proxy::Proxy::lose_reply_to).
    pub fn commit(self) -> &'static [u8] {
        match self {
            Self::Postgres => b"Q\0\0\0\x0bCOMMIT\0",
            Self::MariaDb => b"\x07\0\0\0\x03COMMIT",
        }
    }

    /// Whether its programs are there.
    ///
    /// # Errors
    /// What to install.
    pub fn check_installed(self) -> anyhow::Result<()> {
        match self {
            Self::Postgres => postgres::find().map(drop),
            Self::MariaDb => mariadb::find().map(drop),
        }
    }

    fn signal(self, how: How) -> Signal {
        match (self, how) {
            (Self::Postgres, How::Fast) => Signal::INT,
            (Self::Postgres, How::Immediate) => Signal::QUIT,
            (Self::MariaDb, How::Fast) => Signal::TERM,
            (Self::MariaDb, How::Immediate) => Signal::KILL,
        }
    }
}

/// Returns when the server with that data, and no other, answers on that port.
async fn answer(kind: Kind, port: u16, data: &Path) {
    const TRY_LIMIT: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_millis(20);
    loop {
        let began_at = Instant::now();
        let directory = match kind {
            Kind::Postgres => timeout(TRY_LIMIT, postgres::data_directory(port)).await,
            Kind::MariaDb => timeout(TRY_LIMIT, mariadb::data_directory(port)).await,
        };
        if matches!(directory, Ok(Ok(directory)) if Path::new(&directory) == data) {
            return;
        }
        tokio::time::sleep_until(began_at + PAUSE).await;
    }
}

/// A port below those that the kernel gives to clients: one of them could take it while the server is down.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    const PORTS: std::ops::Range<u16> = 20_000..32_000;
    const TRIES: usize = 100;
    std::iter::repeat_with(|| fastrand::u16(PORTS))
        .take(TRIES)
        .find(|port| is_free(*port))
        .with_context(|| format!("no free port among {TRIES} of {PORTS:?}"))
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// The program of that name, also where only root looks for programs.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}
