//! The receipt for events written in somebody else's transaction.

use std::fmt;
use std::sync::Arc;

use super::after::AfterWrite;
use super::ids;
use crate::event::EventId;
use crate::hook::Ending;
use crate::store::NewRow;

/// For events written in a transaction that is yours: tells the outbox how it ended.
///
/// Only you know when your transaction has committed. Call [`dispatch`](Self::dispatch) then, and the events take the
/// hot path. Dropping the receipt is safe: the poller finds the events, if they were committed.
#[must_use = "call dispatch after the commit to deliver at once; dropped, the events wait for the poller"]
pub struct Receipt {
    rows: Vec<NewRow>,
    after: Option<Arc<AfterWrite>>,
}

impl Receipt {
    pub(super) fn new(after: Arc<AfterWrite>, rows: Vec<NewRow>) -> Self {
        Self { rows, after: Some(after) }
    }

    pub(super) fn rows(&self) -> &[NewRow] {
        &self.rows
    }

    /// The ids of the events, in the order in which they were written. A hook may have taken some away.
    pub fn ids(&self) -> Vec<EventId> {
        ids(&self.rows)
    }

    /// Joins the receipt of a later write of the same transaction, so that hooks see one transaction.
    pub fn and(mut self, mut later: Self) -> Self {
        self.rows.append(&mut later.rows);
        later.after = None;
        self
    }

    /// The transaction has committed: deliver now.
    pub fn dispatch(self) {
        self.end(Ending::Committed);
    }

    /// The transaction was rolled back: there is nothing to deliver.
    pub fn rolled_back(self) {
        self.end(Ending::RolledBack);
    }

    pub(super) fn never_written(&mut self) {
        if let Some(after) = self.after.take() {
            after.never_written(&self.rows);
        }
    }

    fn end(mut self, ending: Ending) {
        if let Some(after) = self.after.take() {
            after.ended(ending, &self.rows);
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some(after) = self.after.take() {
            after.ended(Ending::Unknown, &self.rows);
        }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("ids", &self.ids()).finish_non_exhaustive()
    }
}
