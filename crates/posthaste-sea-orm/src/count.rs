//! Transactions that SQLite has ended by itself, and that its driver goes on counting.
//!
//! SQLite rolls a transaction back after some errors: a full disk, an `INSERT OR ROLLBACK`. Its driver notices nothing, and
//! cannot roll it back any more. Whoever begins on that connection next is given a savepoint instead of a transaction, and when
//! that is rolled back, a transaction stays open of which nobody knows.
//!
//! So a transaction of the outbox bears a mark, the version of the temporary database, which a rollback takes away. That there
//! is another transaction on the connection does not mislead it.

use std::future::Future;
use std::pin::pin;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Context, Waker};

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, Statement, TransactionTrait};

/// The most transactions inside of each other that can be counted down.
const DEEPEST: usize = 32;

/// A transaction for each one that the driver may count, so that it can roll them back. It sets savepoints of these names.
static STAND_IN: LazyLock<String> = LazyLock::new(|| format!("BEGIN{}", *SAVEPOINTS));

static SAVEPOINTS: LazyLock<String> = LazyLock::new(|| {
    let savepoints = (1..=DEEPEST).map(|depth| format!("; SAVEPOINT _sqlx_savepoint_{depth}"));
    savepoints.collect()
});

/// The same, but it cannot be committed: a row refers to one that there will never be.
static UNCOMMITTABLE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "BEGIN; \
         CREATE TEMP TABLE posthaste_rolled_back (id INTEGER PRIMARY KEY, \
             missing INTEGER REFERENCES posthaste_rolled_back (id) DEFERRABLE INITIALLY DEFERRED); \
         INSERT INTO temp.posthaste_rolled_back VALUES (1, 2); \
         PRAGMA temp.user_version = {}{}",
        Mark::LOST.0,
        *SAVEPOINTS
    )
});

/// The first savepoint of the driver.
const RELEASE: &str = "RELEASE SAVEPOINT _sqlx_savepoint_1";

/// How often it is tried to have the driver count one transaction less. Once is enough, unless an answer comes too soon.
const MOST_TRIES: usize = 100;

const MISCOUNTED: &str = "the driver counts transactions on this connection that SQLite has ended; close the pool";

/// What a transaction has that nothing else on its connection ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(i32);

impl Mark {
    /// That of the transaction that stands in for one of the user's.
    const LOST: Self = Self(-0x504f_5354);

    fn next() -> Self {
        static LAST: AtomicI32 = AtomicI32::new(0);
        // Neither that of a connection which never had one, nor that of the lost.
        Self((LAST.fetch_add(1, Ordering::Relaxed) & i32::MAX).max(1))
    }

    /// That of the transaction which is open.
    async fn of(tx: &DatabaseTransaction) -> Result<Self, DbErr> {
        number(tx, "PRAGMA temp.user_version").await.map(Self)
    }

    /// Whether it is that of the transaction which is open.
    pub(crate) async fn is_there(self, tx: &DatabaseTransaction) -> Result<bool, DbErr> {
        Ok(Self::of(tx).await? == self)
    }
}

async fn number(tx: &DatabaseTransaction, pragma: &str) -> Result<i32, DbErr> {
    let row = tx.query_one_raw(Statement::from_string(DbBackend::Sqlite, pragma)).await?;
    row.map_or(Ok(0), |row| row.try_get_by_index(0))
}

/// Marks a transaction that was just begun. Nothing, if it is a savepoint, because another one had ended on that connection without
/// the driver; it is to be cleared then.
pub(crate) async fn mark(tx: &DatabaseTransaction) -> Option<Mark> {
    let mark = Mark::next();
    let inner = tx.begin().await.ok()?;
    let sql = format!("{RELEASE}; SAVEPOINT _sqlx_savepoint_1; PRAGMA temp.user_version = {}", mark.0);
    let marked = tx.execute_unprepared(&sql).await.is_ok();
    // If the first savepoint was there already, the driver has another name for this one, and it is gone.
    (inner.commit().await.is_ok() && marked).then_some(mark)
}

/// Whether nothing was begun inside of an open transaction. What was is one with it from here on.
pub(crate) async fn is_alone(tx: &DatabaseTransaction) -> bool {
    tx.execute_unprepared(RELEASE).await.is_err()
}

/// Begins another transaction after the commit of one that was alone or was not, as the driver goes on counting it.
pub(crate) async fn follow(tx: &DatabaseTransaction, alone: bool) -> Result<(), DbErr> {
    tx.execute_unprepared(if alone { "BEGIN" } else { &STAND_IN }).await.map(drop)
}

/// Rolls back whatever is open on the connection, and has the driver count nothing.
pub(crate) async fn clear(tx: &DatabaseTransaction) -> Result<(), DbErr> {
    for _ in 0..MOST_TRIES {
        // Refused, if there is nothing to roll back.
        drop(tx.execute_unprepared("ROLLBACK").await);
        tx.execute_unprepared(&STAND_IN).await?;
        match tx.begin().await {
            Ok(inner) => {
                drop(inner);
                count_one_less(tx);
            }
            // The driver counts nothing: it has tried to begin, inside of the one that stands in.
            Err(_) => return tx.execute_unprepared("ROLLBACK").await.map(drop),
        }
    }
    drop(tx.execute_unprepared("ROLLBACK").await);
    Err(miscounted())
}

pub(crate) fn miscounted() -> DbErr {
    DbErr::Custom(MISCOUNTED.to_owned())
}

/// SeaORM rolls back a transaction when the begin of an inner one is cut off.
fn count_one_less(tx: &DatabaseTransaction) {
    let mut begin = pin!(tx.begin());
    drop(begin.as_mut().poll(&mut Context::from_waker(Waker::noop())));
}

/// Whether this one stands in for another that SQLite has ended.
pub(crate) async fn stands_in(tx: &DatabaseTransaction) -> Result<bool, DbErr> {
    Mark::LOST.is_there(tx).await
}

/// Begins a transaction in place of one of the user's that SQLite has ended, so that he can roll it back, and cannot commit it.
/// Without foreign keys, SQLite refuses the commit only as long as there is none.
pub(crate) async fn stand_in(tx: &DatabaseTransaction) {
    if matches!(stands_in(tx).await, Ok(true)) || !matches!(number(tx, "PRAGMA foreign_keys").await, Ok(1)) {
        return;
    }
    let stands_in = tx.execute_unprepared(&UNCOMMITTABLE).await.is_ok() && tx.begin().await.is_ok();
    if !stands_in && let Err(error) = tx.execute_unprepared("ROLLBACK").await {
        tracing::debug!(%error, "nothing stands in for a transaction that was rolled back");
    }
}
