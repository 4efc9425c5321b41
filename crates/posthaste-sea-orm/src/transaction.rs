//! A transaction of SeaORM's, begun by the outbox.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::task::{Context, Waker};

use posthaste_core::store::{CommitError, Error, NewRow};
use posthaste_core::{EventId, IntoEvent, Outbox, Receipt, WriteError};
use sea_orm::{DatabaseTransaction, DbBackend, DbErr, RuntimeErr};

use crate::database::{NotOpen, SeaOrmStore, commit, expect_open, roll_back};
use crate::insert::{Kept, Refused, are_there, insert};

/// A transaction of SeaORM's in which entities and events go together. From
/// [`begin_on`](crate::OutboxExt::begin_on) and [`transaction_on`](crate::OutboxExt::transaction_on).
///
/// Entities run on `&*tx`: it dereferences to SeaORM's [`DatabaseTransaction`], and behind a reference it is a connection of
/// SeaORM's itself. Dropping it rolls back.
///
/// It may end before its time: when a call in it was cut off, when a savepoint in it failed, or when the database has rolled it
/// back. Calls of this type are refused from then on, and so are statements on `&tx`. `&*tx` panics, because SeaORM's
/// transaction is gone.
///
/// What SeaORM's own `begin` has begun inside of it should have ended before its commit. What has not is committed, too.
///
/// On MySQL and MariaDB let your own statements come to their end, or run them in a task: sqlx waits for ever on a connection
/// on which one was dropped in the middle, and SeaORM cannot close it. Calls of this type are safe there, too.
pub struct Transaction<S: SeaOrmStore> {
    pub(crate) outbox: Outbox<S>,
    /// Nothing after the end, which a call that was cut off is, too.
    pub(crate) own: Option<Own>,
}

/// What runs on as a task when the caller of a statement is gone. Dropped, it rolls back.
pub(crate) struct Own {
    /// Those that are open, the innermost last. Before the transaction around them.
    pub(crate) savepoints: Vec<DatabaseTransaction>,
    tx: DatabaseTransaction,
    /// After the transaction, so that its rollback is under way when it is told.
    pub(crate) written: Written,
}

impl<S: SeaOrmStore> Transaction<S> {
    /// SeaORM's, unless it has ended.
    pub(crate) fn connection(&self) -> Result<&DatabaseTransaction, DbErr> {
        match &self.own {
            Some(own) => Ok(own.connection()),
            None => Err(DbErr::Conn(RuntimeErr::Internal(ENDED.to_owned()))),
        }
    }

    pub(crate) fn new(outbox: Outbox<S>, tx: DatabaseTransaction) -> Self {
        Self { outbox, own: Some(Own { savepoints: Vec::new(), tx, written: Written::default() }) }
    }

    /// Writes an event: a built one, its builder, or a typed one. Gives its id, unless a hook took the event away.
    ///
    /// # Errors
    /// When the event is not acceptable or the database does not take it. Whether the transaction can go on then
    /// depends on the database.
    ///
    /// # Cancellation
    /// The transaction has then ended, rolled back.
    pub async fn write(&mut self, event: impl IntoEvent + Send) -> Result<Option<EventId>, WriteError> {
        Ok(self.write_all([event]).await?.pop())
    }

    /// Writes several events, in few statements. Gives the ids of those that were written, in their order.
    ///
    /// # Errors
    /// When an event is not acceptable or the database does not take them; none of them is written then. When the database has
    /// rolled the transaction back, that has ended.
    ///
    /// # Cancellation
    /// The transaction has then ended, rolled back.
    pub async fn write_all<E: IntoEvent>(
        &mut self,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<EventId>, WriteError> {
        let receipt = self.outbox.prepare(events)?;
        if receipt.rows_to_insert().is_empty() {
            receipt.never_written();
            return Ok(Vec::new());
        }
        let Some(own) = self.own.take() else {
            let error = WriteError::of_store(receipt.rows_to_insert(), ended());
            receipt.never_written();
            return Err(error);
        };
        let outbox = self.outbox.clone();
        let (own, written) = self.outbox.finish(async move { own.write(outbox.store(), receipt).await }).await;
        self.own = own;
        written
    }

    /// Commits. Its events are delivered from here on.
    ///
    /// # Errors
    /// Says whether it is certain that nothing was committed; on PostgreSQL that is so when a statement had failed. When it is
    /// not certain, and it was committed, its events are delivered.
    ///
    /// # Cancellation
    /// Safe: a commit that was begun goes on to its end, and so does what follows it.
    pub async fn commit(mut self) -> Result<(), CommitError> {
        let own = self.own.take().ok_or_else(|| CommitError::NotCommitted(ended()))?;
        let outbox = self.outbox.clone();
        self.outbox.finish(async move { own.commit(outbox.store()).await }).await
    }

    /// Rolls back: neither the entities nor the events were ever there.
    ///
    /// # Errors
    /// When the database did not confirm it; nothing is committed in any case.
    pub async fn rollback(mut self) -> Result<(), Error> {
        let Some(own) = self.own.take() else { return Ok(()) };
        let outbox = self.outbox.clone();
        self.outbox.finish(async move { own.rollback(outbox.store()).await }).await
    }
}

impl Own {
    pub(crate) fn connection(&self) -> &DatabaseTransaction {
        &self.tx
    }

    /// The same, unless SQLite has rolled it back. A savepoint would begin another one then, and its end store what is in it.
    /// Elsewhere the database refuses the savepoint, or what is written in it.
    pub(crate) async fn still_open<S: SeaOrmStore>(self, store: &S) -> Result<Self, Error> {
        if S::BACKEND == DbBackend::Sqlite
            && let Err(NotOpen { error, ended: true }) = expect_open(store, &self.tx).await
        {
            self.give_up(store).await;
            return Err(error);
        }
        Ok(self)
    }

    /// Gives itself back, unless it has ended.
    async fn write<S: SeaOrmStore>(
        mut self,
        store: &S,
        receipt: Receipt,
    ) -> (Option<Self>, Result<Vec<EventId>, WriteError>) {
        let Refused { error, partly, ended } = match insert(store, &self.tx, receipt.rows_to_insert()).await {
            Ok(kept) => {
                let ids = receipt.ids();
                self.written.0.push((receipt, kept));
                return (Some(self), Ok(ids));
            }
            Err(refused) => refused,
        };
        let error = WriteError::of_store(receipt.rows_to_insert(), error);
        if partly {
            self.written.0.push((receipt, Kept::Perhaps));
        } else {
            receipt.never_written();
        }
        if ended {
            self.give_up(store).await;
            return (None, Err(error));
        }
        (Some(self), Err(error))
    }

    async fn commit<S: SeaOrmStore>(self, store: &S) -> Result<(), CommitError> {
        // PostgreSQL says so itself when it is asked to commit.
        if S::BACKEND != DbBackend::Postgres
            && let Err(NotOpen { error, ended }) = expect_open(store, &self.tx).await
        {
            if ended {
                self.give_up(store).await;
            }
            return Err(CommitError::NotCommitted(error));
        }
        let Self { savepoints, tx, mut written } = self;
        // A savepoint of SeaORM's that was undone, or an error after which the database has rolled back by itself.
        let all = are_there(store, &tx, written.in_doubt()).await.map_err(CommitError::NotCommitted)?;
        let receipt = written.take_receipt(all);
        let committed = commit(store, tx).await;
        drop(savepoints);
        if let Some(receipt) = receipt {
            match &committed {
                Ok(()) => receipt.dispatch(),
                Err(CommitError::NotCommitted(_)) => receipt.rolled_back(),
                Err(_) => drop(receipt),
            }
        }
        committed
    }

    async fn rollback<S: SeaOrmStore>(self, store: &S) -> Result<(), Error> {
        let Self { savepoints, tx, written } = self;
        drop(savepoints);
        let rolled_back = roll_back(store, tx).await;
        drop(written);
        rolled_back
    }

    /// Ends what the database has rolled back.
    async fn give_up<S: SeaOrmStore>(self, store: &S) {
        if let Err(error) = self.rollback(store).await {
            tracing::debug!(%error, "there was nothing left to roll back");
        }
    }
}

impl<S: SeaOrmStore> Drop for Transaction<S> {
    fn drop(&mut self) {
        // If SQLite has rolled it back by itself, the driver needs help.
        if S::BACKEND == DbBackend::Sqlite
            && let Some(Own { savepoints, tx, written }) = self.own.take()
        {
            let outbox = self.outbox.clone();
            let rollback = self.outbox.finish(async move {
                drop(savepoints);
                roll_back(outbox.store(), tx).await
            });
            // What was begun goes on as a task.
            drop(pin!(rollback).poll(&mut Context::from_waker(Waker::noop())));
            drop(written);
        }
    }
}

/// The receipts for what was written. Dropped, it was rolled back.
#[derive(Default)]
pub(crate) struct Written(Vec<(Receipt, Kept)>);

impl Written {
    /// How many writes there were.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// What was written after that many was undone.
    pub(crate) fn forget_since(&mut self, writes: usize) {
        drop(Self(self.0.split_off(writes.min(self.0.len()))));
    }

    fn in_doubt(&self) -> impl Iterator<Item = &NewRow> {
        self.0.iter().filter(|(_, kept)| *kept == Kept::Perhaps).flat_map(|(receipt, _)| receipt.rows())
    }

    /// One receipt for all of it. What was in doubt is left to the poller, unless all of it is there.
    fn take_receipt(&mut self, all_there: bool) -> Option<Receipt> {
        let receipts = std::mem::take(&mut self.0).into_iter();
        let surely = receipts.map(|(receipt, kept)| match kept {
            Kept::Perhaps if !all_there => receipt.nested(),
            _ => receipt,
        });
        surely.reduce(Receipt::and)
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Some(receipt) = self.take_receipt(true) {
            receipt.rolled_back();
        }
    }
}

impl<S: SeaOrmStore> Deref for Transaction<S> {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        self.own.as_ref().expect(ENDED).connection()
    }
}

impl<S: SeaOrmStore> fmt::Debug for Transaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writes = self.own.as_ref().map(|own| own.written.len());
        f.debug_struct("Transaction").field("writes", &writes).finish_non_exhaustive()
    }
}

/// What is said to who goes on with a transaction after that.
const ENDED: &str = "the transaction has ended, because a call in it was cut off, a savepoint in it failed, or the database \
                     has rolled it back; begin another";

pub(crate) fn ended() -> Error {
    Error::Refused(ENDED.into())
}
