//! oxide-outbox: `outbox-core` with `outbox-postgres`, and a transport that only counts.

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::prelude::*;
use outbox_postgres::{PostgresOutbox, PostgresWriter};
use peers_common::{CUSTOMER, Handled, ORDER, ORDERS, Payload as Order, Peer};
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SCHEMA: &str = include_str!(concat!(env!("OUT_DIR"), "/schema.sql"));

const BATCH: u32 = 1000;
const MANAGERS: usize = 2;

struct Oxide {
    pool: PgPool,
    config: Arc<OutboxConfig<Order>>,
    service: OutboxService<PostgresWriter, NoIdempotency, Order>,
}

impl Peer for Oxide {
    type Transaction = sqlx::Transaction<'static, Postgres>;

    async fn connect(url: &str) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(10).test_before_acquire(false).connect(url).await?;
        let mut config = OutboxConfig::default();
        config.batch_size = BATCH;
        let config = Arc::new(config);
        let service = OutboxService::new(Arc::new(PostgresWriter), Arc::clone(&config));
        Ok(Self { pool, config, service })
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

    /// There is no bulk call.
    async fn enqueue(&self, tx: &mut Self::Transaction, events: Vec<Order>) -> anyhow::Result<()> {
        for event in events {
            self.service.add_event("OrderPlaced", event, None, &mut **tx).await?;
        }
        Ok(())
    }

    async fn commit(&self, tx: Self::Transaction) -> anyhow::Result<()> {
        Ok(tx.commit().await?)
    }

    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()> {
        let (shutdown, shutdown_rx) = watch::channel(false);
        let publisher = Arc::new(Counting(handled));
        let mut managers = tokio::task::JoinSet::new();
        for _ in 0..MANAGERS {
            let manager = OutboxManagerBuilder::new()
                .storage(Arc::new(PostgresOutbox::new(self.pool.clone(), Arc::clone(&self.config))))
                .publisher(Arc::clone(&publisher))
                .config(Arc::clone(&self.config))
                .shutdown_rx(shutdown_rx.clone())
                .build()?;
            managers.spawn(manager.run());
        }
        stop.cancelled().await;
        shutdown.send(true)?;
        managers.join_all().await.into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }

    async fn unfinished(&self, events: usize) -> anyhow::Result<i64> {
        let sent: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox_events WHERE status = 'Sent'")
            .fetch_one(&self.pool)
            .await?;
        Ok(i64::try_from(events)? - sent)
    }
}

struct Counting(Arc<Handled>);

#[async_trait]
impl Transport<Order> for Counting {
    async fn publish(&self, event: Event<Order>) -> Result<(), OutboxError> {
        self.0.event(event.payload.as_value().index);
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    peers_common::main::<Oxide>()
}
