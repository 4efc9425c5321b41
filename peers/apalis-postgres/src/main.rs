//! apalis with apalis-postgres.

use std::sync::Arc;
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage, queries};
use peers_common::{CUSTOMER, Handled, ORDER, ORDERS, Payload, Peer};
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use tokio_util::sync::CancellationToken;

const QUEUE: &str = "orders";
const BATCH: usize = 500;
/// Beside the notifications.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

struct Apalis {
    pool: PgPool,
}

impl Peer for Apalis {
    type Transaction = sqlx::Transaction<'static, Postgres>;

    async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(Self { pool: PgPoolOptions::new().max_connections(10).test_before_acquire(false).connect(url).await? })
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        sqlx::raw_sql(ORDERS).execute(&self.pool).await?;
        Ok(PostgresStorage::setup(&self.pool).await?)
    }

    async fn begin(&self) -> anyhow::Result<Self::Transaction> {
        Ok(self.pool.begin().await?)
    }

    async fn order(&self, tx: &mut Self::Transaction) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind(CUSTOMER).execute(&mut **tx).await?;
        Ok(())
    }

    async fn enqueue(&self, tx: &mut Self::Transaction, events: Vec<Payload>) -> anyhow::Result<()> {
        let task = |event| anyhow::Ok(TaskBuilder::new(serde_json::to_vec(&event)?).build());
        let tasks = events.into_iter().map(task).collect::<Result<_, _>>()?;
        Ok(queries::push_tasks(&mut **tx, QUEUE, tasks).await?)
    }

    async fn commit(&self, tx: Self::Transaction) -> anyhow::Result<()> {
        Ok(tx.commit().await?)
    }

    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()> {
        let backend = PostgresStorage::new(&self.pool)
            .with_config(Config::default().queue(QUEUE).batch_size(BATCH))
            .with_pubsub()
            .poll_with_interval(POLL_INTERVAL);
        let stopped = async move {
            stop.cancelled().await;
            Ok::<_, WorkerError>(())
        };
        let worker = WorkerBuilder::new("worker").backend(backend).data(handled).build(handle);
        Ok(worker.run_until(stopped).await?)
    }

    async fn unfinished(&self, _events: usize) -> anyhow::Result<i64> {
        let sql = "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'";
        Ok(sqlx::query_scalar(sql).fetch_one(&self.pool).await?)
    }
}

async fn handle(order: Payload, handled: Data<Arc<Handled>>) -> Result<(), BoxDynError> {
    handled.event(order.index);
    Ok(())
}

fn main() -> anyhow::Result<()> {
    peers_common::main::<Apalis>()
}
