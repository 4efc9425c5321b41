//! A pool of deadpool-postgres.

use deadpool_postgres::Pool;
use posthaste::tokio_postgres::OutboxExt;
use posthaste::{Event, Outbox, PgStore};

async fn place(outbox: Outbox<PgStore>, pool: Pool) {
    let _ = outbox.write_in(&pool, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
