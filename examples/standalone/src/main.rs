//! A service without a framework: an order and its event, written together, delivered after the commit.

use posthaste::{Event, Outbox, SqliteStore};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
struct OrderPlaced {
    id: i64,
    total: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = SqliteStore::open("shop.db").await?;
    store.migrate().await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        .execute(store.pool())
        .await?;

    let outbox = Outbox::builder(store)
        .on::<OrderPlaced>(|_event, order| async move { println!("order {} placed, total {}", order.id, order.total) })
        .start()
        .await?;

    // The order and its event are one transaction: both are stored, or neither.
    let mut tx = outbox.begin().await?;
    let order = sqlx::query("INSERT INTO orders (total) VALUES (1990)").execute(&mut *tx).await?;
    tx.write(OrderPlaced { id: order.last_insert_rowid(), total: 1990 }).await?;
    tx.commit().await?;

    // This one is rolled back, and nobody ever hears of it.
    let mut tx = outbox.begin().await?;
    let order = sqlx::query("INSERT INTO orders (total) VALUES (-1)").execute(&mut *tx).await?;
    tx.write(OrderPlaced { id: order.last_insert_rowid(), total: -1 }).await?;
    tx.rollback().await?;

    // Delivers what is in memory, then ends.
    outbox.shutdown().await;
    Ok(())
}
