//! Temporary directories, with or without a disk of their own.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::process::geteuid;

const PREFIX: &str = "posthaste-torture.";
const OWNER: &str = "owner";
const DISK: &str = "disk";

/// A temporary directory, deleted when this is dropped. On a small disk of its own, if asked for and permitted.
pub struct Directory {
    home: PathBuf,
    disk: Disk,
    // Locked as long as this lives, so that nobody takes the directory for one that was left behind.
    _owner: File,
}

enum Disk {
    Own,
    Shared { why: String },
}

impl Directory {
    /// Creates one, with a disk of that many bytes if given. The disk is in memory (a tmpfs), for which one has to be
    /// root; where it cannot be had, the directory is an ordinary one and [`can_fill`](Self::can_fill) says why.
    ///
    /// Directories that a killed process left behind are deleted first.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn new(disk: Option<u64>) -> anyhow::Result<Self> {
        let temporary = std::env::temp_dir().canonicalize()?;
        sweep(&temporary);
        let home = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&temporary)?;
        // Servers with users of their own have to pass through.
        fs::set_permissions(&home, Permissions::from_mode(0o711))?;
        fs::create_dir(home.path().join(DISK))?;
        let owner = own(home.path())?;
        let disk = match disk {
            Some(bytes) => mount(&home.path().join(DISK), bytes),
            None => Disk::Shared { why: "no disk of its own was asked for".to_owned() },
        };
        Ok(Self { home: home.keep(), disk, _owner: owner })
    }

    /// Where files go that are to be on the disk.
    pub fn path(&self) -> PathBuf {
        self.home.join(DISK)
    }

    /// Whether [`fill`](Self::fill) is possible.
    ///
    /// # Errors
    /// Why it is not.
    pub fn can_fill(&self) -> anyhow::Result<()> {
        match &self.disk {
            Disk::Own => Ok(()),
            Disk::Shared { why } => Err(anyhow!("{why}")),
        }
    }

    /// Takes what is left of the disk with a file.
    ///
    /// # Errors
    /// When there is no disk of its own.
    pub async fn fill(&self) -> anyhow::Result<()> {
        self.can_fill()?;
        let ballast = self.ballast();
        tokio::task::spawn_blocking(move || fill(&ballast)).await?.context("the disk cannot be filled")
    }

    /// Gives back what [`fill`](Self::fill) took.
    ///
    /// # Errors
    /// When the file cannot be deleted.
    pub fn free(&self) -> anyhow::Result<()> {
        match fs::remove_file(self.ballast()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Deletes it.
    ///
    /// # Errors
    /// When something is left behind.
    pub fn close(mut self) -> anyhow::Result<()> {
        self.delete()
    }

    /// Where the server's data goes.
    pub(super) fn data(&self) -> PathBuf {
        self.path().join("data")
    }

    /// A place that is not on the disk, and works when it is full.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    fn delete(&mut self) -> anyhow::Result<()> {
        if matches!(self.disk, Disk::Own) {
            unmount(&self.path())?;
            self.disk = Disk::Shared { why: "it is deleted".to_owned() };
        }
        remove(&self.home).with_context(|| format!("{} cannot be deleted", self.home.display()))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = self.delete() {
            tracing::warn!(error = format!("{error:#}"), "a temporary directory is left behind");
        }
    }
}

/// Locks the directory, and only then gives it the name by which [`sweep`] knows it.
fn own(home: &Path) -> anyhow::Result<File> {
    let unnamed = home.join("owner.new");
    let owner = File::create(&unnamed)?;
    owner.lock()?;
    fs::rename(&unnamed, home.join(OWNER))?;
    Ok(owner)
}

/// Deletes what killed processes left behind: the kernel has unlocked it.
fn sweep(temporary: &Path) {
    let Ok(entries) = fs::read_dir(temporary) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let home = entry.path();
        let Ok(owner) = File::open(home.join(OWNER)) else { continue };
        if owner.try_lock().is_ok() {
            if is_mounted(&home.join(DISK)) {
                let _ = unmount(&home.join(DISK));
            }
            let _ = remove(&home);
        }
    }
}

fn mount(at: &Path, bytes: u64) -> Disk {
    if !geteuid().is_root() {
        return Disk::Shared { why: "a disk of its own can only be mounted by root".to_owned() };
    }
    let options = format!("size={bytes},mode=0711");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output();
    match mount {
        Ok(output) if output.status.success() => Disk::Own,
        Ok(output) => Disk::Shared { why: String::from_utf8_lossy(&output.stderr).trim().to_owned() },
        Err(error) => Disk::Shared { why: format!("mount: {error}") },
    }
}

/// Lazily if it is busy: it then goes away with the last file that is open.
fn unmount(at: &Path) -> anyhow::Result<()> {
    let mut complaint = String::new();
    for options in [&[][..], &["--lazy"]] {
        let output = Command::new("umount").args(options).arg(at).output()?;
        if output.status.success() {
            return Ok(());
        }
        complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    }
    bail!("{complaint}")
}

/// A mount point is on another device than the directory above it.
fn is_mounted(at: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    at.parent().is_some_and(|above| device(at) != device(above))
}

fn remove(home: &Path) -> io::Result<()> {
    const TRIES: u32 = 20;
    let mut last = Ok(());
    for _ in 0..TRIES {
        last = match fs::remove_dir_all(home) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => return Ok(()),
        };
        // Children of a server that was killed may still write.
        thread::sleep(Duration::from_millis(50));
    }
    last
}

fn fill(ballast: &Path) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut file = File::options().create(true).append(true).open(ballast)?;
    loop {
        match file.write_all(&zeros) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
