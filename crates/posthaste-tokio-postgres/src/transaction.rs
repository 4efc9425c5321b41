//! A transaction of the outbox's own, on a client that is yours.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{TryStreamExt, future};
use posthaste_core::store::{self, CommitError, NewRow};
use posthaste_core::{EventId, IntoEvent, Outbox, Receipt, WriteError};
use posthaste_sql::PgStore;
use tokio_postgres::{Error, SimpleQueryMessage, SimpleQueryStream};

use crate::begin::LibraryTransaction;
use crate::fault;
use crate::insert::{Failure, Inserted, Place, insert};
use crate::savepoint::NOT_UNDONE;

/// Asked together with the commit: PostgreSQL answers the COMMIT of a transaction in which a statement had failed with
/// success, and rolls back, and it answers one without a transaction with success, too. This is refused in both cases,
/// and otherwise ends with the commit.
const STILL_OPEN: &str = "SAVEPOINT posthaste_commit";

/// The same, and which transaction it is.
const WHICH_IS_OPEN: &str = "SELECT txid_current_if_assigned(); SAVEPOINT posthaste_commit";

/// A transaction in which your own statements and events go together.
///
/// Dereferences to the transaction of the library, so it is used like one. Dropping it rolls back.
///
/// ```no_run
/// # mod posthaste {
/// #     pub use {posthaste_core::*, posthaste_sql::*, posthaste_tokio_postgres as tokio_postgres};
/// # }
/// use posthaste::tokio_postgres::OutboxExt;
/// use posthaste::{Event, Outbox, PgStore};
/// use tokio_postgres::Client;
///
/// # async fn example(outbox: Outbox<PgStore>, client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = outbox.begin_on(client).await?;
/// tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&42_i64]).await?;
/// tx.write(Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")).await?;
/// tx.commit().await?; // delivered from here on
/// # Ok(())
/// # }
/// ```
///
/// A savepoint that the library sets in it is still open after its rollback, and so is one by a statement of your own.
/// The outbox sees it when it writes, and leaves the event to the poller, which delivers it after the commit if it is there.
/// [`savepoint`](Self::savepoint) needs no such care. In a table in partitions no savepoint can be seen, so that the poller
/// delivers everything that is not written in one of ours.
///
/// If you end it by a statement of your own and begin another in its place (`ROLLBACK; BEGIN`), that one is committed. The poller then
/// sees which of the events are there.
#[must_use = "dropped, it is rolled back"]
pub struct Transaction<T: LibraryTransaction> {
    outbox: Outbox<PgStore>,
    /// Nothing after the end.
    tx: Option<T>,
    /// What was written, in its order.
    pub(crate) written: Vec<Written>,
    /// Whether somebody had the library's transaction since our last write.
    lent: AtomicBool,
    /// How many savepoints of ours are open.
    pub(crate) savepoints: usize,
    /// Whether something is in it that should have been undone.
    pub(crate) spoilt: bool,
}

/// What was written at once.
pub(crate) struct Written {
    receipt: Receipt,
    /// The number of the transaction in which that was, if it is known.
    txid: Option<i64>,
    /// Whether it was in a savepoint of ours, around or in which there may be one by a statement of somebody's own.
    in_savepoint: bool,
}

impl Written {
    fn doubted(self) -> Self {
        match self.in_savepoint {
            true => Self { receipt: self.receipt.nested(), in_savepoint: false, ..self },
            false => self,
        }
    }
}

impl<T: LibraryTransaction> Transaction<T> {
    pub(crate) fn new(outbox: Outbox<PgStore>, tx: T) -> Self {
        let lent = AtomicBool::new(false);
        Self { outbox, tx: Some(tx), written: Vec::new(), lent, savepoints: 0, spoilt: false }
    }

    /// Writes an event: a built one, its builder, or a typed one. Gives its id, unless a hook took the event away.
    ///
    /// # Errors
    /// When the event is not acceptable or the database does not take it. If it was the database, the transaction can
    /// only be rolled back, at least to a savepoint before the write.
    ///
    /// # Cancellation
    /// Whether the event was inserted is then open; if the transaction commits with it, the poller delivers it.
    pub async fn write(&mut self, event: impl IntoEvent + Send) -> Result<Option<EventId>, WriteError> {
        Ok(self.write_all([event]).await?.pop())
    }

    /// Writes several events, in few statements. Gives the ids of those that were written, in their order.
    ///
    /// # Errors
    /// When an event is not acceptable or the database does not take them; none of them is written then. Otherwise like
    /// [`write`](Self::write).
    pub async fn write_all<E: IntoEvent>(
        &mut self,
        events: impl IntoIterator<Item = E>,
    ) -> Result<Vec<EventId>, WriteError> {
        let receipt = self.outbox.prepare(events)?;
        self.doubt_if_lent();
        let in_savepoint = self.savepoints > 0;
        let write = Write { receipt: Some(receipt), written: &mut self.written };
        let tx = self.tx.as_ref().expect(ENDED).plain();
        match insert(self.outbox.store(), tx, write.rows()).await {
            Ok(Inserted { place, txid }) => {
                if txid.is_some() {
                    *self.lent.get_mut() = false;
                }
                // A savepoint of ours says itself how it ends. Where nobody can see another one, there may be one.
                Ok(write.ended(place != Place::Transaction && !in_savepoint, txid, in_savepoint))
            }
            Err(Failure::Refused(error)) => Err(write.refused(error)),
            Err(Failure::Open(error)) => Err(WriteError::of_store(write.rows(), error)),
        }
    }

    /// Commits. Its events are delivered from here on.
    ///
    /// # Errors
    /// Says whether it is certain that nothing was committed, which is also so when a statement of the transaction had
    /// failed. When it is not certain, and it was committed, its events are delivered.
    ///
    /// # Cancellation
    /// A commit that was begun goes on to its end, unless a deadpool parts with its client at that moment, but nobody hears
    /// of it: if it was committed, the poller delivers its events.
    pub async fn commit(mut self) -> Result<(), CommitError> {
        self.doubt_if_lent();
        let tx = self.tx.take().expect(ENDED);
        let mut written = Ending(std::mem::take(&mut self.written));
        let asking = *self.lent.get_mut() && !written.0.is_empty();
        let committed = match self.spoilt {
            false => commit(self.store(), tx, asking).await,
            // Dropping it rolls back.
            true => Err(CommitError::NotCommitted(store::Error::Refused(NOT_UNDONE.into()))),
        };
        let receipt = match &committed {
            Ok(open) => {
                let last = written.0.iter().rev().find_map(|last| last.txid);
                written.join_of(if asking { *open } else { last })
            }
            Err(_) => written.join(),
        };
        match (&committed, receipt) {
            (_, None) => {}
            (Ok(_), Some(receipt)) => receipt.dispatch(),
            (Err(CommitError::NotCommitted(_)), Some(receipt)) => receipt.rolled_back(),
            // Dropped, it leaves it open.
            (Err(_), Some(receipt)) => drop(receipt),
        }
        committed.map(drop)
    }

    /// Rolls back: neither your statements nor the events happened.
    ///
    /// # Errors
    /// When the database did not confirm it; nothing is committed in any case.
    pub async fn rollback(mut self) -> Result<(), store::Error> {
        let tx = self.tx.take().expect(ENDED);
        // The hooks are told when this ends, be it that it is dropped.
        let rolled_back = tx.rollback().await;
        rolled_back.map_err(|error| fault::of_statement(self.store(), error))
    }

    /// Leaves to the poller what was written in savepoints of ours, if somebody had the library's transaction since: he may have rolled
    /// back to a savepoint of his own, around ours or in it, which is seen nowhere else.
    fn doubt_if_lent(&mut self) {
        if *self.lent.get_mut() {
            let written = std::mem::take(&mut self.written);
            self.written = written.into_iter().map(Written::doubted).collect();
        }
    }

    pub(crate) fn store(&self) -> &PgStore {
        self.outbox.store()
    }

    pub(crate) fn open(&self) -> &T {
        self.tx.as_ref().expect(ENDED)
    }
}

const ENDED: &str = "a transaction is consumed by its end";

/// Commits, and says which transaction that was, if it is to be asked.
async fn commit(store: &PgStore, tx: impl LibraryTransaction, asking: bool) -> Result<Option<i64>, CommitError> {
    let question = if asking { WHICH_IS_OPEN } else { STILL_OPEN };
    // Neither waits before it is sent, so both are, or none.
    let question = match tx.plain().client().simple_query_raw(question).await {
        Ok(question) => question,
        Err(error) => return Err(CommitError::NotCommitted(fault::of_statement(store, error))),
    };
    let (answer, committed) = future::join(answered(question), tx.commit()).await;
    let open = answer.and_then(|open| committed.map(|()| open));
    open.map_err(|error| fault::of_commit(store, error))
}

/// The end of a statement that was sent, and the number that it gave, if it gave one.
pub(crate) async fn answered(statement: SimpleQueryStream) -> Result<Option<i64>, Error> {
    let (mut statement, mut number) = (pin!(statement), None);
    while let Some(message) = statement.try_next().await? {
        if let SimpleQueryMessage::Row(row) = message {
            number = row.get(0).and_then(|number| number.parse().ok());
        }
    }
    Ok(number)
}

/// One receipt for all of these writes.
pub(crate) fn join(written: impl Iterator<Item = Written>) -> Option<Receipt> {
    written.map(|write| write.receipt).reduce(Receipt::and)
}

/// What a commit is about. Dropped before its end, which is then open.
struct Ending(Vec<Written>);

impl Ending {
    fn join(&mut self) -> Option<Receipt> {
        join(self.0.drain(..))
    }

    /// The same after a transaction of that number was committed. What was written in another one may be in the table.
    fn join_of(&mut self, committed: Option<i64>) -> Option<Receipt> {
        let receipts = self.0.drain(..).map(|Written { receipt, txid, .. }| match txid {
            Some(_) if txid != committed => receipt.nested(),
            _ => receipt,
        });
        receipts.reduce(Receipt::and)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        drop(self.join());
    }
}

impl<T: LibraryTransaction> Drop for Transaction<T> {
    fn drop(&mut self) {
        self.tx = None;
        if let Some(receipt) = join(self.written.drain(..)) {
            receipt.rolled_back();
        }
    }
}

impl<T: LibraryTransaction> Deref for Transaction<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.lent.store(true, Ordering::Relaxed);
        self.open()
    }
}

impl<T: LibraryTransaction> DerefMut for Transaction<T> {
    fn deref_mut(&mut self) -> &mut T {
        *self.lent.get_mut() = true;
        self.tx.as_mut().expect(ENDED)
    }
}

impl<T: LibraryTransaction> fmt::Debug for Transaction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("writes", &self.written.len()).finish_non_exhaustive()
    }
}

/// A write under way: dropped before its answer, its rows may or may not be in the transaction.
struct Write<'w> {
    receipt: Option<Receipt>,
    written: &'w mut Vec<Written>,
}

impl Write<'_> {
    fn rows(&self) -> &[NewRow] {
        self.receipt.as_ref().map_or(&[], Receipt::rows_to_insert)
    }

    fn ended(mut self, nested: bool, txid: Option<i64>, in_savepoint: bool) -> Vec<EventId> {
        let Some(receipt) = self.receipt.take() else { return Vec::new() };
        let ids = receipt.ids();
        let receipt = if nested { receipt.nested() } else { receipt };
        self.written.push(Written { receipt, txid, in_savepoint });
        ids
    }

    fn refused(mut self, error: store::Error) -> WriteError {
        let error = WriteError::of_store(self.rows(), error);
        if let Some(receipt) = self.receipt.take() {
            receipt.never_written();
        }
        error
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        // Like rows of a savepoint: if the transaction commits they may be there, and if it does not they are not.
        let write = |receipt: Receipt| Written { receipt: receipt.nested(), txid: None, in_savepoint: false };
        self.written.extend(self.receipt.take().map(write));
    }
}
