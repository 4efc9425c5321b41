//! A pool of sqlx, on SQLite.

use posthaste::{Event, Outbox, SqliteStore};
use sqlx::SqlitePool;

async fn place(outbox: Outbox<SqliteStore>, mut pool: SqlitePool) {
    let _ = outbox.write(&mut pool, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
