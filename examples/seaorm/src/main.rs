//! A service with SeaORM: entities and events, written together, on PostgreSQL or SQLite.

mod order;
mod shop;

use posthaste::sea_orm::SeaOrmStore;
use posthaste::{Outbox, PgStore, SqliteStore};
use sea_orm::{ConnectionTrait, Database, DatabaseConnection, DbBackend, Schema};

use crate::shop::{OrderCancelled, OrderPlaced, Shop};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite:shop.db?mode=rwc".to_owned());
    let db = Database::connect(url).await?;
    let mut orders = Schema::new(db.get_database_backend()).create_table_from_entity(order::Entity);
    db.execute(orders.if_not_exists()).await?;

    // The outbox is on SeaORM's pool: one pool for both.
    match db.get_database_backend() {
        DbBackend::Postgres => {
            let store = PgStore::new(db.get_postgres_connection_pool().clone());
            store.migrate().await?;
            run(db, store).await
        }
        DbBackend::Sqlite => {
            let store = SqliteStore::new(db.get_sqlite_connection_pool().clone());
            store.migrate().await?;
            run(db, store).await
        }
        other => anyhow::bail!("this example is for PostgreSQL and SQLite, not for {other:?}"),
    }
}

async fn run<S: SeaOrmStore>(db: DatabaseConnection, store: S) -> anyhow::Result<()> {
    let outbox = Outbox::builder(store)
        .on::<OrderPlaced>(|_event, order| async move {
            println!("order {} of {} placed, total {}", order.id, order.customer, order.total);
        })
        .on::<OrderCancelled>(|_event, order| async move { println!("order {} cancelled", order.id) })
        .start()
        .await?;
    let shop = Shop { db, outbox };

    let order = shop.place("Ada", 1990).await?;
    shop.cancel(order).await?;
    // This one is rolled back, and nobody ever hears of it.
    if let Err(error) = shop.cancel(order).await {
        println!("refused: {error}");
    }

    // Delivers what is in memory, then ends.
    shop.outbox.shutdown().await;
    Ok(())
}
