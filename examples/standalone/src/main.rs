//! A service without a framework: an order and its event, written together, delivered after the commit.

use posthaste::{Delivery, Event, Outbox, SqliteStore};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = SqliteStore::open("shop.db").await?;
    store.migrate().await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total TEXT NOT NULL)")
        .execute(store.pool())
        .await?;

    let outbox = Outbox::builder(store)
        .listen("Order", "OrderPlaced", |event: Delivery| async move {
            let order: serde_json::Value = event.decode()?;
            println!("order {} placed, total {}", event.aggregate_id().unwrap_or("?"), order["total"]);
            anyhow::Ok(())
        })
        .start()
        .await?;

    // The order and its event are one transaction: both are stored, or neither.
    let mut tx = outbox.begin().await?;
    let order = sqlx::query("INSERT INTO orders (total) VALUES ('19.90')").execute(&mut *tx).await?;
    let id = order.last_insert_rowid();
    let total = serde_json::json!({ "total": "19.90" });
    tx.write(Event::builder("OrderPlaced").aggregate("Order", id).json(&total)).await?;
    tx.commit().await?;

    // This one is rolled back, and nobody ever hears of it.
    let mut tx = outbox.begin().await?;
    sqlx::query("INSERT INTO orders (total) VALUES ('1000000.00')").execute(&mut *tx).await?;
    tx.write(Event::builder("OrderPlaced").aggregate("Order", "never").json(&total)).await?;
    tx.rollback().await?;

    // Delivers what is in memory, then ends.
    outbox.shutdown().await;
    Ok(())
}
