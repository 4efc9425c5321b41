//! One process that does not outlive this one.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::{oneshot, watch};

use super::find_program;

/// What is to be started.
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) account: Option<Account>,
    pub(super) parting: Parting,
}

/// Another user to run as.
#[derive(Clone, Copy)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The signal that ends it when it is not wanted any more.
#[derive(Clone, Copy)]
pub(super) enum Parting {
    Quit,
    Kill,
}

/// A process, which is ended and waited for when this is dropped.
pub(super) struct Process {
    pid: u32,
    // Unlike a process id, it never means another process.
    handle: OwnedFd,
    parting: Parting,
    ended: watch::Receiver<Option<ExitStatus>>,
    keeper: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts it with its output in the log.
    ///
    /// The kernel sends the parting signal when the *thread* that started it ends, so that thread stays until the
    /// process has ended. A worker of the runtime would not do: it may come and go.
    pub(super) async fn spawn(launch: Launch, log: File) -> anyhow::Result<Self> {
        let mut command = launch.command(log)?;
        let parting = launch.parting;
        let (started_tx, started) = oneshot::channel();
        let (ended_tx, ended) = watch::channel(None);
        let keeper = thread::Builder::new().name("keeper".to_owned()).spawn(move || {
            let child = command.spawn().map_err(anyhow::Error::from).and_then(with_handle);
            let (mut child, handle) = match child {
                Ok(started) => started,
                Err(error) => return drop(started_tx.send(Err(error))),
            };
            if started_tx.send(Ok((child.id(), handle))).is_err() {
                // Nobody waits for it any more.
                let _ = child.kill();
            }
            let _ = ended_tx.send(child.wait().ok());
        })?;
        let (pid, handle) =
            started.await?.with_context(|| format!("{} cannot be started", launch.program.display()))?;
        Ok(Self { pid, handle, parting, ended, keeper: Some(keeper) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Nothing happens if it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some() || self.ended.has_changed().is_err()
    }

    pub(super) async fn ended(&mut self) {
        let _ = self.ended.wait_for(Option::is_some).await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        const LIMIT: Duration = Duration::from_secs(5);
        const PAUSE: Duration = Duration::from_millis(2);
        let Some(keeper) = self.keeper.take() else { return };
        self.signal(self.parting.signal());
        // Only a running process can quit, and this one may have been stopped.
        self.signal(Signal::CONT);
        let began_at = Instant::now();
        while !keeper.is_finished() && began_at.elapsed() < LIMIT {
            thread::sleep(PAUSE);
        }
        self.signal(Signal::KILL);
        let _ = keeper.join();
    }
}

impl Launch {
    fn command(&self, log: File) -> anyhow::Result<Command> {
        let mut command = match find_program("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", self.parting.name(), "--"]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.args(&self.arguments);
        // The directory of the caller may be closed to the other user; a Ctrl-C is for the caller only.
        command.current_dir("/").process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(Account { uid, gid }) = self.account {
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }
}

impl Parting {
    fn name(self) -> &'static str {
        match self {
            Self::Quit => "QUIT",
            Self::Kill => "KILL",
        }
    }

    fn signal(self) -> Signal {
        match self {
            Self::Quit => Signal::QUIT,
            Self::Kill => Signal::KILL,
        }
    }
}

fn with_handle(mut child: Child) -> anyhow::Result<(Child, OwnedFd)> {
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(handle) => Ok((child, handle)),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error.into())
        }
    }
}
