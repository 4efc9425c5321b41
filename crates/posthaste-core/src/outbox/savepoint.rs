//! A part of a transaction that can be undone alone.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::transaction::ended;
use super::{Outbox, Transaction};
use crate::event::EventId;
use crate::hook::Ending;
use crate::store::{self, CommitError, WriteStore};

/// A part of a [`Transaction`] that can be undone alone: its statements and its events, together.
///
/// It is used as the transaction is, and may have savepoints of its own. Dropping it undoes it. What it keeps is delivered when
/// the transaction around it commits, and not before.
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
///
/// let mut attempt = tx.savepoint().await?;
/// attempt.write(Event::of_json("CouponRedeemed", "{}")).await?;
/// attempt.rollback().await?; // the coupon has run out; `commit` would keep it
///
/// tx.commit().await?;
/// outbox.shutdown().await;
/// assert_eq!(outbox.admin().counts().await?.done, 1);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped, it is undone"]
pub struct Savepoint<'t, S: WriteStore> {
    tx: &'t mut Transaction<S>,
    mark: Mark,
    ended: bool,
}

/// A savepoint by how many events were written before it, and how deep it is.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    written: usize,
    depth: usize,
}

impl<S: WriteStore> Transaction<S> {
    /// Sets a savepoint: what is done from here on can be undone without the rest.
    ///
    /// # Errors
    /// When the database refuses it, or has lost the connection. The transaction has then ended, rolled back; unless it had ended
    /// before, by a statement of your own, and then [`commit`](Self::commit) says that nobody knows how.
    ///
    /// # Cancellation
    /// The transaction has then ended, rolled back. What is still tried in it is refused. The same is true of the
    /// [`commit`](Savepoint::commit) and the [`rollback`](Savepoint::rollback) of the savepoint. Who uses the transaction as a
    /// connection then panics, because there is none any more.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, S>, store::Error> {
        let mark = self.set_savepoint().await?;
        Ok(Savepoint { tx: self, mark, ended: false })
    }

    pub(super) async fn set_savepoint(&mut self) -> Result<Mark, store::Error> {
        self.inserted_last = false;
        let mut held = self.hold()?;
        let abandoned = self.abandoned.take();
        // sqlx rolls the whole transaction back when this fails or is dropped, and further statements would be on their own.
        if let Err(error) = held.set_savepoint(abandoned).await {
            drop(held);
            return Err(self.lost(error));
        }
        let mark = Mark { written: self.written.len(), depth: held.depth() };
        self.own = held.keep();
        Ok(mark)
    }

    pub(super) async fn release_savepoint(&mut self, mark: Mark) -> Result<(), store::Error> {
        self.inserted_last = false;
        // Dropped half-way, it is open whether it was released, and what would be undone instead of it.
        let mut held = self.hold()?;
        let (store, connection) = held.parts();
        let released = store.release_savepoint(connection, mark.depth).await;
        if released.is_ok() || held.depth() == mark.depth {
            self.own = held.keep();
        }
        self.ended_with(mark);
        released
    }

    pub(super) async fn undo_savepoint(&mut self, mark: Mark) -> Result<(), store::Error> {
        let mut held = self.hold()?;
        let (store, connection) = held.parts();
        if let Err(error) = store.undo_savepoint(connection, mark.depth).await {
            drop(held);
            return Err(self.lost(error));
        }
        self.own = held.keep();
        self.ended_with(mark);
        self.forget_since(mark);
        Ok(())
    }

    /// Takes the transaction out while it is open what becomes of it. Unless it is kept, it ends there, rolled back.
    pub(super) fn hold(&mut self) -> Result<Held<S>, store::Error> {
        let own = self.own.take().ok_or_else(ended)?;
        Ok(Held::new(self.outbox.clone(), own))
    }

    /// Takes note of how the transaction has ended. What may have been committed is left to the poller.
    fn lost(&mut self, error: CommitError) -> store::Error {
        if matches!(error, CommitError::Unknown(_)) {
            self.perhaps_committed = true;
            if !self.written.is_empty() {
                drop(self.take_receipt());
            }
        }
        error.into_cause()
    }

    /// Has the savepoint undone before the next statement.
    pub(super) fn abandon_savepoint(&mut self, mark: Mark) {
        let store = &self.outbox.0.store;
        match &mut self.own {
            Some(own) if store.depth(own) >= mark.depth => {
                store.abandon_savepoint(own);
                self.abandoned = Some(self.abandoned.map_or(mark.depth, |outer| outer.min(mark.depth)));
            }
            // It is gone, by whatever hand, and what is left is not what it seems.
            _ => drop(self.hold()),
        }
        self.forget_since(mark);
    }

    /// What was abandoned inside of a savepoint has ended with it.
    fn ended_with(&mut self, mark: Mark) {
        self.abandoned = self.abandoned.filter(|depth| *depth < mark.depth);
    }

    fn forget_since(&mut self, mark: Mark) {
        self.inserted_last = false;
        let undone = self.written.split_off(mark.written.min(self.written.len()));
        self.inserts.retain(|first| *first < mark.written);
        self.outbox.0.after.ended(Ending::RolledBack, &undone);
    }
}

/// A transaction of which it is open what becomes of it. Dropped, it is rolled back, with every savepoint in it.
pub(super) struct Held<S: WriteStore> {
    outbox: Outbox<S>,
    own: Option<S::OwnTx>,
}

impl<S: WriteStore> Held<S> {
    pub(super) fn new(outbox: Outbox<S>, own: S::OwnTx) -> Self {
        Self { outbox, own: Some(own) }
    }

    fn parts(&mut self) -> (&S, &mut S::Connection) {
        (&self.outbox.0.store, self.own.as_mut().expect("it is held until it is kept"))
    }

    fn depth(&mut self) -> usize {
        let (store, connection) = self.parts();
        store.depth(connection)
    }

    fn keep(mut self) -> Option<S::OwnTx> {
        self.own.take()
    }

    async fn set_savepoint(&mut self, abandoned: Option<usize>) -> Result<(), CommitError> {
        self.end_abandoned(abandoned).await?;
        let (store, connection) = self.parts();
        store.savepoint(connection).await
    }

    async fn end_abandoned(&mut self, depth: Option<usize>) -> Result<(), CommitError> {
        let (store, connection) = self.parts();
        match depth {
            Some(depth) => store.end_abandoned(connection, depth).await,
            None => Ok(()),
        }
    }

    /// Commits, and gives those of the first events of each insert that may not be there. Nobody had the connection since the
    /// only insert, if none are given.
    pub(super) async fn commit(
        mut self,
        abandoned: Option<usize>,
        lent: Option<Vec<EventId>>,
    ) -> Result<Vec<EventId>, CommitError> {
        self.end_abandoned(abandoned).await?;
        let store = &self.outbox.0.store;
        let own = self.own.take().expect("it is held until it is kept");
        match lent {
            Some(firsts) => store.commit_lent(own, firsts).await,
            None => store.commit_inserted(own).await.map(|()| Vec::new()),
        }
    }
}

impl<S: WriteStore> Drop for Held<S> {
    fn drop(&mut self) {
        if let Some(mut own) = self.own.take() {
            self.outbox.0.store.abandon_all(&mut own);
        }
    }
}

impl<S: WriteStore> Savepoint<'_, S> {
    /// Keeps what was done in it, as a part of the transaction around it.
    ///
    /// # Errors
    /// When the database refuses it; then it is undone.
    pub async fn commit(mut self) -> Result<(), store::Error> {
        self.tx.release_savepoint(self.mark).await?;
        self.ended = true;
        Ok(())
    }

    /// Undoes what was done in it. The transaction around it goes on.
    ///
    /// # Errors
    /// When the database did not confirm it. The transaction has then ended, rolled back; unless it had ended before, by a
    /// statement of your own.
    pub async fn rollback(mut self) -> Result<(), store::Error> {
        self.tx.undo_savepoint(self.mark).await?;
        self.ended = true;
        Ok(())
    }
}

impl<S: WriteStore> Drop for Savepoint<'_, S> {
    fn drop(&mut self) {
        if !self.ended {
            self.tx.abandon_savepoint(self.mark);
        }
    }
}

impl<S: WriteStore> Deref for Savepoint<'_, S> {
    type Target = Transaction<S>;

    fn deref(&self) -> &Transaction<S> {
        self.tx
    }
}

impl<S: WriteStore> DerefMut for Savepoint<'_, S> {
    fn deref_mut(&mut self) -> &mut Transaction<S> {
        self.tx
    }
}

impl<S: WriteStore> fmt::Debug for Savepoint<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Savepoint")
            .field("written", &self.tx.written.len().saturating_sub(self.mark.written))
            .finish_non_exhaustive()
    }
}
