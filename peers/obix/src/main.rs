//! obix: a log with a cursor, and one subscriber that reads it in order.

use std::sync::Arc;
use std::time::Duration;

use es_entity::{AtomicOperation, DbOp};
use job::{JobSvcConfig, JobType, Jobs};
use obix::out::Outbox;
use obix::{EventCtx, EventDelivery, MailboxConfig, OutboxEventJobConfig, SingletonSubscriber};
use peers_common::{CUSTOMER, Handled, ORDER, ORDERS, Payload, Peer};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::runtime::Handle;
use tokio::task;
use tokio_util::sync::CancellationToken;

const SCHEMA: &str = include_str!(concat!(env!("OUT_DIR"), "/schema.sql"));

const SUBSCRIBER: JobType = JobType::new("order-placed");
const BATCH: usize = 1000;
/// Events that one read of the log may return, fewer than what is kept in memory.
const PAGE: usize = 5000;
const CACHE: usize = 20_000;
const NOTIFY_DEBOUNCE: Duration = Duration::ZERO;

struct Obix {
    pool: PgPool,
    outbox: tokio::sync::OnceCell<Outbox<Payload>>,
}

impl Obix {
    /// It listens from its start on, and so wants its tables to be there.
    async fn outbox(&self) -> anyhow::Result<&Outbox<Payload>> {
        let config = MailboxConfig::builder()
            .notify_debounce(NOTIFY_DEBOUNCE)
            .event_buffer_size(BATCH)
            .event_cache_size(CACHE)
            .backfill_page_size(PAGE)
            .build();
        // The compiler cannot tell of its future that it may go from thread to thread.
        let init = || Handle::current().block_on(Outbox::init(&self.pool, config));
        let init = async { task::block_in_place(init).map_err(|error| anyhow::anyhow!("{error:?}")) };
        self.outbox.get_or_try_init(|| init).await
    }
}

impl Peer for Obix {
    type Transaction = DbOp<'static>;

    async fn connect(url: &str) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(20).test_before_acquire(false).connect(url).await?;
        Ok(Self { pool, outbox: tokio::sync::OnceCell::new() })
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        sqlx::raw_sql(ORDERS).execute(&self.pool).await?;
        sqlx::raw_sql(SCHEMA).execute(&self.pool).await?;
        Ok(())
    }

    async fn begin(&self) -> anyhow::Result<Self::Transaction> {
        Ok(self.outbox().await?.begin_op().await?)
    }

    async fn order(&self, op: &mut Self::Transaction) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind(CUSTOMER).execute(op.as_executor()).await?;
        Ok(())
    }

    /// The rows are inserted with the commit.
    async fn enqueue(&self, op: &mut Self::Transaction, events: Vec<Payload>) -> anyhow::Result<()> {
        Ok(self.outbox().await?.publish_all_persisted(op, events).await?)
    }

    async fn commit(&self, op: Self::Transaction) -> anyhow::Result<()> {
        Ok(op.commit().await?)
    }

    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()> {
        let fault = |error| anyhow::anyhow!("{error:?}");
        let mut jobs = Jobs::init(JobSvcConfig::builder().pool(self.pool.clone()).build()?).await.map_err(fault)?;
        let config = OutboxEventJobConfig::new(SUBSCRIBER).with_max_batch_size(BATCH);
        self.outbox()
            .await?
            .register_singleton_subscriber(&mut jobs, config, Subscriber(handled))
            .await
            .map_err(|error| anyhow::anyhow!("{error:?}"))?;
        jobs.start_poll().await.map_err(fault)?;
        stop.cancelled().await;
        jobs.shutdown().await.map_err(fault)
    }

    /// What is beyond the cursor: there are no gaps, as no transaction was rolled back.
    async fn unfinished(&self, events: usize) -> anyhow::Result<i64> {
        let sql = "SELECT coalesce(max((execution_state_json->>'sequence')::bigint), 0) FROM job_execution_states";
        let cursor: i64 = sqlx::query_scalar(sql).fetch_one(&self.pool).await?;
        Ok(i64::try_from(events)? - cursor)
    }
}

struct Subscriber(Arc<Handled>);

impl SingletonSubscriber<Payload> for Subscriber {
    type Batch = ();

    /// Collecting, even of nothing, moves the cursor with each batch.
    async fn handle_persistent<'inv>(
        &self,
        ctx: EventCtx<'inv>,
        event: &EventDelivery<Payload>,
    ) -> Result<obix::Handled<'inv>, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(order) = &event.payload {
            self.0.event(order.index);
        }
        Ok(ctx.collect_with(|()| ()))
    }
}

fn main() -> anyhow::Result<()> {
    peers_common::main::<Obix>()
}
