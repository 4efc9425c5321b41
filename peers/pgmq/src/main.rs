//! pgmq, installed from the SQL that its crate carries.

use std::sync::Arc;
use std::time::Duration;

use peers_common::{CUSTOMER, Handled, ORDER, ORDERS, Payload, Peer};
use pgmq::PGMQueueExt;
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const QUEUE: &str = "orders";
const READERS: usize = 4;
const BATCH: i32 = 500;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Seconds until a message that was read and not deleted is seen again.
const VISIBILITY_TIMEOUT: i32 = 60;

/// The crate has no bulk call, the extension has.
const SEND_BATCH: &str = "SELECT pgmq.send_batch($1, $2::jsonb[])";

struct Pgmq {
    pool: PgPool,
    queue: PGMQueueExt,
}

impl Peer for Pgmq {
    type Transaction = sqlx::Transaction<'static, Postgres>;

    async fn connect(url: &str) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(10).test_before_acquire(false).connect(url).await?;
        let queue = PGMQueueExt::new_with_pool(pool.clone()).await;
        Ok(Self { pool, queue })
    }

    async fn migrate(&self) -> anyhow::Result<()> {
        sqlx::raw_sql(ORDERS).execute(&self.pool).await?;
        self.queue.install_sql_from_embedded().await?;
        self.queue.create(QUEUE).await?;
        Ok(())
    }

    async fn begin(&self) -> anyhow::Result<Self::Transaction> {
        Ok(self.pool.begin().await?)
    }

    async fn order(&self, tx: &mut Self::Transaction) -> anyhow::Result<()> {
        sqlx::query(ORDER).bind(CUSTOMER).execute(&mut **tx).await?;
        Ok(())
    }

    async fn enqueue(&self, tx: &mut Self::Transaction, events: Vec<Payload>) -> anyhow::Result<()> {
        if let [event] = &events[..] {
            self.queue.send_with_cxn(QUEUE, event, &mut **tx).await?;
        } else {
            let messages: Vec<_> = events.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
            sqlx::query(SEND_BATCH).bind(QUEUE).bind(messages).execute(&mut **tx).await?;
        }
        Ok(())
    }

    async fn commit(&self, tx: Self::Transaction) -> anyhow::Result<()> {
        Ok(tx.commit().await?)
    }

    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()> {
        let mut readers = JoinSet::new();
        for _ in 0..READERS {
            let (queue, handled, stop) = (self.queue.clone(), Arc::clone(&handled), stop.clone());
            readers.spawn(async move { stop.run_until_cancelled(read(&queue, &handled)).await.unwrap_or(Ok(())) });
        }
        readers.join_all().await.into_iter().collect()
    }

    async fn unfinished(&self, _events: usize) -> anyhow::Result<i64> {
        Ok(sqlx::query_scalar("SELECT count(*) FROM pgmq.q_orders").fetch_one(&self.pool).await?)
    }
}

/// Reads, and deletes what it has read, for ever.
async fn read(queue: &PGMQueueExt, handled: &Handled) -> anyhow::Result<()> {
    loop {
        let messages = queue
            .read_batch_with_poll::<Payload>(QUEUE, VISIBILITY_TIMEOUT, BATCH, None, Some(POLL_INTERVAL))
            .await?
            .unwrap_or_default();
        for message in &messages {
            handled.event(message.message.index);
        }
        let ids: Vec<i64> = messages.iter().map(|message| message.msg_id).collect();
        if !ids.is_empty() {
            queue.delete_batch(QUEUE, &ids).await?;
        }
    }
}

fn main() -> anyhow::Result<()> {
    peers_common::main::<Pgmq>()
}
