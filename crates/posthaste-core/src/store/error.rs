//! What can go wrong between us and a database.

use std::error::Error as StdError;

use crate::event::EventId;

type Source = Box<dyn StdError + Send + Sync>;

/// What can go wrong between us and a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An event with this id was written before.
    #[error(
        "event id {id} is taken; if this is a repeated request it was written already, otherwise choose another id"
    )]
    DuplicateId {
        /// The id that is taken, as far as the database says.
        id: EventId,
    },
    /// The database cannot be reached, or closed the connection. Worth trying again.
    #[error("the database cannot be reached")]
    Unavailable(#[source] Source),
    /// Somebody else holds a lock for too long, or the transaction lost a conflict. Worth trying again.
    #[error("the database is busy with another transaction; try again")]
    Busy(#[source] Source),
    /// The table is missing, or not the one this version works with.
    #[error("table {table} is not ready: {reason}")]
    Schema {
        /// The table.
        table: String,
        /// What is wrong with it, and what to do about it.
        reason: String,
    },
    /// A setting of the store is not acceptable.
    #[error("{field}{} is not accepted: {reason}", quoted(value))]
    Config {
        /// Which setting.
        field: &'static str,
        /// What was given. Empty if there is nothing to show.
        value: String,
        /// Why not, and what would be.
        reason: String,
    },
    /// The database refused a statement, or a connection.
    #[error("the database refused it")]
    Refused(#[source] Source),
    /// The store panicked, with this message.
    #[error("the store panicked: {0}; report it to whoever wrote the store")]
    Panicked(String),
}

impl Error {
    /// Whether the same call may succeed a little later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Busy(_))
    }
}

/// A value after its name.
fn quoted(value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {value:?}") }
}

/// Why a commit did not answer with success.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Nothing was committed.
    #[error("the transaction was not committed, and nothing of it is stored")]
    NotCommitted(#[source] Error),
    /// The connection was lost before the answer came, or the answer leaves it open. If it was committed, its events will
    /// be delivered.
    #[error(
        "the commit got no clear answer, so it may or may not have happened; \
         look for one of its rows before doing it again"
    )]
    Unknown(#[source] Error),
}

impl CommitError {
    /// Why, whatever came of it.
    pub(crate) fn into_cause(self) -> Error {
        match self {
            Self::NotCommitted(cause) | Self::Unknown(cause) => cause,
        }
    }
}
