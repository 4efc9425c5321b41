//! What the tests see of what was written.

use posthaste_core::store::Store;
use posthaste_core::{EventId, Outbox};

/// Ids as text.
pub(crate) fn texts(ids: &[EventId]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// How many rows the table has.
pub(crate) async fn total<S: Store>(outbox: &Outbox<S>) -> u64 {
    outbox.admin().counts().await.unwrap().total()
}
