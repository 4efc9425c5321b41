//! The pools that stores make for themselves.

use sqlx::Database;
use sqlx::pool::PoolOptions;

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use server::to_server;

/// A pool that closes no connection for its age, so that sqlx has no task that goes through those that are idle. Now and then that
/// task counts less than none of them, which wraps around, and then it keeps a thread busy for as long as the process lives, which
/// cannot even end: <https://github.com/launchbadge/sqlx/issues/3645>, in 0.9.0.
pub(crate) fn unswept<DB: Database>() -> PoolOptions<DB> {
    PoolOptions::new().idle_timeout(None).max_lifetime(None)
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server {
    use std::io;
    use std::time::Duration;

    use sqlx::{Connection, Database};
    use tokio::time::timeout;

    use super::{PoolOptions, unswept};

    /// How old a connection may be, and for how long nobody may have used it, before another is made instead. A server may only read
    /// by now, and something in between may have forgotten the connection.
    const AGES: Ages = Ages { whole: Duration::from_secs(30 * 60), idle: Duration::from_secs(10 * 60) };

    /// How long the answer of a server may take that is asked whether it is there.
    const ANSWER: Duration = Duration::from_secs(2);

    #[derive(Clone, Copy)]
    pub(super) struct Ages {
        pub(super) whole: Duration,
        pub(super) idle: Duration,
    }

    /// Such a pool for connections to a server. Whoever takes one looks how old it is; and whether it is alive, if it has been idle
    /// for longer than `fresh`.
    pub(crate) fn to_server<DB: Database>(fresh: Duration) -> PoolOptions<DB> {
        aging(AGES, fresh)
    }

    pub(super) fn aging<DB: Database>(ages: Ages, fresh: Duration) -> PoolOptions<DB> {
        unswept().test_before_acquire(false).before_acquire(move |connection: &mut DB::Connection, meta| {
            Box::pin(async move {
                if meta.age >= ages.whole || meta.idle_for >= ages.idle {
                    return Ok(false);
                }
                if meta.idle_for >= fresh {
                    let silent = |_| sqlx::Error::Io(io::ErrorKind::TimedOut.into());
                    timeout(ANSWER, connection.ping()).await.map_err(silent)??;
                }
                Ok(true)
            })
        })
    }
}

#[cfg(all(test, feature = "sqlite", any(feature = "mysql", feature = "postgres")))]
mod tests {
    use std::time::Duration;

    use sqlx::{Sqlite, SqlitePool};

    use super::server::{Ages, aging};

    const LONG: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(50);

    /// A table in memory is gone with the connection that has it.
    async fn is_kept(pool: &SqlitePool) -> bool {
        sqlx::query("SELECT * FROM mark").execute(pool).await.is_ok()
    }

    #[tokio::test]
    async fn whoever_takes_an_old_connection_or_one_that_nobody_used_gets_another() {
        for (whole, idle, expected) in [(LONG, LONG, true), (SHORT, LONG, false), (LONG, SHORT, false)] {
            let pool = aging::<Sqlite>(Ages { whole, idle }, Duration::ZERO).max_connections(1);
            let pool = pool.connect("sqlite::memory:").await.unwrap();
            sqlx::query("CREATE TABLE mark (id INTEGER)").execute(&pool).await.unwrap();
            tokio::time::sleep(2 * SHORT).await;
            assert_eq!(is_kept(&pool).await, expected, "{whole:?}, {idle:?}");
        }
    }
}
