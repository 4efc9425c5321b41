//! What is done with orders, and what others hear of it.

use anyhow::Context as _;
use posthaste::sea_orm::{OutboxExt, SeaOrmStore};
use posthaste::{Event, Outbox};
use sea_orm::ActiveValue::Set;
use sea_orm::entity::prelude::*;
use sea_orm::{DatabaseConnection, IntoActiveModel};
use serde::{Deserialize, Serialize};

use crate::order;

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
pub(crate) struct OrderPlaced {
    pub id: i64,
    pub customer: String,
    pub total: i64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderCancelled", aggregate = "Order", key = "id")]
pub(crate) struct OrderCancelled {
    pub id: i64,
}

/// Orders, on any database.
pub(crate) struct Shop<S: SeaOrmStore> {
    pub db: DatabaseConnection,
    pub outbox: Outbox<S>,
}

impl<S: SeaOrmStore> Shop<S> {
    /// Places an order: it and its event are one transaction.
    pub(crate) async fn place(&self, customer: &str, total: i64) -> anyhow::Result<i64> {
        let mut tx = self.outbox.begin_on(&self.db).await?;
        let new = order::ActiveModel {
            customer: Set(customer.to_owned()),
            total: Set(total),
            cancelled: Set(false),
            ..Default::default()
        };
        let order = new.insert(&*tx).await?;
        tx.write(OrderPlaced { id: order.id, customer: order.customer, total }).await?;
        tx.commit().await?;
        Ok(order.id)
    }

    /// Cancels an order, in a closure: what is cancelled already is refused, and nobody hears of it.
    pub(crate) async fn cancel(&self, id: i64) -> anyhow::Result<()> {
        self.outbox
            .transaction_on(&self.db, async |tx| {
                let order = order::Entity::find_by_id(id).one(&*tx).await?.context("there is no such order")?;
                anyhow::ensure!(!order.cancelled, "order {id} is cancelled already");
                let mut order = order.into_active_model();
                order.cancelled = Set(true);
                order.update(&*tx).await?;
                tx.write(OrderCancelled { id }).await?;
                Ok(())
            })
            .await
    }
}
