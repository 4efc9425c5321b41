//! Transactions.

use std::collections::HashSet;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use crate::savepoint;

/// How long a dropped transaction is given to roll back before its connection is closed. The server rolls back by itself
/// when it loses the connection, so that nothing depends on this.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// What is said to who goes on after a write that was cut off.
const CUT_OFF: &str = "a write in this transaction was cut off, so it can only be rolled back; do it again";

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
        let cut = self.inserts.ended_own(&connection);
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
///
/// A transaction that lost a deadlock is gone, and its commit is answered with yes. A savepoint that is set with the BEGIN and
/// released with the COMMIT would tell; but sqlx then counts the transaction as open until it has rolled it back, which is one
/// more turn to the server for each.
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
            store.inserts.began_own(&connection);
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
        self.inserts.expect_none(connection)?;
        // sqlx rolls a transaction back whose savepoint was cut off, and what follows would be stored without it.
        if self.depth(connection) == 0 {
            return Err(savepoint::ended());
        }
        let under_way = self.inserts.begun(connection);
        let inserted = self.insert_rows(connection, rows).await;
        self.inserts.ended_at(under_way);
        inserted
    }

    async fn commit(&self, mut tx: MySqlTx) -> Result<(), CommitError> {
        let (mut connection, cut) = tx.take().expect("a transaction ends once");
        if cut {
            connection.close_on_drop();
            return Err(CommitError::NotCommitted(Error::Unavailable(CUT_OFF.into())));
        }
        if self.depth(&connection) == 0 {
            return Err(CommitError::NotCommitted(savepoint::ended()));
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

    fn depth(&self, connection: &MySqlConnection) -> usize {
        MySqlTransactionManager::get_transaction_depth(connection)
    }

    async fn savepoint(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        self.inserts.expect_none(connection)?;
        MySqlTransactionManager::begin(connection, None).await.map_err(|error| self.fault(error))
    }

    async fn release_savepoint(&self, connection: &mut MySqlConnection, depth: usize) -> Result<(), Error> {
        self.inserts.expect_none(connection)?;
        savepoint::expect(self.depth(connection), depth)?;
        MySqlTransactionManager::commit(connection).await.map_err(|error| self.fault(error))
    }

    async fn undo_savepoint(&self, connection: &mut MySqlConnection, depth: usize) -> Result<(), Error> {
        self.inserts.expect_none(connection)?;
        savepoint::expect(self.depth(connection), depth)?;
        let undone = async {
            MySqlTransactionManager::rollback(connection).await?;
            sqlx::raw_sql(savepoint::release(depth)).execute(connection).await
        };
        undone.await.map(drop).map_err(|error| self.fault(error))
    }

    fn abandon_savepoint(&self, connection: &mut MySqlConnection) {
        MySqlTransactionManager::start_rollback(connection);
    }

    /// The servers replace a savepoint by one of the same name.
    async fn end_abandoned(&self, connection: &mut MySqlConnection, depth: usize) -> Result<(), CommitError> {
        savepoint::expect_abandoned(self.depth(connection), depth).map_err(CommitError::NotCommitted)
    }
}

/// The connections on which an insert is under way, or was and never ended, by where they are in memory.
///
/// When the answer to a `PREPARE` is not waited for, sqlx takes its rest for the answers to later statements, and waits
/// for those for ever. An insert on a connection that somebody else has cannot be kept from being dropped there.
#[derive(Clone, Default)]
pub(super) struct Inserts(Arc<Mutex<Places>>);

#[derive(Default)]
struct Places {
    under_way: HashSet<usize>,
    /// Those of a [`MySqlTx`], which says when it begins and ends. The place of another one may be somebody else's by now.
    own: HashSet<usize>,
}

fn place(connection: &MySqlConnection) -> usize {
    std::ptr::from_ref(connection).addr()
}

impl Inserts {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begun(&self, connection: &MySqlConnection) -> usize {
        let place = place(connection);
        self.places().under_way.insert(place);
        place
    }

    fn ended_at(&self, place: usize) {
        self.places().under_way.remove(&place);
    }

    fn began_own(&self, connection: &MySqlConnection) {
        let mut places = self.places();
        places.under_way.remove(&place(connection));
        places.own.insert(place(connection));
    }

    /// Forgets the connection of a transaction, and says whether an insert on it never ended.
    fn ended_own(&self, connection: &MySqlConnection) -> bool {
        let mut places = self.places();
        places.own.remove(&place(connection));
        places.under_way.remove(&place(connection))
    }

    /// Fails if an insert on the connection of a transaction of ours never ended.
    fn expect_none(&self, connection: &MySqlConnection) -> Result<(), Error> {
        let (places, place) = (self.places(), place(connection));
        if places.own.contains(&place) && places.under_way.contains(&place) {
            return Err(Error::Refused(CUT_OFF.into()));
        }
        Ok(())
    }
}
