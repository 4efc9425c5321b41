//! A pool of sqlx, on PostgreSQL.

use posthaste::{Event, Outbox, PgStore};
use sqlx::PgPool;

async fn place(outbox: Outbox<PgStore>, mut pool: PgPool) {
    let _ = outbox.write(&mut pool, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
