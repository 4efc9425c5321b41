//! Telling customers of their orders: what listens to the events.

use axum::Json;
use axum::extract::State;
use posthaste::{Delivery, OutboxBuilder};

use crate::database::Database;
use crate::orders::{OrderCancelled, OrderPlaced, Refused};

/// The listeners. An event may be delivered twice, and they would not notice: its id is the key of the notification.
pub(crate) fn listeners<D: Database>(outbox: OutboxBuilder<D>, database: &D) -> OutboxBuilder<D> {
    outbox
        .on_with(database.clone(), |database, event, order: OrderPlaced| async move {
            let text = format!("{}: order {} over {} cents is placed", order.customer, order.id, order.total);
            notify(&database, &event, &text).await
        })
        .on_with(database.clone(), |database, event, order: OrderCancelled| async move {
            notify(&database, &event, &format!("order {} is cancelled", order.id)).await
        })
}

async fn notify<D: Database>(database: &D, event: &Delivery, text: &str) -> sqlx::Result<()> {
    tracing::info!(event_id = %event.id(), "notifying of an order");
    database.insert_notification(event.id().as_str(), text).await
}

/// `GET /notifications`.
pub(crate) async fn list<D: Database>(State(database): State<D>) -> Result<Json<Vec<String>>, Refused> {
    Ok(Json(database.notifications().await?))
}
