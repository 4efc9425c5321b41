//! underway, by its queue and its worker.

use std::sync::Arc;

use peers_common::{CUSTOMER, Handled, ORDER, ORDERS, Payload, Peer};
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use underway::{Queue, Task, Worker};

const CONCURRENCY: usize = 8;

struct Underway {
    pool: PgPool,
    queue: OnceCell<Arc<Queue<OrderPlaced>>>,
}

impl Underway {
    /// It is a row of its own, and so wants its table to be there.
    async fn queue(&self) -> anyhow::Result<&Arc<Queue<OrderPlaced>>> {
        let build = async || {
            let queue = Queue::builder().name("orders").pool(self.pool.clone()).build().await?;
            Ok(Arc::new(queue))
        };
        self.queue.get_or_try_init(build).await
    }
}

impl Peer for Underway {
    type Transaction = sqlx::Transaction<'static, Postgres>;

    async fn connect(url: &str) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(30).test_before_acquire(false).connect(url).await?;
        Ok(Self { pool, queue: OnceCell::new() })
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        sqlx::raw_sql(ORDERS).execute(&self.pool).await?;
        Ok(underway::run_migrations(&self.pool).await?)
    }

    async fn begin(&self) -> anyhow::Result<Self::Transaction> {
        Ok(self.pool.begin().await?)
    }

    async fn order(&self, tx: &mut Self::Transaction) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind(CUSTOMER).execute(&mut **tx).await?;
        Ok(())
    }

    async fn enqueue(&self, tx: &mut Self::Transaction, events: Vec<Payload>) -> anyhow::Result<()> {
        let (queue, task) = (self.queue().await?, OrderPlaced(None));
        if let [event] = &events[..] {
            queue.enqueue(&mut **tx, &task, event).await?;
        } else {
            queue.enqueue_multi(&mut **tx, &task, &events).await?;
        }
        Ok(())
    }

    async fn commit(&self, tx: Self::Transaction) -> anyhow::Result<()> {
        Ok(tx.commit().await?)
    }

    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()> {
        let mut worker = Worker::new(Arc::clone(self.queue().await?), OrderPlaced(Some(handled)));
        worker.set_concurrency_limit(CONCURRENCY);
        worker.set_shutdown_token(stop);
        Ok(worker.run().await?)
    }

    async fn unfinished(&self, _events: usize) -> anyhow::Result<i64> {
        let sql = "SELECT count(*) FROM underway.task WHERE state <> 'succeeded'";
        Ok(sqlx::query_scalar(sql).fetch_one(&self.pool).await?)
    }
}

/// Who only enqueues it has nobody to tell.
struct OrderPlaced(Option<Arc<Handled>>);

impl Task for OrderPlaced {
    type Input = Payload;
    type Output = ();

    async fn execute(&self, tx: sqlx::Transaction<'_, Postgres>, order: Payload) -> underway::task::Result<()> {
        if let Some(handled) = &self.0 {
            handled.event(order.index);
        }
        Ok(tx.commit().await?)
    }
}

fn main() -> anyhow::Result<()> {
    peers_common::main::<Underway>()
}
