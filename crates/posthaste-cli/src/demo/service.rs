//! The order service: a table of its own, and an outbox beside it.

use std::collections::BTreeSet;

use anyhow::Context as _;
use posthaste::{Event, Outbox, SqliteStore};
use serde_json::json;
use tokio::sync::watch;

use super::plan::{Ending, Order, OrderId};

pub(super) const CREATE_ORDERS: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id          INTEGER PRIMARY KEY,
        customer    TEXT    NOT NULL,
        total_cents INTEGER NOT NULL
    )";

const INSERT_ORDER: &str = "INSERT INTO orders (id, customer, total_cents) VALUES (?1, ?2, ?3)";

const NEXT_ORDER: &str = "SELECT COALESCE(MAX(id), 0) + 1 FROM orders";

const ORDERS_FROM: &str = "SELECT id FROM orders WHERE id >= ?1";

/// Places orders, with whatever outbox there is at the moment.
pub(super) struct Service {
    outbox: watch::Sender<Option<Outbox<SqliteStore>>>,
}

impl Service {
    pub(super) fn new() -> Self {
        Self { outbox: watch::Sender::new(None) }
    }

    /// Stores an order with its event, or neither.
    pub(super) async fn place(&self, order: &Order) -> anyhow::Result<()> {
        let mut tx = self.outbox().await?.begin().await?;
        sqlx::query(INSERT_ORDER)
            .bind(order.id)
            .bind(order.customer)
            .bind(order.total_cents)
            .execute(&mut *tx)
            .await
            .context("an order could not be inserted; is another demo running on the same --database?")?;
        let payload = json!({ "order": order.id, "customer": order.customer, "total_cents": order.total_cents });
        tx.write(Event::builder("OrderPlaced").aggregate("Order", order.id).json(&payload)).await?;
        match order.ending {
            Ending::Commit => tx.commit().await?,
            Ending::Rollback => tx.rollback().await?,
            Ending::Drop => drop(tx),
        }
        Ok(())
    }

    /// Gives the service an outbox.
    pub(super) fn attach(&self, outbox: Outbox<SqliteStore>) {
        self.outbox.send_replace(Some(outbox));
    }

    /// Takes the outbox away. Orders wait until there is another one.
    pub(super) fn detach(&self) -> Option<Outbox<SqliteStore>> {
        self.outbox.send_replace(None)
    }

    /// How many events the dispatcher has in memory.
    pub(super) fn in_hand(&self) -> usize {
        self.outbox.borrow().as_ref().map_or(0, Outbox::in_flight)
    }

    async fn outbox(&self) -> anyhow::Result<Outbox<SqliteStore>> {
        let mut outbox = self.outbox.subscribe();
        let attached = outbox.wait_for(Option::is_some).await?;
        attached.clone().context("the service has no outbox")
    }
}

/// The number that the next order gets.
pub(super) async fn next_order(store: &SqliteStore) -> anyhow::Result<OrderId> {
    sqlx::query_scalar(NEXT_ORDER).fetch_one(store.pool()).await.context("the table orders cannot be read")
}

/// The orders that are in the table, from that number on.
pub(super) async fn orders_from(store: &SqliteStore, first: OrderId) -> anyhow::Result<BTreeSet<OrderId>> {
    let orders = sqlx::query_scalar(ORDERS_FROM).bind(first).fetch_all(store.pool());
    Ok(orders.await.context("the table orders cannot be read")?.into_iter().collect())
}
