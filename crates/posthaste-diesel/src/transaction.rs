//! A transaction around a closure.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use diesel::QueryResult;
use diesel::connection::{InstrumentationEvent, TransactionDepthChange};
use diesel_async::{AsyncConnection, TransactionManager};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use posthaste_core::store::{CommitError, Error};
use posthaste_core::{EventId, IntoEvent, Outbox, Receipt, TransactionError, WriteError};

use crate::insert::Known;
use crate::outbox::AsyncWork;
use crate::store::DieselStore;
use crate::{fault, insert};

/// What is said to who begins one inside of another.
const INSIDE: &str = "a transaction is open on this connection already, after whose commit nobody would deliver: write in it by \
                      `outbox.write_in(&mut conn, …)`, or set a savepoint in it by `tx.transaction(async |tx| …)`";

/// What is said to who leaves a savepoint open.
const LEFT_OPEN: &str = "a transaction inside of this one was begun and not ended, perhaps because it was cut off, so all of it was \
                         rolled back";

/// Goes on after a transaction was found to be another. Refused if something else was the matter.
const BACK_TO_SAME: &str = "ROLLBACK TO SAVEPOINT posthaste_same";

/// A transaction on a connection of diesel-async, in which events are written together with your own statements.
///
/// From [`transaction_on`](crate::OutboxExt::transaction_on), which ends it. It dereferences to the connection, and is one itself for
/// diesel: pass it to `execute`, `load` and the like, and set a savepoint with `tx.transaction(async |tx| …)`.
pub struct Transaction<'c, C: AsyncConnection, S: DieselStore> {
    outbox: Outbox<S>,
    conn: &'c mut C,
    /// How deep the connection was before: 0, or 1 in a transaction of a test.
    base: u32,
    /// For what was written in the transaction itself.
    receipt: Option<Receipt>,
    /// The number of the transaction in which that was, where the database tells it.
    txid: Option<i64>,
    /// For what was written in savepoints, of which nobody says how they end.
    nested: Option<Receipt>,
    /// Whether somebody had the connection since our last statement on it, which went well.
    lent: AtomicBool,
    /// Whether somebody had it since the first write.
    in_doubt: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The COMMIT is on its way.
    Committing,
    Ended,
}

impl<C, S> Transaction<'_, C, S>
where
    C: AsyncConnection<Backend = S::Backend>,
    S: DieselStore,
{
    /// Writes an event: a built one, its builder, or a typed one. Gives its id, unless a hook took the event away.
    ///
    /// # Errors
    /// When the event is not acceptable or the database does not take it. After the latter PostgreSQL takes nothing more in this
    /// transaction, or in the savepoint that it happened in.
    ///
    /// # Cancellation
    /// Whether the event was inserted is then open; if the transaction commits with it, the poller delivers it.
    pub async fn write(&mut self, event: impl IntoEvent + Send) -> Result<Option<EventId>, WriteError> {
        Ok(self.write_all([event]).await?.pop())
    }

    /// Writes several events, in few statements. Gives the ids of those that were written, in their order.
    ///
    /// # Errors
    /// When an event is not acceptable or the database does not take them; none of them is written then.
    pub async fn write_all<E: IntoEvent>(
        &mut self,
        events: impl IntoIterator<Item = E> + Send,
    ) -> Result<Vec<EventId>, WriteError> {
        // It stays so if this fails or is cut off.
        let lent = std::mem::replace(self.lent.get_mut(), true);
        self.in_doubt |= lent && self.receipt.is_some();
        let known = if lent { Known::Begun } else { Known::Open };
        let written = insert::write(&self.outbox, &mut *self.conn, events, known).await?;
        let ids = written.receipt.ids();
        // Without rows there was no statement.
        *self.lent.get_mut() = lent && ids.is_empty();
        if !ids.is_empty() {
            if !written.nested && self.txid != written.txid {
                self.was_in_another();
                self.txid = written.txid;
            }
            let earlier = if written.nested { &mut self.nested } else { &mut self.receipt };
            *earlier = join(earlier.take(), Some(written.into_receipt()));
        }
        Ok(ids)
    }

    /// What was written before was not in the transaction that is open: a statement of the user's has begun another in its place.
    fn was_in_another(&mut self) {
        let before = self.receipt.take().map(Receipt::nested);
        self.nested = join(self.nested.take(), before);
    }

    async fn begin(&mut self) -> Result<(), TransactionError> {
        let begun = match S::BEGIN {
            Some(sql) if self.base == 0 => self.begin_by(sql).await,
            _ => C::TransactionManager::begin_transaction(self.conn).await,
        };
        begun.map_err(|error| {
            self.state = State::Ended;
            TransactionError::Begin(fault::of_control(self.outbox.store(), error))
        })
    }

    /// As diesel-async begins one, by a statement of our own.
    async fn begin_by(&mut self, sql: &str) -> QueryResult<()> {
        let begins = InstrumentationEvent::begin_transaction(NonZeroU32::MIN);
        self.conn.instrumentation().on_connection_event(begins);
        self.conn.batch_execute(sql).await?;
        let status = C::TransactionManager::transaction_manager_status_mut(self.conn);
        status.transaction_state()?.change_transaction_depth(TransactionDepthChange::IncreaseDepth)
    }

    async fn commit(mut self) -> Result<(), CommitError> {
        if let Err(error) = self.may_commit().await {
            if matches!(error, CommitError::Unknown(_)) {
                drop(self.take_receipt());
            }
            self.roll_back().await;
            return Err(error);
        }
        self.state = State::Committing;
        let Err(error) = C::TransactionManager::commit_transaction(self.conn).await else {
            self.state = State::Ended;
            match self.take_receipt() {
                Some(receipt) if self.base == 0 => receipt.dispatch(),
                // Only a savepoint was kept.
                unknown => drop(unknown),
            }
            return Ok(());
        };
        let certain = match fault::refuses_commit::<S>(&error) {
            Some(certain) => certain,
            // If it goes on talking, the error did not end the connection, but the transaction.
            None => self.conn.batch_execute("SELECT 1").await.is_ok(),
        };
        let error = fault::of_control(self.outbox.store(), error);
        let receipt = self.take_receipt();
        self.roll_back().await;
        if certain {
            receipt.into_iter().for_each(Receipt::rolled_back);
            Err(CommitError::NotCommitted(error))
        } else {
            Err(CommitError::Unknown(error))
        }
    }

    /// Whether a commit would be one, and what of the events will be there after it.
    async fn may_commit(&mut self) -> Result<(), CommitError> {
        let depth = insert::open(self.conn).map_err(CommitError::NotCommitted)?.depth;
        if depth <= self.base {
            return Err(CommitError::Unknown(Error::Refused(insert::ENDED.into())));
        }
        // diesel-async would end the savepoint, and nothing else.
        if depth > self.base + 1 {
            return Err(CommitError::NotCommitted(Error::Refused(LEFT_OPEN.into())));
        }
        if !*self.lent.get_mut() && !self.in_doubt {
            // A statement that failed would have been one of ours.
            return Ok(());
        }
        let same = self.receipt.as_ref().and(self.txid).and_then(S::expect_same);
        if let Some(question) = S::BEFORE_COMMIT
            && let Err(error) = self.conn.batch_execute(&[question, same.as_deref().unwrap_or_default()].concat()).await
        {
            // One that is another can be committed as well.
            if same.is_some() && self.conn.batch_execute(BACK_TO_SAME).await.is_ok() {
                self.was_in_another();
                return Ok(());
            }
            let error = fault::of_control(self.outbox.store(), error);
            // A transaction that has failed refuses this, too. Without one it may have been committed.
            let ended = self.conn.batch_execute("SELECT 1").await.is_ok();
            return Err(if ended { CommitError::Unknown(error) } else { CommitError::NotCommitted(error) });
        }
        let store = self.outbox.store();
        let ids = self.receipt.as_ref().map(Receipt::ids).unwrap_or_default();
        match store.are_there(self.conn, &ids).await {
            Ok(true) => {}
            // They were in a savepoint that was undone; the poller sees which.
            Ok(false) => self.receipt = self.receipt.take().map(Receipt::nested),
            Err(error) => return Err(CommitError::NotCommitted(fault::of_control(store, error))),
        }
        Ok(())
    }

    /// One receipt for everything.
    fn take_receipt(&mut self) -> Option<Receipt> {
        join(self.receipt.take(), self.nested.take())
    }

    /// Rolls back whatever is open. Where that fails, nobody is to use the connection again.
    async fn roll_back(&mut self) {
        if insert::is_cut_off(self.conn) {
            // diesel-async cannot do it any more. The rest of a test's transaction is not ours.
            if self.base == 0
                && let Err(error) = self.conn.batch_execute("ROLLBACK").await
            {
                tracing::debug!(%error, "a transaction could not be rolled back");
            }
            return;
        }
        while let Ok(before) = insert::open(self.conn)
            && before.depth > self.base
        {
            let rolled_back = C::TransactionManager::rollback_transaction(self.conn).await;
            let Err(error) = rolled_back else { continue };
            tracing::debug!(%error, "a transaction could not be rolled back");
            // A savepoint that is gone already; what is around it may be there.
            if !insert::open(self.conn).is_ok_and(|open| open.depth < before.depth) {
                return;
            }
        }
        self.state = State::Ended;
    }
}

/// Runs a closure in a transaction.
pub(crate) async fn run<'c, C, S, T, E, F>(outbox: &Outbox<S>, conn: &'c mut C, work: F) -> Result<T, E>
where
    C: AsyncConnection<Backend = S::Backend>,
    S: DieselStore,
    for<'t> F: AsyncWork<&'t mut Transaction<'c, C, S>, Result<T, E>, Running: Send> + Send,
    T: Send,
    E: From<TransactionError> + Send,
{
    let base = match insert::open(conn) {
        Ok(open) if open.depth == 0 || open.test => open.depth,
        Ok(_) => return Err(TransactionError::Begin(Error::Refused(INSIDE.into())).into()),
        Err(error) => return Err(TransactionError::Begin(error).into()),
    };
    let (outbox, lent, state) = (outbox.clone(), AtomicBool::new(false), State::Open);
    let (receipt, nested, txid) = (None, None, None);
    let mut tx = Transaction { outbox, conn, base, receipt, txid, nested, lent, in_doubt: false, state };
    tx.begin().await?;
    // Boxed, because the compiler cannot see of the closure's future that it is `Send` while its lifetime is open.
    let work: BoxFuture<'_, _> = Box::pin(work(&mut tx));
    let done = AssertUnwindSafe(work).catch_unwind().await;
    match done {
        Ok(Ok(value)) => {
            tx.commit().await.map_err(TransactionError::Commit)?;
            Ok(value)
        }
        Ok(Err(error)) => {
            tx.roll_back().await;
            Err(error)
        }
        Err(panic) => {
            tx.roll_back().await;
            resume_unwind(panic)
        }
    }
}

fn join(earlier: Option<Receipt>, later: Option<Receipt>) -> Option<Receipt> {
    earlier.into_iter().chain(later).reduce(Receipt::and)
}

impl<C: AsyncConnection, S: DieselStore> Drop for Transaction<'_, C, S> {
    fn drop(&mut self) {
        // What panics in diesel-async while a statement is dropped would panic here again, and end the process.
        if self.state != State::Ended && !std::thread::panicking() {
            // It is still open, and what comes next would be a savepoint in it that nobody commits.
            C::TransactionManager::transaction_manager_status_mut(self.conn).set_in_error();
        }
        match join(self.receipt.take(), self.nested.take()) {
            Some(receipt) if self.state != State::Committing => receipt.rolled_back(),
            unknown => drop(unknown),
        }
    }
}

impl<C: AsyncConnection, S: DieselStore> Deref for Transaction<'_, C, S> {
    type Target = C;

    /// A shared connection of PostgreSQL carries out statements, too.
    fn deref(&self) -> &C {
        self.lent.store(true, Ordering::Relaxed);
        self.conn
    }
}

impl<C: AsyncConnection, S: DieselStore> DerefMut for Transaction<'_, C, S> {
    fn deref_mut(&mut self) -> &mut C {
        *self.lent.get_mut() = true;
        self.conn
    }
}

impl<C: AsyncConnection, S: DieselStore> fmt::Debug for Transaction<'_, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written: usize =
            [&self.receipt, &self.nested].into_iter().flatten().map(|receipt| receipt.rows().count()).sum();
        f.debug_struct("Transaction").field("written", &written).finish_non_exhaustive()
    }
}
