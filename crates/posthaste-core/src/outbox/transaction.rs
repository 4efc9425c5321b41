//! A transaction begun by the outbox.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use smallvec::SmallVec;

use super::after::AfterWrite;
use super::savepoint::Held;
use super::{Outbox, Receipt, WriteError, collect, ids};
use crate::event::{EventId, IntoEvent};
use crate::finish::finish;
use crate::store::{self, CommitError, NewRow, WriteStore};

/// A transaction in which your own statements and events go together.
///
/// Dereferences to the store's connection, so it is used like one. Dropping it rolls back.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Delivery, Event, MemoryStore, Outbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// tx.rollback().await?; // or drop it
///
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// tx.commit().await?;
///
/// outbox.shutdown().await;
/// assert_eq!(outbox.admin().counts().await?.total(), 1);
/// # Ok(())
/// # }
/// ```
pub struct Transaction<S: WriteStore> {
    pub(super) outbox: Outbox<S>,
    /// Nothing after the end, which a savepoint that fails is, too.
    pub(super) own: Option<S::OwnTx>,
    pub(super) written: Vec<NewRow>,
    /// Where in it the rows of each insert begin.
    pub(super) inserts: SmallVec<[usize; 4]>,
    /// How deep the outermost savepoint was that was dropped and has not been ended since.
    pub(super) abandoned: Option<usize>,
    /// Whether all that was written was written by one insert, which went well, and nobody had the connection since.
    pub(super) inserted_last: bool,
    /// Whether it had ended before its time, and nobody knows how.
    pub(super) perhaps_committed: bool,
}

impl<S: WriteStore> Transaction<S> {
    pub(super) fn new(outbox: Outbox<S>, own: S::OwnTx) -> Self {
        Self {
            outbox,
            own: Some(own),
            written: Vec::new(),
            inserts: SmallVec::new(),
            abandoned: None,
            inserted_last: false,
            perhaps_committed: false,
        }
    }

    /// Writes an event: a built one, its builder, or a typed one. Gives its id, unless a hook took the event away.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let mut tx = outbox.begin().await?;
    /// let event = Event::builder("OrderPlaced").aggregate("Order", 42).json(&serde_json::json!({ "total": 1990 }));
    /// let id = tx.write(event).await?;
    /// tx.commit().await?;
    /// assert!(id.is_some());
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the event is not acceptable or the database does not take it. Whether the transaction can go on then
    /// depends on the database.
    ///
    /// # Cancellation
    /// Whether the event was inserted is then open; if the transaction commits with it, the poller delivers it.
    pub async fn write(&mut self, event: impl IntoEvent + Send) -> Result<Option<EventId>, WriteError> {
        Ok(self.write_all([event]).await?.pop())
    }

    /// Writes several events, in few statements. Gives the ids of those that were written, in their order.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let mut tx = outbox.begin().await?;
    /// let placed = |id| Event::builder("OrderPlaced").aggregate("Order", id).json(&id);
    /// let ids = tx.write_all((1..=100).map(placed)).await?;
    /// tx.commit().await?;
    /// assert_eq!(ids.len(), 100);
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When an event is not acceptable or the database does not take them; none of them is written then.
    pub async fn write_all<E: IntoEvent>(
        &mut self,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<EventId>, WriteError> {
        let rows = collect(events)?;
        if self.own.is_none() {
            return Err(WriteError::of_store(&rows, ended()));
        }
        let rows = self.outbox.0.after.prepare(rows);
        let mut insert = Insert { after: Arc::clone(&self.outbox.0.after), rows, ended: false };
        kill_point!("insert.before");
        let (inserted_last, first) = (std::mem::replace(&mut self.inserted_last, false), self.written.is_empty());
        let inserted = self.outbox.0.store.insert(connection(&mut self.own), &insert.rows).await;
        insert.ended = true;
        let rows = std::mem::take(&mut insert.rows);
        match inserted {
            Ok(()) => {
                kill_point!("insert.after");
                // Without rows there was no statement, and nothing is known. After a second insert it is not known either
                // whether the first was in the same transaction.
                self.inserted_last = if rows.is_empty() { inserted_last } else { first };
                let ids = ids(&rows);
                if !rows.is_empty() {
                    self.inserts.push(self.written.len());
                }
                self.written.extend(rows);
                Ok(ids)
            }
            Err(error) => {
                self.outbox.0.after.never_written(&rows);
                Err(WriteError::of_store(&rows, error))
            }
        }
    }

    /// Commits. Its events are delivered from here on.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::CommitError;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let mut tx = outbox.begin().await?;
    /// let id = tx.write(Event::of_json("OrderPlaced", "{}")).await?.expect("no hook took it away");
    /// match tx.commit().await {
    ///     Ok(()) => {}
    ///     // The connection broke during the commit: look, instead of guessing.
    ///     Err(CommitError::Unknown(_)) if outbox.admin().find(&id).await?.is_some() => {}
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # outbox.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Says whether it is certain that nothing was committed. When it is not, and it was, its events are delivered.
    ///
    /// # Cancellation
    /// Safe: a commit that was begun goes on to its end, and so does what follows it.
    pub async fn commit(mut self) -> Result<(), CommitError> {
        let perhaps = self.perhaps_committed;
        let ended = |error| if perhaps { CommitError::Unknown(error) } else { CommitError::NotCommitted(error) };
        let held = self.hold().map_err(ended)?;
        let receipt = self.take_receipt();
        let (abandoned, inserted_last) = (self.abandoned.take(), self.inserted_last);
        let inserts = std::mem::take(&mut self.inserts);
        let lent = (!inserted_last).then(|| self.outbox.0.after.to_look_for(receipt.rows_to_insert(), &inserts));
        let commit = async move {
            kill_point!("commit.before");
            let committed = held.commit(abandoned, lent).await;
            match &committed {
                Ok(gone) => receipt.dispatch_without(gone, &inserts),
                Err(CommitError::NotCommitted(_)) => receipt.rolled_back(),
                Err(CommitError::Unknown(_)) => drop(receipt),
            }
            committed.map(drop)
        };
        finish(&self.outbox.0.tasks, commit).await
    }

    /// Rolls back: neither your statements nor the events happened.
    ///
    /// # Errors
    /// When the database did not confirm it; nothing is committed in any case.
    pub async fn rollback(mut self) -> Result<(), store::Error> {
        let Some(mut own) = self.own.take() else { return Ok(()) };
        let receipt = self.take_receipt();
        let inner = Arc::clone(&self.outbox.0);
        // Somebody may have begun a savepoint and forgotten it.
        if inner.store.depth(&own) > 1 {
            inner.store.abandon_all(&mut own);
        }
        let rollback = async move {
            let result = inner.store.rollback(own).await;
            receipt.rolled_back();
            result
        };
        finish(&self.outbox.0.tasks, rollback).await
    }
}

impl<S: WriteStore> Transaction<S> {
    /// What was written, in an object that tells the outbox how it ended, come what may.
    pub(super) fn take_receipt(&mut self) -> Receipt {
        Receipt::new(Arc::clone(&self.outbox.0.after), std::mem::take(&mut self.written))
    }
}

impl<S: WriteStore> Drop for Transaction<S> {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            drop(Held::new(self.outbox.clone(), own));
        }
        if !self.written.is_empty() {
            self.take_receipt().rolled_back();
        }
    }
}

impl<S: WriteStore> fmt::Debug for Transaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("written", &self.written.len()).finish_non_exhaustive()
    }
}

impl<S: WriteStore> Deref for Transaction<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        self.own.as_ref().expect(ENDED)
    }
}

impl<S: WriteStore> DerefMut for Transaction<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        self.inserted_last = false;
        connection(&mut self.own)
    }
}

fn connection<T: DerefMut>(own: &mut Option<T>) -> &mut T::Target {
    own.as_mut().expect(ENDED)
}

/// What is said to who goes on with a transaction after that.
const ENDED: &str = "the transaction has ended, because a savepoint in it failed or was cut off; begin another";

pub(super) fn ended() -> store::Error {
    store::Error::Refused(ENDED.into())
}

/// An insert under way: dropped before its answer, its rows may or may not be in the transaction.
struct Insert {
    after: Arc<AfterWrite>,
    rows: Vec<NewRow>,
    ended: bool,
}

impl Drop for Insert {
    fn drop(&mut self) {
        if !self.ended {
            self.after.cut_off(&self.rows);
        }
    }
}
