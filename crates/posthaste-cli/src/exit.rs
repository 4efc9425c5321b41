//! How commands end: 0 if they did what was asked, and otherwise what the status tells apart.

use std::fmt;
use std::process::ExitCode;

use posthaste::store;

use crate::settings::{Fault, Faults};

/// The exit statuses of the commands that work on an outbox. Documented in `docs/relay.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// The command did its work, and the answer is no.
    No = 1,
    /// The command could not run; the same as that of clap for a wrong command line.
    CouldNotRun = 2,
    /// The settings are wrong.
    Settings = 3,
    /// The database cannot be reached, or does not let us do it.
    Database = 4,
    /// The table is missing, or of another version.
    Schema = 5,
    /// A destination refuses us.
    Destination = 6,
    /// Nobody can listen at the address of `[http]`.
    Listen = 7,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status as u8)
    }
}

/// Why a command could not do its work, and with which status it ends.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) status: Status,
    pub(crate) error: anyhow::Error,
}

impl Failed {
    pub(crate) fn new(status: Status, error: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self { status, error: anyhow::Error::msg(error) }
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self { status: Status::CouldNotRun, error }
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::from(anyhow::Error::from(error))
    }
}

impl From<Faults> for Failed {
    fn from(faults: Faults) -> Self {
        Self::new(Status::Settings, faults)
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::new(Status::Settings, fault)
    }
}

impl From<store::Error> for Failed {
    fn from(error: store::Error) -> Self {
        let status = match &error {
            store::Error::Config { .. } => Status::Settings,
            store::Error::Schema { .. } => Status::Schema,
            store::Error::DuplicateId { .. } => Status::No,
            _ => Status::Database,
        };
        let advice = matches!(error, store::Error::Schema { .. });
        let error = anyhow::Error::from(error);
        let error = match advice {
            true => anyhow::anyhow!("{}; posthaste migrate up does it, and migrate sql shows how", crate::text(&error)),
            false => error,
        };
        Self { status, error }
    }
}
