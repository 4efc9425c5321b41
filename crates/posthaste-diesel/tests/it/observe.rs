//! What the tests see of what was written.

use posthaste_core::store::{Error, Store};
use posthaste_core::{EventId, Outbox, WriteError};

/// Ids as text.
pub(crate) fn texts(ids: &[EventId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// How many rows the table has.
pub(crate) async fn total<S: Store>(outbox: &Outbox<S>) -> u64 {
    outbox.admin().counts().await.unwrap().total()
}

/// What was said to who was refused.
pub(crate) fn refused(error: &WriteError) -> String {
    match error {
        WriteError::Store { error: Error::Refused(reason), .. } => reason.to_string(),
        other => panic!("{other:?}"),
    }
}
