//! Connections of a pool.

use diesel_async::SimpleAsyncConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig};
use futures_util::FutureExt;
use posthaste_conformance::testing::{cut_short, event, watched, within};
use posthaste_conformance::{Fixture, PgFixture, SqliteFixture};
use posthaste_diesel::OutboxExt;

use crate::database::{Database, create};

/// Makes the tests of this file, for a database.
macro_rules! on {
    ($name:ident, $database:ty) => {
        mod $name {
            use super::*;

            type Conn = <$database as Database>::Conn;

            fn pool_of_one(database: &$database) -> Pool<Conn> {
                let mut config = ManagerConfig::default();
                config.custom_setup = Box::new(|address| <$database>::open(address).boxed());
                let manager = AsyncDieselConnectionManager::<Conn>::new_with_config(database.address(), config);
                Pool::builder(manager).max_size(1).build().unwrap()
            }

            /// What the pool hands out next has no transaction open, wherever the one before was dropped.
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn case_19_a_pool_of_one_connection() {
                let database = create::<$database>().await;
                let pool = pool_of_one(&database);
                let (outbox, _, _inbox) = watched(database.store()).await;
                let mut cuts = 0;
                for polls in 1.. {
                    let mut conn = within("a connection comes back", pool.get()).await.unwrap();
                    let whole = outbox.transaction_on(&mut conn, async |tx| {
                        tx.write(event("Cut")).await?;
                        tx.batch_execute("INSERT INTO orders (total) VALUES (1)").await?;
                        anyhow::Ok(())
                    });
                    let finished = cut_short(polls, whole).await.is_some();
                    drop(conn);
                    let mut conn = within("a connection comes back", pool.get()).await.unwrap();
                    let next = outbox.transaction_on(&mut conn, async |tx| anyhow::Ok(tx.write(event("Next")).await?));
                    within("the next transaction gets through", next).await.unwrap();
                    // The connection below, as well.
                    let next = outbox.transaction_on(&mut *conn, async |tx| anyhow::Ok(tx.write(event("Next")).await?));
                    within("the next transaction gets through", next).await.unwrap();
                    if finished {
                        break;
                    }
                    cuts = polls;
                }
                assert!(cuts > 0);
                outbox.shutdown().await;
            }
        }
    };
}

on!(on_postgres, PgFixture);
on!(on_sqlite, SqliteFixture);
