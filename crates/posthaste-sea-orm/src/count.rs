//! Transactions that SQLite has ended by itself, and that its driver goes on counting.
//!
//! SQLite rolls a transaction back after some errors: a full disk, an `INSERT OR ROLLBACK`. Its driver notices nothing, and
//! cannot roll it back any more. Whoever begins on that connection next is given a savepoint instead of a transaction, and when
//! that is rolled back, a transaction stays open of which nobody knows.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use sea_orm::{ConnectionTrait, DatabaseTransaction, TransactionTrait};

/// A transaction for each one that its driver may count, so that it can roll them back. It sets savepoints of these names.
pub(crate) const STAND_IN: &str =
    "BEGIN; SAVEPOINT _sqlx_savepoint_1; SAVEPOINT _sqlx_savepoint_2; SAVEPOINT _sqlx_savepoint_3";

/// The savepoints by which a driver begins on a connection on which it counts a transaction already.
const RELEASES: [&str; 3] = [
    "RELEASE SAVEPOINT _sqlx_savepoint_1",
    "RELEASE SAVEPOINT _sqlx_savepoint_2",
    "RELEASE SAVEPOINT _sqlx_savepoint_3",
];

/// How often it is tried to have the driver count one transaction less. Once is enough, unless an answer comes too soon.
const MOST_TRIES: usize = 100;

/// Whether a transaction that was just begun is a savepoint: another one had ended on that connection without the driver.
pub(crate) async fn is_inner(tx: &DatabaseTransaction) -> bool {
    for release in RELEASES {
        if tx.execute_unprepared(release).await.is_ok() {
            return true;
        }
    }
    false
}

/// Rolls back whatever is open on the connection, and has the driver count nothing.
pub(crate) async fn clear(tx: &DatabaseTransaction) {
    for _ in 0..MOST_TRIES {
        // Refused, if there is nothing to roll back.
        drop(tx.execute_unprepared("ROLLBACK").await);
        if let Err(error) = tx.execute_unprepared(STAND_IN).await {
            tracing::warn!(%error, "a connection was left in an unknown state");
            return;
        }
        match tx.begin().await {
            Ok(inner) => {
                drop(inner);
                count_one_less(tx);
            }
            // The driver counts nothing: it has tried to begin, inside of the one that stands in.
            Err(_) => {
                if let Err(error) = tx.execute_unprepared("ROLLBACK").await {
                    tracing::warn!(%error, "a connection was left in an unknown state");
                }
                return;
            }
        }
    }
    tracing::warn!("a connection was left in a transaction that its driver counts");
}

/// SeaORM rolls back a transaction when the begin of an inner one is cut off.
fn count_one_less(tx: &DatabaseTransaction) {
    let mut begin = pin!(tx.begin());
    drop(begin.as_mut().poll(&mut Context::from_waker(Waker::noop())));
}

/// Begins another transaction in place of the one that SQLite has ended, so that whoever has it can roll it back.
pub(crate) async fn stand_in(tx: &DatabaseTransaction) {
    if tx.execute_unprepared(STAND_IN).await.is_ok()
        && tx.begin().await.is_err()
        && let Err(error) = tx.execute_unprepared("ROLLBACK").await
    {
        tracing::warn!(%error, "a connection was left in an unknown state");
    }
}
