//! Rows that another process inserts, and lines that arrive.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Deserialize;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use super::process::Output;
use crate::subject::payload;
use crate::workload::latency::steady;

/// How often a file is looked at for lines whose moment does not matter much.
const LOOK: Duration = Duration::from_millis(1);

/// How many bytes are read at a time.
const CHUNK: usize = 256 * 1024;

/// How much of the lines are waited for by the length of the file alone: to read them takes time of the processors from what is measured.
const UNREAD: f64 = 0.9;

/// Waits until a file has that many lines.
pub(super) async fn wait_for_lines(path: PathBuf, wanted: usize) -> anyhow::Result<()> {
    // Held for as long as this is waited for.
    let waiting = Arc::new(());
    let waited_for = Arc::downgrade(&waiting);
    let count = move || -> io::Result<()> {
        let is_waited_for = || waited_for.strong_count() > 0;
        let (mut file, mut lines) = (opened(&path, &waited_for)?, 0);
        let (mut chunk, mut begun) = (vec![0; CHUNK], 0);
        // The first lines tell how long all of them will be, within a few digits of a number.
        while begun < chunk.len() && ends(&chunk[..begun]) < wanted && is_waited_for() {
            match file.read(&mut chunk[begun..])? {
                0 => thread::sleep(LOOK),
                read => begun += read,
            }
        }
        lines += ends(&chunk[..begun]);
        let most = unread(begun, lines, wanted);
        while file.metadata()?.len() < most && is_waited_for() {
            thread::sleep(LOOK);
        }
        while lines < wanted && is_waited_for() {
            match file.read(&mut chunk)? {
                0 => thread::sleep(LOOK),
                read => lines += ends(&chunk[..read]),
            }
        }
        Ok(())
    };
    let counted = tokio::task::spawn_blocking(count).await;
    drop(waiting);
    Ok(counted??)
}

/// How long a file is that has most of the lines, if the first of them have that many bytes.
fn unread(bytes: usize, lines: usize, wanted: usize) -> u64 {
    let all = bytes as f64 / lines.max(1) as f64 * wanted as f64;
    (all * UNREAD) as u64
}

/// How many lines a file has.
pub(super) fn count(path: &Path) -> io::Result<usize> {
    Ok(ends(&std::fs::read(path)?))
}

fn ends(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}

/// Reads lines, on a thread that does nothing else, until there is one of each of that many events. Gives when each came.
pub(super) fn hear(from: Output, events: usize) -> impl Future<Output = anyhow::Result<Vec<Instant>>> {
    let waiting = Arc::new(());
    let waited_for = Arc::downgrade(&waiting);
    let heard = tokio::task::spawn_blocking(move || match from {
        Output::File(path) => {
            let file = opened(&path, &waited_for)?;
            let mut watch = Watch::new(&path)?;
            hear_from(file, || Ok(watch.wait()?), events, &waited_for)
        }
        Output::Pipe(pipe) => hear_from(pipe, || anyhow::bail!("the relay has closed its output"), events, &waited_for),
    });
    async move {
        let heard = heard.await;
        drop(waiting);
        heard?
    }
}

/// What is asked of a line.
#[derive(Deserialize)]
struct Line {
    key: String,
}

/// Reads until there is a line of each. A file that has no more is waited for; a pipe that has no more has ended.
fn hear_from(
    mut from: impl Read,
    mut more: impl FnMut() -> anyhow::Result<()>,
    events: usize,
    waited_for: &Weak<()>,
) -> anyhow::Result<Vec<Instant>> {
    let (mut heard, mut missing) = (vec![None; events], events);
    let (mut chunk, mut begun) = (vec![0; CHUNK], Vec::new());
    while missing > 0 && waited_for.strong_count() > 0 {
        let read = from.read(&mut chunk)?;
        let now = Instant::now();
        if read == 0 {
            more()?;
            continue;
        }
        begun.extend_from_slice(&chunk[..read]);
        let whole = begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in begun[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let number: usize = serde_json::from_slice::<Line>(line)?.key.parse()?;
            let first = heard.get_mut(number).context("a line of an event that was not written")?;
            missing -= usize::from(first.is_none());
            first.get_or_insert(now);
        }
        begun.drain(..whole);
    }
    heard.into_iter().map(|at| at.context("not every line has come")).collect()
}

/// Inserts rows at a steady rate, as a program without this library does. Gives when it knew that each was committed.
pub(super) async fn insert(url: &str, rate: u64, events: usize, notice: bool) -> anyhow::Result<Vec<Instant>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut ticks = steady(rate)?;
    let insert = async move {
        let payload = payload(200);
        let mut committed = Vec::with_capacity(events);
        for number in 0..events {
            ticks.tick().await;
            sqlx::query(
                "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id, payload)
                 VALUES ($1, 'Tick', 'Clock', $2, $3)",
            )
            .bind(format!("row-{number}"))
            .bind(number.to_string())
            .bind(&payload)
            .execute(&mut connection)
            .await?;
            committed.push(Instant::now());
            if notice {
                sqlx::query("NOTIFY posthaste_outbox_event").execute(&mut connection).await?;
            }
        }
        connection.close().await?;
        anyhow::Ok(committed)
    };
    tokio::spawn(insert).await?
}

/// Opens a file as soon as it is there.
fn opened(path: &Path, waited_for: &Weak<()>) -> io::Result<File> {
    loop {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && waited_for.strong_count() > 0 => {
                thread::sleep(LOOK);
            }
            opened => return opened,
        }
    }
}

/// Says when a file has changed. A thread that looked again and again would take a part of the processors from what is measured.
#[cfg(target_os = "linux")]
struct Watch(File);

#[cfg(target_os = "linux")]
impl Watch {
    fn new(path: &Path) -> io::Result<Self> {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let watch = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        add_watch(&watch, path, WatchFlags::MODIFY)?;
        Ok(Self(watch.into()))
    }

    /// Waits for a change since the last time, or for long enough to ask whether it is still of interest.
    fn wait(&mut self) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        const LONGEST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&LONGEST))? > 0 {
            let mut changes = [0; 4096];
            let _ = self.0.read(&mut changes)?;
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
struct Watch;

#[cfg(not(target_os = "linux"))]
impl Watch {
    fn new(_: &Path) -> io::Result<Self> {
        Ok(Self)
    }

    fn wait(&mut self) -> io::Result<()> {
        thread::sleep(Duration::from_micros(20));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn lines_are_waited_for_until_the_last_is_there() {
        // More than are read at the beginning, and the last ones shorter than the first.
        const LINES: usize = 5_000;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        let waiting = tokio::spawn(wait_for_lines(path.clone(), LINES));
        let mut file = File::create(&path).unwrap();
        let long = "x".repeat(200);
        for _ in 0..LINES - 1000 {
            writeln!(file, "{long}").unwrap();
        }
        for number in 0..999 {
            writeln!(file, "{number}{}", &long[..150]).unwrap();
        }
        file.flush().unwrap();
        assert!(!waiting.is_finished());
        writeln!(file, "last").unwrap();
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().unwrap();
    }
}
