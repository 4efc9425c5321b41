//! A transaction of SeaORM's, begun by the outbox.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use futures_util::lock::{Mutex, MutexGuard};
use posthaste_core::store::{CommitError, Error, NewRow};
use posthaste_core::{EventId, IntoEvent, Outbox, Receipt, WriteError};
use sea_orm::{DatabaseTransaction, DbBackend, DbErr, RuntimeErr};

use crate::count::Mark;
use crate::database::{NotOpen, SeaOrmStore, commit, expect_open, expect_same, number_of_open, roll_back, undo};
use crate::insert::{Inserted, Kept, Refused, are_there, how_many_are_there, insert};

/// A transaction of SeaORM's in which entities and events go together. From
/// [`begin_on`](crate::OutboxExt::begin_on) and [`transaction_on`](crate::OutboxExt::transaction_on).
///
/// Entities run on `&tx`, for it is a connection of SeaORM's. It dereferences to SeaORM's [`DatabaseTransaction`], too. Dropping it
/// rolls back.
///
/// It may end before its time: when a call in it was cut off, when a savepoint in it failed, or when the database has rolled it
/// back. Calls of this type are refused from then on, and so are statements on `&tx`. `&*tx` panics, because SeaORM's
/// transaction is gone.
///
/// MySQL rolls back after a deadlock, and SQLite after an `INSERT OR ROLLBACK` or when the disk is full; what comes next would be
/// stored on its own. So after a statement on `&tx` that failed, the next one is run only if the transaction is still open. What is
/// done on `&*tx` is SeaORM's affair: between such an error and the next call of this type it is stored on its own. The commit is
/// refused in either case.
///
/// What SeaORM's own `begin` has begun inside of it should have ended before its commit. What has not is committed, too.
///
/// On MySQL and MariaDB let your own statements come to their end, or run them in a task: sqlx waits for ever on a connection
/// on which one was dropped in the middle, and SeaORM cannot close it. Calls of this type are safe there, too.
pub struct Transaction<S: SeaOrmStore> {
    pub(crate) outbox: Outbox<S>,
    /// Nothing after the end, which a call that was cut off is, too.
    pub(crate) own: Option<Own>,
    /// How it had ended, if it had before its time.
    pub(crate) ended: Ended,
}

/// What runs on as a task when the caller of a statement is gone. Dropped, it rolls back.
pub(crate) struct Own {
    /// Those that are open, the innermost last. Before the transaction around them.
    pub(crate) savepoints: Vec<DatabaseTransaction>,
    tx: DatabaseTransaction,
    /// On SQLite.
    mark: Option<Mark>,
    /// Who has it runs a statement.
    turn: Mutex<()>,
    /// Whether somebody had SeaORM's transaction since our last write outside of any inner one.
    lent: AtomicBool,
    /// Whether somebody may have ended it by a statement of his own, or begun another one inside of it.
    out_of_sight: AtomicBool,
    /// How many statements on it have failed or were cut off.
    failed: AtomicUsize,
    /// After how many of them it was open.
    open_after: AtomicUsize,
    /// After the transaction, so that its rollback is under way when it is told.
    pub(crate) written: Written,
}

impl<S: SeaOrmStore> Transaction<S> {
    pub(crate) fn new(outbox: Outbox<S>, tx: DatabaseTransaction, mark: Option<Mark>) -> Self {
        let own = Own {
            savepoints: Vec::new(),
            tx,
            mark,
            turn: Mutex::default(),
            lent: AtomicBool::new(false),
            out_of_sight: AtomicBool::new(false),
            failed: AtomicUsize::new(0),
            open_after: AtomicUsize::new(0),
            written: Written::default(),
        };
        Self { outbox, own: Some(own), ended: Ended::RolledBack }
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
        let Some(own) = self.take() else {
            let error = WriteError::of_store(receipt.rows_to_insert(), ended());
            receipt.never_written();
            return Err(error);
        };
        let outbox = self.outbox.clone();
        let (own, written) = self.outbox.finish(async move { own.write(outbox.store(), receipt).await }).await;
        self.set(own);
        written
    }

    /// Takes it for a call. If that is cut off, it is rolled back, and so is all of it that nobody has committed before.
    pub(crate) fn take(&mut self) -> Option<Own> {
        let own = self.own.take()?;
        self.ended = if own.is_out_of_sight() { Ended::PerhapsCommitted } else { Ended::RolledBack };
        Some(own)
    }

    /// Takes back what a call was given, or takes note of how it had ended.
    pub(crate) fn set(&mut self, own: Result<Own, Ended>) {
        match own {
            Ok(own) => self.own = Some(own),
            Err(ended) => self.ended = ended,
        }
    }

    /// Commits. Its events are delivered from here on.
    ///
    /// # Errors
    /// Says whether it is certain that nothing was committed; on PostgreSQL that is so when a statement had failed. When it is
    /// not certain, and it was committed, its events are delivered.
    ///
    /// A COMMIT of your own, or a statement that commits by itself, may have come before. So if anything but plain statements
    /// has run on `&tx`, or you had `&*tx`, it is certain only if an event shows it that was written before that.
    ///
    /// # Cancellation
    /// Safe: a commit that was begun goes on to its end, and so does what follows it.
    pub async fn commit(mut self) -> Result<(), CommitError> {
        let own = self.own.take().ok_or_else(|| self.ended.commit_error(ended()))?;
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
        self.lent.store(true, Ordering::Relaxed);
        &self.tx
    }

    /// What is done from here on may end it, and nobody tells.
    pub(crate) fn lose_sight(&self) {
        self.out_of_sight.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_out_of_sight(&self) -> bool {
        self.out_of_sight.load(Ordering::Relaxed)
    }

    /// To be kept while it is asked whether a statement may run, and while it does. As with SeaORM's own lock, it is nobody's while
    /// who waits for it is not polled.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// SeaORM's, unless a statement has failed and the transaction is not open any more.
    pub(crate) async fn connection_in_order<S: SeaOrmStore>(&self, store: &S) -> Result<&DatabaseTransaction, DbErr> {
        let failed = self.failed.load(Ordering::Acquire);
        // PostgreSQL says so itself.
        if S::BACKEND != DbBackend::Postgres && failed != self.open_after.load(Ordering::Acquire) {
            if let Err(NotOpen { error, ended }) = expect_open(store, &self.tx, self.mark).await {
                return Err(if ended { gone() } else { DbErr::Conn(RuntimeErr::Internal(error.to_string())) });
            }
            self.open_after.fetch_max(failed, Ordering::AcqRel);
        }
        Ok(self.connection())
    }

    /// To be kept while a statement runs, and forgotten when it has succeeded.
    pub(crate) fn question(&self) -> Question<'_> {
        Question(&self.failed)
    }

    /// The same, unless SQLite has ended it. A savepoint would begin another one then, and its end store what is in it.
    /// Elsewhere the database refuses the savepoint, or what is written in it.
    pub(crate) async fn still_open<S: SeaOrmStore>(self, store: &S) -> Result<Self, (Error, Ended)> {
        if S::BACKEND == DbBackend::Sqlite
            && let Err(NotOpen { error, ended: true }) = expect_open(store, &self.tx, self.mark).await
        {
            return Err((error, self.give_up(store).await));
        }
        Ok(self)
    }

    /// Gives itself back, unless it has ended.
    async fn write<S: SeaOrmStore>(
        mut self,
        store: &S,
        receipt: Receipt,
    ) -> (Result<Self, Ended>, Result<Vec<EventId>, WriteError>) {
        let Refused { error, partly, ended } = match insert(store, &self.tx, self.mark, receipt.rows_to_insert()).await
        {
            Ok(inserted) => {
                let ids = receipt.ids();
                // Of what was written inside of something else it is not known what has gone with it.
                if self.savepoints.is_empty() && !self.is_out_of_sight() && self.written.telling.is_none() {
                    self.written.telling = telling(store, receipt.rows_to_insert());
                }
                self.written.receipts.push((receipt, inserted));
                // Whoever has an inner one has all of it.
                if inserted.kept == Kept::Surely {
                    *self.lent.get_mut() = false;
                }
                return (Ok(self), Ok(ids));
            }
            Err(refused) => refused,
        };
        let error = WriteError::of_store(receipt.rows_to_insert(), error);
        if partly {
            self.written.receipts.push((receipt, Inserted { kept: Kept::Perhaps, txid: None }));
        } else {
            receipt.never_written();
        }
        if ended {
            return (Err(self.give_up(store).await), Err(error));
        }
        (Ok(self), Err(error))
    }

    async fn commit<S: SeaOrmStore>(mut self, store: &S) -> Result<(), CommitError> {
        let all = match self.expect_committable(store).await {
            Ok(all) => all,
            Err(error) => return Err(self.give_up(store).await.commit_error(error)),
        };
        match commit(store, &self.tx).await {
            Err(CommitError::NotCommitted(error)) => Err(self.give_up(store).await.commit_error(error)),
            committed => {
                let receipt = self.written.take_receipt(all);
                // The connection is free before anybody hears of it.
                drop(self);
                match (receipt, &committed) {
                    (Some(receipt), Ok(())) => receipt.dispatch(),
                    (receipt, _) => drop(receipt),
                }
                committed
            }
        }
    }

    /// Fails unless it is the one that was begun, as far as the database says before the commit. Says whether all that was written
    /// is in it.
    async fn expect_committable<S: SeaOrmStore>(&mut self, store: &S) -> Result<bool, Error> {
        expect_same(store, &self.tx, self.mark).await.map_err(|not_open| not_open.error)?;
        // The rollback of a savepoint undoes what SeaORM has begun inside of it, if that is still open, and leaves the rest.
        let undone: Vec<_> = self.written.undone.iter().collect();
        if how_many_are_there(store, &self.tx, &undone).await? > 0 {
            return Err(Error::Refused(NOT_UNDONE.into()));
        }
        if S::BACKEND == DbBackend::Postgres && !self.written.receipts.is_empty() {
            let open = if *self.lent.get_mut() { number_of_open(&self.tx).await } else { self.written.last_txid() };
            self.written.doubt_unless(open);
        }
        // A savepoint of SeaORM's that was undone, or an error after which the database has rolled back by itself.
        are_there(store, &self.tx, &self.written.in_doubt()).await
    }

    async fn rollback<S: SeaOrmStore>(self, store: &S) -> Result<(), Error> {
        let Self { savepoints, tx, mark, written, .. } = self;
        drop(savepoints);
        let rolled_back = roll_back(store, tx, mark).await;
        drop(written);
        rolled_back
    }

    /// Ends what the database has ended, or will not commit, and says how it has ended.
    pub(crate) async fn give_up<S: SeaOrmStore>(mut self, store: &S) -> Ended {
        self.savepoints.clear();
        if let Err(error) = undo::<S>(&self.tx).await {
            tracing::debug!(%error, "there was nothing left to roll back");
        }
        let ended = if self.was_rolled_back(store).await { Ended::RolledBack } else { Ended::PerhapsCommitted };
        if ended == Ended::PerhapsCommitted {
            drop(self.written.take_receipt(true));
        }
        if let Err(error) = self.rollback(store).await {
            tracing::debug!(%error, "there was nothing left to roll back");
        }
        ended
    }

    /// Whether it is certain, once it has ended, that nothing of it is stored.
    async fn was_rolled_back<S: SeaOrmStore>(&self, store: &S) -> bool {
        // A rollback takes the mark away, and nothing else does.
        if let Some(mark) = self.mark {
            return matches!(mark.is_there(&self.tx).await, Ok(false));
        }
        // No database commits anything by itself.
        if !self.is_out_of_sight() {
            return true;
        }
        let Some(telling) = &self.written.telling else { return false };
        matches!(how_many_are_there(store, &self.tx, &[telling]).await, Ok(0))
    }
}

/// The first of these rows that is in the table for as long as it matters, if it was committed: one that is delivered may be deleted,
/// but for as long as it is leased to us nobody else delivers it.
fn telling<S: SeaOrmStore>(store: &S, rows: &[NewRow]) -> Option<EventId> {
    let stays = |row: &&NewRow| row.lease.is_some() || !store.deletes_done();
    rows.iter().find(stays).map(|row| row.event.id().clone())
}

/// How a transaction had ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    RolledBack,
    /// By a statement of somebody's own.
    PerhapsCommitted,
}

impl Ended {
    fn commit_error(self, error: Error) -> CommitError {
        match self {
            Self::RolledBack => CommitError::NotCommitted(error),
            Self::PerhapsCommitted => CommitError::Unknown(error),
        }
    }
}

/// Dropped, it calls into question whether the transaction is open.
pub(crate) struct Question<'t>(&'t AtomicUsize);

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl<S: SeaOrmStore> Drop for Transaction<S> {
    fn drop(&mut self) {
        // If SQLite has rolled it back by itself, the driver needs help.
        if S::BACKEND == DbBackend::Sqlite
            && let Some(Own { savepoints, tx, mark, written, .. }) = self.own.take()
        {
            let outbox = self.outbox.clone();
            let rollback = self.outbox.finish(async move {
                drop(savepoints);
                roll_back(outbox.store(), tx, mark).await
            });
            // What was begun goes on as a task.
            drop(pin!(rollback).poll(&mut Context::from_waker(Waker::noop())));
            drop(written);
        }
    }
}

/// The receipts for what was written. Dropped, it was rolled back.
#[derive(Default)]
pub(crate) struct Written {
    receipts: Vec<(Receipt, Inserted)>,
    /// What was written in savepoints that were undone.
    undone: Vec<EventId>,
    /// One that is surely in the transaction which was begun, and shows by its absence that it was rolled back.
    telling: Option<EventId>,
}

impl Written {
    /// How many writes there were.
    pub(crate) fn len(&self) -> usize {
        self.receipts.len()
    }

    /// What was written after that many was undone, or so it seems.
    pub(crate) fn forget_since(&mut self, writes: usize, certain: bool) {
        let receipts = self.receipts.split_off(writes.min(self.receipts.len()));
        let mut undone = Self { receipts, undone: Vec::new(), telling: None };
        self.undone.extend(undone.ids().into_iter().cloned());
        if !certain {
            drop(undone.take_receipt(true));
        }
    }

    fn ids(&self) -> Vec<&EventId> {
        self.receipts.iter().flat_map(|(receipt, _)| receipt.rows()).map(|row| row.event.id()).collect()
    }

    /// In which transaction the last was written, on PostgreSQL.
    fn last_txid(&self) -> Option<i64> {
        self.receipts.iter().rev().find_map(|(_, inserted)| inserted.txid)
    }

    /// What was written in another transaction than this one, which somebody has begun in its place, may be gone.
    fn doubt_unless(&mut self, open: Option<i64>) {
        for (_, inserted) in &mut self.receipts {
            if inserted.txid.is_some() && inserted.txid != open {
                inserted.kept = Kept::Perhaps;
            }
        }
    }

    fn in_doubt(&self) -> Vec<&EventId> {
        let in_doubt = self.receipts.iter().filter(|(_, inserted)| inserted.kept == Kept::Perhaps);
        in_doubt.flat_map(|(receipt, _)| receipt.rows()).map(|row| row.event.id()).collect()
    }

    /// One receipt for all of it. What was in doubt is left to the poller, unless all of it is there.
    fn take_receipt(&mut self, all_there: bool) -> Option<Receipt> {
        let receipts = std::mem::take(&mut self.receipts).into_iter();
        let surely = receipts.map(|(receipt, inserted)| match inserted.kept {
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
        let own = self.own.as_ref().expect(ENDED);
        own.lose_sight();
        own.connection()
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

const NOT_UNDONE: &str = "a savepoint was undone while a transaction was open that SeaORM had begun inside of it, so that what was \
                          written in it was left; all of it is rolled back, so do it again, and end the inner one first";

pub(crate) fn ended() -> Error {
    Error::Refused(ENDED.into())
}

/// The same, to who expects an error of SeaORM's.
pub(crate) fn gone() -> DbErr {
    DbErr::Conn(RuntimeErr::Internal(ENDED.to_owned()))
}
