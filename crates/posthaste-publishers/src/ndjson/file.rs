//! A file at whose end lines are written, in turn with other processes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::lines::Lines;
use super::sink::{Written, append};

/// How often it is looked whether a lock is free.
const LOOK: Duration = Duration::from_millis(1);

/// A file at whose end lines are written.
pub(super) struct Appended {
    path: PathBuf,
    file: File,
    /// Whether it can be cut and synced, which pipes and devices cannot.
    regular: bool,
    sync: bool,
    /// The last line was not written whole, as far as is known without reading it.
    torn: bool,
}

impl Appended {
    pub(super) fn open(path: PathBuf, sync: bool) -> io::Result<Self> {
        let (file, regular) = open(&path)?;
        if sync && regular {
            sync_directory_of(&path)?;
        }
        Ok(Self { path, file, regular, sync, torn: false })
    }

    /// Opens it again if its name is no longer its own.
    pub(super) fn follow(&mut self) -> io::Result<()> {
        if self.regular && !is_at(&self.file, &self.path) {
            *self = Self::open(self.path.clone(), self.sync)?;
        }
        Ok(())
    }

    pub(super) fn append(&mut self, lines: &Lines, until: Instant) -> Written {
        match self.follow() {
            Ok(()) if self.regular => self.append_in_turn(lines, until).unwrap_or_else(Written::from),
            Ok(()) => append(&mut self.file, &mut self.torn, lines),
            Err(error) => error.into(),
        }
    }

    fn append_in_turn(&mut self, lines: &Lines, until: Instant) -> io::Result<Written> {
        let _turn = Turn::take(&self.file, until)?;
        let start = self.file.metadata()?.len();
        let was_torn = self.ends_torn(start);
        self.torn = was_torn;
        let written = append(&mut &self.file, &mut self.torn, lines);
        // What somebody else wrote behind it, out of turn, is not cut off.
        if self.torn && self.file.metadata()?.len() == start + written.bytes as u64 {
            self.file.set_len(start + written.whole as u64)?;
            self.torn = was_torn && written.whole == 0;
        }
        if self.sync && written.lines > 0 {
            self.file.sync_data()?;
        }
        Ok(written)
    }

    /// Whether its last line has no end, because whoever wrote it was stopped.
    fn ends_torn(&self, len: u64) -> bool {
        let mut last = [0];
        let mut file = &self.file;
        if len == 0 {
            return false;
        }
        match file.seek(SeekFrom::End(-1)).and_then(|_| file.read_exact(&mut last)) {
            Ok(()) => last != *b"\n",
            // It may be written and not read.
            Err(_) => self.torn,
        }
    }
}

/// The right to write to a file, among those who ask for it.
struct Turn<'a>(&'a File);

impl<'a> Turn<'a> {
    fn take(file: &'a File, until: Instant) -> io::Result<Self> {
        loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "another process holds the lock of the file"));
                }
                Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self(file)),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Opens a file for lines at its end, and says whether it is one, and not a pipe or a device.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let regular = std::fs::metadata(path).map_or(true, |found| found.is_file());
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // Its last byte is read. A pipe must not be: who reads it would not notice that everybody else is gone.
    let opened = match options.read(regular).open(path) {
        Err(error) if regular && error.kind() == io::ErrorKind::PermissionDenied => options.read(false).open(path),
        opened => opened,
    };
    Ok((opened?, regular))
}

/// A new file is on disk when its name is, too.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(directory)?.sync_all() } else { Ok(()) }
}

/// Whether a file is still the one of that name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().is_ok_and(|open| std::fs::metadata(path).is_ok_and(|named| identity(named) == identity(open)))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::super::LONGEST;
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_remembered_to_be_torn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lines");
        std::fs::write(&path, "{\"torn").unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut appended = Appended { path: path.clone(), file, regular: true, sync: true, torn: true };
        let until = Instant::now() + LONGEST;
        assert_eq!(appended.append(&Lines::of(&[b"{}".to_vec()]), until).lines, 1);
        assert_eq!(appended.append(&Lines::of(&[b"{}".to_vec()]), until).lines, 1);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "{\"torn\n{}\n{}\n");
    }
}
