//! A connection of SeaORM, which is a pool, on which nothing was begun.

use posthaste::sea_orm::OutboxExt;
use posthaste::{Event, Outbox, PgStore};
use sea_orm::DatabaseConnection;

async fn place(outbox: Outbox<PgStore>, db: DatabaseConnection) {
    let _ = outbox.write_in(&db, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
