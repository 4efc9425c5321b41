//! Transactions.

use std::collections::HashSet;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use posthaste_core::store::{CommitError, Error, NewRow, WriteStore};
use sqlx::Transaction;
use sqlx::mysql::{MySql, MySqlConnection, MySqlTransactionManager};
use sqlx::pool::PoolConnection;
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::MySqlStore;
use crate::finish::finish;

/// How long a dropped transaction is given to roll back before its connection is closed. The server rolls back by itself
/// when it loses the connection, so that nothing depends on this.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// A transaction of a [`MySqlStore`]. Comes with the feature `mysql`.
///
/// It is used as an sqlx transaction is, through `&mut *tx`. Dropping it rolls it back. After a write in it that was cut
/// off it can only be rolled back: [`commit`](WriteStore::commit) then refuses.
pub struct MySqlTx {
    /// Nothing after the end. Boxed, so that it stays where [`Inserts`] has seen it.
    connection: Option<Box<PoolConnection<MySql>>>,
    inserts: Inserts,
    tasks: TaskTracker,
}

impl MySqlTx {
    /// The connection, and whether a write on it was cut off.
    fn take(&mut self) -> Option<(Box<PoolConnection<MySql>>, bool)> {
        let connection = self.connection.take()?;
        let cut = self.inserts.ended(&connection);
        Some((connection, cut))
    }
}

impl Deref for MySqlTx {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        self.connection.as_ref().expect("a transaction ends by value")
    }
}

impl DerefMut for MySqlTx {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.connection.as_mut().expect("a transaction ends by value")
    }
}

impl Drop for MySqlTx {
    fn drop(&mut self) {
        let Some((mut connection, cut)) = self.take() else { return };
        match Handle::try_current() {
            Ok(runtime) if !cut => {
                self.tasks.spawn_on(give_up(connection), &runtime);
            }
            _ => connection.close_on_drop(),
        }
    }
}

impl fmt::Debug for MySqlTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlTx").finish_non_exhaustive()
    }
}

/// Rolls back a transaction that was dropped, perhaps in the middle of a statement of its user.
async fn give_up(mut connection: Box<PoolConnection<MySql>>) {
    if !matches!(timeout(ROLLBACK_TIMEOUT, rollback(&mut connection)).await, Ok(Ok(()))) {
        tracing::debug!("closing the connection of a transaction that did not roll back");
        connection.close_on_drop();
    }
}

/// Commits, whatever savepoints somebody has begun and forgotten.
async fn commit(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    while MySqlTransactionManager::get_transaction_depth(connection) > 0 {
        MySqlTransactionManager::commit(connection).await?;
    }
    Ok(())
}

/// Rolls back, whatever savepoints there are.
async fn rollback(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    while MySqlTransactionManager::get_transaction_depth(connection) > 0 {
        MySqlTransactionManager::rollback(connection).await?;
    }
    Ok(())
}

impl WriteStore for MySqlStore {
    type Connection = MySqlConnection;
    type Tx<'c> = Transaction<'c, MySql>;
    type OwnTx = MySqlTx;

    /// Begins a transaction, of the isolation level that the session has.
    async fn begin(&self) -> Result<MySqlTx, Error> {
        let store = self.clone();
        let begun = finish(&self.tasks, async move {
            let mut connection = Box::new(store.acquire().await?);
            MySqlTransactionManager::begin(&mut connection, None).await?;
            store.inserts.ended(&connection);
            Ok(MySqlTx { connection: Some(connection), inserts: store.inserts, tasks: store.tasks })
        });
        begun.await.map_err(|error| self.fault(error))
    }

    /// Inserts the rows; see the trait.
    ///
    /// # Cancellation
    /// sqlx may lose its place in the conversation with the server. A [`MySqlTx`] knows, and closes its connection in
    /// the end; drop or roll back any other transaction.
    async fn insert(&self, connection: &mut MySqlConnection, rows: &[NewRow]) -> Result<(), Error> {
        let under_way = self.inserts.begun(connection);
        let inserted = self.insert_rows(connection, rows).await;
        self.inserts.ended_at(under_way);
        inserted
    }

    async fn commit(&self, mut tx: MySqlTx) -> Result<(), CommitError> {
        let (mut connection, cut) = tx.take().expect("a transaction ends once");
        if cut {
            connection.close_on_drop();
            let reason = "a write in this transaction was cut off, so it was rolled back; do it again";
            return Err(CommitError::NotCommitted(Error::Unavailable(reason.into())));
        }
        let commit = finish(&self.tasks, async move {
            let committed = commit(&mut connection).await;
            if committed.is_err() {
                connection.close_on_drop();
            }
            committed
        });
        commit.await.map_err(|error| self.commit_fault(error))
    }

    async fn rollback(&self, mut tx: MySqlTx) -> Result<(), Error> {
        let (mut connection, cut) = tx.take().expect("a transaction ends once");
        if cut {
            connection.close_on_drop();
            return Ok(());
        }
        let rolled_back = finish(&self.tasks, async move {
            let rolled_back = rollback(&mut connection).await;
            if rolled_back.is_err() {
                connection.close_on_drop();
            }
            rolled_back
        });
        rolled_back.await.map_err(|error| self.fault(error))
    }

    fn is_nested(&self, connection: &MySqlConnection) -> bool {
        MySqlTransactionManager::get_transaction_depth(connection) > 1
    }

    async fn savepoint(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        MySqlTransactionManager::begin(connection, None).await.map_err(|error| self.fault(error))
    }

    async fn release_savepoint(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        MySqlTransactionManager::commit(connection).await.map_err(|error| self.fault(error))
    }

    async fn undo_savepoint(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        MySqlTransactionManager::rollback(connection).await.map_err(|error| self.fault(error))
    }

    fn abandon_savepoint(&self, connection: &mut MySqlConnection) {
        MySqlTransactionManager::start_rollback(connection);
    }
}

/// The connections on which an insert is under way, or was and never ended, by where they are in memory.
///
/// When the answer to a `PREPARE` is not waited for, sqlx takes its rest for the answers to later statements, and waits
/// for those for ever. An insert on a connection that somebody else has cannot be kept from being dropped there.
#[derive(Clone, Default)]
pub(super) struct Inserts(Arc<Mutex<HashSet<usize>>>);

impl Inserts {
    fn begun(&self, connection: &MySqlConnection) -> usize {
        let place = std::ptr::from_ref(connection).addr();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place);
        place
    }

    fn ended_at(&self, place: usize) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&place)
    }

    /// Forgets the connection, and says whether there was an insert on it.
    fn ended(&self, connection: &MySqlConnection) -> bool {
        self.ended_at(std::ptr::from_ref(connection).addr())
    }
}
