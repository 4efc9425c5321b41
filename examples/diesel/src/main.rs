//! Orders with diesel-async: placed and cancelled in its transactions, each together with its event.

mod schema;

use anyhow::Context;
use diesel::prelude::*;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use posthaste::diesel::OutboxExt;
use posthaste::{Event, Outbox, PgStore};
use serde::{Deserialize, Serialize};

use schema::orders;

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
struct OrderPlaced {
    id: i32,
    item: String,
    total: i32,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderCancelled", aggregate = "Order", key = "id")]
struct OrderCancelled {
    id: i32,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").context("set DATABASE_URL to a PostgreSQL database")?;
    let store = PgStore::connect(&url).await?;
    store.migrate().await?;
    let pool = Pool::builder(AsyncDieselConnectionManager::<AsyncPgConnection>::new(&url)).build()?;
    let mut conn = pool.get().await?;
    conn.batch_execute(
        "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY GENERATED ALWAYS AS IDENTITY, item TEXT NOT NULL, \
         total INTEGER NOT NULL CHECK (total > 0), cancelled BOOLEAN NOT NULL DEFAULT FALSE)",
    )
    .await?;

    let outbox = Outbox::builder(store)
        .on::<OrderPlaced>(|_event, order| async move {
            println!("order {} placed: {}, {} cents", order.id, order.item, order.total);
        })
        .on::<OrderCancelled>(|_event, order| async move { println!("order {} cancelled", order.id) })
        .start()
        .await?;

    let order = place(&outbox, &mut conn, "a lamp", 1990).await?;
    cancel(&outbox, &mut conn, order).await?;

    // Neither of these happens, and nobody ever hears of them.
    let error = place(&outbox, &mut conn, "a gift", 0).await.expect_err("it costs nothing");
    println!("not placed: {error}");
    let error = cancel(&outbox, &mut conn, order).await.expect_err("it is cancelled already");
    println!("not cancelled: {error}");

    // Delivers what is in memory, then ends.
    outbox.shutdown().await;
    Ok(())
}

/// Places an order and tells of it, or neither.
async fn place(outbox: &Outbox<PgStore>, conn: &mut AsyncPgConnection, item: &str, total: i32) -> anyhow::Result<i32> {
    outbox
        .transaction_on(conn, async |tx| {
            let values = (orders::item.eq(item), orders::total.eq(total));
            let insert = diesel::insert_into(orders::table).values(values).returning(orders::id);
            let id: i32 = insert.get_result(tx).await?;
            tx.write(OrderPlaced { id, item: item.to_owned(), total }).await?;
            Ok(id)
        })
        .await
}

/// Cancels an order that is not cancelled yet. The event comes first here, which makes no difference: an error takes it back.
async fn cancel(outbox: &Outbox<PgStore>, conn: &mut AsyncPgConnection, id: i32) -> anyhow::Result<()> {
    outbox
        .transaction_on(conn, async |tx| {
            tx.write(OrderCancelled { id }).await?;
            let open = orders::table.find(id).filter(orders::cancelled.eq(false));
            let changed = diesel::update(open).set(orders::cancelled.eq(true)).execute(tx).await?;
            anyhow::ensure!(changed == 1, "order {id} is not open");
            Ok(())
        })
        .await
}
