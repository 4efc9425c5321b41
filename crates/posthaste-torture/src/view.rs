//! What is happening, once a second.

use std::collections::HashMap;
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Counts what the processes write down, as they write it.
pub(crate) struct View {
    directory: PathBuf,
    began: Instant,
    read: HashMap<PathBuf, u64>,
    written: u64,
    unknown: u64,
    received: u64,
}

impl View {
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            began: Instant::now(),
            read: HashMap::new(),
            written: 0,
            unknown: 0,
            received: 0,
        }
    }

    /// Prints a line; on a terminal always the same one.
    pub(crate) fn show(&mut self, broken: &[String]) {
        // A file that cannot be read now is read next time.
        let _ = self.count();
        let broken = if broken.is_empty() { "nothing".to_owned() } else { broken.join(", ") };
        let lag = self.written.saturating_sub(self.received);
        let line = format!(
            "{:4} s  written {}  unknown {}  received {}  lag {lag}  broken: {broken}",
            self.began.elapsed().as_secs(),
            self.written,
            self.unknown,
            self.received
        );
        if std::io::stdout().is_terminal() {
            let line = console::truncate_str(&line, usize::from(console::Term::stdout().size().1), "…");
            let mut out = std::io::stdout();
            let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
        } else {
            say!("{line}");
        }
    }

    fn count(&mut self) -> std::io::Result<()> {
        for file in std::fs::read_dir(&self.directory)? {
            let path = file?.path();
            let from = self.read.entry(path.clone()).or_default();
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(*from))?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            // A line that is only half there is counted next time.
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            *from += whole as u64;
            for line in String::from_utf8_lossy(&text[..whole]).lines() {
                let counter = match () {
                    () if line.contains("\"what\":\"acked\"") => &mut self.written,
                    () if line.contains("\"what\":\"unknown\"") => &mut self.unknown,
                    () if line.contains("\"what\":\"received\"") || line.contains("\"what\":\"taken\"") => {
                        &mut self.received
                    }
                    () => continue,
                };
                *counter += 1;
            }
        }
        Ok(())
    }
}

impl Drop for View {
    /// Leaves the line that was written again and again.
    fn drop(&mut self) {
        if std::io::stdout().is_terminal() {
            say!("");
        }
    }
}
