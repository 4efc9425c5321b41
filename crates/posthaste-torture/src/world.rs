//! Everything that takes part in a run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::process::Signal;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};

use crate::broker::Broker;
use crate::config::{Config, Kind, Role};
use crate::database::Database;
use crate::fault::Fault;
use crate::history::{Recorder, What};
use crate::member::Member;
use crate::plan::Plan;
use crate::proxy::Proxy;
use crate::role::KEYS;
use crate::server::{self, Directory, Server, ServerOptions};

/// Everything that takes part in a run.
pub(crate) struct World<D> {
    pub(crate) plan: Plan,
    /// Where the histories are.
    directory: PathBuf,
    /// What the nemesis did.
    pub(crate) recorder: Recorder,
    /// The database itself, past the proxy.
    pub(crate) store: D,
    pub(crate) direct_url: String,
    pub(crate) server: Mutex<Option<Server>>,
    /// Where the file is, of a database without a server.
    pub(crate) disk: Mutex<Option<Directory>>,
    pub(crate) to_database: Option<Proxy>,
    /// The bytes that ask the database to commit.
    pub(crate) commit: &'static [u8],
    pub(crate) to_destination: Proxy,
    /// Where events are delivered to: one of the two.
    sink: Option<Mutex<Member>>,
    broker: Option<Mutex<Broker>>,
    producers: Vec<Mutex<Member>>,
    relays: Vec<Mutex<Member>>,
    broken: std::sync::Mutex<BTreeSet<String>>,
}

/// The size of the disk of the database: for what is there from the beginning, and for what is written in a second.
const SMALLEST_DISK: u64 = 1 << 30;
const DISK_PER_SECOND: u64 = 4 << 20;

/// How long a process that can deliver may deliver nothing while events are written all the time.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// How many connections a server lets in: enough for every pool, few enough to be used up.
const CONNECTIONS: u32 = 100;

/// A database that is ready to be broken.
pub(crate) struct Ground {
    server: Option<Server>,
    disk: Option<Directory>,
    url: String,
    /// Why its disk cannot be filled, if it cannot.
    pub(crate) no_full_disk: Option<String>,
}

impl Ground {
    /// Starts a server, or finds a place for a file. On a disk of its own, if that can be had.
    pub(crate) async fn prepare(plan: &Plan) -> anyhow::Result<Self> {
        let disk = SMALLEST_DISK + plan.seconds * DISK_PER_SECOND;
        // When it is full, all of it is in memory.
        let disk = (disk < available_memory() / 2).then_some(disk);
        let kind = match plan.database {
            Kind::Sqlite => {
                let disk = Directory::new(disk)?;
                let url = format!("sqlite:{}", disk.path().join("torture.db").display());
                let no_full_disk = disk.can_fill().err().map(|error| error.to_string());
                return Ok(Self { server: None, disk: Some(disk), url, no_full_disk });
            }
            Kind::Postgres => server::Kind::Postgres,
            Kind::Mariadb => server::Kind::MariaDb,
        };
        let options = ServerOptions::default().max_connections(CONNECTIONS);
        let options = disk.iter().fold(options, |options, disk| options.disk(*disk));
        let server = Server::start(kind, &options).await?;
        let url = server.url().to_owned();
        let no_full_disk = server.can_fill_disk().err().map(|error| error.to_string());
        Ok(Self { server: Some(server), disk: None, url, no_full_disk })
    }
}

impl<D: Database> World<D> {
    /// Creates the tables and starts every process.
    pub(crate) async fn create(
        plan: Plan,
        ground: Ground,
        directory: &Path,
        program: &[OsString],
    ) -> anyhow::Result<Self> {
        let Ground { server, disk, url: direct_url, .. } = ground;
        let store = D::open(&direct_url, None).await.context("opening the database")?;
        store.set_up(KEYS, plan.ordered).await.context("creating the tables")?;
        let (to_database, url) = match &server {
            Some(server) => {
                let proxy = Proxy::start(server.addr()).await?;
                let url = server.url_at(proxy.addr());
                (Some(proxy), url)
            }
            None => (None, direct_url.clone()),
        };
        // What the store says to PostgreSQL is a little more than what sqlx would.
        let commit = match plan.database {
            Kind::Postgres => b"; COMMIT AND CHAIN",
            _ => server::Kind::MariaDb.commit(),
        };
        let sink_at = SocketAddr::from((Ipv4Addr::LOCALHOST, server::free_port()?));
        let to_destination = Proxy::start(sink_at).await?;
        let broker = if plan.destination.is_broker() {
            let broker = Broker::start(plan.destination, to_destination.addr(), directory.join("broker.log")).await?;
            to_destination.set_target(broker.addr());
            broker.prepare().await?;
            Some(Mutex::new(broker))
        } else {
            None
        };
        let cast = Cast { plan: &plan, directory, program, url, destination_at: to_destination.addr() };
        let producers = (1..=plan.producers).map(|number| cast.producer(number)).collect::<anyhow::Result<_>>()?;
        let relays = (1..=plan.relays).map(|number| cast.relay(number)).collect::<anyhow::Result<_>>()?;
        let sink = if broker.is_none() { Some(cast.sink(sink_at)?) } else { None };
        let recorder = Recorder::open(&directory.join("nemesis.ndjson"), "nemesis")?;
        let world = Self {
            directory: directory.to_owned(),
            recorder,
            store,
            direct_url,
            server: Mutex::new(server),
            disk: Mutex::new(disk),
            to_database,
            commit,
            to_destination,
            sink,
            broker,
            producers,
            relays,
            broken: std::sync::Mutex::default(),
            plan,
        };
        world.start_all().await?;
        Ok(world)
    }

    async fn start_all(&self) -> anyhow::Result<()> {
        if let Some(sink) = &self.sink {
            let mut sink = sink.lock().await;
            sink.start()?;
            sink.wait_for_port().await?;
        }
        for member in self.relays.iter().chain(&self.producers) {
            member.lock().await.start()?;
        }
        Ok(())
    }

    /// The sink, for those who break it.
    pub(crate) fn sink(&self) -> anyhow::Result<&Mutex<Member>> {
        self.sink.as_ref().context("there is no sink")
    }

    /// The broker, for those who break it.
    pub(crate) fn broker(&self) -> anyhow::Result<&Mutex<Broker>> {
        self.broker.as_ref().context("there is no broker")
    }

    /// Somebody for the fault to happen to, whom nobody else hurts at the same time.
    pub(crate) async fn victim(&self, fault: Fault, rng: &mut fastrand::Rng) -> MutexGuard<'_, Member> {
        let among = match fault {
            Fault::ProducerKill | Fault::ProducerKillPoint => &self.producers,
            _ => &self.relays,
        };
        among[rng.usize(..among.len())].lock().await
    }

    /// Notes what is broken now, for the live view.
    pub(crate) fn broken(&self, fault: Fault, is: bool) {
        let mut broken = self.broken.lock().expect("nobody panics here");
        if is {
            broken.insert(fault.name());
        } else {
            broken.remove(&fault.name());
        }
    }

    /// What is broken now.
    pub(crate) fn all_broken(&self) -> Vec<String> {
        self.broken.lock().expect("nobody panics here").iter().cloned().collect()
    }

    /// Starts whoever ended without anybody's doing. What that means is for the checker to say.
    pub(crate) async fn revive(&self) -> anyhow::Result<()> {
        for member in self.relays.iter().chain(&self.producers).chain(&self.sink) {
            // One that is held is being hurt.
            if let Ok(mut member) = member.try_lock() {
                member.revive().await?;
            }
        }
        match &self.broker {
            Some(broker) => match broker.try_lock() {
                Ok(broker) => self.revive_broker(&broker).await,
                Err(_) => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Does what an operator would: a broker that has fallen by itself is started again.
    async fn revive_broker(&self, broker: &Broker) -> anyhow::Result<()> {
        if !broker.has_fallen() {
            return Ok(());
        }
        let fault = "broker-fell".to_owned();
        self.recorder.record(What::Broken { fault: fault.clone(), detail: "by itself".to_owned() });
        broker.kill().await?;
        broker.start_again().await?;
        self.recorder.record(What::Mended { fault, effects: 1 });
        Ok(())
    }

    /// How many lines with one of these texts the processes have written down whose names begin like this.
    pub(crate) fn said(&self, name: &str, texts: &[&str]) -> u64 {
        let files = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let files = files.filter(|file| {
            let file = file.file_name();
            let file = file.to_string_lossy();
            file.starts_with(name) && file.ends_with(".ndjson") && !file.ends_with(".life.ndjson")
        });
        let count = |text: String| text.lines().filter(|line| texts.iter().any(|text| line.contains(text))).count();
        files
            .map(|file| std::fs::read(file.path()).map_or(0, |text| count(String::from_utf8_lossy(&text).into())))
            .sum::<usize>() as u64
    }

    /// Everybody who delivers has to deliver something, now that nothing is broken. Notes who does not.
    pub(crate) async fn hear_everybody(&self) {
        let applied = |name: &str| self.said(&format!("{name}."), &["\"applied\":true"]);
        for member in self.relays.iter().chain(self.producers.iter().step_by(2)) {
            let member = member.lock().await;
            let before = applied(&member.config.name);
            let until = Instant::now() + LONGEST_SILENCE;
            while applied(&member.config.name) == before {
                if Instant::now() >= until {
                    member.was_silent();
                    break;
                }
                sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Ends the producers in order: what they have in hand they deliver or give back.
    pub(crate) async fn end_producers(&self) -> anyhow::Result<()> {
        end(&self.producers).await
    }

    /// Ends everybody else.
    pub(crate) async fn end_relays(&self) -> anyhow::Result<()> {
        end(&self.relays).await?;
        match &self.sink {
            Some(sink) => sink.lock().await.end().await,
            None => Ok(()),
        }
    }

    /// Writes down what a broker has. A sink has done that by itself.
    pub(crate) async fn read_back(&self) -> anyhow::Result<()> {
        let Some(broker) = &self.broker else { return Ok(()) };
        let recorder = Recorder::open(&self.directory.join("reader.ndjson"), "reader")?;
        let broker = broker.lock().await;
        self.revive_broker(&broker).await?;
        broker.read(&recorder).await
    }

    /// Stops the server.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let server = self.server.into_inner();
        drop(self.store);
        match server {
            Some(server) => server.close().await,
            None => Ok(()),
        }
    }
}

async fn end(members: &[Mutex<Member>]) -> anyhow::Result<()> {
    // All are asked before any is waited for.
    for member in members {
        let mut member = member.lock().await;
        member.signal(Signal::CONT);
        member.signal(Signal::TERM);
    }
    for member in members {
        member.lock().await.wait_for_end().await?;
    }
    Ok(())
}

/// Writes the configurations.
struct Cast<'a> {
    plan: &'a Plan,
    directory: &'a Path,
    program: &'a [OsString],
    url: String,
    destination_at: SocketAddr,
}

impl Cast<'_> {
    fn config(&self, role: Role, name: String) -> Config {
        let seed = crate::wire::hash(name.as_bytes()) ^ self.plan.seed;
        Config {
            role,
            name,
            directory: PathBuf::from(self.directory),
            database: self.plan.database,
            url: self.url.clone(),
            destination: self.plan.destination,
            destination_at: self.destination_at,
            seed,
            life: 0,
            workload: self.plan.workload,
            connections: None,
            hot: false,
            writers: 4,
            rate: self.plan.rate / self.plan.producers as f64,
            clock_ahead: 0,
            ordered: self.plan.ordered,
            on_dead: self.plan.on_dead,
            sabotage: self.plan.sabotage,
        }
    }

    fn member(&self, config: Config) -> anyhow::Result<Mutex<Member>> {
        // A file of its own beside that of the process: a line of one cannot cut a line of the other.
        let path = self.directory.join(format!("{}.life.ndjson", config.name));
        let recorder = Recorder::open(&path, &config.name)?;
        Ok(Mutex::new(Member::new(config, self.program, recorder)))
    }

    /// Every other producer leaves the delivery to the relays.
    fn producer(&self, number: usize) -> anyhow::Result<Mutex<Member>> {
        let config = self.config(Role::Producer, format!("producer-{number}"));
        // Where there is one lane, who delivers beside writing would take it from those who only deliver.
        let leaves_lanes = self.plan.ordered && self.plan.database == Kind::Sqlite;
        self.member(Config { hot: number % 2 == 1 && !leaves_lanes, ..config })
    }

    /// The last relay makes do with one connection.
    fn relay(&self, number: usize) -> anyhow::Result<Mutex<Member>> {
        let config = self.config(Role::Relay, format!("relay-{number}"));
        let connections = (number == self.plan.relays && number > 1).then_some(1);
        self.member(Config { connections, ..config })
    }

    fn sink(&self, at: SocketAddr) -> anyhow::Result<Mutex<Member>> {
        self.member(Config { destination_at: at, ..self.config(Role::Sink, "sink".to_owned()) })
    }
}

/// The memory that can be had, in bytes.
fn available_memory() -> u64 {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kibibytes * 1024
}
