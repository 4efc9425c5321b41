//! Connections that go from one transaction to the next.

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use server::acquire;

/// How long a connection waits for the next transaction before it goes back to the pool.
const KEPT: Duration = Duration::from_millis(10);

/// How long a connection goes from one transaction to the next before the pool sees it again, which looks how old it is.
const AWAY: Duration = Duration::from_secs(1);

/// Connections on which a transaction has just been committed, for whoever begins the next one.
///
/// sqlx asks each connection that comes back to its pool whether it is alive, in a task of its own: a round trip between any two
/// transactions, for one that has answered a moment ago. Here it is simply handed on.
///
/// The hooks of a pool do not see a connection that is handed on, so this is for pools of which it is known that they need not.
pub(crate) struct Warm<DB: Database>(Arc<State<DB>>);

struct State<DB: Database> {
    pool: Pool<DB>,
    shelf: Mutex<Shelf<DB>>,
}

struct Shelf<DB: Database> {
    kept: Vec<Kept<DB>>,
    /// Those who wait for one, the first for longest. Some may have given up.
    waiting: VecDeque<oneshot::Sender<WarmConnection<DB>>>,
    /// Whether somebody brings back what nobody takes.
    tended: bool,
}

struct Kept<DB: Database> {
    connection: WarmConnection<DB>,
    /// Since when it is here.
    since: Instant,
    /// To give it back, wherever that happens.
    runtime: Handle,
}

/// A connection of the pool, and since when it is away from it.
pub(crate) struct WarmConnection<DB: Database> {
    connection: PoolConnection<DB>,
    since: Instant,
}

impl<DB: Database> Warm<DB> {
    pub(crate) fn new(pool: Pool<DB>) -> Self {
        Self(Arc::new(State {
            pool,
            shelf: Mutex::new(Shelf { kept: Vec::new(), waiting: VecDeque::new(), tended: false }),
        }))
    }

    /// The one that was used last, if that was a moment ago, and nobody may be waiting for the pool.
    pub(crate) fn take(&self) -> Option<WarmConnection<DB>> {
        let mut shelf = self.0.shelf();
        let last = shelf.kept.pop()?;
        drop(shelf);
        if !self.0.has_others() || last.since.elapsed() >= KEPT * 2 {
            last.give_back();
            return None;
        }
        Some(last.connection)
    }

    /// Keeps a connection on which no transaction is open, or gives it to who waits for one. While the pool has no other to give,
    /// it gets this one.
    pub(crate) fn keep(&self, connection: WarmConnection<DB>) {
        let Ok(runtime) = Handle::try_current() else { return drop(connection.connection.detach()) };
        if connection.since.elapsed() >= AWAY {
            return;
        }
        let Some(connection) = self.0.hand_on(connection) else { return };
        if !self.0.has_others() {
            return;
        }
        let kept = Kept { connection, since: Instant::now(), runtime: runtime.clone() };
        let (late, begins) = {
            let mut shelf = self.0.shelf();
            // Whoever tends it may be on a runtime that stands still.
            let late = shelf.late(KEPT * 4);
            shelf.kept.push(kept);
            (late, !std::mem::replace(&mut shelf.tended, true))
        };
        late.into_iter().for_each(Kept::give_back);
        // Not under the lock: on a runtime that has ended the task is dropped on the spot.
        if begins {
            runtime.spawn(tend(Tended { state: Arc::downgrade(&self.0), ended: false }));
        }
    }

    /// Gives all of them back to the pool.
    pub(crate) fn clear(&self) {
        let kept = std::mem::take(&mut self.0.shelf().kept);
        kept.into_iter().for_each(Kept::give_back);
    }
}

impl<DB: Database> Clone for Warm<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: Database> State<DB> {
    fn shelf(&self) -> MutexGuard<'_, Shelf<DB>> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<DB: Database> State<DB> {
    /// Gives a connection to the first who waits for one, or back if there is nobody.
    fn hand_on(&self, mut connection: WarmConnection<DB>) -> Option<WarmConnection<DB>> {
        loop {
            // Not under the lock: what comes back may be dropped.
            let Some(first) = self.shelf().waiting.pop_front() else { return Some(connection) };
            match first.send(connection) {
                Ok(()) => return None,
                Err(back) => connection = back,
            }
        }
    }

    /// Whether the pool has a connection for somebody else, or room for one.
    fn has_others(&self) -> bool {
        let pool = &self.pool;
        !pool.is_closed() && (pool.num_idle() > 0 || pool.size() < pool.options().get_max_connections())
    }
}

impl<DB: Database> Shelf<DB> {
    /// Takes out those that have been here for so long. They are taken from the end, so the first have waited for longest.
    fn late(&mut self, long: Duration) -> Vec<Kept<DB>> {
        let late = self.kept.iter().take_while(|kept| kept.since.elapsed() >= long).count();
        self.kept.drain(..late).collect()
    }
}

impl<DB: Database> Kept<DB> {
    /// Back to the pool, which needs a runtime for it. On one that has ended, the connection ends, too.
    fn give_back(self) {
        let Self { connection, runtime, .. } = self;
        let _inside = runtime.enter();
        drop(connection);
    }
}

impl<DB: Database> Drop for State<DB> {
    fn drop(&mut self) {
        let shelf = self.shelf.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut shelf.kept).into_iter().for_each(Kept::give_back);
    }
}

/// Brings connections back to the pool that nobody has taken in time, until there are none.
async fn tend<DB: Database>(mut tended: Tended<DB>) {
    while !tended.ended {
        sleep(KEPT).await;
        let Some(state) = tended.state.upgrade() else { return };
        let late = state.shelf().late(KEPT);
        late.into_iter().for_each(Kept::give_back);
        let mut shelf = state.shelf();
        shelf.tended = !shelf.kept.is_empty();
        tended.ended = !shelf.tended;
    }
}

/// Somebody tends the shelf. When its runtime ends it, another has to.
struct Tended<DB: Database> {
    state: Weak<State<DB>>,
    /// In order, because there was nothing on it.
    ended: bool,
}

impl<DB: Database> Drop for Tended<DB> {
    fn drop(&mut self) {
        let Some(state) = self.state.upgrade().filter(|_| !self.ended) else { return };
        let kept = {
            let mut shelf = state.shelf();
            shelf.tended = false;
            std::mem::take(&mut shelf.kept)
        };
        kept.into_iter().for_each(Kept::give_back);
    }
}

impl<DB: Database> WarmConnection<DB> {
    pub(crate) fn new(connection: PoolConnection<DB>) -> Self {
        Self { connection, since: Instant::now() }
    }
}

impl<DB: Database> Deref for WarmConnection<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection
    }
}

impl<DB: Database> DerefMut for WarmConnection<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }
}
