//! A process of the run, as the one who started it sees it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use crate::config::Config;
use crate::history::{Recorder, What};

/// How long a process may take to end: the deadline of a shutdown, and all that a slow machine may add.
const LONGEST_END: Duration = Duration::from_secs(30);

/// A process that can be started, hurt, and started again.
pub(crate) struct Member {
    pub(crate) config: Config,
    program: Vec<OsString>,
    recorder: Arc<Recorder>,
    child: Option<Child>,
    /// The process ends when this is closed. Kept out of the child, which closes what it has when it is waited for.
    life_line: Option<ChildStdin>,
    /// Whether somebody wants it to end.
    wanted: bool,
}

impl Member {
    /// A process that `program` followed by its configuration starts.
    pub(crate) fn new(config: Config, program: &[OsString], recorder: Recorder) -> Self {
        Self {
            config,
            program: program.to_vec(),
            recorder: Arc::new(recorder),
            child: None,
            life_line: None,
            wanted: false,
        }
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.start_with(&[])
    }

    /// Starts it with additional variables in its environment, unless it runs.
    pub(crate) fn start_with(&mut self, environment: &[(&str, OsString)]) -> anyhow::Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        // What it complains of, for whoever has to find out why.
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = with_the_run();
        let mut child = command
            .args(&self.program)
            .arg(serde_json::to_string(&self.config)?)
            // What it complains of is worth reading.
            .env("RUST_LOG", std::env::var_os("RUST_LOG").unwrap_or_else(|| "warn".into()))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", self.config.name))?;
        self.config.life += 1;
        self.life_line = child.stdin.take();
        // Who gives it reasons to end means it.
        self.wanted = !environment.is_empty();
        self.recorder.record(What::Started { pid: child.id().unwrap_or(0) });
        self.child = Some(child);
        Ok(())
    }

    /// Sends it a signal. Says whether it was there to receive it.
    pub(crate) fn signal(&mut self, signal: Signal) -> bool {
        // One that is dead already died by itself.
        if !self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            return false;
        }
        self.wanted |= [Signal::TERM, Signal::KILL].contains(&signal);
        let pid = self.child.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok());
        pid.and_then(Pid::from_raw).is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Kills it as no process can prevent. Says whether it was there.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<bool> {
        let hit = self.signal(Signal::KILL);
        self.wait(Duration::from_secs(10)).await?;
        Ok(hit)
    }

    /// Asks it to end, and waits for it.
    pub(crate) async fn end(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM);
        self.wait_for_end().await.map(drop)
    }

    /// Waits for it to end, having been asked to.
    pub(crate) async fn wait_for_end(&mut self) -> anyhow::Result<Option<Exit>> {
        let exit = self.wait(LONGEST_END).await?;
        if exit.is_none() {
            self.recorder.record(What::DidNotEnd);
            self.kill().await?;
        }
        Ok(exit)
    }

    /// Notes that it delivered nothing, although it could.
    pub(crate) fn was_silent(&self) {
        self.recorder.record(What::Silent);
    }

    /// What it has said on its standard error so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.config.directory.join(format!("{}.log", self.config.name))
    }

    /// Waits until it has ended, and says how. Nothing if it is still there after that long.
    pub(crate) async fn wait(&mut self, patience: Duration) -> anyhow::Result<Option<Exit>> {
        let Some(child) = &mut self.child else { return Ok(Some(Exit::default())) };
        let Ok(status) = timeout(patience, child.wait()).await else { return Ok(None) };
        let status = status?;
        self.child = None;
        let exit = Exit { status: status.code(), signal: status.signal() };
        self.recorder.record(What::Exited { status: exit.status, signal: exit.signal, wanted: self.wanted });
        Ok(Some(exit))
    }

    /// Starts it again if it has ended without anybody's doing.
    pub(crate) async fn revive(&mut self) -> anyhow::Result<()> {
        if self.child.is_some() && self.wait(Duration::ZERO).await?.is_some() {
            self.start()?;
        }
        Ok(())
    }

    /// Waits until it accepts connections.
    pub(crate) async fn wait_for_port(&self) -> anyhow::Result<()> {
        for _ in 0..200 {
            if tokio::net::TcpStream::connect(self.config.destination_at).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("{} does not listen at {}", self.config.name, self.config.destination_at)
    }
}

/// Starts a program so that it is killed when this process is, also while it is stopped, if the system can.
fn with_the_run() -> Command {
    let setpriv = Path::new("/usr/bin/setpriv");
    if setpriv.exists() {
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "KILL", "--"]);
        return command;
    }
    Command::new("/usr/bin/env")
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exit {
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
}
