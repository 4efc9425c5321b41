//! The receipt for events written in somebody else's transaction.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::after::AfterWrite;
use crate::event::EventId;
use crate::hook::Ending;
use crate::store::NewRow;

/// For events written in a transaction that is yours: tells the outbox how it ended.
///
/// Only you know when your transaction has committed. Call [`dispatch`](Self::dispatch) then, and the events take the
/// hot path. Dropping the receipt is safe: the poller finds the events, if they were committed.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::memory::MemoryTx;
/// use posthaste::store::WriteStore;
/// use posthaste::{Delivery, Event, MemoryStore, Outbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
/// let mut tx = MemoryTx::new();
/// let first = outbox.write(&mut tx, Event::of_json("OrderPlaced", "{}")).await?;
/// let second = outbox.write(&mut tx, Event::of_json("OrderPaid", "{}")).await?;
/// let receipt = first.and(second);
/// match outbox.store().commit(tx).await {
///     Ok(()) => receipt.dispatch(),
///     Err(error) => {
///         receipt.rolled_back();
///         return Err(error.into());
///     }
/// }
/// # outbox.shutdown().await;
/// # assert_eq!(outbox.admin().counts().await?.done, 2);
/// # Ok(())
/// # }
/// ```
#[must_use = "call dispatch after the commit to deliver at once; dropped, the events wait for the poller"]
pub struct Receipt {
    /// One part, unless receipts of several outboxes were joined.
    parts: Vec<Part>,
}

struct Part {
    rows: Vec<NewRow>,
    /// Whether they were written in a savepoint, of which nobody says how it ended.
    nested: bool,
    /// Nothing once the end was told.
    after: Option<Arc<AfterWrite>>,
}

impl Receipt {
    pub(super) fn new(after: Arc<AfterWrite>, rows: Vec<NewRow>) -> Self {
        Self { parts: vec![Part { rows, nested: false, after: Some(after) }] }
    }

    /// What was written, with the leases that go with it.
    pub fn rows(&self) -> impl Iterator<Item = &NewRow> {
        self.parts.iter().flat_map(|part| &part.rows)
    }

    /// What [`Outbox::prepare`](super::Outbox::prepare) has prepared to be inserted. For adapters, which insert by their own
    /// means. Of receipts that were joined it is the first one's.
    pub fn rows_to_insert(&self) -> &[NewRow] {
        self.parts.first().map_or(&[], |part| &part.rows)
    }

    /// The ids of the events, in the order in which they were written. A hook may have taken some away.
    pub fn ids(&self) -> Vec<EventId> {
        self.rows().map(|row| row.event.id().clone()).collect()
    }

    /// The events were written inside a savepoint. It may have been rolled back although the transaction commits, so
    /// [`dispatch`](Self::dispatch) hands nothing to a listener by itself: it has the poller look at the table, at once.
    ///
    /// [`Outbox::write`](super::Outbox::write) says this by itself. For adapters, which insert by their own means.
    pub fn nested(mut self) -> Self {
        self.parts.iter_mut().for_each(|part| part.nested = true);
        self
    }

    /// Joins the receipt of a later write of the same transaction, so that hooks see one transaction.
    pub fn and(mut self, mut later: Self) -> Self {
        for mut part in later.parts.drain(..) {
            let same = |mine: &&mut Part| match (&mine.after, &part.after) {
                (Some(mine_after), Some(theirs)) => Arc::ptr_eq(mine_after, theirs) && mine.nested == part.nested,
                _ => false,
            };
            match self.parts.iter_mut().find(same) {
                Some(mine) => {
                    mine.rows.append(&mut part.rows);
                    part.after = None;
                }
                None => self.parts.push(part),
            }
        }
        self
    }

    /// The transaction has committed: deliver now.
    pub fn dispatch(mut self) {
        self.end(Ending::Committed);
    }

    /// The same, but the inserts that begin with one of these events may have been undone: what of them is there is delivered from
    /// the table. Each of `inserts` is where in the rows one begins.
    pub(super) fn dispatch_without(mut self, gone: &[EventId], inserts: &[usize]) {
        // One insert that is there is all there is.
        if (!gone.is_empty() || inserts.len() > 1)
            && let Some(part) = self.parts.first_mut()
        {
            let (kept, undone) = parted(std::mem::take(&mut part.rows), gone, inserts);
            part.rows = kept;
            if !undone.is_empty() {
                let after = part.after.clone();
                self.parts.push(Part { rows: undone, nested: true, after });
            }
        }
        self.dispatch();
    }

    /// The transaction was rolled back: there is nothing to deliver.
    pub fn rolled_back(mut self) {
        self.end(Ending::RolledBack);
    }

    /// The insert was refused: nothing of it is in the transaction, and nobody is told. If a part of it may be, drop the
    /// receipt instead.
    pub fn never_written(mut self) {
        for part in &mut self.parts {
            if let Some(after) = part.after.take() {
                after.never_written(&part.rows);
            }
        }
    }

    fn end(&mut self, ending: Ending) {
        for part in &mut self.parts {
            match part.after.take() {
                Some(after) if part.nested && ending == Ending::Committed => after.committed_nested(&part.rows),
                Some(after) => after.ended(ending, &part.rows),
                None => {}
            }
        }
    }
}

/// The rows of inserts that are there, and those of inserts that may be gone. An event that was written twice has been undone once,
/// and it is not known which of the two inserts its row is from.
fn parted(rows: Vec<NewRow>, gone: &[EventId], inserts: &[usize]) -> (Vec<NewRow>, Vec<NewRow>) {
    let mut seen = HashSet::with_capacity(rows.len());
    let twice = rows.iter().map(|row| row.event.id()).filter(|id| !seen.insert(*id));
    let gone: HashSet<EventId> = gone.iter().chain(twice).cloned().collect();
    if gone.is_empty() {
        return (rows, Vec::new());
    }
    let (mut kept, mut undone) = (Vec::with_capacity(rows.len()), Vec::new());
    let (mut inserts, mut is_there) = (inserts.iter().peekable(), true);
    for (place, row) in rows.into_iter().enumerate() {
        if inserts.next_if(|first| **first == place).is_some() {
            is_there = !gone.contains(row.event.id());
        }
        if is_there { kept.push(row) } else { undone.push(row) }
    }
    (kept, undone)
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.end(Ending::Unknown);
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").field("ids", &self.ids()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    fn row(id: &str) -> NewRow {
        NewRow::new(Event::builder("T").id(id).json_text("{}").build().unwrap())
    }

    fn ids(rows: &[NewRow]) -> Vec<&str> {
        rows.iter().map(|row| row.event.id().as_str()).collect()
    }

    #[test]
    fn what_was_inserted_with_an_event_that_is_gone_is_gone_with_it() {
        let parts = |written: &[&str], gone: &[&str], inserts: &[usize]| {
            let gone: Vec<_> = gone.iter().map(EventId::from_row).collect();
            let (kept, undone) = parted(written.iter().copied().map(row).collect(), &gone, inserts);
            format!("{} | {}", ids(&kept).join(" "), ids(&undone).join(" "))
        };
        assert_eq!(parts(&["a", "b", "c"], &[], &[0, 2]), "a b c | ");
        assert_eq!(parts(&["a", "b", "c"], &["a"], &[0, 2]), "c | a b");
        assert_eq!(parts(&["a", "b", "c"], &["c"], &[0, 2]), "a b | c");
        assert_eq!(parts(&["a", "b", "c"], &["a", "b", "c"], &[0, 1, 2]), " | a b c");
        // Undone and written again: the row that is there may be from either.
        assert_eq!(parts(&["a", "x", "a"], &[], &[0, 1, 2]), "x | a a");
        assert_eq!(parts(&["a", "b", "x", "a"], &[], &[0, 2]), "x a | a b");
    }
}
