//! A connection of sqlx on which nothing was begun, on MySQL.

use posthaste::{Event, MySqlStore, Outbox};
use sqlx::MySqlConnection;

async fn place(outbox: Outbox<MySqlStore>, mut connection: MySqlConnection) {
    let _ = outbox.write(&mut connection, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
