//! Orders, and what is told of them.

use posthaste::{Event, Outbox, PgStore};
use serde::{Deserialize, Serialize};

/// What was ordered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    pub(crate) product: String,
    pub(crate) quantity: u32,
    pub(crate) unit_cents: u32,
}

/// Told when an order was created. It is complete: nobody has to ask this service for more.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OrderCreated {
    /// The id of the event, by which consumers tell a repeat.
    event_id: String,
    order_id: String,
    customer_id: String,
    items: Vec<Item>,
    total_cents: i64,
    status: String,
}

pub(crate) async fn create_tables(pool: &sqlx::PgPool) -> anyhow::Result<()> {
    // Two processes that start at once must not both create it.
    sqlx::raw_sql(
        "BEGIN; SELECT pg_advisory_xact_lock(4711); \
         CREATE TABLE IF NOT EXISTS orders (id UUID PRIMARY KEY DEFAULT gen_random_uuid(), customer_id TEXT NOT NULL, \
         items JSONB NOT NULL, total_cents BIGINT NOT NULL, status TEXT NOT NULL DEFAULT 'CREATED', \
         created_at TIMESTAMPTZ NOT NULL DEFAULT now()); COMMIT",
    )
    .execute(pool)
    .await?;
    Ok(())
}

/// Creates an order and tells of it, in the transaction that the caller has opened around this. Gives the order's id.
pub(crate) async fn create_order(outbox: &Outbox<PgStore>, customer: &str, items: Vec<Item>) -> anyhow::Result<String> {
    anyhow::ensure!(items.iter().all(|item| item.quantity > 0), "an order of nothing is none: give a quantity");
    let total_cents = items.iter().map(|item| i64::from(item.quantity) * i64::from(item.unit_cents)).sum();
    let (order_id, event_id) = insert(outbox, customer, &items, total_cents).await?;
    let created = OrderCreated {
        event_id: event_id.clone(),
        order_id: order_id.clone(),
        customer_id: customer.to_owned(),
        items,
        total_cents,
        status: "CREATED".to_owned(),
    };
    let event = Event::builder("OrderCreated").id(event_id).aggregate("Order", &order_id).json(&created);
    outbox.write_current(event).await?;
    Ok(order_id)
}

/// Knows nothing of events, and is handed no transaction: it uses the one that is open.
async fn insert(
    outbox: &Outbox<PgStore>,
    customer: &str,
    items: &[Item],
    total_cents: i64,
) -> anyhow::Result<(String, String)> {
    let mut tx = outbox.current()?;
    let row = sqlx::query_as(
        "INSERT INTO orders (customer_id, items, total_cents) VALUES ($1, $2::jsonb, $3) \
         RETURNING id::text, gen_random_uuid()::text",
    );
    let items = serde_json::to_string(items)?;
    Ok(row.bind(customer).bind(items).bind(total_cents).fetch_one(&mut **tx).await?)
}
