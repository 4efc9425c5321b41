//! Transactions that need not be handed on: a task has them, until a scope ends.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::savepoint::Mark;
use super::{Outbox, Transaction, WriteError};
use crate::event::{EventId, IntoEvent};
use crate::store::{self, CommitError, WriteStore};

tokio::task_local! {
    static SCOPES: Arc<Scope>;
}

/// A scope in which a task has a transaction, inside of those that it had before.
struct Scope {
    /// Which outbox, by where it is in memory.
    outbox: usize,
    /// A [`Slot`] of its transaction.
    slot: Arc<dyn Any + Send + Sync>,
    outer: Option<Arc<Self>>,
}

/// Where a transaction is while nobody uses it.
struct Slot<S: WriteStore>(Mutex<Place<S>>);

enum Place<S: WriteStore> {
    Here(Transaction<S>),
    InUse,
    /// The scope has ended.
    Closed,
}

impl<S: WriteStore> Slot<S> {
    fn new(tx: Transaction<S>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Place::Here(tx))))
    }

    fn place(&self) -> MutexGuard<'_, Place<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Transaction<S>> {
        let mut place = self.place();
        match std::mem::replace(&mut *place, Place::InUse) {
            Place::Here(tx) => Some(tx),
            other => {
                *place = other;
                None
            }
        }
    }

    /// Brings a transaction back. After the end of the scope it is dropped, and so rolled back.
    fn give_back(&self, tx: Transaction<S>) {
        let mut place = self.place();
        if matches!(*place, Place::InUse) {
            *place = Place::Here(tx);
        }
    }

    /// Takes the transaction for good; whoever still uses it finds the place closed.
    fn close(&self) -> Option<Transaction<S>> {
        match std::mem::replace(&mut *self.place(), Place::Closed) {
            Place::Here(tx) => Some(tx),
            Place::InUse | Place::Closed => None,
        }
    }
}

/// Why a task has no transaction at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoTransaction {
    /// It is not inside `transaction` of this outbox.
    #[error(
        "no transaction of this outbox is open in this task: do this inside `outbox.transaction(|| async {{ … }})`, and not in a \
         task that was spawned there, which is outside of it"
    )]
    Outside,
    /// Something else in the scope has it.
    #[error(
        "the transaction of this task is in use: drop what `current` gave before you ask for it again, and do not use it from \
         two futures at a time"
    )]
    InUse,
    /// It was rolled back before its end.
    #[error(
        "the transaction of this task has ended, because an inner one failed or was cut off: return the error, and do all of it \
         again"
    )]
    Ended,
}

/// Why a transaction around a closure could not begin or end. What the closure itself returns is not among it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// It could not be begun, and the closure was not called.
    #[error("the transaction could not be begun")]
    Begin(#[source] store::Error),
    /// It could not be committed; the cause says whether it is certain that nothing was.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A savepoint inside of it could not be set, or kept.
    #[error("the savepoint around an inner transaction failed")]
    Savepoint(#[source] store::Error),
    /// The closure has returned while its transaction was still in use, so that it was rolled back.
    #[error(
        "the closure returned while its transaction was still in use, so it was rolled back: drop what `current` gave before the \
         end"
    )]
    StillInUse,
    /// An inner transaction was begun while the outer one was in use.
    #[error(transparent)]
    Current(#[from] NoTransaction),
}

/// The transaction that this task has, as long as this is held. From [`Outbox::current`].
pub struct Current<S: WriteStore> {
    slot: Arc<Slot<S>>,
    /// Nothing once it was given back.
    tx: Option<Transaction<S>>,
}

impl<S: WriteStore> Current<S> {
    fn of(slot: &Arc<Slot<S>>) -> Result<Self, NoTransaction> {
        let tx = slot.take().ok_or(NoTransaction::InUse)?;
        let ended = tx.own.is_none();
        let current = Self { slot: Arc::clone(slot), tx: Some(tx) };
        if ended { Err(NoTransaction::Ended) } else { Ok(current) }
    }

    /// Takes it for somebody who gives it back in its place.
    fn take(mut self) -> Transaction<S> {
        self.tx.take().expect("it is held until the end")
    }
}

impl<S: WriteStore> Deref for Current<S> {
    type Target = Transaction<S>;

    fn deref(&self) -> &Transaction<S> {
        self.tx.as_ref().expect("it is held until the end")
    }
}

impl<S: WriteStore> DerefMut for Current<S> {
    fn deref_mut(&mut self) -> &mut Transaction<S> {
        self.tx.as_mut().expect("it is held until the end")
    }
}

impl<S: WriteStore> Drop for Current<S> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            self.slot.give_back(tx);
        }
    }
}

impl<S: WriteStore> fmt::Debug for Current<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Current").field(&**self).finish()
    }
}

/// A transaction that an outer scope lends to an inner one. Returns to it in the end, with the savepoint undone if it is open.
struct Lent<S: WriteStore> {
    slot: Arc<Slot<S>>,
    /// What is no longer in the slot.
    tx: Option<Transaction<S>>,
    outer: Arc<Slot<S>>,
    open: Option<Mark>,
}

impl<S: WriteStore> Drop for Lent<S> {
    fn drop(&mut self) {
        // If neither has it, somebody kept it beyond the scope. All of it is rolled back when he drops it.
        if let Some(mut tx) = self.tx.take().or_else(|| self.slot.close()) {
            if let Some(mark) = self.open {
                tx.abandon_savepoint(mark);
            }
            self.outer.give_back(tx);
        }
    }
}

impl<S: WriteStore> Outbox<S> {
    /// Runs a closure in a transaction that everything it calls has at hand, without being handed it:
    /// [`write_current`](Self::write_current) writes an event, and [`current`](Self::current) gives the connection.
    ///
    /// It commits when the closure returns `Ok`, and its events are delivered from there on. It rolls back when the closure
    /// returns `Err`, panics or is dropped. Inside of another one of the same outbox it is a savepoint of that.
    ///
    /// The transaction belongs to this task: what is spawned inside of it has none.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// async fn place_order(outbox: &Outbox<MemoryStore>) -> Result<u32, Box<dyn std::error::Error>> {
    ///     // Your own statements, on `&mut **outbox.current()?`.
    ///     outbox.write_current(Event::of_json("OrderPlaced", "{}")).await?;
    ///     Ok(42)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// let order = outbox.transaction(|| place_order(&outbox)).await?;
    /// assert_eq!(order, 42);
    ///
    /// // Outside it is refused.
    /// assert!(place_order(&outbox).await.is_err());
    /// # outbox.shutdown().await;
    /// # assert_eq!(outbox.admin().counts().await?.done, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the closure returns; or, turned into its error, why the transaction could not begin or commit.
    ///
    /// # Cancellation
    /// Safe: dropped before the commit it rolls back, and a commit that was begun goes on to its end. One that is inside of
    /// another may take the outer one along, which then refuses all else.
    pub async fn transaction<T, E, F>(&self, work: impl FnOnce() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<TransactionError>,
    {
        match self.slot() {
            Some(outer) => self.inside(&outer, work).await,
            None => {
                let slot = Slot::new(self.begin().await.map_err(TransactionError::Begin)?);
                let done = self.scope(&slot, work).await;
                let tx = slot.close();
                let value = done?;
                tx.ok_or(TransactionError::StillInUse)?.commit().await.map_err(TransactionError::Commit)?;
                Ok(value)
            }
        }
    }

    /// The same inside of another one, which lends its transaction.
    async fn inside<T, E, F>(&self, outer: &Arc<Slot<S>>, work: impl FnOnce() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<TransactionError>,
    {
        let mut tx = Current::of(outer).map_err(TransactionError::Current)?;
        let mark = tx.set_savepoint().await.map_err(TransactionError::Savepoint)?;
        let mut lent = Lent { slot: Slot::new(tx.take()), tx: None, outer: Arc::clone(outer), open: Some(mark) };
        let done = self.scope(&lent.slot, work).await;
        lent.tx = lent.slot.close();
        let Some(tx) = &mut lent.tx else {
            done?;
            return Err(TransactionError::StillInUse.into());
        };
        let ended = match done {
            Ok(_) => tx.release_savepoint(mark).await,
            Err(_) => tx.undo_savepoint(mark).await,
        };
        if ended.is_ok() {
            lent.open = None;
        }
        let value = done?;
        ended.map_err(TransactionError::Savepoint)?;
        Ok(value)
    }

    async fn scope<T, F: Future<Output = T>>(&self, slot: &Arc<Slot<S>>, work: impl FnOnce() -> F) -> T {
        let slot: Arc<dyn Any + Send + Sync> = Arc::clone(slot) as _;
        let outer = SCOPES.try_with(Arc::clone).ok();
        let scope = Arc::new(Scope { outbox: self.place(), slot, outer });
        SCOPES.scope(scope, async { work().await }).await
    }

    /// The transaction that this task has, inside [`transaction`](Self::transaction). It is used as one that
    /// [`begin`](Self::begin) gave, and is to be dropped before the next asks for it. Bind it to a name: in the head of a
    /// `match` or an `if let` it would be held to the end of that.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, Event, MemoryStore, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
    /// outbox
    ///     .transaction(|| async {
    ///         let mut tx = outbox.current()?;
    ///         // With sqlx: `sqlx::query("…").execute(&mut **tx).await?;`
    ///         tx.write(Event::of_json("OrderPlaced", "{}")).await?;
    ///         Ok::<_, Box<dyn std::error::Error>>(())
    ///     })
    ///     .await?;
    /// # outbox.shutdown().await;
    /// # assert_eq!(outbox.admin().counts().await?.done, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Outside of a transaction, and while it is in use.
    pub fn current(&self) -> Result<Current<S>, NoTransaction> {
        Current::of(&self.slot().ok_or(NoTransaction::Outside)?)
    }

    /// Writes an event in the transaction that this task has, inside [`transaction`](Self::transaction). Gives its id,
    /// unless a hook took the event away.
    ///
    /// # Errors
    /// Outside of a transaction; when the event is not acceptable or the database does not take it.
    pub async fn write_current(&self, event: impl IntoEvent + Send) -> Result<Option<EventId>, WriteError> {
        self.current()?.write(event).await
    }

    /// Writes several events in the transaction that this task has, in few statements. Otherwise like
    /// [`write_current`](Self::write_current).
    ///
    /// # Errors
    /// As those of [`write_current`](Self::write_current); none of them is written then.
    pub async fn write_all_current<E: IntoEvent>(
        &self,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<EventId>, WriteError> {
        self.current()?.write_all(events).await
    }

    /// Where the transaction is that this task has of this outbox.
    fn slot(&self) -> Option<Arc<Slot<S>>> {
        let mut scope = SCOPES.try_with(Arc::clone).ok();
        while let Some(one) = scope {
            if one.outbox == self.place() {
                return Arc::clone(&one.slot).downcast().ok();
            }
            scope = one.outer.clone();
        }
        None
    }

    fn place(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}
