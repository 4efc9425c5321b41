//! The pools that stores make for themselves.

use sqlx::Database;
use sqlx::pool::PoolOptions;

/// A pool that closes no connection for its age, so that sqlx has no task that goes through those that are idle. Now and then that
/// task counts less than none of them, which wraps around, and then it keeps a thread busy for as long as the process lives, which
/// cannot even end: <https://github.com/launchbadge/sqlx/issues/3645>, in 0.9.0. A connection that had time to die is asked whether
/// it lives before it is used.
pub(crate) fn unswept<DB: Database>() -> PoolOptions<DB> {
    PoolOptions::new().idle_timeout(None).max_lifetime(None)
}
