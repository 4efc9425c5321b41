//! A relay that was started.

use std::fs::File;
use std::io::PipeReader;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What the file with the lines is called.
pub(super) const LINES: &str = "lines.ndjson";

/// What it says when it begins, and when everything is closed.
const DELIVERING: &str = "delivering";
const ENDED: &str = "ended, with everything in hand delivered";

/// How long a relay may take to begin, or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long anything else may take.
const LONGEST: Duration = Duration::from_secs(600);

/// How a relay is started. Everything else is as by default, so it can also be asked for its metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) to: To,
    /// Whether it drains and ends.
    pub(super) once: bool,
    pub(super) wake_ups: bool,
    pub(super) poll_interval: Option<Duration>,
}

impl Default for How {
    fn default() -> Self {
        Self { to: To::File, once: false, wake_ups: true, poll_interval: None }
    }
}

/// Where its lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// A destination that is a file.
    File,
    /// Standard output, which is a file.
    Stdout,
    /// Standard output, which is a pipe.
    Pipe,
}

impl How {
    fn settings(self) -> String {
        let destination = match self.to {
            To::File => format!("type = \"file\"\npath = \"{LINES}\""),
            To::Stdout | To::Pipe => "type = \"stdout\"".to_owned(),
        };
        let interval = self.poll_interval.map(|interval| format!("poll_interval = \"{}ms\"", interval.as_millis()));
        format!(
            "[database]\nwake_ups = {}\n\n[relay]\n{}\n\n[http]\nlisten = \"127.0.0.1:0\"\n\n\
             [destination.lines]\n{destination}\n\n[[route]]\nname = \"everything\"\nto = \"lines\"\n",
            self.wake_ups,
            interval.unwrap_or_default()
        )
    }
}

/// A relay in a directory of its own. It is killed if it is dropped before it has ended.
pub(super) struct Relay {
    child: Child,
    directory: TempDir,
    /// Where its lines come from if they go to a pipe.
    pipe: Option<PipeReader>,
    said: Arc<Mutex<String>>,
    delivers: Option<oneshot::Receiver<Instant>>,
    /// When it said that it has ended.
    ended: Option<oneshot::Receiver<Instant>>,
    hearing: JoinHandle<()>,
}

/// Where to read lines.
pub(super) enum Output {
    File(PathBuf),
    Pipe(PipeReader),
}

impl Relay {
    pub(super) fn start(program: &Path, url: &str, how: How) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("posthaste.toml"), how.settings())?;
        let mut command = Command::new(program);
        command.arg("relay").args(how.once.then_some("--once")).current_dir(directory.path()).env_remove("RUST_LOG");
        // What is set for other purposes is none of its settings.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("POSTHASTE_") {
                command.env_remove(name);
            }
        }
        command.env("POSTHASTE_DATABASE_URL", url);
        let mut pipe = None;
        let stdout = match how.to {
            To::File => Stdio::null(),
            To::Stdout => File::create(directory.path().join(LINES))?.into(),
            To::Pipe => {
                let (reader, writer) = std::io::pipe()?;
                pipe = Some(reader);
                writer.into()
            }
        };
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("{} cannot be started", program.display()))?;
        let errors = child.stderr.take().context("a relay without standard error")?;
        let said = Arc::new(Mutex::new(String::new()));
        let ((delivering, delivers), (ending, ended)) = (oneshot::channel(), oneshot::channel());
        let heard = Arc::clone(&said);
        let hearing = tokio::spawn(async move {
            let (mut lines, mut delivering, mut ending) =
                (BufReader::new(errors).lines(), Some(delivering), Some(ending));
            while let Ok(Some(line)) = lines.next_line().await {
                let now = Instant::now();
                if line.contains(DELIVERING) {
                    let _ = delivering.take().map(|delivering| delivering.send(now));
                }
                if line.contains(ENDED) {
                    let _ = ending.take().map(|ending| ending.send(now));
                }
                *heard.lock().unwrap_or_else(PoisonError::into_inner) += &(line + "\n");
            }
        });
        let (delivers, ended) = (Some(delivers), Some(ended));
        Ok(Self { child, directory, pipe, said, delivers, ended, hearing })
    }

    /// Where its lines are, unless they go to a pipe.
    pub(super) fn lines(&self) -> PathBuf {
        self.directory.path().join(LINES)
    }

    /// Where its lines can be read, once.
    pub(super) fn output(&mut self) -> anyhow::Result<Output> {
        Ok(self.pipe.take().map_or_else(|| Output::File(self.lines()), Output::Pipe))
    }

    /// Waits until it has said that it delivers. Gives when that was.
    pub(super) async fn delivering(&mut self) -> anyhow::Result<Instant> {
        let delivers = self.delivers.take().context("it is asked once")?;
        match tokio::time::timeout(PATIENCE, delivers).await {
            Ok(Ok(delivering_at)) => Ok(delivering_at),
            _ => bail!("the relay does not deliver: {}", self.said()),
        }
    }

    /// Waits for something that only happens while it is there, and for no longer than anybody would.
    pub(super) async fn unless_it_ends<T>(
        &mut self,
        what: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            result = tokio::time::timeout(LONGEST, what) => match result {
                Ok(result) => result,
                Err(_) => bail!("the relay takes too long: {}", self.said()),
            },
            status = self.child.wait() => bail!("the relay has ended ({}): {}", status?, self.said()),
        }
    }

    /// The most memory that it has had so far, in MiB.
    pub(super) fn most_memory(&self) -> anyhow::Result<f64> {
        let pid = self.child.id().context("the relay has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Ok(most.context("/proc has another form here")?.trim().parse::<f64>()? / 1024.0)
    }

    /// Ends it in order. Gives when it said that it has ended.
    pub(super) async fn end(&mut self) -> anyhow::Result<Instant> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        kill_process(pid.context("the relay has ended by itself")?, Signal::TERM)?;
        let ended_at = tokio::time::timeout(PATIENCE, self.ended()).await;
        ended_at.map_err(|_| anyhow::anyhow!("the relay does not end: {}", self.said()))?
    }

    /// Waits until it has ended by itself. Gives when it said so: everything is settled then.
    pub(super) async fn ended(&mut self) -> anyhow::Result<Instant> {
        let status = tokio::time::timeout(LONGEST, self.child.wait()).await.context("the relay does not end")??;
        ensure!(status.success(), "the relay ended with {status}: {}", self.said());
        let ended = self.ended.take().context("it ends once")?;
        match tokio::time::timeout(PATIENCE, ended).await {
            Ok(Ok(ended_at)) => Ok(ended_at),
            _ => bail!("the relay has not said that it has ended: {}", self.said()),
        }
    }

    fn said(&self) -> String {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.hearing.abort();
    }
}
