//! What to do about an error, where somebody can do something.

use std::error::Error as StdError;
use std::fmt;

use posthaste_core::store::Error;
use sqlx::error::DatabaseError;

/// An error with what to do about it.
#[derive(Debug)]
struct Advised {
    advice: &'static str,
    error: sqlx::Error,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.advice)
    }
}

impl StdError for Advised {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.error)
    }
}

/// What is the same for every server.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod server {
    pub(crate) const GRANT: &str = "grant this user what it needs";
    pub(crate) const READ_ONLY: &str = "the server takes no writes, as a standby does; connect to the primary";
    pub(crate) const NOT_LET_IN: &str =
        "the server does not let this user in; check the user and the password, and whether it wants TLS";
    pub(crate) const NOBODY_THERE: &str =
        "nothing listens there; check the host and the port, and whether the server runs";
    pub(crate) const NO_CONNECTION_LEFT: &str =
        "the server takes no more connections; make the pools smaller, or its limits larger";
    pub(crate) const DISK_FULL: &str = "the disk of the server is full; make room";
}

/// An error with where it happened: a file, or a host and its port.
#[derive(Debug)]
struct Located {
    place: String,
    error: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

impl StdError for Located {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.error)
    }
}

/// Where a server is to be found.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn place(socket: Option<&std::path::PathBuf>, host: &str, port: u16) -> String {
    socket.map_or_else(|| format!("{host}:{port}"), |socket| socket.display().to_string())
}

/// The error of a first connection, with where it was to lead.
pub(crate) fn located(error: Error, place: impl fmt::Display) -> Error {
    let located = |error| Box::new(Located { place: place.to_string(), error });
    match error {
        Error::Unavailable(error) => Error::Unavailable(located(error)),
        Error::Busy(error) => Error::Busy(located(error)),
        Error::Refused(error) => Error::Refused(located(error)),
        other => other,
    }
}

/// The error, with advice if there is any: the database's own for what it answered, and what is the same for all of them.
pub(crate) fn advised(
    error: sqlx::Error,
    of_database: impl FnOnce(&dyn DatabaseError) -> Option<&'static str>,
) -> Box<dyn StdError + Send + Sync> {
    let advice = match &error {
        sqlx::Error::Database(database) => of_database(&**database),
        sqlx::Error::PoolTimedOut => Some(
            "no connection was to be had in time; see that the server runs, enlarge the pool if all are in use, or the \
             limits of the server if it takes no more",
        ),
        sqlx::Error::PoolClosed => Some("the pool was closed; make the store anew, or close it later"),
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        sqlx::Error::Tls(_) => Some(crate::tls::demanded_in_vain()),
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Some(server::NOBODY_THERE),
        #[cfg(all(feature = "tls", any(feature = "mysql", feature = "postgres")))]
        sqlx::Error::Io(error) => crate::tls::advice(error),
        _ => None,
    };
    match advice {
        Some(advice) => Box::new(Advised { advice, error }),
        None => Box::new(error),
    }
}
