//! A pool of sqlx, on MySQL.

use posthaste::{Event, MySqlStore, Outbox};
use sqlx::MySqlPool;

async fn place(outbox: Outbox<MySqlStore>, mut pool: MySqlPool) {
    let _ = outbox.write(&mut pool, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
