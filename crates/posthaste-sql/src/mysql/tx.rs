//! Transactions.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{CommitError, Error, NewRow, WriteStore};
use sqlx::mysql::{MySql, MySqlConnection, MySqlTransactionManager};
use sqlx::{AssertSqlSafe, SqlSafeStr, Transaction};
use sqlx_core::transaction::TransactionManager;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::insert::Open;
use super::{MySqlStore, fault, sql};
use crate::finish::finish;
use crate::look::{Looked, literals};
use crate::savepoint;
use crate::warm::WarmConnection;

/// How long a dropped transaction is given to roll back before its connection is closed. The server rolls back by itself
/// when it loses the connection, so that nothing depends on this.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(1);

/// What is said to who goes on after a write that was cut off.
const CUT_OFF: &str = "a write in this transaction was cut off, so it can only be rolled back; do it again";

/// A transaction of a [`MySqlStore`]. Comes with the feature `mysql`.
///
/// It is used as an sqlx transaction is, through `&mut *tx`. Dropping it rolls it back. After a write in it that was cut
/// off it can only be rolled back: [`commit`](WriteStore::commit) then refuses.
///
/// The servers roll all of it back after a deadlock, and commit it before a statement that changes a table. What comes next is on
/// its own. Events are refused from then on, and so is the commit.
pub struct MySqlTx {
    /// Nothing after the end. Boxed, so that it stays where [`Inserts`] has seen it.
    connection: Option<Box<WarmConnection<MySql>>>,
    inserts: Inserts,
    tasks: TaskTracker,
}

impl MySqlTx {
    /// The connection, and what became of the writes on it.
    fn take(&mut self) -> Option<(Box<WarmConnection<MySql>>, Writes)> {
        let connection = self.connection.take()?;
        let writes = self.inserts.ended_own(&connection);
        Some((connection, writes))
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
        let Some((mut connection, writes)) = self.take() else { return };
        match Handle::try_current() {
            Ok(runtime) if !writes.cut => {
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
async fn give_up(mut connection: Box<WarmConnection<MySql>>) {
    if !matches!(timeout(ROLLBACK_TIMEOUT, rollback(&mut connection)).await, Ok(Ok(()))) {
        tracing::debug!("closing the connection of a transaction that did not roll back");
        connection.close_on_drop();
    }
}

/// Commits what is open, whatever savepoints somebody has begun and forgotten.
///
/// A transaction that is gone is answered with yes.
async fn commit(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    while MySqlTransactionManager::get_transaction_depth(connection) > 0 {
        MySqlTransactionManager::commit(connection).await?;
    }
    Ok(())
}

/// The same, unless the transaction is not the one any more that was begun.
///
/// sqlx then counts it as open. What it has to say to end that goes with the return of the connection to its pool.
async fn commit_same(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    release_all(connection).await?;
    sqlx::raw_sql(sql::COMMIT_OWN).execute(&mut *connection).await?;
    MySqlTransactionManager::start_rollback(connection);
    Ok(())
}

/// Ends savepoints that somebody has begun and forgotten.
async fn release_all(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    while MySqlTransactionManager::get_transaction_depth(connection) > 1 {
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
            let warm = store.warm.as_ref().filter(|_| !store.failover.is_suspected());
            if let Some((warm, connection)) = warm.and_then(|warm| Some((warm, warm.take()?))) {
                match store.begin_on(connection).await {
                    Ok(tx) => return Ok(tx),
                    // A BEGIN that failed has done nothing. Those beside it are likely to be dead, too.
                    Err(error) => tracing::debug!(%error, "passing by a dead connection"),
                }
                warm.clear();
            }
            let connection = store.acquire().await?;
            store.begin_on(connection).await
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
        let [first, ..] = rows else { return Ok(()) };
        let under_way = self.inserts.begun(connection);
        let inserted = self.insert_rows(connection, rows).await;
        // Of one in a savepoint it is not known what else has gone with it, and one that is delivered may be deleted.
        let telling = self.depth(connection) == 1 && (first.lease.is_some() || !self.deletes_done);
        self.inserts.ended_at(under_way, inserted.as_ref().ok().map(|open| (first.event.id(), *open, telling)));
        inserted.map(drop)
    }

    /// # Errors
    /// [`CommitError::NotCommitted`] also when the server had rolled the transaction back after a deadlock, if an event that was
    /// written in it shows that.
    async fn commit(&self, tx: MySqlTx) -> Result<(), CommitError> {
        self.end(tx, End::Asking).await.map(drop)
    }

    /// Looks for the events in the message of the commit: a savepoint may have been undone of which nobody knew.
    ///
    /// # Errors
    /// As those of [`commit`](WriteStore::commit).
    async fn commit_lent(&self, tx: MySqlTx, firsts: Vec<EventId>) -> Result<Vec<EventId>, CommitError> {
        if firsts.is_empty() || self.looks.are_refused() {
            return self.commit(tx).await.map(|()| firsts);
        }
        self.end(tx, End::Looking(firsts)).await
    }

    /// As sqlx commits, which costs less, if the insert was surely in a transaction that somebody began. Nobody asks whether that
    /// was us: one that a statement of the user's has begun in place of ours has the event and all that came with it, and with a
    /// savepoint to release and a ROLLBACK for sqlx a transaction would take the server a fifth longer.
    async fn commit_inserted(&self, tx: MySqlTx) -> Result<(), CommitError> {
        self.end(tx, End::Plain).await.map(drop)
    }

    async fn rollback(&self, mut tx: MySqlTx) -> Result<(), Error> {
        let (mut connection, writes) = tx.take().expect("a transaction ends once");
        if writes.cut {
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

    async fn savepoint(&self, connection: &mut MySqlConnection) -> Result<(), CommitError> {
        self.inserts.expect_none(connection).map_err(CommitError::NotCommitted)?;
        // sqlx would begin another transaction.
        if self.depth(connection) == 0 {
            return Err(CommitError::NotCommitted(savepoint::ended()));
        }
        match MySqlTransactionManager::begin(connection, None).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.lost(connection, error).await),
        }
    }

    async fn release_savepoint(&self, connection: &mut MySqlConnection, depth: usize) -> Result<(), Error> {
        self.inserts.expect_none(connection)?;
        savepoint::expect(self.depth(connection), depth)?;
        MySqlTransactionManager::commit(connection).await.map_err(|error| self.fault(error))
    }

    async fn undo_savepoint(&self, connection: &mut MySqlConnection, depth: usize) -> Result<(), CommitError> {
        self.inserts.expect_none(connection).map_err(CommitError::NotCommitted)?;
        savepoint::expect(self.depth(connection), depth).map_err(CommitError::NotCommitted)?;
        let undone = async {
            MySqlTransactionManager::rollback(connection).await?;
            sqlx::raw_sql(savepoint::release(depth)).execute(&mut *connection).await
        };
        match undone.await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(connection, error).await),
        }
    }

    fn abandon_savepoint(&self, connection: &mut MySqlConnection) {
        MySqlTransactionManager::start_rollback(connection);
    }

    /// The servers replace a savepoint by one of the same name.
    async fn end_abandoned(&self, connection: &mut MySqlConnection, depth: usize) -> Result<(), CommitError> {
        savepoint::expect_abandoned(self.depth(connection), depth).map_err(CommitError::NotCommitted)
    }
}

/// How a transaction is to be committed.
enum End {
    /// At once, if the only insert was surely in it.
    Plain,
    /// If it is still the same.
    Asking,
    /// The same, and these events are looked for.
    Looking(Vec<EventId>),
}

/// What is said to who goes on in a transaction that is none any more.
fn ended() -> Error {
    let reason = "the transaction has ended: the server has rolled it back, as it does after a deadlock, or a statement of yours \
                  has ended it; roll back, and begin another";
    Error::Refused(reason.into())
}

/// What is said to who commits a transaction that is gone, and of which nothing is left to tell how it has ended.
const ENDED_SOMEHOW: &str = "the transaction has ended: the server has rolled it back, as it does after a deadlock, or a statement of \
                             yours has ended it, either way; look what is there, and begin another";

/// What is said to who commits a transaction that has been committed before.
const COMMITTED_BEFORE: &str = "the transaction had been committed before, by a COMMIT of your own or by a statement that commits \
                                by itself, such as one that changes a table; what came after it is on its own, or rolled back";

impl MySqlStore {
    async fn begin_on(&self, connection: WarmConnection<MySql>) -> Result<MySqlTx, sqlx::Error> {
        let mut connection = Box::new(connection);
        if let Err(error) = MySqlTransactionManager::begin(&mut connection, Some(sql::BEGIN_OWN.into_sql_str())).await {
            // It may have begun.
            connection.close_on_drop();
            return Err(error);
        }
        self.inserts.began_own(&connection);
        Ok(MySqlTx { connection: Some(connection), inserts: self.inserts.clone(), tasks: self.tasks.clone() })
    }

    /// Fails where no transaction is open, also if sqlx counts one. What is written then would be stored on its own.
    pub(super) async fn expect_open(&self, connection: &mut MySqlConnection) -> Result<(), Error> {
        match sqlx::raw_sql(sql::ASK).execute(connection).await {
            Err(error) if fault::is_in_progress(&error) => Ok(()),
            // The answer to what was said before, when a savepoint was dropped.
            Err(error) if fault::is_no_savepoint(&error) => Err(ended()),
            Err(error) => Err(self.fault(error)),
            Ok(_) => Err(ended()),
        }
    }

    /// Commits, and gives those of the events to look for that are not in the transaction any more.
    async fn end(&self, mut tx: MySqlTx, end: End) -> Result<Vec<EventId>, CommitError> {
        let (mut connection, writes) = tx.take().expect("a transaction ends once");
        if writes.cut {
            connection.close_on_drop();
            return Err(CommitError::NotCommitted(Error::Unavailable(CUT_OFF.into())));
        }
        if self.depth(&connection) == 0 {
            return Err(CommitError::NotCommitted(savepoint::ended()));
        }
        let store = self.clone();
        let end = async move {
            let committed = match end {
                End::Plain if !writes.doubtful => {
                    let committed = commit(&mut connection).await;
                    if let (Some(warm), Ok(())) = (&store.warm, &committed) {
                        warm.keep(*connection);
                        return Ok(Vec::new());
                    }
                    committed.map(|()| Vec::new()).map_err(|error| store.commit_fault(error))
                }
                End::Plain | End::Asking => match commit_same(&mut connection).await {
                    Err(error) if fault::is_no_savepoint(&error) => {
                        Err(store.ended_before(&mut connection, &writes).await)
                    }
                    committed => committed.map(|()| Vec::new()).map_err(|error| store.commit_fault(error)),
                },
                End::Looking(firsts) => store.commit_looking(&mut connection, &writes, firsts).await,
            };
            if committed.is_err() {
                connection.close_on_drop();
            }
            committed
        };
        finish(&self.tasks, end).await
    }

    /// What it means for the transaction around it that a savepoint could not be set or undone.
    async fn lost(&self, connection: &mut MySqlConnection, error: sqlx::Error) -> CommitError {
        // The first is what sqlx says when the server knows of no transaction.
        if !matches!(error, sqlx::Error::BeginFailed) && !fault::is_no_savepoint(&error) {
            return CommitError::NotCommitted(self.fault(error));
        }
        let writes = self.inserts.writes(connection);
        self.ended_before(connection, &writes).await
    }

    /// Commits unless the transaction is not the one any more that was begun, and gives those of the events that are not in it. Who
    /// may not look knows of none of them.
    async fn commit_looking(
        &self,
        connection: &mut MySqlConnection,
        writes: &Writes,
        firsts: Vec<EventId>,
    ) -> Result<Vec<EventId>, CommitError> {
        if let Err(error) = release_all(connection).await {
            return Err(match fault::is_no_savepoint(&error) {
                true => self.ended_before(connection, writes).await,
                false => self.commit_fault(error),
            });
        }
        let ids = literals(&firsts, "_utf8mb4 X'", "'");
        // Made of a statement of ours, and of digits.
        let sql = AssertSqlSafe(self.sql.commit_looking.replace("{ids}", &ids));
        let looked = Looked::after::<MySql>(sqlx::raw_sql(sql).fetch_many(&mut *connection)).await;
        let missing = match looked.ended {
            Ok(()) => looked.missing(firsts),
            Err(error) => match looked.statements {
                0 if fault::is_no_savepoint(&error) => return Err(self.ended_before(connection, writes).await),
                1 if fault::is_denied(&error) => {
                    self.looks.refused();
                    let committed = sqlx::raw_sql("COMMIT").execute(&mut *connection).await;
                    committed.map_err(|error| self.commit_fault(error))?;
                    firsts
                }
                // The COMMIT was not carried out.
                1 if error.as_database_error().is_some() => return Err(CommitError::NotCommitted(self.fault(error))),
                _ => return Err(self.commit_fault(error)),
            },
        };
        MySqlTransactionManager::start_rollback(connection);
        Ok(missing)
    }

    /// How a transaction has ended that is gone. The servers do not say, so its rows are looked for.
    async fn ended_before(&self, connection: &mut MySqlConnection, writes: &Writes) -> CommitError {
        let looked = async {
            // There may be another transaction in its place, and what is in that one tells nothing.
            let missing = match &writes.telling {
                Some(id) => self.taken(connection, &[id]).await?.is_none(),
                None => false,
            };
            sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await?;
            let found = self.taken(connection, &writes.firsts.iter().collect::<Vec<_>>()).await?;
            Ok((missing, found.is_some()))
        };
        match looked.await {
            Ok((_, true)) => CommitError::Unknown(Error::Refused(COMMITTED_BEFORE.into())),
            Ok((true, false)) => CommitError::NotCommitted(ended()),
            Ok((false, false)) => CommitError::Unknown(Error::Refused(ENDED_SOMEHOW.into())),
            Err(error) => CommitError::Unknown(self.fault(error)),
        }
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
    own: HashMap<usize, Writes>,
}

/// What was written in a [`MySqlTx`].
#[derive(Clone, Default)]
struct Writes {
    /// The first of each insert.
    firsts: Vec<EventId>,
    /// The first one that shows by its absence that the transaction was rolled back in which it was written.
    telling: Option<EventId>,
    /// Whether one of them may have been in another transaction.
    doubtful: bool,
    /// Whether one was cut off. Known in the end.
    cut: bool,
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

    /// An insert has ended, and this was its first event, if it went well, and whether that one is telling.
    fn ended_at(&self, place: usize, inserted: Option<(&EventId, Open, bool)>) {
        let mut places = self.places();
        places.under_way.remove(&place);
        if let Some((first, open, telling)) = inserted
            && let Some(writes) = places.own.get_mut(&place)
        {
            writes.firsts.push(first.clone());
            if telling && writes.telling.is_none() {
                writes.telling = Some(first.clone());
            }
            writes.doubtful |= open == Open::Perhaps;
        }
    }

    /// What was written so far in the transaction on a connection.
    fn writes(&self, connection: &MySqlConnection) -> Writes {
        self.places().own.get(&place(connection)).cloned().unwrap_or_default()
    }

    fn began_own(&self, connection: &MySqlConnection) {
        let mut places = self.places();
        places.under_way.remove(&place(connection));
        places.own.insert(place(connection), Writes::default());
    }

    /// Forgets the connection of a transaction, and says what was written in it.
    fn ended_own(&self, connection: &MySqlConnection) -> Writes {
        let mut places = self.places();
        let writes = places.own.remove(&place(connection)).unwrap_or_default();
        let cut = places.under_way.remove(&place(connection));
        Writes { cut, ..writes }
    }

    /// Fails if an insert on the connection of a transaction of ours never ended.
    fn expect_none(&self, connection: &MySqlConnection) -> Result<(), Error> {
        let (places, place) = (self.places(), place(connection));
        if places.own.contains_key(&place) && places.under_way.contains(&place) {
            return Err(Error::Refused(CUT_OFF.into()));
        }
        Ok(())
    }
}
