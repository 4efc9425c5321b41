//! Transactions.

use std::fmt;
use std::ops::{Deref, DerefMut};

use posthaste_core::EventId;
use posthaste_core::store::{CommitError, Error, NewRow, WriteStore};
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePool, SqliteTransactionManager};
use sqlx::{Connection, SqlSafeStr, Transaction};
use sqlx_core::transaction::TransactionManager;

use super::gate::Turn;
use super::insert::Ask;
use super::{SqliteStore, fault, sql};
use crate::savepoint;
use crate::warm::{Warm, WarmConnection};

/// A transaction of a [`SqliteStore`], which is the only one of this process that writes while it is open. Comes
/// with the feature `sqlite`.
///
/// It is used as an sqlx transaction is, through `&mut *tx`. Dropping it rolls it back.
pub struct SqliteTx {
    // Dropped before the turn, so that the next writer finds the rollback under way. Nothing after the end.
    connection: Option<WarmConnection<Sqlite>>,
    _turn: Turn,
}

impl Deref for SqliteTx {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.connection.as_ref().expect("a transaction ends by value")
    }
}

impl DerefMut for SqliteTx {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.connection.as_mut().expect("a transaction ends by value")
    }
}

impl Drop for SqliteTx {
    fn drop(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        // Savepoints that somebody has begun and forgotten, too, and once more: see `abandon_all`.
        for _ in 0..=SqliteTransactionManager::get_transaction_depth(connection) {
            SqliteTransactionManager::start_rollback(connection);
        }
    }
}

impl fmt::Debug for SqliteTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTx").finish_non_exhaustive()
    }
}

impl WriteStore for SqliteStore {
    type Connection = SqliteConnection;
    type Tx<'c> = Transaction<'c, Sqlite>;
    type OwnTx = SqliteTx;

    /// Begins a transaction that writes from the start (`BEGIN IMMEDIATE`): one that first read and then writes would
    /// be refused, without any waiting, if another wrote in between.
    ///
    /// # Errors
    /// [`Error::Busy`] when another transaction of this process, or of another one, stays open for more than 5 s.
    async fn begin(&self) -> Result<SqliteTx, Error> {
        let turn = self.gate.enter().await?;
        let connection = self.try_begin().await.map_err(|error| self.fault(error))?;
        Ok(SqliteTx { connection: Some(connection), _turn: turn })
    }

    async fn insert(&self, connection: &mut SqliteConnection, rows: &[NewRow]) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        self.insert_rows(connection, rows, Ask::Afterwards).await
    }

    /// Asks first: a row that is stored on its own, for however short a time, may be delivered by whoever polls, who has to wait
    /// for nobody's turn.
    async fn insert_into(&self, connection: &mut SqliteConnection, rows: &[NewRow]) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        self.expect_open(connection).await?;
        self.insert_rows(connection, rows, Ask::Before).await
    }

    async fn commit(&self, mut tx: SqliteTx) -> Result<(), CommitError> {
        self.caught_up(&mut tx).await.map_err(CommitError::NotCommitted)?;
        self.commit_inserted(tx).await
    }

    /// Looks for the rows, which costs no more than to catch up: another transaction may be open in place of the one that was
    /// begun, or a savepoint undone of which nobody knew.
    async fn commit_lent(&self, mut tx: SqliteTx, firsts: Vec<EventId>) -> Result<Vec<EventId>, CommitError> {
        if firsts.is_empty() {
            return self.commit(tx).await.map(|()| firsts);
        }
        let missing = self.missing(&mut tx, &firsts).await.map_err(CommitError::NotCommitted)?;
        self.commit_inserted(tx).await.map(|()| missing)
    }

    async fn commit_inserted(&self, mut tx: SqliteTx) -> Result<(), CommitError> {
        if self.depth(&tx) == 0 {
            return Err(CommitError::NotCommitted(savepoint::ended()));
        }
        // Somebody may have begun a savepoint and forgotten it: sqlx would end that one, and nothing else. A transaction that could
        // not be committed is rolled back when it is dropped.
        while self.depth(&tx) > 0 {
            let committed = SqliteTransactionManager::commit(&mut tx).await;
            committed.map_err(|error| fault::classify_commit(error, self.table()))?;
        }
        // Before the turn is over: the next writer finds it then.
        if let (Some(connection), Some(warm)) = (tx.connection.take(), &self.warm) {
            warm.keep(connection);
        }
        Ok(())
    }

    async fn rollback(&self, mut tx: SqliteTx) -> Result<(), Error> {
        // One that has ended by itself is refused, and closed by who comes upon it.
        loop {
            SqliteTransactionManager::rollback(&mut tx).await.map_err(|error| self.fault(error))?;
            if self.depth(&tx) == 0 {
                break;
            }
        }
        tx.connection = None;
        Ok(())
    }

    fn depth(&self, connection: &SqliteConnection) -> usize {
        SqliteTransactionManager::get_transaction_depth(connection)
    }

    async fn savepoint(&self, connection: &mut SqliteConnection) -> Result<(), CommitError> {
        // Outside of a transaction, as one that SQLite has ended, a savepoint would begin another.
        match self.is_open(connection).await {
            Ok(true) => {}
            Ok(false) if self.depth(connection) == 0 => return Err(CommitError::NotCommitted(savepoint::ended())),
            Ok(false) => return Err(CommitError::Unknown(ended())),
            Err(error) => return Err(CommitError::NotCommitted(error)),
        }
        SqliteTransactionManager::begin(connection, None).await.map_err(|error| self.lost(error))
    }

    async fn release_savepoint(&self, connection: &mut SqliteConnection, depth: usize) -> Result<(), Error> {
        self.caught_up(connection).await?;
        savepoint::expect(self.depth(connection), depth)?;
        SqliteTransactionManager::commit(connection).await.map_err(|error| self.fault(error))
    }

    async fn undo_savepoint(&self, connection: &mut SqliteConnection, depth: usize) -> Result<(), CommitError> {
        self.caught_up(connection).await.map_err(CommitError::NotCommitted)?;
        savepoint::expect(self.depth(connection), depth).map_err(CommitError::NotCommitted)?;
        let undone = async {
            SqliteTransactionManager::rollback(connection).await?;
            sqlx::raw_sql(savepoint::release(depth)).execute(connection).await
        };
        undone.await.map(drop).map_err(|error| self.lost(error))
    }

    fn abandon_savepoint(&self, connection: &mut SqliteConnection) {
        SqliteTransactionManager::start_rollback(connection);
    }

    async fn end_abandoned(&self, connection: &mut SqliteConnection, depth: usize) -> Result<(), CommitError> {
        self.caught_up(connection).await.map_err(CommitError::NotCommitted)?;
        savepoint::expect_abandoned(self.depth(connection), depth).map_err(CommitError::NotCommitted)?;
        let ended = sqlx::raw_sql(savepoint::release(depth)).execute(connection).await;
        ended.map(drop).map_err(|error| self.lost(error))
    }

    /// Once more than needed: sqlx passes over one of them after an end that was cut off, and over all beyond the last.
    fn abandon_all(&self, connection: &mut SqliteConnection) {
        for _ in 0..=self.depth(connection) {
            SqliteTransactionManager::start_rollback(connection);
        }
    }
}

impl SqliteStore {
    /// On the connection that comes from the transaction before, if there is one: it has the pages at hand that writers change. The
    /// caller has its turn.
    async fn try_begin(&self) -> Result<WarmConnection<Sqlite>, sqlx::Error> {
        let mut connection = match self.warm.as_ref().and_then(Warm::take) {
            Some(connection) => connection,
            None => WarmConnection::new(idle(&self.pool).await?),
        };
        SqliteTransactionManager::begin(&mut connection, Some(BEGIN.into_sql_str())).await?;
        Ok(connection)
    }

    /// Fails where no transaction is open, also if sqlx counts one: SQLite ends it by itself after some errors, and sqlx when a
    /// savepoint is cut off. What is written then would be stored on its own.
    pub(super) async fn expect_open(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        if self.is_open(connection).await? { Ok(()) } else { Err(ended()) }
    }

    async fn is_open(&self, connection: &mut SqliteConnection) -> Result<bool, Error> {
        match sqlx::raw_sql(sql::ASK).execute(connection).await {
            Ok(_) => Ok(false),
            Err(error) if fault::is_within_a_transaction(&error) => Ok(true),
            Err(error) => Err(self.fault(error)),
        }
    }

    /// What it means for the transaction around it that a savepoint could not be set, undone or ended.
    fn lost(&self, error: sqlx::Error) -> CommitError {
        savepoint::lost(fault::is_no_savepoint(&error), self.fault(error))
    }

    /// Waits until the connection has done what sqlx has begun on it by itself, so that its depth is what it will be.
    pub(super) async fn caught_up(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        connection.ping().await.map_err(|error| self.fault(error))
    }
}

/// What is said to who writes in a transaction that is none any more.
pub(super) fn ended() -> Error {
    let reason = "the transaction has ended: a savepoint in it was cut off, or SQLite has rolled it back after an error of an \
                  earlier statement; roll back, and begin another";
    Error::Refused(reason.into())
}

const BEGIN: &str = "BEGIN IMMEDIATE";

/// Begins a transaction that writes from the start. The caller has its turn.
pub(super) async fn begin_immediate(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    Transaction::begin(idle(pool).await?, Some(BEGIN.into_sql_str())).await
}

/// A connection on which a transaction can begin.
async fn idle(pool: &SqlitePool) -> Result<PoolConnection<Sqlite>, sqlx::Error> {
    loop {
        let connection = pool.acquire().await?;
        if !connection.is_in_transaction() {
            return Ok(connection);
        }
        // SQLite ended its transaction by itself, as it does after some errors. sqlx goes on counting it as open, and would
        // never begin another one on that connection.
        connection.close().await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_savepoint_that_was_forgotten_ends_with_the_transaction() {
        // One connection, so that whoever comes next gets this one.
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        for is_dropped in [true, false] {
            let mut tx = store.begin().await.unwrap();
            std::mem::forget(tx.begin().await.unwrap());
            assert_eq!(store.depth(&tx), 2);
            if is_dropped {
                drop(tx);
            } else {
                store.rollback(tx).await.unwrap();
            }
            let mut next = store.pool().acquire().await.unwrap();
            assert!(!next.is_in_transaction(), "dropped: {is_dropped}");
            assert!(!store.is_open(&mut next).await.unwrap(), "dropped: {is_dropped}");
        }
    }
}
