//! Where lines go, and when they count as written.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where lines go, and when they count as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NdjsonOptions {
    pub(super) name: Option<String>,
    pub(super) path: Option<PathBuf>,
    pub(super) sync: bool,
}

impl NdjsonOptions {
    /// Lines on standard output.
    pub fn stdout() -> Self {
        Self::default()
    }

    /// Lines at the end of a file, which is made if it is not there.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(path.into()), ..Self::default() }
    }

    /// Sets what it is called in logs and metrics. Default: the path, or `stdout`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The file that lines go to; nothing for standard output.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Sets whether a line counts as written only when it is on disk. Costs a write to the disk for each batch. Default: no,
    /// since what is for people need not survive a power cut. Standard output cannot be synced; there it means nothing.
    #[must_use]
    pub fn sync(mut self, sync: bool) -> Self {
        self.sync = sync;
        self
    }
}
