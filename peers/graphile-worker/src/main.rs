//! graphile_worker, the Rust port of Graphile Worker.

use std::sync::Arc;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use peers_common::{CUSTOMER, Handled, ORDER, ORDERS, Payload, Peer};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use tokio_util::sync::CancellationToken;

const CONCURRENCY: usize = 16;
const LOCAL_QUEUE: usize = 500;
const BATCH_DELAY: Duration = Duration::from_millis(1);

struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
}

impl Peer for Graphile {
    type Transaction = sqlx::Transaction<'static, Postgres>;

    async fn connect(url: &str) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(20).test_before_acquire(false).connect(url).await?;
        let utils = WorkerUtils::new(&pool, "graphile_worker");
        Ok(Self { pool, utils })
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        sqlx::raw_sql(ORDERS).execute(&self.pool).await?;
        Ok(self.utils.migrate().await?)
    }

    async fn begin(&self) -> anyhow::Result<Self::Transaction> {
        Ok(self.pool.begin().await?)
    }

    async fn order(&self, tx: &mut Self::Transaction) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind(CUSTOMER).execute(&mut **tx).await?;
        Ok(())
    }

    async fn enqueue(&self, tx: &mut Self::Transaction, events: Vec<Payload>) -> anyhow::Result<()> {
        let mut utils = self.utils.clone().with_executor(tx);
        let spec = JobSpec::default();
        let mut jobs: Vec<_> = events.into_iter().map(|event| (OrderPlaced(event), &spec)).collect();
        if jobs.len() > 1 {
            utils.add_jobs(&jobs).await?;
        } else if let Some((job, _)) = jobs.pop() {
            utils.add_job(job, spec.clone()).await?;
        }
        Ok(())
    }

    async fn commit(&self, tx: Self::Transaction) -> anyhow::Result<()> {
        Ok(tx.commit().await?)
    }

    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()> {
        let worker = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .concurrency(CONCURRENCY)
            .local_queue(LocalQueueConfig::default().with_size(LOCAL_QUEUE))
            .complete_job_batch_delay(BATCH_DELAY)
            .add_extension(Extension(handled))
            .define_job::<OrderPlaced>()
            .shutdown_signal(async move { stop.cancelled().await })
            .init()
            .await?;
        Ok(worker.run().await?)
    }

    async fn unfinished(&self, _events: usize) -> anyhow::Result<i64> {
        let sql = "SELECT count(*) FROM graphile_worker._private_jobs";
        Ok(sqlx::query_scalar(sql).fetch_one(&self.pool).await?)
    }
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(transparent)]
struct OrderPlaced(Payload);

impl TaskHandler for OrderPlaced {
    const IDENTIFIER: &'static str = "order_placed";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(Extension(handled)) = ctx.get_ext() else {
            return Err("the extension is missing");
        };
        handled.event(self.0.index);
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Extension(Arc<Handled>);

fn main() -> anyhow::Result<()> {
    peers_common::main::<Graphile>()
}
