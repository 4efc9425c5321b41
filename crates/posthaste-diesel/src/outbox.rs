//! What an outbox can do on connections of diesel-async.

use std::future::Future;

use diesel_async::AsyncConnection;
use posthaste_core::{IntoEvent, Outbox, Receipt, TransactionError, WriteError};

use crate::insert::{self, Known, Written};
use crate::store::DieselStore;
use crate::transaction::{self, Transaction};

/// Writes events in transactions of diesel-async. The front page of this crate has examples.
pub trait OutboxExt<S: DieselStore> {
    /// Runs a closure in a transaction on this connection: it commits when the closure returns `Ok`, and its events are delivered
    /// from there on. It rolls back when the closure returns `Err` or panics.
    ///
    /// What the closure gets is used as the connection is, and [`write`](Transaction::write) writes an event.
    ///
    /// For another isolation level, `tx.batch_execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")` first. Nothing is tried again
    /// by itself.
    ///
    /// # Errors
    /// What the closure returns; or, turned into its error, why the transaction could not begin or commit. A transaction in which a
    /// statement has failed is not committed on PostgreSQL, even if the closure returns `Ok`:
    /// [`CommitError::NotCommitted`](posthaste_core::CommitError::NotCommitted) says so. Where nobody knows whether it was committed,
    /// since the connection was lost in the commit, the server does not know itself, or a statement of the closure's own has ended the
    /// transaction, it is [`CommitError::Unknown`](posthaste_core::CommitError::Unknown); if it was, the poller delivers its events. It
    /// does not begin inside of another one,
    /// after whose commit nobody would deliver: write in that by [`write_in`](Self::write_in), or in a savepoint of its
    /// [`Transaction`]. In a test transaction of diesel, which is never committed, it is a savepoint, and delivers nothing.
    ///
    /// # Cancellation
    /// The transaction is not committed, unless it was just about to be. The connection cannot tell its server any more: diesel-async
    /// begins no other transaction on it, and its pools part with it. Drop it, and the transaction is rolled back.
    fn transaction_on<'c, C, T, E, F>(&self, conn: &'c mut C, work: F) -> impl Future<Output = Result<T, E>> + Send
    where
        C: ConnectionTo<S>,
        for<'t> F: AsyncFnOnce(&'t mut Transaction<'c, C, S>) -> Result<T, E>
            + AsyncWork<&'t mut Transaction<'c, C, S>, Result<T, E>, Running: Send>
            + Send,
        T: Send,
        E: From<TransactionError> + Send;

    /// Writes an event in the transaction that is open on this connection. Call [`Receipt::dispatch`] after its commit; without it
    /// the poller delivers the event, a little later.
    ///
    /// # Errors
    /// When no transaction is open, also because SQLite has rolled it back by itself, when the event is not acceptable or the database
    /// does not take it.
    ///
    /// # Cancellation
    /// Whether the event was inserted is then open; roll the transaction back.
    fn write_in<C, E>(&self, conn: &mut C, event: E) -> impl Future<Output = Result<Receipt, WriteError>> + Send
    where
        C: ConnectionTo<S>,
        E: IntoEvent + Send;

    /// Writes several events in the transaction that is open on this connection, in few statements. Otherwise like
    /// [`write_in`](Self::write_in).
    ///
    /// # Errors
    /// As those of [`write_in`](Self::write_in); none of them is written then.
    fn write_all_in<C, E, I>(
        &self,
        conn: &mut C,
        events: I,
    ) -> impl Future<Output = Result<Receipt, WriteError>> + Send
    where
        C: ConnectionTo<S>,
        E: IntoEvent,
        I: IntoIterator<Item = E> + Send;
}

/// A connection of diesel-async to the database in which a store has its table. Every [`AsyncConnection`] to it is one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no connection of diesel-async to the database of `{S}`",
    label = "not a connection to that database",
    note = "if it is a pool, get a connection first: `outbox.transaction_on(&mut pool.get().await?, async |tx| …)`",
    note = "`PgStore` goes with `AsyncPgConnection`, and `SqliteStore` with `SyncConnectionWrapper<SqliteConnection>`"
)]
pub trait ConnectionTo<S: DieselStore>: AsyncConnection<Backend = S::Backend> {}

#[diagnostic::do_not_recommend]
impl<S: DieselStore, C: AsyncConnection<Backend = S::Backend>> ConnectionTo<S> for C {}

/// An async closure, by the future that it returns: `AsyncFnOnce` alone cannot ask that it be [`Send`]. Every fitting async closure
/// implements it.
pub trait AsyncWork<A, R>: FnOnce(A) -> Self::Running {
    /// The closure while it runs.
    type Running: Future<Output = R>;
}

impl<F, A, R, Running> AsyncWork<A, R> for F
where
    F: FnOnce(A) -> Running,
    Running: Future<Output = R>,
{
    type Running = Running;
}

impl<S: DieselStore> OutboxExt<S> for Outbox<S> {
    async fn transaction_on<'c, C, T, E, F>(&self, conn: &'c mut C, work: F) -> Result<T, E>
    where
        C: ConnectionTo<S>,
        for<'t> F: AsyncFnOnce(&'t mut Transaction<'c, C, S>) -> Result<T, E>
            + AsyncWork<&'t mut Transaction<'c, C, S>, Result<T, E>, Running: Send>
            + Send,
        T: Send,
        E: From<TransactionError> + Send,
    {
        transaction::run(self, conn, work).await
    }

    async fn write_in<C, E>(&self, conn: &mut C, event: E) -> Result<Receipt, WriteError>
    where
        C: ConnectionTo<S>,
        E: IntoEvent + Send,
    {
        insert::write(self, conn, [event], Known::Nothing).await.map(Written::into_receipt)
    }

    async fn write_all_in<C, E, I>(&self, conn: &mut C, events: I) -> Result<Receipt, WriteError>
    where
        C: ConnectionTo<S>,
        E: IntoEvent,
        I: IntoIterator<Item = E> + Send,
    {
        insert::write(self, conn, events, Known::Nothing).await.map(Written::into_receipt)
    }
}
