//! Transactions.

use std::fmt;
use std::ops::{Deref, DerefMut};

use posthaste_core::EventId;
use posthaste_core::store::{CommitError, Error, NewRow, WriteStore};
use sqlx::Transaction;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnection, PgTransactionManager, Postgres};
use sqlx_core::transaction::TransactionManager;

use super::{PgStore, fault};
use crate::savepoint;
use crate::warm::{Warm, WarmConnection};

/// PostgreSQL answers the COMMIT of a transaction in which a statement had failed with success, and rolls back. The first
/// of these statements is refused there; otherwise it checks what the commit would check, so it costs nothing. The chain
/// lets sqlx end a transaction that it still counts as open, together with the return of the connection to its pool.
const COMMIT: &str = "SET CONSTRAINTS ALL IMMEDIATE; COMMIT AND CHAIN";

/// No active transaction; no such savepoint, as in another one.
const NO_SAVEPOINT: [&str; 2] = ["25P01", "3B001"];

/// How many connections that have died in the pool a begin passes by.
const MOST_STALE: usize = 3;

/// A transaction of a [`PgStore`]. Comes with the feature `postgres`.
///
/// It is used as an sqlx transaction is, through `&mut *tx`. Dropping it rolls it back.
pub struct PgTx {
    /// Nothing after the end.
    connection: Option<WarmConnection<Postgres>>,
    /// Whether the server has answered its BEGIN.
    answered: bool,
}

impl Deref for PgTx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("a transaction ends by value")
    }
}

impl DerefMut for PgTx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("a transaction ends by value")
    }
}

impl Drop for PgTx {
    fn drop(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        // sqlx would not roll back what it does not count as begun yet.
        if !self.answered {
            connection.close_on_drop();
        }
        // Goes out with the return of the connection to its pool.
        while PgTransactionManager::get_transaction_depth(connection) > 0 {
            PgTransactionManager::start_rollback(connection);
        }
    }
}

impl fmt::Debug for PgTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgTx").finish_non_exhaustive()
    }
}

impl PgStore {
    /// As the pool begins one, or on a connection that comes from the transaction before, if there is one.
    async fn try_begin(&self, warm: Option<&Warm<Postgres>>) -> Result<PgTx, sqlx::Error> {
        let connection = match warm.and_then(Warm::take) {
            Some(connection) => connection,
            None => self.acquire().await?,
        };
        let mut tx = PgTx { connection: Some(connection), answered: false };
        let begun = PgTransactionManager::begin(&mut tx, None).await;
        tx.answered = true;
        begun.map(|()| tx)
    }

    /// What it means for the transaction around it that a savepoint could not be set, undone or ended.
    fn lost(&self, error: sqlx::Error) -> CommitError {
        let code = error.as_database_error().and_then(DatabaseError::code);
        let gone = code.is_some_and(|code| NO_SAVEPOINT.contains(&&*code));
        savepoint::lost(gone, self.fault(error))
    }
}

impl WriteStore for PgStore {
    type Connection = PgConnection;
    type Tx<'c> = Transaction<'c, Postgres>;
    type OwnTx = PgTx;

    async fn begin(&self) -> Result<PgTx, Error> {
        let mut warm = self.warm.as_ref().filter(|_| !self.failover.is_suspected());
        let mut passed = 0;
        loop {
            match self.try_begin(warm).await {
                Err(error) if passed < MOST_STALE && fault::is_stale(&error) => {
                    tracing::debug!(%error, "passing by a dead connection");
                    // Those beside it are likely to be dead, too.
                    match warm.take() {
                        Some(warm) => warm.clear(),
                        None => passed += 1,
                    }
                }
                begun => return begun.map_err(|error| self.fault(error)),
            }
        }
    }

    /// # Errors
    /// Any of them ends the transaction, also a duplicate id: it can only be rolled back, unless it is rolled back to a
    /// savepoint before the insert.
    async fn insert(&self, connection: &mut PgConnection, rows: &[NewRow]) -> Result<(), Error> {
        // A savepoint that was refused or cut off takes the whole transaction along.
        if PgTransactionManager::get_transaction_depth(connection) == 0 {
            return Err(savepoint::ended());
        }
        self.insert_rows(connection, rows).await
    }

    /// # Errors
    /// [`CommitError::NotCommitted`] also when a statement of the transaction had failed.
    async fn commit(&self, mut tx: PgTx) -> Result<(), CommitError> {
        if self.depth(&tx) == 0 {
            return Err(CommitError::NotCommitted(savepoint::ended()));
        }
        let committed = sqlx::raw_sql(COMMIT).execute(&mut *tx).await;
        committed.map(drop).map_err(|error| fault::classify_commit(error, self.table()))
    }

    /// Looks for the events in the message of the commit: a savepoint may have been undone of which nobody knew, or another
    /// transaction be open in place of the one that was begun.
    ///
    /// # Errors
    /// As those of [`commit`](WriteStore::commit).
    async fn commit_lent(&self, tx: PgTx, firsts: Vec<EventId>) -> Result<Vec<EventId>, CommitError> {
        if firsts.is_empty() || self.looks.are_refused() {
            return self.commit(tx).await.map(|()| firsts);
        }
        if self.depth(&tx) == 0 {
            return Err(CommitError::NotCommitted(savepoint::ended()));
        }
        self.commit_looking(tx, firsts).await
    }

    /// As sqlx commits, which costs less: the insert would have failed in a transaction that has failed.
    async fn commit_inserted(&self, mut tx: PgTx) -> Result<(), CommitError> {
        // Somebody may have begun a savepoint and forgotten it: sqlx would end that one, and nothing else.
        if PgTransactionManager::get_transaction_depth(&tx) != 1 {
            return self.commit(tx).await;
        }
        let committed = PgTransactionManager::commit(&mut tx).await;
        committed.map_err(|error| fault::classify_commit(error, self.table()))?;
        if let (Some(warm), Some(connection)) = (&self.warm, tx.connection.take()) {
            warm.keep(connection);
        }
        Ok(())
    }

    async fn rollback(&self, mut tx: PgTx) -> Result<(), Error> {
        PgTransactionManager::rollback(&mut tx).await.map_err(|error| self.fault(error))
    }

    fn depth(&self, connection: &PgConnection) -> usize {
        PgTransactionManager::get_transaction_depth(connection)
    }

    async fn savepoint(&self, connection: &mut PgConnection) -> Result<(), CommitError> {
        // sqlx would begin another transaction.
        if self.depth(connection) == 0 {
            return Err(CommitError::NotCommitted(savepoint::ended()));
        }
        PgTransactionManager::begin(connection, None).await.map_err(|error| self.lost(error))
    }

    async fn release_savepoint(&self, connection: &mut PgConnection, depth: usize) -> Result<(), Error> {
        savepoint::expect(self.depth(connection), depth)?;
        PgTransactionManager::commit(connection).await.map_err(|error| self.fault(error))
    }

    async fn undo_savepoint(&self, connection: &mut PgConnection, depth: usize) -> Result<(), CommitError> {
        savepoint::expect(self.depth(connection), depth).map_err(CommitError::NotCommitted)?;
        let undone = async {
            PgTransactionManager::rollback(connection).await?;
            sqlx::raw_sql(savepoint::release(depth)).execute(connection).await
        };
        undone.await.map(drop).map_err(|error| self.lost(error))
    }

    fn abandon_savepoint(&self, connection: &mut PgConnection) {
        PgTransactionManager::start_rollback(connection);
    }

    async fn end_abandoned(&self, connection: &mut PgConnection, depth: usize) -> Result<(), CommitError> {
        savepoint::expect_abandoned(self.depth(connection), depth).map_err(CommitError::NotCommitted)?;
        let ended = sqlx::raw_sql(savepoint::release(depth)).execute(connection).await;
        ended.map(drop).map_err(|error| self.lost(error))
    }

    fn abandon_all(&self, connection: &mut PgConnection) {
        while self.depth(connection) > 1 {
            PgTransactionManager::start_rollback(connection);
        }
    }
}
