//! Two databases in one process, each with an outbox of its own: orders are placed in one, and billed in the other.
//!
//! No transaction spans both. The order's event carries the news across, at least once; the invoice's number makes a
//! repeat harmless.

#[cfg(test)]
mod tests;

use posthaste::listener::Failure;
use posthaste::store::Store;
use posthaste::{Delivery, Event, EventBuilder, Outbox, OutboxBuilder, SqliteStore};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let orders =
        open(&directory, "orders", "CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT NOT NULL)").await?;
    let billing = open(&directory, "billing", "CREATE TABLE invoices (order_id TEXT PRIMARY KEY)").await?;
    let (paid, mut all_paid) = mpsc::unbounded_channel();

    let billing = Outbox::builder(billing)
        .listen("Invoice", "InvoiceIssued", move |event: Delivery| {
            println!("billing: invoice for order {} issued", event.aggregate_id().unwrap_or("?"));
            let _ = paid.send(());
            std::future::ready(())
        })
        .start()
        .await?;

    let orders = billed(Outbox::builder(orders), billing.clone()).start().await?;

    for id in 1..=3 {
        let mut tx = orders.begin().await?;
        sqlx::query("INSERT INTO orders (id, total) VALUES (?, '19.90')").bind(id).execute(&mut *tx).await?;
        tx.write(order_placed(id)).await?;
        tx.commit().await?;
        println!("orders: order {id} placed");
    }
    for _ in 1..=3 {
        all_paid.recv().await;
    }

    orders.shutdown().await;
    billing.shutdown().await;
    let (placed, issued) = (orders.admin().counts().await?, billing.admin().counts().await?);
    println!("orders: {} events done; billing: {} events done", placed.done, issued.done);
    Ok(())
}

fn order_placed(id: i32) -> EventBuilder {
    Event::builder("OrderPlaced").aggregate("Order", id).json_text(r#"{"total":"19.90"}"#)
}

/// Orders that are billed: the listener that carries the news across.
fn billed<S: Store>(orders: OutboxBuilder<S>, billing: Outbox<SqliteStore>) -> OutboxBuilder<S> {
    orders.listen("Order", "OrderPlaced", move |event: Delivery| issue_invoice(billing.clone(), event))
}

async fn open(directory: &tempfile::TempDir, name: &str, table: &'static str) -> anyhow::Result<SqliteStore> {
    let store = SqliteStore::open(directory.path().join(format!("{name}.db"))).await?;
    store.migrate().await?;
    sqlx::query(table).execute(store.pool()).await?;
    Ok(store)
}

async fn issue_invoice(billing: Outbox<SqliteStore>, event: Delivery) -> Result<(), Failure> {
    let order = event.aggregate_id().ok_or_else(|| Failure::permanent("an order without an id"))?;
    let mut tx = billing.begin().await?;
    let invoice = sqlx::query("INSERT INTO invoices (order_id) VALUES (?) ON CONFLICT DO NOTHING").bind(order);
    if invoice.execute(&mut *tx).await?.rows_affected() == 1 {
        tx.write(Event::builder("InvoiceIssued").aggregate("Invoice", order).json_text("{}")).await?;
    }
    tx.commit().await?;
    Ok(())
}
