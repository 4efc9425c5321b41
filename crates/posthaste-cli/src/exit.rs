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
    /// `relay --once` has left events that are due: they are paused, or their destination is away.
    Left = 8,
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

    /// The same, with what was done before it failed: that stays done.
    pub(crate) fn after(self, done: impl fmt::Display) -> Self {
        Self { status: self.status, error: self.error.context(done.to_string()) }
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
        Self { status, error: anyhow::Error::from(advised(error)) }
    }
}

/// What the library says to do, in words of this command. Where it is no migration that helps, the reason says what does.
fn advised(error: store::Error) -> store::Error {
    let store::Error::Schema { table, reason } = error else { return error };
    let reason = if let Some(what) = reason.strip_suffix("call migrate() first") {
        format!("{what}{MIGRATE}")
    } else if let Some(what) = reason.strip_suffix("call prepare_lanes() first") {
        format!("{what}posthaste migrate up --lanes prepares it")
    } else if reason.ends_with("of an older version") || reason.starts_with("there is no file ") {
        format!("{reason}; {MIGRATE}")
    } else if reason.ends_with("no other database is given") {
        format!(
            "{reason}; name one with --database-url or in posthaste.toml, or make this one with posthaste migrate up"
        )
    } else {
        reason
    };
    store::Error::Schema { table, reason }
}

const MIGRATE: &str = "posthaste migrate up does it, and migrate sql shows how";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_not_ready_has_the_advice_that_helps() {
        for (reason, advice) in [
            ("it does not exist; call migrate() first", "it does not exist; posthaste migrate up does it"),
            ("it is not there, or of an older version", "older version; posthaste migrate up does it"),
            ("there is no file /shop.db", "/shop.db; posthaste migrate up does it"),
            ("it is not prepared (x); call prepare_lanes() first", "(x); posthaste migrate up --lanes prepares it"),
            ("there is no a.db, and no other database is given", "given; name one with --database-url"),
        ] {
            let failed = Failed::from(store::Error::Schema { table: "t".to_owned(), reason: reason.to_owned() });
            assert_eq!(failed.status, Status::Schema);
            let text = crate::text(&failed.error);
            assert!(text.contains(advice) && !text.contains("call "), "{text}");
        }
        // No migration makes it older, or another.
        for reason in
            ["made by a newer release, upgrade this program", "these migrations did not make it, so rename it"]
        {
            let failed = Failed::from(store::Error::Schema { table: "t".to_owned(), reason: reason.to_owned() });
            assert!(!crate::text(&failed.error).contains("posthaste"), "{}", crate::text(&failed.error));
        }
    }
}
