//! A private broker that the nemesis may break, and what is read from it at the end.
//!
//! `scripts/brokers` of the repository starts and stops it, with all its files in a directory of the run. Somebody else reads it:
//! a client in Python that has nothing to do with the publishers.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::sleep;

use crate::config::Destination;
use crate::history::{Message, Recorder, What};
use crate::server::Directory;
use crate::wire::hash;

/// How often it is tried to start a broker again. Somebody may have its port for a moment.
const STARTS: u32 = 3;

/// A broker that is running, or down for a while. Dropping it ends it and deletes its data.
pub(crate) struct Broker {
    destination: Destination,
    script: PathBuf,
    addr: SocketAddr,
    advertised: SocketAddr,
    /// A Python that has a client.
    python: PathBuf,
    /// Where its log is kept, for whoever has to find out why.
    log: PathBuf,
    /// How many panics were over when it was last started.
    panics: AtomicUsize,
    // Before the directory, as fields are dropped in this order.
    _keeper: Keeper,
    directory: Directory,
}

impl Broker {
    /// Starts a broker whose clients come through `advertised`, and whose log is kept there.
    pub(crate) async fn start(destination: Destination, advertised: SocketAddr, log: PathBuf) -> anyhow::Result<Self> {
        let script = script(destination)?;
        let directory = Directory::new(None)?;
        let keeper = Keeper::start(&script, &directory.path())?;
        let (python, addr) = (PathBuf::new(), advertised);
        let mut broker = Self {
            destination,
            script,
            addr,
            advertised,
            python,
            log,
            panics: AtomicUsize::default(),
            _keeper: keeper,
            directory,
        };
        (broker.addr, broker.python) = broker.launch().await?;
        Ok(broker)
    }

    /// Makes what is sent to. The way through `advertised` must be open.
    pub(crate) async fn prepare(&self) -> anyhow::Result<()> {
        // There, publishers declare what they need by themselves.
        if self.destination == Destination::Rabbitmq {
            return Ok(());
        }
        let made = self.client("prepare").stderr(Stdio::inherit()).status().await?;
        ensure!(made.success(), "{} cannot be prepared; see above", self.destination.name());
        Ok(())
    }

    /// Where it listens, the same all its life.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends it a signal. Says whether it was there to receive it.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let pid = std::fs::read_to_string(self.directory.path().join("pid")).ok();
        let pid = pid.and_then(|pid| pid.trim().parse().ok()).and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Kills it as no process can prevent. Says whether it was there.
    pub(crate) async fn kill(&self) -> anyhow::Result<bool> {
        let hit = self.signal(Signal::KILL);
        // What is left of it, such as what tells RabbitMQ's ports.
        let stopped = Command::new(&self.script).arg("stop").arg(self.directory.path()).status().await?;
        ensure!(stopped.success(), "{} cannot be stopped", self.destination.name());
        Ok(hit)
    }

    /// Whether it has fallen by itself: tansu 0.6 panics when a producer goes on with the next epoch of its id, as librdkafka's
    /// do after a timeout, and takes nothing any more.
    pub(crate) fn has_fallen(&self) -> bool {
        self.panics() > self.panics.load(Ordering::Relaxed)
    }

    fn panics(&self) -> usize {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).matches(" panicked at ").count()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join(if self.destination == Destination::Rabbitmq { "output" } else { "log" })
    }

    /// Starts it with what it had, where it was.
    pub(crate) async fn start_again(&self) -> anyhow::Result<()> {
        self.panics.store(self.panics(), Ordering::Relaxed);
        for left in (0..STARTS).rev() {
            match self.launch().await {
                Ok((addr, _)) if addr == self.addr => break,
                Ok((addr, _)) => bail!("{} came back at {addr} instead of {}", self.destination.name(), self.addr),
                Err(error) if left == 0 => return Err(error),
                Err(_) => sleep(Duration::from_secs(1)).await,
            }
        }
        Ok(())
    }

    /// Writes down everything that it has.
    pub(crate) async fn read(&self, recorder: &Recorder) -> anyhow::Result<()> {
        let mut client =
            self.client("read").stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true).spawn()?;
        let output = client.stdout.take().context("the output of the reader")?;
        let mut lines = BufReader::new(output).lines();
        while let Some(line) = lines.next_line().await? {
            let seen: Seen = serde_json::from_str(&line).context("a line of the reader")?;
            recorder.record(What::Received(seen.into()));
        }
        let ended = client.wait().await?;
        ensure!(ended.success(), "not all that {} has could be read", self.destination.name());
        Ok(())
    }

    async fn launch(&self) -> anyhow::Result<(SocketAddr, PathBuf)> {
        let name = self.destination.name();
        let mut command = Command::new(&self.script);
        command.arg("start").arg(self.directory.path());
        // Its clients are told where to go.
        if self.destination == Destination::Kafka {
            command.arg("--advertise").arg(self.advertised.to_string());
        }
        let started = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().await?;
        ensure!(started.status.success(), "{} does not start; see above", self.script.display());
        let printed = String::from_utf8_lossy(&started.stdout).into_owned();
        let variable = |suffix: &str| {
            let start = format!("export POSTHASTE_TEST_{}_{suffix}=", name.to_uppercase());
            // As the shell would read it.
            printed.lines().find_map(|line| line.strip_prefix(&start)).map(|value| value.replace('\\', ""))
        };
        let url = variable("URL").with_context(|| format!("where is {name}? {printed}"))?;
        let python = variable("PYTHON").with_context(|| format!("who reads {name}? {printed}"))?;
        let port = url.split_once("127.0.0.1:").map(|(_, rest)| rest);
        let port = port.and_then(|rest| rest.split(|sign: char| !sign.is_ascii_digit()).next()?.parse().ok());
        let port: u16 = port.with_context(|| format!("{url} has no port of 127.0.0.1"))?;
        Ok(((Ipv4Addr::LOCALHOST, port).into(), python.into()))
    }

    /// The client that is not ours.
    fn client(&self, command: &str) -> Command {
        let program = match self.destination {
            Destination::Kafka => include_str!("broker/kafka.py"),
            Destination::Nats => include_str!("broker/nats.py"),
            Destination::Rabbitmq | Destination::Sink => include_str!("broker/rabbitmq.py"),
        };
        let mut client = Command::new(&self.python);
        client.args(["-c", program, command]).arg(self.addr.to_string()).stdin(Stdio::null());
        client
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // There is none if it never started.
        let _ = std::fs::copy(self.log_path(), &self.log);
    }
}

/// Stops the broker when this process ends, however it does.
struct Keeper(Child);

impl Keeper {
    fn start(script: &Path, directory: &Path) -> anyhow::Result<Self> {
        // Nobody writes to its standard input, which is closed when the other end is.
        const WAIT_AND_STOP: &str =
            r#"cat >/dev/null; kill -CONT "$(cat "$1/pid")" 2>/dev/null; exec "$0" stop "$1" 2>/dev/null"#;
        let mut keeper = std::process::Command::new("/bin/sh");
        keeper.args(["-c", WAIT_AND_STOP]).arg(script).arg(directory);
        // A Ctrl-C is for this process only.
        keeper.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(Self(keeper.spawn().context("a shell that waits for the end")?))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Whether it could be stopped it has said by itself.
        let _ = self.0.wait();
    }
}

/// A message, as the reader prints it.
#[derive(Deserialize)]
struct Seen {
    /// Where the protocol has one.
    #[serde(default)]
    key: Option<String>,
    headers: HashMap<String, String>,
    body: String,
}

impl From<Seen> for Message {
    /// What is missing is empty, which is no event that anybody wrote.
    fn from(seen: Seen) -> Self {
        let header = |name: &str| seen.headers.get(name).cloned().unwrap_or_default();
        Self {
            id: header("event-id"),
            event_type: header("event-type"),
            key: seen.key.clone().unwrap_or_else(|| header("aggregate-id")),
            number: header("number").parse().unwrap_or(0),
            hash: hash(seen.body.as_bytes()),
            poison: seen.headers.contains_key("poison"),
        }
    }
}

/// The script of a broker: that of the directory we are in, or of the repository in which this was built.
fn script(destination: Destination) -> anyhow::Result<PathBuf> {
    let name = destination.name();
    let places =
        [Path::new("scripts/brokers"), Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/brokers"))];
    let script = places.into_iter().map(|place| place.join(name)).find(|script| script.is_file());
    let script = script.with_context(|| format!("scripts/brokers/{name} is not here; run this in the repository"))?;
    Ok(script.canonicalize()?)
}
