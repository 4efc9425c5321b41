//! A connection of sqlx on which nothing was begun, on PostgreSQL.

use posthaste::{Event, Outbox, PgStore};
use sqlx::PgConnection;

async fn place(outbox: Outbox<PgStore>, mut connection: PgConnection) {
    let _ = outbox.write(&mut connection, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
