//! sqlxmq, a job queue in stored procedures.

use std::sync::Arc;

use peers_common::{CUSTOMER, Handled, ORDER, ORDERS, Payload, Peer};
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use sqlxmq::{CurrentJob, JobBuilder, JobRunnerOptions};
use tokio_util::sync::CancellationToken;

const SCHEMA: &str = include_str!(concat!(env!("OUT_DIR"), "/schema.sql"));

/// The runner asks for more jobs when fewer than this run.
const MIN_JOBS: usize = 50;
const MAX_JOBS: usize = 100;

struct Sqlxmq {
    pool: PgPool,
}

impl Peer for Sqlxmq {
    type Transaction = sqlx::Transaction<'static, Postgres>;

    async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(Self { pool: PgPoolOptions::new().max_connections(10).test_before_acquire(false).connect(url).await? })
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        sqlx::raw_sql(ORDERS).execute(&self.pool).await?;
        sqlx::raw_sql(SCHEMA).execute(&self.pool).await?;
        Ok(())
    }

    async fn begin(&self) -> anyhow::Result<Self::Transaction> {
        Ok(self.pool.begin().await?)
    }

    async fn order(&self, tx: &mut Self::Transaction) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind(CUSTOMER).execute(&mut **tx).await?;
        Ok(())
    }

    /// The crate has no bulk call.
    async fn enqueue(&self, tx: &mut Self::Transaction, events: Vec<Payload>) -> anyhow::Result<()> {
        for event in events {
            JobBuilder::new("order_placed").set_json(&event)?.spawn(&mut **tx).await?;
        }
        Ok(())
    }

    async fn commit(&self, tx: Self::Transaction) -> anyhow::Result<()> {
        Ok(tx.commit().await?)
    }

    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()> {
        let run = move |job| {
            let handled = Arc::clone(&handled);
            tokio::spawn(async move {
                if let Err(error) = complete(job, &handled).await {
                    eprintln!("a job failed: {error:#}");
                }
            });
        };
        let mut runner = JobRunnerOptions::new(&self.pool, run).set_concurrency(MIN_JOBS, MAX_JOBS).run().await?;
        stop.cancelled().await;
        runner.stop().await;
        Ok(())
    }

    /// A nil message stays in the table for good.
    async fn unfinished(&self, _events: usize) -> anyhow::Result<i64> {
        let sql = "SELECT count(*) FROM mq_msgs WHERE id <> uuid_nil()";
        Ok(sqlx::query_scalar(sql).fetch_one(&self.pool).await?)
    }
}

async fn complete(mut job: CurrentJob, handled: &Handled) -> anyhow::Result<()> {
    if let Some(order) = job.json::<Payload>()? {
        handled.event(order.index);
    }
    Ok(job.complete().await?)
}

fn main() -> anyhow::Result<()> {
    peers_common::main::<Sqlxmq>()
}
